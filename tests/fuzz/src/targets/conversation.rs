//! Messages between processes, as seeds.

use super::ID;
use std::collections::BTreeMap;
use varuna_frames::PreparedHeader;
use varuna_plan::state::{Chain, UnitNorm};
use varuna_plan::{
    Base, Decision, Generation, Layout, Pipeline, Plan, Prediction, Recompute, SampleRange, ScheduleKind,
    ScheduleSpec, SegmentRange, Shape, Stage, StateId, Step, StepDeadline, Unit, WorkerId,
};
use varuna_protocol::{Inventory, Phase, Prepared, Ran, Status};
use varuna_wire::Hello;

/// The layout in all messages.
pub(super) const LAYOUT: Layout = Layout::new(2, false);

/// The step that leads to this state.
pub(super) fn decision(id: StateId) -> Decision {
    let parent = StateId {
        run_gen: id.run_gen,
        step: Step(id.step.0.saturating_sub(1)),
        chain: Chain(id.chain.0 ^ 1),
    };
    Decision {
        parent,
        id,
        norm2: 2.5,
        overflow: false,
        before: varuna_plan::OptimizerProgress::START,
        loss: 1.5,
        eval_loss: Some(f64::INFINITY),
        switch: Some(id.run_gen.next()),
    }
}

/// The gradient of unit 1 for its spare copy, from a step at this state.
pub(super) fn prepared(at: StateId) -> PreparedHeader {
    PreparedHeader {
        unit: Unit(1),
        run_gen: at.run_gen,
        step: at.step,
        norm: UnitNorm {
            norm2: 2.5,
            overflow: false,
            before: varuna_plan::OptimizerProgress::START,
            loss: 1.5,
            eval_loss: None,
        },
        elements: 2,
    }
}

pub(super) fn hello(worker: WorkerId) -> Hello {
    Hello {
        worker,
        name: format!("w{}", worker.0),
        address: format!("host:{}", worker.0),
        node: "n".into(),
        host: "h".into(),
        pid: 7,
        hardware: None,
        workers_on_gpu: 1,
        memory_bytes: Some(1 << 30),
        copies_bytes: None,
        scores: Some(varuna_plan::ScoreMemory {
            saved_bytes: 1 << 20,
            forward_bytes: 3 << 19,
            backward_bytes: 2 << 20,
        }),
        device: "cpu".into(),
        speed: 1.0,
        run: String::new(),
    }
}

pub(super) fn status(phase: Phase) -> Status {
    Status {
        generation: Generation(2),
        fenced: Generation(1),
        phase,
        based: true,
        connected: true,
        next: Generation(0),
        next_connected: false,
        following: varuna_protocol::Following::Unable,
        keeping: varuna_protocol::Keeping::InStep,
        parameters_first: false,
        at: ID,
        draining: false,
        last_step: Step(20),
    }
}

pub(super) fn inventory() -> Inventory {
    let norm = UnitNorm {
        norm2: 2.5,
        overflow: false,
        before: varuna_plan::OptimizerProgress::START,
        loss: 1.5,
        eval_loss: None,
    };
    let prepared = Prepared {
        run_gen: ID.run_gen,
        step: ID.step,
        norm,
    };
    Inventory {
        upto: Generation(2),
        units: LAYOUT.all_units().map(|u| (u, ID)).collect(),
        prepared: BTreeMap::from([(Unit(0), prepared)]),
        ran: Some(Ran {
            generation: ID.run_gen,
            step: ID.step,
            norm_put_in: true,
        }),
        decision: Some(decision(ID)),
    }
}

/// A plan with two stages on two workers.
pub(super) fn plan() -> Plan {
    let stage = |worker, start| Stage {
        worker: WorkerId(worker),
        segments: SegmentRange {
            start,
            end: start + 1,
        },
        recompute: Some(Recompute::Selective),
    };
    let schedule = ScheduleSpec {
        kind: ScheduleKind::OneForwardOneBackward { warmup_factor: 1.5 },
        recompute: Recompute::None,
    };
    let shape = Shape {
        pipelines: vec![Pipeline {
            stages: vec![stage(1, 0), stage(2, 1)],
            samples: SampleRange { start: 0, end: 8 },
        }],
        spares: Vec::new(),
        micro_batch_size: 2,
        schedule,
        predicted: Prediction::default(),
    };
    Plan {
        generation: Generation(2),
        parent: Generation(1),
        base: Base::Fixed {
            id: StateId::INITIAL,
            decision: None,
            checkpoint: true,
        },
        layout: LAYOUT,
        shape,
        sources: vec![Vec::new(), vec![WorkerId(2)]],
        addresses: [1, 2].map(|w| (WorkerId(w), format!("host:{w}"))).into(),
        deadline: StepDeadline::of_ms(50),
        relay: false,
        tree_fan_out: 2,
        following: false,
        parameters_first: false,
        keepers: vec![Some(WorkerId(2)), Some(WorkerId(1))],
        evidence: vec![WorkerId(1)],
        reason: "a worker joined".into(),
        index: varuna_plan::PlanIndex::default(),
    }
}
