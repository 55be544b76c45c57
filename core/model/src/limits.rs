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
/// Base of rotary angles: published ones are at most 1e7.
pub const ROPE_THETA_MAX: f64 = 1e12;
/// Factor and numbers of turns of a change of rotary angles: published ones are below a hundred.
pub const ROPE_FACTOR_MAX: f64 = 1e9;
/// A norm's epsilon: more than the mean square that it is added to would hide it.
pub const NORM_EPSILON_MAX: f64 = 1.0;
/// Logits of real models stay below a hundred; a cap that is far above changes nothing.
pub const SOFTCAP_MAX: f64 = 1e6;
