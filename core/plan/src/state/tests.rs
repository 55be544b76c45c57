use super::*;
use crate::loss_scale::ScaleFactor;

fn part(norm2: f64, loss: f64, eval_loss: Option<f64>) -> UnitNorm {
    UnitNorm {
        norm2,
        overflow: false,
        loss,
        eval_loss,
        before: OptimizerProgress::START,
    }
}

fn conclude(parts: &[UnitNorm]) -> Decision {
    Decision::conclude(StateId::INITIAL, Generation(3), parts, None)
}

#[test]
fn a_decision_sums_its_parts_and_one_overflow_is_enough() {
    let mut parts = [part(1.5, 0.0, Some(2.5)), part(2.0, 0.25, Some(4.0))];
    let decision = conclude(&parts);
    assert_eq!((decision.norm2, decision.loss), (3.5, 0.25));
    assert_eq!((decision.eval_loss, decision.overflow), (Some(6.5), false));
    parts[1].overflow = true;
    let skipped = conclude(&parts);
    assert!(skipped.overflow);
    assert_eq!(skipped.norm2, f64::INFINITY, "its norm says nothing");
}

/// The names of checkpoints contain the state id, so it must be the same in all versions.
#[test]
fn the_same_decisions_lead_to_the_same_state_in_every_version() {
    let first = conclude(&[part(1.5, 0.25, None)]);
    let second = Decision::conclude(first.id, Generation(4), &[part(2.0, 0.5, None)], None);
    let shown = [first.id, second.id].map(|id| id.to_string());
    assert_eq!(
        shown,
        [
            "step 1 of generation 3 (96a577690e6e8de1)",
            "step 2 of generation 4 (e604c9b80ce72e56)"
        ]
    );
}

#[test]
fn each_number_of_a_decision_tells_its_state_from_another() {
    let parts = [part(1.5, 0.25, None)];
    let overflow = UnitNorm {
        overflow: true,
        ..parts[0]
    };
    let later = StateId {
        step: Step(1),
        ..StateId::INITIAL
    };
    let others = [
        conclude(&[part(1.0, 0.25, None)]),
        conclude(&[part(1.5, 0.5, None)]),
        conclude(&[overflow]),
        Decision::conclude(StateId::INITIAL, Generation(4), &parts, None),
        Decision::conclude(later, Generation(3), &parts, None),
    ];
    let chain = conclude(&parts).id.chain;
    assert!(others.iter().all(|d| d.id.chain != chain));
}

#[test]
fn which_nan_a_gradient_became_makes_no_other_decision() {
    let nan = |bits: u64| f64::from_bits(f64::NAN.to_bits() | bits);
    let odd = [nan(0), nan(1 << 63 | 5), f64::INFINITY, f64::NEG_INFINITY];
    let norm = |x: f64| UnitNorm::new(x, x, Some(x), OptimizerProgress::START);
    assert!(odd.iter().all(|x| norm(*x) == norm(nan(0)) && norm(*x).overflow));
    let first = conclude(&[norm(odd[0])]);
    assert!(first.overflow);
    for x in odd {
        assert_eq!(conclude(&[norm(x)]), first);
        // The same is true for a peer's parts that leave the values unchanged.
        let raw = UnitNorm {
            overflow: true,
            ..part(x, x, Some(x))
        };
        assert_eq!(conclude(&[raw]), first);
    }
}

#[test]
fn infinite_loss_is_an_overflow() {
    let new = |norm2, loss| UnitNorm::new(norm2, loss, None, OptimizerProgress::START);
    assert!(new(1.0, f64::NAN).overflow);
    assert!(!new(1.0, 2.5).overflow);
    let decision = conclude(&[new(f64::NAN, 2.5)]);
    assert_eq!((decision.norm2, decision.loss), (f64::INFINITY, 2.5));
}

