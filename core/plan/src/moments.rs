//! The moments that an optimizer keeps for each parameter besides its value.

use serde::{Deserialize, Serialize};

/// The moments of an optimizer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Moments {
    /// First and second moments of the gradient, as `AdamW` has them.
    #[default]
    Adam,
    /// A momentum, as SGD has it.
    Momentum,
    /// As Adam's. For matrices that Muon orthogonalises, the first is their momentum, and the second stays zero.
    Muon,
}

impl Moments {
    /// Numbers for each parameter.
    #[must_use]
    pub const fn of_parameter(self) -> usize {
        match self {
            Moments::Adam | Moments::Muon => 2,
            Moments::Momentum => 1,
        }
    }

    /// Whether these are those of Adam, which documents omit.
    #[must_use]
    pub fn are_adams(&self) -> bool {
        *self == Moments::Adam
    }
}

impl std::fmt::Display for Moments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Moments::Adam => "adamw",
            Moments::Momentum => "sgd",
            Moments::Muon => "muon",
        })
    }
}
