use super::*;
use varuna_model::presets;

#[test]
fn longer_samples_suit_only_models_without_learned_positions() {
    let facts = |model: &Transformer| Facts {
        job: "j".into(),
        model: serde_json::to_value(model).unwrap(),
        training_hash: String::new(),
        seed: 0,
        global_batch_size: 1,
        data_fingerprint: String::new(),
        moments: Moments::Adam,
    };
    for (name, suits) in [("qwen3-tiny", true), ("llama-tiny", true), ("gpt2-tiny", false)] {
        let model = presets::preset(name).unwrap();
        let mut longer = model.clone();
        longer.sequence_length *= 2;
        let mut other = model.clone();
        other.features.kv_heads = Some(1);
        let manifest = Manifest::new(StateId::INITIAL, model.layout(), facts(&model), Vec::new());
        let of = |model: &Transformer| manifest.suits(&facts(model), model.layout()).is_ok();
        assert_eq!(
            (of(&model), of(&longer), of(&other)),
            (true, suits, false),
            "{name}"
        );
    }
}

/// The fields in which a job's model differs from a checkpoint's. The models are as in a job file.
fn named(of_job: &str, of_checkpoint: &str) -> Vec<String> {
    let [of_job, own] = [of_job, of_checkpoint].map(|fields| {
        let text = format!(
            "{{apiVersion: varuna.dev/v1alpha1, kind: VarunaJob, metadata: {{name: j}}, spec: {{model: {{{fields}}}, data: {{path: d}},
            training: {{globalBatchSize: 1, steps: 1, optimizer: {{learningRate: 0.1}}}}}}}}"
        );
        let job = varuna_api::parse_job(&text).unwrap_or_else(|e| panic!("{fields}: {e}"));
        serde_json::to_value(&job.model).unwrap()
    });
    differences(&of_job, &own)
}

#[test]
fn features_that_follow_from_sizes_may_be_left_out() {
    let none: Vec<String> = Vec::new();
    let same = |one: &str, other: &str| {
        assert_eq!(named(one, other), none, "{one} beside {other}");
        assert_eq!(named(other, one), none, "{other} beside {one}");
    };
    let plain = "preset: gpt2-tiny";
    same(
        plain,
        "preset: gpt2-tiny, innerSize: 1536, kvHeads: 6, headSize: 64, slidingWindow: 256",
    );
    same("preset: qwen3-tiny", "preset: qwen3-tiny, slidingWindow: 256");
    let windowed = "preset: qwen3-tiny, slidingWindow: 128, sequenceLength:";
    same(&format!("{windowed} 64"), &format!("{windowed} 256"));
    assert_eq!(
        named("preset: gpt2-tiny, innerSize: 1500, slidingWindow: 64", plain),
        [
            "innerSize 1500, needed left out",
            "slidingWindow 64, needed left out"
        ]
    );
    // What is redundant with one width is not with another, which is what differs here.
    let wider = "preset: gpt2-tiny, hiddenSize: 768, innerSize: 3072";
    assert_eq!(named(wider, plain), ["hiddenSize 768, needed 384"]);
}

