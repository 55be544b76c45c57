use super::idle::IDLE;
use super::pause::PAUSE;
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
