//! Indexed token datasets: the Megatron `.bin`/`.idx` format, a builder from texts, tokenizers, the seeded sample order.
//!
//! This crate owns which tokens a sample has: [`TrainingData::train`] is the same function of (files, seed, index) in every
//! process, whatever the plan. It must never know plans, workers or tensors.
//!
//! Files are read with `pread`, not memory-mapped: a map of a file that is cut short while it is read kills the process
//! (SIGBUS) where a read returns an error, needs `unsafe`, and saves nothing at a few KiB a sample.

mod blend;
#[cfg(feature = "build")]
mod build;
mod contents;
mod dataset;
mod error;
mod files;
mod index;
mod order;
mod sample_shape;
mod sidecar;
#[cfg(feature = "build")]
mod text;
#[cfg(feature = "tokenize")]
mod tokenizer;
mod training_data;

pub use blend::{Blend, BlendSample};
#[cfg(feature = "build")]
pub use build::{Build, Built, Format, Skipped, Split, build, build_while};
pub use contents::{Info, info, tokens};
pub use dataset::TokenDataset;
pub use error::DataError;
pub use files::cache_bytes;
pub use index::TokenType;
pub use order::Permutation;
pub use sample_shape::{SampleData, SampleShape};
pub use sidecar::Sidecar;
#[cfg(feature = "tokenize")]
pub use tokenizer::{Decoder, Encoder, NoTokens, Tokenizer};
pub use training_data::TrainingData;
