//! Gradient reduction: ring all-reduce of each unit among its holders, concurrent with the engine's compute.
//!
//! The rings of different units progress concurrently, in the order in which messages arrive. In a fixed order, workers with unequal cuts
//! would wait for each other in chains. Each slice's sum is computed once and copied, so that all holders get the same bits (Patarasuk &
//! Yuan 2009: D-1 rounds of reduce-scatter, D-1 of all-gather). If workers divide a unit's ranges among them, each needs only two slices of
//! the sum, and one round of all-gather is enough.
//!
//! This file owns the thread; what one unit's reduction sends and awaits is in `unit`.

mod unit;

use super::{Address, Link, LinkError, Tag};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use unit::{Flight, PIECES, Ring};
pub use unit::{MESSAGE_ELEMENTS, RingOf, Summands};
use varuna_plan::{Step, Unit, WorkerId};

/// How long the thread waits in the link when there are no rings; [`Link::wake`] wakes it.
const IDLE: Duration = Duration::from_secs(3600);

/// Reduces the units of one worker and returns their buffers with the sums. Dropping it ends its thread, once the link is
/// aborted or no reduction is in progress.
pub struct Reducer<B> {
    link: Arc<dyn Link>,
    jobs: Option<Sender<Ring<B>>>,
    done: Receiver<Result<(Unit, B), LinkError>>,
    thread: Option<JoinHandle<()>>,
    me: WorkerId,
}

impl<B: Summands + 'static> Reducer<B> {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(link: Arc<dyn Link>, me: WorkerId) -> std::io::Result<Self> {
        Reducer::start_within(PIECES, link, me)
    }

    /// The same with this limit on the pieces of all units in progress, not counting one of each unit.
    fn start_within(pieces: usize, link: Arc<dyn Link>, me: WorkerId) -> std::io::Result<Self> {
        // Both channels hold at most one entry for each unit of this worker.
        let (jobs, inbox) = channel();
        let (outbox, done) = channel();
        let own = Arc::clone(&link);
        let thread = std::thread::Builder::new()
            .name("reducer".into())
            .spawn(move || work(&*own, Flight::new(pieces), &inbox, &outbox))?;
        Ok(Reducer {
            link,
            jobs: Some(jobs),
            done,
            thread: Some(thread),
            me,
        })
    }

    /// Starts the reduction of a unit among those that compute with it.
    ///
    /// # Panics
    /// This worker is not one of the members.
    pub fn begin(&mut self, step: Step, unit: Unit, of: impl Into<RingOf>, buffer: B, deadline: Instant) {
        let of = of.into();
        let position = of
            .members
            .iter()
            .position(|w| *w == self.me)
            .expect("a worker is in its own ring");
        let ring = Ring::new(step, unit, (of, position), buffer, deadline);
        if let Some(jobs) = &self.jobs {
            // A failure here means that the thread has ended with an error, which `wait` returns.
            let _ = jobs.send(ring);
        }
        self.link.wake();
    }

    /// Waits for the next completely reduced unit.
    ///
    /// # Errors
    /// The link failed; no other unit will be reduced.
    pub fn wait(&mut self) -> Result<(Unit, B), LinkError> {
        self.done.recv().unwrap_or(Err(LinkError::Aborted))
    }

    /// Stops all reductions; returns the units that were completely reduced and not yet returned by `wait`.
    pub fn stop(&mut self) -> Vec<(Unit, B)> {
        self.end_thread();
        self.done.try_iter().flatten().collect()
    }
}

