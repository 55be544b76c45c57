//! The host's memory behind a flat buffer.

use crate::lending::Lending;
use crate::{TorchError, from_memory, scalar_type};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use tch::{Kind, Tensor};

/// One cache line, so that the memory is aligned for vector instructions.
const ALIGNMENT: usize = 64;

/// A buffer's elements in the host's memory, and who has them.
pub(super) struct Memory {
    pub(super) len: usize,
    pub(super) lending: Lending,
    /// Where the elements begin in the region.
    first: usize,
    region: Arc<Region>,
}

/// Memory that one buffer has, or several of which each has a part.
struct Region {
    len: usize,
    /// Taken when it is first needed: where the device has memory of its own, most buffers never need it.
    block: OnceLock<Block>,
}

/// Owned through a raw pointer, because tensors and leases alias it in turn.
struct Block {
    start: NonNull<f32>,
    owner: Owner,
}

/// How a block's memory was taken.
enum Owner {
    /// By `alloc_zeroed` with this layout.
    Zeros(Layout),
    /// As a boxed slice of this length.
    Values(usize),
}

// SAFETY: plain floats, and references to them live within calls of this module alone. A lease of an element exists at most once and beside no
// share, since parts of a region do not overlap, and handing it to another thread and back (over a channel) orders the accesses. Tensors over
// the memory are as two of tch's over one storage: tch, too, lets them be sent to another thread, and leaves it to the caller not to change them
// from two threads at once.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Memory {
    /// Memory for this many elements. It takes no pages before they are written.
    pub(super) fn new(len: usize) -> Memory {
        Memory::whole(Region {
            len,
            block: OnceLock::new(),
        })
    }

    /// The memory of these values, which need not be aligned for more than a float.
    pub(super) fn of(values: Vec<f32>) -> Memory {
        Memory::whole(Region {
            len: values.len(),
            block: OnceLock::from(Block::of(values)),
        })
    }

    fn whole(region: Region) -> Memory {
        Memory {
            len: region.len,
            lending: Lending::new(),
            first: 0,
            region: Arc::new(region),
        }
    }

    /// Some of the elements, in the same memory. Who has them is counted apart: see [`PartedBuffer`](super::PartedBuffer).
    ///
    /// # Panics
    /// There are fewer, as with a slice.
    pub(super) fn part(&self, range: &Range<usize>) -> Memory {
        let (start, end, len) = (range.start, range.end, self.len);
        assert!(start <= end && end <= len, "elements {range:?} of {len}");
        Memory {
            len: range.len(),
            lending: Lending::new(),
            first: self.first + start,
            region: Arc::clone(&self.region),
        }
    }

    /// Where the elements begin; at first they are zero.
    pub(super) fn start(&self) -> NonNull<f32> {
        let region = &self.region;
        let start = region.block.get_or_init(|| Block::zeros(region.len)).start;
        // SAFETY: `new` and `part` see to it that the elements lie within the region.
        unsafe { start.add(self.first) }
    }

    /// Whether the elements take memory of the host.
    #[cfg(test)]
    pub(super) fn is_taken(&self) -> bool {
        self.region.block.get().is_some()
    }

    /// The elements.
    ///
    /// # Safety
    /// The reference ends within the call that takes it, in which nothing of libtorch runs, and a lease or a share is out.
    pub(super) unsafe fn elements(&self) -> &[f32] {
        // SAFETY: initialised memory of this length that lives as long as `self`; who could write it is kept out by the contract above.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.len) }
    }
}

impl Block {
    fn zeros(len: usize) -> Block {
        let bytes = len
            .max(1)
            .checked_mul(size_of::<f32>())
            .expect("a buffer's size fits into usize");
        let layout = Layout::from_size_align(bytes, ALIGNMENT).expect("a buffer's size fits into isize");
        // SAFETY: the size is not zero.
        let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
            handle_alloc_error(layout)
        };
        Block {
            start: start.cast(),
            owner: Owner::Zeros(layout),
        }
    }

    fn of(values: Vec<f32>) -> Block {
        let len = values.len();
        let start = NonNull::from(Box::leak(values.into_boxed_slice())).cast();
        Block {
            start,
            owner: Owner::Values(len),
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let start = self.start.as_ptr();
        match self.owner {
            // SAFETY: from `alloc_zeroed` with this layout; every tensor and lease holds an Arc of a memory in the region, so none is left.
            Owner::Zeros(layout) => unsafe { dealloc(start.cast(), layout) },
            // SAFETY: from a boxed slice of this length that was leaked; as above, nobody else has it any more.
            Owner::Values(len) => {
                drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(start, len)) })
            }
        }
    }
}

/// A flat tensor over the host's memory.
pub(super) fn host_tensor(memory: &Arc<Memory>) -> Result<Tensor, TorchError> {
    extern "C" fn release(context: *mut c_void) {
        // SAFETY: `context` comes from Arc::into_raw below, and libtorch calls this once.
        drop(unsafe { Arc::from_raw(context.cast::<Memory>().cast_const()) });
    }
    let len = i64::try_from(memory.len).map_err(|_| TorchError("too many elements".into()))?;
    let float = scalar_type(Kind::Float)?;
    let context = Arc::into_raw(Arc::clone(memory)).cast_mut().cast();
    let data = memory.start().as_ptr().cast();
    from_memory(data, float, &[len], release, context)
}
