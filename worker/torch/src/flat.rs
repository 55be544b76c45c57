//! Flat memory that Rust owns and libtorch sees: state of one kind of one unit, each a contiguous range. Where a device has memory of its
//! own, the range lies there: shares read it piece by piece, and the host's memory, which is taken with the first lease, holds a copy for that.
//!
//! Tensors over the memory can be kept and cloned by anyone, so no reference to an element ever leaves this module: a compiler may assume of a
//! `&mut [f32]` that nothing else writes there, and libtorch would. Elements go in and out by copies, each within one call.

mod memory;
mod parted;
mod share;

use crate::pieces::{self, DeviceReader};
use crate::squares::sum_of_squares;
use crate::{Device, HostToDeviceCopy, Streams, TorchError, copy, norm};
use memory::{Memory, host_tensor};
pub use parted::PartedBuffer;
pub use share::Share;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use tch::{Kind, Tensor};

/// Why the host cannot have a buffer's elements.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// The buffer is leased to, or shared with, somebody already.
    #[error("the buffer is leased or shared already")]
    Taken,
    /// Whoever reads the buffer did not end in time.
    #[error("the buffer is still read")]
    StillRead,
    /// The device's memory cannot be copied.
    #[error(transparent)]
    Torch(#[from] TorchError),
}

/// Float memory with tensor views.
pub struct FlatBuffer {
    memory: Arc<Memory>,
    /// The elements, where the device does not compute in the host's memory, and how they are copied.
    apart: Option<(Tensor, Streams)>,
    /// Whether the memory is a part of a larger one.
    is_part: bool,
}

impl FlatBuffer {
    /// `len` zeros.
    ///
    /// # Errors
    /// libtorch refuses (out of memory).
    pub fn zeros(len: usize, device: Device, streams: Streams) -> Result<FlatBuffer, TorchError> {
        let memory = Arc::new(Memory::new(len));
        let apart = if device.is_host() {
            None
        } else {
            let size = i64::try_from(len).map_err(|_| TorchError("too many elements".into()))?;
            let zeros = Tensor::f_zeros([size], (Kind::Float, device.tensors()));
            Some((zeros.map_err(|e| TorchError(e.to_string()))?, streams))
        };
        Ok(FlatBuffer {
            memory,
            apart,
            is_part: false,
        })
    }

    /// These values on the host, in the memory in which they lie: nothing is copied.
    #[must_use]
    pub fn of_host(values: Vec<f32>) -> FlatBuffer {
        FlatBuffer {
            memory: Arc::new(Memory::of(values)),
            apart: None,
            is_part: false,
        }
    }

    /// Another handle to the same memory: leases and shares of either count for both.
    #[must_use]
    pub fn handle(&self) -> FlatBuffer {
        let apart = self.apart.as_ref();
        FlatBuffer {
            memory: Arc::clone(&self.memory),
            apart: apart.map(|(tensor, streams)| (tensor.shallow_clone(), *streams)),
            is_part: self.is_part,
        }
    }

    /// Whether it is a part of a [`PartedBuffer`], whose whole memory it keeps alive.
    #[must_use]
    pub fn is_part(&self) -> bool {
        self.is_part
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory.len
    }

