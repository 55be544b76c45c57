//! Arbitrary messages.

use proptest::prelude::*;
use std::sync::Arc;
use varuna_plan::device::Hardware;
use varuna_plan::document::{Recompute, ScheduleKind};
use varuna_plan::layout::{RANGES_MAX, SEGMENTS_MAX};
use varuna_plan::measured_step::{MeasuredTask, MeasuredWork};
use varuna_plan::schedule::Instruction;
use varuna_plan::spare_copies::SpareCopyDecision;
use varuna_plan::state::{Chain, UnitNorm};
use varuna_plan::{
    Base, Decision, EvaluationSteps, Generation, Layout, LossScale, OptimizerProgress, Pipeline, Plan,
    Prediction, SampleRange, ScaleFactor, ScheduleSpec, ScoreMemory, SegmentRange, Shape, Spare, Stage,
    StateId, Step, StepDeadline, Unit, WorkerId,
};
use varuna_protocol::coordinator::{
    LeftOut, LeftOutReason, RunView, SpareCopiesVerdict, SpareCopiesView, WorkerView,
};
use varuna_protocol::{
    Digests, Following, Inventory, Keeping, MemoryShortage, Order, Phase, Prepared, Ran, Report, RunMode,
    Status, Suspicion,
};
use varuna_run_folder::{CheckpointStatus, RunStatus, StepTimings, WorkerStatus};
use varuna_wire::{Hello, SegmentTimes, StepMetrics, Upward};

/// Any double except NaN, which is not equal to itself and has a test of its own.
pub(crate) fn real() -> impl Strategy<Value = f64> {
    any::<u64>()
        .prop_map(f64::from_bits)
        .prop_filter("not NaN", |f| !f.is_nan())
}

pub(crate) fn generation() -> impl Strategy<Value = Generation> {
    (1..u64::MAX).prop_map(Generation)
}

pub(crate) fn state_id() -> impl Strategy<Value = StateId> {
    let most = StateId::NUMBER_MAX;
    (0..=most, 0..most, any::<u64>()).prop_map(|(g, s, c)| StateId {
        run_gen: Generation(g),
        step: Step(s),
        chain: Chain(c),
    })
}

pub(crate) fn decision() -> impl Strategy<Value = Decision> {
    let switch = proptest::option::of(generation());
    (
        state_id(),
        state_id(),
        real(),
        any::<bool>(),
        real(),
        proptest::option::of(real()),
        switch,
        progress(),
    )
        .prop_map(
            |(parent, id, norm2, overflow, loss, eval_loss, switch, before)| Decision {
                parent,
                id: StateId {
                    step: parent.step.next(),
                    ..id
                },
                norm2,
                overflow,
                before,
                loss,
                eval_loss,
                switch,
            },
        )
}

pub(crate) fn progress() -> impl Strategy<Value = OptimizerProgress> {
    (any::<u64>(), 0..=32u8, any::<u32>(), any::<u32>()).prop_map(
        |(adam_steps, exponent, clean_steps, failed_in_a_row)| OptimizerProgress {
            adam_steps,
            loss_scale: LossScale {
                factor: ScaleFactor::two_to(exponent),
                clean_steps,
            },
            failed_in_a_row,
        },
    )
}

pub(crate) fn status() -> impl Strategy<Value = Status> {
    let phase = prop_oneof![
        Just(Phase::Idle),
        Just(Phase::Source),
        Just(Phase::Loading),
        Just(Phase::Ready),
        Just(Phase::Running)
    ];
    (
        any::<(u64, u64, u64)>(),
        phase,
        any::<(bool, bool, bool, bool, bool)>(),
        (state_id(), any::<u64>(), following(), keeping()),
    )
        .prop_map(
            |(
                (generation, fenced, next),
                phase,
                (based, connected, next_connected, draining, parameters_first),
                (at, last_step, following, keeping),
            )| Status {
                generation: Generation(generation),
                fenced: Generation(fenced),
                phase,
                based,
                connected,
                next: Generation(next),
                next_connected,
                at,
                draining,
                last_step: Step(last_step),
                following,
                keeping,
                parameters_first,
            },
        )
}

fn keeping() -> impl Strategy<Value = Keeping> {
    prop_oneof![Just(Keeping::Unable), Just(Keeping::Able), Just(Keeping::InStep)]
}

fn following() -> impl Strategy<Value = Following> {
    prop_oneof![
        Just(Following::Unable),
        Just(Following::Able),
        Just(Following::CaughtUp),
        any::<u64>().prop_map(|step| Following::Copied(Step(step)))
    ]
}

