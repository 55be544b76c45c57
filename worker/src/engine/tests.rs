use super::*;
use crate::agent::engine_thread::{Command, Event, Reader, Recipient, start};
use crate::backend::Backend;
use crate::memory::SpareMemory;
use crate::numerics::Numerics;
use crate::state::ReadError;
use crate::transport::local::LocalMesh;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use varuna_api::training::default_decaying;
use varuna_api::{LearningRate, Optimizer, Schedule, Sharding, Training, UpdateRule};
use varuna_model::{Transformer, gpt2};
use varuna_plan::measured_step::PIPELINES_MAX;
use varuna_plan::{
    Decision, LossScaling, OptimizerProgress, Pipeline, Prediction, Recompute, SampleRange, ScheduleKind,
    ScheduleSpec, Shape, Stage, StateId, WorkerId,
};
use varuna_protocol::Lack;
use varuna_torch::{Device, Kernels};

const ME: WorkerId = WorkerId(1);

struct Counting;

impl Samples for Counting {
    fn train(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        for (i, token) in (0..).zip(tokens.iter_mut()) {
            *token = (i64::try_from(index).unwrap() + i) % 30;
        }
        Ok(())
    }
    fn held_out(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        self.train(index, tokens)
    }
    fn held_out_len(&self) -> u64 {
        0
    }
}

pub(super) fn engine(device: Device) -> Engine {
    let model = Transformer {
        layers: 1,
        hidden_size: 16,
        heads: 2,
        sequence_length: 8,
        vocabulary_size: 30,
        ..gpt2::SMALL
    };
    let training = Training {
        global_batch_size: 2,
        steps: 10,
        seed: 1,
        optimizer: Optimizer {
            rule: UpdateRule::Adamw {
                beta1: 0.9,
                beta2: 0.95,
                epsilon: 1e-8,
            },
            weight_decay: 0.1,
            weight_decay_on: default_decaying(),
            clip_norm: None,
            sharding: Sharding::Off,
        },
        learning_rate: LearningRate {
            peak: 1e-3,
            min: 1e-4,
            warmup_steps: 1,
            decay_steps: 10,
            schedule: Schedule::Cosine,
        },
        evaluation: None,
        loss_scaling: LossScaling::OFF,
        skip_limit: varuna_api::training::DEFAULT_SKIP_LIMIT,
        packing: varuna_api::Packing::default(),
        masking: None,
    };
    Engine::new(EngineConfig {
        me: ME,
        model: model.into(),
        training,
        backend: Backend {
            device,
            spare: SpareMemory::of(device, 1),
            ..Backend::of_processor(Numerics::FP32)
        },
        samples: Arc::new(Counting),
    })
}

pub(super) fn alone(engine: &Engine) -> Plan {
    let layout = engine.config.layout();
    let shape = Shape {
        pipelines: vec![Pipeline {
            stages: vec![Stage {
                worker: ME,
                segments: layout.whole(),
                recompute: None,
            }],
            samples: SampleRange { start: 0, end: 2 },
        }],
        spares: vec![],
        micro_batch_size: 1,
        schedule: ScheduleSpec {
            kind: ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 },
            recompute: Recompute::None,
        },
        predicted: Prediction::default(),
    };
    Plan::first(layout, shape)
}

#[test]
fn gradient_without_other_holders_stays_on_the_device() {
    let mut engine = engine(Device::CpuSeparateMemory);
    let plan = alone(&engine);
    for unit in plan.units(ME) {
        engine.initialise(unit).unwrap();
    }
    let link = LocalMesh::new(&[ME]).link(ME);
    let deadline = Instant::now() + Duration::from_secs(60);
    let report = engine
        .run_step(&plan, StateId::INITIAL.step, &link, deadline)
        .unwrap();
    assert_eq!(report.prepared.len(), plan.units(ME).len());
    for (unit, buffers) in &engine.units {
        let host = buffers.gradients().unwrap().memory().lease_unread().unwrap();
        assert!(
            host.copy(0..host.len()).iter().all(|v| *v == 0.0),
            "unit {unit} was copied"
        );
        drop(host);
        // What a copy to the host would have contained.
        let copied = buffers.gradients().unwrap().memory().lease().unwrap();
        let is_zero = copied.copy(0..copied.len()).iter().all(|v| *v == 0.0);
        // A tied head has a norm and no table, so all units here have parameters.
        assert!(!is_zero, "unit {unit} has a gradient");
    }
}

