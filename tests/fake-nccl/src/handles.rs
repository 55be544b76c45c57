//! Handles for callers. They are numbers, so that an invalid handle is detected and never dereferenced.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A number is never used twice, not even for another kind of handle.
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
