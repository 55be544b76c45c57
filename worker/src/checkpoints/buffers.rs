//! Memory for copies of states, used again: the first touch of fresh memory costs four times what the copy does. What is kept is no more than
//! the next checkpoint takes anyway. Where the host has little memory left, nothing is kept, and units are copied one after the other as those before
//! them reach the store: a worker that takes more than it has is killed, with its state.

use crate::state::{ReadError, UnitSnapshot};
use parking_lot::{Condvar, Mutex};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use varuna_plan::{OptimizerProgress, StateId};

/// A free buffer serves units that are smaller than it by up to this share of theirs, so that memory is not held for nothing.
const SPARE: usize = 8;
/// Who waits for memory looks so often whether there is some.
const LOOK: Duration = Duration::from_millis(50);
/// If no optimizer has asked for the state in so long, nobody trains: it is that of the last step. What a step takes is free then, and one unit has
/// room in it.
const IDLE: Duration = Duration::from_secs(120);

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

/// How many bytes copies may have, all of them together, by the bytes that they have, and the most that they ever had; none where that is not known.
pub type Room = Box<dyn Fn(u64, u64) -> Option<u64> + Send + Sync>;

/// Memory of copies, and that which is free for them.
pub(super) struct Buffers {
    free: Mutex<Free>,
    /// Memory was given back.
    changed: Condvar,
    room: Room,
}

#[derive(Debug, Default)]
struct Free {
    /// The one that was given back first comes first.
    buffers: Vec<Vec<f32>>,
    /// Elements of the copies that there are.
    out: usize,
    /// The most elements that these and the free buffers ever had: the process does not give memory back.
    most: usize,
    /// The state that was to be copied last, and the elements of its units so far.
    newest: Option<(StateId, usize)>,
    /// Elements of the state before.
    before: usize,
    /// A copy was given up for want of memory.
    lacked: bool,
    /// A state that nobody trains on from.
    idle: Option<StateId>,
}

impl Free {
    fn kept(&self) -> usize {
        self.buffers.iter().map(Vec::capacity).sum()
    }

    /// Elements that have memory, and the most that ever had, in bytes.
    fn bytes(&self) -> [u64; 2] {
        [self.out + self.kept(), self.most].map(bytes_of)
    }

    /// A free buffer for so many elements.
    fn fitting(&mut self, elements: usize) -> Option<Vec<f32>> {
        let fits = |buffer: &Vec<f32>| {
            let larger = buffer.capacity().checked_sub(elements);
            larger.is_some_and(|by| by <= elements / SPARE)
        };
        let found = self.buffers.iter().position(fits)?;
        Some(self.buffers.remove(found))
    }

    /// Whether a unit of the newest state has waited for so long that nobody can train on from it: this one since then, or one before it.
    fn is_idle(&mut self, since: Instant) -> bool {
        let newest = self.newest.map(|(id, _)| id);
        if since.elapsed() >= IDLE {
            self.idle = newest;
        }
        newest.is_some() && self.idle == newest
    }
}

fn bytes_of(elements: usize) -> u64 {
    (elements as u64).saturating_mul(size_of::<f32>() as u64)
}

impl Default for Buffers {
    /// Without a limit.
    fn default() -> Buffers {
        Buffers::within(Box::new(|_, _| None))
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers")
            .field("free", &self.free)
            .finish_non_exhaustive()
    }
}

impl Buffers {
    /// Copies take no more than there is room for.
    pub(super) fn within(room: Room) -> Buffers {
        Buffers {
            free: Mutex::default(),
            changed: Condvar::new(),
            room,
        }
    }

    /// A unit of so many elements is to be copied at `id`.
    pub(super) fn note(&self, id: StateId, elements: usize) {
        let mut free = self.free.lock();
        match &mut free.newest {
            Some((newest, all)) if *newest == id => *all += elements,
            newest => {
                let before = newest.replace((id, elements));
                free.before = before.map_or(0, |(_, all)| all);
            }
        }
    }

    /// Copies a unit's state, once there is memory for it, as long as it is wanted.
    ///
    /// # Errors
    /// The optimizer has waited too long, nobody wants it any more, or the state cannot be read from the device.
    pub(super) fn copy(
        self: &Arc<Self>,
        snapshot: &UnitSnapshot,
        is_wanted: impl Fn() -> bool,
    ) -> Result<StateCopy, ReadError> {
        let is_to_be_left = || snapshot.is_to_be_left() || !is_wanted();
        let mut data = self.take(snapshot.elements(), is_to_be_left)?;
        match snapshot.append_to(&mut data) {
            Ok(()) => Ok(self.hold(snapshot.progress(), data)),
            Err(error) => {
                self.give_back(data);
                Err(error)
            }
        }
    }

    /// A copy that has these data.
    pub(super) fn hold(self: &Arc<Self>, progress: OptimizerProgress, data: Vec<f32>) -> StateCopy {
        let home = Arc::clone(self);
        StateCopy(Arc::new(Buffer { progress, data, home }))
    }

    /// An empty vector for so many elements, once there is room for it.
    ///
    /// # Errors
    /// It is to be left before there is.
    fn take(&self, elements: usize, is_to_be_left: impl Fn() -> bool) -> Result<Vec<f32>, ReadError> {
        let began = Instant::now();
        let mut free = self.free.lock();
        let found = loop {
            let found = free.fitting(elements);
            if found.is_some() || self.has_room(&mut free, elements) {
                break found;
            }
            if free.out == 0 && free.is_idle(began) {
                break None;
            }
            // Whoever is asked may have a copy to give back.
            drop(free);
            let is_left = is_to_be_left();
            free = self.free.lock();
            if is_left {
                free.lacked = true;
                return Err(ReadError::LeftOff);
            }
            self.changed.wait_for(&mut free, LOOK);
        };
        let mut data = found.unwrap_or_default();
        data.clear();
        data.reserve_exact(elements);
        free.out += data.capacity();
        free.most = free.most.max(free.out + free.kept());
        Ok(data)
    }

