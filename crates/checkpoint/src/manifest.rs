//! The manifest of a checkpoint: its shards, and everything about training that is not in them.

use crate::name::{shard_file, unit_name};
use crate::{CheckpointError, DataDigest};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use varuna_model::Transformer;
use varuna_plan::{Layout, Moments, StateId};

/// The version of the format that this build writes. Digests are BLAKE3 since version 3; shards hold the loss scale since version 4;
/// version 5 added SGD's momentum, version 6 Muon's; version 7 added units that are ranges of a segment's state.
pub const FORMAT_VERSION: u32 = 7;
/// The oldest version that this build reads. Version 1 had one shard per block; since version 2 each half of a block has its own.
const OLDEST_VERSION: u32 = 2;

/// The job that made a checkpoint.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// The job's name.
    pub job: String,
    /// All sizes of the model, as in the job file. Equal models load each other's checkpoints.
    pub model: Value,
    /// Hash of model, training and data; empty if the data were not known. If it differs, the loss curve after a resume differs from that
    /// of an uninterrupted run.
    pub training_hash: String,
    /// Seed of initial values, dropout and sample order.
    pub seed: u64,
    /// Samples in a step.
    pub global_batch_size: u64,
    /// Fingerprint of the dataset; empty if it was not known.
    pub data_fingerprint: String,
    /// The moments that the optimizer keeps for each parameter.
    #[serde(default, skip_serializing_if = "Moments::are_adams")]
    pub moments: Moments,
}

impl Facts {
    /// The version of this job's checkpoints: as old as possible, so that builds that know only Adam's moments can still read checkpoints
    /// that have them.
    fn format_version(&self, layout: Layout) -> u32 {
        match self.moments {
            _ if layout.ranges > 1 => 7,
            Moments::Adam => 4,
            Moments::Momentum => 5,
            Moments::Muon => 6,
        }
    }
}

/// An entry for one shard.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShardEntry {
    /// The unit's name.
    pub unit: String,
    /// The file, in the manifest's folder.
    pub file: String,
    /// Length of the file.
    pub bytes: u64,
    /// The digest of its data (the bytes after the safetensors header), under the name of the hash function.
    #[serde(flatten)]
    pub digest: DataDigest,
}

/// `manifest.json`. Its content depends only on the state and the job, so all writers that know the data write the same.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// The oldest version that can express the content, at most [`FORMAT_VERSION`].
    pub format_version: u32,
    /// The state.
    pub state: StateId,
    /// Number of segments, and whether a tied weight is a unit of its own.
    pub layout: Layout,
    /// The job.
    #[serde(flatten)]
    pub facts: Facts,
    /// The first sample that was not trained on: its position in the seeded order.
    pub next_sample: u64,
    /// All units in order.
    pub shards: Vec<ShardEntry>,
}

impl Manifest {
    /// The manifest of a state whose shards are these, in unit order.
    #[must_use]
    pub fn new(id: StateId, layout: Layout, facts: Facts, shards: Vec<ShardEntry>) -> Manifest {
        Manifest {
            format_version: facts.format_version(layout),
            state: id,
            layout,
            next_sample: id.step.0.saturating_mul(facts.global_batch_size),
            facts,
            shards,
        }
    }

