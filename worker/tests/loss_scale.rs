//! fp16 with a loss scale: the losses equal those of single precision within fp16's digits, the same steps are skipped under every plan,
//! and the counters continue when a state is moved.

#[expect(clippy::unwrap_used, reason = "a part of tests")]
mod common;

use common::{
    Case, LLAMA_LIKE, QWEN_LIKE, Trained, assert_losses_close, engine, later, plan, run, shape, single,
};
use varuna_api::Precision;
use varuna_model::Features;
use varuna_plan::{
    Decision, LossScaling, OptimizerProgress, Recompute, ScaleFactor, StateId, Step, Unit, WorkerId,
};
use varuna_worker::transport::local::LocalMesh;

const STEPS: u64 = 40;
const ONE: WorkerId = WorkerId(1);
/// Relative tolerance of losses. fp16 has eleven binary digits, so a rounding is off by at most one in 4096, an eighth of bf16's error. The
/// errors of many roundings mostly cancel out: 0.8e-4 was observed.
const OFF: f64 = 3e-4;

fn dynamic(initial: u8, window: u32) -> LossScaling {
    LossScaling::Dynamic {
        initial: ScaleFactor::two_to(initial),
        minimum: ScaleFactor::ONE,
        window,
    }
}

fn fp16(scaling: LossScaling) -> Case {
    Case {
        precision: Precision::Fp16,
        scaling,
        ..Case::default()
    }
}

fn skipped(of: &Trained) -> Vec<usize> {
    let steps = of.overflows.iter().enumerate();
    steps.filter(|(_, o)| **o).map(|(step, _)| step).collect()
}

#[test]
fn fp16_draws_the_curve_of_fp32_and_not_its_bits() {
    for (tied, features) in [
        (true, Features::GPT2),
        (false, Features::GPT2),
        (true, LLAMA_LIKE),
        (true, QWEN_LIKE),
    ] {
        let narrow = Case {
            tied,
            features,
            ..fp16(dynamic(10, 1000))
        };
        let wide = Case {
            precision: Precision::Fp32,
            scaling: LossScaling::OFF,
            tied,
            features,
            ..Case::default()
        };
        let narrow = run(&narrow, &single(&narrow), STEPS);
        let wide = run(&wide, &single(&wide), STEPS);
        assert!(skipped(&narrow).is_empty(), "{:?}", skipped(&narrow));
        assert_losses_close(&narrow, &wide, OFF, &format!("tied {tied}, {features:?}"));
        assert_ne!(narrow.losses, wide.losses);
        assert!(narrow.losses[STEPS as usize - 1] < 0.9 * narrow.losses[0]);
    }
}

#[test]
fn large_scales_keep_gradient_bits_and_small_ones_do_not() {
    let norms = |precision, scaling| -> Vec<f64> {
        let case = Case {
            precision,
            scaling,
            ..Case::default()
        };
        let plan = plan(&case, &single(&case));
        let mut engine = engine(&case, ONE);
        for unit in plan.units(ONE) {
            engine.initialise(unit).unwrap();
        }
        let link = LocalMesh::new(&[ONE]).link(ONE);
        let report = engine.run_step(&plan, Step(0), &link, later()).unwrap();
        assert!(report.prepared.iter().all(|(_, norm)| !norm.overflow));
        report
            .prepared
            .iter()
            .map(|(_, norm)| norm.norm2.sqrt())
            .collect()
    };
    let scaled = |exponent| {
        let scaling = LossScaling::Static(ScaleFactor::two_to(exponent));
        norms(Precision::Fp16, scaling)
    };
    // Scaling by a power of two causes no rounding, if no number is below the smallest numbers of fp16.
    let large = scaled(17);
    assert_eq!(scaled(16), large);
    let off = |norms: &[f64], exact: &[f64]| {
        let off = norms.iter().zip(exact).map(|(a, b)| (a / b - 1.0).abs());
        off.fold(0.0, f64::max)
    };
    let exact = norms(Precision::Fp32, LossScaling::OFF);
    assert!(off(&large, &exact) < 1e-3, "{}", off(&large, &exact));
    // Below 2^-14 a number has fewer digits, and below 2^-24 none.
    let lost = [0, 4, 8, 12].map(|exponent| off(&scaled(exponent), &large));
    assert!(lost.is_sorted_by(|a, b| a > b), "{lost:?}");
}

#[test]
fn too_large_scale_falls_and_rises_after_a_window() {
    let case = fp16(dynamic(32, 6));
    let trained = run(&case, &single(&case), STEPS);
    let skipped = skipped(&trained);
    let falls = (0..).zip(&skipped).take_while(|(i, step)| i == *step).count();
    assert!((3..30).contains(&falls), "{skipped:?}");
    assert!(
        skipped.len() > falls,
        "it rises until it is too large again: {skipped:?}"
    );
    let applied = STEPS - skipped.len() as u64;
    let progress = trained.progress.unwrap();
    assert_eq!((progress.adam_steps, progress.failed_in_a_row), (applied, 0));
    let expected = trained.overflows.iter();
    let first = OptimizerProgress::initial(&case.scaling);
    assert_eq!(progress, expected.fold(first, |p, o| p.after(*o, &case.scaling)));
}

