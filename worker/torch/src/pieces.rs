//! Long ranges of numbers between a device's memory and the host's: piece by piece, through a bounded amount of pinned memory, beside what is
//! computed. A unit's state has gigabytes; pinned memory for all of it would be taken from whatever else runs on the machine.

use crate::streams::{Fetch, Gpu, HostToDeviceCopy, PIECE};
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

/// How long a piece that nobody wants any more may take, because another one has failed.
const ENDING: Duration = Duration::from_secs(5);

/// Reads a device's memory as it was when this was made, as long as nobody changes it.
pub(crate) struct DeviceReader {
    tensor: Tensor,
    /// Where copies are made and what they come after; none where libtorch makes them, after all that it was told to compute.
    pinning: Option<(&'static Gpu, Event)>,
}

impl DeviceReader {
    /// Reads a flat tensor of floats, after what was computed so far.
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
        let gpu: &'static Gpu = gpu;
        let fetch = |piece| gpu.fetch_piece(&part(&self.tensor, piece)?, computed);
        let arrive = |first: Fetch| first.finish(Instant::now() + STUCK, |piece: &[f32]| take(piece));
        // A copy that is not waited for would lose its memory: the pinned piece, and the whole tensor with it.
        let abandon = |other: Fetch| drop(other.finish(Instant::now() + ENDING, |_: &[f32]| ()));
        overlapped(pieces(range), fetch, arrive, abandon)
    }
}

/// Begins each piece while the one before it is on its way, and ends them in their order. If one fails, those that are on their way are abandoned, and none is
/// begun any more.
fn overlapped<P, W>(
    pieces: impl Iterator<Item = P>,
    mut begin: impl FnMut(P) -> Result<W, TorchError>,
    mut end: impl FnMut(W) -> Result<(), TorchError>,
    abandon: impl FnMut(W),
) -> Result<(), TorchError> {
    let mut on_their_way: VecDeque<W> = VecDeque::new();
    let all = || -> Result<(), TorchError> {
        for piece in pieces {
            if on_their_way.len() == AT_ONCE
                && let Some(first) = on_their_way.pop_front()
            {
                end(first)?;
            }
            on_their_way.push_back(begin(piece)?);
        }
        while let Some(first) = on_their_way.pop_front() {
            end(first)?;
        }
        Ok(())
    };
    let ended = all();
    on_their_way.into_iter().for_each(abandon);
    ended
}

/// Replaces the first elements of a flat tensor of floats, after what was computed so far. What is computed with it from here on comes after that.
///
/// # Errors
/// The tensor has fewer elements, there is no memory to pin, or the driver reports an error.
pub(crate) fn write(streams: Streams, elements: &[f32], into: &Tensor) -> Result<(), TorchError> {
    let mut coming: VecDeque<HostToDeviceCopy> = VecDeque::new();
    for piece in pieces(0..elements.len()) {
        if coming.len() == AT_ONCE {
            // Its pinned memory takes the next piece.
            coming
                .pop_front()
                .map_or(Ok(()), |b| b.made(Instant::now() + STUCK))?;
        }
        let to = part(into, piece.clone())?;
        coming.push_back(streams.copy_piece_to_device(&elements[piece], to)?);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// What happens with four pieces, of which the one of this number cannot begin, and that one cannot end.
    fn happens(unbegun: Option<u32>, unended: Option<u32>) -> (Vec<String>, bool) {
        let log = RefCell::new(Vec::new());
        let note = |what: &str, piece: u32| log.borrow_mut().push(format!("{what} {piece}"));
        let unless = |fails: Option<u32>, piece: u32| match fails == Some(piece) {
            true => Err(TorchError("for the test".into())),
            false => Ok(piece),
        };
        let begin = |piece| {
            let begun = unless(unbegun, piece)?;
            note("begins", piece);
            Ok(begun)
        };
        let end = |piece| {
            unless(unended, piece)?;
            note("ends", piece);
            Ok(())
        };
        let ended = overlapped(0..4, begin, end, |piece| note("is abandoned", piece));
        (log.take(), ended.is_ok())
    }

    #[test]
    fn two_pieces_are_on_their_way_at_a_time_and_end_in_their_order() {
        let expected = [
            "begins 0", "begins 1", "ends 0", "begins 2", "ends 1", "begins 3", "ends 2", "ends 3",
        ];
        assert_eq!(happens(None, None), (expected.map(str::to_owned).to_vec(), true));
    }

    #[test]
    fn pending_pieces_are_awaited_after_a_failure() {
        let (log, is_well) = happens(Some(1), None);
        assert_eq!(log, ["begins 0", "is abandoned 0"]);
        assert!(!is_well);
        let (log, is_well) = happens(None, Some(0));
        assert_eq!(log, ["begins 0", "begins 1", "is abandoned 1"]);
        assert!(!is_well);
        let (log, is_well) = happens(None, Some(3));
        assert_eq!(log.last().map(String::as_str), Some("ends 2"));
        assert!(!is_well);
    }
}
