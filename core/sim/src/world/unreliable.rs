//! Components that are unreliable during a whole schedule. Each kind is active only in some schedules, because all together would hide one
//! another.

use super::fault_list::Fault;
use crate::rng::Rng;

/// Percentages of operations that go wrong.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Unreliable {
    /// A write of the record is reported as failed. Half of these happen all the same, at once or later.
    pub(super) writes: u64,
    /// A read of the record is never answered.
    pub(super) reads: u64,
    /// The list of checkpoints is what it was a while ago.
    pub(super) listings: u64,
    /// A report is lost on its way, although its stream lives.
    pub(super) reports: u64,
    /// A shard of a checkpoint turns out to be damaged.
    pub(super) shards: u64,
    /// A transfer of state takes long.
    pub(super) transfers: u64,
    /// A read of the record brings an older one.
    pub(super) old_records: u64,
    /// A report comes twice.
    pub(super) duplicates: u64,
    /// State from a peer arrives damaged.
    pub(super) damaged_transfers: u64,
    /// The store takes long.
    pub(super) slow_store: u64,
    /// A unit's gradient is not finite.
    pub(super) overflows: u64,
}

/// The kinds.
pub(super) const KINDS: [Fault; 11] = [
    Fault::UnclearWrites,
    Fault::UnansweredReads,
    Fault::OldListings,
    Fault::LostReports,
    Fault::DamagedShards,
    Fault::SlowTransfers,
    Fault::OldRecords,
    Fault::DuplicatedReports,
    Fault::DamagedTransfers,
    Fault::SlowStore,
    Fault::OverflowedSteps,
];

impl Unreliable {
    /// Draws which kinds are active, and returns them as well; `keep` tells which kinds may be.
    pub(super) fn draw(rng: &mut Rng, keep: impl Fn(usize) -> bool) -> (Self, Vec<usize>) {
        let mut rates = [0; KINDS.len()];
        for (kind, rate) in rates.iter_mut().enumerate() {
            let drawn = if rng.chance(20) { rng.range(2, 25) } else { 0 };
            *rate = if keep(kind) { drawn } else { 0 };
        }
        let on = (0..KINDS.len()).filter(|kind| rates[*kind] > 0).collect();
        let [
            writes,
            reads,
            listings,
            reports,
            shards,
            transfers,
            old_records,
            duplicates,
            damaged_transfers,
            slow_store,
            overflows,
        ] = rates;
        let unreliable = Self {
            writes,
            reads,
            listings,
            reports,
            shards: shards / 4,
            transfers,
            old_records,
            duplicates,
            damaged_transfers,
            slow_store,
            overflows,
        };
        (unreliable, on)
    }

    /// The rates of faults for the time in which they become rarer.
    pub(super) fn rarer(self) -> Self {
        let rarely = |rate: u64| rate.min(2);
        Self {
            writes: rarely(self.writes),
            reads: rarely(self.reads),
            listings: rarely(self.listings),
            reports: rarely(self.reports),
            shards: rarely(self.shards),
            transfers: rarely(self.transfers),
            old_records: rarely(self.old_records),
            duplicates: rarely(self.duplicates),
            damaged_transfers: rarely(self.damaged_transfers),
            slow_store: rarely(self.slow_store),
            ..self
        }
    }
}