pub(crate) fn prepared() -> impl Strategy<Value = Prepared> {
    let norm = (
        real(),
        any::<bool>(),
        real(),
        proptest::option::of(real()),
        progress(),
    );
    (0..=StateId::NUMBER_MAX, 0..=StateId::NUMBER_MAX, norm).prop_map(
        |(g, s, (norm2, overflow, loss, eval_loss, before))| Prepared {
            run_gen: Generation(g),
            step: Step(s),
            norm: UnitNorm {
                norm2,
                overflow,
                loss,
                eval_loss,
                before,
            },
        },
    )
}

pub(crate) fn inventory() -> impl Strategy<Value = Inventory> {
    let units = proptest::collection::btree_map(any::<u32>().prop_map(Unit), state_id(), 0..8);
    let prepared = proptest::collection::btree_map(any::<u32>().prop_map(Unit), prepared(), 0..8);
    let most = StateId::NUMBER_MAX;
    let ran = proptest::option::of((0..=most, 0..=most, any::<bool>()));
    (
        any::<u64>(),
        units,
        prepared,
        ran,
        proptest::option::of(decision()),
    )
        .prop_map(|(upto, units, prepared, ran, decision)| Inventory {
            upto: Generation(upto),
            units,
            prepared,
            ran: ran.map(|(g, s, norm_put_in)| Ran {
                generation: Generation(g),
                step: Step(s),
                norm_put_in,
            }),
            decision,
        })
}

pub(crate) fn metrics() -> impl Strategy<Value = StepMetrics> {
    (any::<(u64, u64, u64)>(), proptest::array::uniform7(0.0..1e9)).prop_map(|((g, s, tokens), ms)| {
        StepMetrics {
            generation: Generation(g),
            step: Step(s),
            step_ms: ms[0],
            forward_ms: ms[1],
            backward_ms: ms[2],
            recompute_ms: ms[3],
            wait_ms: ms[4],
            reduce_ms: ms[5],
            apply_ms: ms[6],
            apply_cpu_ms: s.is_multiple_of(3).then_some(ms[5]),
            tokens,
            segments: vec![
                SegmentTimes {
                    segment: 3,
                    forward_ms: ms[0],
                    backward_ms: ms[1],
                    recompute_ms: ms[2],
                };
                usize::from(tokens.is_multiple_of(2))
            ],
            micro_batch_size: 7,
            peak_memory_bytes: g.is_multiple_of(2).then_some(s),
            measured: s.is_multiple_of(2).then(|| measured(g)),
        }
    })
}

fn measured(seed: u64) -> MeasuredWork {
    let kinds = [
        Instruction::Forward,
        Instruction::Recompute,
        Instruction::Backward,
    ];
    let task = |(m, kind): (u32, fn(u32) -> Instruction)| MeasuredTask {
        stage: m + 1,
        instruction: kind(m),
        from_us: seed.wrapping_add(m.into()),
        to_us: seed.wrapping_mul(2),
    };
    MeasuredWork {
        began_us: seed,
        tasks: (0..).zip(kinds).map(task).collect(),
        reduced_us: seed.wrapping_add(1),
        optimizer_from_us: seed.wrapping_add(2),
        optimizer_to_us: seed.wrapping_add(3),
    }
}

pub(crate) fn hello() -> impl Strategy<Value = Hello> {
    let who = (
        1..u64::MAX,
        "[a-z]{1,8}",
        "[a-z.]{1,20}:[1-9][0-9]{0,3}",
        any::<u32>(),
    );
    let texts = (
        "[a-z0-9-]{0,9}",
        "[a-z0-9-]{0,9}",
        "[a-z0-9: ]{0,9}",
        "[0-9a-f]{0,64}",
    );
    let gpu = (
        ".{0,9}".prop_filter("a line", |n| !n.contains(char::is_control)),
        any::<u64>(),
    );
    let gpu = gpu.prop_map(|(name, memory_bytes)| Hardware::Gpu { name, memory_bytes });
    let hardware = proptest::option::of(prop_oneof![Just(Hardware::Processor), gpu]);
    let bytes = || 0..=1u64 << 40;
    let scores =
        (bytes(), bytes(), bytes()).prop_map(|(saved_bytes, forward_bytes, backward_bytes)| ScoreMemory {
            saved_bytes,
            forward_bytes,
            backward_bytes,
        });
    let memory = (
        hardware,
        any::<u32>(),
        proptest::option::of(any::<u64>()),
        proptest::option::of(scores),
        proptest::option::of(any::<u64>()),
    );
    (who, texts, memory, 0.001..1000.0).prop_map(
        |((worker, name, address, pid), (node, host, device, run), memory, speed)| Hello {
            hardware: memory.0,
            workers_on_gpu: memory.1,
            memory_bytes: memory.2,
            scores: memory.3,
            copies_bytes: memory.4,
            worker: WorkerId(worker),
            name,
            address,
            node,
            host,
            pid,
            device,
            speed,
            run,
        },
    )
}

