//! One unit's state as a safetensors file: parameters, first and second moments, each under its parameter's name.
//!
//! The header holds the digest of the data, so that the manifest can be written without reading the data again, and a damaged
//! shard is found without the manifest.

use crate::{CheckpointError, DataDigest};
use bytes::Bytes;
use safetensors::tensor::{Dtype, Metadata, SafeTensors, View, serialize};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use varuna_plan::{LossScale, StateId};

/// Prefixes of the tensors' names: the value of a parameter and its two moments.
pub(crate) const KINDS: [&str; 3] = ["parameter", "exp_avg", "exp_avg_sq"];
/// The key of our own metadata in the header.
const KEY: &str = "varuna";

/// One parameter of a shard. All three parts have the shape's number of elements.
#[derive(Clone, PartialEq, Debug)]
pub struct ShardTensor {
    /// The parameter's name within its segment, as in GPT-2's published checkpoints.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Values, first and second moments (AdamW), in row-major order.
    pub parts: [Vec<f32>; 3],
}

/// The state of one unit.
#[derive(Clone, PartialEq, Debug)]
pub struct Shard {
    /// The state that it belongs to.
    pub id: StateId,
    /// Its unit's name (see [`crate::unit_name`]).
    pub unit: String,
    /// Optimizer steps applied (skipped ones not counted).
    pub adam_steps: u64,
    /// The next step's loss scale; none where the job has no dynamic one, and in files of format 3 and older.
    pub loss_scale: Option<LossScale>,
    /// Steps skipped in a row that no smaller loss scale would have saved; 0 in files of format 3 and older.
    pub failed_in_a_row: u32,
    /// Parameters in their order.
    pub tensors: Vec<ShardTensor>,
}

/// Our own metadata in the header.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    state: StateId,
    unit: String,
    adam_steps: u64,
    /// Since format 4, like the next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    loss_scale: Option<LossScale>,
    #[serde(default)]
    failed_in_a_row: u32,
    /// The parameters in their order: safetensors keeps none.
    order: Vec<String>,
    /// Of everything after the header.
    #[serde(flatten)]
    digest: DataDigest,
}

struct Floats<'a> {
    shape: &'a [usize],
    values: &'a [f32],
}

impl View for Floats<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }
    fn shape(&self) -> &[usize] {
        self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(bytemuck::cast_slice(self.values))
    }
    fn data_len(&self) -> usize {
        size_of_val(self.values)
    }
}

impl Shard {
    /// The file's bytes. Equal shards give equal bytes.
    ///
    /// # Errors
    /// A part has another number of elements than its shape.
    pub fn encode(&self) -> Result<Bytes, CheckpointError> {
        let damaged = |why: String| self.damaged(why);
        let mut views: Vec<(String, Floats)> = Vec::new();
        for tensor in &self.tensors {
            let elements: usize = tensor.shape.iter().product();
            for (kind, values) in KINDS.iter().zip(&tensor.parts) {
                if values.len() != elements {
                    return Err(damaged(format!(
                        "{kind}/{} has {} elements, its shape {:?} has {elements}",
                        tensor.name,
                        values.len(),
                        tensor.shape
                    )));
                }
                let shape = &tensor.shape;
                views.push((format!("{kind}/{}", tensor.name), Floats { shape, values }));
            }
        }
        // The library writes tensors of one type in the order of their names; the digest uses the same order.
        views.sort_by(|a, b| a.0.cmp(&b.0));
        let parts = views
            .iter()
            .map(|(_, floats)| bytemuck::cast_slice(floats.values));
        let header = Header {
            state: self.id,
            unit: self.unit.clone(),
            adam_steps: self.adam_steps,
            loss_scale: self.loss_scale,
            failed_in_a_row: self.failed_in_a_row,
            order: self.tensors.iter().map(|t| t.name.clone()).collect(),
            digest: DataDigest::of(parts),
        };
        let text = serde_json::to_string(&header).map_err(|e| damaged(e.to_string()))?;
        // One key only: the library writes metadata in the order of a hash map.
        let metadata = HashMap::from([(KEY.to_owned(), text)]);
        let file = serialize(views, Some(metadata)).map_err(|e| damaged(e.to_string()))?;
        Ok(file.into())
    }

