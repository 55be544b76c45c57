//! What a model consists of: its segments, their tensors with shapes and initial values, what they cost, and their published names.
//!
//! A [`Model`] is a set of sizes and [`Features`]; a family is a preset of features ([`gpt2`]). Each feature has one file here,
//! which describes it (`norm`, `attention`, `mlp`, `embedding`, `head`), and one of that name in the worker's `model` folder, which
//! computes it (the head is in its `mod.rs`).
//! Planning sees amounts only ([`ModelSpec`]). This crate must never do I/O or know plans, devices or libtorch.

pub mod attention;
pub mod embedding;
pub mod gpt2;
pub mod head;
pub mod layout;
pub mod limits;
pub mod mlp;
pub mod model;
pub mod norm;
pub mod parameter;
mod piece;
pub mod spec;

pub use embedding::Positions;
pub use layout::{Layout, SegmentRange, Unit};
pub use mlp::Mlp;
pub use model::{Features, Model};
pub use norm::Norm;
pub use parameter::{Initial, LayerNames, Parameter};
pub use spec::{ModelSpec, SegmentKind, SegmentSpec};
