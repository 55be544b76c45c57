//! Uses of a trained model: text that continues a prompt, the loss over a dataset, logits.
//!
//! One process holds the whole model on one device, whatever plan trained it. It must never train anything, talk to a coordinator, or write to a
//! checkpoint location.

mod evaluate;
mod exported_model;
mod generate;
mod load;
mod logits;
mod reader;
mod sampling;
mod trained;

pub use evaluate::Arguments as EvaluateArguments;
pub use generate::Arguments as GenerateArguments;
pub use logits::Arguments as LogitsArguments;
pub use sampling::{Sampling, SamplingError};
pub use trained::{Session, TrainedModel, Windows};

pub(crate) use evaluate::run as evaluate;
pub(crate) use generate::run as generate;
pub(crate) use logits::run as logits;
