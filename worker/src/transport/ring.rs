//! Gradient reduction: ring all-reduce of each unit among its holders, beside the engine's compute.
//!
//! The rings of different units progress concurrently, whichever chunk arrives next: one after another in a fixed order would
//! make chains across unequal cuts. Each chunk's sum is computed once and copied, so that all holders get the same bits
//! (Patarasuk & Yuan 2009: D-1 rounds of reduce-scatter, D-1 of all-gather).

use super::{Link, LinkError, Tag};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use varuna_plan::{Step, Unit, WorkerId};

/// How long the thread sleeps in the link when it has nothing to wait for; a poke wakes it.
const IDLE: Duration = Duration::from_secs(3600);

/// One unit on its way round.
struct Ring<B> {
    step: Step,
    unit: Unit,
    group: Vec<WorkerId>,
    position: usize,
    /// Rounds received so far, of 2(D-1).
    round: usize,
    buffer: B,
    deadline: Instant,
}

/// Reduces the units of one worker; the buffers come back with the sums. Dropping it ends its thread once the link is aborted
/// or nothing is on its way.
pub struct Reducer<B> {
    link: Arc<dyn Link>,
    jobs: Option<Sender<Ring<B>>>,
    done: Receiver<Result<(Unit, B), LinkError>>,
    thread: Option<JoinHandle<()>>,
    me: WorkerId,
}

impl<B: AsMut<[f32]> + Send + 'static> Reducer<B> {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(link: Arc<dyn Link>, me: WorkerId) -> std::io::Result<Self> {
        // Both channels hold at most one entry for each unit of this worker.
        let (jobs, inbox) = channel();
        let (outbox, done) = channel();
        let own = Arc::clone(&link);
        let thread = std::thread::Builder::new()
            .name("reducer".into())
            .spawn(move || work(&*own, &inbox, &outbox))?;
        Ok(Reducer {
            link,
            jobs: Some(jobs),
            done,
            thread: Some(thread),
            me,
        })
    }

    /// Begins the reduction of a unit among `group` (its holders, in the order that all of them use).
    ///
    /// # Panics
    /// When this worker is not in the group.
    pub fn begin(&mut self, step: Step, unit: Unit, group: Vec<WorkerId>, buffer: B, deadline: Instant) {
        let position = group
            .iter()
            .position(|w| *w == self.me)
            .expect("a holder is in its own group");
        let ring = Ring {
            step,
            unit,
            group,
            position,
            round: 0,
            buffer,
            deadline,
        };
        if let Some(jobs) = &self.jobs {
            // A failure here means that the thread has ended with an error, which `wait` returns.
            let _ = jobs.send(ring);
        }
        self.link.poke();
    }

    /// The next unit that is completely reduced.
    ///
    /// # Errors
    /// Why the others will not be.
    pub fn wait(&mut self) -> Result<(Unit, B), LinkError> {
        self.done.recv().unwrap_or(Err(LinkError::Aborted))
    }
}

