//! The begin of a step if workers divide a segment's state among them: each sends the parameters that it owns to the workers that compute
//! with them and do not hold them (the all-gather of ZeRO-1, Rajbhandari et al. 2020).
//!
//! Between devices with communicators they are broadcasts. Otherwise pieces are sent a few ahead of those that are waited for, and units in
//! the same order on all workers. So no memory fills up with parameters that are not needed yet, however large a segment is, and no two
//! workers wait for each other.

use super::super::EngineError;
use super::Run;
use crate::state::{Computing, GatheredUnit};
use crate::transport::Tag;
use crate::transport::ring::MESSAGE_ELEMENTS;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;
use varuna_plan::communicators::parameter_order;
use varuna_plan::{Unit, WorkerId};

/// Elements of a message.
pub(super) const PIECE: usize = MESSAGE_ELEMENTS as usize - 1;
/// Pieces of each unit that are sent before the first is waited for.
const AHEAD: usize = 4;

/// Parameters of a segment that are sent or received: of one range, or of several one after the other.
struct ParameterTransfer {
    /// The first.
    unit: Unit,
    elements: Range<usize>,
    /// The receiver, or the sender.
    peers: Vec<WorkerId>,
}

impl ParameterTransfer {
    fn pieces(&self) -> usize {
        self.elements.len().div_ceil(PIECE)
    }
}

/// Joins adjacent ranges with the same peers. This makes fewer messages, each of which costs a round trip between host and device. Sender
/// and receiver come to the same result, because all ranges of a sender's slice have the same receivers.
fn merge_adjacent(ranges: impl Iterator<Item = ParameterTransfer>) -> Vec<ParameterTransfer> {
    let mut all: Vec<ParameterTransfer> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if last.peers == range.peers && last.elements.end == range.elements.start => {
                last.elements.end = range.elements.end;
            }
            _ => all.push(range),
        }
    }
    all
}

impl Run<'_> {
    /// Sends and takes the parameters of all units of this worker's segments. Those that it holds are there.
    pub(super) fn gather(&mut self, units: Computing<'_>) -> Result<(), EngineError> {
        let start = Instant::now();
        let result = match self.plan.sends_parameters_in(self.step) {
            true => self.gather_first(units),
            false => self.gather_all(units.gathered()),
        };
        self.timings.wait += start.elapsed();
        result
    }

    /// First what goes from device to device, which the devices do beside this.
    fn gather_all(&mut self, gathered: &BTreeMap<Unit, GatheredUnit>) -> Result<(), EngineError> {
        let mut in_pieces = Vec::new();
        for whole in parameter_order(&self.plan.layout) {
            let Some(here) = gathered.get(&whole) else {
                continue;
            };
            if !self.exchange.gather(whole, here)? {
                in_pieces.push((whole, here));
            }
        }
        let mut in_pieces = in_pieces.into_iter();
        in_pieces.try_for_each(|(whole, here)| self.gather_unit(whole, here))
    }

    fn gather_unit(&mut self, whole: Unit, here: &GatheredUnit) -> Result<(), EngineError> {
        let (plan, me) = (self.plan, self.config.me);
        let of = |unit: Unit, peers: Vec<WorkerId>| ParameterTransfer {
            elements: plan.layout.elements_of(unit, here.elements()),
            unit,
            peers,
        };
        let units = || plan.layout.ranges_of(whole);
        let sent = units().map(|unit| of(unit, plan.receivers_of(me, unit)));
        let sent = merge_adjacent(sent.filter(|range| !range.peers.is_empty()));
        let received = units().filter_map(|unit| Some(of(unit, vec![plan.sender_of(me, unit)?])));
        let received = merge_adjacent(received);
        let pieces = sent
            .iter()
            .chain(&received)
            .map(ParameterTransfer::pieces)
            .max()
            .unwrap_or(0);
        for turn in 0..pieces + AHEAD {
            for range in &sent {
                self.send_piece(here, range, turn)?;
            }
            if let Some(number) = turn.checked_sub(AHEAD) {
                for range in &received {
                    self.take_piece(here, range, number)?;
                }
            }
        }
        Ok(())
    }

    fn send_piece(
        &mut self,
        here: &GatheredUnit,
        of: &ParameterTransfer,
        number: usize,
    ) -> Result<(), EngineError> {
        let Some((elements, tag)) = self.piece(of, number) else {
            return Ok(());
        };
        let values = here.give(elements)?;
        let mut peers = of.peers.iter();
        peers.try_for_each(|to| self.exchange.send(*to, tag, &values))
    }

    fn take_piece(
        &mut self,
        here: &GatheredUnit,
        of: &ParameterTransfer,
        number: usize,
    ) -> Result<(), EngineError> {
        let Some((elements, tag)) = self.piece(of, number) else {
            return Ok(());
        };
        for from in &of.peers {
            let values = self.exchange.receive(*from, tag, &[elements.len()])?;
            here.take(elements.clone(), &values)?;
        }
        Ok(())
    }

    /// A piece's elements, and its name on the way; none where the range has fewer pieces.
    fn piece(&self, of: &ParameterTransfer, number: usize) -> Option<(Range<usize>, Tag)> {
        let start = of.elements.start + number * PIECE;
        let tag = Tag::Parameters {
            step: self.step,
            unit: of.unit,
            piece: u32::try_from(number).unwrap_or(u32::MAX),
        };
        (start < of.elements.end).then(|| (start..of.elements.end.min(start + PIECE), tag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_the_same_peers_that_lie_together_are_sent_together() {
        let range = |unit, elements, peer| ParameterTransfer {
            unit: Unit(unit),
            elements,
            peers: vec![WorkerId(peer)],
        };
        let ranges = [
            range(0, 0..5, 1),
            range(1, 5..9, 1),
            range(2, 9..12, 2),
            range(4, 15..20, 2),
        ];
        let found = merge_adjacent(ranges.into_iter());
        let found: Vec<_> = found.iter().map(|t| (t.unit.0, t.elements.clone())).collect();
        assert_eq!(found, [(0, 0..9), (2, 9..12), (4, 15..20)]);
    }
}
