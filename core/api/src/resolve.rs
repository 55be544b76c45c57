//! From a manifest to a job: required fields, defaults, limits; every error of the file at once.

use crate::conditions::listed;
use crate::error::{Found, JobErrors};
use crate::job::{Checkpoint, Data, Disruption, Elasticity, Job, Pipelines, Precision, Workers};
use crate::limits;
use crate::manifest::{self, VarunaJob};
use crate::training::{Adam, Evaluation, LearningRate, Training};
use crate::{quantity, read};
use serde_json::Value;
use std::ops::RangeInclusive;
use varuna_model::{Model, gpt2};
use varuna_plan::{ScheduleKind, ScheduleSpec};

mod check;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use check::RECOMPUTE;
use check::{Check, quoted};

/// Where the job file names none: twice the least warm-up takes up uneven stages and jitter, where its larger stash fits.
const WARMUP_FACTORS: [f64; 2] = [2.0, 1.0];
/// Stages of each worker that the planner tries where the job allows interleaving.
const CHUNKS: [u32; 3] = [2, 3, 4];

/// Orders of work, as `pipeline.schedule` names them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// 1F1B.
    Plain,
    /// All forwards, then all backwards.
    Gpipe,
    /// 1F1B with several stages for each worker.
    Interleaved,
}

pub(crate) const ORDERS: [(&str, Order); 3] = [
    ("1f1b", Order::Plain),
    ("gpipe", Order::Gpipe),
    ("interleaved", Order::Interleaved),
];

/// Reads, completes and checks a job file.
///
/// # Errors
/// Everything that is wrong with the file: syntax, unknown or missing fields, wrong types, values out of range, fields
/// that contradict each other.
pub fn parse_job(text: &str) -> Result<Job, JobErrors> {
    let mut check = Check(Found::default());
    let job = read::manifest(text, &mut check.0).map(|manifest| check.job(manifest));
    check.0.finish(job)
}

impl Check {
    fn job(&mut self, file: VarunaJob) -> Job {
        self.one_of(
            "apiVersion",
            file.api_version,
            &[(manifest::API_VERSION, ())],
            None,
        );
        self.one_of("kind", file.kind, &[(manifest::KIND, ())], None);
        let metadata = self.required("metadata", file.metadata, "a mapping with a name");
        let name = self.label("metadata.name", metadata.name);
        let namespace = self.label(
            "metadata.namespace",
            Some(metadata.namespace.unwrap_or("default".into())),
        );
        let spec = self.required("spec", file.spec, "a mapping with model, data and training");
        let data = self.data(spec.data);
        let model = self.model(spec.model);
        let written = self.required(
            "spec.training",
            spec.training,
            "globalBatchSize, steps and optimizer",
        );
        let micro_batch_size = written.micro_batch_size;
        let precision = self.one_of(
            "spec.training.precision",
            written.precision.clone(),
            &[("fp32", Precision::Fp32)],
            Some(Precision::Fp32),
        );
        let training = self.training(written, &data);
        let mut pipeline = self.pipeline(spec.pipeline.unwrap_or_default(), &model);
        pipeline.micro_batch_size = self.micro_batch_size(micro_batch_size, training.global_batch_size);
        Job {
            name,
            namespace,
            elasticity: self.elasticity(&spec.elasticity.unwrap_or_default(), pipeline.min_depth),
            model,
            training,
            precision: precision.unwrap_or(Precision::Fp32),
            data,
            pipeline,
            workers: self.workers(spec.workers.unwrap_or_default()),
            checkpoint: spec.checkpoint.map(|c| self.checkpoint(c)),
            disruption: self.disruption(spec.disruption.unwrap_or_default()),
            suspend: spec.suspend.unwrap_or(false),
        }
    }

    fn data(&mut self, written: Option<manifest::DataSpec>) -> Data {
        let written = self.required("spec.data", written, "a mapping with a path");
        let path = self.text(
            "spec.data.path",
            written.path,
            "the path of a dataset without .bin or .idx",
        );
        if path.ends_with(".bin") || path.ends_with(".idx") {
            self.0
                .push("spec.data.path", &path, "the path without .bin or .idx");
        }
        let fraction = written.validation_fraction.unwrap_or(0.05);
        Data {
            path,
            validation_fraction: self.within(
                "spec.data.validationFraction",
                fraction,
                limits::VALIDATION_FRACTION,
            ),
        }
    }

