//! Indexed token datasets: the Megatron `.bin`/`.idx` format, a builder from text, tokenizers, the seeded sample order.
//!
//! This crate owns which tokens a sample has: [`TokenDataset::train`] is the same function of (files, seed, index) in every
//! process, whatever the plan. It must never know plans, workers or tensors.
//!
//! Files are read with `pread`, not memory-mapped: a map of a file that is cut short while it is read kills the process
//! (SIGBUS) where a read returns an error, needs `unsafe`, and saves nothing at a few KiB a sample.

mod build;
mod dataset;
mod error;
mod index;
mod order;
mod sidecar;
mod text;
mod tokenizer;

pub use build::{Build, Summary, build};
pub use dataset::{Info, TokenDataset, info};
pub use error::DataError;
pub use index::TokenType;
pub use order::Permutation;
pub use sidecar::Sidecar;
pub use tokenizer::{Encoder, Tokenizer};
