//! Costs that were not measured: they are estimated from the workers' hardware, and corrected by the observed step times.

use super::*;
use varuna_model::{Transformer, gpt2};
use varuna_plan::device::Hardware;
use varuna_plan::{Constraints, EstimatedPlanner, ScoreMemory};

fn model() -> Transformer {
    Transformer {
        layers: 4,
        hidden_size: 256,
        sequence_length: 128,
        vocabulary_size: 1000,
        ..gpt2::SMALL
    }
}

fn h100() -> Hardware {
    Hardware::Gpu {
        name: "NVIDIA H100 80GB HBM3".into(),
        memory_bytes: 80 << 30,
    }
}

/// A worker that does not know its hardware yet.
fn unequipped() -> Hello {
    Hello {
        address: "a:1".into(),
        name: "w1".into(),
        node: "n".into(),
        hardware: None,
        memory_bytes: None,
        copies_bytes: None,
        scores: None,
        speed: 1.0,
    }
}

/// One worker with this hardware trains by the shipped planner.
fn training_on(hardware: &Hardware) -> Rig {
    training_with(Hello {
        hardware: Some(hardware.clone()),
        ..unequipped()
    })
}

/// The same with this hello of the worker.
fn training_with(equipped: Hello) -> Rig {
    let layout = model().layout();
    let config = CoordinatorConfig { layout, ..config() };
    let mut rig = Rig::with(config, Record::default());
    let constraints = Constraints {
        min_workers: 1,
        max_workers: 8,
        micro_batch_size: None,
        min_depth: 1,
        max_depth: None,
        schedules: vec![ScheduleSpec {
            kind: ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 },
            recompute: Recompute::None,
        }],
        device_memory_bytes: None,
    };
    let planner = EstimatedPlanner::new(model().spec(), 4, constraints);
    rig.machine.shared.planner = Box::new(planner);
    // A worker knows its hardware once it has the job.
    for hello in [unequipped(), equipped] {
        rig.put(CoordinatorInput::StreamUp { from: A, hello });
    }
    rig.say(A, Report::Status(idle()));
    rig.answer(A, &[]);
    rig.wait(60);
    for phase in [Phase::Ready, Phase::Running] {
        rig.status(A, 1, phase, StateId::INITIAL);
    }
    let joined = |e: &&Event| matches!(e, Event::WorkerJoined { .. });
    assert_eq!(rig.events.iter().filter(joined).count(), 1, "it joined once");
    rig.events.clear();
    rig
}

/// Commits the first steps of the run; each takes this many milliseconds.
fn commit(rig: &mut Rig, took_ms: &[u64]) {
    let part = UnitNorm {
        norm2: 1.0,
        overflow: false,
        before: OptimizerProgress::START,
        loss: 1.0,
        eval_loss: None,
    };
    let mut at = StateId::INITIAL;
    for ms in took_ms {
        // With ticks, so that the coordinator does not seem to have been paused.
        rig.wait(*ms);
        let decision = Decision::conclude(at, Generation(1), &[part], None);
        rig.say(A, Report::Committed { decision });
        at = decision.id;
    }
}

fn corrections(rig: &Rig) -> Vec<f64> {
    let factor = |e: &Event| match e {
        Event::CostsCorrected { factor, .. } => Some(*factor),
        _ => None,
    };
    rig.events.iter().filter_map(factor).collect()
}

#[test]
fn gpu_job_uses_gpu_costs_and_the_minimum_deadline() {
    let gpu = training_on(&h100());
    let core = training_on(&Hardware::Processor);
    let step_ms = |rig: &Rig| rig.plan().shape.predicted.step_ms;
    assert!(
        step_ms(&gpu) * 50.0 < step_ms(&core),
        "{} and {}",
        step_ms(&gpu),
        step_ms(&core)
    );
    assert_eq!(gpu.plan().deadline.step_ns, 400_000_000);
}

#[test]
fn worker_with_scores_gets_smaller_micro_batches() {
    let samples = |scores| {
        let rig = training_with(Hello {
            hardware: Some(Hardware::Processor),
            memory_bytes: Some(1 << 30),
            scores,
            ..unequipped()
        });
        rig.plan().shape.micro_batch_size
    };
    let fused = samples(None);
    // The scores of four blocks, kept twice, take nearly all of the memory.
    let scores = ScoreMemory {
        saved_bytes: 100 << 20,
        ..ScoreMemory::default()
    };
    let with_scores = samples(Some(scores));
    assert!(fused > 2 && with_scores <= 2, "{fused} and {with_scores}");
}

