//! NCCL between the devices of a generation's workers, in addition to the generation's link.
//!
//! The link carries the messages by which ranks find each other (`id_exchange.rs`), and all data of communicators of which not all ranks have
//! NCCL. Which communicators there are follows from the plan (`varuna_plan::communicators`).

mod id_exchange;
mod link;
mod offer;
mod plane;

pub use link::NcclLink;
pub use plane::NcclPlane;

use offer::Offer;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use varuna_cuda::{
    Communicator, Context, Libraries, Membership, NcclError, Pending, Reaper, Stream, init, revoke,
};
use varuna_plan::communicators::{Edge, Group, edges, groups};
use varuna_plan::{Plan, Unit, WorkerId};
use varuna_torch::{Device, OnDevice};

/// The most blocks of the device that a boundary's communicator uses. It occupies them while it waits for a peer, and a worker has up to
/// four edges; the rest is for computing.
const EDGE_BLOCKS: u32 = 4;
/// Time between two checks of boundaries that are being sent.
const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// How long the reaper may take to free one communicator, before the process is given up.
const FREEING: Duration = Duration::from_secs(10);

/// NCCL for one process and its device.
pub struct Nccl {
    context: Arc<Context>,
    reaper: Arc<Reaper>,
    /// Where libtorch computes; none where the host itself computes, and has done so when it hands a tensor over.
    compute: Option<Stream>,
    /// Whether it tells its peers that it has NCCL.
    offer: Mutex<Offer>,
}

/// A communicator and the stream of its operations.
pub struct Lane {
    /// The communicator.
    pub communicator: Communicator,
    /// The stream of this communicator's operations.
    pub stream: Stream,
}

