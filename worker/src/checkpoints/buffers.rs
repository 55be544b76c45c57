//! Memory for copies of states: for checkpoints, and for peers that follow a unit or keep its spare copy. It is used again, because the first touch of fresh
//! memory costs four times as much as the copy. No more is kept than the next checkpoint needs anyway. If the host has little memory left,
//! nothing is kept, and each unit is copied only when earlier ones have reached the store or the peer: a worker that uses more memory than it has is killed, with its state.

use crate::state::{ReadError, UnitSnapshot};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use varuna_plan::{OptimizerProgress, StateId, Unit};

/// A free buffer may be larger than the unit that uses it by up to this share of the unit, so that little memory is wasted.
const SPARE: usize = 8;
/// How often a thread that waits for memory checks whether there is some.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long a unit waits for room while no other copy takes any.
///
/// * If no step was run from its state in this time, and none is being run, nobody trains: it is the state of the last step. The memory of a
///   step is free then, has room for one unit, and is taken.
/// * If steps were run, they need their memory, and the state is given up. Nobody else ends its wait: an optimizer that changes what is on a
///   device does not wait for readers of a copy there, so it does not ask them to stop.
const IDLE: Duration = Duration::from_secs(120);
/// How long no state is begun after one that had no memory, since the optimizer waited for it in vain. The pause ends, because the store
/// may have been slow only once.
const PAUSE: Duration = Duration::from_secs(60);
/// How often the pause doubles at most, with each such state in a row. If none ever has room, the optimizer loses 15 s in a quarter of an
/// hour.
const DOUBLINGS_MAX: u32 = 4;

/// Why a unit was not copied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotCopied {
    /// There was no memory for it until the optimizer had waited too long, or nobody wanted it any more.
    #[error("there was no memory for the copy, and the optimizer has waited for it for too long")]
    OptimizerWaited,
    /// There was no memory for it for [`IDLE`], in which the optimizer did not wait and steps were run.
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
    /// No state is begun until then, unless all of it has room.
    pause_until: Option<Instant>,
    /// States in a row that had no memory.
    had_none: u32,
    /// A state that nobody trains on from.
    idle: Option<StateId>,
    /// A step was run since the newest state was to be copied: somebody trains on from it.
    trains: bool,
    /// A step is being run. It may take longer than [`IDLE`].
    runs_step: bool,
}

