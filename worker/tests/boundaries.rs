//! What is sent across the boundaries between stages: the format of the numbers, the number of bytes, and what the receiver refuses.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic as the tests do")]

#[expect(clippy::unwrap_used, reason = "a part of tests")]
mod common;

use common::{BATCH, Case, engine, later, plan, run, run_over, shape};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use varuna_api::Precision;
use varuna_plan::{Generation, Shape, Step, WorkerId};
use varuna_worker::engine::EngineError;
use varuna_worker::numerics::Numerics;
use varuna_worker::transport::local::LocalMesh;
use varuna_worker::transport::tcp::{Mesh, PeerEvent, of_job};
use varuna_worker::transport::{Address, ElementFormat, Link, LinkError, Packet, Tag};

const STEPS: u64 = 3;
const ONE: WorkerId = WorkerId(1);
const TWO: WorkerId = WorkerId(2);

fn with(precision: Precision) -> Case {
    Case {
        precision,
        evaluate: true,
        ..Case::default()
    }
}

/// What was sent, by kind of message and format: (elements, bytes).
type Sent = BTreeMap<(&'static str, ElementFormat), (usize, usize)>;

/// A link that counts what it sends.
struct Metered {
    link: Arc<dyn Link>,
    sent: Arc<Mutex<Sent>>,
}

impl Link for Metered {
    fn send(&self, to: WorkerId, tag: Tag, packet: Packet, deadline: Instant) -> Result<(), LinkError> {
        let kind = match tag {
            Tag::Activation { .. } => "activation",
            Tag::Gradient { .. } => "gradient",
            Tag::Ring { .. } => "ring",
            Tag::Parameters { .. } => "parameters",
            Tag::CommunicatorId { .. } => "communicator id",
        };
        let mut sent = self.sent.lock().unwrap();
        let (elements, bytes) = sent.entry((kind, packet.format())).or_default();
        *elements += packet.elements();
        *bytes += packet.bytes().len();
        drop(sent);
        self.link.send(to, tag, packet, deadline)
    }
    fn recv(&self, from: WorkerId, tag: Tag, deadline: Instant) -> Result<Packet, LinkError> {
        self.link.recv(from, tag, deadline)
    }
    fn recv_any(
        &self,
        wanted: &BTreeSet<Address>,
        deadline: Instant,
    ) -> Result<Option<(Address, Packet)>, LinkError> {
        self.link.recv_any(wanted, deadline)
    }
    fn wake(&self) {
        self.link.wake();
    }
    fn abort(&self) {
        self.link.abort();
    }
    fn is_aborted(&self) -> bool {
        self.link.is_aborted()
    }
}

#[test]
fn boundaries_use_the_compute_format_and_rings_fp32() {
    let sent_with = |precision| {
        let case = with(precision);
        let plan = shape(&case, &[&[2, 3, 1], &[4, 2]], &[4, 4], 2);
        let (mesh, sent) = (LocalMesh::new(&plan.members()), Arc::default());
        run_over(&case, &plan, STEPS, |me| {
            let sent = Arc::clone(&sent);
            Arc::new(Metered {
                link: mesh.link(me),
                sent,
            })
        });
        std::mem::take(&mut *sent.lock().unwrap())
    };
    let (wide, narrow) = (sent_with(Precision::Fp32), sent_with(Precision::Bf16));
    // Two samples of 16 tokens of width 32, twice in a step of each pipeline; three boundaries; and three evaluated samples of each
    // pipeline before the first step.
    let sample = 16 * 32;
    let (activations, gradients) = (
        (3 * 4 * STEPS as usize + 3 * 3) * sample,
        3 * 4 * STEPS as usize * sample,
    );
    for (kind, elements) in [("activation", activations), ("gradient", gradients)] {
        let of = |sent: &Sent, format| sent[&(kind, format)];
        assert_eq!(of(&wide, ElementFormat::Float32), (elements, 4 * elements));
        assert_eq!(of(&narrow, ElementFormat::BFloat16), (elements, 2 * elements));
    }
    let ring = ("ring", ElementFormat::Float32);
    assert!(wide[&ring].0 > 0 && wide[&ring].1 == 4 * wide[&ring].0);
    assert_eq!(wide[&ring], narrow[&ring]);
    assert_eq!((wide.len(), narrow.len()), (3, 3), "nothing else was sent");
}

/// The workers of a job, connected to each other over sockets.
fn connected(case: &Case, shape: &Shape) -> BTreeMap<WorkerId, (Mesh, Receiver<PeerEvent>)> {
    let generation = Generation(1);
    let boundary = Numerics::from(case.precision).boundary();
    let listening = shape.members().into_iter().map(|me| {
        let (tell, events) = channel();
        let mesh = Mesh::listen(me, "127.0.0.1:0", move |event| drop(tell.send(event))).unwrap();
        mesh.limit(of_job(
            (&case.model().into(), case.layout()),
            BATCH,
            boundary,
            case.rule.moments(),
        ));
        mesh.open(generation, "secret");
        (me, (mesh, events))
    });
    let all: BTreeMap<WorkerId, (Mesh, Receiver<PeerEvent>)> = listening.collect();
    for (me, (mesh, _)) in &all {
        for (peer, (other, _)) in all.iter().filter(|(peer, _)| *peer != me) {
            mesh.dial(generation, *peer, &other.address().to_string());
        }
    }
    for (_, events) in all.values() {
        for _ in 1..all.len() {
            let event = events.recv_timeout(Duration::from_secs(60)).unwrap();
            assert!(matches!(event, PeerEvent::Connected { .. }), "{event:?}");
        }
    }
    all
}

#[test]
fn sockets_carry_each_precision_to_the_same_bits_as_memory() {
    for precision in [Precision::Fp32, Precision::Bf16] {
        let case = with(precision);
        let plan = shape(&case, &[&[1, 3, 2], &[4, 2]], &[3, 5], 2);
        let workers = connected(&case, &plan);
        let over_sockets = run_over(&case, &plan, STEPS, |me| {
            workers[&me].0.link(Generation(1)).unwrap()
        });
        assert_eq!(over_sockets, run(&case, &plan, STEPS), "{precision:?}");
    }
}

#[test]
fn wrong_boundary_ends_the_step_and_names_its_sender() {
    let case = with(Precision::Bf16);
    let case = Case {
        evaluate: false,
        ..case
    };
    let plan = plan(&case, &shape(&case, &[&[4, 2]], &[8], 8));
    let tag = Tag::Activation {
        stage: 1,
        step: Step(0),
        micro_batch: 0,
    };
    let elements = 8 * 16 * 32;
    for (packet, said) in [
        (
            Packet::Float32(vec![0.0; elements]),
            "has 4096 elements in float32",
        ),
        (
            Packet::BFloat16(vec![0; elements - 1]),
            "has 4095 elements in bfloat16",
        ),
        // A whole number of samples, but not the size of this micro-batch.
        (
            Packet::BFloat16(vec![0; elements / 2]),
            "has 2048 elements in bfloat16",
        ),
        (Packet::BFloat16(vec![]), "has 0 elements in bfloat16"),
    ] {
        let mesh = LocalMesh::new(&[ONE, TWO]);
        mesh.link(ONE).send(TWO, tag, packet, later()).unwrap();
        let mut engine = engine(&case, TWO);
        for unit in plan.units(TWO) {
            engine.initialise(unit).unwrap();
        }
        let failure = engine
            .run_step(&plan, Step(0), &mesh.link(TWO), later())
            .unwrap_err();
        assert!(
            matches!(
                failure.error,
                EngineError::Link(LinkError::Unfit { from: ONE, .. })
            ),
            "{:?}",
            failure.error
        );
        let text = failure.error.to_string();
        assert!(
            text.contains(said) && text.ends_with("4096 in bfloat16 are needed"),
            "{text}"
        );
    }
}

#[test]
fn wrong_ring_part_ends_the_step_and_names_its_sender() {
    use varuna_plan::Unit;
    use varuna_worker::transport::ring::Reducer;
    for packet in [Packet::BFloat16(vec![0; 4]), Packet::Float32(vec![0.0; 5])] {
        let mesh = LocalMesh::new(&[ONE, TWO]);
        let tag = Tag::Ring {
            step: Step(0),
            unit: Unit(1),
            round: 0,
        };
        mesh.link(TWO).send(ONE, tag, packet, later()).unwrap();
        let mut reducer = Reducer::start(mesh.link(ONE), ONE).unwrap();
        reducer.begin(Step(0), Unit(1), vec![ONE, TWO], vec![1.0f32; 8], later());
        let error = reducer.wait().unwrap_err();
        assert!(
            matches!(
                error,
                LinkError::Unfit {
                    from: TWO,
                    expected: 4,
                    ..
                }
            ),
            "{error}"
        );
    }
}
