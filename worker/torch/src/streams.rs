//! The order of a device's work as the host sees it: marks in what it computes, and copies to and from the host beside that.
//!
//! On the processor work is done when a call returns: a mark is a time, and nothing is copied. On a GPU a mark is an event in the stream
//! where libtorch computes, and copies have pinned memory of their own and a stream for each direction.

mod pinned_pool;

use crate::{Device, OnDevice, TorchError};
use bytemuck::Pod;
use pinned_pool::PinnedPool;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tch::Tensor;
use varuna_cuda::{Context, Copying, CudaError, Event, Libraries, Pinned, Stream};

/// How long the time between two marks is waited for: whoever asks has seen the device's later work.
const MARKED: Duration = Duration::from_secs(10);

/// Elements of a piece of a long range: 4 MiB, whose way over the bus is a hundred times as long as a copy takes to begin.
pub(crate) const PIECE: usize = 1 << 20;

/// Pinned for such a piece, whatever its own length: pieces use each other's.
const PIECE_BYTES: usize = PIECE * size_of::<f32>();

/// How a GPU's copies from and to the host are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Copies {
    /// Through pinned memory, beside what is computed.
    #[default]
    Beside,
    /// Through pinned memory, in turn with what is computed: a comparison.
    InTurn,
    /// By libtorch, from pageable memory, and the host waits; for comparison.
    Pageable,
}

pub(crate) struct Gpu {
    /// The stream with which libtorch computes.
    pub(crate) compute: Stream,
    /// Whether libtorch computes on the processor after all, at once: what is in the stream has to be waited for then.
    pub(crate) host_computes: bool,
    copies: Copies,
    /// Copies to the host; none where they are made in the stream that computes.
    fetches: Option<Stream>,
    /// Copies to the device: one stream for both would let them wait for each other.
    to_device: Option<Stream>,
    /// Pinned memory that no copy uses. Pieces of long ranges all take as much as the longest.
    unused: PinnedPool,
    /// Copies to the device that nobody has seen the end of: their pinned memory must not be written before.
    coming: Mutex<VecDeque<Copying<(Pinned, OnDevice)>>>,
}