#[test]
fn first_steps_correct_the_estimate_once() {
    let mut rig = training_on(&h100());
    let before = rig.plan().shape.predicted.step_ms;
    commit(&mut rig, &[500, 300, 310, 290, 300, 300, 300, 300]);
    let [factor] = corrections(&rig)[..] else {
        panic!("{:?}", rig.events);
    };
    assert!(factor > 2.0, "{factor}");
    assert_eq!(rig.machine.run().compute_factor, Some(factor));
    let plan = rig.plan();
    let now = rig.machine.shared.predicted_ms(&plan, plan.members());
    assert!((now / 300.0 - 1.0).abs() < 0.02, "{now} after {before}");
}

#[test]
fn accurate_or_single_odd_steps_correct_nothing() {
    let mut rig = training_on(&Hardware::Processor);
    let predicted = rig.plan().shape.predicted.step_ms;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a step of a small model"
    )]
    let ms = predicted.round() as u64;
    commit(&mut rig, &[ms * 2, ms, ms, ms * 3, ms, ms, ms, ms]);
    assert!(corrections(&rig).is_empty(), "{:?}", rig.events);
    assert_eq!(rig.machine.run().compute_factor, None);
}

/// Like [`DataParallelPlanner`], but without workers whose speed is less than half of the others'.
struct LeavesSlowOut;

impl Planner for LeavesSlowOut {
    fn plan(&self, request: &PlanRequest) -> Result<Shape, Infeasible> {
        let (fast, slow): (Vec<_>, Vec<_>) = request.workers.iter().cloned().partition(|w| w.speed > 0.5);
        let workers = fast;
        let mut shape = DataParallelPlanner.plan(&PlanRequest {
            workers,
            ..request.clone()
        })?;
        let spare = |w: varuna_plan::WorkerInfo| varuna_plan::Spare {
            worker: w.id,
            reason: "slow".into(),
        };
        shape.spares = slow.into_iter().map(spare).collect();
        Ok(shape)
    }
}

/// Nobody knows whether it is still slow, because only workers that train are measured.
#[test]
fn slow_worker_is_tried_again_after_a_while() {
    let long = CoordinatorConfig {
        last_step: Step(1_000_000),
        ..config()
    };
    let mut rig = Rig::with(long, Record::default());
    rig.machine.shared.planner = Box::new(LeavesSlowOut);
    let slow = speeds::Estimates {
        speeds: [(B, 0.3)].into(),
        ..Default::default()
    };
    rig.machine.shared.speeds.adopt(&slow);
    for worker in [A, B] {
        rig.join(worker);
        rig.answer(worker, &[]);
    }
    rig.wait(60);
    for phase in [Phase::Ready, Phase::Running] {
        rig.status(A, 1, phase, StateId::INITIAL);
    }
    assert_eq!(rig.plan().members(), [A]);
    let began = rig.now;
    let mut step = 0;
    while rig.store.next.is_none() {
        assert!(rig.now.since(began) < Duration::from_secs(11 * 60));
        step += 1;
        rig.wait(500);
        rig.status(A, 1, Phase::Running, state(1, step));
        rig.say(B, Report::Status(idle()));
    }
    assert!(rig.now.since(began) > Duration::from_secs(9 * 60));
    assert_eq!(rig.store.next.clone().unwrap().members(), [A, B]);
}

/// At that time only an estimate is known, and the first step loads libraries. So a first step that is slow on a busy machine must not
/// cause a second plan.
#[test]
fn first_step_has_more_time_than_later_ones() {
    let mut rig = Rig::training(&[A]);
    assert_eq!(rig.plan().deadline.doublings, 2);
    commit(&mut rig, &[50, 50, 50]);
    rig.say(A, suspect(1, A));
    rig.answer(A, &[(Unit(0), state(1, 3)), (Unit(1), state(1, 3))]);
    rig.wait(60);
    assert_eq!(rig.plan().generation, Generation(2));
    assert_eq!(rig.plan().deadline.doublings, 0);
}
