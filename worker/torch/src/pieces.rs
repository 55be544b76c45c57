//! Long ranges of numbers between a device's memory and the host's: piece by piece, through a bounded amount of pinned memory, beside what is
//! computed. A unit's state has gigabytes; pinned memory for all of it would be taken from whatever else runs on the machine.

use crate::streams::{Bring, Fetch, Gpu, PIECE};
use crate::{Streams, TorchError, vec_from_tensor};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};
use tch::Tensor;
use varuna_cuda::Event;

/// Pieces of one range that are on their way at once: one is copied by the device while the host copies the other.
const AT_ONCE: usize = 2;

/// How long a piece may take. It waits for what was computed before, which is a step at most; a device that takes longer hangs.
const STUCK: Duration = Duration::from_secs(60);

/// Reads a device's memory as it was when this was made, as long as nobody changes it.
pub(crate) struct DeviceReader {
    tensor: Tensor,
    /// Where copies are made and what they come after; none where libtorch makes them, after all that it was told to compute.
    pinning: Option<(&'static Gpu, Event)>,
}

impl DeviceReader {
    /// Of a flat tensor of floats, after what was computed so far.
    ///
    /// # Errors
    /// The driver refuses.
    pub(crate) fn new(streams: Streams, tensor: &Tensor) -> Result<DeviceReader, TorchError> {
        let pinning = match streams.pinning() {
            None => None,
            Some(gpu) => Some((gpu, gpu.computed()?)),
        };
        let tensor = tensor.detach();
        Ok(DeviceReader { tensor, pinning })
    }

    /// Hands some elements on in their order, piece by piece. May be called from any thread.
    ///
    /// # Errors
    /// The tensor does not have them, there is no memory to pin, or the driver reports an error.
    pub(crate) fn read(&self, range: Range<usize>, mut take: impl FnMut(&[f32])) -> Result<(), TorchError> {
        let Some((gpu, computed)) = &self.pinning else {
            for piece in pieces(range) {
                take(&vec_from_tensor::<f32>(&part(&self.tensor, piece)?)?);
            }
            return Ok(());
        };
        let mut on_their_way: VecDeque<Fetch> = VecDeque::new();
        for piece in pieces(range) {
            if on_their_way.len() == AT_ONCE {
                arrive(&mut on_their_way, &mut take)?;
            }
            on_their_way.push_back(gpu.fetch_piece(&part(&self.tensor, piece)?, computed)?);
        }
        while !on_their_way.is_empty() {
            arrive(&mut on_their_way, &mut take)?;
        }
        Ok(())
    }
}

/// Waits for the first piece, and hands it on.
fn arrive(on_their_way: &mut VecDeque<Fetch>, take: &mut impl FnMut(&[f32])) -> Result<(), TorchError> {
    match on_their_way.pop_front() {
        Some(first) => first.finish(Instant::now() + STUCK, take),
        None => Ok(()),
    }
}

/// Replaces the first elements of a flat tensor of floats, after what was computed so far. What is computed with it from here on comes after that.
///
/// # Errors
/// It has fewer, there is no memory to pin, or the driver reports an error.
pub(crate) fn write(streams: Streams, elements: &[f32], into: &Tensor) -> Result<(), TorchError> {
    let mut coming: VecDeque<Bring> = VecDeque::new();
    for piece in pieces(0..elements.len()) {
        if coming.len() == AT_ONCE {
            // Its pinned memory takes the next piece.
            coming
                .pop_front()
                .map_or(Ok(()), |b| b.made(Instant::now() + STUCK))?;
        }
        let to = part(into, piece.clone())?;
        coming.push_back(streams.bring_piece(&elements[piece], to)?);
    }
    coming.into_iter().try_for_each(|b| b.arrive().map(drop))
}

fn pieces(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range
        .step_by(PIECE)
        .map(move |start| start..end.min(start + PIECE))
}

/// Some elements of a flat tensor: a view.
fn part(of: &Tensor, range: Range<usize>) -> Result<Tensor, TorchError> {
    let number = |n: usize| i64::try_from(n).map_err(|_| TorchError("too many elements".into()));
    let view = of.f_narrow(0, number(range.start)?, number(range.len())?);
    view.map_err(|e| TorchError(e.to_string()))
}
