//! The parts of a model: its segments, their tensors with shapes and initial values, their costs, and their published names.
//!
//! A [`Transformer`] is a set of sizes and [`Features`]; a family is a set of features with its published sizes ([`gpt2`], [`llama3`],
//! [`qwen3`], [`bert`]). Each feature has one file here, which describes it (`norm`, `attention`, `rotary`, `mlp`, `embedding`, `head`), and one of
//! that name in the worker's `model` folder, which computes it.
//! A [`Model`] is such a transformer, or one of the user's own ([`Exported`]), of which amounts alone are known here.
//! Planning sees amounts only ([`ModelSpec`]). This crate must never do I/O or know plans, devices or libtorch.

pub mod attention;
pub mod bert;
pub mod config;
pub mod embedding;
pub mod exported;
pub mod family;
pub mod features;
pub mod gpt2;
pub mod head;
pub mod layout;
pub mod limits;
pub mod llama3;
pub mod mlp;
pub mod model;
pub mod norm;
pub mod parameter;
mod piece;
pub mod presets;
pub mod qwen3;
pub mod real;
pub mod rotary;
pub mod spec;
pub mod transformer;

pub use config::{ConfigError, Published};
pub use exported::{Exported, ExportedSample, ExportedSegment};
pub use family::Family;
pub use features::{Biases, Features, Mlp, Norm, Positions};
pub use layout::{Layout, SegmentRange, StateShare, Unit};
pub use model::Model;
pub use parameter::{Initial, LayerNames, Parameter, ParameterKind};
pub use real::Real;
pub use rotary::{Rotary, Scaling};
pub use spec::{ModelSpec, SegmentKind, SegmentSpec};
pub use transformer::Transformer;