#[test]
fn device_copy_is_unchanged_while_the_optimizer_runs() {
    let mut engine = engine(Device::CpuSeparateMemory);
    // The optimizer does not wait.
    engine.reader_timeouts = ReaderTimeouts {
        asks_after: Duration::ZERO,
        ends_after: Duration::ZERO,
    };
    let plan = alone(&engine);
    let units = plan.units(ME);
    for unit in &units {
        engine.initialise(*unit).unwrap();
    }
    let snapshots: Vec<_> = units.iter().map(|unit| engine.snapshot(*unit).unwrap()).collect();
    let before: Vec<_> = units.iter().map(|unit| engine.export(*unit).unwrap()).collect();
    let link = LocalMesh::new(&[ME]).link(ME);
    let deadline = Instant::now() + Duration::from_secs(60);
    let report = engine
        .run_step(&plan, StateId::INITIAL.step, &link, deadline)
        .unwrap();
    let parts: Vec<_> = report.prepared.iter().map(|(_, norm)| *norm).collect();
    let decision = Decision::conclude(StateId::INITIAL, plan.generation, &parts, None);
    engine.apply(&decision, &units).unwrap();
    for ((unit, snapshot), before) in units.iter().zip(snapshots).zip(before) {
        assert_ne!(engine.export(*unit).unwrap(), before, "unit {unit} was changed");
        assert_eq!(snapshot.copy().unwrap(), before, "unit {unit}");
    }
}

/// An engine on the CPU that has run its first step, and the decision to apply.
fn after_a_step(reader_timeouts: ReaderTimeouts) -> (Engine, Vec<Unit>, Decision) {
    after_a_step_on(Device::Cpu, reader_timeouts)
}

/// The same on a device.
fn after_a_step_on(device: Device, reader_timeouts: ReaderTimeouts) -> (Engine, Vec<Unit>, Decision) {
    let mut engine = engine(device);
    engine.reader_timeouts = reader_timeouts;
    let plan = alone(&engine);
    let units = plan.units(ME);
    for unit in &units {
        engine.initialise(*unit).unwrap();
    }
    let link = LocalMesh::new(&[ME]).link(ME);
    let deadline = Instant::now() + Duration::from_secs(60);
    let report = engine
        .run_step(&plan, StateId::INITIAL.step, &link, deadline)
        .unwrap();
    let parts: Vec<_> = report.prepared.iter().map(|(_, norm)| *norm).collect();
    let decision = Decision::conclude(StateId::INITIAL, plan.generation, &parts, None);
    (engine, units, decision)
}

/// The event with which an engine's thread answers the decision. The agent ends after a fatal error, so it uses nothing else of the engine.
fn applied(engine: Engine, decision: Decision, units: Vec<Unit>) -> Event {
    let (emit, events) = std::sync::mpsc::channel();
    let commands = start(engine, 1, move |event| emit.send(event).unwrap()).unwrap();
    commands.send(Command::Apply { decision, units }).unwrap();
    events.recv_timeout(Duration::from_secs(60)).unwrap()
}

#[test]
fn unreleased_state_ends_the_worker_at_the_deadline() {
    let soon = ReaderTimeouts {
        asks_after: Duration::from_millis(10),
        ends_after: Duration::from_millis(20),
    };
    let (engine, units, decision) = after_a_step(soon);
    let read = units[0];
    let reader = engine.snapshot(read).unwrap();
    let held = reader.range(0, reader.elements()).unwrap();
    let Event::Fatal(why) = applied(engine, decision, units) else {
        panic!("the optimizer changed a state that is read")
    };
    assert_eq!(why, EngineError::StillRead(read));
    assert_eq!(reader.range(0, reader.elements()).unwrap(), held);
}

