//! Narrower formats: the losses equal those of single precision within their digits, and the bits are the same under all plans in which no
//! sum has another order.

#[expect(clippy::unwrap_used, reason = "a part of tests")]
mod common;

use common::{
    BERT_LIKE, Case, LLAMA_LIKE, PACKED, QWEN_LIKE, apart, assert_close, assert_losses_close, engine, masked,
    run, shape, single,
};
use varuna_api::{Packing, Precision};
use varuna_model::Features;
use varuna_plan::{Recompute, Shape, WorkerId};

const STEPS: u64 = 40;
/// Relative tolerance of losses. bfloat16 has eight binary digits, so a rounding is off by at most one in 512. The errors of many roundings
/// mostly cancel out.
const OFF: f64 = 1e-2;
/// The same over few steps and without dropout: several times the difference that models of this size have.
const OFF_OF_FEW: f64 = 3e-3;
const FEW: u64 = 20;

fn bf16() -> Case {
    Case {
        precision: Precision::Bf16,
        ..Case::default()
    }
}

/// Two pipelines of unequal cuts and shares.
fn split(case: &Case, recompute: Recompute) -> Shape {
    let mut split = shape(case, &[&[1, 3, 2], &[4, 2]], &[3, 5], 2);
    split.schedule.recompute = recompute;
    split
}

#[test]
fn bf16_whole_and_split_has_the_curve_of_fp32_not_its_bits() {
    for (tied, features) in [
        (true, Features::GPT2),
        (false, Features::GPT2),
        (true, LLAMA_LIKE),
        (true, QWEN_LIKE),
    ] {
        let narrow = Case {
            tied,
            features,
            ..bf16()
        };
        let wide = Case {
            precision: Precision::Fp32,
            tied,
            features,
            ..Case::default()
        };
        let wide = run(&wide, &single(&wide), STEPS);
        for plan in [single(&narrow), split(&narrow, Recompute::Selective)] {
            let narrow = run(&narrow, &plan, STEPS);
            assert_losses_close(&narrow, &wide, OFF, &format!("tied {tied}, {features:?}"));
            assert_ne!(narrow.losses, wide.losses);
            assert!(narrow.losses[STEPS as usize - 1] < 0.9 * narrow.losses[0]);
        }
    }
}

fn bert() -> Case {
    masked(BERT_LIKE)
}

fn llama() -> Case {
    Case {
        dropout: 0.0,
        features: LLAMA_LIKE,
        ..Case::default()
    }
}

#[test]
fn bf16_has_fp32s_curve_on_masked_tokens_and_packed_documents() {
    let without_loss_mask = Packing {
        mask_loss: false,
        ..PACKED
    };
    let models = [
        ("BERT", bert(), Packing::default()),
        ("BERT and documents", bert(), without_loss_mask),
        ("Llama and documents", llama(), PACKED),
    ];
    for (name, model, packing) in models {
        let of = |precision, packing| Case {
            precision,
            packing,
            ..model.clone()
        };
        let (case, wide) = (of(Precision::Bf16, packing), of(Precision::Fp32, packing));
        let wide = run(&wide, &single(&wide), FEW);
        let one_text = of(Precision::Fp32, Packing::default());
        let one_text = run(&one_text, &single(&one_text), FEW);
        for plan in [
            single(&case),
            split(&case, Recompute::Selective),
            split(&case, Recompute::Full),
        ] {
            let narrow = run(&case, &plan, FEW);
            assert_losses_close(&wide, &narrow, OFF_OF_FEW, name);
            assert_ne!(narrow.losses, wide.losses, "{name}");
            let (own, other) = (apart(&wide, &narrow), apart(&one_text, &narrow));
            let tells = packing.is_off() || other > 2.0 * own;
            assert!(
                tells,
                "{name}: {own:.1e} from its own curve, {other:.1e} from that of one text"
            );
        }
    }
}

#[test]
fn bf16_draws_the_same_curve_under_every_plan() {
    let case = bf16();
    let unsplit = run(&case, &single(&case), STEPS);
    for (name, plan) in [
        ("cut inside a block", shape(&case, &[&[2, 4]], &[8], 2)),
        ("two pipelines", shape(&case, &[&[1, 3, 2], &[4, 2]], &[3, 5], 2)),
    ] {
        assert_losses_close(&run(&case, &plan, STEPS), &unsplit, OFF, name);
    }
}

#[test]
fn cuts_alone_change_no_bit_and_neither_does_recomputing() {
    // An untied head, and one micro-batch for the whole batch: no sum has another order.
    let case = Case {
        tied: false,
        ..bf16()
    };
    let of = |stages: &[u32], recompute| {
        let mut plan = shape(&case, &[stages], &[8], 8);
        plan.schedule.recompute = recompute;
        run(&case, &plan, STEPS)
    };
    let unsplit = of(&[6], Recompute::None);
    for (stages, recompute) in [
        (&[2, 4][..], Recompute::None),
        (&[1, 1, 1, 1, 1, 1], Recompute::Full),
        (&[3, 3], Recompute::Selective),
    ] {
        let split = of(stages, recompute);
        assert_eq!(split.losses, unsplit.losses, "{stages:?}");
        assert_eq!(split.parameters, unsplit.parameters, "{stages:?}");
    }
}

#[test]
fn state_is_single_precision_whatever_is_computed_in() {
    let (mut narrow, mut wide) = (
        engine(&bf16(), WorkerId(1)),
        engine(&Case::default(), WorkerId(1)),
    );
    for unit in bf16().model().layout().all_units() {
        narrow.initialise(unit).unwrap();
        wide.initialise(unit).unwrap();
        let state = narrow.export(unit).unwrap();
        assert_eq!(state, wide.export(unit).unwrap(), "{unit}: masters begin alike");
        // The state of each precision can be used by the other.
        wide.import(unit, &state).unwrap();
        assert_eq!(
            wide.parameters_digest(unit).unwrap(),
            narrow.parameters_digest(unit).unwrap()
        );
    }
}

#[test]
fn a_step_too_small_for_bf16_still_moves_the_masters() {
    // With the learning rate of the smallest steps, parameters with eight digits would not change.
    let case = bf16();
    let trained = run(&case, &single(&case), STEPS);
    let rounded = |x: f32| x.to_bits() & 0xffff == 0;
    for (unit, data) in &trained.parameters {
        let masters = &data[..data.len() / 3];
        let narrow = masters.iter().filter(|x| rounded(**x)).count();
        assert!(
            masters.is_empty() || narrow * 10 < masters.len(),
            "unit {unit}: {narrow} of {} masters are bf16 numbers",
            masters.len()
        );
    }
    assert_close(
        &trained,
        &run(&case, &single(&case), STEPS),
        0.0,
        "the same run twice",
    );
}
