//! What is known of the objects that were applied, and how long a change of one may wait. Pure.

use crate::index::KnownObject;
use serde_json::Value;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::{Duration, Instant};

/// Objects are applied again after this time even if nothing seems to have changed. The first time it is between half of it and all of it,
/// so that the objects of many jobs are not applied at the same moment.
pub(super) const REAPPLY: Duration = Duration::from_secs(7200);
/// The first of several changes of an object is applied at once, and what follows after this time.
pub(super) const BETWEEN: Duration = Duration::from_secs(1);
/// If somebody changes our fields back each time that they are applied, the pause doubles each time, up to this. So the API server is not
/// kept busy for ever, and fields that nobody else changes any more soon have our values again.
const BETWEEN_MAX: Duration = Duration::from_secs(300);
/// If nobody has changed an object for this time, plus twice its pause, the pause starts again from the beginning.
const QUIET: Duration = Duration::from_secs(10);
/// A disruption budget that is to keep more pods is applied once that number has been the same for this time. By then a leaving worker has
/// usually handed over its state, and the number is back to what it was.
const BUDGET_GROWS: Duration = Duration::from_secs(1);
/// A budget that is to keep fewer pods, because one is missing, is applied after this time. By then the replacement usually runs, and the
/// number is back to what it was. A drain of a node tries again after 5 s.
const BUDGET_FALLS: Duration = Duration::from_secs(3);

/// What is known of an object that was applied.
#[derive(Clone, Debug)]
pub(super) struct Applied {
    /// When it was; none where another leader did.
    pub(super) at: Option<Instant>,
    /// When it is applied again.
    pub(super) again: Instant,
    /// Identity of what it was applied as; none where another leader did.
    pub(super) identity: Option<String>,
    /// It is left alone for this long after it was applied, whatever happens to it.
    pub(super) pause: Duration,
    /// Identity of our fields of it.
    pub(super) fields: u64,
    /// For a disruption budget that this process applied: how many pods must stay.
    pub(super) least: Option<i64>,
    /// Another number that it is to have, and since when.
    pub(super) next: Option<(i64, Instant)>,
}

impl Applied {
    /// Another leader has applied the object. It is unchanged since then, or somebody else has written it.
    pub(super) fn found(known: &KnownObject, now: Instant) -> Applied {
        let again = if known.is_touched {
            now
        } else {
            now + spread(&known.uid)
        };
        Applied {
            at: None,
            again,
            identity: None,
            pause: BETWEEN,
            fields: known.fields,
            least: None,
            next: None,
        }
    }

    /// Whether an object whose number of pods is another one than before may wait still.
    pub(super) fn may_wait(&mut self, now: Instant, least: Option<i64>) -> bool {
        let change = least.zip(self.least).filter(|(wanted, before)| wanted != before);
        let Some((wanted, before)) = change else {
            self.next = None;
            return false;
        };
        let settles = if wanted > before {
            BUDGET_GROWS
        } else {
            BUDGET_FALLS
        };
        let (_, since) = *self.next.insert(match self.next {
            Some((next, since)) if next == wanted => (next, since),
            _ => (wanted, now),
        });
        now.duration_since(since) < settles
    }

    /// How much longer it is left alone before it is applied as this; none if that time is over.
    pub(super) fn backoff_left(&self, now: Instant, identity: &str) -> Option<Duration> {
        // A change that this program wants does not wait.
        let pause = if self.has_identity(identity) {
            self.pause
        } else {
            BETWEEN
        };
        let left = (self.at? + pause).saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    /// The pause once it is applied as this now.
    pub(super) fn next_pause(&self, now: Instant, identity: &str) -> Duration {
        let since = self.at.map(|at| now.duration_since(at));
        let is_soon = since.is_some_and(|since| since < 2 * self.pause + QUIET);
        if is_soon && self.has_identity(identity) {
            BETWEEN_MAX.min(2 * self.pause)
        } else {
            BETWEEN
        }
    }

    fn has_identity(&self, identity: &str) -> bool {
        self.identity.as_deref() == Some(identity)
    }
}

/// From half of the interval to all of it, by the object's uid.
fn spread(uid: &str) -> Duration {
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    let thousandths = u32::try_from(hasher.finish() % 1000).unwrap_or(0);
    REAPPLY / 2 + REAPPLY / 2000 * thousandths
}

/// How many pods a disruption budget keeps; none of any other object.
pub(super) fn least(object: &Value) -> Option<i64> {
    object["spec"]["minAvailable"].as_i64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(at: Instant) -> Applied {
        Applied {
            at: Some(at),
            again: at,
            identity: Some("a".into()),
            pause: BETWEEN,
            fields: 0,
            least: Some(3),
            next: None,
        }
    }

    #[test]
    fn contested_object_is_applied_less_often() {
        let mut now = Instant::now();
        let mut fought = applied(now);
        let mut pauses = vec![];
        for _ in 0..11 {
            let left = fought.backoff_left(now, "a").expect("it was applied just now");
            pauses.push(left.as_secs());
            now += left;
            assert_eq!(fought.backoff_left(now, "a"), None);
            fought.pause = fought.next_pause(now, "a");
            fought.at = Some(now);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        let soon = now + BETWEEN;
        assert_eq!(fought.backoff_left(soon, "b"), None, "what is wanted anew");
        assert_eq!(fought.next_pause(soon, "b"), BETWEEN);
        let later = now + 2 * BETWEEN_MAX + QUIET;
        assert_eq!(fought.next_pause(later, "a"), BETWEEN, "after it was quiet");
        let of_another_leader = Applied {
            at: None,
            identity: None,
            ..applied(now)
        };
        assert_eq!(of_another_leader.backoff_left(now, "a"), None);
        assert_eq!(of_another_leader.next_pause(now, "a"), BETWEEN);
    }

    #[test]
    fn only_a_budget_waits_until_its_number_is_stable() {
        let start = Instant::now();
        let mut applied = applied(start);
        let (half, grown, fallen) = (BUDGET_GROWS / 2, BUDGET_GROWS, BUDGET_FALLS);
        assert!(!applied.may_wait(start, None), "another kind of object");
        assert!(!applied.may_wait(start, Some(3)), "another field");
        assert!(applied.may_wait(start, Some(4)));
        assert!(applied.may_wait(start + half, Some(2)));
        assert!(applied.may_wait(start + grown, Some(2)), "since it was another");
        assert!(
            applied.may_wait(start + fallen, Some(2)),
            "a replacement may come"
        );
        assert!(!applied.may_wait(start + half + fallen, Some(2)));
        let later = start + 2 * fallen;
        assert!(!applied.may_wait(later, Some(3)), "as it was");
        assert!(applied.may_wait(later, Some(4)), "begins anew");
        assert!(!applied.may_wait(later + grown, Some(4)));
        applied.least = None;
        assert!(
            !applied.may_wait(start, Some(5)),
            "one that another leader applied"
        );
    }
}
