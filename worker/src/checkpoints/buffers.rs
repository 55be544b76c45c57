//! Memory for copies of states: for checkpoints, and for peers that follow a unit or keep its spare copy. It is used again, because the first touch of fresh
//! memory costs four times as much as the copy. No more is kept than the next checkpoint needs anyway. If the host has little memory left,
//! nothing is kept, and each unit is copied only when earlier ones have reached the store or the peer: a worker that uses more memory than it has is killed, with its state.

mod idle;
mod pause;

use crate::state::{ReadError, UnitSnapshot};
use idle::{Alone, Idle};
use parking_lot::{Condvar, Mutex};
use pause::Pause;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use varuna_plan::{OptimizerProgress, StateId, Unit};

/// A free buffer may be larger than the unit that uses it by up to this share of the unit, so that little memory is wasted.
const SPARE: usize = 8;
/// How often a thread that waits for memory checks whether there is some.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Why a unit was not copied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotCopied {
    /// There was no memory for it until the optimizer had waited too long, or nobody wanted it any more.
    #[error("there was no memory for the copy, and the optimizer has waited for it for too long")]
    OptimizerWaited,
    /// There was no memory for it for [`idle::IDLE`], in which the optimizer did not wait and steps were run.
    #[error("there was no memory for the copy, while training went on for too long")]
    StepsWentOn,
    /// The unit's state was not read to the end.
    #[error(transparent)]
    Unread(#[from] ReadError),
}

/// A copy of a unit's state. Cheap to clone; its memory is used again when the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct StateCopy(Arc<Buffer>);

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

/// How many bytes all copies together may have, given the bytes that they have now and the most that they ever had; none if that is not
/// known.
pub type Room = Box<dyn Fn(u64, u64) -> Option<u64> + Send + Sync>;

/// Memory of copies, and that which is free for them.
pub struct Buffers {
    free: Mutex<Free>,
    /// Memory was given back.
    changed: Condvar,
    room: Room,
}

#[derive(Debug, Default)]
struct Free {
    /// The free buffers; the one that was given back first comes first.
    buffers: Vec<Vec<f32>>,
    /// Elements of the copies that there are.
    out: usize,
    /// The most elements that these and the free buffers ever had: the process does not give memory back.
    most: usize,
    /// The last state that was to be copied, and the elements of each of its units so far. A state that was given up may come again.
    newest: Option<(StateId, BTreeMap<Unit, usize>)>,
    /// Elements of the state before.
    before: usize,
    /// The newest state that was to be copied under an earlier plan, and not again since.
    earlier: Option<StateId>,
    pause: Pause,
    idle: Idle,
}

impl Free {
    fn kept(&self) -> usize {
        self.buffers.iter().map(Vec::capacity).sum()
    }

    /// Elements that have memory, and the most that ever had, in bytes.
    fn bytes(&self) -> [u64; 2] {
        [self.out + self.kept(), self.most].map(bytes_of)
    }

    /// Elements of the newest state, as far as its units are known.
    fn newest_elements(&self) -> usize {
        self.newest.as_ref().map_or(0, |(_, units)| units.values().sum())
    }

    /// A free buffer for this many elements.
    fn fitting(&mut self, elements: usize) -> Option<Vec<f32>> {
        let fits = |buffer: &Vec<f32>| {
            let larger = buffer.capacity().checked_sub(elements);
            larger.is_some_and(|by| by <= elements / SPARE)
        };
        let found = self.buffers.iter().position(fits)?;
        Some(self.buffers.remove(found))
    }

    /// An empty vector for this many elements: the buffer that was found, or a new one.
    fn lend(&mut self, found: Option<Vec<f32>>, elements: usize) -> Vec<f32> {
        let mut data = found.unwrap_or_default();
        data.clear();
        data.reserve_exact(elements);
        self.out += data.capacity();
        self.most = self.most.max(self.out + self.kept());
        data
    }

    /// What a unit of the newest state can do that has waited for room since then.
    fn alone(&mut self, since: Instant) -> Alone {
        match &self.newest {
            Some((newest, _)) if self.out == 0 => self.idle.alone(*newest, since.elapsed()),
            // The end of another copy makes room.
            _ => Alone::Waits,
        }
    }
}

fn bytes_of(elements: usize) -> u64 {
    (elements as u64).saturating_mul(size_of::<f32>() as u64)
}

impl Default for Buffers {
    /// Buffers without a limit.
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
    #[must_use]
    pub fn within(room: Room) -> Buffers {
        Buffers {
            free: Mutex::default(),
            changed: Condvar::new(),
            room,
        }
    }

    /// A unit of this many elements is to be copied at `id`.
    pub(super) fn note(&self, id: StateId, unit: Unit, elements: usize) {
        let mut free = self.free.lock();
        // If it is an earlier plan's, it is wanted under the present one, too.
        free.earlier = free.earlier.filter(|earlier| *earlier < id);
        match &mut free.newest {
            Some((newest, units)) if *newest == id => {
                units.insert(unit, elements);
            }
            _ => {
                free.before = free.newest_elements();
                free.newest = Some((id, BTreeMap::from([(unit, elements)])));
                free.idle.state_comes();
            }
        }
    }

