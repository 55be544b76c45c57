//! Failures that count as one, since they have one cause: those on different nodes within ten seconds. Pure.

use std::collections::BTreeSet;
use varuna_api::crd::RecentFailure;

/// Failures within this time count as one.
pub(super) const MOMENT_SECONDS: i64 = 10;

/// Time of a failure, in seconds since 1970.
pub(super) fn seconds(failure: &RecentFailure) -> i64 {
    failure.at.0.as_second()
}

/// At how many moments these failures, sorted by time, happened: failures on different nodes within ten seconds have one cause.
pub(super) fn moments<'a>(failures: impl Iterator<Item = &'a RecentFailure>) -> usize {
    let (mut count, mut nodes, mut first) = (0, BTreeSet::new(), 0);
    for failure in failures {
        let at = seconds(failure);
        if count == 0 || at - first > MOMENT_SECONDS || nodes.contains(&failure.node) {
            nodes.clear();
            first = at;
            count += 1;
        }
        nodes.insert(&failure.node);
    }
    count
}
