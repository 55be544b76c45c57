//! Who sends which parameters.

use super::super::{Pipeline, Prediction, Recompute, SampleRange, ScheduleKind, ScheduleSpec, Shape, Stage};
use super::*;
use crate::check::{PlanError, check_plan};
use crate::ids::Generation;
use crate::layout::{Layout, SegmentRange};
use crate::state::Chain;

const BASE: StateId = StateId {
    run_gen: Generation(1),
    step: Step(5),
    chain: Chain(1),
};
pub(crate) const A: WorkerId = WorkerId(1);
pub(crate) const B: WorkerId = WorkerId(2);
pub(crate) const C: WorkerId = WorkerId(3);
pub(crate) const D: WorkerId = WorkerId(4);

/// Two pipelines of two stages of one segment: A and B, C and D. A has both segments, and B nothing; C and D have theirs.
pub(crate) fn plan() -> Plan {
    let layout = Layout::new(2, false);
    let stage = |worker, start| Stage {
        worker,
        segments: SegmentRange {
            start,
            end: start + 1,
        },
        recompute: None,
    };
    let pipeline = |workers: [WorkerId; 2], start| Pipeline {
        stages: workers.into_iter().zip(0..).map(|(w, s)| stage(w, s)).collect(),
        samples: SampleRange {
            start,
            end: start + 1,
        },
    };
    let shape = Shape {
        pipelines: vec![pipeline([A, B], 0), pipeline([C, D], 1)],
        spares: Vec::new(),
        micro_batch_size: 1,
        schedule: ScheduleSpec {
            kind: ScheduleKind::Gpipe,
            recompute: Recompute::None,
        },
        predicted: Prediction::default(),
    };
    Plan {
        base: Base::Fixed {
            id: BASE,
            decision: None,
            checkpoint: false,
        },
        sources: vec![vec![A, C], vec![A, D]],
        addresses: [A, B, C, D].map(|w| (w, format!("{w}:1"))).into(),
        parameters_first: true,
        ..Plan::first(layout, shape)
    }
}

#[test]
fn first_source_of_what_a_member_lacks_sends_its_parameters() {
    let plan = plan();
    assert!(plan.can_send_parameters_first());
    assert_eq!(check_plan(&plan, 2), Ok(()));
    let sender = plan.parameters_sender(B, Unit(1), BASE.step).unwrap();
    assert_eq!(Some(&sender), plan.sources_for(B, Unit(1)).first());
    assert!(plan.links(B).contains(&sender));
    for worker in [A, B, C, D] {
        let expected = if worker == sender { vec![B] } else { Vec::new() };
        assert_eq!(plan.parameters_receivers(worker, Unit(1), BASE.step), expected);
        assert!(plan.parameters_receivers(worker, Unit(0), BASE.step).is_empty());
    }
    assert_eq!(plan.parameters_sender(B, Unit(0), BASE.step), None, "not its own");
    assert_eq!(plan.parameters_sender(D, Unit(1), BASE.step), None, "it has it");
}

#[test]
fn only_the_first_step_of_such_a_plan_has_senders() {
    let next = BASE.step.next();
    assert!(!plan().sends_parameters_in(next));
    assert_eq!(plan().parameters_sender(B, Unit(1), next), None);
    let mut other = plan();
    other.parameters_first = false;
    assert_eq!(other.parameters_sender(B, Unit(1), BASE.step), None);
    let text = serde_json::to_string(&plan()).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan());
    let text = serde_json::to_string(&other).unwrap();
    assert!(
        !text.contains("parametersFirst"),
        "earlier builds know no such field"
    );
}

#[test]
fn parameters_come_first_only_where_members_have_all_of_them() {
    let can = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plan();
        change(&mut plan);
        let can = plan.can_send_parameters_first();
        let expected = if can {
            Ok(())
        } else {
            Err(PlanError::ParametersFirst)
        };
        assert_eq!(check_plan(&plan, 2), expected);
        can
    };
    assert!(can(&|_| {}));
    assert!(!can(&|p| p.relay = true));
    assert!(!can(&|p| p.sources[1] = vec![A, B, D]), "nobody lacks anything");
    assert!(
        !can(&|p| {
            p.sources[1] = vec![WorkerId(9)];
            p.addresses.insert(WorkerId(9), "9:1".into());
        }),
        "only a worker without a stage has it"
    );
    assert!(
        !can(&|p| p.base = Base::AtSwitch { from: Generation(0) }),
        "nobody knows the base yet"
    );
    let from_store = |p: &mut Plan| {
        p.sources[1].clear();
        p.base = Base::Fixed {
            id: BASE,
            decision: None,
            checkpoint: true,
        };
    };
    assert!(!can(&from_store), "it comes from a checkpoint");
}
