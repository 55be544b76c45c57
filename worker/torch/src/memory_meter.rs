//! What tensors take, exactly: the allocators of libtorch report each piece of memory that they hand out and take back.

use crate::{Device, TorchError};
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

unsafe extern "C" {
    fn vt_meter_begin(host: c_int) -> *mut c_void;
    fn vt_meter_read(meter: *mut c_void, now: *mut i64, most: *mut i64);
    fn vt_meter_end(meter: *mut c_void);
}

/// Bytes of tensors since the meter began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// Taken and not given back.
    pub now: u64,
    /// The most that this ever was.
    pub most: u64,
}

/// Counts the memory that tensors of one device take, from its beginning until it is dropped: what this thread takes, and the backward
/// that it starts. What a library takes for itself within an operation is not a tensor's. One meter at a time in a thread; it stays in its
/// thread, as libtorch looks for it there.
pub struct MemoryMeter(NonNull<c_void>);

impl MemoryMeter {
    /// Begins to count from zero.
    ///
    /// # Errors
    /// There is no memory for the meter.
    pub fn begin(device: Device) -> Result<MemoryMeter, TorchError> {
        // SAFETY: makes an object of the shim's that nothing else knows; null is checked.
        let meter = unsafe { vt_meter_begin(c_int::from(device.tensors() == tch::Device::Cpu)) };
        let meter = NonNull::new(meter).ok_or_else(|| TorchError("no memory for a meter".to_owned()))?;
        Ok(MemoryMeter(meter))
    }

    /// What is counted until now.
    #[must_use]
    pub fn taken(&self) -> Taken {
        let (mut now, mut most) = (0i64, 0i64);
        // SAFETY: the meter lives until it is dropped, and both numbers outlive the call.
        unsafe { vt_meter_read(self.0.as_ptr(), &raw mut now, &raw mut most) };
        // More was given back than taken where a tensor of an earlier meter ended.
        Taken {
            now: u64::try_from(now).unwrap_or(0),
            most: u64::try_from(most).unwrap_or(0),
        }
    }
}

impl Drop for MemoryMeter {
    fn drop(&mut self) {
        // SAFETY: made by `begin`, not ended before, and in the same thread: a pointer makes this type neither Send nor Sync.
        unsafe { vt_meter_end(self.0.as_ptr()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Kind, Tensor};

    #[test]
    fn tensors_count_while_they_live_and_the_most_stays() {
        let device = Device::open(crate::DeviceChoice::Cpu).unwrap();
        let before = Tensor::zeros([1000], (Kind::Float, device.tensors()));
        let meter = MemoryMeter::begin(device).unwrap();
        assert_eq!(meter.taken(), Taken { now: 0, most: 0 });
        let first = Tensor::zeros([1000], (Kind::Float, device.tensors()));
        let second = Tensor::zeros([500], (Kind::Double, device.tensors()));
        assert_eq!(
            meter.taken(),
            Taken {
                now: 8000,
                most: 8000
            }
        );
        drop((first, before));
        assert_eq!(
            meter.taken(),
            Taken {
                now: 4000,
                most: 8000
            }
        );
        drop(second);
        assert_eq!(meter.taken(), Taken { now: 0, most: 8000 });
        drop(meter);
        let _later = Tensor::zeros([1000], (Kind::Float, device.tensors()));
        let again = MemoryMeter::begin(device).unwrap();
        assert_eq!(again.taken(), Taken { now: 0, most: 0 });
    }

    #[test]
    fn what_a_backward_takes_counts_and_other_threads_do_not() {
        let device = Device::open(crate::DeviceChoice::Cpu).unwrap();
        let x = Tensor::ones([1000], (Kind::Float, device.tensors())).set_requires_grad(true);
        let meter = MemoryMeter::begin(device).unwrap();
        let elsewhere = std::thread::spawn(move || {
            let other = Tensor::zeros([100_000], (Kind::Float, device.tensors()));
            other.numel()
        });
        assert_eq!(elsewhere.join().unwrap(), 100_000);
        let y = &x * &x;
        // The product keeps its two inputs, which existed before, and its output.
        assert_eq!(
            meter.taken(),
            Taken {
                now: 4000,
                most: 4000
            }
        );
        let gradient = Tensor::ones_like(&y);
        crate::backward(&[&y], &[&gradient]).unwrap();
        assert!(meter.taken().most >= 3 * 4000, "{:?}", meter.taken());
    }
}