    fn model(&mut self, written: Option<manifest::ModelSpec>) -> Model {
        let at = |field: &str| format!("spec.model.{field}");
        let written = self.required("spec.model", written, "a preset or explicit sizes");
        let base = written.preset.as_deref().and_then(gpt2::preset);
        if let (Some(name), None) = (&written.preset, &base) {
            self.0.push(
                &at("preset"),
                quoted(name),
                listed(&gpt2::PRESETS.map(|(names, _)| names[0])),
            );
        }
        // With a preset of an unknown name the sizes left out are not errors of their own.
        let complete = written.preset.is_some();
        let mut size =
            |field: &str, value: Option<u32>, of: fn(&Model) -> u32, limit: RangeInclusive<u32>| {
                let value = value.or(base.as_ref().map(of)).or(complete.then_some(1));
                let value = self.required(&at(field), value, &format!("1 to {}, or a preset", limit.end()));
                self.within(&at(field), value, limit)
            };
        let layers = size("layers", written.layers, |m| m.layers, limits::LAYERS);
        let hidden_size = size(
            "hiddenSize",
            written.hidden_size,
            |m| m.hidden_size,
            limits::WIDTH,
        );
        let heads = size("heads", written.heads, |m| m.heads, limits::WIDTH);
        let sequence_length = size(
            "sequenceLength",
            written.sequence_length,
            |m| m.sequence_length,
            limits::WIDTH,
        );
        let vocabulary_size = size(
            "vocabularySize",
            written.vocabulary_size,
            |m| m.vocabulary_size,
            limits::VOCABULARY,
        );
        if hidden_size > 0 && heads > 0 && hidden_size % heads != 0 {
            self.0.push(
                &at("hiddenSize"),
                hidden_size,
                format!("a multiple of heads ({heads})"),
            );
        }
        let dropout = written
            .dropout
            .unwrap_or(base.as_ref().map_or(0.0, |m| m.dropout));
        if !limits::FRACTION.contains(&dropout) {
            self.0.push(&at("dropout"), dropout, "0 <= p < 1");
        }
        let tied_head = written.tied_head.unwrap_or(true);
        Model {
            layers,
            hidden_size,
            heads,
            sequence_length,
            vocabulary_size,
            tied_head,
            dropout,
            features: base.map(|m| m.features).unwrap_or_default(),
        }
    }

    fn training(&mut self, written: manifest::TrainingSpec, data: &Data) -> Training {
        let steps = self.count("spec.training.steps", written.steps);
        let global_batch_size = self.count("spec.training.globalBatchSize", written.global_batch_size);
        let optimizer = self.required(
            "spec.training.optimizer",
            written.optimizer,
            "a mapping with learningRate",
        );
        Training {
            global_batch_size,
            steps,
            seed: self.within("spec.training.seed", written.seed.unwrap_or(0), limits::SEED),
            learning_rate: self.learning_rate(&optimizer, steps),
            optimizer: self.adam(&optimizer),
            evaluation: written
                .evaluation
                .map(|e| self.evaluation(&e, global_batch_size, data)),
        }
    }

    fn learning_rate(&mut self, written: &manifest::OptimizerSpec, steps: u64) -> LearningRate {
        let at = |field: &str| format!("spec.training.optimizer.{field}");
        let peak = self.required(
            &at("learningRate"),
            written.learning_rate,
            "a number above 0, at most 10",
        );
        if written.learning_rate.is_some() && !(peak > 0.0 && peak <= limits::LEARNING_RATE_MAX) {
            self.0
                .push(&at("learningRate"), peak, "a number above 0, at most 10");
        }
        let min = written.min_learning_rate.unwrap_or(peak / 10.0);
        if written.min_learning_rate.is_some() && !(0.0..=peak).contains(&min) {
            self.0
                .push(&at("minLearningRate"), min, format!("0 to learningRate ({peak})"));
        }
        let warmup_steps = self.within(
            &at("warmupSteps"),
            written.warmup_steps.unwrap_or(0),
            limits::COUNT_OR_NONE,
        );
        let decay_steps = self.within(
            &at("decaySteps"),
            written.decay_steps.unwrap_or(steps),
            limits::COUNT_OR_NONE,
        );
        if warmup_steps > decay_steps {
            let end = if written.decay_steps.is_some() {
                "decaySteps"
            } else {
                "steps"
            };
            self.0.push(
                &at("warmupSteps"),
                warmup_steps,
                format!("at most {end} ({decay_steps})"),
            );
        }
        LearningRate {
            peak,
            min,
            warmup_steps,
            decay_steps,
        }
    }