#[test]
fn skipped_steps_are_the_same_under_every_plan() {
    let case = fp16(dynamic(32, 8));
    let unsplit = run(&case, &shape(&case, &[&[6]], &[8], 2), STEPS);
    for (name, plan) in [
        ("cut inside a block", shape(&case, &[&[2, 4]], &[8], 2)),
        ("two pipelines", shape(&case, &[&[1, 3, 2], &[4, 2]], &[2, 6], 2)),
    ] {
        let split = run(&case, &plan, STEPS);
        assert_eq!(skipped(&split), skipped(&unsplit), "{name}");
        assert_eq!(split.progress, unsplit.progress, "{name}");
        assert_losses_close(&split, &unsplit, OFF, name);
    }
}

#[test]
fn cuts_alone_change_no_bit_and_neither_does_recomputing() {
    // An untied head, and one micro-batch for the whole batch: no sum has another order.
    let case = Case {
        tied: false,
        ..fp16(dynamic(30, 8))
    };
    let of = |stages: &[u32], recompute| {
        let mut plan = shape(&case, &[stages], &[8], 8);
        plan.schedule.recompute = recompute;
        run(&case, &plan, STEPS)
    };
    let unsplit = of(&[6], Recompute::None);
    assert!(!skipped(&unsplit).is_empty());
    for (stages, recompute) in [
        (&[2, 4][..], Recompute::None),
        (&[1, 1, 1, 1, 1, 1], Recompute::Full),
        (&[3, 3], Recompute::Selective),
    ] {
        let split = of(stages, recompute);
        assert_eq!(split, unsplit, "{stages:?}");
    }
}

#[test]
fn infinite_loss_is_skipped_in_every_precision() {
    for precision in [Precision::Fp32, Precision::Bf16, Precision::Fp16] {
        let case = Case {
            precision,
            ..Case::default()
        };
        let plan = plan(&case, &single(&case));
        let link = LocalMesh::new(&[ONE]).link(ONE);
        let mut engine = engine(&case, ONE);
        for unit in plan.units(ONE) {
            engine.initialise(unit).unwrap();
        }
        // One parameter that is a NaN makes all later values NaN.
        let mut spoiled = engine.export(Unit(2)).unwrap();
        spoiled.data[0] = f32::NAN;
        engine.import(Unit(2), &spoiled).unwrap();
        let before: Vec<_> = engine.held().iter().map(|u| engine.export(*u).unwrap()).collect();
        let report = engine.run_step(&plan, Step(0), &link, later()).unwrap();
        let parts: Vec<_> = report.prepared.iter().map(|(_, norm)| *norm).collect();
        let again = engine.run_step(&plan, Step(0), &link, later()).unwrap();
        assert_eq!(
            report.prepared, again.prepared,
            "{precision:?}: equal, though not numbers"
        );
        let decision = Decision::conclude(StateId::INITIAL, plan.generation, &parts, None);
        assert!(decision.overflow && decision.norm2 == f64::INFINITY && decision.loss == f64::INFINITY);
        engine.apply(&decision, &plan.units(ONE)).unwrap();
        let bits = |data: &[f32]| data.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        for (unit, before) in engine.held().into_iter().zip(before) {
            let after = engine.export(unit).unwrap();
            assert_eq!(bits(&after.data), bits(&before.data));
            assert_eq!(
                (after.progress.adam_steps, after.progress.failed_in_a_row),
                (0, 1)
            );
        }
    }
}

#[test]
fn what_was_counted_goes_on_where_a_state_is_moved() {
    let case = fp16(dynamic(32, 6));
    let plan = plan(&case, &single(&case));
    let link = LocalMesh::new(&[ONE]).link(ONE);
    let mut first = engine(&case, ONE);
    for unit in plan.units(ONE) {
        first.initialise(unit).unwrap();
    }
    let whole = run(&case, &single(&case), STEPS);
    let (mut engine, mut at, mut losses) = (first, StateId::INITIAL, Vec::new());
    for step in 0..STEPS {
        // The state is moved while the scale decreases, and later.
        if [2, 3, 20].contains(&step) {
            let mut next = common::engine(&case, ONE);
            for unit in engine.held() {
                next.import(unit, &engine.export(unit).unwrap()).unwrap();
            }
            engine = next;
        }
        let report = engine.run_step(&plan, at.step, &link, later()).unwrap();
        let parts: Vec<_> = report.prepared.iter().map(|(_, norm)| *norm).collect();
        let decision = Decision::conclude(at, plan.generation, &parts, None);
        engine.apply(&decision, &plan.units(ONE)).unwrap();
        at = decision.id;
        losses.push(decision.loss);
    }
    assert_eq!(losses, whole.losses);
    assert_eq!(Some(engine.export(Unit(0)).unwrap().progress), whole.progress);
}