/// The streams of a device, by what they are for. They stay until the process ends.
#[derive(Clone, Copy)]
pub struct Streams(Option<&'static Gpu>);

/// A point in what a device computes.
pub struct Mark(Point);

enum Point {
    Host(Instant),
    Gpu(Event),
}

/// A tensor on its way to the host.
pub struct Fetch {
    copying: Copying<(Pinned, OnDevice)>,
    /// Bytes of the tensor; its pinned memory may be longer.
    bytes: usize,
    gpu: &'static Gpu,
}

/// A tensor whose elements are on their way from the host.
pub struct HostToDeviceCopy {
    tensor: Tensor,
    /// The end of the copy; none if it has arrived.
    arrival: Option<(Event, &'static Gpu)>,
}

fn refused(error: CudaError) -> TorchError {
    TorchError(error.to_string())
}

impl Streams {
    /// The streams of the processor, which has none.
    pub const HOST: Streams = Streams(None);

    /// Streams of the GPU of this number. Where `device` is another, its memory is the processor's, which has computed when it hands a tensor over.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn open(
        libraries: &Libraries,
        device: Device,
        number: usize,
        copies: Copies,
    ) -> Result<Streams, CudaError> {
        let context: Arc<Context> = Context::open(libraries, number)?;
        let host_computes = !matches!(device, Device::Cuda(_));
        let compute = match host_computes {
            false => Stream::default_of(&context),
            true => Stream::new(&context)?,
        };
        let of_its_own = || (copies == Copies::Beside).then(|| Stream::new(&context));
        Ok(Streams(Some(Box::leak(Box::new(Gpu {
            compute,
            host_computes,
            copies,
            fetches: of_its_own().transpose()?,
            to_device: of_its_own().transpose()?,
            unused: PinnedPool::default(),
            coming: Mutex::default(),
        })))))
    }

    pub(crate) fn gpu(self) -> Option<&'static Gpu> {
        self.0
    }

    /// The GPU, where copies go through pinned memory.
    pub(crate) fn pinning(self) -> Option<&'static Gpu> {
        self.0.filter(|gpu| gpu.copies != Copies::Pageable)
    }

    /// Whether work goes on after a call has returned.
    #[must_use]
    pub fn are_late(self) -> bool {
        self.0.is_some()
    }

    /// Bytes of pinned memory that wait for the next copy.
    #[must_use]
    pub fn pinned_bytes(self) -> usize {
        self.0.map_or(0, |gpu| gpu.unused.bytes())
    }

    /// Gives pinned memory of sizes that no copy has asked for since the last call back to the system: another plan has other sizes. Also lets go of the
    /// tensors that were copied to, which the next such copy would do: it may never come.
    pub fn release_unused(self) {
        if let Some(gpu) = self.0 {
            // Whoever computes with the tensor of a copy that failed finds out.
            let _ = gpu.reclaim();
            gpu.unused.release_unused();
        }
    }

    /// A mark behind what was computed so far.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn mark(self) -> Result<Mark, TorchError> {
        Ok(Mark(match self.0 {
            None => Point::Host(Instant::now()),
            Some(gpu) => Point::Gpu(gpu.compute.record_timed().map_err(refused)?),
        }))
    }

    /// Begins to copy a tensor's elements, in their order, to pinned memory, after what was computed so far and beside what comes next. None on
    /// the processor, whose memory is the host's, and with [`Copies::Pageable`]. Nobody changes the tensor until the copy has ended.
    ///
    /// # Errors
    /// There is no memory to pin, or the driver refuses.
    pub fn fetch(self, tensor: &Tensor) -> Result<Option<Fetch>, TorchError> {
        let Some(gpu) = self.pinning() else {
            return Ok(None);
        };
        let memory = OnDevice::over(&tensor.detach().contiguous())?;
        // What made the tensor lie in one piece comes before this, too.
        let computed = gpu.computed()?;
        let room = varuna_cuda::DeviceMemory::bytes(&memory);
        gpu.fetch(memory, room, &computed).map(Some).map_err(refused)
    }

    /// Begins to copy elements, whose bits are the tensor's, to a tensor that lies in one piece, through pinned memory, after what was computed so far and
    /// beside what comes next. Nobody uses the tensor but through what this returns. On the processor, and with [`Copies::Pageable`], all is
    /// copied when this returns.
    ///
    /// # Errors
    /// The bytes are not as many as the tensor's, there is no memory to pin, or the driver refuses.
    pub fn copy_to_device<T: Pod>(
        self,
        elements: &[T],
        into: Tensor,
    ) -> Result<HostToDeviceCopy, TorchError> {
        let bytes: &[u8] = bytemuck::cast_slice(elements);
        self.copy_bytes_to_device(bytes, bytes.len(), into)
    }

    /// Like [`Streams::copy_to_device`], for at most [`PIECE`] floats.
    pub(crate) fn copy_piece_to_device(
        self,
        elements: &[f32],
        into: Tensor,
    ) -> Result<HostToDeviceCopy, TorchError> {
        self.copy_bytes_to_device(bytemuck::cast_slice(elements), PIECE_BYTES, into)
    }

    /// `room` is how much memory is pinned for them.
    fn copy_bytes_to_device(
        self,
        bytes: &[u8],
        room: usize,
        into: Tensor,
    ) -> Result<HostToDeviceCopy, TorchError> {
        let memory = OnDevice::over(&into)?;
        let own = varuna_cuda::DeviceMemory::bytes(&memory);
        if own != bytes.len() {
            let given = bytes.len();
            return Err(TorchError(format!("{given} bytes for a tensor of {own}")));
        }
        let arrival = match self.pinning() {
            None => {
                copy_bytes(&into, bytes)?;
                None
            }
            Some(gpu) => Some((gpu.copy_to_device(bytes, room, memory).map_err(refused)?, gpu)),
        };
        Ok(HostToDeviceCopy {
            tensor: into,
            arrival,
        })
    }
}

impl Gpu {
    fn pinned(&self, bytes: usize) -> Result<Pinned, CudaError> {
        let bytes = bytes.max(1);
        match self.unused.take(bytes) {
            Some(pinned) => Ok(pinned),
            None => Pinned::new(self.compute.context(), bytes),
        }
    }

    /// A point behind what was computed so far.
    pub(crate) fn computed(&self) -> Result<Event, TorchError> {
        self.compute.record().map_err(refused)
    }

    /// Begins to copy memory to the host, after this point of what is computed. `room` is how much is pinned for it.
    fn fetch(&'static self, memory: OnDevice, room: usize, computed: &Event) -> Result<Fetch, CudaError> {
        let bytes = varuna_cuda::DeviceMemory::bytes(&memory);
        let stream = match &self.fetches {
            None => &self.compute,
            Some(own) => {
                own.wait(computed)?;
                own
            }
        };
        let copying = self.pinned(room)?.copy_from(memory, stream)?;
        Ok(Fetch {
            copying,
            bytes,
            gpu: self,
        })
    }

    /// The same for a tensor of at most [`PIECE`] floats that lies in one piece.
    pub(crate) fn fetch_piece(&'static self, tensor: &Tensor, computed: &Event) -> Result<Fetch, TorchError> {
        let memory = OnDevice::over(tensor)?;
        self.fetch(memory, PIECE_BYTES, computed).map_err(refused)
    }