pub(crate) fn digests() -> impl Strategy<Value = Digests> {
    let units = proptest::collection::btree_map(any::<u32>().prop_map(Unit), any::<u64>(), 0..8);
    (state_id(), any::<bool>(), units).prop_map(|(id, saved, units)| Digests {
        id,
        saved,
        units: units.into_iter().collect(),
    })
}

pub(crate) fn upward() -> impl Strategy<Value = Upward> {
    let commits = (any::<u64>(), proptest::collection::vec(decision(), 0..4));
    let bytes = || proptest::option::of(any::<u64>());
    let why = prop_oneof![
        Just(Suspicion::Gone),
        Just(Suspicion::Unreachable),
        Just(Suspicion::Damaged),
        Just(Suspicion::NoData),
        (bytes(), bytes()).prop_map(|(needed_bytes, free_bytes)| {
            Suspicion::NoMemory(MemoryShortage {
                needed_bytes,
                free_bytes,
            })
        })
    ];
    let suspect = (any::<u64>(), any::<u64>(), why).prop_map(|(g, about, why)| Report::Suspect {
        generation: Generation(g),
        about: WorkerId(about),
        why,
    });
    prop_oneof![
        hello().prop_map(Upward::Hello),
        status().prop_map(|s| Upward::Report(Report::Status(s))),
        (status(), "[ -~]{0,400}").prop_map(|(status, why)| Upward::UploadsFail { status, why }),
        suspect.prop_map(Upward::Report),
        inventory().prop_map(|i| Upward::Report(Report::Inventory(i))),
        decision().prop_map(|decision| Upward::Report(Report::Committed { decision })),
        commits.prop_map(|(after, decisions)| Upward::Report(Report::Commits {
            after: Step(after),
            decisions
        })),
        digests().prop_map(|digests| Upward::Report(Report::Digests(digests))),
        metrics().prop_map(Upward::Metrics),
    ]
}

pub(crate) fn recompute() -> impl Strategy<Value = Recompute> {
    prop_oneof![
        Just(Recompute::None),
        Just(Recompute::Selective),
        Just(Recompute::Full)
    ]
}

pub(crate) fn pipeline() -> impl Strategy<Value = Pipeline> {
    let stage = (
        any::<u64>(),
        any::<(u32, u32)>(),
        proptest::option::of(recompute()),
    )
        .prop_map(|(worker, (start, end), recompute)| Stage {
            worker: WorkerId(worker),
            segments: SegmentRange { start, end },
            recompute,
        });
    let samples = any::<(u64, u64)>().prop_map(|(start, end)| SampleRange { start, end });
    (proptest::collection::vec(stage, 0..4), samples)
        .prop_map(|(stages, samples)| Pipeline { stages, samples })
}

pub(crate) fn schedule() -> impl Strategy<Value = ScheduleSpec> {
    let kind = prop_oneof![
        Just(ScheduleKind::Gpipe),
        real().prop_map(|warmup_factor| ScheduleKind::OneForwardOneBackward { warmup_factor }),
        any::<u32>().prop_map(|chunks| ScheduleKind::Interleaved { chunks }),
    ];
    (kind, recompute()).prop_map(|(kind, recompute)| ScheduleSpec { kind, recompute })
}

pub(crate) fn shape() -> impl Strategy<Value = Shape> {
    let spare = (any::<u64>(), ".{0,20}").prop_map(|(worker, reason)| Spare {
        worker: WorkerId(worker),
        reason,
    });
    let predicted =
        (real(), real(), real(), any::<bool>()).prop_map(|(step_ms, bubble, move_ms, calibrated)| {
            Prediction {
                step_ms,
                bubble,
                move_ms,
                calibrated,
            }
        });
    (
        proptest::collection::vec(pipeline(), 0..4),
        proptest::collection::vec(spare, 0..3),
        any::<u32>(),
        schedule(),
        predicted,
    )
        .prop_map(
            |(pipelines, spares, micro_batch_size, schedule, predicted)| Shape {
                pipelines,
                spares,
                micro_batch_size,
                schedule,
                predicted,
            },
        )
}

