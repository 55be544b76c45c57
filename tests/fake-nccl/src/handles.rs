//! Handles that are given out: numbers, so that one that is not alive is noticed and never followed.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Numbers are never used twice, not even by handles of another kind.
static NEXT: AtomicUsize = AtomicUsize::new(0x1000);

/// The live handles of one kind.
pub(crate) struct Handles<T>(Mutex<BTreeMap<usize, Arc<T>>>);

impl<T> Handles<T> {
    pub(crate) const fn new() -> Self {
        Handles(Mutex::new(BTreeMap::new()))
    }

    pub(crate) fn add(&self, value: Arc<T>) -> usize {
        let handle = NEXT.fetch_add(0x10, Ordering::Relaxed);
        self.0.lock().insert(handle, value);
        handle
    }

    pub(crate) fn get(&self, handle: usize) -> Option<Arc<T>> {
        self.0.lock().get(&handle).cloned()
    }

    pub(crate) fn remove(&self, handle: usize) -> Option<Arc<T>> {
        self.0.lock().remove(&handle)
    }
}