impl<B> Reducer<B> {
    fn end_thread(&mut self) {
        self.jobs = None;
        self.link.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl<B> Drop for Reducer<B> {
    fn drop(&mut self) {
        self.end_thread();
    }
}

fn work<B: Summands>(
    link: &dyn Link,
    flight: Flight,
    inbox: &Receiver<Ring<B>>,
    outbox: &Sender<Result<(Unit, B), LinkError>>,
) {
    let mut rings = Rings {
        by_unit: BTreeMap::new(),
        awaited: BTreeSet::new(),
        flight,
    };
    let mut open = true;
    while open || !rings.by_unit.is_empty() {
        match rings.advance(link, inbox, outbox) {
            Ok(more) => open = more,
            Err(error) => {
                let _ = outbox.send(Err(error));
                return;
            }
        }
        if !open && !rings.by_unit.is_empty() {
            // The engine has stopped this step.
            return;
        }
    }
}

/// The reductions in progress, and what they wait for: kept from message to message, since hundreds of pieces may be on their way.
struct Rings<B> {
    by_unit: BTreeMap<Unit, Ring<B>>,
    awaited: BTreeSet<Address>,
    flight: Flight,
}

impl<B: Summands> Rings<B> {
    /// Starts new units, then handles one message. Returns whether more units may come.
    fn advance(
        &mut self,
        link: &dyn Link,
        inbox: &Receiver<Ring<B>>,
        outbox: &Sender<Result<(Unit, B), LinkError>>,
    ) -> Result<bool, LinkError> {
        loop {
            match inbox.try_recv() {
                Ok(mut ring) if ring.group.len() > 1 => {
                    ring.fill(link, &mut self.awaited, &mut self.flight)?;
                    self.by_unit.insert(ring.unit, ring);
                }
                Ok(ring) => drop(outbox.send(Ok((ring.unit, ring.buffer)))),
                Err(std::sync::mpsc::TryRecvError::Empty) => break,
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return Ok(false),
            }
        }
        let deadlines = self.by_unit.values().map(|ring| ring.deadline);
        let deadline = deadlines.min().unwrap_or_else(|| Instant::now() + IDLE);
        let Some((address, packet)) = link.recv_any(&self.awaited, deadline)? else {
            return Ok(true);
        };
        self.awaited.remove(&address);
        let (_, Tag::Ring { unit, round, .. }) = address else {
            return Ok(true);
        };
        let Some(ring) = self.by_unit.get_mut(&unit) else {
            return Ok(true);
        };
        if ring.receive(link, (round, packet), &mut self.awaited, &mut self.flight)?
            && let Some(ring) = self.by_unit.remove(&unit)
        {
            let _ = outbox.send(Ok((ring.unit, ring.buffer)));
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::super::local::LocalMesh;
    use super::unit::{SLICE, WINDOW};
    use super::*;
    use proptest::prelude::*;

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    /// Reduces units of these sizes among `members` threads. Each thread begins with another unit.
    fn reduce(members: usize, sizes: &[usize]) -> Vec<Vec<Vec<f32>>> {
        reduce_in_slices(members, sizes, |_| None)
    }

    /// The same for one unit with this many elements, which is divided into these slices.
    fn reduce_in_slices(
        members: usize,
        sizes: &[usize],
        slices: impl Fn(usize) -> Option<Vec<usize>>,
    ) -> Vec<Vec<Vec<f32>>> {
        let ids: Vec<WorkerId> = (0..members as u64).map(|i| WorkerId(i * 3 + 1)).collect();
        let mesh = LocalMesh::new(&ids);
        let one = |me: WorkerId| {
            let (link, ids, sizes) = (mesh.link(me), ids.clone(), sizes.to_vec());
            let cuts: Vec<Option<Vec<usize>>> = sizes.iter().map(|size| slices(*size)).collect();
            move || {
                let mut reducer = Reducer::start(link, me).unwrap();
                for i in 0..sizes.len() {
                    let unit = (i + usize::try_from(me.0).unwrap()) % sizes.len();
                    let values: Vec<f32> = (0..sizes[unit])
                        .map(|k| (k % 97) as f32 + me.0 as f32 * 0.1)
                        .collect();
                    reducer.begin(
                        Step(4),
                        Unit(u32::try_from(unit).unwrap()),
                        RingOf {
                            members: ids.clone(),
                            is_shared: cuts[unit].is_some(),
                            slices: cuts[unit].clone(),
                        },
                        values,
                        later(),
                    );
                }
                let mut out = vec![Vec::new(); sizes.len()];
                for _ in 0..sizes.len() {
                    let (unit, values) = reducer.wait().unwrap();
                    out[unit.index()] = values;
                }
                out
            }
        };
        let threads: Vec<_> = ids.iter().map(|me| std::thread::spawn(one(*me))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn all_members_get_the_same_bits_of_the_sum(
            members in 1usize..7, sizes in prop::collection::vec(0usize..300, 1..6)
        ) {
            let all = reduce(members, &sizes);
            for out in &all {
                prop_assert_eq!(out, &all[0]);
            }
            for (unit, size) in sizes.iter().enumerate() {
                prop_assert_eq!(all[0][unit].len(), *size);
                for (k, sum) in all[0][unit].iter().enumerate() {
                    let expected: f64 = (0..members).map(|i| (k % 97) as f64 + (i * 3 + 1) as f64 * 0.1).sum();
                    prop_assert!((f64::from(*sum) - expected).abs() < 1e-3);
                }
            }
        }
    }

    #[test]
    fn shared_reduction_has_the_bits_of_the_whole_sum() {
        let size = SLICE * 3 + 1001;
        for members in 2..6 {
            let cut = |size: usize| (0..=members).map(|i| i * size / members).collect::<Vec<_>>();
            let whole = reduce(members, &[size, 7]);
            let shared = reduce_in_slices(members, &[size, 7], |size| Some(cut(size)));
            for (place, sums) in shared.iter().enumerate() {
                for (unit, size) in [(0, size), (1, 7)] {
                    let cuts = cut(size);
                    for slice in [place, (place + 1) % members] {
                        let own = cuts[slice]..cuts[slice + 1];
                        assert_eq!(sums[unit][own.clone()], whole[0][unit][own], "{members}: {place}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_unit_of_more_pieces_than_the_window_is_reduced_whole() {
        let size = SLICE * 2 * (WINDOW + 2) + 5;
        let all = reduce(2, &[size, 3]);
        assert_eq!(all[0], all[1]);
        let wrong = (0..size).find(|k| {
            let expected = (k % 97) as f32 * 2.0 + 0.5;
            (all[0][0][*k] - expected).abs() > 1e-3
        });
        assert_eq!(wrong, None);
    }

    /// A backward that is faster than the network begins all units at once, which is more than the neighbours' mailboxes can hold.
    #[test]
    fn large_units_are_reduced_whole() {
        const MIB: usize = 1 << 20;
        let (units, pieces) = (6u32, 4);
        let size = SLICE * 2 * pieces;
        let ids = [WorkerId(1), WorkerId(2)];
        // There is room for the window of one unit and for one piece of each other unit, but not for half of all windows.
        let mesh = LocalMesh::bounded(&ids, 11 * MIB);
        let one = |me: WorkerId| {
            let link = mesh.link(me);
            move || {
                let mut reducer = Reducer::start_within(4, link, me).unwrap();
                // In opposite orders: the unit that one worker begins first is the last one of the other.
                for i in 0..units {
                    let unit = if me == ids[0] { i } else { units - 1 - i };
                    let values = vec![1.0f32 + unit as f32; size];
                    reducer.begin(Step(0), Unit(unit), ids.to_vec(), values, later());
                }
                (0..units).all(|_| {
                    let (unit, sums) = reducer.wait().unwrap();
                    let expected = 2.0 * (1.0 + unit.0 as f32);
                    sums.len() == size && sums.iter().all(|sum| *sum == expected)
                })
            }
        };
        let threads = ids.map(|me| std::thread::spawn(one(me)));
        assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
    }

    #[test]
    fn a_fence_ends_a_reduction_and_what_was_complete_stays_known() {
        let ids = [WorkerId(1), WorkerId(2)];
        let mesh = LocalMesh::new(&ids);
        let link = mesh.link(ids[0]);
        let mut reducer = Reducer::start(Arc::clone(&link), ids[0]).unwrap();
        reducer.begin(Step(0), Unit(0), vec![ids[0]], vec![1.0f32], later());
        reducer.begin(Step(0), Unit(1), ids.to_vec(), vec![1.0f32; 8], later());
        assert_eq!(reducer.wait(), Ok((Unit(0), vec![1.0])));
        link.abort();
        assert_eq!(reducer.wait(), Err(LinkError::Aborted));
    }

    #[test]
    fn a_dead_member_ends_a_reduction() {
        let ids = [WorkerId(1), WorkerId(2), WorkerId(3)];
        let mesh = LocalMesh::new(&ids);
        let mut reducer = Reducer::start(mesh.link(ids[0]), ids[0]).unwrap();
        reducer.begin(Step(0), Unit(1), ids.to_vec(), vec![1.0f32; 8], later());
        mesh.kill(ids[2]);
        assert_eq!(reducer.wait(), Err(LinkError::Closed(ids[2])));
    }
}