    /// A step begins.
    pub(super) fn step_begins(&self) {
        self.free.lock().idle.step_begins();
    }

    /// The step that was being run has ended, complete or not.
    pub(super) fn step_ended(&self, is_complete: bool) {
        self.free.lock().idle.step_ended(is_complete);
    }

    /// Copies a unit's state, once there is memory for it; without memory, only as long as it is wanted.
    ///
    /// # Errors
    /// The optimizer has waited too long, nobody wants it any more, or the state cannot be read from the device.
    pub(super) fn copy(
        self: &Arc<Self>,
        snapshot: &UnitSnapshot,
        is_wanted: impl Fn() -> bool,
    ) -> Result<StateCopy, NotCopied> {
        let must_stop = || snapshot.must_stop() || !is_wanted();
        let data = self.take(snapshot.elements(), must_stop)?;
        Ok(self.filled(data, snapshot)?)
    }

    /// The same for a peer, without waiting: none if there is no room now. The `only` copy for peers is made in any case.
    pub(crate) fn copy_at_once(
        self: &Arc<Self>,
        snapshot: &UnitSnapshot,
        only: bool,
    ) -> Result<Option<StateCopy>, ReadError> {
        let elements = snapshot.elements();
        let mut free = self.free.lock();
        let found = free.fitting(elements);
        if found.is_none() && !self.has_room(&mut free, elements) && !only {
            return Ok(None);
        }
        let data = free.lend(found, elements);
        drop(free);
        self.filled(data, snapshot).map(Some)
    }

    fn filled(self: &Arc<Self>, mut data: Vec<f32>, snapshot: &UnitSnapshot) -> Result<StateCopy, ReadError> {
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

    /// An empty vector for this many elements, once there is room for it.
    ///
    /// # Errors
    /// `must_stop` became true before there was memory, or there is none while somebody trains.
    fn take(&self, elements: usize, must_stop: impl Fn() -> bool) -> Result<Vec<f32>, NotCopied> {
        self.take_since(Instant::now(), elements, must_stop)
    }

    /// The same for a unit that has waited since then.
    fn take_since(
        &self,
        began: Instant,
        elements: usize,
        must_stop: impl Fn() -> bool,
    ) -> Result<Vec<f32>, NotCopied> {
        let mut free = self.free.lock();
        let found = loop {
            let found = free.fitting(elements);
            if found.is_some() || self.has_room(&mut free, elements) {
                break found;
            }
            match free.alone(began) {
                Alone::Waits => {}
                Alone::Takes => break None,
                Alone::Ends => return Err(NotCopied::StepsWentOn),
            }
            // Whoever is asked may have a copy to give back.
            drop(free);
            if must_stop() {
                return Err(NotCopied::OptimizerWaited);
            }
            free = self.free.lock();
            self.changed.wait_for(&mut free, POLL_INTERVAL);
        };
        Ok(free.lend(found, elements))
    }

    /// Whether there is room for this many more elements; kept buffers are freed for them if necessary.
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

    /// Whether no other state should be copied now. This is so if there is no room for one as large as the last, and either that one is
    /// still in memory, or a state had no memory a short while ago.
    pub(super) fn is_short(&self, holds_one: bool, now: Instant) -> bool {
        let mut free = self.free.lock();
        if !holds_one && !free.pause.is_on(now) {
            return false;
        }
        let more = free.newest_elements().saturating_sub(free.kept());
        let [bytes, most] = free.bytes();
        let room = (self.room)(bytes, most);
        let is_short = room.is_some_and(|room| bytes.saturating_add(bytes_of(more)) > room);
        if !is_short {
            free.pause.end();
        }
        is_short
    }

    /// A state was given up, since a unit of it had no memory.
    pub(super) fn pause(&self) {
        self.free.lock().pause.begin(Instant::now());
    }

    /// All units of a state had memory.
    pub(super) fn was_enough(&self) {
        self.free.lock().pause.was_enough();
    }

    /// Under another plan this worker may have more to hold, so that what is kept is needed for that; or less, so that states have room that had none.
    pub(super) fn begin_anew(&self) {
        let mut free = self.free.lock();
        free.buffers.clear();
        free.pause = Pause::default();
        free.idle.begin_anew();
        free.earlier = free.newest.as_ref().map(|(id, _)| *id);
    }

    /// Whether a state was to be copied under an earlier plan, and not again since. A copy of it on the device takes memory that the present plan may
    /// need: so the copies of it that have no room now are not waited for.
    pub(super) fn is_of_earlier_plan(&self, id: StateId) -> bool {
        self.free.lock().earlier.is_some_and(|earlier| id <= earlier)
    }

    fn give_back(&self, data: Vec<f32>) {
        let mut free = self.free.lock();
        free.out = free.out.saturating_sub(data.capacity());
        free.buffers.push(data);
        let state = free.newest_elements().max(free.before);
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
mod tests;
