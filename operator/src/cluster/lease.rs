//! Leader election: one process at a time runs the controller.
//!
//! The Lease is a hint, not a fence: two processes that both think they lead are kept apart by the record's compare-and-swap and
//! by the generation. A leader that cannot renew in time gives up before another may take over.

use crate::health::Health;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// A leader that has not renewed its lease for this time may be replaced.
const LENGTH_SECONDS: i32 = 10;
/// The leader renews, and a follower reads the lease, at this interval.
pub(crate) const INTERVAL: Duration = Duration::from_secs(2);
/// A leader that could not renew for this time gives up, even while it waits for a call. This is before another process may take over.
const GIVE_UP: Duration = Duration::from_secs(7);
/// The deadline of one call.
const CALL_DEADLINE: Duration = Duration::from_secs(2);

/// The holder of the lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holder {
    /// No process, or one that has not renewed it in time.
    Nobody,
    /// This process holds the lease.
    This,
    /// Another process holds the lease.
    Another,
}

/// Who holds a lease. A follower measures by its own clock how long the lease was unchanged, not by the leader's.
#[must_use]
pub fn holder(lease: Option<&LeaseSpec>, identity: &str, unchanged: Duration) -> Holder {
    let Some(spec) = lease else { return Holder::Nobody };
    match spec.holder_identity.as_deref() {
        None | Some("") => Holder::Nobody,
        Some(holder) if holder == identity => Holder::This,
        Some(_) => {
            let length = spec.lease_duration_seconds.unwrap_or(LENGTH_SECONDS).max(1);
            let length = Duration::from_secs(u64::from(length.unsigned_abs()));
            if unchanged > length {
                Holder::Nobody
            } else {
                Holder::Another
            }
        }
    }
}

/// A candidate for leadership.
pub struct Candidate {
    leases: Api<Lease>,
    name: String,
    identity: String,
    health: Arc<Health>,
    /// The last version seen, and since when.
    seen: (Option<String>, Instant),
    /// When the last successful attempt to take or renew the lease began.
    renewed: Instant,
}

impl Candidate {
    /// A candidate for the lease of this name, under an identity that must be unique among the replicas.
    #[must_use]
    pub fn new(leases: Api<Lease>, name: String, identity: String, health: Arc<Health>) -> Candidate {
        Candidate {
            leases,
            name,
            identity,
            health,
            seen: (None, Instant::now()),
            renewed: Instant::now(),
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
            sleep(INTERVAL).await;
        }
    }

    /// Renews; returns when leadership is lost.
    pub async fn hold(&mut self) -> String {
        hold(self.renewed, INTERVAL, GIVE_UP, async || self.step().await).await
    }

    /// Releases the lease, so that another process need not wait.
    pub async fn release(&self) {
        let Ok(Ok(Some(mut lease))) = timeout(CALL_DEADLINE, self.leases.get_opt(&self.name)).await else {
            return;
        };
        if let Some(spec) = lease
            .spec
            .as_mut()
            .filter(|s| s.holder_identity.as_deref() == Some(&self.identity))
        {
            spec.holder_identity = None;
            let _ = timeout(
                CALL_DEADLINE,
                self.leases.replace(&self.name, &PostParams::default(), &lease),
            )
            .await;
        }
    }

    /// One try; true where this process leads now.
    async fn step(&mut self) -> Result<bool, String> {
        let began = Instant::now();
        let result = self.attempt().await;
        if result == Ok(true) {
            self.renewed = began;
        }
        self.health.lease_tried(result.is_ok());
        result
    }

    async fn attempt(&mut self) -> Result<bool, String> {
        let late = |_| "no answer from the API server".to_owned();
        let get = timeout(CALL_DEADLINE, self.leases.get_opt(&self.name))
            .await
            .map_err(late)?;
        let present = get.map_err(|e| e.to_string())?;
        let version = present.as_ref().and_then(|l| l.metadata.resource_version.clone());
        if version != self.seen.0 {
            self.seen = (version, Instant::now());
        }
        let spec = present.as_ref().and_then(|l| l.spec.as_ref());
        let holder = holder(spec, &self.identity, self.seen.1.elapsed());
        if holder == Holder::Another {
            return Ok(false);
        }
        let params = PostParams::default();
        let now = MicroTime(Timestamp::now());
        let before = spec.cloned().unwrap_or_default();
        let taken = holder == Holder::Nobody;
        let spec = LeaseSpec {
            holder_identity: Some(self.identity.clone()),
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
                timeout(CALL_DEADLINE, self.leases.replace(&self.name, &params, &lease))
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
                timeout(CALL_DEADLINE, self.leases.create(&params, &lease))
                    .await
                    .map_err(late)?
            }
        };
        match written {
            Ok(_) => Ok(true),
            // Another process was faster: the next read shows which.
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Renews a lease that was taken by an attempt that began at `renewed`; returns when it is lost. Another process counts from the moment
/// when it saw the lease change, which is later.
async fn hold(
    mut renewed: Instant,
    interval: Duration,
    give_up: Duration,
    mut renew: impl AsyncFnMut() -> Result<bool, String>,
) -> String {
    let mut why = "no answer from the API server".to_owned();
    loop {
        let again = async {
            sleep(interval).await;
            let began = Instant::now();
            (began, renew().await)
        };
        match timeout_at(renewed + give_up, again).await {
            Ok((began, Ok(true))) => renewed = began,
            Ok((_, Ok(false))) => return "another process leads".into(),
            Ok((_, Err(error))) => {
                tracing::warn!(error, "the lease is not renewed");
                why = error;
            }
            Err(_) => return why,
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
        assert_eq!(holder(None, "b", after(0)), Holder::Nobody);
        assert_eq!(holder(Some(&held), "a", after(100)), Holder::This);
        assert_eq!(holder(Some(&held), "b", after(10)), Holder::Another);
        assert_eq!(holder(Some(&held), "b", after(11)), Holder::Nobody);
        let released = LeaseSpec {
            holder_identity: None,
            ..held
        };
        assert_eq!(holder(Some(&released), "b", after(0)), Holder::Nobody);
    }

    const SHORT: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_millis(40);

    /// However long a call takes, a leader gives up this long after the start of the try that last renewed the lease.
    #[tokio::test]
    async fn a_leader_gives_up_before_another_may_take_over() {
        assert!(GIVE_UP < Duration::from_secs(u64::from(LENGTH_SECONDS.unsigned_abs())));
        let began = Instant::now();
        let (mut tries, mut renewed) = (0, began);
        let lost = hold(began, SHORT, LONG, async || {
            tries += 1;
            if tries > 1 {
                std::future::pending::<()>().await;
            }
            renewed = Instant::now();
            Ok(true)
        });
        assert_eq!(lost.await, "no answer from the API server");
        assert_eq!(tries, 2);
        assert!(renewed > began && renewed.elapsed() >= LONG - SHORT);
    }

    #[tokio::test]
    async fn refused_leader_continues_for_a_while_but_not_beside_another() {
        let began = Instant::now();
        let lost = hold(began, SHORT, LONG, async || Err("refused".into())).await;
        assert_eq!(lost, "refused");
        assert!(began.elapsed() >= LONG);
        let never = Duration::from_secs(3600);
        let lost = hold(Instant::now(), SHORT, never, async || Ok(false)).await;
        assert_eq!(lost, "another process leads");
    }
}