    /// Reads a manifest and checks that it is complete and belongs to this state.
    ///
    /// # Errors
    /// The manifest has another format, is damaged, or belongs to another state.
    pub fn decode(id: StateId, text: &[u8]) -> Result<Manifest, CheckpointError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Version {
            format_version: u32,
        }
        let damaged = |why: String| CheckpointError::Damaged {
            id,
            file: crate::name::MANIFEST.into(),
            why,
        };
        let version: Version = serde_json::from_slice(text).map_err(|e| damaged(e.to_string()))?;
        if !(OLDEST_VERSION..=FORMAT_VERSION).contains(&version.format_version) {
            return Err(CheckpointError::Unsuitable {
                id,
                why: format!(
                    "it has format version {}, this build reads {OLDEST_VERSION} to {FORMAT_VERSION}",
                    version.format_version
                ),
            });
        }
        let manifest: Manifest = serde_json::from_slice(text).map_err(|e| damaged(e.to_string()))?;
        if manifest.state != id {
            return Err(damaged(format!("it is of {}", manifest.state)));
        }
        let layout = manifest.layout;
        let units = layout
            .all_units()
            .map(|u| (unit_name(layout, u), shard_file(layout, u)));
        let named = manifest.shards.iter().map(|s| (s.unit.clone(), s.file.clone()));
        if !units.eq(named) {
            return Err(damaged("it does not name each unit once, in order".into()));
        }
        Ok(manifest)
    }

    /// Checks that a job may continue with this checkpoint's optimizer state.
    ///
    /// # Errors
    /// The checkpoint belongs to another optimizer.
    pub fn suits_optimizer(&self, facts: &Facts) -> Result<(), CheckpointError> {
        let (own, of_job) = (self.facts.moments, facts.moments);
        if own == of_job {
            return Ok(());
        }
        Err(CheckpointError::Unsuitable {
            id: self.state,
            why: format!(
                "it is of job {} with the optimizer {own}, this job's is {of_job}: spec.training.optimizer.kind {own} is needed, or a job of \
                 another name with checkpoint.from and weightsOnly",
                self.facts.job
            ),
        })
    }

    /// Checks that a job may load this checkpoint's parameters.
    ///
    /// # Errors
    /// It belongs to another model. The error names each field that differs, by its name in the job file, with the job's value and the
    /// checkpoint's. For an exported model with equally many parameters, it names each segment whose parameters differ.
    pub fn suits(&self, facts: &Facts, layout: Layout) -> Result<(), CheckpointError> {
        let mut named = differences(&facts.model, &self.facts.model);
        if named.is_empty() {
            named = segments_of_others(&facts.model, &self.facts.model);
        }
        if named.is_empty() && self.layout.undivided() != layout.undivided() {
            named.push("its units differ".to_owned());
        }
        if named.is_empty() {
            return Ok(());
        }
        Err(CheckpointError::Unsuitable {
            id: self.state,
            why: format!(
                "it is of job {}, and this job's model is another one: {}",
                self.facts.job,
                named.join("; ")
            ),
        })
    }
}

/// Features that a job can set: the path, the field of `spec.model`, and the value of a model whose description omits it.
const FIELDS: &[(&str, &str, &str)] = &[
    ("features.kvHeads", "kvHeads", "left out"),
    ("features.headSize", "headSize", "left out"),
    ("features.qkNorm", "qkNorm", "false"),
    ("features.innerSize", "innerSize", "left out"),
    ("features.mlp", "mlp", "left out"),
    ("features.slidingWindow", "slidingWindow", "left out"),
    ("features.bidirectional", "bidirectional", "false"),
    ("features.logitSoftcap", "logitSoftcap", "left out"),
    (POSITIONS_KIND, "positions", "learned"),
    // A model with rotary positions takes samples of any length.
    ("sequenceLength", "sequenceLength", "any"),
    ("features.positions.rotary.theta", "ropeTheta", "left out"),
    (SCALING_KIND, "ropeScaling.kind", "left out"),
    (
        "features.positions.rotary.scaling.factor",
        "ropeScaling.factor",
        "left out",
    ),
    (
        "features.positions.rotary.scaling.lowTurns",
        "ropeScaling.lowFrequencyFactor",
        "left out",
    ),
    (
        "features.positions.rotary.scaling.highTurns",
        "ropeScaling.highFrequencyFactor",
        "left out",
    ),
    (
        "features.positions.rotary.scaling.originalLength",
        "ropeScaling.originalSequenceLength",
        "left out",
    ),
    ("features.norm", "norm", "layer"),
    ("features.epsilon", "normEpsilon", "1e-5"),
    ("features.bias.qkv", "attentionBias", "true"),
    ("features.bias.out", "attentionBias", "true"),
    ("features.bias.mlp", "mlpBias", "true"),
];
/// This path is not in a model's description, which only has or omits the angles.
const POSITIONS_KIND: &str = "features.positions.kind";
/// Nor is this one: the description has or omits the scaling.
const SCALING_KIND: &str = "features.positions.rotary.scaling.kind";
/// Values that have another name in a model's description than in a job file.
const NAMES: &[(&str, &str)] = &[("rmsNorm", "rms"), ("swiGlu", "swiglu")];

/// The fields that differ.
fn differences(of_job: &Value, own: &Value) -> Vec<String> {
    let same = same_by_sizes(of_job, own);
    let [of_job, own] = [of_job, own].map(sizes);
    let fields = own.keys().chain(of_job.keys()).collect::<BTreeSet<_>>();
    let differing = fields
        .into_iter()
        .filter(|field| own.get(*field) != of_job.get(*field) && !same.contains(&field.as_str()));
    let named = differing.map(|field| difference(field, of_job.get(field), own.get(field)));
    let mut named: Vec<String> = named.collect();
    // One boolean of the job file sets two kinds of biases.
    named.dedup();
    named
}

