//! One unit's state as a safetensors file: parameters and the optimizer's moments, each under its parameter's name.
//!
//! The header holds the digest of the data, so that the manifest can be written without reading the data again, and a damaged shard is
//! found without the manifest. States are large and the workers' cores are busy. So a file is written from pieces of the state itself, and
//! data that are read go directly to their destination: nothing here copies a state as a whole.

mod file;
mod ranges;
mod reader;

pub use file::ShardFile;
pub(crate) use reader::{Keep, ShardReader};

use crate::{CheckpointError, DataDigest};
use bytes::Bytes;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use varuna_plan::{LossScale, Moments, StateId};

/// The first request for a header asks for this many bytes; a longer header needs a second request.
pub(crate) const HEADER_GUESS: u64 = 32 << 10;
/// Number of headers that are read at the same time: a checkpoint may have thousands of shards, and each read waits for the store.
pub(crate) const HEADERS: usize = 16;

/// Prefixes of the tensors' names: the value of a parameter and its moments, as PyTorch's optimizers call them.
fn kinds(moments: Moments) -> &'static [&'static str] {
    match moments {
        Moments::Adam | Moments::Muon => &["parameter", "exp_avg", "exp_avg_sq"],
        Moments::Momentum => &["parameter", "momentum_buffer"],
    }
}

/// The key of our own metadata in the header.
const KEY: &str = "varuna";

/// One parameter of a shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardTensor {
    /// The parameter's name within its segment, as in GPT-2's published checkpoints.
    pub name: String,
    /// Shape of the tensor; for a part of a parameter, its number of elements.
    pub shape: Vec<usize>,
    /// The shape of the whole parameter, if this is a part of it because the unit is a range of a segment's state.
    pub whole: Option<Vec<usize>>,
}

impl ShardTensor {
    /// Number of elements of this shape; none if it overflows.
    fn elements(&self) -> Option<usize> {
        self.shape.iter().try_fold(1, |all: usize, n| all.checked_mul(*n))
    }
}

/// The state of one unit; `D` is the container of its data.
#[derive(Clone, PartialEq, Debug)]
pub struct Shard<D = Vec<f32>> {
    /// The state that it belongs to.
    pub id: StateId,
    /// Name of the unit (see [`crate::unit_name`]).
    pub unit: String,
    /// Optimizer steps applied (skipped ones not counted).
    pub adam_steps: u64,
    /// The next step's loss scale; none if the job has no dynamic one, and in files of format 3 and older.
    pub loss_scale: Option<LossScale>,
    /// Steps skipped in a row that no smaller loss scale would have saved; 0 in files of format 3 and older.
    pub failed_in_a_row: u32,
    /// The moments that the optimizer keeps for each parameter; Adam's in files of format 4 and older.
    pub moments: Moments,
    /// Parameters in their order.
    pub tensors: Vec<ShardTensor>,
    /// The values of all parameters in their order, then all first moments, then all second ones if there are any; each tensor in row-major
    /// order.
    pub data: D,
}

/// Our own metadata in the header.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    state: StateId,
    unit: String,
    adam_steps: u64,
    /// Since format 4, like the next field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    loss_scale: Option<LossScale>,
    #[serde(default)]
    failed_in_a_row: u32,
    /// Since format 5; Muon's since format 6.
    #[serde(default, skip_serializing_if = "Moments::are_adams")]
    moments: Moments,
    /// The parameters in their order, which safetensors does not keep.
    order: Vec<String>,
    /// Since format 7: for parameters of which the file has only a part, the shapes of the whole.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    whole_shapes: BTreeMap<String, Vec<usize>>,
    /// The digest of everything after the header.
    #[serde(flatten)]
    digest: DataDigest,
}

/// One of the file's tensors.
struct Placed<'a> {
    name: String,
    shape: &'a [usize],
    /// Position in the shard's data, in elements.
    at: Range<usize>,
}

impl Shard {
    /// The same state with its parameters in this order.
    ///
    /// # Errors
    /// The parameters differ: a sentence about the first one that is missing, superfluous, or of another shape.
    pub fn in_order(self, wanted: &[ShardTensor]) -> Result<Shard, String> {
        if self.tensors == wanted {
            return Ok(self);
        }
        let place = |tensor: &ShardTensor| {
            let name = &tensor.name;
            let found = self.tensors.iter().position(|own| own.name == *name);
            let found = found.ok_or_else(|| format!("it has no parameter {name}"))?;
            let (own, needed) = (&self.tensors[found].shape, &tensor.shape);
            match own == needed {
                true => Ok(found),
                false => Err(format!(
                    "its parameter {name} has the shape {own:?}, needed {needed:?}"
                )),
            }
        };
        let places = wanted.iter().map(place).collect::<Result<Vec<usize>, String>>()?;
        if let Some(other) = self.tensors.iter().find(|own| !wanted.contains(own)) {
            return Err(format!(
                "it has a parameter {}, which the model has not",
                other.name
            ));
        }
        let mut ordered = Vec::with_capacity(self.data.len());
        for kind in 0..kinds(self.moments).len() {
            for place in &places {
                ordered.extend_from_slice(self.values(*place, kind));
            }
        }
        Ok(Shard {
            tensors: wanted.to_vec(),
            data: ordered,
            ..self
        })
    }
}

