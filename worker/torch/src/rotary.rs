//! Rotary positions: pairs of elements turned by an angle that grows with the position.

use crate::{Device, Handle, TorchError, checked, handle};
use std::ffi::c_int;
use tch::Tensor;

unsafe extern "C" {
    fn vt_rotate(x: Handle, cosines: Handle, sines: Handle, out: *mut Handle) -> c_int;
}

/// Cosine and sine of the angle of each position and pair of elements: (t, e / 2) of heads of width e, in single precision; where samples have
/// positions of their own, (b, t, e / 2).
pub struct Angles {
    cosines: Tensor,
    sines: Tensor,
}

impl Angles {
    /// Angles for positions from 0 up to `length`; `frequencies` are the radians of one position, for each pair.
    ///
    /// # Errors
    /// There is no memory for them.
    #[expect(clippy::cast_possible_truncation, reason = "rounded to what is computed in")]
    pub fn new(frequencies: &[f64], length: u32, device: Device) -> Result<Angles, TorchError> {
        // In double precision: a late position's angle has few digits left after the point in single.
        let all = || (0..length).flat_map(|t| frequencies.iter().map(move |f| f64::from(t) * f));
        let table = |of: fn(f64) -> f64| {
            let values: Vec<f32> = all().map(|angle| of(angle) as f32).collect();
            let host = Tensor::f_from_slice(&values)
                .and_then(|t| t.f_view([i64::from(length), frequencies.len().cast_signed() as i64]));
            let placed = host.and_then(|t| t.f_to_device(device.tensors()));
            placed.map_err(|e| TorchError(e.to_string()))
        };
        Ok(Angles {
            cosines: table(f64::cos)?,
            sines: table(f64::sin)?,
        })
    }

    /// The angles of `count` positions from `first` on.
    ///
    /// # Errors
    /// There are no angles of some of them.
    pub fn part(&self, first: i64, count: i64) -> Result<Angles, TorchError> {
        let of = |table: &Tensor| {
            table
                .f_narrow(0, first, count)
                .map_err(|e| TorchError(e.to_string()))
        };
        Ok(Angles {
            cosines: of(&self.cosines)?,
            sines: of(&self.sines)?,
        })
    }

    /// The angles of the positions (b, t) that the tokens of some samples have, integers.
    ///
    /// # Errors
    /// There are no angles of some of them.
    pub fn at(&self, positions_bt: &Tensor) -> Result<Angles, TorchError> {
        let size = positions_bt.size();
        let of = |table: &Tensor| {
            let rows = table.f_index_select(0, &positions_bt.reshape([-1]))?;
            rows.f_view(
                [&size[..], &[table.size().last().copied().unwrap_or(0)]]
                    .concat()
                    .as_slice(),
            )
        };
        let both = of(&self.cosines).and_then(|cosines| Ok((cosines, of(&self.sines)?)));
        let (cosines, sines) = both.map_err(|e| TorchError(e.to_string()))?;
        Ok(Angles { cosines, sines })
    }

    /// The same angles, without copying them.
    #[must_use]
    pub fn shallow_clone(&self) -> Angles {
        Angles {
            cosines: self.cosines.shallow_clone(),
            sines: self.sines.shallow_clone(),
        }
    }