/// The paths of features that both models have by their sizes: it does not matter which of the two descriptions names them. None for
/// exported models.
fn same_by_sizes(of_job: &Value, own: &Value) -> Vec<&'static str> {
    let beside_sizes = |model: &Value| {
        let model = Transformer::deserialize(model).ok()?;
        Some(model.features_beside_sizes())
    };
    let Some((of_job, own)) = beside_sizes(of_job).zip(beside_sizes(own)) else {
        return Vec::new();
    };
    let features = [
        ("features.kvHeads", of_job.kv_heads == own.kv_heads),
        ("features.headSize", of_job.head_size == own.head_size),
        ("features.innerSize", of_job.inner_size == own.inner_size),
        (
            "features.slidingWindow",
            of_job.sliding_window == own.sliding_window,
        ),
    ];
    let same = features.into_iter().filter(|(_, same)| *same);
    same.map(|(path, _)| path).collect()
}

/// A field that differs, with the job's value and the one that it needs.
fn difference(path: &str, of_job: Option<&Value>, own: Option<&Value>) -> String {
    let known = FIELDS.iter().find(|(known, ..)| *known == path);
    let (field, absent) = known.map_or((path, "left out"), |(_, field, absent)| (*field, *absent));
    let value = |of: Option<&Value>| of.map_or(absent.to_owned(), in_a_job);
    format!("{field} {}, needed {}", value(of_job), value(own))
}

/// A value as a job file has it.
fn in_a_job(value: &Value) -> String {
    let other = NAMES.iter().find(|(described, _)| value == described);
    other.map_or_else(|| value.to_string(), |(_, name)| format!("{name:?}"))
}

/// The fields of a model that determine its parameters, each by its path.
fn sizes(model: &Value) -> BTreeMap<String, Value> {
    // Dropout has no state, and neither have positions that are not learned, so a model may continue with longer samples.
    let rotary = model.pointer("/features/positions/rotary");
    let mut sizes = BTreeMap::new();
    add_leaves("", model, &mut sizes);
    // For an exported model, the numbers of parameters: it may be exported again, and shards have names and shapes.
    if let Some(exported) = model.get("exported") {
        sizes.retain(|field, _| field == "exported.sharedParameters");
        let segments = exported.get("segments").and_then(Value::as_array);
        for (i, segment) in segments.into_iter().flatten().enumerate() {
            let parameters = segment.get("parameters").cloned().unwrap_or_default();
            sizes.insert(format!("exported.segments.{i}.parameters"), parameters);
        }
    }
    sizes.remove("dropout");
    if let Some(rotary) = rotary {
        sizes.remove("sequenceLength");
        let kind = if rotary.get("scaling").is_some() {
            "llama3"
        } else {
            "none"
        };
        sizes.insert(SCALING_KIND.to_owned(), kind.into());
        sizes.insert(POSITIONS_KIND.to_owned(), "rotary".into());
    }
    sizes
}

/// The segments of an exported model whose parameters have other names or shapes than in a checkpoint, as far as both descriptions say;
/// those of older exports do not. The order in which parameters are stored does not count.
fn segments_of_others(of_job: &Value, own: &Value) -> Vec<String> {
    let [of_job, own] = [of_job, own].map(|model| {
        let segments = model.pointer("/exported/segments").and_then(Value::as_array);
        segments.map_or(&[][..], Vec::as_slice)
    });
    let digest = |segment: &Value| Some(segment.get("parametersDigest")?.as_str()?.to_owned());
    let other = |(number, (of_job, own)): (usize, (&Value, &Value))| {
        let (needed, found) = digest(of_job).zip(digest(own))?;
        let name = of_job.get("name").and_then(Value::as_str).unwrap_or_default();
        (needed != found).then(|| {
            format!("segment {number} ({name}) has parameters of other names or shapes than the checkpoint")
        })
    };
    of_job.iter().zip(own).enumerate().filter_map(other).collect()
}

fn add_leaves(path: &str, value: &Value, leaves: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                let dot = if path.is_empty() { "" } else { "." };
                add_leaves(&format!("{path}{dot}{name}"), value, leaves);
            }
        }
        leaf => drop(leaves.insert(path.to_owned(), leaf.clone())),
    }
}

#[cfg(test)]
mod tests;