    /// Reads a file and checks that it is the whole state of `unit` at `id`.
    ///
    /// # Errors
    /// The file is damaged, or another state's.
    pub fn decode(id: StateId, unit: &str, file: &[u8]) -> Result<Shard, CheckpointError> {
        let mut shard = Shard {
            id,
            unit: unit.to_owned(),
            adam_steps: 0,
            loss_scale: None,
            failed_in_a_row: 0,
            tensors: Vec::new(),
        };
        let facts = ShardFacts::read(id, unit, file)?;
        let data = &file[facts.data_start..];
        if !facts.header.digest.is_of(data) {
            return Err(shard.damaged("its data do not match its digest"));
        }
        let tensors = SafeTensors::deserialize(file).map_err(|e| shard.damaged(e))?;
        let order = facts.header.order;
        // A name that stands there again and again would be copied as often.
        let different = order.iter().collect::<BTreeSet<_>>().len();
        if different != order.len() || KINDS.len() * order.len() != tensors.len() {
            return Err(shard.damaged(format!(
                "its order has {} names, {different} of them different, its header {} tensors; each name has {} of them",
                order.len(),
                tensors.len(),
                KINDS.len()
            )));
        }
        for name in order {
            let tensor = read_tensor(&tensors, name).map_err(|why| shard.damaged(why))?;
            shard.tensors.push(tensor);
        }
        shard.adam_steps = facts.header.adam_steps;
        shard.loss_scale = facts.header.loss_scale;
        shard.failed_in_a_row = facts.header.failed_in_a_row;
        Ok(shard)
    }

    fn damaged(&self, why: impl ToString) -> CheckpointError {
        CheckpointError::Damaged {
            id: self.id,
            file: format!("{}.safetensors", self.unit),
            why: why.to_string(),
        }
    }
}

/// A parameter and its moments, which have one shape. The error is a sentence.
fn read_tensor(tensors: &SafeTensors, name: String) -> Result<ShardTensor, String> {
    let mut shape: Option<Vec<usize>> = None;
    let mut parts = [const { Vec::new() }; 3];
    for (kind, part) in KINDS.iter().zip(&mut parts) {
        let key = format!("{kind}/{name}");
        let view = tensors.tensor(&key).map_err(|e| format!("{key}: {e}"))?;
        if view.dtype() != Dtype::F32 {
            return Err(format!("{key} is {:?}, not F32", view.dtype()));
        }
        let own = view.shape();
        let first = shape.get_or_insert_with(|| own.to_vec());
        if own != first {
            return Err(format!("{key} has the shape {own:?}, its parameter {first:?}"));
        }
        *part = bytemuck::pod_collect_to_vec(view.data());
    }
    let shape = shape.unwrap_or_default();
    Ok(ShardTensor { name, shape, parts })
}

/// The header of a shard's file, and where its data are.
pub(crate) struct ShardFacts {
    header: Header,
    data_start: usize,
    bytes: u64,
}

impl ShardFacts {
    /// Bytes of a file up to the end of its header, by its first 8 bytes.
    pub(crate) fn header_end(start: &[u8]) -> Option<u64> {
        let length = u64::from_le_bytes(start.get(..8)?.try_into().ok()?);
        // The library's own limit.
        (length <= 100_000_000).then(|| 8 + length)
    }

    /// Reads the header; `start` must hold at least [`ShardFacts::header_end`] bytes of the file.
    pub(crate) fn read(id: StateId, unit: &str, start: &[u8]) -> Result<ShardFacts, CheckpointError> {
        let damaged = |why: String| CheckpointError::Damaged {
            id,
            file: format!("{unit}.safetensors"),
            why,
        };
        let end = Self::header_end(start).and_then(|e| usize::try_from(e).ok());
        let whole = end.filter(|e| *e <= start.len());
        let Some(data_start) = whole else {
            return Err(damaged("it is cut short".into()));
        };
        // The library's own reader needs the whole file.
        let metadata: Metadata =
            serde_json::from_slice(&start[8..data_start]).map_err(|e| damaged(e.to_string()))?;
        let text = metadata.metadata().as_ref().and_then(|m| m.get(KEY));
        let text = text.ok_or_else(|| damaged(format!("its header has no {KEY} metadata")))?;
        let header: Header = serde_json::from_str(text).map_err(|e| damaged(e.to_string()))?;
        if header.state != id || header.unit != unit {
            return Err(damaged(format!("it holds {} at {}", header.unit, header.state)));
        }
        let bytes = metadata.data_len().checked_add(data_start);
        let bytes = bytes.ok_or_else(|| damaged("the offsets in its header are beyond every file".into()))?;
        Ok(ShardFacts {
            header,
            data_start,
            bytes: bytes as u64,
        })
    }