    /// True for a buffer without elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.memory.len == 0
    }

    /// A flat tensor over all elements, on the device. It and its views keep the memory alive.
    ///
    /// # Errors
    /// libtorch refuses.
    pub fn tensor(&self) -> Result<Tensor, TorchError> {
        match &self.apart {
            Some((tensor, _)) => Ok(tensor.shallow_clone()),
            None => self.host(),
        }
    }

    /// Replaces the elements from the first on by these, on the device. Where it has memory of its own, the host's is not touched.
    ///
    /// # Errors
    /// There are fewer, the buffer is leased or shared, or libtorch or the driver refuses.
    pub fn set(&self, values: &[f32]) -> Result<(), LeaseError> {
        let (given, own) = (values.len(), self.len());
        if given > own {
            return Err(TorchError(format!("{given} elements for a buffer of {own}")).into());
        }
        let mut lease = self.lease_unread()?;
        match &self.apart {
            Some((tensor, streams)) => pieces::write(*streams, values, tensor)?,
            None => lease.set(0, values),
        }
        Ok(())
    }

    /// A copy of some elements, as the device has them.
    ///
    /// # Errors
    /// Leased, or the driver refuses.
    ///
    /// # Panics
    /// The buffer does not have them, as with a slice.
    pub fn copy(&self, range: Range<usize>) -> Result<Vec<f32>, LeaseError> {
        let mut values = Vec::with_capacity(range.len());
        self.share()?.append(range, &mut values)?;
        Ok(values)
    }

    /// Brings the host's memory, which nobody reads, to what the device has.
    fn store(&self) -> Result<(), TorchError> {
        match &self.apart {
            Some((tensor, _)) => copy(&self.host()?, tensor),
            None => Ok(()),
        }
    }

    /// A flat tensor over the host's memory.
    fn host(&self) -> Result<Tensor, TorchError> {
        host_tensor(&self.memory)
    }

    /// A flat tensor over some elements, on the device.
    ///
    /// # Errors
    /// The buffer does not have them.
    pub fn narrow(&self, range: Range<usize>) -> Result<Tensor, TorchError> {
        let size = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let part = self.tensor()?.f_narrow(0, size(range.start), size(range.len()));
        part.map_err(|e| TorchError(e.to_string()))
    }

    /// Sum of the squares of some elements, in a tree that all devices share, and the `TAIL` elements that follow them; both as the device has
    /// them.
    ///
    /// # Errors
    /// Leased or shared, the buffer does not have them, or libtorch refuses.
    pub fn sum_of_squares<const TAIL: usize>(
        &self,
        range: Range<usize>,
    ) -> Result<(f64, [f32; TAIL]), LeaseError> {
        let with_tail = range.start..range.end + TAIL;
        if self.apart.is_some() {
            return Ok(norm::sum_of_squares_on_device(&self.narrow(with_tail)?)?);
        }
        let lease = self.lease()?;
        // SAFETY: the lease is out, and what follows only reads.
        let elements = unsafe { lease.memory.elements() };
        let elements = elements.get(with_tail).ok_or_else(|| norm::too_short(TAIL))?;
        let (values, tail) = elements.split_last_chunk().ok_or_else(|| norm::too_short(TAIL))?;
        Ok((sum_of_squares(values), *tail))
    }

    /// Whether a lease is out: its holder alone may touch the memory now.
    #[must_use]
    pub fn is_leased(&self) -> bool {
        self.memory.lending.is_leased()
    }

    /// Exclusive access for as long as the lease lives; a second lease is refused. A tensor operation on the buffer meanwhile (ask
    /// [`FlatBuffer::is_leased`]) mixes its numbers with the lease's, as with two tch tensors over one storage. What is written reaches a
    /// device with memory of its own by [`Lease::copy_to_device`].
    ///
    /// # Errors
    /// Leased or shared already, or libtorch refuses.
    pub fn lease(&self) -> Result<Lease, LeaseError> {
        let lease = self.lease_unread()?;
        self.store()?;
        Ok(lease)
    }

    /// Like [`FlatBuffer::lease`], but does not bring the host's memory up to date: for callers that overwrite all of it, or read none.
    ///
    /// # Errors
    /// Leased or shared already.
    pub fn lease_unread(&self) -> Result<Lease, LeaseError> {
        if !self.memory.lending.lease() {
            return Err(LeaseError::Taken);
        }
        Ok(Lease {
            memory: Arc::clone(&self.memory),
        })
    }

    /// Whether a share is out: nobody may write the memory now.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.memory.lending.is_shared()
    }

    /// Waits until no share is out any more.
    ///
    /// # Errors
    /// [`LeaseError::StillRead`]: one is, at `deadline`.
    pub fn wait_for_shares(&self, deadline: Instant) -> Result<(), LeaseError> {
        match self.memory.lending.wait_for_shares(deadline) {
            true => Ok(()),
            false => Err(LeaseError::StillRead),
        }
    }

    /// Read access for as long as the share lives, to what was computed so far; tensor operations may read beside it. What one writes
    /// meanwhile (ask [`FlatBuffer::is_shared`]) is what the share reads from then on.
    ///
    /// # Errors
    /// Leased, or the driver refuses.
    pub fn share(&self) -> Result<Share, LeaseError> {
        let device = match &self.apart {
            Some((tensor, streams)) => Some(DeviceReader::new(*streams, tensor)?),
            None => None,
        };
        if !self.memory.lending.share() {
            return Err(LeaseError::Taken);
        }
        Ok(Share {
            memory: Arc::clone(&self.memory),
            device,
            holds_up: true,
        })
    }

    /// As [`FlatBuffer::share`], of a copy that the device makes beside the buffer: nobody waits for who reads it. Where the host's memory is the
    /// device's it is a share.
    ///
    /// # Errors
    /// Leased, there is no memory for the copy, or the driver refuses.
    pub fn share_copy(&self) -> Result<Share, LeaseError> {
        let Some((tensor, streams)) = &self.apart else {
            return self.share();
        };
        if self.is_leased() {
            return Err(LeaseError::Taken);
        }
        let refused = |e: tch::TchError| TorchError(e.to_string());
        let mut apart = tensor.detach().f_empty_like().map_err(refused)?;
        apart.f_copy_(&tensor.detach()).map_err(refused)?;
        Ok(Share {
            // Its reader keeps nobody from the buffer's own memory.
            memory: Arc::new(Memory::new(self.len())),
            device: Some(DeviceReader::new(*streams, &apart)?),
            holds_up: false,
        })
    }
}

