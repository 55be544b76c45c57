//! What a listing shows of a checkpoint, without reading any file.

use crate::name::doubted_unit;
use std::collections::BTreeMap;
use varuna_plan::StateId;

/// A checkpoint's folder, as a listing shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// The state.
    pub id: StateId,
    /// Whether it has a manifest, so that it is complete.
    pub manifest: bool,
    /// Whether it is marked: a reader has found it damaged, or its run has given it up ([`crate::Location::refusal`]).
    pub marked_damaged: bool,
    /// All files with their lengths.
    pub files: BTreeMap<String, u64>,
}

impl Listed {
    /// The units whose shards a reader doubts ([`crate::Location::doubt`]). It is usable until they were read again.
    pub fn doubted(&self) -> impl Iterator<Item = &str> {
        self.files.keys().filter_map(|file| doubted_unit(file))
    }

    /// Whether it is complete and not marked.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.manifest && !self.marked_damaged
    }
}
