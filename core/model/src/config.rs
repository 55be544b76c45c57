//! How models and their parameters are represented in a published folder: the fields of `config.json`, and tensors.

use crate::features::Mlp;
use crate::limits;
use crate::real::Real;
use serde_json::Value;
use std::ops::RangeInclusive;

/// An error: a model or a `config.json` that has no counterpart.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A field of `config.json` has a value that cannot be trained here.
    #[error("config.json: {field}: {found} — {allowed}")]
    Field {
        /// The field.
        field: &'static str,
        /// Value of the field.
        found: String,
        /// Values that are allowed.
        allowed: &'static str,
    },
    /// The model has features that no family has.
    #[error("no published family has the model's features: GPT-2, Llama, Qwen 3 and BERT have a format")]
    Features,
}

/// Some rows of one of our parameters as a published tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Published {
    /// Name of the published model.
    pub name: String,
    /// Number of rows of our parameter, following the rows of the earlier tensors in the list.
    pub rows: usize,
    /// Whether it is stored as (inputs, outputs).
    pub transposed: bool,
}

/// The fields of a mapping.
pub(crate) struct Fields<'a>(pub(crate) &'a Value);

impl Fields<'_> {
    pub(crate) fn wrong(&self, field: &'static str, allowed: &'static str) -> ConfigError {
        ConfigError::Field {
            field,
            found: self.0[field].to_string(),
            allowed,
        }
    }

    /// Refuses any other value; an omitted field counts as this value.
    pub(crate) fn only(
        &self,
        field: &'static str,
        value: &Value,
        allowed: &'static str,
    ) -> Result<(), ConfigError> {
        let found = &self.0[field];
        if found.is_null() || found == value {
            return Ok(());
        }
        Err(self.wrong(field, allowed))
    }

    pub(crate) fn is_absent(&self, field: &'static str) -> bool {
        self.0[field].is_null()
    }

    /// A size, within its limits.
    pub(crate) fn size(
        &self,
        field: &'static str,
        limit: RangeInclusive<u32>,
        allowed: &'static str,
    ) -> Result<u32, ConfigError> {
        let size = self.0[field].as_u64().and_then(|v| u32::try_from(v).ok());
        let size = size.filter(|v| limit.contains(v));
        size.ok_or_else(|| self.wrong(field, allowed))
    }

    pub(crate) fn width(&self, field: &'static str) -> Result<u32, ConfigError> {
        self.size(field, limits::WIDTH, "a number from 1 to 1048576")
    }

    pub(crate) fn layers(&self, field: &'static str) -> Result<u32, ConfigError> {
        self.size(field, limits::LAYERS, "a number from 1 to 10000")
    }

    pub(crate) fn vocabulary(&self) -> Result<u32, ConfigError> {
        self.size("vocab_size", limits::VOCABULARY, "a number from 1 to 16777216")
    }

    /// A number above 0.
    pub(crate) fn above_zero(
        &self,
        field: &'static str,
        most: f64,
        allowed: &'static str,
    ) -> Result<Real, ConfigError> {
        let number = self.0[field].as_f64().filter(|v| *v > 0.0 && *v <= most);
        number.map(Real::new).ok_or_else(|| self.wrong(field, allowed))
    }

    /// The MLP with the activation of this name; `absent` is that of an omitted field.
    pub(crate) fn mlp(&self, field: &'static str, absent: Mlp) -> Result<Mlp, ConfigError> {
        if self.is_absent(field) {
            return Ok(absent);
        }
        let mut known = [Mlp::GeluErf, Mlp::Gelu].into_iter();
        let found = known.find(|mlp| self.0[field].as_str() == mlp.activation());
        found.ok_or_else(|| self.wrong(field, "gelu or gelu_new"))
    }

    /// A boolean; `absent` is its value if it is omitted.
    pub(crate) fn switch(&self, field: &'static str, absent: bool) -> Result<bool, ConfigError> {
        if self.is_absent(field) {
            return Ok(absent);
        }
        self.0[field]
            .as_bool()
            .ok_or_else(|| self.wrong(field, "true or false"))
    }
}
