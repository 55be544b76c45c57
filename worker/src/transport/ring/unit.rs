//! The ring of one unit: which slice goes where in which round.

use crate::transport::{Address, ElementFormat, Link, LinkError, Packet, Tag};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Instant;
use varuna_plan::{Step, Unit, WorkerId};
use varuna_torch::Lease;

/// Elements of a slice, about: 1 MiB. Larger units are reduced in several pieces, so that one is summed while others are sent.
pub(super) const SLICE: usize = 1 << 18;
/// Elements of the longest message of a ring: a slice, and what does not divide evenly.
pub const MESSAGE_ELEMENTS: u32 = SLICE as u32 + 1;
/// Pieces of one unit in progress at once. It limits what waits at the neighbours.
pub(super) const WINDOW: usize = 8;
/// Pieces of all units together, except the first one of each. A thread that waits for room at its neighbour receives nothing meanwhile. If
/// all members of a ring did so, they would wait for each other until the step's deadline. Each piece has as many messages of 1 MiB on
/// their way as members have it in progress, and the queue and mailbox between two neighbours have room for more than 500: for these
/// pieces, and for the first pieces of some 450 units. The first piece of a unit always begins, however many units there are: otherwise two
/// workers could each have begun what the other has not. So there is room for all, as long as a worker sums no more units at once than
/// that. Smaller units need less room.
pub(super) const PIECES: usize = 64;

/// The part of a unit's reduction that is in progress.
pub(super) struct Flight {
    pieces: usize,
    /// [`PIECES`], but in tests.
    most: usize,
}

impl Flight {
    pub(super) fn new(most: usize) -> Flight {
        Flight { pieces: 0, most }
    }
}

/// Elements that are summed in place. Ranges lie within them.
pub trait Summands: Send {
    /// Number of elements.
    fn elements(&self) -> usize;
    /// A copy of some of them.
    fn copy(&self, range: Range<usize>) -> Vec<f32>;
    /// Replaces those from `start` on.
    fn set(&mut self, start: usize, values: &[f32]);
    /// Adds to those from `start` on.
    fn add(&mut self, start: usize, values: &[f32]);
}

impl Summands for Vec<f32> {
    fn elements(&self) -> usize {
        self.len()
    }

    fn copy(&self, range: Range<usize>) -> Vec<f32> {
        self[range].to_vec()
    }

    fn set(&mut self, start: usize, values: &[f32]) {
        self[start..start + values.len()].copy_from_slice(values);
    }

    fn add(&mut self, start: usize, values: &[f32]) {
        for (own, value) in self[start..start + values.len()].iter_mut().zip(values) {
            *own += value;
        }
    }
}

impl Summands for Lease {
    fn elements(&self) -> usize {
        self.len()
    }

    fn copy(&self, range: Range<usize>) -> Vec<f32> {
        Lease::copy(self, range)
    }

    fn set(&mut self, start: usize, values: &[f32]) {
        Lease::set(self, start, values);
    }

    fn add(&mut self, start: usize, values: &[f32]) {
        Lease::add(self, start, values);
    }
}

/// Who sums a unit, and who needs which part of the sum.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RingOf {
    /// The members, in the same order on all of them.
    pub members: Vec<WorkerId>,
    /// The slices of the buffer that go round, one for each member: where each begins, and where the last ends. None: equal ones.
    pub slices: Option<Vec<usize>>,
    /// Whether the member at place p needs only the sums of slices p and p + 1, as [`varuna_plan::Layout::places_in`] divides them;
    /// otherwise each needs all.
    pub is_shared: bool,
}

impl From<Vec<WorkerId>> for RingOf {
    fn from(members: Vec<WorkerId>) -> RingOf {
        RingOf {
            members,
            slices: None,
            is_shared: false,
        }
    }
}

/// The reduction of one unit.
pub(super) struct Ring<B> {
    step: Step,
    pub(super) unit: Unit,
    pub(super) group: Vec<WorkerId>,
    position: usize,
    /// Where the slices begin, and where the last ends.
    cuts: Vec<usize>,
    /// Rounds of all-gather.
    gathers: usize,
    pub(super) buffer: B,
    pub(super) deadline: Instant,
    /// Number of pieces of the buffer, the same for all holders.
    pieces: usize,
    /// The first piece that has not started. Pieces start in order, so the earliest unfinished one is in progress everywhere.
    next: usize,
    /// Pieces in progress, by number.
    active: BTreeMap<usize, Piece>,
}

/// A part of the buffer that is reduced independently.
#[derive(Clone, Copy)]
struct Piece {
    index: usize,
    /// Rounds received so far.
    round: usize,
}

