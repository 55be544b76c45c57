//! What is known of the objects that were applied, and how long a change of one may wait. Pure.

use serde_json::Value;
use std::time::{Duration, Instant};

/// A disruption budget that is to keep more pods is applied once that number has stood for this time: by then a worker that goes has most often
/// handed on what it holds, and the number is what it was.
const BUDGET_GROWS: Duration = Duration::from_secs(1);
/// One that is to keep fewer, as a pod is missing, is applied after this time: its replacement runs by then, most often, and the number is what it was.
/// Whoever drains a node asks again after 5 s.
const BUDGET_FALLS: Duration = Duration::from_secs(3);

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
