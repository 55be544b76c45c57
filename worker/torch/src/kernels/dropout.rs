//! Dropout whose mask is a function of a key and an element's place in its row.

use super::{Kernels, Launcher};
use crate::{Handle, TorchError, checked, handle};
use std::ffi::c_int;
use tch::Tensor;

unsafe extern "C" {
    /// A null launcher is none.
    fn vt_dropout(
        launcher: Option<&Launcher>,
        x: Handle,
        keys: *const u64,
        rows: c_int,
        keep: f64,
        out: *mut Handle,
    ) -> c_int;
}

impl Kernels {
    /// Dropout of each row (the first dimension) under a key of its own: keeps an element with the probability `keep` and divides it by
    /// that, in single precision. Which elements stay follows from the key and the element's place in its row alone, with all kernels and on every
    /// device (Philox4x32-10); the backward draws them again, so that no mask is kept.
    ///
    /// # Errors
    /// `keep` is not above 0 and at most 1, or there are not as many keys as rows.
    pub fn dropout(self, x: &Tensor, keys: &[u64], keep: f64) -> Result<Tensor, TorchError> {
        let rows = x.size().first().copied().unwrap_or(0);
        if !(keep > 0.0 && keep <= 1.0) || i64::try_from(keys.len()) != Ok(rows) {
            return Err(TorchError(format!(
                "dropout that keeps {keep} of {rows} rows, with {} keys",
                keys.len()
            )));
        }
        let count = c_int::try_from(rows).map_err(|_| TorchError("too many rows".into()))?;
        let mut out: Handle = std::ptr::null_mut();
        // SAFETY: a live handle and as many keys as said, borrowed for the call; the launcher is never freed.
        checked(unsafe { vt_dropout(self.dropout, handle(x), keys.as_ptr(), count, keep, &raw mut out) })?;
        // SAFETY: the shim returned a new heap tensor that this Tensor now owns.
        Ok(unsafe { Tensor::from_ptr(out.cast()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backward;
    use tch::{Device, Kind};

    const CPU: (Kind, Device) = (Kind::Float, Device::Cpu);

    #[test]
    fn it_follows_the_rows_key_and_its_backward_drops_the_same() {
        let keys = [7u64, u64::MAX, 7];
        // The size is no multiple of the four numbers for each counter.
        let x = Tensor::randn([3, 1001, 3], CPU).set_requires_grad(true);
        for kernels in [Kernels::PROCESSOR, Kernels::LIBTORCH] {
            let x = x.detach().copy().set_requires_grad(true);
            let y = kernels.dropout(&x, &keys, 0.75).unwrap();
            backward(&[&y], &[&Tensor::ones_like(&y)]).unwrap();
            let kept = x.grad();
            assert_eq!(
                y,
                x.detach() * &kept,
                "what stays is divided by what is kept of all"
            );
            assert_eq!((kept.get(0), kept.get(1) == kept.get(0)), (kept.get(2), false));
            let stay = f64::try_from(kept.gt(0.0).to_kind(Kind::Double).mean(Kind::Double)).unwrap();
            assert!((stay - 0.75).abs() < 0.02, "{stay}");
            let together = f64::try_from(kept.mean(Kind::Double)).unwrap();
            assert!((together - 1.0).abs() < 0.03, "{together}");
            assert_eq!(kernels.dropout(&x, &keys, 1.0).unwrap(), x);
            for (keys, keep) in [
                (&keys[..2], 0.5),
                (&keys[..], 0.0),
                (&keys[..], 1.5),
                (&keys[..], f64::NAN),
            ] {
                assert!(kernels.dropout(&x, keys, keep).is_err());
            }
        }
    }

    /// The bits of a tensor's elements.
    fn bits(t: &Tensor) -> Vec<u32> {
        let narrow = |bits: Vec<u16>| bits.into_iter().map(u32::from).collect();
        match t.kind() {
            Kind::Float => crate::vec_from_tensor(t).unwrap(),
            _ => narrow(crate::vec_from_tensor(t).unwrap()),
        }
    }

    /// Rows of more than a tile, more rows than one launch takes, each format, and elements that are not finite.
    #[test]
    fn the_kernel_has_the_bits_of_whole_tensors() {
        tch::manual_seed(6);
        for kind in [Kind::Float, Kind::BFloat16, Kind::Half] {
            for (rows, elements) in [(2, 1), (2, 4), (3, 10_007), (700, 9), (300, 2049)] {
                let x = Tensor::randn([rows, elements], CPU).to_kind(kind);
                let _ = x.get(0).fill_(f64::INFINITY);
                let _ = x.get(1).fill_(f64::NAN);
                let keys: Vec<u64> = (0..rows.cast_unsigned())
                    .map(|row| 0x0123_4567_89ab_cdef ^ (row << 29))
                    .collect();
                let [own, theirs] = [Kernels::PROCESSOR, Kernels::LIBTORCH]
                    .map(|kernels| kernels.dropout(&x, &keys, 0.9).unwrap());
                assert_eq!(own.kind(), kind);
                let finite = |t: &Tensor| t.narrow(0, 2, rows - 2).contiguous();
                if rows > 2 {
                    assert_eq!(
                        bits(&finite(&own)),
                        bits(&finite(&theirs)),
                        "{rows} of {elements}"
                    );
                }
                let places =
                    |t: &Tensor| [t.eq(0.0), t.isnan(), t.isinf()].map(|t| bits(&t.to_kind(Kind::Half)));
                assert_eq!(places(&own), places(&theirs), "{elements} of {kind:?}");
            }
        }
    }

    #[test]
    fn there_is_no_dropout_of_whole_numbers() {
        let x = Tensor::ones([2, 3], (Kind::Int64, Device::Cpu));
        let why = Kernels::PROCESSOR.dropout(&x, &[1, 2], 0.5).unwrap_err();
        assert!(why.0.contains("no kernel for Long"), "{why}");
    }
}
