//! Reads a shard's file from pieces, in order: the digest of each piece is computed while it is in the processor's cache, and its data are
//! copied to their destination.

use super::{Shard, ShardFacts, ShardTensor, damaged, kinds};
use crate::digest::DataHasher;
use crate::{CheckpointError, DataDigest};
use safetensors::tensor::Dtype;
use std::collections::BTreeSet;
use std::ops::Range;
use varuna_plan::StateId;

/// Number of bytes that are digested and then copied: they are still in the processor's cache, and enough for its widest instructions.
const DIGESTED_AT_ONCE: usize = 64 << 10;

/// Which part of a shard to keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keep {
    /// The whole state.
    All,
    /// The state of these elements of the parameters, in their order; of the rest only the digest is taken.
    Elements {
        /// The first of them.
        start: usize,
        /// The end, which is not one of them.
        end: usize,
    },
    /// Only check that the file is valid: the state that is read has no data.
    Nothing,
}

/// The part of a file that has been read.
pub(crate) struct ShardReader {
    id: StateId,
    unit: String,
    /// Length of the whole file.
    bytes: u64,
    keep: Keep,
    read: Read,
}

enum Read {
    /// The header, as far as it has been read.
    Start(Vec<u8>),
    Data(Box<Data>),
}

struct Data {
    facts: ShardFacts,
    hasher: DataHasher,
    /// Number of data bytes read so far.
    at: usize,
    shard: Shard,
    /// What is kept of tensors that are not complete, the next one last; empty if nothing is kept.
    to_come: Vec<Destination>,
}

/// Where bytes of a tensor go.
struct Destination {
    /// The first of them in the file's data, and their end.
    start: usize,
    end: usize,
    /// End of the part in the shard's data, in bytes.
    end_in_shard: usize,
}

impl ShardReader {
    /// A reader for a file of `bytes` bytes that must be the whole state of `unit` at `id`.
    pub(crate) fn new(id: StateId, unit: &str, bytes: u64, keep: Keep) -> ShardReader {
        ShardReader {
            id,
            unit: unit.to_owned(),
            bytes,
            keep,
            read: Read::Start(Vec::new()),
        }
    }

    /// Takes the next bytes of the file.
    ///
    /// # Errors
    /// The header is damaged, or belongs to another state.
    pub(crate) fn push(&mut self, mut piece: &[u8]) -> Result<(), CheckpointError> {
        if let Read::Start(start) = &mut self.read {
            take(start, &mut piece, 8);
            if start.len() < 8 {
                return Ok(());
            }
            let end = ShardFacts::header_end(start).filter(|end| *end <= self.bytes);
            let end = end.and_then(|end| usize::try_from(end).ok());
            let Some(end) = end else {
                return Err(damaged(self.id, &self.unit, "it is cut short"));
            };
            take(start, &mut piece, end);
            if start.len() < end {
                return Ok(());
            }
            let facts = ShardFacts::read(self.id, &self.unit, start)?;
            if facts.bytes() != self.bytes {
                let why = format!("it has {} bytes, its header says {}", self.bytes, facts.bytes());
                return Err(damaged(self.id, &self.unit, why));
            }
            let data = Data::new(facts, self.keep).map_err(|why| damaged(self.id, &self.unit, why))?;
            self.read = Read::Data(Box::new(data));
        }
        if let Read::Data(data) = &mut self.read {
            data.push(piece);
        }
        Ok(())
    }

    /// The state without its data; none before the header was read.
    pub(crate) fn described(&self) -> Option<Shard> {
        match &self.read {
            Read::Start(_) => None,
            Read::Data(data) => Some(Shard {
                data: Vec::new(),
                ..data.shard.clone()
            }),
        }
    }

    /// Ends the file. Returns the digest of its data and the state.
    ///
    /// # Errors
    /// The file is incomplete, or its data do not match its digest.
    pub(crate) fn finish(self) -> Result<(DataDigest, Shard), CheckpointError> {
        let (id, unit) = (self.id, self.unit);
        let Read::Data(data) = self.read else {
            return Err(damaged(id, &unit, "it is cut short"));
        };
        let read = data.facts.data_start + data.at;
        if read as u64 != self.bytes {
            let why = format!("only {read} bytes of it can be read, it has {}", self.bytes);
            return Err(damaged(id, &unit, why));
        }
        let digest = data.hasher.finish();
        if digest != *data.facts.digest() {
            return Err(damaged(id, &unit, "its data do not match its digest"));
        }
        Ok((digest, data.shard))
    }
}

/// Moves bytes from the piece to `start` until `start` has `wanted` bytes.
fn take(start: &mut Vec<u8>, piece: &mut &[u8], wanted: usize) {
    let missing = wanted.saturating_sub(start.len()).min(piece.len());
    let (now, later) = piece.split_at(missing);
    start.extend_from_slice(now);
    *piece = later;
}