/// What a unit that has no room can do while no copy is there whose end would make some.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Alone {
    /// It waits.
    Waits,
    /// It takes the memory of steps, which nobody runs.
    Takes,
    /// It is given up: steps need their memory.
    Ends,
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

    /// What becomes of a unit of the newest state that has waited since then: nobody can train on from it if it has waited for long, or one before it
    /// has.
    fn alone(&mut self, since: Instant) -> Alone {
        let newest = self.newest.as_ref().map(|(id, _)| *id);
        let is_late = since.elapsed() >= IDLE;
        match (self.out, newest) {
            (1.., _) | (_, None) => Alone::Waits,
            _ if self.trains && is_late => Alone::Ends,
            _ if self.trains || self.runs_step => Alone::Waits,
            _ => {
                if is_late {
                    self.idle = newest;
                }
                match self.idle == newest {
                    true => Alone::Takes,
                    false => Alone::Waits,
                }
            }
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
                free.trains = false;
            }
        }
    }

    /// A step begins.
    pub(super) fn step_begins(&self) {
        self.free.lock().runs_step = true;
    }

    /// The step that was being run has ended, complete or not.
    pub(super) fn step_ended(&self, is_complete: bool) {
        let mut free = self.free.lock();
        free.runs_step = false;
        free.trains |= is_complete;
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
        let pauses = free.pause_until.is_some_and(|until| now < until);
        if !holds_one && !pauses {
            return false;
        }
        let more = free.newest_elements().saturating_sub(free.kept());
        let [bytes, most] = free.bytes();
        let room = (self.room)(bytes, most);
        let is_short = room.is_some_and(|room| bytes.saturating_add(bytes_of(more)) > room);
        if !is_short {
            free.pause_until = None;
        }
        is_short
    }

    /// A state was given up, since a unit of it had no memory.
    pub(super) fn pause(&self) {
        let mut free = self.free.lock();
        let pause = PAUSE * (1 << free.had_none.min(DOUBLINGS_MAX));
        free.pause_until = Some(Instant::now() + pause);
        free.had_none = free.had_none.saturating_add(1);
    }

    /// All units of a state had memory.
    pub(super) fn was_enough(&self) {
        self.free.lock().had_none = 0;
    }

    /// Under another plan this worker may have more to hold, so that what is kept is needed for that; or less, so that states have room that had none.
    pub(super) fn begin_anew(&self) {
        let mut free = self.free.lock();
        free.buffers.clear();
        (free.pause_until, free.had_none, free.trains) = (None, 0, false);
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

    /// Announces that another unit of a state will be copied.
    fn note(buffers: &Buffers, step: u64, elements: usize) {
        let units = match &buffers.free.lock().newest {
            Some((newest, units)) if *newest == id(step) => units.len(),
            _ => 0,
        };
        buffers.note(id(step), Unit(u32::try_from(units).unwrap()), elements);
    }

    /// A copy of a unit with this many elements, and the address of its memory.
    fn copy(buffers: &Arc<Buffers>, step: u64, elements: usize) -> (StateCopy, *const f32) {
        note(buffers, step, elements);
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

    /// Buffers for this many elements in total.
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
        // Two states at a time: one is being uploaded, and one waits.
        let copies: Vec<_> = [1, 2]
            .into_iter()
            .flat_map(|step| (0..3).map(move |_| step))
            .map(|step| copy(&buffers, step, 100))
            .collect();
        drop(copies);
        assert_eq!(kept(&buffers), 300);
        // Under the next plan this worker has fewer units.
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
    fn short_memory_keeps_nothing_and_units_wait() {
        let buffers = within(150);
        let (first, _) = copy(&buffers, 1, 100);
        assert_eq!(buffers.take(100, || true), Err(NotCopied::OptimizerWaited));
        let own = Arc::clone(&buffers);
        let (waits, it_waits) = std::sync::mpsc::channel();
        // The copy is not given up, but waits as long as necessary. The closure is called when there was no room.
        let is_left = move || waits.send(()).is_err();
        let waiting = std::thread::spawn(move || own.take(100, is_left).unwrap().capacity());
        it_waits.recv().unwrap();
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
        unlimited.begin_anew();
        assert_eq!(kept(&unlimited), 0);
    }

    #[test]
    fn no_second_state_is_begun_where_only_one_has_room() {
        let (buffers, now) = (within(150), Instant::now());
        assert!(
            !buffers.is_short(true, now),
            "nothing is known of how large states are"
        );
        let (first, _) = copy(&buffers, 1, 100);
        assert!(buffers.is_short(true, now) && !buffers.is_short(false, now));
        drop(first);
        assert!(!buffers.is_short(true, now));
        let wide = Arc::new(Buffers::default());
        let _first = copy(&wide, 1, 100);
        assert!(
            !wide.is_short(true, now),
            "the system does not say how much there is"
        );
    }

    /// If there is never room for all units together, each may be copied after the one before. So a store that was slow once does not
    /// prevent later checkpoints.
    #[test]
    fn state_without_memory_delays_the_next_ones() {
        let buffers = within(150);
        let give_up = |step| {
            let before = Instant::now();
            note(&buffers, step, 100);
            let (one, _) = copy(&buffers, step, 100);
            assert_eq!(buffers.take(100, || true), Err(NotCopied::OptimizerWaited));
            buffers.pause();
            drop(one);
            (before, Instant::now())
        };
        for (step, minutes) in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 16)] {
            let pause = Duration::from_secs(60 * minutes);
            let (before, after) = give_up(step);
            assert!(buffers.is_short(false, before + pause - Duration::from_nanos(1)));
            assert!(!buffers.is_short(false, after + pause), "after {minutes} minutes");
        }
        buffers.was_enough();
        let (_, after) = give_up(7);
        assert!(
            !buffers.is_short(false, after + PAUSE),
            "one has been saved since"
        );
        assert!(buffers.is_short(false, after));
        buffers.begin_anew();
        assert!(!buffers.is_short(false, after), "another plan");
    }

    #[test]
    fn the_pause_ends_where_a_whole_state_has_room_again() {
        let free = Arc::new(Mutex::new(150));
        let room = Arc::clone(&free);
        let buffers = Buffers::within(Box::new(move |_, _| Some(bytes_of(*room.lock()))));
        for _ in 0..2 {
            note(&buffers, 1, 100);
        }
        buffers.pause();
        let now = Instant::now();
        assert!(buffers.is_short(false, now));
        *free.lock() = 200;
        assert!(!buffers.is_short(false, now));
        *free.lock() = 150;
        assert!(!buffers.is_short(false, now), "that was its end");
    }

    #[test]
    fn a_unit_of_a_state_that_comes_again_counts_once() {
        let buffers = within(150);
        for _ in 0..2 {
            buffers.note(id(1), Unit(0), 100);
        }
        // There is room for 100 elements, but not for 200.
        assert!(!buffers.is_short(true, Instant::now()));
    }

    #[test]
    fn memory_of_steps_is_taken_only_if_nobody_trains() {
        let buffers = within(150);
        let alone = |waited: Duration| {
            let since = Instant::now().checked_sub(waited).unwrap();
            buffers.free.lock().alone(since)
        };
        let (soon, late) = (Duration::ZERO, IDLE + Duration::from_millis(1));
        note(&buffers, 1, 200);
        buffers.step_ended(true);
        assert_eq!([alone(soon), alone(late)], [Alone::Waits, Alone::Ends]);
        assert_eq!(alone(soon), Alone::Waits, "another unit of it");
        // The state of the last step: no step is run from it. Its other units need not wait as long.
        note(&buffers, 2, 200);
        assert_eq!([alone(soon), alone(late)], [Alone::Waits, Alone::Takes]);
        assert_eq!(alone(soon), Alone::Takes);
        buffers.step_ended(true);
        assert_eq!(alone(late), Alone::Ends);
        buffers.begin_anew();
        assert_eq!(alone(late), Alone::Takes, "another plan waits for it");
        // A step of more than two minutes from a new state: nobody is idle.
        buffers.step_begins();
        note(&buffers, 3, 200);
        assert_eq!(alone(late), Alone::Waits, "a step is being run");
        buffers.begin_anew();
        assert_eq!(alone(late), Alone::Waits, "the next plan comes meanwhile");
        buffers.step_ended(false);
        assert_eq!(alone(late), Alone::Takes, "it has failed, and no other is run");
        let (one, _) = copy(&buffers, 3, 100);
        assert_eq!(alone(late), Alone::Waits, "its end makes room");
        drop(one);
    }

    #[test]
    fn steps_that_went_on_differ_from_an_optimizer_that_waited() {
        let buffers = within(150);
        note(&buffers, 1, 200);
        buffers.step_ended(true);
        let late = Instant::now().checked_sub(IDLE).unwrap();
        let taken = |since| buffers.take_since(since, 200, || true);
        assert_eq!(taken(Instant::now()), Err(NotCopied::OptimizerWaited));
        assert_eq!(taken(late), Err(NotCopied::StepsWentOn));
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
        buffers.begin_anew();
        let _last = copy(&buffers, 2, 10);
        assert_eq!(told.lock().first(), Some(&(0, 0)));
        assert_eq!(told.lock().last(), Some(&(0, 600)));
    }
}
