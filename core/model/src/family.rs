//! Families of models with a published format: `config.json`, and the names of their parameters in `model.safetensors`.

use crate::config::{ConfigError, Published};
use crate::layout::Unit;
use crate::parameter::Parameter;
use crate::transformer::Transformer;
use crate::{bert, gpt2, llama3, qwen3};
use serde_json::Value;

/// What the names of heads for other tasks begin with: for classes and rewards, answers, choices, and values. `transformers` too reads a
/// language model without them.
const OTHER_HEADS: [&str; 5] = [
    "score.",
    "classifier.",
    "qa_outputs.",
    "multiple_choice_head.",
    "v_head.",
];

/// A family that the library `transformers` knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// `gpt2`.
    Gpt2,
    /// `llama`.
    Llama,
    /// `qwen3`.
    Qwen3,
    /// `bert`, with the head of a masked language model.
    Bert,
}

impl Family {
    const ALL: [Family; 4] = [Family::Gpt2, Family::Llama, Family::Qwen3, Family::Bert];

    /// The family's `model_type`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Family::Gpt2 => "gpt2",
            Family::Llama => "llama",
            Family::Qwen3 => "qwen3",
            Family::Bert => "bert",
        }
    }

    /// The family of models with this one's features. Where these name what follows from the sizes anyway, that is no feature.
    ///
    /// # Errors
    /// There is none.
    pub fn of(model: &Transformer) -> Result<Family, ConfigError> {
        let features = model.features_beside_sizes();
        let has = |family: &Family| match family {
            Family::Gpt2 => gpt2::has(&features),
            Family::Llama => llama3::has(&features),
            Family::Qwen3 => qwen3::has(&features),
            Family::Bert => bert::has(&features),
        };
        Family::ALL.into_iter().find(has).ok_or(ConfigError::Features)
    }

    /// The family of a `config.json`, and the model that it describes.
    ///
    /// # Errors
    /// The configuration is of another family, or of a model that cannot be trained here.
    pub fn read(config: &Value) -> Result<(Family, Transformer), ConfigError> {
        let name = &config["model_type"];
        let family = Family::ALL.into_iter().find(|family| name == family.name());
        let family = family.ok_or_else(|| ConfigError::Field {
            field: "model_type",
            found: name.to_string(),
            allowed: "gpt2, llama, qwen3 or bert",
        })?;
        let model = match family {
            Family::Gpt2 => gpt2::from_config(config),
            Family::Llama => llama3::from_config(config),
            Family::Qwen3 => qwen3::from_config(config),
            Family::Bert => bert::from_config(config),
        };
        Ok((family, model?))
    }

    /// `config.json` of a model of this family; `end` is the token that ends a document.
    #[must_use]
    pub fn config(self, model: &Transformer, end: u32) -> Value {
        match self {
            Family::Gpt2 => gpt2::config(model, end),
            Family::Llama => llama3::config(model, end),
            Family::Qwen3 => qwen3::config(model, end),
            Family::Bert => bert::config(model, end),
        }
    }

    /// Whether a published file may have this tensor beside those of the model: a constant that older libraries stored, a head that is tied to the
    /// table of tokens, or a part that is not trained here (a head for another task, the pooler of a BERT).
    #[must_use]
    pub fn leaves_out(self, tensor: &str) -> bool {
        let of_family = match self {
            Family::Gpt2 => gpt2::leaves_out(tensor),
            Family::Llama | Family::Qwen3 => llama3::leaves_out(tensor),
            Family::Bert => bert::leaves_out(tensor),
        };
        of_family || OTHER_HEADS.iter().any(|head| tensor.starts_with(head))
    }

    /// The tensors that a unit's parameter is published as: its rows in order.
    #[must_use]
    pub fn tensors(self, model: &Transformer, unit: Unit, parameter: &Parameter) -> Vec<Published> {
        match self {
            Family::Gpt2 => vec![gpt2::tensor(model, unit, parameter)],
            Family::Llama | Family::Qwen3 => llama3::tensors(model, unit, parameter),
            Family::Bert => bert::tensors(model, unit, parameter),
        }
    }
}
