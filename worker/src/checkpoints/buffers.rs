//! Memory for copies of states, used again: the first touch of fresh memory costs four times what the copy does. What is kept is no more than
//! the next checkpoint takes anyway.

use crate::state::UnitSnapshot;
use parking_lot::Mutex;
use std::sync::Arc;
use varuna_plan::{OptimizerProgress, StateId};
use varuna_torch::TorchError;

/// A free buffer serves units that are smaller than it by up to this share of theirs, so that memory is not held for nothing.
const SPARE: usize = 8;

/// A copy of a unit's state. Cheap to clone; its memory is used again when the last clone is dropped.
#[derive(Clone, Debug)]
pub(super) struct StateCopy(Arc<Buffer>);

#[derive(Debug)]
struct Buffer {
    progress: OptimizerProgress,
    data: Vec<f32>,
    home: Arc<Buffers>,
}

impl StateCopy {
    /// What the optimizer has counted.
    pub(super) fn progress(&self) -> OptimizerProgress {
        self.0.progress
    }
}

impl AsRef<[f32]> for StateCopy {
    fn as_ref(&self) -> &[f32] {
        &self.0.data
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.home.give_back(std::mem::take(&mut self.data));
    }
}

/// Memory that is free.
#[derive(Debug, Default)]
pub(super) struct Buffers(Mutex<Free>);

#[derive(Debug, Default)]
struct Free {
    /// The one that was given back first comes first.
    buffers: Vec<Vec<f32>>,
    /// The state that was copied last, and the elements of its units so far.
    newest: Option<(StateId, usize)>,
    /// Elements of the state before.
    before: usize,
}

impl Buffers {
    /// Copies a unit's state at `id`.
    ///
    /// # Errors
    /// It cannot be read from the device.
    pub(super) fn copy(
        self: &Arc<Self>,
        id: StateId,
        snapshot: &UnitSnapshot,
    ) -> Result<StateCopy, TorchError> {
        let mut data = self.take(id, snapshot.elements());
        snapshot.append_to(&mut data)?;
        Ok(self.hold(snapshot.progress(), data))
    }

    /// A copy that has these data.
    pub(super) fn hold(self: &Arc<Self>, progress: OptimizerProgress, data: Vec<f32>) -> StateCopy {
        let home = Arc::clone(self);
        StateCopy(Arc::new(Buffer { progress, data, home }))
    }

    /// An empty vector for so many elements.
    fn take(&self, id: StateId, elements: usize) -> Vec<f32> {
        let mut free = self.0.lock();
        match &mut free.newest {
            Some((newest, all)) if *newest == id => *all += elements,
            newest => {
                let before = newest.replace((id, elements));
                free.before = before.map_or(0, |(_, all)| all);
            }
        }
        let fits = |buffer: &Vec<f32>| {
            let larger = buffer.capacity().checked_sub(elements);
            larger.is_some_and(|by| by <= elements / SPARE)
        };
        let found = free.buffers.iter().position(fits);
        let mut data = found.map(|at| free.buffers.remove(at)).unwrap_or_default();
        drop(free);
        data.clear();
        data.reserve_exact(elements);
        data
    }

    fn give_back(&self, data: Vec<f32>) {
        let mut free = self.0.lock();
        free.buffers.push(data);
        let most = free.newest.map_or(0, |(_, all)| all).max(free.before);
        while free.buffers.iter().map(Vec::capacity).sum::<usize>() > most {
            free.buffers.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_plan::state::Chain;
    use varuna_plan::{Generation, Step};

    fn id(step: u64) -> StateId {
        StateId {
            run_gen: Generation(1),
            step: Step(step),
            chain: Chain(step),
        }
    }

    /// A copy of a unit of so many elements, and where its memory is.
    fn copy(buffers: &Arc<Buffers>, step: u64, elements: usize) -> (StateCopy, *const f32) {
        let mut data = buffers.take(id(step), elements);
        assert!(data.is_empty() && data.capacity() >= elements);
        data.resize(elements, 1.0);
        let copy = buffers.hold(OptimizerProgress::START, data);
        let memory = copy.as_ref().as_ptr();
        (copy, memory)
    }

    fn kept(buffers: &Buffers) -> usize {
        buffers.0.lock().buffers.iter().map(Vec::capacity).sum()
    }

    #[test]
    fn the_memory_of_a_copy_is_used_again_once_nobody_reads_it() {
        let buffers = Arc::new(Buffers::default());
        let (small, of_small) = copy(&buffers, 1, 100);
        let (large, of_large) = copy(&buffers, 1, 1000);
        let reader = large.clone();
        drop((small, large));
        let (again, memory) = copy(&buffers, 2, 100);
        assert_eq!(memory, of_small);
        assert_ne!(copy(&buffers, 2, 1000).1, of_large, "it is still read");
        drop(reader);
        drop(again);
        let (_, memory) = copy(&buffers, 3, 95);
        assert_eq!(memory, of_small, "a little more than is needed");
    }

    #[test]
    fn no_more_is_kept_than_a_state_takes() {
        let buffers = Arc::new(Buffers::default());
        // Two states at a time: one in upload, one that waits.
        let copies: Vec<_> = [1, 2]
            .into_iter()
            .flat_map(|step| (0..3).map(move |_| step))
            .map(|step| copy(&buffers, step, 100))
            .collect();
        drop(copies);
        assert_eq!(kept(&buffers), 300);
        // Under the next plan the worker has less.
        for step in [3, 4, 5] {
            drop(copy(&buffers, step, 100));
        }
        assert_eq!(kept(&buffers), 100);
        drop(copy(&buffers, 6, 10));
        drop(copy(&buffers, 7, 10));
        assert_eq!(
            kept(&buffers),
            10,
            "a large buffer does not stay for a small unit"
        );
    }
}