#[test]
fn a_step_without_targets_has_no_loss_and_the_name_of_loss_zero() {
    let new = |loss| UnitNorm::new(0.0, loss, None, OptimizerProgress::START);
    let none = conclude(&[new(0.0), new(0.0).without_loss()]);
    assert_eq!(none.mean_loss(), None);
    assert!(!none.overflow, "the optimizer applies it");
    let zero = conclude(&[new(0.0), new(0.0)]);
    assert_eq!(zero.mean_loss(), Some(0.0));
    assert_eq!(
        none.id, zero.id,
        "builds that know no such step go on with the same state"
    );
    // A loss that rounds to nothing from below is one.
    assert_eq!(conclude(&[new(-0.0)]).mean_loss(), Some(0.0));
    let text = serde_json::to_string(&none).unwrap();
    let read: Decision = serde_json::from_str(&text).unwrap();
    assert_eq!(read.mean_loss(), None, "{text}");
}

#[test]
fn decision_has_the_counters_before_and_after() {
    let scaling = LossScaling::Dynamic {
        initial: ScaleFactor::two_to(2),
        minimum: ScaleFactor::ONE,
        window: 2,
    };
    let before = OptimizerProgress::initial(&scaling);
    let decision = conclude(&[UnitNorm::new(f64::NAN, 1.0, None, before)]);
    assert_eq!(decision.before, before);
    assert_eq!(decision.after(&scaling).loss_scale.factor.value(), 2);
    let text = serde_json::to_string(&decision).unwrap();
    assert_eq!(serde_json::from_str::<Decision>(&text).unwrap(), decision);
    let mut old: serde_json::Value = serde_json::from_str(&text).unwrap();
    old.as_object_mut().unwrap().remove("before").unwrap();
    let old: Decision = serde_json::from_value(old).unwrap();
    assert_eq!((old.id, old.before), (decision.id, OptimizerProgress::START));
}

#[test]
fn no_run_has_more_steps_or_generations_than_a_state_may_name() {
    let possible = |run_gen, step| {
        let id = StateId {
            run_gen: Generation(run_gen),
            step: Step(step),
            ..StateId::INITIAL
        };
        id.is_possible()
    };
    let most = 1 << 48;
    assert!(possible(most, most));
    assert!(!possible(most + 1, 0));
    assert!(!possible(0, most + 1));
}

#[test]
fn a_diverged_decision_is_written_in_words_and_read_back() {
    for (loss, eval_loss) in [
        (0.25, Some(0.5)),
        (f64::NAN, Some(f64::NEG_INFINITY)),
        (f64::INFINITY, None),
    ] {
        let decision = conclude(&[part(1.5, loss, eval_loss)]);
        let text = serde_json::to_string(&decision).unwrap();
        let read: Decision = serde_json::from_str(&text).unwrap();
        assert_eq!(format!("{read:?}"), format!("{decision:?}"), "{text}");
    }
    let text = serde_json::to_string(&conclude(&[part(f64::NAN, 0.0, None)])).unwrap();
    assert!(text.contains("\"inf\""), "{text}");
    for word in ["1.5", "none"] {
        let text = text.replace("inf", word);
        assert!(serde_json::from_str::<Decision>(&text).is_err(), "{text}");
    }
}

#[test]
fn impossible_states_and_decisions_are_refused() {
    let id = |step: u64| format!(r#"{{"run_gen":1,"step":{step},"chain":"00000000000000ab"}}"#);
    let decision = |from: u64, to: u64| {
        let text = format!(
            r#"{{"parent":{},"id":{},"norm2":"NaN","overflow":false,"loss":1.5,"eval_loss":null,"switch":null}}"#,
            id(from),
            id(to)
        );
        serde_json::from_str::<Decision>(&text)
    };
    assert!(decision(4, 5).unwrap().norm2.is_nan());
    let error = decision(5, 5).unwrap_err().to_string();
    assert!(error.contains("the step after the first is allowed"), "{error}");
    assert!(decision(5, 0).is_err());
    let read = |step| serde_json::from_str::<StateId>(&id(step));
    assert!(read(StateId::NUMBER_MAX).is_ok());
    let error = read(StateId::NUMBER_MAX + 1).unwrap_err().to_string();
    assert!(
        error.contains("step 281474976710657 of generation 1") && error.contains("up to 281474976710656"),
        "{error}"
    );
}