impl<B: Summands> Ring<B> {
    pub(super) fn new(
        step: Step,
        unit: Unit,
        (of, position): (RingOf, usize),
        buffer: B,
        deadline: Instant,
    ) -> Self {
        let RingOf {
            members: group,
            slices,
            is_shared,
        } = of;
        let (elements, size) = (buffer.elements(), group.len());
        let others = size.saturating_sub(1);
        let equal = || (0..=size).map(|i| i * elements / size).collect();
        let cuts = slices.unwrap_or_else(equal);
        let gathers = if is_shared { others.min(1) } else { others };
        let longest = cuts.windows(2).map(|cut| cut[1] - cut[0]).max().unwrap_or(0);
        let pieces = longest.div_ceil(SLICE).max(1);
        Ring {
            step,
            unit,
            group,
            position,
            cuts,
            gathers,
            buffer,
            deadline,
            pieces,
            next: 0,
            active: BTreeMap::new(),
        }
    }

    fn size(&self) -> usize {
        self.group.len()
    }

    fn rounds(&self) -> usize {
        self.size() - 1 + self.gathers
    }

    /// Starts pieces up to the window, as far as all units together leave room, and notes what they wait for.
    pub(super) fn fill(
        &mut self,
        link: &dyn Link,
        awaited: &mut BTreeSet<Address>,
        flight: &mut Flight,
    ) -> Result<(), LinkError> {
        while self.next < self.pieces && self.may_begin(flight) {
            let piece = Piece {
                index: self.next,
                round: 0,
            };
            self.next += 1;
            flight.pieces += 1;
            self.continue_round(link, piece, awaited)?;
        }
        Ok(())
    }

    /// Whether another piece of the unit may begin.
    fn may_begin(&self, flight: &Flight) -> bool {
        let has_room = self.active.len() < WINDOW && flight.pieces < flight.most;
        has_room || self.active.is_empty()
    }

    /// Rounds are numbered consecutively over all pieces.
    fn tag(&self, piece: Piece) -> Tag {
        let round = piece.index * self.rounds() + piece.round;
        Tag::Ring {
            step: self.step,
            unit: self.unit,
            round: u32::try_from(round).unwrap_or(u32::MAX),
        }
    }

    fn awaited(&self, piece: Piece) -> Address {
        (
            self.group[(self.position + self.size() - 1) % self.size()],
            self.tag(piece),
        )
    }

    /// The part of a slice that this worker sends in the piece's present round (`back` = 0), or receives (`back` = 1).
    fn slice(&self, piece: Piece, back: usize) -> Range<usize> {
        let (size, round) = (self.size(), piece.round);
        // All-gather starts with the slice that reduce-scatter has completed here, (position + 1).
        let index = (self.position + 2 * size - round % (size - 1) - back + round / (size - 1)) % size;
        let (start, length) = (self.cuts[index], self.cuts[index + 1] - self.cuts[index]);
        let part = |piece: usize| start + piece * length / self.pieces;
        part(piece.index)..part(piece.index + 1)
    }

    /// Sends a round's slice, and notes what comes back.
    fn continue_round(
        &mut self,
        link: &dyn Link,
        piece: Piece,
        awaited: &mut BTreeSet<Address>,
    ) -> Result<(), LinkError> {
        self.send(link, piece)?;
        awaited.insert(self.awaited(piece));
        self.active.insert(piece.index, piece);
        Ok(())
    }

    fn send(&self, link: &dyn Link, piece: Piece) -> Result<(), LinkError> {
        let slice = self.slice(piece, 0);
        let payload = self.buffer.copy(slice);
        let right = self.group[(self.position + 1) % self.size()];
        link.send(right, self.tag(piece), payload.into(), self.deadline)
    }

    /// Handles the message of a round, as tags number them, and sends the next. Returns whether the unit is complete.
    pub(super) fn receive(
        &mut self,
        link: &dyn Link,
        (round, packet): (u32, Packet),
        awaited: &mut BTreeSet<Address>,
        flight: &mut Flight,
    ) -> Result<bool, LinkError> {
        let Some(mut piece) = self.active.remove(&(round as usize / self.rounds())) else {
            return Ok(self.active.is_empty());
        };
        let slice = self.slice(piece, 1);
        let gathers = piece.round + 1 >= self.size();
        let values = match packet {
            Packet::Float32(values) if values.len() == slice.len() => values,
            // Only a peer with another model sends this; the sum would be wrong.
            other => {
                let own = (slice.len(), ElementFormat::Float32);
                return Err(LinkError::unfit(&other, self.awaited(piece), own));
            }
        };
        if gathers {
            self.buffer.set(slice.start, &values);
        } else {
            self.buffer.add(slice.start, &values);
        }
        piece.round += 1;
        if piece.round < self.rounds() {
            self.continue_round(link, piece, awaited)?;
        } else {
            flight.pieces = flight.pieces.saturating_sub(1);
            self.fill(link, awaited, flight)?;
        }
        Ok(self.active.is_empty())
    }
}