    fn adam(&mut self, written: &manifest::OptimizerSpec) -> Adam {
        let at = |field: &str| format!("spec.training.optimizer.{field}");
        let mut beta = |field: &str, value: f64| {
            if !limits::FRACTION.contains(&value) {
                self.0.push(&at(field), value, "0 <= beta < 1");
            }
            value
        };
        let (beta1, beta2) = (
            beta("beta1", written.beta1.unwrap_or(0.9)),
            beta("beta2", written.beta2.unwrap_or(0.95)),
        );
        let epsilon = written.epsilon.unwrap_or(1e-8);
        if !(epsilon > 0.0 && epsilon <= limits::EPSILON_MAX) {
            self.0
                .push(&at("epsilon"), epsilon, "a number above 0, at most 1");
        }
        let weight_decay = self.within(
            &at("weightDecay"),
            written.weight_decay.unwrap_or(0.1),
            limits::WEIGHT_DECAY,
        );
        let clip = self.within(
            &at("clipNorm"),
            written.clip_norm.unwrap_or(1.0),
            limits::CLIP_NORM,
        );
        Adam {
            beta1,
            beta2,
            epsilon,
            weight_decay,
            clip_norm: (clip > 0.0).then_some(clip),
        }
    }

    fn evaluation(&mut self, written: &manifest::EvaluationSpec, batch: u64, data: &Data) -> Evaluation {
        let at = "spec.training.evaluation";
        if data.validation_fraction == 0.0 {
            self.0.push(
                at,
                "asked for",
                "nothing, as spec.data.validationFraction is 0: no samples are held out",
            );
        }
        let interval_steps = self.count(&format!("{at}.intervalSteps"), written.interval_steps);
        let samples = self.count(
            &format!("{at}.samples"),
            Some(written.samples.unwrap_or(batch.max(1))),
        );
        Evaluation {
            interval_steps,
            samples,
        }
    }

    fn micro_batch_size(&mut self, written: Option<u32>, batch: u64) -> Option<u32> {
        let size = u64::from(written?);
        if size == 0 || (batch > 0 && !batch.is_multiple_of(size)) {
            let allowed = format!("a divisor of globalBatchSize ({batch})");
            self.0.push("spec.training.microBatchSize", size, allowed);
        }
        written
    }

    fn pipeline(&mut self, written: manifest::PipelineSpec, model: &Model) -> Pipelines {
        let at = |field: &str| format!("spec.pipeline.{field}");
        let factors = match written.warmup_factor {
            Some(factor) => vec![self.within(&at("warmupFactor"), factor, limits::WARMUP_FACTOR)],
            None => WARMUP_FACTORS.to_vec(),
        };
        let one_f_one_b = |warmup_factor| ScheduleKind::OneForwardOneBackward { warmup_factor };
        let order = self.one_of(&at("schedule"), written.schedule, &ORDERS, Some(Order::Plain));
        let gpipe = order == Some(Order::Gpipe);
        if let (true, Some(factor)) = (gpipe, written.warmup_factor) {
            self.0.push(
                &at("warmupFactor"),
                factor,
                "nothing with schedule gpipe, which has no warm-up",
            );
        }
        let mut kinds: Vec<ScheduleKind> = match gpipe {
            true => vec![ScheduleKind::Gpipe],
            false => factors.into_iter().map(one_f_one_b).collect(),
        };
        if order == Some(Order::Interleaved) {
            kinds.extend(CHUNKS.map(|chunks| ScheduleKind::Interleaved { chunks }));
        }
        let recompute = self.one_of(
            &at("recompute"),
            written.recompute,
            &RECOMPUTE,
            Some(RECOMPUTE[0].1),
        );
        let specs = |kind| {
            let policies = recompute.unwrap_or_default().iter();
            policies.map(move |p| ScheduleSpec { kind, recompute: *p })
        };
        let schedules = kinds.into_iter().flat_map(specs).collect();
        let segments = model.layout().segments;
        let mut depth = |field: &str, value: u32| {
            if value == 0 || value > segments {
                let allowed = format!("1 to {segments}: a stage holds at least one of the model's segments");
                self.0.push(&at(field), value, allowed);
            }
            value
        };
        let min_depth = depth("minDepth", written.min_depth.unwrap_or(1));
        let max_depth = depth("maxDepth", written.max_depth.unwrap_or(segments));
        if min_depth > max_depth {
            self.0.push(
                &at("minDepth"),
                min_depth,
                format!("at most maxDepth ({max_depth})"),
            );
        }
        Pipelines {
            schedules,
            micro_batch_size: None,
            min_depth,
            max_depth,
        }
    }