impl<B> Drop for Reducer<B> {
    fn drop(&mut self) {
        self.jobs = None;
        self.link.poke();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn work<B: AsMut<[f32]>>(
    link: &dyn Link,
    inbox: &Receiver<Ring<B>>,
    outbox: &Sender<Result<(Unit, B), LinkError>>,
) {
    let mut rings: Vec<Ring<B>> = Vec::new();
    let mut open = true;
    while open || !rings.is_empty() {
        match advance(link, inbox, outbox, &mut rings) {
            Ok(more) => open = more,
            Err(error) => {
                let _ = outbox.send(Err(error));
                return;
            }
        }
        if !open && !rings.is_empty() {
            // The engine has given up on this step: nobody wants the rest.
            return;
        }
    }
}

/// Takes in new units, then one message. Returns whether more units may come.
fn advance<B: AsMut<[f32]>>(
    link: &dyn Link,
    inbox: &Receiver<Ring<B>>,
    outbox: &Sender<Result<(Unit, B), LinkError>>,
    rings: &mut Vec<Ring<B>>,
) -> Result<bool, LinkError> {
    loop {
        match inbox.try_recv() {
            Ok(mut ring) if ring.group.len() > 1 => {
                ring.send(link, 0)?;
                rings.push(ring);
            }
            Ok(ring) => drop(outbox.send(Ok((ring.unit, ring.buffer)))),
            Err(std::sync::mpsc::TryRecvError::Empty) => break,
            Err(std::sync::mpsc::TryRecvError::Disconnected) => return Ok(false),
        }
    }
    let wanted: Vec<(WorkerId, Tag)> = rings.iter().map(Ring::awaited).collect();
    let deadline = rings
        .iter()
        .map(|r| r.deadline)
        .min()
        .unwrap_or_else(|| Instant::now() + IDLE);
    let Some((i, payload)) = link.recv_any(&wanted, deadline)? else {
        return Ok(true);
    };
    if rings[i].receive(link, &payload)? {
        let ring = rings.swap_remove(i);
        let _ = outbox.send(Ok((ring.unit, ring.buffer)));
    }
    Ok(true)
}

impl<B: AsMut<[f32]>> Ring<B> {
    fn size(&self) -> usize {
        self.group.len()
    }

    fn rounds(&self) -> usize {
        2 * (self.size() - 1)
    }

    fn tag(&self, round: usize) -> Tag {
        Tag::Ring {
            step: self.step,
            unit: self.unit,
            round: u32::try_from(round).unwrap_or(u32::MAX),
        }
    }

    fn awaited(&self) -> (WorkerId, Tag) {
        (
            self.group[(self.position + self.size() - 1) % self.size()],
            self.tag(self.round),
        )
    }

    /// The chunk that this worker sends in a round; it receives the one before it.
    fn chunk(&mut self, round: usize, back: usize) -> Range<usize> {
        let (n, size) = (self.buffer.as_mut().len(), self.size());
        // All-gather starts with the chunk that reduce-scatter has completed here, (position + 1).
        let index = (self.position + 2 * size - round % (size - 1) - back + round / (size - 1)) % size;
        index * n / size..(index + 1) * n / size
    }

    fn send(&mut self, link: &dyn Link, round: usize) -> Result<(), LinkError> {
        let chunk = self.chunk(round, 0);
        let payload = self.buffer.as_mut()[chunk].to_vec();
        let right = self.group[(self.position + 1) % self.size()];
        link.send(right, self.tag(round), payload, self.deadline)
    }

    /// Takes one round's message in and passes on; true when the unit is complete.
    fn receive(&mut self, link: &dyn Link, payload: &[f32]) -> Result<bool, LinkError> {
        let chunk = self.chunk(self.round, 1);
        let gathers = self.round + 1 >= self.size();
        let own = &mut self.buffer.as_mut()[chunk];
        if own.len() != payload.len() {
            // Only a peer of another model could send this; the sum would be nonsense.
            return Err(LinkError::Closed(self.awaited().0));
        }
        if gathers {
            own.copy_from_slice(payload);
        } else {
            for (a, b) in own.iter_mut().zip(payload) {
                *a += b;
            }
        }
        self.round += 1;
        if self.round < self.rounds() {
            self.send(link, self.round)?;
        }
        Ok(self.round == self.rounds())
    }
}

#[cfg(test)]
mod tests {
    use super::super::local::LocalMesh;
    use super::*;
    use proptest::prelude::*;

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    /// Reduces units of these sizes among `members` threads; each begins them in its own rotation.
    fn reduce(members: usize, sizes: &[usize]) -> Vec<Vec<Vec<f32>>> {
        let ids: Vec<WorkerId> = (0..members as u64).map(|i| WorkerId(i * 3 + 1)).collect();
        let mesh = LocalMesh::new(&ids);
        let one = |me: WorkerId| {
            let (link, ids, sizes) = (mesh.link(me), ids.clone(), sizes.to_vec());
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
                        ids.clone(),
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
