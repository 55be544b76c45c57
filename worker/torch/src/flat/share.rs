//! Read access to flat memory, for other threads.

use super::memory::Memory;
use crate::TorchError;
use crate::pieces::DeviceReader;
use crate::streams::PIECE;
use std::ops::Range;
use std::sync::Arc;

/// Elements that are read at once from the host's memory: 64 KiB are still in the processor's cache when they have been copied, and are
/// enough for the widest instructions of whoever computes with them.
const CACHED: usize = 1 << 14;

/// Read access to a [`FlatBuffer`](super::FlatBuffer); may be sent to another thread. As with a [`Lease`](super::Lease), elements leave as copies:
///
/// ```compile_fail,E0277
/// use varuna_torch::{Device, FlatBuffer, Streams};
/// fn elements(of: &impl AsRef<[f32]>) -> &[f32] { of.as_ref() }
/// let buffer = FlatBuffer::zeros(4, Device::Cpu, Streams::HOST).unwrap();
/// let share = buffer.share().unwrap();
/// let read = elements(&share);
/// let _ = buffer.tensor().unwrap().fill_(1.0);
/// assert_eq!(read[0], 0.0);
/// ```
pub struct Share {
    pub(super) memory: Arc<Memory>,
    /// Where the device has memory of its own.
    pub(super) device: Option<DeviceReader>,
    /// Whether it is of the buffer itself, which nobody may write meanwhile.
    pub(super) holds_up: bool,
}

impl Share {
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

    /// How many elements are best read at once by who needs them only for a moment.
    #[must_use]
    pub fn piece(&self) -> usize {
        match self.device {
            Some(_) => PIECE,
            None => CACHED,
        }
    }

    /// Appends a copy of some elements to `to`. On a device with memory of its own it goes on beside what is computed since the share was made.
    ///
    /// # Errors
    /// The driver reports an error, or the device hangs; some elements may have been appended.
    ///
    /// # Panics
    /// The buffer does not have them, as with a slice.
    pub fn append(&self, range: Range<usize>, to: &mut Vec<f32>) -> Result<(), TorchError> {
        let Some(device) = &self.device else {
            // SAFETY: this share is out, and the reference ends here.
            to.extend_from_slice(unsafe { &self.memory.elements()[range] });
            return Ok(());
        };
        let (end, len) = (range.end, self.memory.len);
        assert!(end <= len, "elements up to {end} of a buffer of {len}");
        device.read(range, |piece| to.extend_from_slice(piece))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.holds_up {
            self.memory.lending.end_share();
        }
    }
}
