//! In which numbers a worker computes.

use tch::Kind;
use varuna_api::Precision;

/// The number formats of the training arithmetic. Master parameters, moments and gradients are single precision under all of
/// them; a narrower format computes with a copy of the parameters (Micikevicius et al. 2018, "Mixed Precision Training").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Numerics {
    compute: Kind,
}

impl Numerics {
    /// Single precision throughout: there is no copy, the parameters are the masters.
    pub const FP32: Numerics = Numerics { compute: Kind::Float };

    /// The format of parameters, activations and their gradients.
    #[must_use]
    pub fn compute(self) -> Kind {
        self.compute
    }

    /// Whether it computes with a copy of the parameters.
    #[must_use]
    pub fn has_copy(self) -> bool {
        self.compute != Kind::Float
    }
}

impl From<Precision> for Numerics {
    fn from(precision: Precision) -> Numerics {
        let compute = match precision {
            Precision::Fp32 => Kind::Float,
            Precision::Bf16 => Kind::BFloat16,
        };
        Numerics { compute }
    }
}
