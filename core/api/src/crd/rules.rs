//! What an API server refuses, and with which message: limits of single fields, and CEL rules between fields.
//!
//! The limits are those of `limits`, which the resolver checks too. It also checks what no rule here can: the operator parses each job
//! with `parse_job` and reports errors in a condition. Strings and lists are bounded so that the rules stay within a server's cost
//! limit.

use crate::choices::{PRECISIONS, RECOMPUTE, SCHEDULES};
use crate::limits;
use serde_json::{Value, json};
use std::ops::{Range, RangeInclusive};
use varuna_model::gpt2;

/// Segments of a model: two for each layer, the embedding and the head. The resolver knows the job's own number.
const SEGMENTS_MAX: u32 = 2 * *limits::LAYERS.end() + 2;
/// Workers of a job in a cluster; without one there is no limit.
const WORKERS_MAX: u32 = 100_000;

/// A CEL rule on the value of a field.
pub(super) struct Rule {
    /// The field, from `spec`; empty = the whole.
    pub(super) at: &'static str,
    /// True where the value is allowed.
    pub(super) rule: &'static str,
    /// What to do otherwise.
    pub(super) message: &'static str,
}

const fn rule(at: &'static str, rule: &'static str, message: &'static str) -> Rule {
    Rule { at, rule, message }
}

/// Limits of fields, merged into their schemas.
pub(super) fn limits() -> Vec<(&'static str, Value)> {
    let mut limits = limits_of_the_run();
    limits.extend(limits_of_the_cluster());
    limits
}

/// A whole number or a number, both ends included.
fn within<T: serde::Serialize>(range: &RangeInclusive<T>) -> Value {
    json!({ "minimum": range.start(), "maximum": range.end() })
}

/// At least one, at most `max`.
fn up_to(max: u32) -> Value {
    within(&(1..=max))
}

/// Above 0, at most `max`.
fn above_zero(max: f64) -> Value {
    json!({ "minimum": 0, "exclusiveMinimum": true, "maximum": max })
}

/// One of a list of words.
fn one_of<T>(words: &[(&str, T)]) -> Value {
    let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
    json!({ "enum": words })
}

/// Model, data and training.
fn limits_of_the_run() -> Vec<(&'static str, Value)> {
    let fraction = || {
        let Range { start, end } = limits::FRACTION;
        json!({ "minimum": start, "maximum": end, "exclusiveMaximum": true })
    };
    let count = || within(&limits::COUNT);
    vec![
        ("", json!({ "required": ["model", "data", "training"] })),
        (
            "model.preset",
            json!({ "enum": gpt2::PRESETS.map(|(names, _)| names).concat() }),
        ),
        ("model.layers", within(&limits::LAYERS)),
        ("model.hiddenSize", within(&limits::WIDTH)),
        ("model.heads", within(&limits::WIDTH)),
        ("model.sequenceLength", within(&limits::WIDTH)),
        ("model.vocabularySize", within(&limits::VOCABULARY)),
        ("model.dropout", fraction()),
        ("data", json!({ "required": ["path"] })),
        ("data.path", json!({ "minLength": 1, "maxLength": 1024 })),
        ("data.validationFraction", within(&limits::VALIDATION_FRACTION)),
        (
            "training",
            json!({ "required": ["globalBatchSize", "steps", "optimizer"] }),
        ),
        ("training.globalBatchSize", count()),
        ("training.microBatchSize", up_to(u32::MAX)),
        ("training.steps", count()),
        ("training.seed", json!({ "minimum": 0 })),
        ("training.precision", one_of(&PRECISIONS)),
        ("training.optimizer", json!({ "required": ["learningRate"] })),
        (
            "training.optimizer.learningRate",
            above_zero(limits::LEARNING_RATE_MAX),
        ),
        (
            "training.optimizer.minLearningRate",
            within(&(0.0..=limits::LEARNING_RATE_MAX)),
        ),
        ("training.optimizer.beta1", fraction()),
        ("training.optimizer.beta2", fraction()),
        ("training.optimizer.epsilon", above_zero(limits::EPSILON_MAX)),
        ("training.optimizer.weightDecay", within(&limits::WEIGHT_DECAY)),
        ("training.optimizer.clipNorm", within(&limits::CLIP_NORM)),
        ("training.evaluation", json!({ "required": ["intervalSteps"] })),
        ("training.evaluation.intervalSteps", count()),
        ("training.evaluation.samples", count()),
    ]
}

