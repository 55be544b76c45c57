//! Pinned memory that waits for the next copy of its size: to pin some takes longer than to copy it.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use varuna_cuda::Pinned;

/// Pinned memory that no copy uses: as much of each size as was on its way at once.
#[derive(Default)]
pub(super) struct PinnedPool(Mutex<Unused>);

#[derive(Default)]
struct Unused {
    by_bytes: BTreeMap<usize, Vec<Pinned>>,
    /// The sizes that a copy has asked for since [`PinnedPool::release_unused`].
    asked: BTreeSet<usize>,
}

impl PinnedPool {
    /// Memory of this size, if there is some.
    pub(super) fn take(&self, bytes: usize) -> Option<Pinned> {
        let mut unused = self.0.lock();
        unused.asked.insert(bytes);
        unused.by_bytes.get_mut(&bytes).and_then(Vec::pop)
    }

    pub(super) fn give_back(&self, pinned: Pinned) {
        let bytes = pinned.as_slice().len();
        self.0.lock().by_bytes.entry(bytes).or_default().push(pinned);
    }

    /// Bytes of all of it.
    pub(super) fn bytes(&self) -> usize {
        let unused = self.0.lock();
        unused.by_bytes.iter().map(|(bytes, all)| bytes * all.len()).sum()
    }

    /// Gives memory of sizes that no copy has asked for since the last call back to the system.
    pub(super) fn release_unused(&self) {
        let mut unused = self.0.lock();
        let asked = std::mem::take(&mut unused.asked);
        unused.by_bytes.retain(|bytes, _| asked.contains(bytes));
    }
}
