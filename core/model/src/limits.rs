//! Sizes of models that are read: far above every model that fits a machine, and low enough that parameter counts and tensor shapes
//! cannot overflow.

use std::ops::RangeInclusive;

/// Blocks.
pub const LAYERS: RangeInclusive<u32> = 1..=10_000;
/// Hidden size, heads and sequence length.
pub const WIDTH: RangeInclusive<u32> = 1..=1 << 20;
/// Rows of the embedding table.
pub const VOCABULARY: RangeInclusive<u32> = 1..=1 << 24;
/// Width of a head.
pub const HEAD: RangeInclusive<u32> = 1..=1 << 14;
/// Width between up and down of the MLP.
pub const INNER: RangeInclusive<u32> = 1..=1 << 22;
/// Logits of real models stay below a hundred; a cap that is far above changes nothing.
pub const SOFTCAP_MAX: f64 = 1e6;
