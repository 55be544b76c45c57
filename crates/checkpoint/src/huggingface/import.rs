//! Import: turns the safetensors files of a folder into units' shards, with one unit in memory at a time.
//!
//! The headers alone tell whether the files contain the model. This is checked before the first unit is made, so that a folder of another
//! model is not discovered half-way.

use super::HuggingFaceError;
use super::content::Content;
use super::export::shape_of;
use crate::shard::{Shard, ShardTensor};
use half::f16;
use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, Metadata, SafeTensors, TensorInfo};
use std::collections::{BTreeMap, BTreeSet};
use varuna_model::{Family, Parameter, Published, Transformer};
use varuna_plan::{StateId, Unit};

/// Bytes of a tensor that are read at once: enough for a disk to be fast, and little compared with a unit.
const PIECE_BYTES: usize = 4 << 20;
/// Size of the length field before a header, bytes.
const LENGTH_BYTES: u64 = 8;
/// Maximum size of a header, bytes: the library's own limit.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// A folder's model, whose units can be made one by one.
pub struct Import<'a, C> {
    model: &'a Transformer,
    family: Family,
    files: Vec<C>,
    tensors: BTreeMap<String, Tensor>,
    /// Bytes of a tensor that are read at once, a multiple of an element's bytes.
    pub(super) piece_bytes: usize,
}

/// The format of a tensor's elements. All formats fit single precision exactly.
#[derive(Clone, Copy)]
enum Elements {
    Fp32,
    Bf16,
    Fp16,
}

impl Elements {
    /// The elements of this format; none for a format that cannot be imported.
    fn of(dtype: Dtype) -> Option<Elements> {
        match dtype {
            Dtype::F32 => Some(Elements::Fp32),
            Dtype::BF16 => Some(Elements::Bf16),
            Dtype::F16 => Some(Elements::Fp16),
            _ => None,
        }
    }

    /// Bytes of one element.
    fn bytes(self) -> usize {
        match self {
            Elements::Fp32 => 4,
            Elements::Bf16 | Elements::Fp16 => 2,
        }
    }

    /// Gives each element of a file's bytes to `take`, in single precision.
    fn decode(self, bytes: &[u8], mut take: impl FnMut(f32)) {
        match self {
            Elements::Fp32 => {
                let elements = bytes.as_chunks::<4>().0.iter();
                elements.for_each(|bytes| take(f32::from_le_bytes(*bytes)));
            }
            // A bfloat16 is the upper half of a single-precision number.
            Elements::Bf16 => {
                let halves = bytes.as_chunks::<2>().0.iter();
                halves.for_each(|bytes| take(f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16)));
            }
            Elements::Fp16 => {
                let halves = bytes.as_chunks::<2>().0.iter();
                halves.for_each(|bytes| take(f16::from_le_bytes(*bytes).to_f32()));
            }
        }
    }
}

/// A tensor of one of the files.
struct Tensor {
    /// The file's number.
    file: usize,
    /// The byte of the file at which its elements begin.
    start: u64,
    info: TensorInfo,
}

/// A tensor whose elements are some rows of one of our parameters.
struct Source<'a> {
    /// Its name in the file.
    name: &'a str,
    tensor: &'a Tensor,
    elements: Elements,
    /// Rows and columns of the file's tensor, if our rows are its columns.
    transposed: Option<[usize; 2]>,
}

impl Source<'_> {
    /// How many elements it has.
    fn count(&self) -> usize {
        self.tensor.info.shape.iter().product()
    }
}