/// A copy of hundreds of gigabytes takes longer than an optimizer may wait, on all workers and for each checkpoint.
#[test]
fn slow_reader_is_asked_to_stop() {
    let patient = ReaderTimeouts {
        asks_after: Duration::from_millis(20),
        ends_after: Duration::from_secs(50),
    };
    let (engine, units, decision) = after_a_step(patient);
    // Both readers are slow, with different units. The reader for which the optimizer waits first may be behind the other one in a queue.
    let readers = [units[0], units[1]].map(|unit| engine.snapshot(unit).unwrap());
    let reading = std::thread::spawn(move || {
        let [first, second] = readers;
        while second.digest().is_ok() {}
        assert_eq!(second.digest(), Err(ReadError::LeftOff));
        drop(second);
        assert!(first.must_stop());
        assert_eq!(first.copy(), Err(ReadError::LeftOff));
    });
    let before = engine.snapshot(units[2]).unwrap();
    assert!(!before.must_stop());
    drop(before);
    let event = applied(engine, decision, units);
    assert!(matches!(event, Event::Applied { .. }), "a reader was waited for");
    reading.join().unwrap();
}

#[test]
fn later_reader_is_not_affected_by_the_stop() {
    let at_once = ReaderTimeouts {
        asks_after: Duration::ZERO,
        ends_after: Duration::from_secs(50),
    };
    let (mut engine, units, decision) = after_a_step(at_once);
    let slow = engine.snapshot(units[0]).unwrap();
    let reading = std::thread::spawn(move || while slow.digest().is_ok() {});
    engine.apply(&decision, &units).unwrap();
    reading.join().unwrap();
    for unit in units {
        assert!(engine.snapshot(unit).unwrap().digest().is_ok(), "unit {unit}");
    }
}

#[test]
fn a_state_that_a_connection_reads_has_no_copy_on_the_device() {
    let nobody_waits = ReaderTimeouts {
        asks_after: Duration::ZERO,
        ends_after: Duration::ZERO,
    };
    for (reader, is_read_itself) in [(Reader::Connection, true), (Reader::Copy, false)] {
        let (engine, units, decision) = after_a_step_on(Device::CpuSeparateMemory, nobody_waits);
        let (emit, events) = std::sync::mpsc::channel();
        let commands = start(engine, 1, move |event| emit.send(event).unwrap()).unwrap();
        let next = || events.recv_timeout(Duration::from_secs(60)).unwrap();
        let unit = units[0];
        let recipient = Recipient {
            generation: Generation(1),
            to: WorkerId(2),
            unit,
        };
        let export = Command::Export {
            recipient,
            id: StateId::INITIAL,
            decision: None,
            reader,
        };
        commands.send(export).unwrap();
        let Event::Exported { snapshot, .. } = next() else {
            panic!("the state is not given to the peer")
        };
        commands.send(Command::Apply { decision, units }).unwrap();
        match next() {
            Event::Fatal(why) => assert_eq!((why, is_read_itself), (EngineError::StillRead(unit), true)),
            Event::Applied { .. } => assert!(!is_read_itself, "it was copied for {reader:?}"),
            _ => panic!("the engine answers to another command"),
        }
        drop(snapshot);
    }
}

