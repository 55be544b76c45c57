//! What is known of the objects that were applied, and how long a change of one may wait. Pure.

use serde_json::Value;
use std::time::{Duration, Instant};

/// A disruption budget with another number is applied once that has stood for this time: by then a worker that goes has most often handed on
/// what it holds, its replacement runs, and the number is what it was. Whoever drains a node asks again after 5 s.
const BUDGET_SETTLES: Duration = Duration::from_secs(1);

/// What is known of an object that was applied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Applied {
    /// When it was; none where another leader did.
    pub(super) at: Option<Instant>,
    /// When it is applied again.
    pub(super) again: Instant,
    /// Identity of our fields of it.
    pub(super) fields: u64,
    /// Of a disruption budget that this process applied: how many pods may not go.
    pub(super) least: Option<i64>,
    /// Another number that it is to have, and since when.
    pub(super) next: Option<(i64, Instant)>,
}

impl Applied {
    /// Whether an object whose number of pods is another one than before may wait still.
    pub(super) fn may_wait(&mut self, now: Instant, least: Option<i64>) -> bool {
        let Some(wanted) = least.filter(|least| self.least.is_some_and(|before| before != *least)) else {
            self.next = None;
            return false;
        };
        let (_, since) = *self.next.insert(match self.next {
            Some((next, since)) if next == wanted => (next, since),
            _ => (wanted, now),
        });
        now.duration_since(since) < BUDGET_SETTLES
    }
}

/// How many pods a disruption budget keeps; none of any other object.
pub(super) fn least(object: &Value) -> Option<i64> {
    object["spec"]["minAvailable"].as_i64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_waits_until_its_number_stands_and_no_other_object_waits() {
        let start = Instant::now();
        let mut applied = Applied {
            at: Some(start),
            again: start,
            fields: 0,
            least: Some(3),
            next: None,
        };
        let half = BUDGET_SETTLES / 2;
        assert!(!applied.may_wait(start, None), "another kind of object");
        assert!(!applied.may_wait(start, Some(3)), "another field");
        assert!(applied.may_wait(start, Some(4)));
        assert!(applied.may_wait(start + half, Some(2)));
        assert!(
            applied.may_wait(start + 2 * half, Some(2)),
            "since it was another"
        );
        assert!(!applied.may_wait(start + 3 * half, Some(2)));
        assert!(!applied.may_wait(start + 3 * half, Some(3)), "as it was");
        assert!(applied.may_wait(start + 4 * half, Some(2)), "begins anew");
        applied.least = None;
        assert!(
            !applied.may_wait(start, Some(5)),
            "one that another leader applied"
        );
    }
}
