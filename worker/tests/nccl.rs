//! The engine over NCCL communicators of a stand-in in host memory: the same numbers as over a link.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic as the tests do")]

#[expect(clippy::unwrap_used, reason = "a part of tests")]
mod common;

use common::{BATCH, Case, Trained, assert_losses_close, engine, later, plan, run, run_over, shape, single};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use varuna_api::{Precision, Sharding};
use varuna_cuda::Libraries;
use varuna_plan::state::UnitNorm;
use varuna_plan::{Decision, Plan, Recompute, ScheduleKind, Shape, StateId, Unit, WorkerId};
use varuna_torch::{Device, MemoryMeter};
use varuna_worker::engine::{Engine, EngineError};
use varuna_worker::transport::data_plane::DataPlane;
use varuna_worker::transport::local::LocalMesh;
use varuna_worker::transport::nccl::{Nccl, NcclLink, NcclPlane};
use varuna_worker::transport::tcp::{Mesh, PeerEvent, of_job};
use varuna_worker::transport::{Address, EVALUATION, ElementFormat, Link, LinkError, Packet, Tag};

const STEPS: u64 = 6;

/// The stand-in, which is in the folder of this test's program.
fn libraries() -> Libraries {
    let library = std::env::current_exe()
        .unwrap()
        .with_file_name("libvaruna_fake_nccl.so");
    Libraries::load_from(&library).unwrap()
}

fn on(device: Device, precision: Precision) -> Case {
    Case {
        device,
        precision,
        evaluate: true,
        ..Case::default()
    }
}

/// A link that counts the tensors that it sends.
struct Counted {
    inner: Arc<dyn Link>,
    tensors: Arc<AtomicUsize>,
}

