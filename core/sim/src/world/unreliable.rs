//! What is unreliable all through a schedule. Each kind is on in some schedules only: all together would hide one another.

use crate::rng::Rng;

/// Per cent of the cases in which something goes wrong.
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
}

/// How many kinds there are.
pub(super) const KINDS: usize = 6;

impl Unreliable {
    /// Draws which kinds are on; `keep` says which of them may be.
    pub(super) fn draw(rng: &mut Rng, keep: impl Fn(usize) -> bool) -> Self {
        let mut rates = [0; KINDS];
        for (kind, rate) in rates.iter_mut().enumerate() {
            let drawn = if rng.chance(20) { rng.range(2, 25) } else { 0 };
            *rate = if keep(kind) { drawn } else { 0 };
        }
        let [writes, reads, listings, reports, shards, transfers] = rates;
        Self {
            writes,
            reads,
            listings,
            reports,
            shards: shards / 4,
            transfers,
        }
    }
}