/// Pipelines, workers and what is around them.
fn limits_of_the_cluster() -> Vec<(&'static str, Value)> {
    vec![
        ("pipeline.schedule", one_of(&SCHEDULES)),
        ("pipeline.recompute", one_of(&RECOMPUTE)),
        ("pipeline.warmupFactor", within(&limits::WARMUP_FACTOR)),
        ("pipeline.minDepth", up_to(SEGMENTS_MAX)),
        ("pipeline.maxDepth", up_to(SEGMENTS_MAX)),
        // `kubectl scale` needs a number to start from; a Deployment starts at one as well.
        ("elasticity", json!({ "default": {} })),
        ("elasticity.minWorkers", up_to(WORKERS_MAX)),
        (
            "elasticity.maxWorkers",
            json!({ "minimum": 1, "maximum": WORKERS_MAX, "default": 1,
            "description": "Workers that the job may have; 1 where left out (run without a cluster: no limit). This is what kubectl scale sets." }),
        ),
        ("workers.gpusPerPod", within(&limits::GPUS_PER_POD)),
        ("workers.image", json!({ "minLength": 1, "maxLength": 1024 })),
        ("workers.threads", within(&limits::THREADS)),
        ("checkpoint", json!({ "required": ["uri"] })),
        ("checkpoint.uri", json!({ "minLength": 1, "maxLength": 1024 })),
        ("checkpoint.intervalSteps", within(&limits::COUNT)),
        ("checkpoint.intervalSeconds", within(&limits::COUNT)),
        ("checkpoint.keep", within(&limits::KEEP)),
        (
            "disruption.nodeSignals",
            json!({ "maxItems": 64, "x-kubernetes-list-type": "set" }),
        ),
        (
            "disruption.nodeSignals",
            json!({ "items": { "type": "string", "minLength": 1, "maxLength": 253 } }),
        ),
        ("disruption.noticeSeconds", within(&limits::NOTICE_SECONDS)),
    ]
}

/// Rules on the whole object.
pub(super) fn object() -> Vec<Rule> {
    vec![
        // Pods and services are named after the job; 63 is the limit of theirs.
        rule(
            "",
            "size(self.metadata.name) <= 40",
            "choose a name of at most 40 characters: pods are named after the job",
        ),
        rule(
            "",
            "!self.metadata.name.contains('.')",
            "choose a name without dots: services are named after the job",
        ),
    ]
}

/// Rules within the spec.
pub(super) fn spec() -> Vec<Rule> {
    let mut rules = sound();
    rules.extend(fixed());
    rules
}