    /// `x` (b, t, h, e) with element i of the first half of each head and element i of its second half turned together. The backward turns
    /// the gradient back, and keeps nothing of `x`.
    ///
    /// # Errors
    /// These angles are of other positions or heads.
    pub fn rotate(&self, x: &Tensor) -> Result<Tensor, TorchError> {
        let mut out: Handle = std::ptr::null_mut();
        // SAFETY: live handles, borrowed for the call, and a place for one.
        checked(unsafe {
            vt_rotate(
                handle(x),
                handle(&self.cosines),
                handle(&self.sines),
                &raw mut out,
            )
        })?;
        // SAFETY: the shim returned a new heap tensor that this Tensor now owns.
        Ok(unsafe { Tensor::from_ptr(out.cast()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backward;
    use tch::Kind;

    const CPU: (Kind, tch::Device) = (Kind::Float, tch::Device::Cpu);

    #[test]
    fn rotation_is_complex_and_its_backward_inverse() {
        let frequencies = [1.0, 0.1, 0.01];
        let angles = Angles::new(&frequencies, 5, Device::Cpu).unwrap();
        tch::manual_seed(3);
        let x = Tensor::randn([2, 5, 4, 6], CPU).set_requires_grad(true);
        let turned = angles.rotate(&x).unwrap();
        let at = |of: &Tensor, index: [i64; 4]| of.double_value(&index);
        for (b, t, h, pair) in [(0, 0, 0, 0), (1, 4, 3, 0), (1, 3, 2, 1), (0, 2, 1, 2)] {
            let (re, im) = (at(&x, [b, t, h, pair]), at(&x, [b, t, h, pair + 3]));
            let (sin, cos) = (t as f64 * frequencies[usize::try_from(pair).unwrap()]).sin_cos();
            let expected = (re * cos - im * sin, im * cos + re * sin);
            let found = (at(&turned, [b, t, h, pair]), at(&turned, [b, t, h, pair + 3]));
            assert!((found.0 - expected.0).abs() < 1e-6 && (found.1 - expected.1).abs() < 1e-6);
        }
        // The gradient of half the sum of squares is the rotated tensor itself; rotated back, it is x.
        backward(&[&turned], &[&turned.detach()]).unwrap();
        let off = (x.grad() - &x).abs().max().double_value(&[]);
        assert!(off < 1e-5, "{off}");
    }

    #[test]
    fn part_uses_the_angles_of_its_positions() {
        let angles = Angles::new(&[1.0, 0.1], 7, Device::Cpu).unwrap();
        tch::manual_seed(5);
        let x = Tensor::randn([2, 7, 3, 4], CPU);
        let whole = angles.rotate(&x).unwrap();
        let part = angles.part(4, 2).unwrap().rotate(&x.narrow(1, 4, 2)).unwrap();
        assert_eq!(part, whole.narrow(1, 4, 2));
        assert!(angles.part(6, 2).is_err());
    }

    #[test]
    fn samples_with_positions_of_their_own_are_turned_by_these() {
        let angles = Angles::new(&[1.0, 0.1], 5, Device::Cpu).unwrap();
        tch::manual_seed(6);
        let x = Tensor::randn([2, 3, 2, 4], CPU).set_requires_grad(true);
        let positions = Tensor::from_slice(&[0i64, 1, 0, 3, 4, 2]).view([2, 3]);
        let own = angles.at(&positions).unwrap();
        let turned = own.rotate(&x).unwrap();
        for (b, t) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)] {
            let one = x.detach().narrow(0, b, 1).narrow(1, t, 1);
            let part = angles.part(positions.int64_value(&[b, t]), 1).unwrap();
            let expected = part.rotate(&one).unwrap();
            assert_eq!(turned.narrow(0, b, 1).narrow(1, t, 1), expected, "{b} {t}");
        }
        backward(&[&turned], &[&turned.detach()]).unwrap();
        let off = (x.grad() - &x).abs().max().double_value(&[]);
        assert!(off < 1e-5, "the backward turns back: {off}");
        assert!(angles.at(&(positions + 1)).is_err(), "there are five positions");
        let other = Tensor::zeros([3, 3, 2, 4], CPU);
        assert!(own.rotate(&other).is_err(), "these are of two samples");
    }

    #[test]
    fn rotation_in_16_bits_rounds_once() {
        let angles = Angles::new(&[1.0, 0.1], 3, Device::Cpu).unwrap();
        tch::manual_seed(4);
        let x = Tensor::randn([1, 3, 2, 4], CPU).to_kind(Kind::BFloat16);
        let single = angles.rotate(&x.to_kind(Kind::Float)).unwrap();
        assert_eq!(angles.rotate(&x).unwrap(), single.to_kind(Kind::BFloat16));
        for size in [[1, 4, 2, 4], [1, 3, 2, 6]] {
            let why = angles.rotate(&Tensor::zeros(size, CPU)).map(drop).unwrap_err();
            assert!(why.0.starts_with("angles of [3, 2]"), "{why}");
        }
    }
}