    /// Whether there is room for so many elements more; what is kept makes way for them.
    fn has_room(&self, free: &mut Free, elements: usize) -> bool {
        loop {
            let [now, most] = free.bytes();
            let room = (self.room)(now, most);
            if room.is_none_or(|room| now.saturating_add(bytes_of(elements)) <= room) {
                return true;
            }
            if free.buffers.pop().is_none() {
                return false;
            }
        }
    }

    /// Whether no other state should be copied: there is no room for one as large as the last, and either that one is still here, or a copy
    /// had to be given up for the same reason.
    pub(super) fn is_short(&self, holds_one: bool) -> bool {
        let mut free = self.free.lock();
        if !holds_one && !free.lacked {
            return false;
        }
        let state = free.newest.map_or(0, |(_, all)| all);
        let more = state.saturating_sub(free.kept());
        let [now, most] = free.bytes();
        let room = (self.room)(now, most);
        let is_short = room.is_some_and(|room| now.saturating_add(bytes_of(more)) > room);
        free.lacked &= is_short;
        is_short
    }

    /// What is kept for the next checkpoint may be needed for something else.
    pub(super) fn forget_kept(&self) {
        self.free.lock().buffers.clear();
    }

    fn give_back(&self, data: Vec<f32>) {
        let mut free = self.free.lock();
        free.out = free.out.saturating_sub(data.capacity());
        free.buffers.push(data);
        let state = free.newest.map_or(0, |(_, all)| all).max(free.before);
        let [now, most] = free.bytes();
        // Room for two states, or it is needed sooner than the next checkpoint comes.
        let is_plenty = |room: u64| now.saturating_add(bytes_of(state)) <= room;
        let plenty = (self.room)(now, most).is_none_or(is_plenty);
        let most = if plenty { state } else { 0 };
        while free.kept() > most {
            free.buffers.remove(0);
        }
        self.changed.notify_all();
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
        buffers.note(id(step), elements);
        let mut data = buffers.take(elements, || true).unwrap();
        assert!(data.is_empty() && data.capacity() >= elements);
        data.resize(elements, 1.0);
        let copy = buffers.hold(OptimizerProgress::START, data);
        let memory = copy.as_ref().as_ptr();
        (copy, memory)
    }

    fn kept(buffers: &Buffers) -> usize {
        buffers.free.lock().kept()
    }

    /// Copies may have so many elements together.
    fn within(elements: usize) -> Arc<Buffers> {
        Arc::new(Buffers::within(Box::new(move |_, _| Some(bytes_of(elements)))))
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

    #[test]
    fn where_memory_is_short_nothing_is_kept_and_a_unit_waits_for_those_before_it() {
        let buffers = within(150);
        let (first, _) = copy(&buffers, 1, 100);
        assert_eq!(buffers.take(100, || true), Err(ReadError::LeftOff));
        let own = Arc::clone(&buffers);
        // Nobody trains on: it waits as long as it takes.
        let waiting = std::thread::spawn(move || own.take(100, || false).unwrap().capacity());
        drop(first);
        assert_eq!(waiting.join().unwrap(), 100);
        assert_eq!(kept(&buffers), 0);
        let plenty = within(200);
        drop(copy(&plenty, 1, 100));
        assert_eq!(kept(&plenty), 100);
        assert!(plenty.take(180, || true).is_ok(), "what is kept makes way");
        let unlimited = Arc::new(Buffers::default());
        drop(copy(&unlimited, 1, 20));
        assert_eq!(kept(&unlimited), 20);
        unlimited.forget_kept();
        assert_eq!(kept(&unlimited), 0);
    }

    #[test]
    fn no_second_state_is_begun_where_only_one_has_room_nor_any_where_none_had() {
        let buffers = within(150);
        assert!(
            !buffers.is_short(true),
            "nothing is known of how large states are"
        );
        let (first, _) = copy(&buffers, 1, 100);
        assert!(buffers.is_short(true) && !buffers.is_short(false));
        drop(first);
        assert!(!buffers.is_short(true));
        buffers.note(id(2), 100);
        buffers.note(id(2), 100);
        let _one = buffers.take(100, || true).unwrap();
        assert!(buffers.take(100, || true).is_err());
        assert!(
            buffers.is_short(false),
            "the state was given up for want of memory"
        );
        let wide = Arc::new(Buffers::default());
        let _first = copy(&wide, 1, 100);
        assert!(!wide.is_short(true), "the system does not say how much there is");
    }

    #[test]
    fn what_copies_had_before_is_told_since_the_process_keeps_it() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&told);
        let buffers = Arc::new(Buffers::within(Box::new(move |now, most| {
            all.lock().push((now, most));
            None
        })));
        let (one, two) = (copy(&buffers, 1, 100), copy(&buffers, 1, 50));
        drop((one, two));
        buffers.forget_kept();
        let _last = copy(&buffers, 2, 10);
        assert_eq!(told.lock().first(), Some(&(0, 0)));
        assert_eq!(told.lock().last(), Some(&(0, 600)));
    }
}