impl<'a, C: Content> Import<'a, C> {
    /// Prepares the import of a model from safetensors files. It reads only their headers. Tensors that the family
    /// [leaves out](Family::leaves_out) are ignored.
    ///
    /// # Errors
    /// The model has no published format; a file cannot be read, or is no safetensors file; a tensor is missing, has another shape, or a
    /// format other than F32, F16 and BF16; or the files have other tensors.
    pub fn new(model: &'a Transformer, files: Vec<C>) -> Result<Import<'a, C>, HuggingFaceError> {
        let family = Family::of(model)?;
        let mut tensors = BTreeMap::new();
        for (file, content) in files.iter().enumerate() {
            let (data_start, metadata) = header(content).map_err(|error| named(content, error))?;
            for (name, info) in metadata.tensors() {
                let tensor = Tensor {
                    file,
                    start: data_start + info.data_offsets.0 as u64,
                    info: info.clone(),
                };
                tensors.insert(name, tensor);
            }
        }
        let import = Import {
            model,
            family,
            files,
            tensors,
            piece_bytes: PIECE_BYTES,
        };
        import.check_tensors()?;
        Ok(import)
    }

    /// Checks that the files have the model's tensors and, but for what may be left out, no others: a model would lose layers without a word if its
    /// configuration named fewer than its files have.
    fn check_tensors(&self) -> Result<(), HuggingFaceError> {
        let mut used = BTreeSet::new();
        for unit in self.model.layout().all_units() {
            let sources = self.sources(unit, &self.model.parameters(unit))?;
            used.extend(sources.iter().map(|source| source.name));
        }
        let names = self.tensors.keys().map(String::as_str);
        let mut others = names.filter(|name| !used.contains(name) && !self.family.leaves_out(name));
        let Some(first) = others.next() else {
            return Ok(());
        };
        Err(HuggingFaceError::NotOfModel {
            count: 1 + others.count(),
            first: first.to_owned(),
        })
    }

    /// The files, in their order.
    #[must_use]
    pub fn files(&self) -> &[C] {
        &self.files
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &'a Transformer {
        self.model
    }

    /// All units' shards at `id` in their order, each made when it is requested. A shard that is dropped uses no more memory.
    pub fn shards(&self, id: StateId) -> impl Iterator<Item = Result<(Unit, Shard), HuggingFaceError>> {
        let units = self.model.layout().all_units();
        units.map(move |unit| self.shard(id, unit).map(|shard| (unit, shard)))
    }

    /// A unit's shard at `id`, with fresh optimizer state.
    ///
    /// # Errors
    /// A file cannot be read any more.
    pub fn shard(&self, id: StateId, unit: Unit) -> Result<Shard, HuggingFaceError> {
        let parameters = self.model.parameters(unit);
        let sources = self.sources(unit, &parameters)?;
        let count: usize = sources.iter().map(Source::count).sum();
        // After the values follow the two moments, which are zero because they have seen no gradient.
        let mut data = vec![0.0; 3 * count];
        let mut rest = data.as_mut_slice();
        for source in &sources {
            let (own, others) = std::mem::take(&mut rest).split_at_mut(source.count());
            self.read(source, own)?;
            rest = others;
        }
        let tensors = parameters.into_iter().map(|p| ShardTensor {
            name: p.name.into_owned(),
            shape: p.shape,
            whole: None,
        });
        Ok(Shard {
            id,
            unit: crate::unit_name(self.model.layout(), unit),
            adam_steps: 0,
            loss_scale: None,
            failed_in_a_row: 0,
            moments: varuna_plan::Moments::Adam,
            tensors: tensors.collect(),
            data,
        })
    }

    /// The tensors that a unit's parameters are made from, in the order of their elements.
    fn sources(&self, unit: Unit, parameters: &[Parameter]) -> Result<Vec<Source<'_>>, HuggingFaceError> {
        let mut sources = Vec::new();
        for parameter in parameters.iter().filter(|p| p.elements() > 0) {
            for part in self.family.tensors(self.model, unit, parameter) {
                sources.push(self.source(&part, shape_of(&part, parameter))?);
            }
        }
        Ok(sources)
    }

