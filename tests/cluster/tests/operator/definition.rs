//! The definition of `VarunaJob`: what an API server accepts, refuses and shows with it.

use super::with;
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use varuna_cluster_tests::{cluster, eventually, job, root};

#[test]
fn definition_is_accepted_and_explained() {
    let cluster = cluster();
    let file = root().join("crds");
    let said = cluster
        .kubectl(&["apply", "--server-side", "-f", &file.to_string_lossy()], "")
        .unwrap();
    assert!(!said.to_lowercase().contains("warning"), "{said}");
    eventually_blocking("the schema is published", || {
        let text = cluster.kubectl(&["explain", "vj.spec.elasticity.maxWorkers"], "")?;
        ensure!(text.contains("kubectl scale"), "{text}");
        Ok(())
    });
}

fn eventually_blocking(what: &str, mut ask: impl FnMut() -> Result<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime
        .block_on(eventually(what, || std::future::ready(ask())))
        .unwrap();
}

#[test]
fn the_examples_are_admitted() {
    let cluster = cluster();
    let namespace = cluster.namespace("examples").unwrap();
    let mut seen = 0;
    for entry in std::fs::read_dir(root().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "yaml") {
            let file = path.to_string_lossy();
            let said = cluster
                .kubectl(&["-n", &namespace, "apply", "--dry-run=server", "-f", &file], "")
                .unwrap();
            assert!(!said.to_lowercase().contains("warning"), "{said}");
            seen += 1;
        }
    }
    assert!(seen >= 2, "{seen} examples");
}

#[test]
fn a_wrong_job_is_refused_with_what_to_do() {
    let cluster = cluster();
    let namespace = cluster.namespace("refused").unwrap();
    let cases: &[(&str, Value, &str)] = &[
        (
            "/spec/model",
            json!({ "layers": 2 }),
            "name a preset, or give all of",
        ),
        (
            "/spec/model",
            json!({ "preset": "gpt9" }),
            "supported values: \"gpt2-tiny\"",
        ),
        (
            "/spec/model",
            json!({ "preset": "gpt2-tiny", "hiddenSize": 10, "heads": 3 }),
            "make hiddenSize a multiple of heads, or give headSize",
        ),
        (
            "/spec/model",
            json!({ "preset": "gpt2-tiny", "heads": 6, "kvHeads": 4 }),
            "make kvHeads a divisor of heads",
        ),
        (
            "/spec/model",
            json!({ "preset": "gpt2-tiny", "ropeTheta": 10_000.0 }),
            "leave ropeTheta and ropeScaling out, or make positions rotary",
        ),
        (
            "/spec/model",
            json!({ "preset": "llama-tiny", "positions": "learned", "ropeScaling": { "factor": 8 } }),
            "leave ropeTheta and ropeScaling out, or make positions rotary",
        ),
        (
            "/spec/model",
            json!({ "preset": "gpt2-tiny", "positions": "rotary", "headSize": 33 }),
            "make headSize even, or hiddenSize divided by heads",
        ),
        (
            "/spec/model",
            json!({ "preset": "llama-tiny", "hiddenSize": 30, "heads": 6 }),
            "make headSize even, or hiddenSize divided by heads",
        ),
        (
            "/spec/model",
            json!({ "preset": "gpt2-tiny", "norm": "batch" }),
            "supported values: \"layer\", \"rms\"",
        ),
        (
            "/spec/data/path",
            json!("x.bin"),
            "give the path without .bin or .idx",
        ),
        (
            "/spec/data/path",
            json!("s3://b/x#1"),
            "give the URL without ? and what follows it",
        ),
        (
            "/spec/training/steps",
            Value::Null,
            "spec.training.steps: Required",
        ),
        (
            "/spec/training/steps",
            json!(0),
            "should be greater than or equal to 1",
        ),
        (
            "/spec/training/microBatchSize",
            json!(5),
            "make microBatchSize a divisor of globalBatchSize",
        ),
        (
            "/spec/training/optimizer/warmupSteps",
            json!(101),
            "make optimizer.warmupSteps at most decaySteps",
        ),
        (
            "/spec/training/optimizer/minLearningRate",
            json!(1.0),
            "make minLearningRate at most learningRate",
        ),
        (
            "/spec/training/optimizer/stableSteps",
            json!(10),
            "leave stableSteps out, or make schedule wsd",
        ),
        (
            "/spec/training/optimizer",
            json!({ "learningRate": 0.1, "schedule": "wsd", "stableSteps": 101 }),
            "make optimizer.stableSteps at most decaySteps",
        ),
        (
            "/spec/training/optimizer",
            json!({ "learningRate": 0.1, "schedule": "wsd", "warmupSteps": 11, "stableSteps": 10 }),
            "make warmupSteps at most stableSteps",
        ),
        (
            "/spec/training/optimizer",
            json!({ "learningRate": 0.1, "schedule": "constant", "decaySteps": 10 }),
            "leave minLearningRate and decaySteps out",
        ),
        ("/spec/training/evaluation", json!({}), "intervalSteps: Required"),
        (
            "/spec/pipeline",
            json!({ "minDepth": 3, "maxDepth": 2 }),
            "make minDepth at most maxDepth",
        ),
        (
            "/spec/pipeline",
            json!({ "minDepth": 2 }),
            "a pipeline needs that many workers",
        ),
        (
            "/spec/pipeline",
            json!({ "schedule": "gpipe", "warmupFactor": 2 }),
            "leave warmupFactor out",
        ),
        (
            "/spec/elasticity",
            json!({ "minWorkers": 3, "maxWorkers": 2 }),
            "make maxWorkers at least minWorkers",
        ),
        (
            "/spec/workers",
            json!({ "gpusPerPod": 8 }),
            "whole pods within maxWorkers",
        ),
        (
            "/spec/workerGroups",
            json!([{ "name": "a", "minWorkers": 100_000 }]),
            "together they must fit into it",
        ),
        (
            "/spec/workerGroups",
            json!([{ "name": "a", "maxWorkers": 0 }]),
            "the groups must be able to hold that many",
        ),
        (
            "/spec/workerGroups",
            json!([{ "name": "a" }, { "name": "a" }]),
            "Duplicate value",
        ),
        (
            "/spec/workerGroups",
            json!([{ "name": "a", "minWorkers": 2, "maxWorkers": 1 }]),
            "make minWorkers of a group at most its maxWorkers",
        ),
        (
            "/spec/checkpoint",
            json!({ "uri": "s3://b" }),
            "give intervalSteps, intervalSeconds or both",
        ),
        (
            "/metadata/name",
            json!("a".repeat(41)),
            "choose a name of at most 40 characters",
        ),
        ("/metadata/name", json!("a.b"), "choose a name without dots"),
        (
            "/spec/managedBy",
            json!("another"),
            "spec.managedBy in body should match",
        ),
        ("/spec/nonsense", json!(1), "unknown field \"spec.nonsense\""),
    ];
    for (pointer, value, want) in cases {
        let document = with(job("j"), pointer, value.clone()).to_string();
        let said = cluster.kubectl(
            &["-n", &namespace, "create", "--dry-run=server", "-f", "-"],
            &document,
        );
        let said = said
            .expect_err(&format!("{pointer} = {value} is admitted"))
            .to_string();
        assert!(said.contains(want), "{pointer} = {value}: {said}");
    }
    // The valid job, from which all of these were made, is admitted.
    cluster
        .kubectl(
            &["-n", &namespace, "create", "--dry-run=server", "-f", "-"],
            &job("j").to_string(),
        )
        .unwrap();
}