impl Link for Counted {
    fn send(&self, to: WorkerId, tag: Tag, packet: Packet, deadline: Instant) -> Result<(), LinkError> {
        if !matches!(tag, Tag::CommunicatorId { .. }) {
            self.tensors.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.send(to, tag, packet, deadline)
    }

    fn recv(&self, from: WorkerId, tag: Tag, deadline: Instant) -> Result<Packet, LinkError> {
        self.inner.recv(from, tag, deadline)
    }

    fn recv_any(
        &self,
        wanted: &BTreeSet<Address>,
        deadline: Instant,
    ) -> Result<Option<(Address, Packet)>, LinkError> {
        self.inner.recv_any(wanted, deadline)
    }

    fn wake(&self) {
        self.inner.wake();
    }

    fn abort(&self) {
        self.inner.abort();
    }

    fn is_aborted(&self) -> bool {
        self.inner.is_aborted()
    }
}

/// Trains over links, with communicators for the workers for which `has` returns true. Also returns the number of tensors that the links
/// have sent.
fn run_with(case: &Case, shape: &Shape, has: impl Fn(WorkerId) -> bool) -> (Trained, usize) {
    let (libraries, mesh) = (libraries(), LocalMesh::new(&shape.members()));
    let tensors = Arc::new(AtomicUsize::new(0));
    let trained = run_over(case, shape, STEPS, |me| {
        let nccl = has(me).then(|| Nccl::open(&libraries, case.device).unwrap());
        let inner = Arc::new(Counted {
            inner: mesh.link(me),
            tensors: Arc::clone(&tensors),
        });
        Arc::new(NcclLink::new(me, inner, nccl))
    });
    (trained, tensors.load(Ordering::Relaxed))
}

/// Shapes whose units have at most two holders: a sum of two numbers does not depend on the order.
fn shapes(case: &Case) -> Vec<Shape> {
    let mut interleaved = shape(case, &[&[1, 1, 2, 2]], &[8], 2);
    interleaved.schedule.kind = ScheduleKind::Interleaved { chunks: 2 };
    for (stage, worker) in interleaved.pipelines[0].stages.iter_mut().zip([1, 2, 1, 2]) {
        stage.worker = WorkerId(worker);
    }
    let mut recomputed = shape(case, &[&[2, 4], &[6]], &[5, 3], 2);
    recomputed.schedule.recompute = Recompute::Full;
    vec![
        single(case),
        shape(case, &[&[2, 4]], &[8], 2),
        interleaved,
        recomputed,
    ]
}

#[test]
fn a_step_over_nccl_has_the_bits_of_one_over_the_link() {
    for precision in [Precision::Fp32, Precision::Bf16] {
        for shape in shapes(&on(Device::CpuSeparateMemory, precision)) {
            let case = Case {
                // With two pipelines it would have three holders.
                tied: shape.pipelines.len() == 1,
                ..on(Device::CpuSeparateMemory, precision)
            };
            let (over_nccl, tensors) = run_with(&case, &shape, |_| true);
            assert_eq!(
                over_nccl,
                run(&case, &shape, STEPS),
                "{precision:?} {}",
                shape.summary()
            );
            assert_eq!(tensors, 0, "all tensors went from device to device");
        }
    }
}

#[test]
fn sums_of_three_holders_are_equal_on_all() {
    let case = on(Device::CpuSeparateMemory, Precision::Fp32);
    let shape = shape(&case, &[&[6], &[6], &[3, 3]], &[3, 3, 2], 2);
    let (over_nccl, tensors) = run_with(&case, &shape, |_| true);
    let over_link = run(&case, &shape, STEPS);
    assert_eq!(tensors, 0);
    for (a, b) in over_nccl.losses.iter().zip(&over_link.losses) {
        assert!((a - b).abs() < 1e-5, "{a} and {b}");
    }
}

/// Pipelines of one stage each.
fn side_by_side(case: &Case, workers: u64) -> Shape {
    let depths: Vec<&[u32]> = (0..workers).map(|_| [6].as_slice()).collect();
    let samples: Vec<u64> = (0..workers)
        .map(|i| (i + 1) * BATCH / workers - i * BATCH / workers)
        .collect();
    shape(case, &depths, &samples, 1)
}

#[test]
fn shared_state_is_reduced_and_gathered_on_devices() {
    for (precision, tied, workers, tolerance) in [
        (Precision::Fp32, true, 2, 1e-5),
        (Precision::Fp32, true, 3, 1e-5),
        (Precision::Fp32, false, 4, 1e-5),
        (Precision::Fp32, true, 5, 1e-5),
        (Precision::Bf16, true, 4, 1e-2),
        (Precision::Bf16, false, 8, 1e-2),
    ] {
        let case = Case {
            tied,
            sharding: Sharding::Zero1,
            ..on(Device::CpuSeparateMemory, precision)
        };
        let shape = side_by_side(&case, workers);
        let (over_nccl, tensors) = run_with(&case, &shape, |_| true);
        let what = format!("{precision:?}, tied {tied}, {workers} pipelines");
        assert_eq!(
            tensors, 0,
            "{what}: no gradient and no parameter went over the link"
        );
        let over_link = run(&case, &shape, STEPS);
        assert_losses_close(&over_link, &over_nccl, tolerance, &what);
        assert_eq!(over_link.evaluations.len(), over_nccl.evaluations.len(), "{what}");
        for ((at, a), (_, b)) in over_link.evaluations.iter().zip(&over_nccl.evaluations) {
            assert!(
                (a - b).abs() <= tolerance * a.abs(),
                "{what}: evaluation at {at}: {a} and {b}"
            );
        }
    }
    // Pipelines with different cuts: a stage has several communicators, and receives a boundary.
    let case = Case {
        sharding: Sharding::Zero1,
        ..on(Device::CpuSeparateMemory, Precision::Fp32)
    };
    let shape = shape(&case, &[&[1, 3, 2], &[4, 2], &[2, 2, 2], &[6]], &[2, 2, 3, 1], 1);
    let (over_nccl, tensors) = run_with(&case, &shape, |_| true);
    assert_eq!(tensors, 0);
    assert_losses_close(&run(&case, &shape, STEPS), &over_nccl, 1e-5, "uneven cuts");
    // Without a communicator for a unit, its parameters are sent in pieces over the link.
    let (mixed, some) = run_with(&case, &shape, |me| me != WorkerId(2));
    assert!(some > 0);
    assert_losses_close(&over_nccl, &mixed, 1e-5, "uneven cuts, one worker without NCCL");
}

#[test]
fn what_one_worker_has_no_nccl_for_goes_over_the_link() {
    let case = on(Device::CpuSeparateMemory, Precision::Fp32);
    let shape = shape(&case, &[&[1, 3, 2], &[4, 2]], &[3, 5], 2);
    let reference = run(&case, &shape, STEPS);
    let close = |trained: &Trained| {
        let pairs = trained.losses.iter().zip(&reference.losses);
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max) < 1e-5
    };
    let (without, all) = run_with(&case, &shape, |_| false);
    assert_eq!(without, reference);
    let (mixed, some) = run_with(&case, &shape, |me| me != WorkerId(2));
    assert!(close(&mixed));
    assert!(0 < some && some < all, "{some} of {all} tensors");
}

