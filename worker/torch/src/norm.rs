//! Sums of squares in a fixed tree: the same bits on every device, however many cores or multiprocessors it has. All holders of a unit
//! must find the same norm.
//!
//! The tree: blocks of [`BLOCK`] elements, in each of which the upper half is added to the lower half until one number is left; the
//! blocks' sums are added up in their order. Squares and sums are in double precision; the square of a single is exact there.

use crate::kernels::{Kernels, Launcher};
use crate::squares::BLOCK;
use crate::{Handle, TorchError, checked, handle, vec_from_tensor};
use std::ffi::c_int;
use tch::Tensor;

unsafe extern "C" {
    fn vt_block_squares(
        launcher: Option<&Launcher>,
        values: Handle,
        block: i64,
        tail: i64,
        out: *mut Handle,
    ) -> c_int;
}

/// Sum of the squares of a flat tensor's elements in single precision but the last `TAIL`, and those last ones. It is computed where the tensor
/// lies: only the blocks' sums reach the host, in one copy.
///
/// # Errors
/// The tensor is shorter, or libtorch refuses.
pub(crate) fn sum_of_squares_on_device<const TAIL: usize>(
    values: &Tensor,
) -> Result<(f64, [f32; TAIL]), TorchError> {
    let found = read_block_sums(&[BlockSums::of(Kernels::LIBTORCH, values)?])?;
    found.first().copied().ok_or_else(|| too_short(TAIL))
}

/// The blocks' sums of a flat tensor and its last `TAIL` elements, on its device: nothing has waited for them yet.
pub struct BlockSums<const TAIL: usize>(Tensor);

impl<const TAIL: usize> BlockSums<TAIL> {
    /// The sums of a flat tensor in single precision. Libtorch and our kernels give the same bits.
    ///
    /// # Errors
    /// The tensor is shorter than `TAIL`, or libtorch refuses.
    pub fn of(kernels: Kernels, values: &Tensor) -> Result<BlockSums<TAIL>, TorchError> {
        let mut out: Handle = std::ptr::null_mut();
        let (launcher, block, tail) = (kernels.squares(), BLOCK as i64, TAIL as i64);
        // SAFETY: a live handle, borrowed for the call; the launcher is never freed.
        checked(unsafe { vt_block_squares(launcher, handle(values), block, tail, &raw mut out) })?;
        // SAFETY: the shim returned a new heap tensor that this Tensor now owns.
        Ok(BlockSums(unsafe { Tensor::from_ptr(out.cast()) }))
    }
}

/// Reads all of them from the device in one copy, which waits for it once: each tensor's sum of squares and last elements.
///
/// # Errors
/// libtorch refuses.
pub fn read_block_sums<const TAIL: usize>(
    all: &[BlockSums<TAIL>],
) -> Result<Vec<(f64, [f32; TAIL])>, TorchError> {
    if all.is_empty() {
        return Ok(Vec::new());
    }
    let parts: Vec<&Tensor> = all.iter().map(|sums| &sums.0).collect();
    let together = Tensor::f_cat(&parts, 0).map_err(|e| TorchError(e.to_string()))?;
    let found = vec_from_tensor::<f64>(&together)?;
    let mut rest = &found[..];
    let of = |part: &&Tensor| {
        let (own, others) = rest
            .split_at_checked(part.numel())
            .ok_or_else(|| too_short(TAIL))?;
        rest = others;
        let (sums, tail) = own.split_last_chunk().ok_or_else(|| too_short(TAIL))?;
        // They were singles: this rounds nothing.
        Ok((sums.iter().sum(), tail.map(|v| v as f32)))
    };
    parts.iter().map(of).collect()
}

pub(crate) fn too_short(tail: usize) -> TorchError {
    TorchError(format!("a buffer of fewer than {tail} elements"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::squares::sum_of_squares;
    use tch::{Device, Kind};

    #[test]
    fn a_device_finds_the_bits_of_the_host_for_every_length() {
        tch::manual_seed(12);
        let lengths = [
            0,
            1,
            2,
            2047,
            2048,
            2049,
            4095,
            4096,
            4097,
            3 * 4096,
            5 * 4096 + 2100,
            (1 << 20) + 17,
        ];
        for length in lengths {
            let all = Tensor::randn([length], (Kind::Float, Device::Cpu));
            let values = Vec::<f32>::try_from(&all).unwrap();
            let host = sum_of_squares(&values);
            let more = Tensor::cat(&[&all, &Tensor::from_slice(&[0.1f32, -7.0])], 0);
            for kernels in [Kernels::LIBTORCH, Kernels::ALL_ON_HOST] {
                let sums = BlockSums::<2>::of(kernels, &more).unwrap();
                let (device, tail) = read_block_sums(&[sums]).unwrap()[0];
                assert_eq!(
                    (host.to_bits(), tail),
                    (device.to_bits(), [0.1, -7.0]),
                    "{length} elements, {kernels:?}"
                );
            }
            let plain: f64 = values.iter().map(|v| f64::from(*v).powi(2)).sum();
            assert!((host - plain).abs() <= 1e-12 * plain, "{host} {plain}");
        }
    }

    #[test]
    fn the_kernel_is_asked_where_it_is_chosen() {
        // The bits are equal. To distinguish the two, the test uses double precision, which the kernel does not accept.
        let doubles = Tensor::ones([5], (Kind::Double, Device::Cpu));
        assert!(BlockSums::<0>::of(Kernels::LIBTORCH, &doubles).is_ok());
        let why = BlockSums::<0>::of(Kernels::ALL_ON_HOST, &doubles).err().unwrap();
        assert!(why.0.contains("squares of Double"), "{why}");
    }

    #[test]
    fn what_is_not_finite_is_not_lost() {
        for odd in [f32::NAN, f32::INFINITY] {
            let mut values = vec![1.0f32; 10_000];
            values[7_777] = odd;
            assert!(!sum_of_squares(&values).is_finite());
            for kernels in [Kernels::LIBTORCH, Kernels::ALL_ON_HOST] {
                let sums = BlockSums::<0>::of(kernels, &Tensor::from_slice(&values)).unwrap();
                let (device, []) = read_block_sums(&[sums]).unwrap()[0];
                assert!(!device.is_finite(), "{kernels:?}");
            }
        }
    }

    #[test]
    fn the_order_is_the_trees_and_not_another() {
        // Beside 2^52 a half is lost, and a whole number is not. The tree first adds elements 1 and 2049 to each other, and elements 0 and
        // 2048.
        let large = 2.0f32.powi(26);
        let beside = |places: [usize; 2]| {
            let mut values = vec![0.0f32; BLOCK];
            values[0] = large;
            for place in places {
                values[place] = 0.7;
            }
            sum_of_squares(&values) - f64::from(large).powi(2)
        };
        assert_eq!(beside([1, 2049]), 1.0);
        assert_eq!(beside([1, 2048]), 0.0);
    }
}
