//! Ownership of a location: if two runs try to write to one location, the second is refused.
//!
//! A lease is an object `owner/<epoch>.json` that the owner rewrites to renew it. A successor creates the next epoch (create if absent, so
//! only one of two wins); the greatest epoch owns the location. A released lease stays and names its last owner: epochs only grow, so an
//! owner that was suspended for a while finds a later one. The age of a lease is measured by the store's own clock, so machines' clocks may
//! be wrong. This protects users from a mistake; it is not needed for safety, since different states have different names.

use crate::CheckpointError;
use crate::location::Location;
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, PutMode, PutOptions};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use varuna_plan::StateId;

/// A lease that was not renewed for this long has ended.
pub const LEASE: Duration = Duration::from_secs(30);

const FOLDER: &str = "owner";
/// An empty object that is rewritten to learn the store's time.
const CLOCK: &str = "clock";

/// The claimant of a location.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// The run, the same after a restart: a run folder, or a job of a cluster with its uid.
    pub run: String,
    /// Identity of the machine's boot and process namespace; empty if the run is not one process.
    pub machine: String,
    /// The process id on that machine.
    pub process: u32,
    /// When the process started, in clock ticks since boot: process ids are reused.
    pub started: u64,
}

/// The content of a lease that was released, in place of the claim. It cannot be read as a claim.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Released {
    released_by: String,
}

/// The right to write below a location. It must be renewed.
#[derive(Clone, Debug)]
pub struct Ownership {
    location: Location,
    claim: Claim,
    epoch: u64,
}

/// The result of a renewal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeaseState {
    /// This owner still owns the location.
    Owner,
    /// The same run has claimed it again, as after a change of leader. This owner must no longer write.
    Succeeded,
    /// Another run, of this name, owns it.
    Taken(String),
}

/// The newest lease.
struct Lease {
    epoch: u64,
    path: Path,
}

impl Location {
    /// Makes a run the owner of this job's folder. `has_ended`: whether the present owner's process has certainly ended.
    ///
    /// # Errors
    /// Another run owns it, or the store fails.
    pub async fn claim(
        &self,
        claim: Claim,
        has_ended: impl Fn(&Claim) -> bool,
    ) -> Result<Ownership, CheckpointError> {
        let lease = self.newest_lease().await?;
        if let Some(lease) = &lease {
            self.check_free(lease, &claim, has_ended).await?;
        }
        let mut ownership = Ownership {
            location: self.clone(),
            claim,
            epoch: lease.as_ref().map_or(1, |p| p.epoch + 1),
        };
        let mut old: Vec<Path> = lease.into_iter().map(|lease| lease.path).collect();
        if let Err(error) = ownership.create().await {
            // The answer to this write may have been lost: the store's client repeats a write that was answered by a proxy's error, and
            // finds its own object. The next epoch is certainly of this owner, also if another coordinator of the run wrote this one.
            if !ownership.is_of_own_run().await {
                return Err(error);
            }
            old.push(ownership.path());
            ownership.epoch += 1;
            ownership.create().await?;
        }
        for path in &old {
            // The greater epoch is already the owner. An old lease that stays does no harm.
            let _ = self.inner.delete(path).await;
        }
        Ok(ownership)
    }

    /// Refuses a claim while another run has this lease and may be alive.
    async fn check_free(
        &self,
        lease: &Lease,
        claim: &Claim,
        has_ended: impl Fn(&Claim) -> bool,
    ) -> Result<(), CheckpointError> {
        // A claim that cannot be parsed does not count, as after a release.
        let Some(owner) = self.read_claim(&lease.path).await? else {
            return Ok(());
        };
        if owner.run == claim.run || has_ended(&owner) {
            return Ok(());
        }
        let age = self.lease_age(lease).await?;
        if age >= LEASE {
            return Ok(());
        }
        Err(CheckpointError::Owned {
            run: owner.run,
            silent_s: age.as_secs(),
            lease_s: LEASE.as_secs(),
        })
    }

    fn owner_folder(&self) -> Path {
        self.root().child(FOLDER)
    }

    async fn newest_lease(&self) -> Result<Option<Lease>, CheckpointError> {
        let folder = self.owner_folder();
        let mut objects = self.inner.list(Some(&folder));
        let mut newest: Option<Lease> = None;
        while let Some(object) = objects.try_next().await? {
            // Other objects are ignored.
            let Some(epoch) = object.location.filename().and_then(parse_lease) else {
                continue;
            };
            if newest.as_ref().is_none_or(|n| n.epoch < epoch) {
                newest = Some(Lease {
                    epoch,
                    path: object.location,
                });
            }
        }
        Ok(newest)
    }