#[test]
fn whole_pods_must_hold_the_shallowest_pipeline() {
    let cluster = cluster();
    let namespace = cluster.namespace("whole-pods").unwrap();
    let create = |fields: &[(&str, Value)]| {
        let set = |job, (field, value): &(&str, Value)| with(job, &format!("/spec/{field}"), value.clone());
        let document = fields.iter().fold(job("j"), set).to_string();
        let arguments = ["-n", namespace.as_str(), "create", "--dry-run=server", "-f", "-"];
        cluster.kubectl(&arguments, &document)
    };
    // Without minWorkers, a job needs as many workers as its shallowest pipeline.
    let of_pods = |gpus: u32| {
        create(&[
            ("pipeline", json!({ "minDepth": 6 })),
            ("elasticity", json!({ "maxWorkers": 7 })),
            ("workers", json!({ "gpusPerPod": gpus })),
        ])
    };
    of_pods(3).unwrap();
    let said = of_pods(4).unwrap_err().to_string();
    assert!(said.contains("whole pods within maxWorkers"), "{said}");
    let of_groups = |most: u32| {
        create(&[
            ("pipeline", json!({ "minDepth": 6 })),
            ("elasticity", json!({ "maxWorkers": 7 })),
            ("workers", json!({ "gpusPerPod": 8 })),
            (
                "workerGroups",
                json!([{ "name": "a", "gpusPerPod": 1, "maxWorkers": most }]),
            ),
        ])
    };
    of_groups(6).unwrap();
    let said = of_groups(5).unwrap_err().to_string();
    assert!(
        said.contains("the groups must be able to hold that many"),
        "{said}"
    );
}