#[test]
fn fence_ends_a_step_without_its_peer() {
    // With undivided state it waits for the first sum, with sharded state for the first parameters.
    for (sharding, workers) in [(Sharding::Off, 2), (Sharding::Zero1, 3)] {
        let case = Case {
            sharding,
            ..on(Device::CpuSeparateMemory, Precision::Fp32)
        };
        let together = plan(&case, &side_by_side(&case, workers));
        let error = trains_without_peers(&case, &together, later, |link| link.abort());
        assert_eq!(error, EngineError::Link(LinkError::Aborted));
    }
}

/// If a peer does not connect in time, this is not a fault of this worker's device, and its process must not end.
#[test]
fn deadline_ends_a_step_without_its_peer() {
    for (sharding, workers) in [(Sharding::Off, 2), (Sharding::Zero1, 3)] {
        let case = Case {
            sharding,
            ..on(Device::CpuSeparateMemory, Precision::Fp32)
        };
        let together = plan(&case, &side_by_side(&case, workers));
        let deadline = || Instant::now() + Duration::from_secs(2);
        let error = trains_without_peers(&case, &together, deadline, |_| {});
        assert!(
            matches!(error, EngineError::Link(LinkError::Deadline { .. })),
            "{error:?}"
        );
    }
}

/// One worker of the plan begins a step, `meanwhile` is called with its link, and then it trains alone. The other workers meet the ranks,
/// and do nothing after that. Returns the error of the step.
fn trains_without_peers(
    case: &Case,
    together: &Plan,
    deadline: impl FnOnce() -> Instant,
    meanwhile: impl FnOnce(&NcclLink),
) -> EngineError {
    let one = WorkerId(1);
    let (libraries, mesh) = (libraries(), LocalMesh::new(together.members()));
    let link = |me: WorkerId| {
        let nccl = Nccl::open(&libraries, case.device).unwrap();
        Arc::new(NcclLink::new(me, mesh.link(me), Some(nccl)))
    };
    let own = link(one);
    let others = together.members().iter().filter(|worker| **worker != one);
    let others: Vec<_> = others
        .map(|worker| {
            let (met, plan) = (link(*worker), together.clone());
            // The link is returned, because its communicators must live longer than the step.
            std::thread::spawn(move || (met.communicators(&plan, later()).unwrap().is_some(), met))
        })
        .collect();
    let mut trains = engine(case, one);
    for unit in together.units(one) {
        trains.initialise(unit).unwrap();
    }
    let running = Arc::clone(&own) as Arc<dyn Link>;
    let (begun, deadline) = (together.clone(), deadline());
    let step = std::thread::spawn(move || {
        let failure = trains.run_step(&begun, StateId::INITIAL.step, &running, deadline);
        (trains, failure.unwrap_err())
    });
    let others: Vec<_> = others.into_iter().map(|other| other.join().unwrap()).collect();
    assert!(others.iter().all(|(made, _)| *made));
    meanwhile(&own);
    let (mut trains, failure) = step.join().unwrap();
    assert!(failure.prepared.is_empty(), "no sum had all its parts");
    let alone = plan(case, &single(case));
    let mut fresh = engine(case, one);
    for unit in alone.units(one) {
        if !trains.held().contains(&unit) {
            trains.initialise(unit).unwrap();
        }
        fresh.initialise(unit).unwrap();
    }
    assert_eq!(running_alone(case, &mut trains), running_alone(case, &mut fresh));
    failure.error
}

/// The norms of the units in a step of the whole model on one worker, and the state id after it.
fn running_alone(case: &Case, engine: &mut Engine) -> (Vec<(Unit, UnitNorm)>, StateId) {
    let (plan, me) = (plan(case, &single(case)), WorkerId(1));
    let link = LocalMesh::new(&[me]).link(me);
    let at = StateId::INITIAL;
    let report = engine.run_step(&plan, at.step, &link, later()).unwrap();
    let parts: Vec<_> = report.prepared.iter().map(|(_, norm)| *norm).collect();
    let decision = Decision::conclude(at, plan.generation, &parts, None);
    engine.apply(&decision, &plan.units(me)).unwrap();
    (report.prepared, decision.id)
}