/// Exclusive access to a [`FlatBuffer`]; may be sent to another thread. Ranges count elements, and those that the buffer does not have
/// panic, as a slice's do.
///
/// ```
/// use varuna_torch::{Device, FlatBuffer, Streams};
/// let buffer = FlatBuffer::zeros(4, Device::Cpu, Streams::HOST).unwrap();
/// let mut lease = buffer.lease().unwrap();
/// lease.set(1, &[2.0, 3.0]);
/// lease.add(2, &[0.5]);
/// assert_eq!(lease.copy(0..4), [0.0, 2.0, 3.5, 0.0]);
/// ```
///
/// There is no reference to the elements, which a tensor over them could write behind:
///
/// ```compile_fail,E0277
/// use varuna_torch::{Device, FlatBuffer, Streams};
/// fn elements(of: &mut impl AsMut<[f32]>) -> &mut [f32] { of.as_mut() }
/// let buffer = FlatBuffer::zeros(4, Device::Cpu, Streams::HOST).unwrap();
/// let mut tensor = buffer.tensor().unwrap();
/// let mut lease = buffer.lease().unwrap();
/// let aliased = elements(&mut lease);
/// let _ = tensor.fill_(1.0);
/// aliased[0] = 2.0;
/// ```
pub struct Lease {
    memory: Arc<Memory>,
}

impl Lease {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory.len
    }

    /// True for a buffer without elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.memory.len == 0
    }

    /// A copy of some elements.
    #[must_use]
    pub fn copy(&self, range: Range<usize>) -> Vec<f32> {
        // SAFETY: this lease is out, and the reference ends here.
        unsafe { self.memory.elements()[range].to_vec() }
    }

    /// Begins to copy the elements to a tensor on a device, as [`Streams::copy_to_device`] does. They are read before this returns.
    ///
    /// # Errors
    /// As those of [`Streams::copy_to_device`].
    pub fn copy_to_device(&self, streams: Streams, into: Tensor) -> Result<HostToDeviceCopy, TorchError> {
        // SAFETY: this lease is out, and the reference ends here.
        let elements = unsafe { self.memory.elements() };
        streams.copy_to_device(elements, into)
    }

    /// Replaces the elements from `start` on.
    pub fn set(&mut self, start: usize, values: &[f32]) {
        self.elements()[start..start + values.len()].copy_from_slice(values);
    }

    /// Adds to the elements from `start` on.
    pub fn add(&mut self, start: usize, values: &[f32]) {
        for (own, value) in self.elements()[start..start + values.len()]
            .iter_mut()
            .zip(values)
        {
            *own += value;
        }
    }

    /// The elements, for the duration of a call of this module.
    fn elements(&mut self) -> &mut [f32] {
        // SAFETY: initialised memory of this length, kept alive by the Arc; the lease is exclusive, `&mut self` makes this its only slice,
        // and it ends before libtorch can run again on this thread.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start().as_ptr(), self.memory.len) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.memory.lending.end_lease();
    }
}

#[cfg(test)]
mod tests;