#[test]
fn a_job_may_mix_the_features_of_its_model() {
    let cluster = cluster();
    let namespace = cluster.namespace("mixed").unwrap();
    for model in [
        json!({ "preset": "gpt2-tiny", "norm": "rms", "positions": "rotary", "qkNorm": true }),
        json!({ "preset": "gpt2-tiny", "positions": "rotary", "ropeTheta": 5e5, "ropeScaling": { "factor": 8 } }),
        json!({ "preset": "llama-tiny", "norm": "layer", "positions": "learned", "headSize": 33 }),
        json!({ "preset": "qwen3-tiny", "hiddenSize": 30, "heads": 6, "qkNorm": false }),
        json!({
            "layers": 2, "hiddenSize": 32, "heads": 4, "sequenceLength": 16, "vocabularySize": 40,
            "positions": "rotary", "ropeTheta": 5e5,
        }),
    ] {
        let document = with(job("j"), "/spec/model", model.clone()).to_string();
        let said = cluster.kubectl(
            &["-n", &namespace, "create", "--dry-run=server", "-f", "-"],
            &document,
        );
        said.unwrap_or_else(|e| panic!("{model}: {e}"));
    }
}

#[test]
fn what_makes_a_run_cannot_change_and_the_number_of_workers_can() {
    let cluster = cluster();
    let namespace = cluster.namespace("fixed").unwrap();
    let kubectl =
        |arguments: &[&str]| cluster.kubectl(&[&["-n", namespace.as_str()], arguments].concat(), "");
    let document = with(
        job("j"),
        "/spec/elasticity",
        json!({ "minWorkers": 2, "maxWorkers": 4 }),
    );
    cluster
        .kubectl(&["-n", &namespace, "create", "-f", "-"], &document.to_string())
        .unwrap();
    let patch = |spec: Value| {
        kubectl(&[
            "patch",
            "vj",
            "j",
            "--type=merge",
            "-p",
            &json!({ "spec": spec }).to_string(),
        ])
    };
    for (spec, want) in [
        (
            json!({ "training": { "globalBatchSize": 32 } }),
            "training cannot change",
        ),
        (
            json!({ "training": { "optimizer": { "decaySteps": 3 } } }),
            "training cannot change",
        ),
        (json!({ "training": { "seed": 3 } }), "training cannot change"),
        (
            json!({ "training": { "steps": 1 } }),
            "training.steps can grow, not shrink",
        ),
        (
            json!({ "model": { "preset": "gpt2-small" } }),
            "model cannot change",
        ),
        (json!({ "pipeline": { "maxDepth": 2 } }), "pipeline cannot change"),
        (
            json!({ "managedBy": "example.com/another" }),
            "managedBy cannot change",
        ),
        (
            json!({ "elasticity": { "minWorkers": 1 } }),
            "minWorkers cannot change",
        ),
        (json!({ "workers": { "threads": 2 } }), "threads cannot change"),
        (
            json!({ "workers": { "deviceMemory": "1Gi" } }),
            "deviceMemory cannot change",
        ),
    ] {
        let said = patch(spec.clone()).expect_err(&spec.to_string()).to_string();
        assert!(said.contains(want), "{spec}: {said}");
    }
    let said = patch(json!({ "suspend": true })).unwrap_err().to_string();
    assert!(said.contains("set allowStateLoss to true"), "{said}");
    patch(json!({ "suspend": true, "allowStateLoss": true, "workers": { "image": "other" } })).unwrap();
    kubectl(&["scale", "vj/j", "--replicas=12"]).unwrap();
    assert_eq!(
        kubectl(&["get", "vj", "j", "-o", "jsonpath={.spec.elasticity.maxWorkers}"]).unwrap(),
        "12"
    );
    let said = kubectl(&["scale", "vj/j", "--replicas=1"])
        .unwrap_err()
        .to_string();
    assert!(said.contains("make maxWorkers at least minWorkers"), "{said}");
    patch(json!({ "training": { "steps": 150 } })).expect("steps may grow");
    let table = kubectl(&["get", "vj"]).unwrap();
    let columns = [
        "PHASE", "STEP", "LOSS", "TOK/S", "GOODPUT", "WORKERS", "ETA", "AGE",
    ];
    assert!(columns.iter().all(|column| table.contains(column)), "{table}");
    let wide = kubectl(&["get", "vj", "-o", "wide"]).unwrap();
    let columns = ["PLAN", "STEP-MS", "LOST", "CHECKPOINT", "MESSAGE"];
    assert!(columns.iter().all(|column| wide.contains(column)), "{wide}");
}
