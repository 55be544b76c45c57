//! In which numbers a worker computes.

use tch::Kind;
use varuna_api::Precision;
use varuna_frames::ElementFormat;

/// The number formats of the training arithmetic. Master parameters, moments and gradients are single precision under all of
/// them; a narrower format computes with a copy of the parameters (Micikevicius et al. 2018, "Mixed Precision Training").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Numerics {
    compute: ElementFormat,
}

impl Numerics {
    /// Single precision throughout: there is no copy, the parameters are the masters.
    pub const FP32: Numerics = Numerics {
        compute: ElementFormat::Float32,
    };

    /// The format of parameters, activations and their gradients.
    #[must_use]
    pub fn compute(self) -> Kind {
        match self.compute {
            ElementFormat::Float32 => Kind::Float,
            ElementFormat::BFloat16 => Kind::BFloat16,
            ElementFormat::Float16 => Kind::Half,
        }
    }

    /// The format in which activations and their gradients go to other workers: the one that they are computed in.
    #[must_use]
    pub fn boundary(self) -> ElementFormat {
        self.compute
    }

    /// Whether it computes with a copy of the parameters.
    #[must_use]
    pub fn has_copy(self) -> bool {
        self.compute != ElementFormat::Float32
    }
}

impl From<Precision> for Numerics {
    fn from(precision: Precision) -> Numerics {
        let compute = match precision {
            Precision::Fp32 => ElementFormat::Float32,
            Precision::Bf16 => ElementFormat::BFloat16,
            Precision::Fp16 => ElementFormat::Float16,
        };
        Numerics { compute }
    }
}