    async fn read_claim(&self, path: &Path) -> Result<Option<Claim>, CheckpointError> {
        Ok(serde_json::from_slice(&self.read_lease(path).await?).ok())
    }

    /// The content of a lease; empty if it was deleted just now, as earlier builds do when they release it.
    async fn read_lease(&self, path: &Path) -> Result<Bytes, CheckpointError> {
        match self.inner.get(path).await {
            Ok(got) => Ok(got.bytes().await?),
            Err(object_store::Error::NotFound { .. }) => Ok(Bytes::new()),
            Err(error) => Err(error.into()),
        }
    }

    /// How long ago the lease was renewed, by the store's clock. The lease is looked at last: what a slow store said of it before may be from
    /// before its latest renewal.
    async fn lease_age(&self, lease: &Lease) -> Result<Duration, CheckpointError> {
        let clock = self.owner_folder().child(CLOCK);
        self.inner.put(&clock, Vec::new().into()).await?;
        let now = self.inner.head(&clock).await?.last_modified;
        match self.inner.head(&lease.path).await {
            Ok(renewed) => Ok((now - renewed.last_modified).to_std().unwrap_or_default()),
            // It was deleted: released by an earlier build, or replaced by a successor, whose lease makes this claim fail.
            Err(object_store::Error::NotFound { .. }) => Ok(LEASE),
            Err(error) => Err(error.into()),
        }
    }
}

fn lease_file(epoch: u64) -> String {
    format!("{epoch:08}.json")
}

/// The epoch of a lease's file name; None if it is not a lease. Only one spelling is accepted, and no number that is too large to be
/// reached: the greatest one would have no successor.
fn parse_lease(file: &str) -> Option<u64> {
    let epoch = file.strip_suffix(".json")?.parse().ok()?;
    (lease_file(epoch) == file && epoch <= StateId::NUMBER_MAX).then_some(epoch)
}

impl Ownership {
    fn path(&self) -> Path {
        self.location.owner_folder().child(lease_file(self.epoch))
    }

    fn claim_json(&self) -> Vec<u8> {
        serde_json::to_vec(&self.claim).unwrap_or_default()
    }