#[test]
fn what_a_segment_was_computed_with_goes_with_its_state() {
    let mut engine = engine(Device::Cpu);
    engine.config.training.optimizer.sharding = Sharding::Zero1;
    let plan = alone(&engine);
    let units = plan.units(ME);
    for unit in &units {
        engine.initialise(*unit).unwrap();
    }
    // What the ranges were made from is on the device, too.
    assert!(engine.initial.is_some());
    engine.free(&units).unwrap();
    assert!(engine.initial.is_none());
    let link = LocalMesh::new(&[ME]).link(ME);
    let deadline = Instant::now() + Duration::from_secs(60);
    engine
        .run_step(&plan, StateId::INITIAL.step, &link, deadline)
        .unwrap();
    let segments = engine.gathered.len();
    assert!(segments > 1, "{segments}");
    engine.free(&units).unwrap();
    assert_eq!(engine.gathered.len(), segments);
    engine.free(&units[..1]).unwrap();
    let whole: Vec<Unit> = engine.gathered.keys().copied().collect();
    assert_eq!(whole, [plan.layout.whole_of(units[0])]);
    // A worker that has no stage any more runs no step.
    engine.free(&[]).unwrap();
    assert!(engine.gathered.is_empty());
}

#[test]
fn the_third_step_of_each_generation_is_measured_task_by_task() {
    let mut engine = engine(Device::Cpu);
    let mut plan = alone(&engine);
    for unit in plan.units(ME) {
        engine.initialise(unit).unwrap();
    }
    let link = LocalMesh::new(&[ME]).link(ME);
    for generation in [1, 2] {
        plan.generation = Generation(generation);
        let mut step = |number| {
            let deadline = Instant::now() + Duration::from_secs(60);
            let report = engine.run_step(&plan, Step(number), &link, deadline).unwrap();
            (report.timeline, report.timings)
        };
        assert!(step(0).0.is_none() && step(1).0.is_none());
        let (timeline, timings) = step(2);
        let timeline = timeline.unwrap();
        let tasks = timeline.tasks.iter();
        let tasks: Vec<String> = tasks
            .map(|t| format!("{} of {}", t.instruction, t.stage))
            .collect();
        assert_eq!(tasks, ["f0 of 0", "b0 of 0", "f1 of 0", "b1 of 0"]);
        let times: Vec<u64> = timeline.tasks.iter().flat_map(|t| [t.from_us, t.to_us]).collect();
        assert!(times.is_sorted() && times[0] < times[7], "{times:?}");
        assert!(
            Duration::from_micros(times[7]) <= timeline.reduced,
            "{timeline:?}"
        );
        assert!(timeline.reduced <= timings.total, "{timeline:?}");
        assert!(step(3).0.is_none());
    }
}

#[test]
fn workers_of_the_first_pipelines_alone_measure_a_step() {
    let plan = |engine: &Engine, before: usize| {
        let mut plan = alone(engine);
        let own = plan.shape.pipelines[0].clone();
        let mut other = own.clone();
        other.stages[0].worker = WorkerId(2);
        plan.shape.pipelines = vec![other; before];
        plan.shape.pipelines.push(own);
        plan
    };
    let measures = |before| {
        let mut engine = engine(Device::Cpu);
        let plan = plan(&engine, before);
        (0..4).map(|_| engine.is_measured(&plan)).collect::<Vec<_>>()
    };
    assert_eq!(measures(PIPELINES_MAX - 1), [false, false, true, false]);
    assert_eq!(measures(PIPELINES_MAX), [false; 4]);
}

/// What libtorch says where a GPU has no memory.
pub(super) const NO_MEMORY: &str = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.19 GiB is free.";

#[test]
fn step_without_memory_keeps_what_was_summed() {
    let engine = engine(Device::Cpu);
    let norm = UnitNorm::new(1.0, 0.0, None, OptimizerProgress::START);
    let failure = |error: &str| StepFailure {
        error: TorchError(error.to_owned()).into(),
        prepared: vec![(Unit(1), norm)],
    };
    let told = engine.without_memory(failure(&format!("{NO_MEMORY}\nException raised from malloc")));
    assert_eq!(told.prepared, [(Unit(1), norm)]);
    let EngineError::NoMemory { shortage, why } = &told.error else {
        panic!("{}", told.error)
    };
    assert_eq!(why, NO_MEMORY);
    assert_eq!(shortage.needed_bytes, Some(2 << 30));
    let other = failure("the sizes differ");
    assert_eq!(engine.without_memory(other.clone()).error, other.error);
}

