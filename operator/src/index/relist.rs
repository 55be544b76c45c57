//! What a restarted watch has listed so far. Changes during the time without a watch are known only when the list is complete: objects that
//! are not in it are gone.

use std::collections::BTreeSet;

/// What was listed since a watch was restarted.
#[derive(Debug)]
pub(super) struct Relist<K>(Option<BTreeSet<K>>);

impl<K> Default for Relist<K> {
    fn default() -> Relist<K> {
        Relist(None)
    }
}

impl<K: Ord + Clone> Relist<K> {
    pub(super) fn begin(&mut self) {
        self.0 = Some(BTreeSet::new());
    }

    pub(super) fn seen(&mut self, key: &K) {
        if let Some(listed) = &mut self.0 {
            listed.insert(key.clone());
        }
    }

    /// Ends the listing and returns the known objects that it did not contain.
    pub(super) fn complete<'a>(&mut self, known: impl Iterator<Item = &'a K>) -> Vec<K>
    where
        K: 'a,
    {
        let Some(listed) = self.0.take() else {
            return vec![];
        };
        known.filter(|key| !listed.contains(*key)).cloned().collect()
    }
}