    /// Creates the lease of this epoch.
    async fn create(&self) -> Result<(), CheckpointError> {
        let create = PutOptions::from(PutMode::Create);
        let inner = &self.location.inner;
        match inner
            .put_opts(&self.path(), self.claim_json().into(), create)
            .await
        {
            Ok(_) => Ok(()),
            Err(object_store::Error::AlreadyExists { .. }) => Err(CheckpointError::Owned {
                run: "that has just started".into(),
                silent_s: 0,
                lease_s: LEASE.as_secs(),
            }),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the lease of this epoch is there and was created by the same run.
    async fn is_of_own_run(&self) -> bool {
        let owner = self.location.read_claim(&self.path()).await;
        owner.is_ok_and(|owner| owner.is_some_and(|owner| owner.run == self.claim.run))
    }

    /// Renews the lease, if this owner still owns the location.
    ///
    /// # Errors
    /// The store fails.
    pub async fn renew(&self) -> Result<LeaseState, CheckpointError> {
        self.renew_noting(|| {}).await
    }

    /// Like [`Ownership::renew`]. `begins_to_write` is called before each write of the lease: the store counts its age from a later moment.
    ///
    /// # Errors
    /// As [`Ownership::renew`].
    pub async fn renew_noting(
        &self,
        mut begins_to_write: impl FnMut(),
    ) -> Result<LeaseState, CheckpointError> {
        match self.location.newest_lease().await? {
            Some(lease) if lease.epoch > self.epoch => {
                let lease = self.location.read_lease(&lease.path).await?;
                let claimed = serde_json::from_slice(&lease).map(|claim: Claim| claim.run);
                let released = || serde_json::from_slice(&lease).map(|lease: Released| lease.released_by);
                // The run that released it was the owner, and its checkpoints are there.
                Ok(match claimed.or_else(|_| released()) {
                    Ok(run) if run != self.claim.run => LeaseState::Taken(run),
                    _ => LeaseState::Succeeded,
                })
            }
            Some(lease) if lease.epoch == self.epoch => self.write_again(begins_to_write).await,
            // The lease was deleted, and its owner may just be claiming the location again.
            _ => {
                let create = PutOptions::from(PutMode::Create);
                let inner = &self.location.inner;
                begins_to_write();
                match inner
                    .put_opts(&self.path(), self.claim_json().into(), create)
                    .await
                {
                    Ok(_) => Ok(LeaseState::Owner),
                    Err(object_store::Error::AlreadyExists { .. }) => self.write_again(begins_to_write).await,
                    Err(error) => Err(error.into()),
                }
            }
        }
    }

    /// Renews the lease of this epoch, unless it has another run's claim: earlier builds began with the first epoch again after a release.
    async fn write_again(&self, mut begins_to_write: impl FnMut()) -> Result<LeaseState, CheckpointError> {
        match self.location.read_claim(&self.path()).await? {
            Some(owner) if owner.run != self.claim.run => return Ok(LeaseState::Taken(owner.run)),
            Some(owner) if owner != self.claim => return Ok(LeaseState::Succeeded),
            _ => {}
        }
        let claim = self.claim_json().into();
        begins_to_write();
        self.location.inner.put(&self.path(), claim).await?;
        Ok(LeaseState::Owner)
    }

    /// Releases the location, so that the next run need not wait.
    ///
    /// # Errors
    /// The store fails.
    pub async fn release(&self) -> Result<(), CheckpointError> {
        let newest = self.location.newest_lease().await?;
        if newest.is_some_and(|lease| lease.epoch == self.epoch)
            && self.location.read_claim(&self.path()).await?.as_ref() == Some(&self.claim)
        {
            let released = Released {
                released_by: self.claim.run.clone(),
            };
            let text = serde_json::to_vec(&released).unwrap_or_default();
            self.location.inner.put(&self.path(), text.into()).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::memory::InMemory;
    use object_store::throttle::{ThrottleConfig, ThrottledStore};
    use std::fs::File;
    use std::sync::Arc;
    use std::time::SystemTime;

    fn claim(run: &str) -> Claim {
        Claim {
            run: run.into(),
            machine: String::new(),
            process: 0,
            started: 0,
        }
    }

    fn alive(_: &Claim) -> bool {
        false
    }

    #[tokio::test]
    async fn a_lease_that_is_renewed_while_it_is_read_is_kept() {
        let temp = tempfile::tempdir().unwrap();
        let location = Location::open(temp.path().to_str().unwrap()).unwrap();
        let owner = location.claim(claim("own"), alive).await.unwrap();
        let path = temp.path().join(FOLDER).join(lease_file(owner.epoch));
        let lease = File::options().write(true).open(path).unwrap();
        let renew_at = |at| lease.set_modified(at).unwrap();
        let long_ago = SystemTime::now() - 2 * LEASE;
        renew_at(long_ago);
        // Its content has arrived, which may have taken long. Its owner renews it at this moment.
        let renewed = |_: &Claim| {
            renew_at(SystemTime::now());
            false
        };
        let next = location.claim(claim("next"), renewed).await;
        assert!(matches!(next, Err(CheckpointError::Owned { .. })), "{next:?}");
        renew_at(long_ago);
        assert!(location.claim(claim("next"), alive).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn claim_over_its_own_lease_takes_the_next_epoch() {
        let second = ThrottleConfig {
            wait_put_per_call: Duration::from_secs(1),
            ..ThrottleConfig::default()
        };
        let location = Location::over(Arc::new(ThrottledStore::new(InMemory::new(), second)));
        // Both list the leases before either is created, as a write and its repetition do.
        let claims = futures::future::join(
            location.claim(claim("own"), alive),
            location.claim(claim("own"), alive),
        );
        let (first, again) = claims.await;
        assert_eq!(first.unwrap().renew().await.unwrap(), LeaseState::Succeeded);
        assert_eq!(again.unwrap().renew().await.unwrap(), LeaseState::Owner);
        // Another run's lease refuses as before.
        let other = location.claim(claim("other"), alive).await;
        assert!(
            matches!(&other, Err(CheckpointError::Owned { run, .. }) if run == "own"),
            "{other:?}"
        );
    }

    #[test]
    fn a_lease_has_one_name_and_a_number_that_has_a_next_one() {
        for epoch in [1, 99_999_999, 100_000_000, StateId::NUMBER_MAX] {
            assert_eq!(parse_lease(&lease_file(epoch)), Some(epoch));
        }
        for file in [
            "18446744073709551615.json",
            "1.json",
            "+0000001.json",
            "00000001",
            "clock",
        ] {
            assert_eq!(parse_lease(file), None, "{file}");
        }
    }
}
