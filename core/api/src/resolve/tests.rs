use super::parse_job;
use crate::{Encryption, Evaluation, Job, Precision, WorkerDevice, WorkerTransport};
use varuna_plan::{LossScaling, Recompute, ScaleFactor, ScheduleKind};

/// The smallest job: everything else has a default.
pub(crate) const MINIMAL: &str = "
apiVersion: varuna.dev/v1alpha1
kind: VarunaJob
metadata: {name: demo}
spec:
  model: {preset: gpt2-tiny}
  data: {path: data/kjv}
  training:
    globalBatchSize: 16
    steps: 200
    optimizer: {learningRate: 3e-4}
";

/// A job with every field.
pub(crate) const FULL: &str = include_str!("../../testdata/all-fields.yaml");

fn with(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from}");
    text.replace(from, to)
}

fn errors(text: &str) -> Vec<String> {
    parse_job(text)
        .expect_err(text)
        .all()
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn kinds(job: &Job) -> Vec<ScheduleKind> {
    job.pipeline.schedules.iter().map(|s| s.kind).collect()
}

#[test]
fn interleaving_is_allowed_beside_the_plain_orders() {
    let job = parse_job(&with(
        FULL,
        "schedule: 1f1b, warmupFactor: 2",
        "schedule: interleaved, warmupFactor: 2",
    ));
    let plain = ScheduleKind::OneForwardOneBackward { warmup_factor: 2.0 };
    let chunks = [2, 3, 4].map(|chunks| ScheduleKind::Interleaved { chunks });
    let expected: Vec<_> = [plain].into_iter().chain(chunks).collect();
    assert_eq!(kinds(&job.unwrap()), expected);
}

#[test]
fn a_minimal_job_gets_its_defaults() {
    let job = parse_job(MINIMAL).unwrap();
    assert_eq!(
        (job.name.as_str(), job.namespace.as_str(), job.suspend),
        ("demo", "default", false)
    );
    assert_eq!(
        (job.model.layers, job.model.hidden_size, job.model.vocabulary_size),
        (6, 384, 320)
    );
    assert_eq!((job.pipeline.min_depth, job.pipeline.max_depth), (1, 14));
    assert_eq!(
        (job.elasticity.min_workers, job.elasticity.max_workers),
        (1, None)
    );
    let mut orders = kinds(&job);
    orders.dedup();
    assert_eq!(
        orders,
        [2.0, 1.0].map(|warmup_factor| ScheduleKind::OneForwardOneBackward { warmup_factor })
    );
    let kept: Vec<Recompute> = job.pipeline.schedules.iter().map(|s| s.recompute).collect();
    assert_eq!(
        kept,
        [Recompute::None, Recompute::Selective, Recompute::Full].repeat(2)
    );
    let rate = &job.training.learning_rate;
    assert_eq!(
        (rate.peak, rate.min, rate.warmup_steps, rate.decay_steps),
        (3e-4, 3e-4 / 10.0, 0, 200)
    );
    assert_eq!(
        (job.training.optimizer.clip_norm, job.training.evaluation),
        (Some(1.0), None)
    );
    assert_eq!(job.data.validation_fraction, 0.05);
    assert_eq!(job.network.encryption, Encryption::None);
}

#[test]
fn every_field_about_the_training_that_is_written_is_taken() {
    let job = parse_job(FULL).unwrap();
    let model = (
        job.model.layers,
        job.model.hidden_size,
        job.model.heads,
        job.model.sequence_length,
    );
    assert_eq!(model, (4, 128, 8, 64));
    assert_eq!(
        (job.model.vocabulary_size, job.model.tied_head, job.model.dropout),
        (257, false, 0.1)
    );
    assert_eq!(
        (
            job.training.global_batch_size,
            job.training.steps,
            job.training.seed
        ),
        (24, 100, 7)
    );
    let adam = &job.training.optimizer;
    assert_eq!(
        (adam.beta1, adam.beta2, adam.epsilon, adam.weight_decay),
        (0.8, 0.99, 1e-6, 0.0)
    );
    assert_eq!(adam.clip_norm, None);
    let rate = &job.training.learning_rate;
    assert_eq!(
        (rate.peak, rate.min, rate.warmup_steps, rate.decay_steps),
        (0.001, 0.0, 10, 90)
    );
    assert_eq!(
        job.training.evaluation,
        Some(Evaluation {
            interval_steps: 20,
            samples: 32
        })
    );
    assert_eq!(job.precision, Precision::Fp16);
    let scaling = LossScaling::Dynamic {
        initial: ScaleFactor::two_to(12),
        minimum: ScaleFactor::two_to(1),
        window: 500,
    };
    assert_eq!((job.training.loss_scaling, job.training.skip_limit), (scaling, 8));
}

#[test]
fn every_field_about_the_run_that_is_written_is_taken() {
    let job = parse_job(FULL).unwrap();
    assert_eq!(
        kinds(&job),
        [ScheduleKind::OneForwardOneBackward { warmup_factor: 2.0 }]
    );
    assert_eq!(job.pipeline.schedules[0].recompute, Recompute::Full);
    assert_eq!(
        (
            job.pipeline.micro_batch_size,
            job.pipeline.min_depth,
            job.pipeline.max_depth
        ),
        (Some(3), 2, 5)
    );
    assert_eq!(
        (job.elasticity.min_workers, job.elasticity.max_workers),
        (3, Some(9))
    );
    assert_eq!((job.workers.gpus_per_pod, job.workers.threads), (4, Some(2)));
    assert_eq!(job.workers.device, WorkerDevice::Cuda);
    assert_eq!(job.workers.transport, WorkerTransport::Nccl);
    assert_eq!(job.workers.device_memory_bytes, Some(300 << 20));
    assert_eq!(
        job.workers.template,
        Some(serde_json::json!({"spec": {"new": null}}))
    );
    let checkpoint = job.checkpoint.clone().unwrap();
    assert_eq!(
        (
            checkpoint.uri.as_str(),
            checkpoint.interval_steps,
            checkpoint.interval_seconds,
            checkpoint.keep,
            checkpoint.upload_bytes_per_second,
        ),
        ("s3://bucket/x", Some(50), Some(600), 2, Some(5 << 20))
    );
    assert_eq!(job.compare_every_steps, Some(20));
    assert_eq!(
        (job.disruption.notice_seconds, job.disruption.node_signals.len()),
        (30, 1)
    );
    assert_eq!(job.network.encryption, Encryption::Tls);
    assert!(job.suspend);
}

#[test]
fn a_job_survives_its_own_serialisation() {
    for text in [MINIMAL, FULL] {
        let job = parse_job(text).unwrap();
        let again: Job = serde_json::from_str(&serde_json::to_string(&job).unwrap()).unwrap();
        assert_eq!(again, job);
        assert_eq!(again.spec_hash(), job.spec_hash());
    }
}

#[test]
fn fp16_scales_its_loss_as_the_file_says_and_by_default_as_others_do() {
    let scaling = |fields: &str| {
        let steps = format!("steps: 200\n    precision: fp16\n{fields}");
        let job = parse_job(&with(MINIMAL, "steps: 200", &steps)).unwrap();
        assert_eq!(job.precision, Precision::Fp16);
        job.training.loss_scaling
    };
    let dynamic = |initial, minimum, window| LossScaling::Dynamic {
        initial: ScaleFactor::two_to(initial),
        minimum: ScaleFactor::two_to(minimum),
        window,
    };
    assert_eq!(scaling(""), dynamic(16, 0, 1000));
    assert_eq!(scaling("    lossScale: {initial: 1024}\n"), dynamic(10, 0, 1000));
    assert_eq!(
        scaling("    lossScale: {initial: 4294967296, minimum: 8, window: 50}\n"),
        dynamic(32, 3, 50)
    );
    let fixed = LossScaling::Static(ScaleFactor::two_to(7));
    assert_eq!(scaling("    lossScale: {static: 128}\n"), fixed);
    let limit = |text: &str| parse_job(text).unwrap().training.skip_limit;
    assert_eq!(limit(MINIMAL), 20);
    assert_eq!(
        limit(&with(MINIMAL, "steps: 200", "steps: 200\n    skipLimit: 0")),
        0
    );
}

#[test]
fn jobs_without_loss_scale_and_skip_limit_are_written_as_before() {
    let text = serde_json::to_string(&parse_job(MINIMAL).unwrap().training).unwrap();
    assert!(!text.contains("oss") && !text.contains("kip"), "{text}");
}

#[test]
fn the_spec_hash_ignores_spelling_and_name_but_no_setting() {
    let hash = |text: &str| parse_job(text).unwrap().spec_hash();
    let base = hash(MINIMAL);
    assert_eq!(base.len(), 64);
    assert_eq!(
        base,
        hash(&with(
            MINIMAL,
            "steps: 200",
            "steps: 200\n    seed: 0 # the default"
        ))
    );
    assert_eq!(base, hash(&with(MINIMAL, "name: demo", "name: other")));
    assert_ne!(base, hash(&with(MINIMAL, "steps: 200", "steps: 201")));
    assert_ne!(base, hash(&with(MINIMAL, "data/kjv", "data/other")));
    let on = |device: &str| {
        let workers = format!("\nspec:\n  workers: {{device: {device}}}");
        hash(&with(MINIMAL, "\nspec:", &workers))
    };
    assert_eq!(base, on("auto, transport: auto"));
    assert_ne!(on("cpu"), on("cuda"));
    assert_ne!(base, on("auto, transport: tcp"));
}

/// (text, replaced by, the error): each is a change of the minimal job, but for those of the full one.
const OF_MINIMAL: &[(&str, &str, &str)] = &[
    (
        "varuna.dev/v1alpha1",
        "varuna.dev/v2",
        "apiVersion: \"varuna.dev/v2\" — varuna.dev/v1alpha1",
    ),
    ("kind: VarunaJob", "kind: Job", "kind: \"Job\" — VarunaJob"),
    ("kind: VarunaJob", "", "kind: missing — VarunaJob"),
    (
        "{name: demo}",
        "{name: Demo_1}",
        "metadata.name: \"Demo_1\" — 1 to 63 of a-z, 0-9 and -, neither first nor last a -",
    ),
    (
        "{name: demo}",
        "{}",
        "metadata.name: missing — 1 to 63 of a-z, 0-9 and -, neither first nor last a -",
    ),
    (
        "metadata: {name: demo}",
        "",
        "metadata: missing — a mapping with a name",
    ),
    (
        "  model: {preset: gpt2-tiny}\n",
        "",
        "spec.model: missing — a preset or explicit sizes",
    ),
    (
        "gpt2-tiny",
        "gpt3",
        "spec.model.preset: \"gpt3\" — gpt2-tiny, gpt2-small, gpt2-medium, gpt2-large or gpt2-1.5b",
    ),
    (
        "gpt2-tiny",
        "gpt2-tiny, hiddenSize: 380",
        "spec.model.hiddenSize: 380 — a multiple of heads (6)",
    ),
    (
        "gpt2-tiny",
        "gpt2-tiny, layers: 0",
        "spec.model.layers: 0 — 1 to 10000",
    ),
    (
        "gpt2-tiny",
        "gpt2-tiny, layers: -1",
        "spec.model.layers: -1 — a whole number, 0 to 4294967295",
    ),
    (
        "gpt2-tiny",
        "gpt2-tiny, layers: 1.5",
        "spec.model.layers: 1.5 — a whole number, 0 to 4294967295",
    ),
    (
        "gpt2-tiny",
        "gpt2-tiny, layer: 2",
        "spec.model.layer: unknown field — one of `preset`, `layers`, `hiddenSize`, `heads`, `sequenceLength`, `vocabularySize`, `tiedHead`, `dropout`",
    ),
    (
        "gpt2-tiny",
        "gpt2-tiny, dropout: 1.0",
        "spec.model.dropout: 1 — 0 <= p < 1",
    ),
    (
        "gpt2-tiny",
        "gpt2-tiny, dropout: -0.1",
        "spec.model.dropout: -0.1 — 0 <= p < 1",
    ),
    (
        "gpt2-tiny",
        "gpt2-tiny, dropout: .nan",
        "job file: line 6 column 39: non-finite float `.nan` rejected by the configured policy — one YAML document",
    ),
    (
        "gpt2-tiny",
        "gpt2-tiny, tiedHead: maybe",
        "spec.model.tiedHead: \"maybe\" — true or false",
    ),
    (
        "  data: {path: data/kjv}\n",
        "",
        "spec.data: missing — a mapping with a path",
    ),
    (
        "path: data/kjv",
        "path: ''",
        "spec.data.path: \"\" — the path of a dataset without .bin or .idx",
    ),
    (
        "data/kjv",
        "data/kjv.bin",
        "spec.data.path: data/kjv.bin — the path without .bin or .idx",
    ),
    (
        "data/kjv",
        "x, validationFraction: 0.6",
        "spec.data.validationFraction: 0.6 — 0 to 0.5",
    ),
    (
        "globalBatchSize: 16",
        "globalBatchSize: 0",
        "spec.training.globalBatchSize: 0 — 1 to 1099511627776",
    ),
    (
        "    globalBatchSize: 16\n",
        "",
        "spec.training.globalBatchSize: missing — 1 to 1099511627776",
    ),
    (
        "globalBatchSize: 16",
        "globalBatchSize: 16\n    microBatchSize: 3",
        "spec.training.microBatchSize: 3 — a divisor of globalBatchSize (16)",
    ),
    (
        "globalBatchSize: 16",
        "globalBatchSize: 16\n    microBatchSize: 0",
        "spec.training.microBatchSize: 0 — a divisor of globalBatchSize (16)",
    ),
    (
        "steps: 200",
        "steps: 0",
        "spec.training.steps: 0 — 1 to 1099511627776",
    ),
    (
        "steps: 200",
        "steps:",
        "spec.training.steps: empty — a value, or leave the field out",
    ),
    (
        "steps: 200",
        "steps: many",
        "spec.training.steps: \"many\" — a whole number, 0 to 18446744073709551615",
    ),
    (
        "steps: 200",
        "steps: 1\n    seed: 9223372036854775808",
        "spec.training.seed: 9223372036854775808 — 0 to 9223372036854775807",
    ),
    (
        "steps: 200",
        "steps: 1\n    precision: fp8",
        "spec.training.precision: \"fp8\" — fp32 or bf16 or fp16",
    ),
    (
        "steps: 200",
        "steps: 1\n    lossScale: {initial: 1024}",
        "spec.training.lossScale: given — nothing, as spec.training.precision is not fp16: wider numbers need no loss scale",
    ),
    (
        "steps: 200",
        "steps: 1\n    precision: fp16\n    lossScale: {initial: 1000}",
        "spec.training.lossScale.initial: 1000 — a power of two from 1 to 4294967296",
    ),
    (
        "steps: 200",
        "steps: 1\n    precision: fp16\n    lossScale: {static: 0}",
        "spec.training.lossScale.static: 0 — a power of two from 1 to 4294967296",
    ),
    (
        "steps: 200",
        "steps: 1\n    precision: fp16\n    lossScale: {static: 8, window: 100}",
        "spec.training.lossScale: static and others — static alone, or initial, minimum and window: a static scale never changes",
    ),
    (
        "steps: 200",
        "steps: 1\n    precision: fp16\n    lossScale: {initial: 8, minimum: 16}",
        "spec.training.lossScale.minimum: 16 — at most initial (8)",
    ),
    (
        "steps: 200",
        "steps: 1\n    precision: fp16\n    lossScale: {window: 0}",
        "spec.training.lossScale.window: 0 — 1 to 1000000",
    ),
    (
        "steps: 200",
        "steps: 1\n    skipLimit: 1000001",
        "spec.training.skipLimit: 1000001 — 0 to 1000000",
    ),
    (
        "    optimizer: {learningRate: 3e-4}\n",
        "",
        "spec.training.optimizer: missing — a mapping with learningRate",
    ),
    (
        "{learningRate: 3e-4}",
        "{}",
        "spec.training.optimizer.learningRate: missing — a number above 0, at most 10",
    ),
    (
        "3e-4",
        "0",
        "spec.training.optimizer.learningRate: 0 — a number above 0, at most 10",
    ),
    (
        "3e-4",
        "high",
        "spec.training.optimizer.learningRate: \"high\" — a number",
    ),
    (
        "3e-4",
        "0.1, minLearningRate: 0.2",
        "spec.training.optimizer.minLearningRate: 0.2 — 0 to learningRate (0.1)",
    ),
    (
        "3e-4",
        "0.1, warmupSteps: 201",
        "spec.training.optimizer.warmupSteps: 201 — at most steps (200)",
    ),
    (
        "3e-4",
        "0.1, warmupSteps: 11, decaySteps: 10",
        "spec.training.optimizer.warmupSteps: 11 — at most decaySteps (10)",
    ),
    (
        "3e-4",
        "0.1, beta1: 1",
        "spec.training.optimizer.beta1: 1 — 0 <= beta < 1",
    ),
    (
        "3e-4",
        "0.1, beta2: -1",
        "spec.training.optimizer.beta2: -1 — 0 <= beta < 1",
    ),
    (
        "3e-4",
        "0.1, epsilon: 0",
        "spec.training.optimizer.epsilon: 0 — a number above 0, at most 1",
    ),
    (
        "3e-4",
        "0.1, weightDecay: -1",
        "spec.training.optimizer.weightDecay: -1 — 0 to 10",
    ),
    (
        "3e-4",
        "0.1, clipNorm: -1",
        "spec.training.optimizer.clipNorm: -1 — 0 to 1000000",
    ),
    (
        "{learningRate: 3e-4}",
        "[1]",
        "spec.training.optimizer: a list — a single value or a mapping",
    ),
];

const OF_FULL: &[(&str, &str, &str)] = &[
    (
        "intervalSteps: 20, ",
        "",
        "spec.training.evaluation.intervalSteps: missing — 1 to 1099511627776",
    ),
    (
        "intervalSteps: 20",
        "intervalSteps: 0",
        "spec.training.evaluation.intervalSteps: 0 — 1 to 1099511627776",
    ),
    (
        "samples: 32",
        "samples: 0",
        "spec.training.evaluation.samples: 0 — 1 to 1099511627776",
    ),
    (
        "validationFraction: 0.1",
        "validationFraction: 0",
        "spec.training.evaluation: asked for — nothing, as spec.data.validationFraction is 0: no samples are held out",
    ),
    (
        "schedule: 1f1b",
        "schedule: pipedream",
        "spec.pipeline.schedule: \"pipedream\" — 1f1b or gpipe or interleaved",
    ),
    (
        "schedule: 1f1b",
        "schedule: gpipe",
        "spec.pipeline.warmupFactor: 2 — nothing with schedule gpipe, which has no warm-up",
    ),
    (
        "warmupFactor: 2",
        "warmupFactor: 0.5",
        "spec.pipeline.warmupFactor: 0.5 — 1 to 16",
    ),
    (
        "recompute: full",
        "recompute: some",
        "spec.pipeline.recompute: \"some\" — auto or none or selective or full",
    ),
    (
        "encryption: tls",
        "encryption: ssl",
        "spec.network.encryption: \"ssl\" — none or tls",
    ),
    (
        "minDepth: 2",
        "minDepth: 0",
        "spec.pipeline.minDepth: 0 — 1 to 10: a stage holds at least one of the model's segments",
    ),
    (
        "maxDepth: 5",
        "maxDepth: 11",
        "spec.pipeline.maxDepth: 11 — 1 to 10: a stage holds at least one of the model's segments",
    ),
    (
        "minDepth: 2, maxDepth: 5",
        "minDepth: 3, maxDepth: 2",
        "spec.pipeline.minDepth: 3 — at most maxDepth (2)",
    ),
    (
        "minWorkers: 3",
        "minWorkers: 1",
        "spec.elasticity.minWorkers: 1 — at least spec.pipeline.minDepth (2): a pipeline needs that many",
    ),
    (
        "maxWorkers: 9",
        "maxWorkers: 2",
        "spec.elasticity.maxWorkers: 2 — at least minWorkers (3)",
    ),
    (
        "gpusPerPod: 4",
        "gpusPerPod: 0",
        "spec.workers.gpusPerPod: 0 — 1 to 64",
    ),
    (
        "300Mi",
        "lots",
        "spec.workers.deviceMemory: \"lots\" — an amount of memory above 0, such as 300Mi, 1.5Gi, 2G or a number of bytes",
    ),
    (
        "device: cuda",
        "device: gpu",
        "spec.workers.device: \"gpu\" — auto or cpu or cuda",
    ),
    (
        "transport: nccl",
        "transport: gloo",
        "spec.workers.transport: \"gloo\" — auto or nccl or tcp",
    ),
    (
        "device: cuda",
        "device: cpu",
        "spec.workers.transport: nccl — auto or tcp, as spec.workers.device is cpu: NCCL needs GPUs",
    ),
    ("threads: 2", "threads: 0", "spec.workers.threads: 0 — 1 to 1024"),
    (
        "template: {spec: {new: null}}",
        "template: 3",
        "spec.workers.template: 3 — a pod template (a mapping)",
    ),
    (
        "uri: \"s3://bucket/x\", ",
        "",
        "spec.checkpoint.uri: missing — a folder or the URI of a bucket",
    ),
    (
        "intervalSteps: 50",
        "intervalSteps: 0",
        "spec.checkpoint.intervalSteps: 0 — 1 to 1099511627776",
    ),
    ("keep: 2", "keep: 0", "spec.checkpoint.keep: 0 — 1 to 1000000"),
    (
        "compareEverySteps: 20",
        "compareEverySteps: 0",
        "spec.integrity.compareEverySteps: 0 — 1 to 1099511627776",
    ),
    (
        "noticeSeconds: 30",
        "noticeSeconds: 90000",
        "spec.disruption.noticeSeconds: 90000 — 0 to 86400",
    ),
    (
        "[example.com/spot]",
        "[1]",
        "spec.disruption.nodeSignals.0: 1 — a string",
    ),
    ("suspend: true", "suspend: 3", "spec.suspend: 3 — true or false"),
    (
        "suspend: true",
        "paused: true",
        "spec.paused: unknown field — one of `model`, `data`, `training`, `pipeline`, `elasticity`, `workers`, `checkpoint`, `network`, `integrity`, `disruption`, `suspend`",
    ),
];

#[test]
fn every_mistake_is_named_with_its_field_its_value_and_what_is_allowed() {
    let cases = OF_MINIMAL
        .iter()
        .map(|c| (MINIMAL, c))
        .chain(OF_FULL.iter().map(|c| (FULL, c)));
    let mut wrong = Vec::new();
    for (base, (from, to, want)) in cases {
        let got = errors(&with(base, from, to));
        if got != [*want] {
            wrong.push(format!("{from} -> {to}\n   want {want}\n   got  {got:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_text_or_a_list_that_is_too_long_is_refused_and_the_longest_is_taken() {
    let long = |characters: usize| "ü".repeat(characters);
    let signals = |count: usize| (0..count).map(|i| format!("s{i}")).collect::<Vec<_>>().join(", ");
    let image = "img:1";
    for (from, longest, too_long, error) in [
        (
            "path: kjv",
            format!("path: {}", long(1024)),
            format!("path: {}", long(1025)),
            "spec.data.path: 1025 characters — 1 to 1024",
        ),
        (
            "s3://bucket/x",
            long(1024),
            long(1025),
            "spec.checkpoint.uri: 1025 characters — 1 to 1024",
        ),
        (
            image,
            long(1024),
            long(1025),
            "spec.workers.image: 1025 characters — 1 to 1024",
        ),
        (
            image,
            long(1),
            String::new(),
            "spec.workers.image: 0 characters — 1 to 1024",
        ),
        (
            "example.com/spot",
            long(253),
            long(254),
            "spec.disruption.nodeSignals.0: 254 characters — 1 to 253",
        ),
        (
            "example.com/spot",
            signals(64),
            signals(65),
            "spec.disruption.nodeSignals: 65 signals — at most 64",
        ),
    ] {
        assert!(parse_job(&with(FULL, from, &longest)).is_ok(), "{error}");
        assert_eq!(errors(&with(FULL, from, &too_long)), [error]);
    }
}

#[test]
fn all_mistakes_are_reported_at_once_and_each_once() {
    let text = with(
        MINIMAL,
        "steps: 200",
        "steps: -3\n    colour: red\n    shape: round\n    precision: fp8",
    );
    let text = with(&text, "kind: VarunaJob", "kind: Job");
    let paths: Vec<String> = parse_job(&text)
        .expect_err("")
        .all()
        .iter()
        .map(|e| e.path.clone())
        .collect();
    let mut sorted = paths.clone();
    sorted.sort();
    let want = [
        "kind",
        "spec.training.colour",
        "spec.training.precision",
        "spec.training.shape",
        "spec.training.steps",
    ];
    assert_eq!(sorted, want);
}

#[test]
fn what_is_not_a_job_at_all_is_refused_in_one_line() {
    for text in [
        "",
        "just text",
        "[]",
        "- 1\n- 2",
        "a: [",
        "a: 1\na: 2",
        "a: 1\n---\nb: 2",
    ] {
        let got = errors(text);
        assert!(
            got.len() == 1 && got[0].starts_with("job file: "),
            "{text:?}: {got:?}"
        );
    }
}

#[test]
fn aliases_may_stand_for_values_but_not_for_millions_of_them() {
    let notes = MINIMAL.replace(
        "metadata: {name: demo}",
        "metadata: {name: &name demo, labels: {a: *name}}",
    );
    assert_eq!(parse_job(&notes).unwrap().name, "demo");
    let mut bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (name, before) in ('b'..'k').zip('a'..'j') {
        bomb += &format!("{name}: &{name} [{}]\n", vec![format!("*{before}"); 9].join(", "));
    }
    let long = format!(
        "a: &a \"{}\"\nb: [{}]\n",
        "x".repeat(60_000),
        ["*a"; 1000].join(", ")
    );
    for text in [bomb, long] {
        let got = errors(&text);
        assert!(
            got.len() == 1 && got[0].starts_with("job file: line ") && got[0].contains("budget"),
            "{got:?}"
        );
    }
}

#[test]
fn a_size_beyond_its_limit_is_an_error_and_no_overflow() {
    let text = MINIMAL.replace(
        "{preset: gpt2-tiny}",
        "{preset: gpt2-tiny, layers: 2147483647, hiddenSize: 4294967295}",
    );
    let got = errors(&text);
    assert!(got[0].starts_with("spec.model.layers: 2147483647"), "{got:?}");
}

proptest::proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in "[a-z:{}\\[\\] \n\"'|&*!0-9.-]{0,200}") {
        let _ = parse_job(&text);
    }

    #[test]
    fn no_edit_of_a_good_file_makes_the_parser_panic(at in 0usize..1200, cut in 0usize..40, new in "[a-z0-9:{} ,.\n-]{0,8}") {
        let chars: Vec<char> = FULL.chars().collect();
        let at = at.min(chars.len());
        let end = (at + cut).min(chars.len());
        let text: String = chars[..at].iter().chain(new.chars().collect::<Vec<_>>().iter()).chain(&chars[end..]).collect();
        let _ = parse_job(&text);
    }
}