/// The communicators of one worker in one generation.
pub struct Communicators {
    nccl: Arc<Nccl>,
    edges: BTreeMap<Edge, Lane>,
    groups: Vec<(Group, Lane)>,
    /// Boundaries that the device may still read: at most those of a step.
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
            Device::Cpu | Device::CpuSeparateMemory => 0,
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
            offer: Mutex::default(),
        }))
    }

    /// Whether something on the device does not end: the process should.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.reaper.is_overdue(FREEING)
    }

    /// Whether this process takes part in the communicators of a new generation. It does not if communicators have kept earlier generations
    /// from training, so that this one can train.
    fn offers(&self) -> bool {
        self.offer.lock().begin()
    }

    /// Notes how the making of a generation's communicators ended.
    fn note(&self, error: Option<&NcclError>) {
        let mut offer = self.offer.lock();
        offer.note(error);
        if let Some(error) = error {
            let offers = offer.is_enabled();
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
pub(crate) enum PlannedCommunicator {
    Edge(Edge),
    Group(Group),
}

impl PlannedCommunicator {
    /// The ranks, in order.
    fn ranks(&self) -> Vec<WorkerId> {
        match self {
            PlannedCommunicator::Edge(edge) => vec![edge.sender, edge.receiver],
            PlannedCommunicator::Group(group) => group.holders.clone(),
        }
    }
}

/// All communicators of a plan, in the order in which everybody makes them.
pub(crate) fn planned_communicators(plan: &Plan) -> Vec<PlannedCommunicator> {
    let edges = edges(plan).into_iter().map(PlannedCommunicator::Edge);
    edges
        .chain(groups(plan).into_iter().map(PlannedCommunicator::Group))
        .collect()
}

impl Communicators {
    /// Makes those for which there is an id.
    fn make(
        nccl: &Arc<Nccl>,
        memberships: Vec<(PlannedCommunicator, Membership)>,
        stop: &AtomicBool,
        deadline: Instant,
    ) -> Result<Communicators, NcclError> {
        let (wanted, memberships): (Vec<PlannedCommunicator>, Vec<Membership>) =
            memberships.into_iter().unzip();
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
                PlannedCommunicator::Edge(edge) => drop(own.edges.insert(edge, lane)),
                PlannedCommunicator::Group(group) => own.groups.push((group, lane)),
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

    /// The lane for summing a unit and for sending its parameters; none if that goes over the link, or if only one worker computes with it.
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

    /// Keeps a boundary until it is sent, and frees those that are. A boundary that will never be sent stays until the device no longer
    /// uses it: otherwise its memory would be lost.
    pub(crate) fn keep(&self, pending: Pending<OnDevice>) {
        let mut sent = self.sent.lock();
        sent.retain(|p| !p.has_ended());
        sent.push(pending);
    }

    /// Waits until fewer than this many boundaries are on their way.
    pub(crate) fn wait_for_room(&self, most: usize, deadline: Instant) -> Result<(), NcclError> {
        loop {
            let mut sent = self.sent.lock();
            sent.retain(|p| !p.has_ended());
            if sent.len() < most {
                return Ok(());
            }
            // A fence shows here.
            sent.iter().try_for_each(|p| p.is_done().map(|_| ()))?;
            drop(sent);
            if Instant::now() >= deadline {
                return Err(NcclError::Deadline {
                    what: "the sending of boundaries",
                });
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Lets go of all boundaries on their way, after [`Communicators::abort`]; false if the device has not by the deadline.
    pub(crate) fn release_boundaries(&self, deadline: Instant) -> bool {
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
            // Operations that run then may never end. Whoever waits for them notices, and the process ends.
            tracing::warn!(%error, "a communicator was not revoked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Kind, Tensor};
    use varuna_cuda::{Action, Element, Operation, Pinned, UniqueId, issue};
    use varuna_plan::communicators::Direction;
    use varuna_torch::MemoryMeter;

    fn libraries() -> Libraries {
        let library = std::env::current_exe().unwrap();
        Libraries::load_from(&library.with_file_name("libvaruna_fake_nccl.so")).unwrap()
    }

    /// Broadcasts the first rank's value to the second, and copies it to the host in the compute stream. Returns what each rank has read.
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
                let wanted = vec![(PlannedCommunicator::Group(group), membership)];
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
    fn device_waits_for_its_input_while_the_host_continues() {
        let ones: Vec<u8> = [1.0f32; 8].iter().flat_map(|v| v.to_ne_bytes()).collect();
        assert_eq!(brought(true), vec![ones.clone(), ones.clone()]);
        // Without the wait, the delay of the stand-in causes a wrong result: not each time, but soon.
        assert!((0..50).any(|_| brought(false)[1] != ones));
    }

    /// Begins an operation of an edge's rank, which sends or receives some numbers.
    fn begun(own: &Communicators, edge: Edge, action: Action) -> Pending<OnDevice> {
        let lane = own.edge(edge).unwrap();
        let value = Tensor::ones([1000], (Kind::Float, tch::Device::Cpu));
        let operation = Operation {
            communicator: &lane.communicator,
            action,
            memory: OnDevice::over(&value).unwrap(),
            element: Element::Float32,
            stream: &lane.stream,
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        issue(vec![operation], deadline).unwrap().remove(0)
    }

    #[test]
    fn boundaries_that_a_fence_ends_give_their_memory_back() {
        let (libraries, deadline) = (libraries(), Instant::now() + Duration::from_secs(20));
        let id = UniqueId::draw(&libraries).unwrap();
        let edge = Edge {
            sender: WorkerId(1),
            receiver: WorkerId(2),
            direction: Direction::Activation,
        };
        let made = move |nccl: &Arc<Nccl>, rank: u32| {
            let membership = Membership {
                id,
                ranks: 2,
                rank,
                blocks_max: None,
            };
            let wanted = vec![(PlannedCommunicator::Edge(edge), membership)];
            Communicators::make(nccl, wanted, &AtomicBool::new(false), deadline).unwrap()
        };
        let [sends, receives] = [0, 1].map(|_| Nccl::open(&libraries, Device::CpuSeparateMemory).unwrap());
        // The receiver receives only one message, which connects both ranks.
        let receiver = std::thread::spawn(move || {
            let own = made(&receives, 1);
            let first = begun(&own, edge, Action::Receive { from: 0 });
            first.wait(deadline).unwrap();
            own
        });
        let own = made(&sends, 0);
        let send = || begun(&own, edge, Action::Send { to: 1 });
        send().wait(deadline).unwrap();
        let receiver = receiver.join().unwrap();
        let meter = MemoryMeter::begin(Device::CpuSeparateMemory).unwrap();
        let [first, second, third] = [send(), send(), send()];
        own.keep(first);
        own.keep(second);
        let soon = Instant::now() + Duration::from_millis(20);
        assert_eq!(own.wait_for_room(3, soon), Ok(()));
        let full = own.wait_for_room(2, soon);
        assert!(matches!(full, Err(NcclError::Deadline { .. })), "{full:?}");
        own.abort();
        own.keep(third);
        assert!(own.release_boundaries(deadline));
        assert_eq!(meter.taken().now, 0);
        drop(receiver);
    }

    #[test]
    fn nccl_is_offered_after_a_peers_death_but_not_after_a_refusal() {
        let libraries = libraries();
        let failed = |code| {
            let (call, what, detail) = ("ncclCommInitRankConfig", String::new(), String::new());
            NcclError::Call {
                call,
                code,
                what,
                detail,
            }
        };
        let nccl = Nccl::open(&libraries, Device::CpuSeparateMemory).unwrap();
        nccl.note(Some(&failed(6)));
        assert!(nccl.offers(), "the peer is gone, and others come");
        nccl.note(Some(&failed(5)));
        assert!(!nccl.offers(), "NCCL would refuse again");
    }
}
