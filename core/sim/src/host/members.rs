//! The workers' processes.

use std::collections::BTreeSet;
use std::ops::{Index, IndexMut};
use varuna_plan::{Generation, WorkerId};
use varuna_protocol::{Member, MemberConfig};

/// A worker's process; `W` is what the environment keeps for it.
pub(crate) struct MemberHost<W> {
    pub(crate) machine: Member,
    pub(crate) alive: bool,
    /// Stopped (SIGSTOP) until then.
    pub(crate) paused: u64,
    /// The coordinator to which its stream goes.
    pub(crate) coordinator: Option<usize>,
    /// Numbers its streams.
    pub(crate) stream: u64,
    /// Generations whose connections it accepts.
    pub(crate) open: BTreeSet<Generation>,
    /// Dials of this worker that were not yet accepted.
    pub(crate) dials: BTreeSet<(Generation, WorkerId)>,
    pub(crate) local: W,
}

/// All workers that ever started. Ids count up.
pub(crate) struct Members<W> {
    first: u64,
    all: Vec<MemberHost<W>>,
}

impl<W> Members<W> {
    pub(super) fn new(first: u64) -> Self {
        Self {
            first,
            all: Vec::new(),
        }
    }

    fn index(&self, id: WorkerId) -> usize {
        id.0.checked_sub(self.first)
            .and_then(|i| usize::try_from(i).ok())
            .unwrap_or(usize::MAX)
    }

    /// The id of the worker that starts next.
    pub(crate) fn next_id(&self) -> WorkerId {
        WorkerId(self.first + self.all.len() as u64)
    }

    pub(crate) fn start(&mut self, config: MemberConfig, local: W) {
        self.all.push(MemberHost {
            machine: Member::new(config),
            alive: true,
            paused: 0,
            coordinator: None,
            stream: 0,
            open: BTreeSet::new(),
            dials: BTreeSet::new(),
            local,
        });
    }

    pub(crate) fn get(&self, id: WorkerId) -> Option<&MemberHost<W>> {
        self.all.get(self.index(id))
    }

    /// The worker, while it lives.
    pub(crate) fn alive(&self, id: WorkerId) -> Option<&MemberHost<W>> {
        self.get(id).filter(|w| w.alive)
    }

    /// The worker, while it lives.
    pub(crate) fn alive_mut(&mut self, id: WorkerId) -> Option<&mut MemberHost<W>> {
        let index = self.index(id);
        self.all.get_mut(index).filter(|w| w.alive)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (WorkerId, &MemberHost<W>)> {
        (self.first..).map(WorkerId).zip(&self.all)
    }

    /// Ids of those that fit.
    pub(crate) fn ids(&self, fits: impl Fn(&MemberHost<W>) -> bool) -> Vec<WorkerId> {
        let found = self.iter().filter(|(_, w)| fits(w));
        found.map(|(id, _)| id).collect()
    }
}

impl<W> Index<WorkerId> for Members<W> {
    type Output = MemberHost<W>;
    fn index(&self, id: WorkerId) -> &MemberHost<W> {
        &self.all[self.index(id)]
    }
}

impl<W> IndexMut<WorkerId> for Members<W> {
    fn index_mut(&mut self, id: WorkerId) -> &mut MemberHost<W> {
        let index = self.index(id);
        &mut self.all[index]
    }
}
