//! A real number of a model's description.

use serde::{Deserialize, Serialize};

/// A real number as documents write it. Two are equal if their bits are, so that descriptions can be compared and are equal to
/// themselves.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Real(f64);

impl Real {
    /// A real number with this value.
    #[must_use]
    pub const fn new(value: f64) -> Real {
        Real(value)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl PartialEq for Real {
    fn eq(&self, other: &Real) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Real {}