fn deadline() -> impl Strategy<Value = StepDeadline> {
    let evaluation = any::<(u64, u32)>().prop_map(|(interval_steps, batches)| EvaluationSteps {
        interval_steps,
        batches,
    });
    let deadline = (
        any::<(u64, u64)>(),
        any::<u32>(),
        proptest::option::of(evaluation),
    );
    deadline.prop_map(|((step_ns, floor_ns), doublings, evaluation)| StepDeadline {
        step_ns,
        floor_ns,
        doublings,
        evaluation,
    })
}

pub(crate) fn plan() -> impl Strategy<Value = Plan> {
    let base = prop_oneof![
        generation().prop_map(|from| Base::AtSwitch { from }),
        (state_id(), proptest::option::of(decision()), any::<bool>()).prop_map(
            |(id, decision, checkpoint)| Base::Fixed {
                id,
                decision,
                checkpoint,
            }
        ),
    ];
    let worker = || any::<u64>().prop_map(WorkerId);
    let workers = || proptest::collection::vec(worker(), 0..4);
    let addresses = proptest::collection::btree_map(worker(), "[a-z]{1,5}:[1-9]", 0..4);
    let numbers = (
        generation(),
        (
            any::<u64>(),
            deadline(),
            any::<(bool, bool, bool)>(),
            any::<u32>(),
        ),
        proptest::collection::vec(proptest::option::of((1_u64..4).prop_map(WorkerId)), 0..8),
    );
    let layout = (0..=SEGMENTS_MAX, any::<bool>(), 1..=RANGES_MAX);
    let layout =
        layout.prop_map(|(segments, tied, ranges)| Layout::new(segments / ranges, tied).in_ranges(ranges));
    (
        numbers,
        base,
        layout,
        shape(),
        proptest::collection::vec(workers(), 0..4),
        addresses,
        workers(),
        ".{0,20}",
    )
        .prop_map(
            |(
                (generation, (parent, deadline, (relay, following, parameters_first), tree_fan_out), keepers),
                base,
                layout,
                shape,
                sources,
                addresses,
                evidence,
                reason,
            )| {
                Plan {
                    generation,
                    parent: Generation(parent),
                    base,
                    layout,
                    shape,
                    sources,
                    addresses,
                    deadline,
                    relay,
                    tree_fan_out,
                    evidence,
                    reason,
                    following,
                    parameters_first,
                    keepers,
                    index: varuna_plan::PlanIndex::default(),
                }
            },
        )
}

pub(crate) fn order() -> impl Strategy<Value = Order> {
    prop_oneof![
        any::<u64>().prop_map(|g| Order::Fence { upto: Generation(g) }),
        plan().prop_map(|plan| Order::Prepare(Arc::new(plan))),
        generation().prop_map(|generation| Order::Arm { generation }),
        generation().prop_map(|generation| Order::Go { generation }),
        any::<u64>().prop_map(|after| Order::Save { after: Step(after) }),
        any::<u64>().prop_map(|after| Order::Tell { after: Step(after) }),
        (1..=StateId::NUMBER_MAX).prop_map(|step| Order::LastStep { step: Step(step) }),
        Just(Order::Release),
    ]
}

pub(crate) fn run_status() -> impl Strategy<Value = RunStatus> {
    const MODES: [RunMode; 12] = [
        RunMode::Starting,
        RunMode::Settling,
        RunMode::Launching,
        RunMode::Training,
        RunMode::Changing,
        RunMode::Waiting,
        RunMode::Recovering,
        RunMode::Persisting,
        RunMode::Done,
        RunMode::Stopped,
        RunMode::Ended,
        RunMode::Unknown,
    ];
    let numbers = any::<(u64, u64, u64, u64)>();
    let optional = (
        proptest::option::of(any::<u64>()),
        proptest::option::of(real()),
        proptest::option::of("P[1-9]xD[1-9]"),
        proptest::option::of(real()),
        (proptest::option::of(real()), proptest::option::of(real())),
        proptest::option::of(any::<usize>()),
        proptest::option::of(any::<u64>()),
        proptest::option::of(any::<u64>()),
    );
    (
        (".{0,9}", 0..MODES.len()),
        numbers,
        optional,
        (any::<(usize, usize)>(), proptest::option::of(spare_copies())),
        proptest::option::of(checkpoint_status()),
        proptest::collection::vec(worker_status(), 0..4),
    )
        .prop_map(
            |((job, mode), (term, generation, step, last_step), optional, counts, checkpoint, workers)| {
                let (counts, spare_copies) = counts;
                let (next, loss, plan, predicted_ms, observed, max_workers, skipped_steps, loss_scale) =
                    optional;
                let (observed_ms, compute_factor) = observed;
                let run = RunView {
                    mode: MODES[mode],
                    term,
                    generation: Generation(generation),
                    next: next.map(Generation),
                    step: Step(step),
                    last_step: Step(last_step),
                    plan,
                    predicted_ms,
                    observed_ms,
                    compute_factor,
                    members: counts.0,
                    min_workers: counts.1,
                    max_workers,
                    spare_copies,
                };
                RunStatus {
                    job,
                    run,
                    loss,
                    skipped_steps,
                    loss_scale,
                    checkpoint,
                    workers,
                }
            },
        )
}

