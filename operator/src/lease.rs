//! Leader election: one process at a time runs the controller.
//!
//! The Lease is a hint, not a fence: two processes that both think they lead are kept apart by the record's compare-and-swap and
//! by the generation. Whoever cannot renew in time gives up before another may take over.

use crate::health::Health;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// A leader that has not renewed for so long may be replaced.
const LENGTH_SECONDS: i32 = 10;
/// The leader renews, and a follower looks, so often.
const EVERY: Duration = Duration::from_secs(2);
/// A leader that could not renew for so long has lost: before another may take over, with room for a slow call.
const GIVE_UP: Duration = Duration::from_secs(7);
/// One call.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whose turn it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Nobody's: take it.
    Free,
    /// Mine: renew it.
    Mine,
    /// Another's.
    Theirs,
}

/// What a lease says. A follower goes by how long it has itself seen the lease unchanged, not by the leader's clock.
#[must_use]
pub fn turn(lease: Option<&LeaseSpec>, me: &str, unchanged: Duration) -> Turn {
    let Some(spec) = lease else { return Turn::Free };
    match spec.holder_identity.as_deref() {
        None | Some("") => Turn::Free,
        Some(holder) if holder == me => Turn::Mine,
        Some(_) => {
            let length = spec.lease_duration_seconds.unwrap_or(LENGTH_SECONDS).max(1);
            let length = Duration::from_secs(u64::from(length.unsigned_abs()));
            if unchanged > length {
                Turn::Free
            } else {
                Turn::Theirs
            }
        }
    }
}

/// A claim on leadership.
pub struct Claim {
    leases: Api<Lease>,
    name: String,
    me: String,
    health: Arc<Health>,
    /// The last version seen, and since when.
    seen: (Option<String>, Instant),
}

impl Claim {
    /// A claim on the lease of this name by `me`, which must be unique among the replicas.
    #[must_use]
    pub fn new(leases: Api<Lease>, name: String, me: String, health: Arc<Health>) -> Claim {
        Claim {
            leases,
            name,
            me,
            health,
            seen: (None, Instant::now()),
        }
    }

    /// Returns when this process leads.
    pub async fn acquire(&mut self) {
        loop {
            match self.step().await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => tracing::warn!(error, "the lease cannot be read or written"),
            }
            sleep(EVERY).await;
        }
    }

    /// Renews; returns when leadership is lost.
    pub async fn hold(&mut self) -> String {
        let mut renewed = Instant::now();
        loop {
            sleep(EVERY).await;
            match self.step().await {
                Ok(true) => renewed = Instant::now(),
                Ok(false) => return "another process leads".into(),
                Err(error) if renewed.elapsed() > GIVE_UP => return error,
                Err(error) => tracing::warn!(error, "the lease is not renewed"),
            }
        }
    }

    /// Gives the lease back, so that another need not wait.
    pub async fn release(&self) {
        let Ok(Ok(Some(mut lease))) = timeout(PATIENCE, self.leases.get_opt(&self.name)).await else {
            return;
        };
        if let Some(spec) = lease
            .spec
            .as_mut()
            .filter(|s| s.holder_identity.as_deref() == Some(&self.me))
        {
            spec.holder_identity = None;
            let _ = timeout(
                PATIENCE,
                self.leases.replace(&self.name, &PostParams::default(), &lease),
            )
            .await;
        }
    }

    /// One try; true where this process leads now.
    async fn step(&mut self) -> Result<bool, String> {
        let result = self.attempt().await;
        self.health.lease(result.is_ok());
        result
    }

    async fn attempt(&mut self) -> Result<bool, String> {
        let late = |_| "no answer from the API server".to_owned();
        let get = timeout(PATIENCE, self.leases.get_opt(&self.name))
            .await
            .map_err(late)?;
        let present = get.map_err(|e| e.to_string())?;
        let version = present.as_ref().and_then(|l| l.metadata.resource_version.clone());
        if version != self.seen.0 {
            self.seen = (version, Instant::now());
        }
        let spec = present.as_ref().and_then(|l| l.spec.as_ref());
        let turn = turn(spec, &self.me, self.seen.1.elapsed());
        if turn == Turn::Theirs {
            return Ok(false);
        }
        let params = PostParams::default();
        let now = MicroTime(Timestamp::now());
        let before = spec.cloned().unwrap_or_default();
        let taken = turn == Turn::Free;
        let spec = LeaseSpec {
            holder_identity: Some(self.me.clone()),
            lease_duration_seconds: Some(LENGTH_SECONDS),
            acquire_time: if taken {
                Some(now.clone())
            } else {
                before.acquire_time
            },
            renew_time: Some(now),
            lease_transitions: Some(before.lease_transitions.unwrap_or(0) + i32::from(taken)),
            ..LeaseSpec::default()
        };
        let written = match present {
            Some(mut lease) => {
                lease.spec = Some(spec);
                timeout(PATIENCE, self.leases.replace(&self.name, &params, &lease))
                    .await
                    .map_err(late)?
            }
            None => {
                let metadata = ObjectMeta {
                    name: Some(self.name.clone()),
                    ..ObjectMeta::default()
                };
                let lease = Lease {
                    metadata,
                    spec: Some(spec),
                };
                timeout(PATIENCE, self.leases.create(&params, &lease))
                    .await
                    .map_err(late)?
            }
        };
        match written {
            Ok(_) => Ok(true),
            // Another was quicker: the next look says who.
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_taken_only_after_its_length_without_a_change() {
        let held = LeaseSpec {
            holder_identity: Some("a".into()),
            lease_duration_seconds: Some(10),
            ..LeaseSpec::default()
        };
        let after = |s| Duration::from_secs(s);
        assert_eq!(turn(None, "b", after(0)), Turn::Free);
        assert_eq!(turn(Some(&held), "a", after(100)), Turn::Mine);
        assert_eq!(turn(Some(&held), "b", after(10)), Turn::Theirs);
        assert_eq!(turn(Some(&held), "b", after(11)), Turn::Free);
        let released = LeaseSpec {
            holder_identity: None,
            ..held
        };
        assert_eq!(turn(Some(&released), "b", after(0)), Turn::Free);
    }

    #[test]
    fn a_leader_gives_up_before_another_may_take_over() {
        let length = Duration::from_secs(u64::from(LENGTH_SECONDS.unsigned_abs()));
        assert!(GIVE_UP + PATIENCE < length);
    }
}
