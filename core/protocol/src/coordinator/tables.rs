//! How much a coordinator remembers, for tests that its memory is bounded by what exists now.

use super::Coordinator;
use std::collections::BTreeSet;
use varuna_plan::WorkerId;

/// Entries in a coordinator's tables.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CoordinatorTables {
    /// Workers whose stream is up.
    pub connected: usize,
    /// Workers that a plan in the record names.
    pub planned: usize,
    /// Workers that it knows, including those that have left.
    pub workers: usize,
    /// Orders that it remembers having sent.
    pub orders: usize,
    /// Names of workers that ended within their first steps, or could not read their data.
    pub quarantined: usize,
    /// Links that failed.
    pub bad_links: usize,
    /// Plans prepared for possible losses.
    pub prepared_plans: usize,
    /// States whose holders are compared, and states and rollbacks in the record.
    pub comparisons: usize,
}

impl Coordinator {
    /// The sizes of the coordinator's tables.
    #[must_use]
    pub fn tables(&self) -> CoordinatorTables {
        let shared = &self.shared;
        let mut planned: BTreeSet<WorkerId> = BTreeSet::new();
        for plan in shared.record.plans() {
            planned.extend(plan.members());
            planned.extend(plan.sources.iter().flatten());
        }
        let trust = &shared.record.stored.trust;
        CoordinatorTables {
            connected: shared.roster.workers.values().filter(|w| w.connected).count(),
            planned: planned.len(),
            workers: shared.roster.workers.len(),
            orders: shared.outbox.len(),
            quarantined: shared.quarantine.len(),
            bad_links: shared.bad_links.len(),
            prepared_plans: shared.prepared_plans.len(),
            comparisons: shared.comparison.len()
                + trust.compared.len()
                + trust.rollbacks.len()
                + trust.odd.len(),
        }
    }
}