    /// The tensor that has these rows of a parameter; `shape` is the shape in our layout.
    fn source(&self, part: &Published, shape: Vec<usize>) -> Result<Source<'_>, HuggingFaceError> {
        let wrong = |why: String| HuggingFaceError::Tensor {
            name: part.name.clone(),
            why,
        };
        let tensor = self.named(&part.name);
        let (name, tensor) = tensor.ok_or_else(|| wrong("it is missing".into()))?;
        let mut theirs = shape;
        if part.transposed {
            theirs.reverse();
        }
        let (found, dtype) = (&tensor.info.shape, tensor.info.dtype);
        if *found != theirs {
            return Err(wrong(format!(
                "its shape is {found:?}, the model needs {theirs:?}"
            )));
        }
        let elements = Elements::of(dtype);
        let elements =
            elements.ok_or_else(|| wrong(format!("it is {dtype:?}, F32, F16 or BF16 is needed")))?;
        let transposed = match (part.transposed, theirs.as_slice()) {
            (true, &[rows, columns]) => Some([rows, columns]),
            // A vector needs no transposition.
            _ => None,
        };
        Ok(Source {
            name,
            tensor,
            elements,
            transposed,
        })
    }

    /// The tensor of this name, and what the file calls it. The oldest files omit the prefix `transformer.` in the names of a GPT-2, and in those of a BERT the weight
    /// and bias of a norm are called `gamma` and `beta`.
    fn named(&self, name: &str) -> Option<(&str, &Tensor)> {
        let get = |name: &str| {
            let (name, tensor) = self.tensors.get_key_value(name)?;
            Some((name.as_str(), tensor))
        };
        let short = name.strip_prefix("transformer.").unwrap_or(name);
        let of_norm = |kind: &str, old: &str| {
            let norm = name.strip_suffix(kind)?.strip_suffix("LayerNorm.")?;
            get(&format!("{norm}LayerNorm.{old}"))
        };
        get(name)
            .or_else(|| get(short))
            .or_else(|| of_norm("weight", "gamma"))
            .or_else(|| of_norm("bias", "beta"))
    }

    /// Reads all elements of a tensor into their places in ours, a piece of the file at a time.
    fn read(&self, source: &Source<'_>, out: &mut [f32]) -> Result<(), HuggingFaceError> {
        let Source {
            name: _,
            tensor,
            elements,
            transposed,
        } = *source;
        let mut left = out.len() * elements.bytes();
        let mut start = tensor.start;
        let mut piece = vec![0; left.min(self.piece_bytes)];
        let mut number = 0;
        while left > 0 {
            let bytes = left.min(piece.len());
            self.files[tensor.file].read_into(start, &mut piece[..bytes])?;
            elements.decode(&piece[..bytes], |value| {
                let place = match transposed {
                    Some([rows, columns]) => (number % columns) * rows + number / columns,
                    None => number,
                };
                out[place] = value;
                number += 1;
            });
            start += bytes as u64;
            left -= bytes;
        }
        Ok(())
    }
}

/// An error of a file's header, with the file: a folder has many.
fn named(content: &impl Content, error: HuggingFaceError) -> HuggingFaceError {
    match (error, content.path()) {
        (HuggingFaceError::File(source), Some(path)) => HuggingFaceError::NamedFile {
            path: path.to_owned(),
            source,
        },
        (error, _) => error,
    }
}

/// Where the elements of a file's tensors begin, and the metadata of its header.
fn header(content: &impl Content) -> Result<(u64, Metadata), HuggingFaceError> {
    let all = content.length();
    if all < LENGTH_BYTES {
        return Err(SafeTensorError::HeaderTooSmall.into());
    }
    let mut length = [0; 8];
    content.read_into(0, &mut length)?;
    let length = u64::from_le_bytes(length);
    if length > HEADER_BYTES_MAX {
        return Err(SafeTensorError::HeaderTooLarge.into());
    }
    let data_start = LENGTH_BYTES + length;
    if data_start > all {
        return Err(SafeTensorError::InvalidHeaderLength.into());
    }
    let mut start = vec![0; usize::try_from(data_start).unwrap_or(usize::MAX)];
    content.read_into(0, &mut start)?;
    let metadata = match serde_json::from_slice::<Metadata>(&start[8..]) {
        Ok(metadata) => metadata,
        // The library's own reader reports what is wrong with a header. For a valid header it needs the whole file.
        Err(_) => SafeTensors::read_metadata(&start)?.1,
    };
    if (metadata.data_len() as u64).checked_add(data_start) != Some(all) {
        return Err(SafeTensorError::MetadataIncompleteBuffer.into());
    }
    Ok((data_start, metadata))
}

#[cfg(test)]
mod tests {
    use super::Elements;

    #[test]
    fn every_number_of_sixteen_bits_is_read_as_the_one_that_it_is() {
        let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let mut found = Vec::new();
        Elements::Fp16.decode(&bytes, |value| found.push(value));
        assert_eq!(found.len(), 1 << 16);
        for (bits, value) in (0..=u16::MAX).zip(found) {
            // Sign, exponent and fraction, as in IEEE 754.
            let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
            let exponent = i32::from((bits >> 10) & 31);
            let fraction = f64::from(bits & 1023);
            let expected = match exponent {
                0 => fraction * f64::from(2).powi(-24),
                31 if fraction > 0.0 => f64::NAN,
                31 => f64::INFINITY,
                _ => (1024.0 + fraction) * f64::from(2).powi(exponent - 25),
            };
            let value = f64::from(value);
            assert!(
                value.to_bits() == (sign * expected).to_bits() || value.is_nan() && expected.is_nan(),
                "{bits:#x}: {value}"
            );
        }
    }
}