impl<D: AsRef<[f32]>> Shard<D> {
    /// Number of elements of all parameters.
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.data.as_ref().len() / kinds(self.moments).len()
    }

    /// The values of a tensor. `kind`: 0 for its parameter, 1 and 2 for the moments. Empty if there is none.
    #[must_use]
    pub fn values(&self, tensor: usize, kind: usize) -> &[f32] {
        let data = self.data.as_ref();
        let elements = |t: &ShardTensor| t.elements().unwrap_or(0);
        let before = self.tensors.iter().take(tensor).map(elements).sum::<usize>();
        let own = self.tensors.get(tensor).map_or(0, elements);
        let start = kind * self.parameters() + before;
        data.get(start..start + own).unwrap_or_default()
    }

    /// The file's bytes in one piece. Equal shards give equal bytes.
    ///
    /// # Errors
    /// The amount of data does not match the shapes.
    pub fn encode(&self) -> Result<Bytes, CheckpointError> {
        let placed = self.placed()?;
        let data = self.data.as_ref();
        let parts = || placed.iter().map(|t| bytemuck::cast_slice(&data[t.at.clone()]));
        let mut file = self.header(&placed, DataDigest::of(parts()))?;
        file.reserve_exact(size_of_val(data));
        parts().for_each(|part| file.extend_from_slice(part));
        Ok(file.into())
    }

    /// Length of the file in bytes, computed without reading the data.
    ///
    /// # Errors
    /// The amount of data does not match the shapes.
    pub fn file_bytes(&self) -> Result<u64, CheckpointError> {
        let data = size_of_val(self.data.as_ref());
        let header = self.header(&self.placed()?, DataDigest::of(std::iter::empty()))?;
        Ok(header.len() as u64 + data as u64)
    }

    /// All tensors in the order in which the file has them, which is that of their names.
    fn placed(&self) -> Result<Vec<Placed<'_>>, CheckpointError> {
        let elements = self.data.as_ref().len();
        let kinds = kinds(self.moments);
        let mut placed = Vec::with_capacity(kinds.len() * self.tensors.len());
        let mut at = 0usize;
        for kind in kinds {
            for tensor in &self.tensors {
                let own = tensor.elements().and_then(|n| at.checked_add(n));
                let end = own.filter(|end| *end <= elements).ok_or_else(|| {
                    self.damaged(format!(
                        "{kind}/{} of the shape {:?} goes beyond its {elements} elements",
                        tensor.name, tensor.shape
                    ))
                })?;
                let name = format!("{kind}/{}", tensor.name);
                let shape = &tensor.shape;
                placed.push(Placed {
                    name,
                    shape,
                    at: at..end,
                });
                at = end;
            }
        }
        if at != elements {
            return Err(self.damaged(format!("it has {elements} elements, its shapes say {at}")));
        }
        placed.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(placed)
    }

    /// The part of the file before its data, as the library writes it.
    fn header(&self, placed: &[Placed], digest: DataDigest) -> Result<Vec<u8>, CheckpointError> {
        let damaged = |why: &dyn std::fmt::Display| self.damaged(why);
        let header = Header {
            state: self.id,
            unit: self.unit.clone(),
            adam_steps: self.adam_steps,
            loss_scale: self.loss_scale,
            failed_in_a_row: self.failed_in_a_row,
            moments: self.moments,
            order: self.tensors.iter().map(|t| t.name.clone()).collect(),
            whole_shapes: whole_shapes(&self.tensors),
            digest,
        };
        let text = serde_json::to_string(&header).map_err(|e| damaged(&e))?;
        let mut end = 0;
        let tensors = placed.iter().map(|t| {
            let start = end;
            end += t.at.len() * size_of::<f32>();
            let info = TensorInfo {
                dtype: Dtype::F32,
                shape: t.shape.to_vec(),
                data_offsets: (start, end),
            };
            (t.name.clone(), info)
        });
        // One key only: the library writes metadata in the order of a hash map.
        let own = HashMap::from([(KEY.to_owned(), text)]);
        let metadata = Metadata::new(Some(own), tensors.collect()).map_err(|e| damaged(&e))?;
        let mut text = serde_json::to_vec(&metadata).map_err(|e| damaged(&e))?;
        // This aligns the data.
        text.resize(text.len().next_multiple_of(8), b' ');
        Ok([&(text.len() as u64).to_le_bytes(), text.as_slice()].concat())
    }

    fn damaged(&self, why: impl ToString) -> CheckpointError {
        damaged(self.id, &self.unit, why)
    }
}

impl Shard {
    /// Reads a file and checks that it is the whole state of `unit` at `id`.
    ///
    /// # Errors
    /// The file is damaged, or belongs to another state.
    pub fn decode(id: StateId, unit: &str, file: &[u8]) -> Result<Shard, CheckpointError> {
        let mut reader = ShardReader::new(id, unit, file.len() as u64, Keep::All);
        reader.push(file)?;
        reader.finish().map(|(_, shard)| shard)
    }
}

fn damaged(id: StateId, unit: &str, why: impl ToString) -> CheckpointError {
    CheckpointError::Damaged {
        id,
        file: format!("{unit}.safetensors"),
        why: why.to_string(),
    }
}

fn whole_shapes(tensors: &[ShardTensor]) -> BTreeMap<String, Vec<usize>> {
    let parts = tensors.iter();
    parts
        .filter_map(|t| Some((t.name.clone(), t.whole.clone()?)))
        .collect()
}

/// The header of a shard's file, and where its data are.
pub(crate) struct ShardFacts {
    header: Header,
    metadata: Metadata,
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
        let damaged = |why: String| damaged(id, unit, why);
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
            metadata,
            data_start,
            bytes: bytes as u64,
        })
    }

    /// The digest of the data, from the header.
    pub(crate) fn digest(&self) -> &DataDigest {
        &self.header.digest
    }

    /// Bytes of the whole file.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests;