impl Data {
    /// Checks the rest of the header. The error is a sentence.
    fn new(facts: ShardFacts, keep: Keep) -> Result<Data, String> {
        let tensors = tensors(&facts)?;
        let mut shard = Shard {
            id: facts.header.state,
            unit: facts.header.unit.clone(),
            adam_steps: facts.header.adam_steps,
            loss_scale: facts.header.loss_scale,
            failed_in_a_row: facts.header.failed_in_a_row,
            moments: facts.header.moments,
            tensors,
            data: Vec::new(),
        };
        let to_come = match keep {
            Keep::All => destinations(&facts, &shard, &(0..shard.elements())),
            Keep::Elements { start, end } => {
                let to_come = destinations(&facts, &shard, &(start..end));
                shard = shard.part(shard.unit.clone(), &(start..end))?;
                to_come
            }
            Keep::Nothing => Vec::new(),
        };
        if keep != Keep::Nothing {
            // Already checked against the length of the file.
            shard.data = vec![0.0; kinds(shard.moments).len() * shard.elements()];
        }
        Ok(Data {
            hasher: DataHasher::like(facts.digest()),
            facts,
            at: 0,
            shard,
            to_come,
        })
    }

    fn push(&mut self, piece: &[u8]) {
        for piece in piece.chunks(DIGESTED_AT_ONCE) {
            self.hasher.update(piece);
            self.copy(piece);
            self.at += piece.len();
        }
    }

    /// Copies bytes that begin at `at` to the shard's data.
    fn copy(&mut self, mut piece: &[u8]) {
        let mut at = self.at;
        let data: &mut [u8] = bytemuck::cast_slice_mut(&mut self.shard.data);
        while let Some(next) = self.to_come.last() {
            let skipped = next.start.saturating_sub(at).min(piece.len());
            (at, piece) = (at + skipped, &piece[skipped..]);
            if piece.is_empty() {
                return;
            }
            let (now, later) = piece.split_at(piece.len().min(next.end - at));
            let to = next.end_in_shard - (next.end - at);
            data[to..to + now.len()].copy_from_slice(now);
            (at, piece) = (at + now.len(), later);
            if at == next.end {
                self.to_come.pop();
            }
        }
    }
}

/// The parameters in their order. Each must have moments of the same shape. The error is a sentence.
fn tensors(facts: &ShardFacts) -> Result<Vec<ShardTensor>, String> {
    let (order, all) = (&facts.header.order, facts.metadata.tensors());
    let kinds = kinds(facts.header.moments);
    // A repeated name would be copied each time.
    let different = order.iter().collect::<BTreeSet<_>>().len();
    if different != order.len() || kinds.len() * order.len() != all.len() {
        return Err(format!(
            "its order has {} names, {different} of them different, its header {} tensors; each name has {} of them",
            order.len(),
            all.len(),
            kinds.len()
        ));
    }
    let tensor = |name: &String| {
        let mut shape: Option<&Vec<usize>> = None;
        for kind in kinds {
            let key = format!("{kind}/{name}");
            let info = all.get(&key).ok_or_else(|| format!("{key} is missing"))?;
            if info.dtype != Dtype::F32 {
                return Err(format!("{key} is {:?}, not F32", info.dtype));
            }
            let first = *shape.get_or_insert(&info.shape);
            if info.shape != *first {
                return Err(format!(
                    "{key} has the shape {:?}, its parameter {first:?}",
                    info.shape
                ));
            }
        }
        Ok(ShardTensor {
            name: name.clone(),
            shape: shape.cloned().unwrap_or_default(),
            whole: facts.header.whole_shapes.get(name).cloned(),
        })
    };
    order.iter().map(tensor).collect()
}

/// The destinations of these elements of the file's tensors, the last one first.
fn destinations(facts: &ShardFacts, shard: &Shard, elements: &Range<usize>) -> Vec<Destination> {
    let mut end_in_shard = 0;
    let mut all = Vec::new();
    for kind in kinds(shard.moments) {
        let mut next = 0;
        for tensor in &shard.tensors {
            let own = next..next + tensor.elements().unwrap_or(0);
            next = own.end;
            let Some(info) = facts.metadata.info(&format!("{kind}/{}", tensor.name)) else {
                continue;
            };
            let (first, last) = (own.start.max(elements.start), own.end.min(elements.end));
            // A tensor without elements has no data.
            if first < last {
                let start = info.data_offsets.0 + (first - own.start) * size_of::<f32>();
                let end = start + (last - first) * size_of::<f32>();
                end_in_shard += end - start;
                all.push(Destination {
                    start,
                    end,
                    end_in_shard,
                });
            }
        }
    }
    all.sort_unstable_by_key(|to| std::cmp::Reverse(to.end));
    all
}