#[test]
fn difference_is_named_by_the_fields_of_the_job() {
    let plain = "preset: llama-tiny";
    let other = "preset: llama-tiny, normEpsilon: 1e-6, attentionBias: true, mlpBias: true, ropeTheta: 1e4";
    assert_eq!(
        named(plain, other),
        [
            "mlpBias false, needed true",
            "attentionBias false, needed true",
            "normEpsilon 1e-5, needed 1e-6",
            "ropeTheta 500000.0, needed 10000.0",
        ]
    );
    let scaled = "preset: llama-tiny, ropeScaling: {factor: 8, originalSequenceLength: 64}";
    assert_eq!(
        named(plain, scaled),
        [
            "ropeScaling.factor left out, needed 8.0",
            "ropeScaling.highFrequencyFactor left out, needed 4.0",
            r#"ropeScaling.kind "none", needed "llama3""#,
            "ropeScaling.lowFrequencyFactor left out, needed 1.0",
            "ropeScaling.originalSequenceLength left out, needed 64",
        ]
    );
    assert!(named(scaled, plain).contains(&r#"ropeScaling.kind "llama3", needed "none""#.to_owned()));
    assert!(named(scaled, scaled).is_empty());
    let mixed = "preset: llama-tiny, norm: layer, qkNorm: true";
    assert_eq!(
        named(plain, mixed),
        [r#"norm "rms", needed layer"#, "qkNorm false, needed true"]
    );
    let learned = "preset: llama-tiny, positions: learned";
    assert_eq!(
        named(plain, learned),
        [
            r#"positions "rotary", needed learned"#,
            r#"ropeScaling.kind "none", needed left out"#,
            "ropeTheta 500000.0, needed left out",
            "sequenceLength any, needed 256",
        ]
    );
    let ours = named("preset: gpt2-tiny", "preset: gpt2-tiny, mlp: swiglu, norm: rms");
    assert_eq!(
        ours,
        [r#"mlp left out, needed "swiglu""#, r#"norm layer, needed "rms""#]
    );
    let smaller = "preset: llama-tiny, kvHeads: 3, innerSize: 960";
    assert_eq!(
        named(plain, smaller),
        ["innerSize 1024, needed 960", "kvHeads 2, needed 3"]
    );
}

#[test]
fn re_exported_model_with_equal_parameters_is_suitable() {
    let exported = |digest: &str, parameters: u64, flops: u64| {
        serde_json::json!({ "exported": {
            "path": digest, "digest": digest, "sample": { "length": 8, "values": 9 }, "sharedParameters": 4,
            "segments": [{ "name": digest, "parameters": parameters, "output": [3], "forwardFlops": flops }],
        }})
    };
    assert_eq!(sizes(&exported("a", 5, 1)), sizes(&exported("b", 5, 2)));
    let other = sizes(&exported("a", 6, 1));
    assert_ne!(sizes(&exported("a", 5, 1)), other);
    let fields: Vec<&str> = other.keys().map(String::as_str).collect();
    assert_eq!(
        fields,
        ["exported.segments.0.parameters", "exported.sharedParameters"]
    );
}

#[test]
fn other_parameter_names_are_refused_with_the_segment() {
    let layout = Layout::new(2, false);
    let facts = |digests: [Option<&str>; 2]| {
        let segments = ["embed", "head"].iter().zip(digests).map(|(name, digest)| {
            let mut segment = serde_json::json!({ "name": name, "parameters": 5 });
            if let Some(digest) = digest {
                segment["parametersDigest"] = digest.into();
            }
            segment
        });
        let segments: Vec<Value> = segments.collect();
        Facts {
            job: "j".into(),
            model: serde_json::json!({ "exported": { "digest": "d", "segments": segments } }),
            training_hash: String::new(),
            seed: 0,
            global_batch_size: 1,
            data_fingerprint: String::new(),
            moments: Moments::Adam,
        }
    };
    let suits = |of_checkpoint, of_job| {
        let manifest = Manifest::new(StateId::INITIAL, layout, facts(of_checkpoint), Vec::new());
        manifest
            .suits(&facts(of_job), layout)
            .map_err(|error| error.to_string())
    };
    let [new, renamed] = ["b", "c"].map(|of_head| [Some("a"), Some(of_head)]);
    let older = [None, None];
    assert_eq!(suits(new, new), Ok(()));
    assert_eq!(suits(older, new), Ok(()), "a checkpoint of an older export");
    assert_eq!(suits(new, older), Ok(()), "a job of an older export");
    let error = suits(new, renamed).unwrap_err();
    let expected =
        "another one: segment 1 (head) has parameters of other names or shapes than the checkpoint";
    assert!(error.ends_with(expected), "{error}");
}
