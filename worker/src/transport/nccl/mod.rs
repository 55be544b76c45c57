//! NCCL between the devices of a generation's workers, beside the generation's link.
//!
//! The link carries what the ranks tell each other before they meet (`meeting.rs`), and everything of those communicators for which not all
//! of their ranks have NCCL. Which communicators there are follows from the plan (`varuna_plan::communicators`).

mod link;
mod meeting;
mod plane;

pub use link::NcclLink;
pub use plane::NcclPlane;

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use varuna_cuda::{
    Communicator, Context, Libraries, Membership, NcclError, Pending, Reaper, Stream, init, revoke,
};
use varuna_plan::communicators::{Edge, Group, edges, groups};
use varuna_plan::{Plan, Unit, WorkerId};
use varuna_torch::{Device, OnDevice};

/// Blocks of the device that a boundary's communicator takes at most. Those that wait for a peer hold theirs, and a worker has up to
/// four edges; the rest is for computing.
const EDGE_BLOCKS: u32 = 4;
/// Generations in a row that may fail for want of communicators.
const FAILURES_MAX: u32 = 2;
/// How long the reaper may take to free one communicator, before the process is given up.
const FREEING: Duration = Duration::from_secs(10);

/// NCCL for one process and its device.
pub struct Nccl {
    context: Arc<Context>,
    reaper: Arc<Reaper>,
    /// Where libtorch computes; none where the host itself computes, and has done so when it hands a tensor over.
    compute: Option<Stream>,
    /// Generations in a row whose communicators were not made although all their ranks have NCCL.
    failures: AtomicU32,
}

/// A communicator and the stream of its operations.
pub struct Lane {
    /// The communicator.
    pub communicator: Communicator,
    /// Its own.
    pub stream: Stream,
}

/// The communicators of one worker in one generation.
pub struct Communicators {
    nccl: Arc<Nccl>,
    edges: BTreeMap<Edge, Lane>,
    groups: Vec<(Group, Lane)>,
    /// Boundaries that are on their way: at most those of a step.
    sent: Mutex<Vec<Pending<OnDevice>>>,
}

impl Nccl {
    /// NCCL for this device, which is not the processor.
    ///
    /// # Errors
    /// NCCL is absent or too old, or the driver refuses.
    pub fn open(libraries: &Libraries, device: Device) -> Result<Arc<Nccl>, NcclError> {
        let number = match device {
            Device::Cuda(number) => number,
            Device::Cpu | Device::Apart => 0,
        };
        libraries.require_nccl()?;
        let context = Context::open(libraries, number)?;
        let computes = matches!(device, Device::Cuda(_));
        let no_thread = |_| NcclError::Deadline {
            what: "the start of the thread that frees communicators",
        };
        Ok(Arc::new(Nccl {
            reaper: Reaper::start().map_err(no_thread)?,
            compute: computes.then(|| Stream::default_of(&context)),
            context,
            failures: AtomicU32::new(0),
        }))
    }

    /// Whether something on the device does not end: the process should.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.reaper.is_overdue(FREEING)
    }

    /// Whether this process takes part. It does no more once that kept generations from training, so that the next one trains.
    fn offers(&self) -> bool {
        self.failures.load(Ordering::Relaxed) < FAILURES_MAX
    }

    /// Notes how the making of communicators ended. What NCCL refuses once (two workers on one GPU) it refuses again; what was only too
    /// late, or was fenced meanwhile, may succeed the next time.
    fn note(&self, error: Option<&NcclError>) {
        match error {
            None => self.failures.store(0, Ordering::Relaxed),
            Some(NcclError::Call { .. } | NcclError::Absent(_)) => {
                self.failures.store(FAILURES_MAX, Ordering::Relaxed)
            }
            Some(_) => drop(self.failures.fetch_add(1, Ordering::Relaxed)),
        }
        if let Some(error) = error {
            let offers = self.offers();
            tracing::warn!(%error, offers, "no communicators were made; without them tensors go over the link");
        }
    }

    /// What comes next in the stream waits for what libtorch was told to compute so far.
    fn after_compute(&self, stream: &Stream) -> Result<(), NcclError> {
        match &self.compute {
            Some(compute) => Ok(stream.wait(&compute.record()?)?),
            None => Ok(()),
        }
    }
}

