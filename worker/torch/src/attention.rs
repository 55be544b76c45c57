//! Which of its ways libtorch computes attention. By itself it chooses at each call; here it is asked once, told to keep to that, and the
//! answer is a value that can be reported.

use crate::{Device, Handle, TorchError, checked, handle};
use std::ffi::c_int;
use std::fmt;
use std::str::FromStr;
use tch::{Kind, Tensor};

unsafe extern "C" {
    fn vt_attention(q: Handle, k: Handle, v: Handle, mask: Handle, causal: c_int, way: *mut i64) -> c_int;
    fn vt_allow_attention(ways: c_int) -> c_int;
}

/// How libtorch computes attention. The numbers are those of its `SDPBackend`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attention {
    /// By matrix products and a softmax, with all scores in memory.
    Math = 0,
    /// Flash attention (Dao 2023).
    Flash = 1,
    /// Memory-efficient attention (Rabe and Staats 2021, as in xFormers).
    Efficient = 2,
    /// cuDNN's.
    CuDnn = 3,
}

/// Which one is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AttentionChoice {
    /// The kind that libtorch prefers.
    #[default]
    Auto,
    /// Only this kind; an error if it cannot be used.
    Only(Attention),
}

/// A name that is not one of a choice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("attention {0:?}; allowed are auto, {all}", all = Attention::ALL.map(Attention::name).join(", "))]
pub struct UnknownAttention(String);

/// Which tokens a token sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// Itself and all before it.
    Before,
    /// All positions.
    All,
    /// The tokens that a mask allows, (t, t) in the format of the elements.
    Masked,
}

/// What attention is computed of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttentionShape {
    /// Heads.
    pub heads: i64,
    /// Tokens of a sample.
    pub sequence: i64,
    /// Width of a head.
    pub width: i64,
    /// Format of the elements.
    pub kind: Kind,
    /// Which tokens a token sees.
    pub seen: Seen,
}

impl AttentionShape {
    /// Bytes of the scores of one sample, of each head and each token for each other one, as [`Attention::Math`] makes them: in single precision,
    /// whatever comes in. It keeps those after the softmax for its backward; the other ways make no such tensor.
    #[must_use]
    pub fn score_bytes(&self) -> u64 {
        let elements = self.heads.unsigned_abs() * self.sequence.unsigned_abs().pow(2);
        elements * Kind::Float.elt_size_in_bytes() as u64
    }
}

impl Attention {
    /// All kinds of attention.
    pub const ALL: [Attention; 4] = [
        Attention::Flash,
        Attention::CuDnn,
        Attention::Efficient,
        Attention::Math,
    ];

    /// Name of the kind.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Attention::Math => "math",
            Attention::Flash => "flash",
            Attention::Efficient => "efficient",
            Attention::CuDnn => "cudnn",
        }
    }

    /// Finds out how attention of this shape is computed on a device, and lets this process compute it so from now on. With
    /// [`AttentionChoice::Auto`] shapes that it does not take are computed by [`Attention::Math`].
    ///
    /// # Errors
    /// The way that was asked for does not take this shape here, or there is no memory for one sample.
    pub fn select(
        choice: AttentionChoice,
        device: Device,
        shape: AttentionShape,
    ) -> Result<Attention, TorchError> {
        match choice {
            AttentionChoice::Auto => {
                allow(&Attention::ALL)?;
                let way = preferred(device, shape)?;
                let way = way.ok_or_else(|| refused("libtorch", device, shape))?;
                allow(&[way, Attention::Math])?;
                Ok(way)
            }
            AttentionChoice::Only(way) => {
                allow(&[way])?;
                match preferred(device, shape) {
                    Ok(Some(found)) if found == way => Ok(way),
                    _ => Err(refused(way.name(), device, shape)),
                }
            }
        }
    }
}

fn refused(what: &str, device: Device, shape: AttentionShape) -> TorchError {
    let AttentionShape {
        heads,
        sequence,
        width,
        kind,
        seen,
    } = shape;
    let seen = match seen {
        Seen::Before => "",
        Seen::All => ", of both sides",
        Seen::Masked => ", with a mask",
    };
    TorchError(format!(
        "{what} has no attention on {device} of {heads} heads of width {width}, {sequence} tokens, in {kind:?}{seen}"
    ))
}

/// Lets libtorch take these ways and no others, in the whole process.
fn allow(ways: &[Attention]) -> Result<(), TorchError> {
    let bits = ways.iter().fold(0, |bits, way| bits | 1 << *way as c_int);
    // SAFETY: sets flags of libtorch's own; no pointer is involved.
    checked(unsafe { vt_allow_attention(bits) })
}