    /// The point behind the copy. The memory stays with the copy until the device has made it.
    fn copy_to_device(&self, bytes: &[u8], room: usize, memory: OnDevice) -> Result<Event, CudaError> {
        self.reclaim()?;
        let mut pinned = self.pinned(room)?;
        pinned.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        // What was computed so far may still use what lay in the tensor's memory before.
        let stream = self.after_compute(self.to_device.as_ref())?;
        let copying = pinned.copy_to(memory, stream)?;
        let arrival = stream.record()?;
        self.coming().push_back(copying);
        Ok(arrival)
    }

    /// The stream of a copy that comes after what was computed so far.
    fn after_compute<'a>(&'a self, own: Option<&'a Stream>) -> Result<&'a Stream, CudaError> {
        let Some(stream) = own else {
            return Ok(&self.compute);
        };
        stream.wait(&self.compute.record()?)?;
        Ok(stream)
    }

    /// Takes the pinned memory back whose copies the device has made.
    fn reclaim(&self) -> Result<(), CudaError> {
        loop {
            let mut coming = self.coming();
            let Some(copying) = coming.pop_front_if(|first| first.has_ended()) else {
                return Ok(());
            };
            drop(coming);
            let (pinned, memory) = copying.finish(Instant::now())?;
            drop(memory);
            self.unused.give_back(pinned);
        }
    }

    fn coming(&self) -> MutexGuard<'_, VecDeque<Copying<(Pinned, OnDevice)>>> {
        self.coming.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mark {
    /// How long the device worked from the other mark to this one.
    ///
    /// # Errors
    /// The driver refuses, or the device does not come to this one.
    pub fn since(&self, earlier: &Mark) -> Result<Duration, TorchError> {
        match (&self.0, &earlier.0) {
            (Point::Host(end), Point::Host(start)) => Ok(end.saturating_duration_since(*start)),
            (Point::Gpu(end), Point::Gpu(start)) => {
                let waited = end.wait("what was marked", Instant::now() + MARKED);
                waited.and_then(|()| end.since(start)).map_err(refused)
            }
            _ => Err(TorchError("marks of two devices".into())),
        }
    }

    /// Whether the device has come to it.
    ///
    /// # Errors
    /// The driver reports an error of earlier work.
    pub fn is_reached(&self) -> Result<bool, TorchError> {
        match &self.0 {
            Point::Host(_) => Ok(true),
            Point::Gpu(event) => event.is_done().map_err(refused),
        }
    }
}

/// Copies bytes to a tensor's elements in their order, and waits for that.
fn copy_bytes(into: &Tensor, bytes: &[u8]) -> Result<(), TorchError> {
    let (size, kind) = (into.size(), into.kind());
    let host = Tensor::f_from_data_size(bytes, &size, kind).map_err(|e| TorchError(e.to_string()))?;
    crate::copy(into, &host)
}

impl HostToDeviceCopy {
    /// The tensor: what is computed with it from here on comes after the copy.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn arrive(self) -> Result<Tensor, TorchError> {
        if let Some((arrival, gpu)) = self.arrival {
            gpu.compute.wait(&arrival).map_err(refused)?;
            if gpu.host_computes {
                let waited = arrival.wait("a copy to the device", Instant::now() + MARKED);
                waited.map_err(refused)?;
            }
        }
        Ok(self.tensor)
    }
}

impl HostToDeviceCopy {
    /// Waits until the copy is made.
    ///
    /// # Errors
    /// The deadline passed, or the driver reports an error of earlier work.
    pub(crate) fn made(self, deadline: Instant) -> Result<(), TorchError> {
        if let Some((arrival, _)) = &self.arrival {
            arrival.wait("a copy to the device", deadline).map_err(refused)?;
        }
        self.arrive().map(drop)
    }
}

impl Fetch {
    /// Whether it has arrived, or never will.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.copying.has_ended()
    }

    /// Waits until it has arrived, and hands its elements on.
    ///
    /// # Errors
    /// The deadline passed, or the driver reports an error of earlier work.
    pub fn finish<T: Pod, R>(self, deadline: Instant, take: impl FnOnce(&[T]) -> R) -> Result<R, TorchError> {
        let (pinned, memory) = self.copying.finish(deadline).map_err(refused)?;
        drop(memory);
        let elements = bytemuck::try_cast_slice(&pinned.as_slice()[..self.bytes]);
        let taken = elements
            .map(take)
            .map_err(|e| TorchError(format!("pinned memory: {e}")));
        self.gpu.unused.give_back(pinned);
        taken
    }
}

impl std::fmt::Debug for Streams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            None => f.write_str("the host's"),
            Some(gpu) => write!(f, "a GPU's, copies {:?}", gpu.copies),
        }
    }
}