#[test]
fn workers_agree_on_communicators_of_a_generation() {
    let case = on(Device::CpuSeparateMemory, Precision::Bf16);
    let shape = shape(&case, &[&[2, 4]], &[8], 2);
    let generation = plan(&case, &shape).generation;
    let (libraries, members) = (libraries(), shape.members());
    let (tell, connected) = std::sync::mpsc::channel();
    let meshes: Vec<Mesh> = members
        .iter()
        .map(|me| {
            let tell = tell.clone();
            let told = move |event| {
                if matches!(event, PeerEvent::Connected { .. }) {
                    let _ = tell.send(());
                }
            };
            let mesh = Mesh::listen(*me, "127.0.0.1:0", told).unwrap();
            mesh.limit(of_job(
                (&case.model().into(), case.layout()),
                BATCH,
                ElementFormat::BFloat16,
                case.rule.moments(),
            ));
            mesh
        })
        .collect();
    let addresses: Vec<String> = meshes.iter().map(|m| m.address().to_string()).collect();
    let planes: BTreeMap<WorkerId, NcclPlane<Mesh>> = members
        .iter()
        .zip(meshes)
        .map(|(me, mesh)| {
            let nccl = Nccl::open(&libraries, case.device).unwrap();
            (*me, NcclPlane::new(mesh, *me, Some(nccl)))
        })
        .collect();
    for (me, plane) in &planes {
        plane.open(generation, "secret");
        let peers = members.iter().zip(&addresses).filter(|(peer, _)| *peer != me);
        peers.for_each(|(peer, address)| plane.dial(generation, *peer, address));
    }
    members
        .iter()
        .for_each(|_| connected.recv_timeout(Duration::from_secs(60)).unwrap());
    let trained = run_over(&case, &shape, STEPS, |me| planes[&me].link(generation).unwrap());
    assert_eq!(trained, run(&case, &shape, STEPS));
    for (me, plane) in &planes {
        let link = plane.link(generation).unwrap();
        let made = link.communicators(&plan(&case, &shape), later()).unwrap();
        assert!(made.is_some(), "{me} used them");
        plane.close(generation);
        assert!(plane.link(generation).is_none() && !plane.is_stuck());
        let sent = link.send(
            WorkerId(9),
            Tag::CommunicatorId {
                communicator: 0,
                round: 0,
            },
            vec![].into(),
            later(),
        );
        assert_eq!(sent, Err(LinkError::Aborted));
    }
}