/// A communicator that a plan needs.
pub(crate) enum Wanted {
    Edge(Edge),
    Group(Group),
}

impl Wanted {
    /// Its ranks, in order.
    fn ranks(&self) -> Vec<WorkerId> {
        match self {
            Wanted::Edge(edge) => vec![edge.sender, edge.receiver],
            Wanted::Group(group) => group.holders.clone(),
        }
    }
}

/// All communicators of a plan, in the order in which everybody makes them.
pub(crate) fn wanted(plan: &Plan) -> Vec<Wanted> {
    let edges = edges(plan).into_iter().map(Wanted::Edge);
    edges.chain(groups(plan).into_iter().map(Wanted::Group)).collect()
}

impl Communicators {
    /// Makes those for which there is an id.
    fn make(
        nccl: &Arc<Nccl>,
        memberships: Vec<(Wanted, Membership)>,
        stop: &AtomicBool,
        deadline: Instant,
    ) -> Result<Communicators, NcclError> {
        let (wanted, memberships): (Vec<Wanted>, Vec<Membership>) = memberships.into_iter().unzip();
        let made = init(&nccl.context, &nccl.reaper, &memberships, stop, deadline);
        if !memberships.is_empty() {
            nccl.note(made.as_ref().err());
        }
        let mut own = Communicators {
            nccl: Arc::clone(nccl),
            edges: BTreeMap::new(),
            groups: Vec::new(),
            sent: Mutex::default(),
        };
        for (wanted, communicator) in wanted.into_iter().zip(made?) {
            let stream = Stream::new(&nccl.context)?;
            let lane = Lane { communicator, stream };
            match wanted {
                Wanted::Edge(edge) => drop(own.edges.insert(edge, lane)),
                Wanted::Group(group) => own.groups.push((group, lane)),
            }
        }
        let (edges, groups) = (own.edges.len(), own.groups.len());
        if edges + groups > 0 {
            tracing::info!(edges, groups, "tensors go over NCCL");
        }
        Ok(own)
    }

    /// The lane of an edge; none where it goes over the link.
    pub(crate) fn edge(&self, edge: Edge) -> Option<&Lane> {
        self.edges.get(&edge)
    }

    /// The lane over which a unit is summed and its parameters are brought; none where that goes over the link, or one worker alone computes with it.
    pub(crate) fn of_unit(&self, unit: Unit) -> Option<&Lane> {
        let group = self.groups.iter().find(|(group, _)| group.units.contains(&unit));
        group.map(|(_, lane)| lane)
    }

    /// What comes next in the lane's stream waits for what was computed so far.
    pub(crate) fn after_compute(&self, lane: &Lane) -> Result<(), NcclError> {
        self.nccl.after_compute(&lane.stream)
    }

    /// What is computed from here on comes after an operation: on the device where that computes by itself, else it is waited for.
    pub(crate) fn compute_after(
        &self,
        operation: &Pending<OnDevice>,
        deadline: Instant,
    ) -> Result<(), NcclError> {
        match (&self.nccl.compute, operation.event()) {
            (Some(compute), Some(event)) => Ok(compute.wait(event)?),
            _ => operation.wait(deadline),
        }
    }

    /// Keeps a boundary until it is sent, and lets go of those that are.
    pub(crate) fn keep(&self, pending: Pending<OnDevice>) {
        let mut sent = self.sent.lock();
        sent.retain(|p| p.is_done() == Ok(false));
        sent.push(pending);
    }

    /// Lets go of all boundaries on their way, after [`Communicators::abort`]; false if the device has not by the deadline.
    pub(crate) fn let_go(&self, deadline: Instant) -> bool {
        let sent = std::mem::take(&mut *self.sent.lock());
        sent.into_iter()
            .all(|pending| pending.release(deadline).is_some())
    }