/// The one that libtorch takes among those that are allowed; none where it takes none, or one that has no name here.
fn preferred(device: Device, shape: AttentionShape) -> Result<Option<Attention>, TorchError> {
    let AttentionShape {
        heads,
        sequence,
        width,
        kind,
        seen,
    } = shape;
    // As the model has them: views of one product, whose gradients are wanted.
    let zeros = |size: &[i64]| {
        let zeros = Tensor::f_zeros(size, (kind, device.tensors()));
        zeros.map_err(|e| TorchError(e.to_string()))
    };
    let qkv = zeros(&[1, sequence, 3, heads, width])?.set_requires_grad(true);
    let mask = (seen == Seen::Masked).then(|| zeros(&[sequence, sequence]));
    let mask = mask.transpose()?;
    let parts = qkv.permute([2, 0, 3, 1, 4]);
    let [q, k, v] = [0, 1, 2].map(|part| parts.select(0, part));
    let mut way = -1;
    let mask = mask.as_ref().map_or(std::ptr::null_mut(), handle);
    let causal = c_int::from(seen == Seen::Before);
    // SAFETY: live handles, borrowed for the call (a null mask is none), and a place for a number.
    checked(unsafe { vt_attention(handle(&q), handle(&k), handle(&v), mask, causal, &raw mut way) })?;
    Ok(Attention::ALL.into_iter().find(|known| *known as i64 == way))
}

impl fmt::Display for Attention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for AttentionChoice {
    type Err = UnknownAttention;

    fn from_str(name: &str) -> Result<AttentionChoice, UnknownAttention> {
        if name == "auto" {
            return Ok(AttentionChoice::Auto);
        }
        let found = Attention::ALL.into_iter().find(|way| way.name() == name);
        let found = found.ok_or_else(|| UnknownAttention(name.to_owned()));
        found.map(AttentionChoice::Only)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: AttentionShape = AttentionShape {
        heads: 2,
        sequence: 16,
        width: 8,
        kind: Kind::Float,
        seen: Seen::Before,
    };

    fn select(choice: AttentionChoice) -> Result<Attention, TorchError> {
        Attention::select(choice, Device::Cpu, SHAPE)
    }

    /// This is one test, because the setting belongs to the process.
    #[test]
    fn selected_attention_is_supported_or_refused_by_name() {
        assert_eq!(select(AttentionChoice::Auto), Ok(Attention::Flash));
        let only_math = AttentionChoice::Only(Attention::Math);
        assert_eq!(select(only_math), Ok(Attention::Math));
        assert_eq!(
            preferred(Device::Cpu, SHAPE),
            Ok(Some(Attention::Math)),
            "it stays so"
        );
        let why = select(AttentionChoice::Only(Attention::CuDnn)).unwrap_err();
        assert_eq!(
            why.0,
            "cudnn has no attention on cpu of 2 heads of width 8, 16 tokens, in Float"
        );
        assert_eq!(select(AttentionChoice::Auto), Ok(Attention::Flash));
        assert_eq!(preferred(Device::Cpu, SHAPE), Ok(Some(Attention::Flash)));
        let masked = AttentionShape {
            seen: Seen::Masked,
            ..SHAPE
        };
        let select_masked = |choice| Attention::select(choice, Device::Cpu, masked);
        assert_eq!(select_masked(AttentionChoice::Auto), Ok(Attention::Flash));
        let why = select_masked(AttentionChoice::Only(Attention::Efficient)).unwrap_err();
        assert!(why.0.ends_with("in Float, with a mask"), "{why}");
        let both_sides = AttentionShape {
            seen: Seen::All,
            ..SHAPE
        };
        let select_both = |choice| Attention::select(choice, Device::Cpu, both_sides);
        assert_eq!(select_both(AttentionChoice::Auto), Ok(Attention::Flash));
        let why = select_both(AttentionChoice::Only(Attention::CuDnn)).unwrap_err();
        assert!(why.0.ends_with("in Float, of both sides"), "{why}");
        assert_eq!(select(AttentionChoice::Auto), Ok(Attention::Flash));
    }

    #[test]
    fn scores_are_per_head_and_token_pair_in_fp32() {
        assert_eq!(SHAPE.score_bytes(), 2 * 16 * 16 * 4);
        let half = AttentionShape {
            kind: Kind::BFloat16,
            ..SHAPE
        };
        assert_eq!(half.score_bytes(), SHAPE.score_bytes());
    }

    #[test]
    fn ways_have_names_and_other_names_are_refused_with_the_list() {
        for way in Attention::ALL {
            assert_eq!(way.name().parse(), Ok(AttentionChoice::Only(way)));
        }
        assert_eq!("auto".parse(), Ok(AttentionChoice::Auto));
        let why = "fast".parse::<AttentionChoice>().unwrap_err().to_string();
        assert_eq!(
            why,
            "attention \"fast\"; allowed are auto, flash, cudnn, efficient, math"
        );
    }
}
