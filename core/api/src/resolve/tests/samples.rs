//! Settings for documents that share a sample, and for masked tokens.

use super::{FULL, MINIMAL, with};
use crate::resolve::parse_job;
use crate::{Masking, Packing};

#[test]
fn every_field_about_packing_and_masking_is_read() {
    let job = parse_job(FULL).unwrap();
    let all = Packing {
        block_mask: true,
        reset_positions: true,
        mask_loss: false,
    };
    assert_eq!(job.training.packing, all);
    let masking = Masking {
        probability: 0.2,
        mask_token: 256,
    };
    assert_eq!(job.training.masking, Some(masking));
}

#[test]
fn packed_documents_are_one_text_by_default() {
    let of = |data: &str| parse_job(&with(MINIMAL, "path: data/kjv", data));
    let plain = of("path: data/kjv").unwrap();
    assert!(plain.training.packing.is_off());
    let written = of("path: data/kjv, packing: {}").unwrap();
    assert_eq!(written.training, plain.training);
    for (field, packing) in [
        (
            "blockMask",
            Packing {
                block_mask: true,
                ..Packing::default()
            },
        ),
        (
            "resetPositions",
            Packing {
                reset_positions: true,
                ..Packing::default()
            },
        ),
        (
            "maskLoss",
            Packing {
                mask_loss: true,
                ..Packing::default()
            },
        ),
    ] {
        let job = of(&format!("path: data/kjv, packing: {{{field}: true}}")).unwrap();
        assert_eq!(job.training.packing, packing, "{field}");
        let hashes = [&plain, &job].map(|j| crate::model_hash(&j.model, &j.training, "data"));
        assert_ne!(hashes[0], hashes[1], "{field}: another run");
        let kept = crate::planner(&job).costs.packing_bytes;
        assert_eq!(kept > 0, field == "blockMask", "{field}");
        assert_eq!(crate::estimated_planner(&job).costs().packing_bytes, kept);
    }
    let wrong = of("path: data/kjv, packing: {blockmask: true}")
        .unwrap_err()
        .to_string();
    assert!(wrong.contains("spec.data.packing.blockmask"), "{wrong}");
}

#[test]
fn masked_tokens_go_with_a_model_that_sees_both_sides() {
    let of = |model: &str, training: &str| {
        let text = with(MINIMAL, "preset: gpt2-tiny", &format!("preset: gpt2-tiny{model}"));
        parse_job(&with(&text, "steps: 200", &format!("steps: 200{training}")))
    };
    let plain = of("", "").unwrap();
    assert!(plain.training.masking.is_none() && !plain.model.transformer().unwrap().features.bidirectional);
    let (model, masking) = (", bidirectional: true", "\n    masking: {maskToken: 300}");
    let job = of(model, masking).unwrap();
    assert!(job.model.transformer().unwrap().features.bidirectional);
    let usual = Masking {
        probability: 0.15,
        mask_token: 300,
    };
    assert_eq!(job.training.masking, Some(usual));
    let other = of(model, "\n    masking: {maskToken: 300, probability: 0.2}").unwrap();
    let hashes = [&plain, &job, &other].map(|j| crate::model_hash(&j.model, &j.training, "data"));
    assert!(hashes[0] != hashes[1] && hashes[1] != hashes[2], "other runs");
    let wrong = |model: &str, training: &str| of(model, training).unwrap_err().to_string();
    for (model, training, says) in [
        (
            model,
            "",
            "spec.training.masking: missing — maskToken, as spec.model.bidirectional is true",
        ),
        (
            model,
            "\n    masking: {}",
            "spec.training.masking.maskToken: missing — 0 to 319, a token of the model's vocabulary that no text has",
        ),
        (
            model,
            "\n    masking: {maskToken: 320}",
            "spec.training.masking.maskToken: 320 — 0 to 319",
        ),
        (
            model,
            "\n    masking: {maskToken: 1, probability: 1}",
            "spec.training.masking.probability: 1 — 0.001 to 0.999",
        ),
        (
            ", bidirectional: true, slidingWindow: 9",
            masking,
            "spec.model.slidingWindow: 9 — nothing, as spec.model.bidirectional is true",
        ),
    ] {
        let found = wrong(model, training);
        assert!(found.contains(says), "{found}");
    }
    let text = with(
        MINIMAL,
        "preset: gpt2-tiny",
        "preset: gpt2-tiny, bidirectional: true",
    );
    let text = with(&text, "steps: 200", "steps: 200\n    masking: {maskToken: 1}");
    let text = with(
        &text,
        "path: data/kjv",
        "path: data/kjv, packing: {maskLoss: true}",
    );
    let found = parse_job(&text).unwrap_err().to_string();
    assert!(
        found.contains("spec.data.packing.maskLoss: true — false or nothing"),
        "{found}"
    );
}
