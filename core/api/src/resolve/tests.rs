use super::{parse_job, parse_job_of_any_release};
use crate::{
    CheckpointSource, Data, DataSource, Encryption, Evaluation, FailurePolicy, HeldOut, Job, Lifecycle,
    NetworkPolicy, Precision, Restriction, Schedule, Sharding, UpdateRule, WorkerDevice, WorkerTransport,
};
use varuna_model::{ParameterKind, presets};
use varuna_plan::profile::Profile;
use varuna_plan::{LossScaling, Recompute, ScaleFactor, ScheduleKind};

mod exported;
mod features;
mod mistakes;
mod samples;

/// The smallest job: all other fields have defaults.
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

pub(crate) fn with(text: &str, from: &str, to: &str) -> String {
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
fn queue_is_a_label_and_not_part_of_the_run_identity() {
    let queued = |to: &str| parse_job(&with(FULL, "labels: {a: b}", to)).unwrap();
    let (plain, queued) = (
        queued("labels: {a: b}"),
        queued("labels: {kueue.x-k8s.io/queue-name: team-a, kueue.x-k8s.io/priority-class: team.high}"),
    );
    let of_queue = |job: &Job| (job.queue.clone(), job.workload_priority_class.clone());
    assert_eq!(of_queue(&plain), (None, None));
    assert_eq!(
        of_queue(&queued),
        (Some("team-a".into()), Some("team.high".into()))
    );
    let text = |job: &Job| serde_json::to_string(job).unwrap();
    assert_eq!(text(&plain), text(&queued));
}

#[test]
fn a_minimal_job_gets_its_defaults() {
    let job = parse_job(MINIMAL).unwrap();
    assert_eq!(
        (job.name.as_str(), job.namespace.as_str(), job.suspend),
        ("demo", "default", false)
    );
    assert_eq!(
        (
            job.model.transformer().unwrap().layers,
            job.model.transformer().unwrap().hidden_size,
            job.model.transformer().unwrap().vocabulary_size
        ),
        (6, 384, 320)
    );
    assert_eq!((job.pipeline.min_depth, job.pipeline.max_depth), (1, 14));
    assert_eq!(
        (job.elasticity.min_workers, job.elasticity.max_workers),
        (1, None)
    );
    assert_eq!(job.elasticity.spare_copies, varuna_plan::SpareCopies::Off);
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
    assert_eq!(rate.schedule, Schedule::Cosine);
    let kinds = [ParameterKind::Matrix, ParameterKind::Embedding];
    assert_eq!(job.training.optimizer.weight_decay_on, kinds.into());
    assert_eq!(job.training.optimizer.sharding, Sharding::Off);
    assert_eq!(job.layout(), job.model.layout());
    assert_eq!(
        (job.training.optimizer.clip_norm, job.training.evaluation),
        (Some(1.0), None)
    );
    assert_eq!(job.network.encryption, Encryption::None);
    assert_eq!(job.network_policy, NetworkPolicy::default());
    assert_eq!(job.network_policy.restriction, Restriction::Ingress);
}

#[test]
fn the_learning_rate_follows_the_schedule_that_is_named() {
    let of = |more: &str| {
        let text = with(
            MINIMAL,
            "learningRate: 3e-4",
            &format!("learningRate: 3e-4, {more}"),
        );
        parse_job(&text).unwrap().training.learning_rate.schedule
    };
    let stable = |stable_steps| Schedule::WarmupStableDecay { stable_steps };
    for (more, expected) in [
        ("schedule: cosine", Schedule::Cosine),
        ("schedule: linear, warmupSteps: 5", Schedule::Linear),
        ("schedule: constant, warmupSteps: 5", Schedule::Constant),
        // The last tenth of the steps decays, but never a part of the warm-up.
        ("schedule: wsd", stable(180)),
        ("schedule: wsd, decaySteps: 55", stable(50)),
        ("schedule: wsd, warmupSteps: 199", stable(199)),
        ("schedule: wsd, stableSteps: 0", stable(0)),
        ("schedule: wsd, stableSteps: 200", stable(200)),
    ] {
        assert_eq!(of(more), expected, "{more}");
    }
}

#[test]
fn a_path_may_have_what_no_url_may_have() {
    for path in ["runs/a#1", "/runs/a?b", "a://b#1", "runs/s3://b#1"] {
        let checkpoint = format!("  checkpoint: {{uri: '{path}', intervalSteps: 5}}\n");
        let job = parse_job(&format!("{MINIMAL}{checkpoint}")).unwrap();
        assert_eq!(job.checkpoint.unwrap().uri, path);
    }
}

#[test]
fn job_begins_with_the_newest_checkpoint_of_another_job() {
    let text = format!("{MINIMAL}  checkpoint: {{uri: runs, intervalSteps: 5, from: {{job: base}}}}\n");
    let expected = CheckpointSource {
        uri: "runs".into(),
        job: "base".into(),
        step: None,
        weights_only: false,
    };
    let job = parse_job(&text).unwrap();
    assert_eq!(job.checkpoint.unwrap().from, Some(expected));
    let itself = "spec.checkpoint.from.job: \"demo\" — another job, or one in another place: a job goes on from its own checkpoints by itself";
    assert_eq!(errors(&with(&text, "job: base", "job: demo")), [itself]);
    for same in ["runs", "runs/", "./runs", "runs//."] {
        let text = with(&text, "job: base", &format!("job: demo, uri: {same}"));
        assert_eq!(errors(&text), [itself], "{same}");
    }
    let bucket = with(&text, "uri: runs", "uri: s3://b/x/");
    assert_eq!(
        errors(&with(&bucket, "job: base", "job: demo, uri: s3://b/x")),
        [itself]
    );
    for elsewhere in ["other", "/runs", "runs/demo", "s3://runs"] {
        let text = with(&text, "job: base", &format!("job: demo, uri: {elsewhere}"));
        assert!(parse_job(&text).is_ok(), "{elsewhere}");
    }
}

#[test]
fn a_job_trains_on_one_dataset_or_on_a_blend_of_several() {
    let source = |path: &str, weight| DataSource {
        path: path.to_owned(),
        weight,
    };
    let one = Data {
        train: vec![source("data/kjv", 1.0)],
        held_out: HeldOut::Fraction(0.05),
    };
    assert_eq!(parse_job(MINIMAL).unwrap().data, one);
    let blend = Data {
        train: vec![source("kjv", 2.5), source("more", 1.0)],
        held_out: HeldOut::Dataset("held-out".to_owned()),
    };
    assert_eq!(parse_job(FULL).unwrap().data, blend);
}

#[test]
fn every_field_about_the_training_that_is_written_is_taken() {
    let job = parse_job(FULL).unwrap();
    let model = (
        job.model.transformer().unwrap().layers,
        job.model.transformer().unwrap().hidden_size,
        job.model.transformer().unwrap().heads,
        job.model.transformer().unwrap().sequence_length,
    );
    assert_eq!(model, (4, 128, 8, 64));
    assert_eq!(
        (
            job.model.transformer().unwrap().vocabulary_size,
            job.model.transformer().unwrap().tied_head,
            job.model.transformer().unwrap().dropout
        ),
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
    let rule = UpdateRule::Adamw {
        beta1: 0.8,
        beta2: 0.99,
        epsilon: 1e-6,
    };
    assert_eq!((adam.rule, adam.weight_decay), (rule, 0.0));
    assert_eq!(adam.clip_norm, None);
    let kinds = [ParameterKind::Matrix, ParameterKind::Norm];
    assert_eq!(adam.weight_decay_on, kinds.into());
    assert_eq!(adam.sharding, Sharding::Zero1);
    assert_eq!(job.layout(), job.model.layout().in_ranges(12));
    let rate = &job.training.learning_rate;
    assert_eq!(
        (rate.peak, rate.min, rate.warmup_steps, rate.decay_steps),
        (0.001, 0.0, 10, 90)
    );
    assert_eq!(rate.schedule, Schedule::WarmupStableDecay { stable_steps: 60 });
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
fn the_optimizer_is_the_one_that_is_named_with_its_own_defaults() {
    let of = |more: &str| {
        let text = with(
            MINIMAL,
            "learningRate: 3e-4",
            &format!("learningRate: 3e-4{more}"),
        );
        let job = parse_job(&text).unwrap();
        let bytes = crate::planner(&job).costs.parameter;
        let optimizer = job.training.optimizer;
        (
            optimizer.rule,
            optimizer.weight_decay,
            bytes.resident,
            bytes.moved,
        )
    };
    let adamw = UpdateRule::Adamw {
        beta1: 0.9,
        beta2: 0.95,
        epsilon: 1e-8,
    };
    let sgd = |momentum| UpdateRule::Sgd { momentum };
    assert_eq!(of(""), (adamw, 0.1, 16, 12));
    assert_eq!(of(", kind: adamw"), (adamw, 0.1, 16, 12));
    assert_eq!(of(", kind: sgd"), (sgd(0.9), 0.0, 12, 8));
    let plain = of(", kind: sgd, momentum: 0, weightDecay: 0.2");
    assert_eq!(plain, (sgd(0.0), 0.2, 12, 8));
    let muon = |momentum, epsilon| UpdateRule::Muon {
        momentum,
        beta1: 0.9,
        beta2: 0.95,
        epsilon,
    };
    assert_eq!(of(", kind: muon"), (muon(0.95, 1e-8), 0.1, 16, 12));
    let written = of(", kind: muon, momentum: 0.9, epsilon: 1.0e-6, weightDecay: 0");
    assert_eq!(written, (muon(0.9, 1e-6), 0.0, 16, 12));
}

#[test]
fn the_rule_of_an_optimizer_is_read_back_from_its_text() {
    for kind in ["adamw", "sgd", "muon"] {
        let text = with(MINIMAL, "3e-4", &format!("3e-4, kind: {kind}"));
        let optimizer = parse_job(&text).unwrap().training.optimizer;
        let text = serde_json::to_string(&optimizer).unwrap();
        let read: crate::Optimizer = serde_json::from_str(&text).unwrap();
        assert_eq!(read, optimizer, "{text}");
    }
}

#[test]
fn profile_of_any_job_suits_any_optimizer() {
    let adamw = parse_job(MINIMAL).unwrap();
    let [sgd, muon] = ["sgd", "muon"].map(|kind| {
        let optimizer = format!("3e-4, kind: {kind}");
        parse_job(&with(MINIMAL, "3e-4", &optimizer)).unwrap()
    });
    for measured in [&adamw, &sgd, &muon] {
        let costs = crate::unmeasured_costs(measured);
        let profile = Profile::of_costs(&costs, "gpt2-tiny".into(), "cpu-core".into());
        for planned in [&adamw, &sgd, &muon] {
            let bytes = crate::measured_costs(&profile, planned).unwrap().parameter;
            assert_eq!(bytes, crate::planner(planned).costs.parameter);
        }
    }
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
    assert_eq!(job.elasticity.spare_copies, varuna_plan::SpareCopies::Auto);
    assert_eq!((job.workers.gpus_per_pod, job.workers.threads), (4, Some(2)));
    assert_eq!(job.workers.device, WorkerDevice::Cuda);
    assert_eq!(job.workers.transport, WorkerTransport::Tcp);
    assert_eq!(job.workers.device_memory_bytes, Some(300 << 20));
    assert_eq!(
        job.workers.template,
        Some(serde_json::json!({"spec": {"new": null}}))
    );
    assert_eq!(job.compare_every_steps, Some(20));
    assert_eq!(
        (job.disruption.notice_seconds, job.disruption.node_signals.len()),
        (Some(30), 1)
    );
    assert_eq!(job.network.encryption, Encryption::Tls);
    assert!(job.suspend);
    assert_eq!(job.workers.shm_bytes, Some(1 << 30));
    assert_eq!(
        job.workers.resources,
        Some(serde_json::json!({"requests": {"cpu": 8}}))
    );
    let policy = FailurePolicy {
        max_crashes: Some(4),
        avoid_node_after: 2,
    };
    let lifecycle = Lifecycle {
        failure_policy: policy,
        active_deadline_seconds: Some(86_400),
        ttl_seconds_after_finished: Some(3600),
        allow_state_loss: true,
    };
    assert_eq!(job.lifecycle, lifecycle);
    let coordinator = crate::CoordinatorPod {
        service_account: Some("checkpoints".into()),
        template: Some(serde_json::json!({ "spec": { "new": null } })),
    };
    assert_eq!(job.coordinator, coordinator);
}

#[test]
fn every_field_about_checkpoints_that_is_written_is_taken() {
    let job = parse_job(FULL).unwrap();
    let checkpoint = job.checkpoint.unwrap();
    let from = CheckpointSource {
        uri: "gs://other/y".into(),
        job: "base".into(),
        step: Some(40),
        weights_only: true,
    };
    assert_eq!(checkpoint.from, Some(from));
    assert_eq!(
        (
            checkpoint.uri.as_str(),
            checkpoint.interval_steps,
            checkpoint.interval_seconds,
            checkpoint.adaptive,
            checkpoint.keep,
            checkpoint.upload_bytes_per_second,
        ),
        ("s3://bucket/x", Some(50), Some(600), false, 2, Some(5 << 20))
    );
}

#[test]
fn checkpoints_follow_losses_unless_the_job_says_no() {
    let checkpoint = |field: &str| {
        let text = format!("{MINIMAL}  checkpoint: {{uri: runs, intervalSteps: 5{field}}}\n");
        parse_job(&text).unwrap().checkpoint.unwrap()
    };
    assert!(checkpoint("").adaptive);
    assert!(!checkpoint(", adaptive: false").adaptive);
    // An earlier build writes no such field.
    let mut written = serde_json::to_value(checkpoint("")).unwrap();
    assert!(written.as_object_mut().unwrap().remove("adaptive").is_some());
    let read: crate::Checkpoint = serde_json::from_value(written).unwrap();
    assert!(read.adaptive);
}

#[test]
fn long_micro_batch_is_allowed_if_the_model_is_not_cut() {
    let long = "globalBatchSize: 16384\n    microBatchSize: 16384";
    let long = with(MINIMAL, "globalBatchSize: 16", long);
    assert_eq!(errors(&long).len(), 1);
    let whole = format!("{long}  pipeline: {{maxDepth: 1}}\n");
    assert_eq!(parse_job(&whole).unwrap().pipeline.micro_batch_size, Some(16384));
}

#[test]
fn allowed_crashes_grow_with_workers_unless_the_job_sets_them() {
    let crashes = |workers| FailurePolicy::default().crashes_of(workers);
    assert_eq!([1, 48, 49, 64, 1000].map(crashes), [6, 6, 7, 8, 125]);
    let two = FailurePolicy {
        max_crashes: Some(2),
        ..FailurePolicy::default()
    };
    assert_eq!(two.crashes_of(1000), 2);
}

#[test]
fn pods_that_are_made_from_something_else_have_another_hash() {
    let job = parse_job(MINIMAL).unwrap();
    let with_workers = |text: &str| {
        let text = format!("{MINIMAL}  workers: {{{text}}}\n");
        parse_job(&text).unwrap().workers.pods_hash()
    };
    let hashes = [
        "image: b",
        "shmSize: 1Gi",
        "template: {spec: {a: 1}}",
        "resources: {limits: {cpu: 1}}",
    ]
    .map(with_workers);
    let mut different = std::collections::BTreeSet::from(hashes);
    // The value of earlier builds. With another value, a new operator would replace the pods of every job.
    assert_eq!(job.workers.pods_hash(), "2165147c763d0fd9");
    different.insert(job.workers.pods_hash());
    assert_eq!(different.len(), 5);
}

#[test]
fn rules_of_the_network_are_taken_as_they_are_written() {
    let job = parse_job(FULL).unwrap();
    let network = NetworkPolicy {
        restriction: Restriction::IngressAndEgress,
        extra_ingress: vec![serde_json::json!({"ports": [{"port": 9400}]})],
        extra_egress: vec![serde_json::json!({"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]})],
    };
    assert_eq!(job.network_policy, network);
}

#[test]
fn a_group_of_workers_has_what_it_says_over_what_the_job_says() {
    let job = parse_job(FULL).unwrap();
    let [lasting, spot] = job.worker_groups.as_slice() else {
        panic!("{:?}", job.worker_groups);
    };
    assert_eq!(
        (lasting.name.as_str(), lasting.min_workers, lasting.max_workers),
        ("lasting", 2, Some(4))
    );
    assert_eq!(
        (spot.min_workers, spot.max_workers, &spot.workers),
        (0, Some(8), &job.workers)
    );
    let of_group = &lasting.workers;
    assert_eq!(
        (of_group.gpus_per_pod, of_group.image.as_deref()),
        (2, Some("img:2"))
    );
    assert_eq!(
        (of_group.shm_bytes, of_group.device),
        (job.workers.shm_bytes, job.workers.device)
    );
    assert_eq!(
        of_group.resources,
        Some(serde_json::json!({"requests": {"cpu": 8, "memory": "8Gi"}}))
    );
    assert_eq!(
        of_group.template,
        Some(serde_json::json!({"spec": {"newer": null, "new": null, "nodeSelector": {"spot": "false"}}}))
    );
}

#[test]
fn a_job_survives_its_own_serialisation() {
    for text in [MINIMAL, FULL] {
        let job = parse_job(text).unwrap();
        let mut again: Job = serde_json::from_str(&serde_json::to_string(&job).unwrap()).unwrap();
        // These fields are not part of what workers get.
        again.lifecycle = job.lifecycle.clone();
        again.coordinator = job.coordinator.clone();
        again.worker_groups = job.worker_groups.clone();
        again.network_policy = job.network_policy.clone();
        assert_eq!(again, job);
    }
}

#[test]
fn fp16_loss_scale_is_read_and_has_defaults() {
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
fn unknown_fields_are_ignored_in_a_cluster() {
    let newer = with(
        MINIMAL,
        "steps: 200",
        "steps: 200\n    newSetting: {deep: [1, 2]}\n    newList: [1]\n    optimiser: none",
    );
    let newer = with(
        &newer,
        "\nspec:",
        "\nstatus: {phase: New}\nspec:\n  another: true",
    );
    let job = parse_job_of_any_release(&newer).unwrap();
    assert_eq!(job, parse_job(MINIMAL).unwrap());
    let refused = parse_job(&newer).unwrap_err();
    assert_eq!(refused.all().len(), 6, "{refused}");
    let wrong = parse_job_of_any_release(&with(&newer, "steps: 200", "steps: many")).unwrap_err();
    assert_eq!(wrong.all().len(), 1, "{wrong}");
    let many: String = (0..1_000).map(|i| format!("\n  x{i}: 1")).collect();
    let many = parse_job_of_any_release(&with(MINIMAL, "\nspec:", &format!("\nspec:{many}"))).unwrap_err();
    assert!(
        many.to_string().contains("more than 100 unknown or wrong fields"),
        "{many}"
    );
}

#[test]
fn too_long_text_or_list_is_refused() {
    let long = |characters: usize| "ü".repeat(characters);
    let signals = |count: usize| (0..count).map(|i| format!("s{i}")).collect::<Vec<_>>().join(", ");
    let image = "img:1";
    for (from, longest, too_long, error) in [
        (
            "path: kjv",
            format!("path: {}", long(1024)),
            format!("path: {}", long(1025)),
            "spec.data.train.0.path: 1025 characters — 1 to 1024",
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
            got.len() == 1
                && got[0].starts_with("job file: line ")
                && got[0].contains("too large or too complex"),
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

#[test]
fn what_a_job_does_not_say_of_its_model_is_as_the_preset_has_it() {
    let model = |text: &str| {
        let text = MINIMAL.replace("{preset: gpt2-tiny}", text);
        let masking = "steps: 200\n    masking: {maskToken: 1}";
        let text = match text.contains("bert-") {
            true => text.replace("steps: 200", masking),
            false => text,
        };
        parse_job(&text).unwrap().model.transformer().unwrap().clone()
    };
    for name in presets::names() {
        assert_eq!(
            model(&format!("{{preset: {name}}}")),
            presets::preset(name).unwrap()
        );
    }
    let llama = model("{preset: llama-tiny}");
    assert!(!llama.tied_head);
    assert!(model("{preset: llama-tiny, tiedHead: true}").tied_head);
    // The width of a head is independent of the model's width for Qwen, and follows from it for Llama.
    let wider = |name: &str| model(&format!("{{preset: {name}, hiddenSize: 768}}")).head_size();
    assert_eq!((wider("qwen3-tiny"), wider("llama-tiny")), (64, 128));
    let given =
        model("{layers: 1, hiddenSize: 30, heads: 4, headSize: 8, sequenceLength: 8, vocabularySize: 9}");
    assert_eq!((given.head_size(), given.tied_head), (8, true));
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