#[test]
fn no_memory_for_the_code_of_a_segment_is_no_unreadable_file() {
    let error = EngineError::of_code(ExportedError::Code {
        file: "segment-1.pt".into(),
        why: TorchError(NO_MEMORY.to_owned()),
    });
    let prepared = vec![];
    let told = engine(Device::Cpu).without_memory(StepFailure { error, prepared });
    let EngineError::NoMemory { shortage, why } = &told.error else {
        panic!("{}", told.error)
    };
    assert_eq!(why, &format!("segment-1.pt: {NO_MEMORY}"));
    assert_eq!(shortage.needed_bytes, Some(2 << 30));
}

/// Samples whose reads panic as libtorch's operators do where a GPU has no memory, while that is so.
struct Exhausted(Arc<AtomicBool>);

impl Samples for Exhausted {
    fn train(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        if self.0.load(Ordering::SeqCst) {
            panic!("called `Result::unwrap()` on an `Err` value: Torch({NO_MEMORY:?})");
        }
        Counting.train(index, tokens)
    }
    fn held_out(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        self.train(index, tokens)
    }
    fn held_out_len(&self) -> u64 {
        0
    }
}

#[test]
fn many_steps_without_memory_end_the_worker_with_what_to_change() {
    let is_full = Arc::new(AtomicBool::new(true));
    let config = EngineConfig {
        samples: Arc::new(Exhausted(Arc::clone(&is_full))),
        ..engine(Device::Cpu).config.clone()
    };
    let mut engine = Engine::new(config);
    let plan = Arc::new(alone(&engine));
    for unit in plan.units(ME) {
        engine.initialise(unit).unwrap();
    }
    let link = LocalMesh::new(&[ME]).link(ME);
    let (emit, events) = std::sync::mpsc::channel();
    let commands = start(engine, 1, move |event| emit.send(event).unwrap()).unwrap();
    let run = || {
        let run = Command::Run {
            plan: Arc::clone(&plan),
            step: Step(0),
            deadline: Duration::from_secs(60),
            link: Arc::clone(&link),
        };
        commands.send(run).unwrap();
        events.recv_timeout(Duration::from_secs(60)).unwrap()
    };
    let has_no_memory = |event: &Event| match event {
        Event::StepFailed(failed) => matches!(failed.lacks, Some(Lack::Memory(_))),
        _ => false,
    };
    for _ in 0..5 {
        assert!(has_no_memory(&run()));
    }
    is_full.store(false, Ordering::SeqCst);
    // What was read ahead before may fail one more step.
    assert!((0..2).any(|_| matches!(run(), Event::Prepared { .. })));
    is_full.store(true, Ordering::SeqCst);
    // A read that succeeded before may let one more step pass.
    let mut event = run();
    if matches!(event, Event::Prepared { .. }) {
        event = run();
    }
    for _ in 1..8 {
        assert!(has_no_memory(&event));
        event = run();
    }
    let Event::Fatal(EngineError::TooLittleMemory {
        steps: 8, shortage, ..
    }) = &event
    else {
        panic!("another event");
    };
    assert_eq!(shortage.needed_bytes, Some(2 << 30));
    let Event::Fatal(error) = event else { return };
    for part in ["2048 MiB", "microBatchSize", "recompute", "deviceMemory"] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

thread_local! {
    /// How many times in a row the device has no room for another unit.
    pub(super) static REFUSALS: Cell<u32> = const { Cell::new(0) };
}

fn empty_unless_full(config: &EngineConfig, unit: Unit) -> Result<UnitBuffers, TorchError> {
    let left = REFUSALS.get();
    REFUSALS.set(left.saturating_sub(1));
    match left {
        0 => config.empty(unit),
        // As tch does where it makes the copy that is computed with.
        1 => panic!("called `Result::unwrap()` on an `Err` value: Torch({NO_MEMORY:?})"),
        _ => Err(TorchError(NO_MEMORY.to_owned())),
    }
}

/// An engine whose device has no room for a unit, so many times.
pub(super) fn full(device: Device, refusals: u32) -> Engine {
    REFUSALS.set(refusals);
    let mut engine = engine(device);
    engine.empty = empty_unless_full;
    engine
}

#[test]
fn a_full_device_is_tried_twice_and_a_full_host_ends_the_worker() {
    let unit = Unit(1);
    let mut engine = full(Device::CpuSeparateMemory, 1);
    engine.initialise(unit).unwrap();
    assert!(!engine.is_on_host(unit).unwrap());
    let mut engine = full(Device::CpuSeparateMemory, 2);
    engine.initialise(unit).unwrap();
    assert!(engine.is_on_host(unit).unwrap());
    engine.free(&[unit]).unwrap();
    assert_eq!(engine.held(), [unit]);
    engine.free(&[]).unwrap();
    assert!(engine.held().is_empty());
    let why = full(Device::Cpu, u32::MAX).initialise(unit).unwrap_err();
    assert!(
        matches!(why, EngineError::NoRoom { unit: of, .. } if of == unit),
        "{why}"
    );
    assert!(why.to_string().contains("2048 MiB"), "{why}");
}

#[test]
fn a_unit_waits_in_the_hosts_memory_for_room_on_the_device() {
    let mut there = engine(Device::CpuSeparateMemory);
    let plan = alone(&there);
    let mut units = plan.units(ME);
    units.sort_unstable();
    for unit in &units {
        there.initialise(*unit).unwrap();
    }
    let mut here = full(Device::CpuSeparateMemory, u32::MAX);
    here.initialise(units[0]).unwrap();
    for unit in &units[1..] {
        here.import(*unit, &there.export(*unit).unwrap()).unwrap();
    }
    assert_eq!(here.held(), units);
    assert!(units.iter().all(|unit| here.is_on_host(*unit).unwrap()));
    let link = LocalMesh::new(&[ME]).link(ME);
    let step = |engine: &mut Engine| {
        let deadline = Instant::now() + Duration::from_secs(60);
        engine.run_step(&plan, StateId::INITIAL.step, &link, deadline)
    };
    let failure = step(&mut here).unwrap_err();
    assert!(failure.prepared.is_empty());
    let EngineError::NoMemory { shortage, .. } = &failure.error else {
        panic!("{}", failure.error)
    };
    assert_eq!(shortage.needed_bytes, Some(2 << 30));
    for unit in &units {
        // For checkpoints and for peers.
        let state = there.export(*unit).unwrap();
        assert_eq!(here.snapshot(*unit).unwrap().copy().unwrap(), state);
        assert_eq!(here.share(*unit).unwrap().copy().unwrap(), state);
    }
    REFUSALS.set(0);
    for engine in [&mut here, &mut there] {
        let report = step(engine).unwrap();
        let parts: Vec<_> = report.prepared.iter().map(|(_, norm)| *norm).collect();
        let decision = Decision::conclude(StateId::INITIAL, plan.generation, &parts, None);
        engine.apply(&decision, &units).unwrap();
    }
    assert!(units.iter().all(|unit| !here.is_on_host(*unit).unwrap()));
    for unit in units {
        assert_eq!(
            here.export(unit).unwrap(),
            there.export(unit).unwrap(),
            "unit {unit}"
        );
    }
}

#[test]
fn ranges_of_a_segment_begin_with_the_same_bits_on_the_host() {
    let (mut there, mut here) = (
        engine(Device::CpuSeparateMemory),
        full(Device::CpuSeparateMemory, u32::MAX),
    );
    for engine in [&mut there, &mut here] {
        engine.config.training.optimizer.sharding = Sharding::Zero1;
    }
    for unit in alone(&there).units(ME) {
        there.initialise(unit).unwrap();
        here.initialise(unit).unwrap();
        assert_eq!(
            here.export(unit).unwrap(),
            there.export(unit).unwrap(),
            "unit {unit}"
        );
        assert!(here.is_on_host(unit).unwrap());
    }
}

#[test]
fn a_unit_followed_on_the_host_has_the_devices_bits_or_none() {
    let patient = ReaderTimeouts {
        asks_after: Duration::from_secs(50),
        ends_after: Duration::from_secs(50),
    };
    let (mut holder, units, decision) = after_a_step_on(Device::CpuSeparateMemory, patient);
    let unit = units[0];
    let before = holder.export(unit).unwrap();
    let gradient = holder.gradient(unit).unwrap();
    holder.apply(&decision, &units).unwrap();
    let mut follower = full(Device::CpuSeparateMemory, u32::MAX);
    follower.import(unit, &before).unwrap();
    let apply = |follower: &mut Engine| follower.apply_forwarded(&decision, unit, gradient.clone());
    apply(&mut follower).unwrap();
    assert!(follower.is_on_host(unit).unwrap());
    assert_eq!(follower.export(unit).unwrap(), holder.export(unit).unwrap());
    // The optimizer of libtorch has other bits on other devices.
    follower.config.backend.kernels = Kernels::LIBTORCH;
    follower.import(unit, &before).unwrap();
    let why = apply(&mut follower).unwrap_err();
    assert!(
        matches!(why, EngineError::NoRoom { unit: of, .. } if of == unit),
        "{why}"
    );
    assert_eq!(follower.export(unit).unwrap(), before, "it is as it was");
    REFUSALS.set(0);
    apply(&mut follower).unwrap();
    assert!(!follower.is_on_host(unit).unwrap());
}

#[test]
fn a_unit_followed_on_the_host_changes_beside_a_step_if_it_can() {
    let patient = ReaderTimeouts {
        asks_after: Duration::from_secs(50),
        ends_after: Duration::from_secs(50),
    };
    let (mut holder, units, decision) = after_a_step_on(Device::CpuSeparateMemory, patient);
    let unit = units[0];
    let before = holder.export(unit).unwrap();
    let gradient = holder.gradient(unit).unwrap();
    holder.apply(&decision, &units).unwrap();
    for (kernels, is_beside) in [(Kernels::PROCESSOR, true), (Kernels::LIBTORCH, false)] {
        let mut follower = full(Device::CpuSeparateMemory, u32::MAX);
        follower.config.backend.kernels = kernels;
        follower.import(unit, &before).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let done: Done = Box::new(move |result| tell.send(result).unwrap());
        follower
            .apply_in_background(&decision, unit, gradient.clone(), done)
            .unwrap();
        let away = follower.beside.units_in_background();
        assert_eq!(away.contains(&unit), is_beside, "{kernels:?}");
        follower.recall(&[unit]).unwrap();
        match told.recv_timeout(Duration::from_secs(60)).unwrap() {
            Ok(()) => assert_eq!(follower.export(unit).unwrap(), holder.export(unit).unwrap()),
            Err(why) => assert!(!is_beside && matches!(why, EngineError::NoRoom { .. }), "{why}"),
        }
        assert!(follower.is_on_host(unit).unwrap());
    }
}

#[test]
fn units_that_leave_the_device_do_so_before_others_come_to_it() {
    let mut engine = engine(Device::CpuSeparateMemory);
    let mut units = alone(&engine).units(ME);
    units.sort_unstable();
    engine.keep_copies(&units[..1]).unwrap();
    for unit in &units[..2] {
        engine.initialise(*unit).unwrap();
    }
    assert_eq!(
        [0, 1].map(|i: usize| engine.is_on_host(units[i]).unwrap()),
        [true, false]
    );
    // Nothing can come, which must not keep the other from leaving.
    engine.empty = |_, _| Err(TorchError("the device refuses".to_owned()));
    engine.keep_copies(&units[1..2]).unwrap_err();
    assert!(engine.is_on_host(units[1]).unwrap());
}

#[test]
fn only_a_copy_moves_to_the_device_before_a_step_needs_it() {
    let mut engine = full(Device::CpuSeparateMemory, u32::MAX);
    let unit = Unit(1);
    engine.initialise(unit).unwrap();
    let before = engine.export(unit).unwrap();
    REFUSALS.set(0);
    for (copies, is_on_host) in [
        (vec![], true),
        (vec![unit], true),
        (vec![], false),
        (vec![unit], true),
    ] {
        engine.keep_copies(&copies).unwrap();
        assert_eq!(engine.is_on_host(unit).unwrap(), is_on_host, "{copies:?}");
        assert_eq!(engine.export(unit).unwrap(), before);
    }
}

#[test]
fn a_unit_that_the_optimizer_changed_in_part_is_not_held() {
    let patient = ReaderTimeouts {
        asks_after: Duration::from_secs(50),
        ends_after: Duration::from_secs(50),
    };
    let (mut engine, units, decision) = after_a_step(patient);
    let refused = || EngineError::from(TorchError(NO_MEMORY.to_owned()));
    let why = engine.change(units[0], |_, _| Err(refused())).unwrap_err();
    let EngineError::Torn { unit, shortage, .. } = &why else {
        panic!("{why}")
    };
    assert_eq!((*unit, shortage.needed_bytes), (units[0], Some(2 << 30)));
    assert!(
        why.to_string().contains("neither at the state before the step"),
        "{why}"
    );
    let panics = engine.change(units[1], |_, _| panic!("{NO_MEMORY}"));
    assert!(matches!(panics, Err(EngineError::Torn { .. })));
    let other = EngineError::StillRead(units[2]);
    assert_eq!(engine.change(units[2], |_, _| Err(other.clone())), Err(other));
    for torn in &units[..2] {
        assert_eq!(engine.export(*torn).unwrap_err(), EngineError::NotHeld(*torn));
    }
    assert_eq!(engine.held().len(), units.len() - 2);
    // No state id is said of it.
    let event = applied(engine, decision, units);
    assert!(matches!(event, Event::Fatal(EngineError::NotHeld(_))));
}

/// Samples of documents that have this many tokens each.
struct Documents(i64);

impl Samples for Documents {
    fn train(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        Counting.train(index, tokens)
    }
    fn held_out(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        self.train(index, tokens)
    }
    fn held_out_len(&self) -> u64 {
        2
    }
    fn train_positions(&self, _: u64, positions: &mut [i64]) -> Result<(), SampleError> {
        (0..)
            .zip(positions)
            .for_each(|(i, position)| *position = i % self.0);
        Ok(())
    }
    fn held_out_positions(&self, index: u64, positions: &mut [i64]) -> Result<(), SampleError> {
        self.train_positions(index, positions)
    }
}

#[test]
fn a_mean_without_targets_is_no_loss_and_has_no_gradient() {
    let ran = |tokens_of_document| {
        let mut config = engine(Device::Cpu).config.clone();
        config.samples = Arc::new(Documents(tokens_of_document));
        config.training.packing.mask_loss = true;
        config.training.evaluation = Some(varuna_api::Evaluation {
            interval_steps: 1,
            samples: 2,
        });
        let mut engine = Engine::new(config);
        let plan = alone(&engine);
        for unit in plan.units(ME) {
            engine.initialise(unit).unwrap();
        }
        let link = LocalMesh::new(&[ME]).link(ME);
        let deadline = Instant::now() + Duration::from_secs(60);
        let report = engine.run_step(&plan, Step(0), &link, deadline).unwrap();
        let parts: Vec<_> = report.prepared.iter().map(|(_, norm)| *norm).collect();
        Decision::conclude(StateId::INITIAL, plan.generation, &parts, None)
    };
    let some = ran(2);
    let losses = [some.mean_loss(), some.eval_loss];
    assert!(losses.iter().all(|loss| loss.is_some_and(|loss| loss > 0.0)));
    assert!(some.norm2 > 0.0);
    // Each token begins a document, and nothing before it can predict it.
    let none = ran(1);
    assert_eq!([none.mean_loss(), none.eval_loss], [None; 2]);
    assert_eq!(
        (none.norm2, none.overflow),
        (0.0, false),
        "the optimizer applies a gradient of zero"
    );
}