    fn elasticity(&mut self, written: &manifest::ElasticitySpec, min_depth: u32) -> Elasticity {
        let at = |field: &str| format!("spec.elasticity.{field}");
        let min_workers = written.min_workers.unwrap_or(min_depth);
        if min_workers == 0 || min_workers < min_depth {
            let allowed =
                format!("at least spec.pipeline.minDepth ({min_depth}): a pipeline needs that many");
            self.0.push(&at("minWorkers"), min_workers, allowed);
        }
        if let Some(max) = written.max_workers.filter(|max| *max < min_workers.max(1)) {
            self.0.push(
                &at("maxWorkers"),
                max,
                format!("at least minWorkers ({min_workers})"),
            );
        }
        Elasticity {
            min_workers,
            max_workers: written.max_workers,
        }
    }

    /// A quantity of bytes; none where it is left out, or was refused.
    fn bytes(&mut self, path: &str, written: Option<&Value>) -> Option<u64> {
        let bytes = written.and_then(quantity::bytes);
        if let (Some(value), None) = (written, bytes) {
            self.0.push(path, value, quantity::ALLOWED);
        }
        bytes
    }

    fn workers(&mut self, written: manifest::WorkersSpec) -> Workers {
        let at = |field: &str| format!("spec.workers.{field}");
        let device_memory_bytes = self.bytes(&at("deviceMemory"), written.device_memory.as_ref());
        if let Some(template) = written.template.as_ref().filter(|t| !t.is_object()) {
            self.0
                .push(&at("template"), template, "a pod template (a mapping)");
        }
        Workers {
            gpus_per_pod: self.within(
                &at("gpusPerPod"),
                written.gpus_per_pod.unwrap_or(1),
                limits::GPUS_PER_POD,
            ),
            image: written.image,
            device_memory_bytes,
            threads: written
                .threads
                .map(|t| self.within(&at("threads"), t, limits::THREADS)),
            template: written.template,
        }
    }

    fn checkpoint(&mut self, written: manifest::CheckpointSpec) -> Checkpoint {
        let at = "spec.checkpoint";
        if written.interval_steps.is_none() && written.interval_seconds.is_none() {
            let allowed = "a number of steps here, or of seconds in intervalSeconds";
            self.0.push("spec.checkpoint.intervalSteps", "missing", allowed);
        }
        let mut count = |name: &str, value: Option<u64>| {
            let path = format!("{at}.{name}");
            value.map(|v| self.within(&path, v, limits::COUNT))
        };
        let interval_steps = count("intervalSteps", written.interval_steps);
        let interval_seconds = count("intervalSeconds", written.interval_seconds);
        let upload_bytes_per_second = self.bytes(
            &format!("{at}.uploadPerSecond"),
            written.upload_per_second.as_ref(),
        );
        Checkpoint {
            uri: self.text(
                "spec.checkpoint.uri",
                written.uri,
                "a folder or the URI of a bucket",
            ),
            interval_steps,
            interval_seconds,
            keep: self.within("spec.checkpoint.keep", written.keep.unwrap_or(3), limits::KEEP),
            upload_bytes_per_second,
        }
    }

    fn disruption(&mut self, written: manifest::DisruptionSpec) -> Disruption {
        // 25 s: the shortest notice of a large cloud, less the time until the pod receives it.
        let notice = written.notice_seconds.unwrap_or(25);
        Disruption {
            node_signals: written.node_signals.unwrap_or_default(),
            notice_seconds: self.within("spec.disruption.noticeSeconds", notice, limits::NOTICE_SECONDS),
        }
    }
}