    /// Of the data, as the header says.
    pub(crate) fn digest(&self) -> &DataDigest {
        &self.header.digest
    }

    /// Bytes of the whole file.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_plan::state::Chain;
    use varuna_plan::{Generation, Step};

    const ID: StateId = StateId {
        run_gen: Generation(2),
        step: Step(5),
        chain: Chain(7),
    };
    const UNIT: &str = "segment-000";

    fn shard() -> Shard {
        let tensor = |name: &str, shape: &[usize]| ShardTensor {
            name: name.into(),
            shape: shape.to_vec(),
            parts: [1.0, 2.0, 3.0].map(|value| vec![value; shape.iter().product()]),
        };
        Shard {
            id: ID,
            unit: UNIT.into(),
            adam_steps: 5,
            loss_scale: Some(LossScale {
                factor: 1024.try_into().unwrap(),
                clean_steps: 17,
            }),
            failed_in_a_row: 2,
            tensors: vec![tensor("w", &[2, 3]), tensor("b", &[3])],
        }
    }

    /// The shard's file with a change of its header, which keeps its length in front.
    fn changed(from: &str, to: &str) -> Vec<u8> {
        let file = shard().encode().unwrap();
        let end = usize::try_from(ShardFacts::header_end(&file).unwrap()).unwrap();
        let header = std::str::from_utf8(&file[8..end]).unwrap();
        assert!(header.contains(from), "{header}");
        let header = header.replacen(from, to, 1);
        let length = (header.len() as u64).to_le_bytes();
        [&length, header.as_bytes(), &file[end..]].concat()
    }

    fn refused(from: &str, to: &str) -> String {
        Shard::decode(ID, UNIT, &changed(from, to))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_shard_survives_the_file() {
        let file = shard().encode().unwrap();
        assert_eq!(Shard::decode(ID, UNIT, &file).unwrap(), shard());
        assert_eq!(
            ShardFacts::read(ID, UNIT, &file).unwrap().bytes(),
            file.len() as u64
        );
    }

    #[test]
    fn a_loss_scale_that_no_run_has_is_refused() {
        let error = refused(r#"\"factor\":1024"#, r#"\"factor\":1000"#);
        let expected = "a loss scale of 1000: powers of two from 1 to 4294967296 are allowed";
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn a_parameter_that_is_named_again_is_refused_and_not_copied_again() {
        let names = r#"\"w\",\"b\""#;
        let error = refused(names, &[names; 1000].join(","));
        assert!(
            error.contains("order has 2000 names, 2 of them different"),
            "{error}"
        );
        let error = refused(names, r#"\"w\""#);
        assert!(
            error.contains("order has 1 names") && error.contains("6 tensors"),
            "{error}"
        );
    }

    #[test]
    fn moments_of_another_shape_than_their_parameter_are_refused() {
        let error = refused(
            r#""exp_avg/w":{"dtype":"F32","shape":[2,3]"#,
            r#""exp_avg/w":{"dtype":"F32","shape":[3,2]"#,
        );
        assert!(
            error.contains("exp_avg/w has the shape [3, 2], its parameter [2, 3]"),
            "{error}"
        );
    }

    #[test]
    fn a_header_length_beyond_every_file_is_refused() {
        for length in [100_000_001, u64::MAX - 7, u64::MAX] {
            let error = Shard::decode(ID, UNIT, &length.to_le_bytes()).unwrap_err();
            assert!(error.to_string().contains("it is cut short"), "{error}");
        }
    }

    #[test]
    fn offsets_beyond_every_file_are_refused_by_the_header_alone() {
        let file = changed(",108]", ",18446744073709551615]");
        let error = ShardFacts::read(ID, UNIT, &file).err().unwrap().to_string();
        assert!(error.contains("offset"), "{error}");
        assert!(Shard::decode(ID, UNIT, &file).is_err());
    }
}
