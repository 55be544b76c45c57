//! The sum of squares of elements in the host's memory, in the tree that [`crate::norm`] describes.

/// Elements of a block: what the sum of it takes fits into the fastest cache of a core. `kernels/arguments.h` has the same.
pub(crate) const BLOCK: usize = 4096;

/// Sum of the squares of elements in the host's memory.
pub(crate) fn sum_of_squares(values: &[f32]) -> f64 {
    let mut sums = [0.0f64; BLOCK / 2];
    values.chunks(BLOCK).map(|block| block_of(block, &mut sums)).sum()
}

/// The tree of one block; elements that are missing count as zeros.
fn block_of(block: &[f32], sums: &mut [f64; BLOCK / 2]) -> f64 {
    let square = |v: f32| f64::from(v) * f64::from(v);
    let (lower, upper) = block.split_at(block.len().min(BLOCK / 2));
    let (both, alone) = sums.split_at_mut(upper.len());
    for ((sum, a), b) in both.iter_mut().zip(lower).zip(upper) {
        *sum = square(*a) + square(*b);
    }
    let rest = lower[upper.len()..].iter().map(|v| square(*v));
    for (sum, value) in alone.iter_mut().zip(rest.chain(std::iter::repeat(0.0))) {
        *sum = value;
    }
    let mut width = BLOCK / 4;
    while width > 0 {
        let (lower, upper) = sums.split_at_mut(width);
        for (a, b) in lower.iter_mut().zip(upper) {
            *a += *b;
        }
        width /= 2;
    }
    sums[0]
}