/// What belongs together.
fn sound() -> Vec<Rule> {
    vec![
        rule(
            "model",
            "has(self.preset) || (has(self.layers) && has(self.hiddenSize) && has(self.heads) && has(self.sequenceLength) && has(self.vocabularySize))",
            "name a preset, or give all of layers, hiddenSize, heads, sequenceLength and vocabularySize",
        ),
        rule(
            "model",
            "!has(self.hiddenSize) || !has(self.heads) || self.hiddenSize % self.heads == 0",
            "make hiddenSize a multiple of heads",
        ),
        rule(
            "data",
            "!self.path.endsWith('.bin') && !self.path.endsWith('.idx')",
            "give the path without .bin or .idx: a dataset is both files",
        ),
        rule(
            "training",
            "!has(self.microBatchSize) || self.globalBatchSize % self.microBatchSize == 0",
            "make microBatchSize a divisor of globalBatchSize, or leave it out: the planner chooses one",
        ),
        rule(
            "training",
            "!has(self.optimizer.warmupSteps) || self.optimizer.warmupSteps <= (has(self.optimizer.decaySteps) ? self.optimizer.decaySteps : self.steps)",
            "make optimizer.warmupSteps at most decaySteps (steps, where decaySteps is left out)",
        ),
        rule(
            "training.optimizer",
            "!has(self.minLearningRate) || self.minLearningRate <= self.learningRate",
            "make minLearningRate at most learningRate",
        ),
        rule(
            "pipeline",
            "!has(self.warmupFactor) || !has(self.schedule) || self.schedule != 'gpipe'",
            "leave warmupFactor out: schedule gpipe has no warm-up",
        ),
        rule(
            "pipeline",
            "!has(self.minDepth) || !has(self.maxDepth) || self.minDepth <= self.maxDepth",
            "make minDepth at most maxDepth",
        ),
        rule(
            "checkpoint",
            "has(self.intervalSteps) || has(self.intervalSeconds)",
            "give intervalSteps, intervalSeconds or both",
        ),
        rule(
            "elasticity",
            "!has(self.minWorkers) || self.minWorkers <= self.maxWorkers",
            "make maxWorkers at least minWorkers; to stop the job for a while, set spec.suspend to true",
        ),
        rule(
            "",
            "!has(self.pipeline) || !has(self.pipeline.minDepth) || (self.pipeline.minDepth <= self.elasticity.maxWorkers && (!has(self.elasticity.minWorkers) || self.pipeline.minDepth <= self.elasticity.minWorkers))",
            "make elasticity.minWorkers and maxWorkers at least pipeline.minDepth: a pipeline needs that many workers",
        ),
        rule(
            "",
            "!has(self.workers) || !has(self.workers.gpusPerPod) || (self.elasticity.maxWorkers / self.workers.gpusPerPod) * self.workers.gpusPerPod >= (has(self.elasticity.minWorkers) ? self.elasticity.minWorkers : 1)",
            "raise elasticity.maxWorkers or lower workers.gpusPerPod: whole pods within maxWorkers must hold at least minWorkers",
        ),
        rule(
            "",
            "!has(self.training.evaluation) || !has(self.data.validationFraction) || self.data.validationFraction > 0.0",
            "leave training.evaluation out, or make data.validationFraction more than 0: no samples are held out",
        ),
    ]
}

/// What identifies the run. A run with another model or batch is another run.
fn fixed() -> Vec<Rule> {
    vec![
        rule(
            "",
            "self.model == oldSelf.model",
            "model cannot change: make a new job",
        ),
        rule(
            "",
            "self.data == oldSelf.data",
            "data cannot change: make a new job",
        ),
        rule(
            "",
            "self.training == oldSelf.training",
            "training cannot change, the global batch and the steps included: make a new job",
        ),
        rule(
            "",
            "has(self.pipeline) == has(oldSelf.pipeline) && (!has(self.pipeline) || self.pipeline == oldSelf.pipeline)",
            "pipeline cannot change: make a new job",
        ),
        rule(
            "",
            "has(self.checkpoint) == has(oldSelf.checkpoint) && (!has(self.checkpoint) || self.checkpoint == oldSelf.checkpoint)",
            "checkpoint cannot change: make a new job",
        ),
        rule(
            "",
            "has(self.elasticity.minWorkers) == has(oldSelf.elasticity.minWorkers) && (!has(self.elasticity.minWorkers) || self.elasticity.minWorkers == oldSelf.elasticity.minWorkers)",
            "elasticity.minWorkers cannot change: make a new job (maxWorkers can)",
        ),
        rule(
            "",
            "(has(self.workers) && has(self.workers.threads) ? self.workers.threads : 0) == (has(oldSelf.workers) && has(oldSelf.workers.threads) ? oldSelf.workers.threads : 0)",
            "workers.threads cannot change, as it changes the last bits of results: make a new job",
        ),
        rule(
            "",
            "(has(self.workers) && has(self.workers.deviceMemory) ? string(self.workers.deviceMemory) : '') == (has(oldSelf.workers) && has(oldSelf.workers.deviceMemory) ? string(oldSelf.workers.deviceMemory) : '')",
            "workers.deviceMemory cannot change, as plans are made for it: make a new job",
        ),
    ]
}