    /// Ends the generation on this device: notes what is done, revokes all.
    pub fn abort(&self) {
        let lanes = self
            .edges
            .values()
            .chain(self.groups.iter().map(|(_, lane)| lane));
        let all: Vec<Communicator> = lanes.map(|lane| lane.communicator.clone()).collect();
        if let Err(error) = revoke(&all) {
            // What runs then may never end; who waits for it finds out, and the process ends.
            tracing::warn!(%error, "a communicator was not revoked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Tensor;
    use varuna_cuda::{Action, Element, Operation, Pinned, UniqueId, issue};

    fn libraries() -> Libraries {
        let library = std::env::current_exe().unwrap();
        Libraries::load_from(&library.with_file_name("libvaruna_fake_nccl.so")).unwrap()
    }

    /// Brings what the first of two ranks has to the second, and copies it to the host in the stream that computes; what each rank read there.
    fn brought(waits: bool) -> Vec<Vec<u8>> {
        let (libraries, deadline) = (libraries(), Instant::now() + Duration::from_secs(20));
        let id = UniqueId::draw(&libraries).unwrap();
        let one = |rank: u32| {
            let nccl = Nccl::open(&libraries, Device::Cuda(0)).unwrap();
            std::thread::spawn(move || {
                let group = Group {
                    holders: vec![WorkerId(1), WorkerId(2)],
                    units: vec![Unit(0)],
                };
                let membership = Membership {
                    id,
                    ranks: 2,
                    rank,
                    blocks_max: None,
                };
                let wanted = vec![(Wanted::Group(group), membership)];
                let own = Communicators::make(&nccl, wanted, &AtomicBool::new(false), deadline).unwrap();
                let lane = own.of_unit(Unit(0)).unwrap();
                let value = Tensor::from_slice(&[f32::from(rank == 0); 8]);
                own.after_compute(lane).unwrap();
                let operation = Operation {
                    communicator: &lane.communicator,
                    action: Action::Broadcast { root: 0 },
                    memory: OnDevice::over(&value).unwrap(),
                    element: Element::Float32,
                    stream: &lane.stream,
                };
                let pending = issue(vec![operation], deadline).unwrap().remove(0);
                if waits {
                    own.compute_after(&pending, deadline).unwrap();
                }
                let compute = nccl.compute.as_ref().unwrap();
                let copy = Pinned::new(&nccl.context, 32).unwrap();
                let copy = copy.copy_from(OnDevice::over(&value).unwrap(), compute).unwrap();
                let read = copy.finish(deadline).unwrap().0.as_slice().to_vec();
                pending.wait(deadline).unwrap();
                read
            })
        };
        let threads: Vec<_> = (0..2).map(one).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    }

    #[test]
    fn a_device_computes_after_what_it_was_told_to_wait_for_while_the_host_goes_on() {
        let ones: Vec<u8> = [1.0f32; 8].iter().flat_map(|v| v.to_ne_bytes()).collect();
        assert_eq!(brought(true), vec![ones.clone(), ones.clone()]);
        // The stand-in is late enough to show who forgets to wait: not each time, but soon.
        assert!((0..50).any(|_| brought(false)[1] != ones));
    }

    #[test]
    fn a_process_offers_nccl_until_it_has_kept_generations_from_training() {
        let libraries = libraries();
        let open = || Nccl::open(&libraries, Device::Apart).unwrap();
        let late = NcclError::Deadline { what: "a test" };
        let nccl = open();
        nccl.note(Some(&late));
        assert!(nccl.offers(), "once it may have been chance");
        nccl.note(None);
        nccl.note(Some(&NcclError::Revoked));
        assert!(nccl.offers(), "what succeeded between counts");
        nccl.note(Some(&late));
        assert!(!nccl.offers());
        let nccl = open();
        let (call, what, detail) = ("ncclCommInitRankConfig", String::new(), String::new());
        nccl.note(Some(&NcclError::Call {
            call,
            code: 5,
            what,
            detail,
        }));
        assert!(!nccl.offers(), "NCCL would refuse again");
    }
}
