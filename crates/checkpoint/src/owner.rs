//! Whose checkpoints these are: of two runs on one place the second is refused.
//!
//! Ownership is an object `owner/<epoch>.json` that its owner rewrites as a sign of life. Whoever takes over creates the next
//! epoch (create-if-absent, so one of two wins); the greatest epoch owns. Signs of life are judged by the store's own clock, so
//! the clocks of machines may be wrong. This keeps users from a mistake; what keeps states apart is that their names differ.

use crate::CheckpointError;
use crate::place::Place;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, PutMode, PutOptions};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// An owner that gave no sign of life for so long has gone.
pub const LEASE: Duration = Duration::from_secs(30);

const FOLDER: &str = "owner";
/// Rewritten to learn the store's time.
const CLOCK: &str = "clock";

/// Who claims a place.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// The run, the same after a restart: a run folder, or a job of a cluster with its uid.
    pub run: String,
    /// Identity of the machine's present boot and of its table of processes; empty where the run is not of one process.
    pub machine: String,
    /// The process there.
    pub process: u32,
    /// When it started, in the machine's ticks: process numbers are used again.
    pub started: u64,
}

/// The right to write below a place; to be renewed.
#[derive(Clone, Debug)]
pub struct Ownership {
    place: Place,
    claim: Claim,
    epoch: u64,
}

/// What a sign of life found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// The place is this owner's.
    Owner,
    /// The same run has claimed it anew, as after a change of leader: this one keeps its hands off.
    Succeeded,
    /// Another run, of this name, has it.
    Taken(String),
}

/// The newest owner.
struct Present {
    epoch: u64,
    path: Path,
    seen: chrono::DateTime<chrono::Utc>,
}

impl Place {
    /// Makes a run the owner of this job's folder. `has_ended` tells of an owner's process whether it has ended for certain.
    ///
    /// # Errors
    /// Another run owns it, or the store fails.
    pub async fn claim(
        &self,
        claim: Claim,
        has_ended: impl Fn(&Claim) -> bool,
    ) -> Result<Ownership, CheckpointError> {
        let present = self.owner().await?;
        if let Some(present) = &present {
            let owner = self.read_claim(&present.path).await?;
            let mine = owner.as_ref().is_some_and(|o| o.run == claim.run);
            // An object that nobody can read is no claim.
            let ended = owner.as_ref().is_none_or(&has_ended);
            if !mine && !ended {
                let silent = self.silence(present).await?;
                if silent < LEASE {
                    return Err(CheckpointError::Owned {
                        run: owner.map(|o| o.run).unwrap_or_default(),
                        silent_s: silent.as_secs(),
                        lease_s: LEASE.as_secs(),
                    });
                }
            }
        }
        let ownership = Ownership {
            place: self.clone(),
            claim,
            epoch: present.as_ref().map_or(1, |p| p.epoch + 1),
        };
        let create = PutOptions::from(PutMode::Create);
        match self
            .inner
            .put_opts(&ownership.path(), ownership.text().into(), create)
            .await
        {
            Ok(_) => {}
            Err(object_store::Error::AlreadyExists { .. }) => {
                return Err(CheckpointError::Owned {
                    run: "one that has just begun".into(),
                    silent_s: 0,
                    lease_s: LEASE.as_secs(),
                });
            }
            Err(error) => return Err(error.into()),
        }
        if let Some(present) = present {
            // The greater epoch owns already: what is left behind is only litter.
            let _ = self.inner.delete(&present.path).await;
        }
        Ok(ownership)
    }

    fn owners(&self) -> Path {
        self.root().child(FOLDER)
    }

    async fn owner(&self) -> Result<Option<Present>, CheckpointError> {
        let owners = self.owners();
        let mut objects = self.inner.list(Some(&owners));
        let mut newest: Option<Present> = None;
        while let Some(object) = objects.try_next().await? {
            let epoch = object.location.filename().and_then(|n| n.strip_suffix(".json"));
            let Some(epoch) = epoch.and_then(|e| e.parse::<u64>().ok()) else {
                continue;
            };
            if newest.as_ref().is_none_or(|n| n.epoch < epoch) {
                newest = Some(Present {
                    epoch,
                    path: object.location,
                    seen: object.last_modified,
                });
            }
        }
        Ok(newest)
    }

    async fn read_claim(&self, path: &Path) -> Result<Option<Claim>, CheckpointError> {
        match self.inner.get(path).await {
            Ok(got) => Ok(serde_json::from_slice(&got.bytes().await?).ok()),
            // Given up just now.
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// How long the owner has given no sign of life, by the store's clock.
    async fn silence(&self, present: &Present) -> Result<Duration, CheckpointError> {
        let clock = self.owners().child(CLOCK);
        self.inner.put(&clock, Vec::new().into()).await?;
        let now = self.inner.head(&clock).await?.last_modified;
        Ok((now - present.seen).to_std().unwrap_or_default())
    }
}

impl Ownership {
    fn path(&self) -> Path {
        self.place.owners().child(format!("{:08}.json", self.epoch))
    }

    fn text(&self) -> Vec<u8> {
        serde_json::to_vec(&self.claim).unwrap_or_default()
    }

    /// Gives a sign of life, if the place is still this owner's.
    ///
    /// # Errors
    /// The store fails.
    pub async fn renew(&self) -> Result<Standing, CheckpointError> {
        match self.place.owner().await? {
            Some(present) if present.epoch > self.epoch => {
                let owner = self.place.read_claim(&present.path).await?;
                Ok(match owner {
                    Some(owner) if owner.run != self.claim.run => Standing::Taken(owner.run),
                    _ => Standing::Succeeded,
                })
            }
            _ => {
                self.place.inner.put(&self.path(), self.text().into()).await?;
                Ok(Standing::Owner)
            }
        }
    }

    /// Gives the place up, so that the next run need not wait.
    ///
    /// # Errors
    /// The store fails.
    pub async fn release(&self) -> Result<(), CheckpointError> {
        match self.place.inner.delete(&self.path()).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
