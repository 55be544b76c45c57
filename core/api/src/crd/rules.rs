//! What an API server refuses, and in which words: limits of single fields, and CEL rules between fields.
//!
//! The same limits hold in `resolve`, which has the last word: the operator reads each job through `parse_job` and says in a
//! condition what no rule here can tell. Strings and lists are bounded so that the rules stay within a server's cost limit.

use serde_json::{Value, json};

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

/// 2^40, as in `resolve`: micro-batch indices and sample offsets are products of these.
fn count() -> Value {
    json!({ "minimum": 1, "maximum": 1_099_511_627_776_i64 })
}

fn up_to(max: i64) -> Value {
    json!({ "minimum": 1, "maximum": max })
}

/// Model, data and training.
fn limits_of_the_run() -> Vec<(&'static str, Value)> {
    let fraction = || json!({ "minimum": 0, "maximum": 1, "exclusiveMaximum": true });
    vec![
        ("", json!({ "required": ["model", "data", "training"] })),
        (
            "model.preset",
            json!({ "enum": ["gpt2-tiny", "gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-1.5b", "gpt2-xl"] }),
        ),
        ("model.layers", up_to(10_000)),
        ("model.hiddenSize", up_to(1 << 20)),
        ("model.heads", up_to(1 << 20)),
        ("model.sequenceLength", up_to(1 << 20)),
        ("model.vocabularySize", up_to(1 << 24)),
        ("model.dropout", fraction()),
        ("data", json!({ "required": ["path"] })),
        ("data.path", json!({ "minLength": 1, "maxLength": 1024 })),
        ("data.validationFraction", json!({ "minimum": 0, "maximum": 0.5 })),
        (
            "training",
            json!({ "required": ["globalBatchSize", "steps", "optimizer"] }),
        ),
        ("training.globalBatchSize", count()),
        ("training.microBatchSize", up_to(u32::MAX.into())),
        ("training.steps", count()),
        ("training.seed", json!({ "minimum": 0 })),
        ("training.precision", json!({ "enum": ["fp32"] })),
        ("training.optimizer", json!({ "required": ["learningRate"] })),
        (
            "training.optimizer.learningRate",
            json!({ "minimum": 0, "exclusiveMinimum": true, "maximum": 10 }),
        ),
        (
            "training.optimizer.minLearningRate",
            json!({ "minimum": 0, "maximum": 10 }),
        ),
        ("training.optimizer.beta1", fraction()),
        ("training.optimizer.beta2", fraction()),
        (
            "training.optimizer.epsilon",
            json!({ "minimum": 0, "exclusiveMinimum": true, "maximum": 1 }),
        ),
        (
            "training.optimizer.weightDecay",
            json!({ "minimum": 0, "maximum": 10 }),
        ),
        (
            "training.optimizer.clipNorm",
            json!({ "minimum": 0, "maximum": 1_000_000 }),
        ),
        ("training.evaluation", json!({ "required": ["intervalSteps"] })),
        ("training.evaluation.intervalSteps", count()),
        ("training.evaluation.samples", count()),
    ]
}

/// Pipelines, workers and what is around them.
fn limits_of_the_cluster() -> Vec<(&'static str, Value)> {
    vec![
        (
            "pipeline.schedule",
            json!({ "enum": ["1f1b", "gpipe", "interleaved"] }),
        ),
        (
            "pipeline.recompute",
            json!({ "enum": ["auto", "none", "selective", "full"] }),
        ),
        ("pipeline.warmupFactor", json!({ "minimum": 1, "maximum": 16 })),
        ("pipeline.minDepth", up_to(20_002)),
        ("pipeline.maxDepth", up_to(20_002)),
        // `kubectl scale` needs a number to start from; a Deployment starts at one as well.
        ("elasticity", json!({ "default": {} })),
        ("elasticity.minWorkers", up_to(100_000)),
        (
            "elasticity.maxWorkers",
            json!({ "minimum": 1, "maximum": 100_000, "default": 1,
            "description": "Workers that the job may have; 1 where left out (run without a cluster: no limit). This is what kubectl scale sets." }),
        ),
        ("workers.gpusPerPod", up_to(64)),
        ("workers.image", json!({ "minLength": 1, "maxLength": 1024 })),
        ("workers.threads", up_to(1024)),
        ("checkpoint", json!({ "required": ["uri"] })),
        ("checkpoint.uri", json!({ "minLength": 1, "maxLength": 1024 })),
        ("checkpoint.intervalSteps", count()),
        ("checkpoint.intervalSeconds", count()),
        ("checkpoint.keep", up_to(1_000_000)),
        (
            "disruption.nodeSignals",
            json!({ "maxItems": 64, "x-kubernetes-list-type": "set" }),
        ),
        (
            "disruption.nodeSignals",
            json!({ "items": { "type": "string", "minLength": 1, "maxLength": 253 } }),
        ),
        (
            "disruption.noticeSeconds",
            json!({ "minimum": 0, "maximum": 86_400 }),
        ),
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