fn spare_copies() -> impl Strategy<Value = SpareCopiesView> {
    const REASONS: [SpareCopyDecision; 9] = [
        SpareCopyDecision::Kept,
        SpareCopyDecision::KeptInPart,
        SpareCopyDecision::KeptWhereLinksAllow,
        SpareCopyDecision::NotWanted,
        SpareCopyDecision::NothingAlone,
        SpareCopyDecision::NoKeeper,
        SpareCopyDecision::LinksTooSlow,
        SpareCopyDecision::LossesTooRare,
        SpareCopyDecision::Unknown,
    ];
    let verdict = (0..REASONS.len(), ".{0,20}").prop_map(|(reason, why)| SpareCopiesVerdict {
        reason: REASONS[reason],
        why,
    });
    (any::<[usize; 3]>(), proptest::option::of(verdict)).prop_map(|([units, kept, in_step], verdict)| {
        SpareCopiesView {
            units,
            kept,
            in_step,
            verdict,
        }
    })
}

fn left_out() -> impl Strategy<Value = LeftOut> {
    const REASONS: [LeftOutReason; 12] = [
        LeftOutReason::Leaving,
        LeftOutReason::WrongBits,
        LeftOutReason::Unsound,
        LeftOutReason::NoData,
        LeftOutReason::BadLink,
        LeftOutReason::Slow,
        LeftOutReason::MaxWorkers,
        LeftOutReason::NotNeeded,
        LeftOutReason::NotWorthAChange,
        LeftOutReason::New,
        LeftOutReason::NoMemory,
        LeftOutReason::Unknown,
    ];
    (0..REASONS.len(), ".{0,20}").prop_map(|(reason, why)| LeftOut {
        reason: REASONS[reason],
        why,
    })
}

pub(crate) fn checkpoint_status() -> impl Strategy<Value = CheckpointStatus> {
    let text = || proptest::option::of("[a-z0-9-]{0,20}");
    let number = || proptest::option::of(any::<u64>());
    (text(), number(), number(), text()).prop_map(|(newest, newest_step, steps_behind, failing)| {
        CheckpointStatus {
            newest,
            newest_step: newest_step.map(Step),
            steps_behind,
            failing,
        }
    })
}

pub(crate) fn worker_status() -> impl Strategy<Value = WorkerStatus> {
    let phase = proptest::option::of(status().prop_map(|s| s.phase));
    let segments = any::<(u32, u32)>().prop_map(|(start, end)| SegmentRange { start, end });
    let timings = proptest::option::of((any::<u64>(), proptest::array::uniform7(real())).prop_map(
        |(step, ms)| StepTimings {
            step: Step(step),
            step_ms: ms[0],
            forward_ms: ms[1],
            backward_ms: ms[2],
            recompute_ms: ms[3],
            wait_ms: ms[4],
            reduce_ms: ms[5],
            apply_ms: ms[6],
            apply_cpu_ms: step.is_multiple_of(3).then_some(ms[5]),
        },
    ));
    (
        hello(),
        phase,
        any::<(u64, u64, bool, bool)>(),
        proptest::collection::vec(segments, 0..3),
        (
            proptest::option::of(any::<usize>()),
            proptest::option::of(left_out()),
        ),
        timings,
    )
        .prop_map(
            |(hello, phase, (generation, step, up, draining), segments, place, timings)| WorkerStatus {
                view: WorkerView {
                    id: hello.worker,
                    name: hello.name,
                    node: hello.node,
                    up,
                    phase,
                    generation: Generation(generation),
                    step: Step(step),
                    draining,
                    speed: hello.speed,
                    segments,
                    pipeline: place.0,
                    left_out: place.1,
                },
                pid: hello.pid,
                host: hello.host,
                device: hello.device,
                timings,
            },
        )
}
