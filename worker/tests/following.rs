//! A unit that is followed: another engine gets a copy of its state, and then applies the reduced gradient of each step. The result has the
//! same bits.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Case, engine, later, plan, single};
use varuna_api::{Precision, UpdateRule};
use varuna_plan::state::UnitNorm;
use varuna_plan::{Decision, LossScaling, Plan, ScaleFactor, StateId, Unit, WorkerId};
use varuna_worker::engine::Engine;
use varuna_worker::transport::Link;
use varuna_worker::transport::local::LocalMesh;

const HOLDER: WorkerId = WorkerId(1);
const FOLLOWER: WorkerId = WorkerId(2);

/// A worker that trains the whole model alone.
struct Holder {
    engine: Engine,
    plan: Plan,
    link: std::sync::Arc<dyn Link>,
    at: StateId,
}

impl Holder {
    fn new(case: &Case) -> Holder {
        let plan = plan(case, &single(case));
        let mut engine = engine(case, HOLDER);
        for unit in plan.units(HOLDER) {
            engine.initialise(unit).unwrap();
        }
        Holder {
            engine,
            link: LocalMesh::new(&[HOLDER]).link(HOLDER),
            plan,
            at: StateId::INITIAL,
        }
    }

    fn units(&self) -> Vec<Unit> {
        self.plan.units(HOLDER)
    }

    /// Runs a step up to its decision.
    fn conclude(&mut self) -> Decision {
        let report = self
            .engine
            .run_step(&self.plan, self.at.step, &self.link, later())
            .unwrap();
        let norms: Vec<UnitNorm> = report.prepared.iter().map(|(_, norm)| *norm).collect();
        Decision::conclude(self.at, self.plan.generation, &norms, None)
    }

    fn apply(&mut self, decision: &Decision) {
        self.engine.apply(decision, &self.plan.units(HOLDER)).unwrap();
        self.at = decision.id;
    }
}

/// The result of a follower.
#[derive(PartialEq, Debug)]
struct Followed {
    /// Whether it has the same bits as the holder.
    same_bits: bool,
    /// Whether it followed skipped steps.
    skipped: bool,
}

/// An engine follows from step `from` to step `to`. The gradients are multiplied by `scale` on the way.
fn follow(case: &Case, (from, to): (u64, u64), scale: f32) -> Followed {
    let mut holder = Holder::new(case);
    let mut follower = engine(case, FOLLOWER);
    let mut skipped = false;
    for step in 0..to {
        if step == from {
            for unit in holder.units() {
                let state = holder.engine.export(unit).unwrap();
                follower.import(unit, &state).unwrap();
            }
        }
        let decision = holder.conclude();
        let gradient = |unit: Unit| match decision.overflow {
            true => Vec::new(),
            false => holder.engine.gradient(unit).unwrap(),
        };
        let sent = holder.units().into_iter().map(|unit| (unit, gradient(unit)));
        let sent: Vec<(Unit, Vec<f32>)> = sent.collect();
        holder.apply(&decision);
        if step < from {
            continue;
        }
        skipped |= decision.overflow;
        for (unit, mut gradient) in sent {
            gradient.iter_mut().for_each(|g| *g *= scale);
            follower.apply_forwarded(&decision, unit, gradient).unwrap();
        }
    }
    let same = |unit: Unit| follower.export(unit).unwrap() == holder.engine.export(unit).unwrap();
    Followed {
        same_bits: holder.units().into_iter().all(same),
        skipped,
    }
}

const SAME: Followed = Followed {
    same_bits: true,
    skipped: false,
};

#[test]
fn a_follower_has_equal_bits_after_a_thousand_steps() {
    tch::set_num_threads(1);
    assert_eq!(follow(&Case::default(), (3, 1003), 1.0), SAME);
}

#[test]
fn follower_matches_in_every_precision() {
    tch::set_num_threads(1);
    let case = |precision, scaling| Case {
        precision,
        scaling,
        ..Case::default()
    };
    let bf16 = case(Precision::Bf16, LossScaling::OFF);
    assert_eq!(follow(&bf16, (2, 60), 1.0), SAME);
    // The first steps overflow.
    let fp16 = case(
        Precision::Fp16,
        LossScaling::Dynamic {
            initial: ScaleFactor::two_to(32),
            minimum: ScaleFactor::ONE,
            window: 8,
        },
    );
    let expected = Followed {
        skipped: true,
        ..SAME
    };
    assert_eq!(follow(&fp16, (2, 60), 1.0), expected);
}

#[test]
fn a_follower_with_any_optimizer_has_equal_bits() {
    tch::set_num_threads(1);
    for precision in [Precision::Fp32, Precision::Bf16] {
        for rule in [UpdateRule::Sgd { momentum: 0.9 }, common::MUON] {
            let case = Case {
                precision,
                rule,
                ..Case::default()
            };
            assert_eq!(follow(&case, (2, 60), 1.0), SAME, "{precision:?} {rule:?}");
        }
    }
}

/// The follower clips by the decision's norm, so a gradient that was clipped before it is sent would be clipped twice.
#[test]
fn a_gradient_that_is_not_the_holders_leads_elsewhere() {
    tch::set_num_threads(1);
    let led = follow(&Case::default(), (1, 3), 0.5);
    assert!(!led.same_bits);
}

#[test]
fn a_gradient_of_another_size_is_refused_and_changes_nothing() {
    let case = Case::default();
    let mut holder = Holder::new(&case);
    let mut follower = engine(&case, FOLLOWER);
    let unit = holder.units()[0];
    let decision = holder.conclude();
    let before = holder.engine.export(unit).unwrap();
    assert!(
        follower.apply_forwarded(&decision, unit, vec![1.0]).is_err(),
        "it is not held"
    );
    follower.import(unit, &before).unwrap();
    let refused = follower
        .apply_forwarded(&decision, unit, vec![1.0, 2.0])
        .unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("a gradient of 2 elements for a unit of"),
        "{refused}"
    );
    assert_eq!(follower.export(unit).unwrap(), before);
}