/// Runs a test again in a process whose stand-in hangs in this operation: a fault applies to a whole process.
fn run_again_with_hang(test: &str, operation: u32) {
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    let output = again
        .args(["--exact", test])
        .env(FAULT, format!("hang:{operation}"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

const FAULT: &str = "VARUNA_FAKE_NCCL_FAULT";

/// The error of a worker's step, and what it has prepared.
type Ended = (Option<EngineError>, Vec<(Unit, UnitNorm)>);

/// Runs one step of all workers of a plan.
fn step_of_all(case: &Case, plan: &Plan, libraries: Option<&Libraries>, deadline: Instant) -> Vec<Ended> {
    let mesh = LocalMesh::new(plan.members());
    let begin = |me: &WorkerId| {
        let (me, plan, inner) = (*me, plan.clone(), mesh.link(*me));
        let nccl = libraries.map(|libraries| Nccl::open(libraries, case.device).unwrap());
        let link: Arc<dyn Link> = Arc::new(NcclLink::new(me, inner, nccl));
        let mut engine = engine(case, me);
        std::thread::spawn(move || {
            for unit in plan.units(me) {
                engine.initialise(unit).unwrap();
            }
            match engine.run_step(&plan, StateId::INITIAL.step, &link, deadline) {
                Ok(report) => (None, report.prepared),
                Err(failure) => (Some(failure.error), failure.prepared),
            }
        })
    };
    let threads: Vec<_> = plan.members().iter().map(begin).collect();
    threads.into_iter().map(|t| t.join().unwrap()).collect()
}

fn is_late(error: Option<&EngineError>) -> bool {
    matches!(error, Some(EngineError::Link(LinkError::Deadline { .. })))
}

#[test]
fn only_the_sums_that_were_done_before_a_hang_are_prepared() {
    if std::env::var_os(FAULT).is_none() {
        // Two workers with six units: the first four of their operations are the sums of the last two units.
        run_again_with_hang("only_the_sums_that_were_done_before_a_hang_are_prepared", 5);
        return;
    }
    let case = Case {
        tied: false,
        ..on(Device::CpuSeparateMemory, Precision::Fp32)
    };
    let plan = plan(&case, &shape(&case, &[&[6], &[6]], &[4, 4], 2));
    let whole = step_of_all(&case, &plan, None, later());
    let soon = Instant::now() + Duration::from_secs(4);
    let found = step_of_all(&case, &plan, Some(&libraries()), soon);
    for (worker, (error, prepared)) in found.into_iter().enumerate() {
        assert!(is_late(error.as_ref()), "{error:?}");
        assert_eq!(prepared, whole[worker].1[4..], "worker {worker}");
    }
}

#[test]
fn a_sum_whose_second_holder_has_not_got_it_is_not_prepared() {
    if std::env::var_os(FAULT).is_none() {
        // Three workers with six units: 18 operations send parameters, the next three sum the parts of the last unit, and this is the first
        // operation that sends such a sum to its second holder.
        run_again_with_hang("a_sum_whose_second_holder_has_not_got_it_is_not_prepared", 22);
        return;
    }
    let case = Case {
        tied: false,
        sharding: Sharding::Zero1,
        ..on(Device::CpuSeparateMemory, Precision::Fp32)
    };
    let plan = plan(&case, &side_by_side(&case, 3));
    let soon = Instant::now() + Duration::from_secs(4);
    for (error, prepared) in step_of_all(&case, &plan, Some(&libraries()), soon) {
        assert!(is_late(error.as_ref()), "{error:?}");
        assert!(prepared.is_empty(), "{prepared:?}");
    }
}

/// All workers of a plan run a step, which connects them. Then one of them runs it again alone, until the deadline. Returns its error, and
/// the bytes of tensors that it has allocated and not freed.
fn again_without_peers(case: &Case, plan: &Plan, alone: WorkerId) -> (EngineError, u64) {
    let (libraries, mesh) = (libraries(), LocalMesh::new(plan.members()));
    let begin = |me: &WorkerId| {
        let (me, plan, inner) = (*me, plan.clone(), mesh.link(*me));
        let nccl = Nccl::open(&libraries, case.device).unwrap();
        let link: Arc<dyn Link> = Arc::new(NcclLink::new(me, inner, Some(nccl)));
        let mut engine = engine(case, me);
        std::thread::spawn(move || {
            let at = StateId::INITIAL.step;
            for unit in plan.units(me) {
                engine.initialise(unit).unwrap();
            }
            engine.run_step(&plan, at, &link, later()).unwrap();
            if me != alone {
                // Its communicators must live longer than the other worker's step.
                return (link, None);
            }
            let meter = MemoryMeter::begin(Device::CpuSeparateMemory).unwrap();
            let soon = Instant::now() + Duration::from_millis(200);
            let failure = engine.run_step(&plan, at, &link, soon).unwrap_err();
            (link, Some((failure.error, meter.taken().now)))
        })
    };
    let threads: Vec<_> = plan.members().iter().map(begin).collect();
    let ended: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    ended.into_iter().find_map(|(_, found)| found).unwrap()
}

#[test]
fn ended_step_returns_the_memory_of_its_receives() {
    let case = Case {
        evaluate: false,
        ..on(Device::CpuSeparateMemory, Precision::Fp32)
    };
    // One micro-batch, and so one boundary.
    let plan = plan(&case, &shape(&case, &[&[2, 4]], &[BATCH], 8));
    let boundary = 4 * BATCH * 16 * 32;
    let (error, taken) = again_without_peers(&case, &plan, WorkerId(2));
    assert!(is_late(Some(&error)), "{error:?}");
    assert!(taken < boundary / 2, "{taken} of {boundary} bytes");
}

#[test]
fn evaluation_does_not_run_ahead_of_a_blocked_stage() {
    // Six micro-batches are evaluated before the first one is trained.
    let case = on(Device::CpuSeparateMemory, Precision::Fp32);
    let plan = plan(&case, &shape(&case, &[&[2, 4]], &[BATCH], 1));
    let (error, _) = again_without_peers(&case, &plan, WorkerId(1));
    let EngineError::Link(LinkError::Deadline { tag, .. }) = &error else {
        panic!("{error:?}");
    };
    let Tag::Activation { micro_batch, .. } = *tag else {
        panic!("{tag:?}");
    };
    assert!(micro_batch >= EVALUATION, "{micro_batch}");
}
