//! What the workers that compute with a unit do together, from device to device: they sum its gradient, and where they share its state out, those that
//! hold parameters send them to the others (reduce-scatter and all-gather of ZeRO-1, Rajbhandari et al. 2020).
//!
//! Shares are not all of one size, as NCCL's own reduce-scatter and all-gather need them: each share is a reduction to its first holder, or a broadcast
//! from it, and those of a unit are issued together. The second holder gets a copy of the first one's sum, so that both have the same bits.

use super::super::exchange::{ENDING, Summed};
use super::super::place::small;
use super::{Communicators, EngineError, element, of_nccl, stuck};
use crate::engine::EngineConfig;
use crate::model::tied_weight_of;
use crate::state::{GatheredUnit, TAIL};
use crate::transport::nccl::Lane;
use crate::transport::{LinkError, Tag};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use tch::Tensor;
use varuna_cuda::{Action, Element, NcclError, Operation, Pending, issue};
use varuna_model::StateShare;
use varuna_plan::communicators::reduction_order;
use varuna_plan::{Layout, Plan, SegmentRange, Step, Unit};
use varuna_torch::{FlatBuffer, Lease, OnDevice, TorchError};

/// One operation on a piece of memory.
pub(super) type Part = (Action, Element, OnDevice);

/// A sum that was begun.
struct Sum {
    unit: Unit,
    /// What it consists of.
    pending: Vec<Pending<OnDevice>>,
    /// Whether that is all.
    is_begun: bool,
    lease: Lease,
}

/// Operations over the communicators of groups, within one step.
pub(super) struct Collectives<'a> {
    config: &'a EngineConfig,
    plan: &'a Plan,
    step: Step,
    deadline: Instant,
    own: Arc<Communicators>,
    /// Units of communicators whose sums were not begun, in the order in which everybody begins them.
    order: VecDeque<Unit>,
    /// Units whose gradients are final, and whose turn has not come.
    finished: BTreeMap<Unit, (Tensor, Lease)>,
    sums: VecDeque<Sum>,
    /// Parameters on their way that nothing was computed with yet.
    coming: BTreeMap<Unit, Vec<Pending<OnDevice>>>,
    /// The unit whose parameters were sent on their way last.
    latest: Option<Unit>,
    /// Parameters that what was handed to the device waits for, and of which nobody knows yet that they came.
    used: VecDeque<(Unit, Pending<OnDevice>)>,
}

/// Issues operations of one communicator together, after what was computed so far.
pub(super) fn issue_together(
    own: &Communicators,
    lane: &Lane,
    operations: Vec<Part>,
    deadline: Instant,
) -> Result<Vec<Pending<OnDevice>>, NcclError> {
    own.after_compute(lane)?;
    let operations = operations.into_iter().map(|(action, element, memory)| Operation {
        communicator: &lane.communicator,
        action,
        memory,
        element,
        stream: &lane.stream,
    });
    issue(operations.collect(), deadline).map_err(|refused| refused.error)
}

/// Why operations are lost already: a peer did not come in time to connect, say. Whoever issues more would only learn that the communicator was revoked.
fn first_lost(issued: &[Pending<OnDevice>]) -> Option<NcclError> {
    issued.iter().find_map(|pending| pending.is_done().err())
}

impl<'a> Collectives<'a> {
    pub(super) fn new(
        (config, plan, step): (&'a EngineConfig, &'a Plan, Step),
        own: Arc<Communicators>,
        deadline: Instant,
    ) -> Collectives<'a> {
        let units = plan.whole_units(config.me);
        let ordered = reduction_order(&plan.layout);
        let ordered = ordered.filter(|unit| units.contains(unit) && own.of_unit(*unit).is_some());
        Collectives {
            order: ordered.collect(),
            finished: BTreeMap::new(),
            sums: VecDeque::new(),
            coming: BTreeMap::new(),
            latest: None,
            used: VecDeque::new(),
            config,
            plan,
            step,
            deadline,
            own,
        }
    }

    /// Begins to bring the parameters of a unit to all that compute with them; false where it has no communicator.
    pub(super) fn gather(&mut self, whole: Unit, here: &GatheredUnit) -> Result<bool, EngineError> {
        let Some(lane) = self.own.of_unit(whole) else {
            return Ok(false);
        };
        let members = self.plan.group(whole).len();
        let (element, _) = element(self.config.backend.numerics.boundary());
        let mut operations = Vec::new();
        for share in self.plan.layout.shares(whole, members, here.elements()) {
            if share.places.len() == members {
                continue;
            }
            let action = Action::Broadcast {
                root: small(share.places[0]),
            };
            for part in here.parts(share.elements)? {
                operations.push((action, element, OnDevice::over(&part)?));
            }
        }
        if operations.is_empty() {
            return Ok(true);
        }
        let late = self.late(whole);
        let late = |error| of_nccl(error, late.clone());
        // One unit after the other, in everybody's order: operations that wait for their peers hold a part of the device, and two workers must not fill theirs
        // with different ones.
        let latest = self.latest.and_then(|unit| self.coming.get(&unit)?.last());
        if let Some(event) = latest.and_then(Pending::event) {
            lane.stream.wait(event).map_err(|e| late(e.into()))?;
        }
        let issued = issue_together(&self.own, lane, operations, self.deadline).map_err(late)?;
        let lost = first_lost(&issued);
        self.coming.insert(whole, issued);
        self.latest = Some(whole);
        lost.map_or(Ok(true), |error| Err(late(error)))
    }

    /// What is computed from here on may use the parameters of a segment.
    pub(super) fn use_parameters(&mut self, segment: u32) -> Result<(), EngineError> {
        let stage = SegmentRange {
            start: segment,
            end: segment + 1,
        };
        let tied = tied_weight_of(self.plan.layout, stage);
        for unit in tied.into_iter().chain([Unit(segment)]) {
            let coming = self.coming.remove(&unit).unwrap_or_default();
            let before = self.used.len();
            // First noted: whatever goes wrong with one, the device must have let go of all before the next step.
            self.used
                .extend(coming.into_iter().map(|pending| (unit, pending)));
            for (unit, pending) in self.used.range(before..) {
                let waits = self.own.compute_after(pending, self.deadline);
                waits.map_err(|e| of_nccl(e, self.late(*unit)))?;
            }
        }
        Ok(())
    }

    /// Fails where parameters that the device waits for did not come well, or in time: a device that waits for a peer is not one that hangs.
    pub(super) fn carry_on(&mut self) -> Result<(), EngineError> {
        while let Some((unit, pending)) = self.used.front() {
            match pending.is_done() {
                Ok(true) => drop(self.used.pop_front()),
                Ok(false) if Instant::now() >= self.deadline => return Err(self.late(*unit).into()),
                Ok(false) => return Ok(()),
                Err(error) => return Err(of_nccl(error, self.late(*unit))),
            }
        }
        Ok(())
    }

    /// Waits until all parameters have come, well. What was computed with others is nothing, however well its sums end.
    pub(super) fn parameters_came(&mut self) -> Result<(), EngineError> {
        for (unit, pending) in &self.used {
            let done = pending.wait(self.deadline);
            done.map_err(|e| of_nccl(e, self.late(*unit)))?;
        }
        for (_, pending) in std::mem::take(&mut self.used) {
            pending.release(Instant::now() + ENDING).ok_or_else(stuck)?;
        }
        Ok(())
    }

    /// Begins the sum of a unit's gradient when its turn comes; false where it has no communicator.
    pub(super) fn begin(&mut self, unit: Unit, gradient: &FlatBuffer) -> Result<bool, EngineError> {
        if self.own.of_unit(unit).is_none() {
            return Ok(false);
        }
        let lease = gradient
            .lease_unread()
            .map_err(|e| EngineError::of_buffer(unit, e))?;
        self.finished.insert(unit, (gradient.tensor()?, lease));
        while let Some(unit) = self.order.front().copied() {
            let Some((memory, lease)) = self.finished.remove(&unit) else {
                break;
            };
            self.order.pop_front();
            let mut pending = Vec::new();
            let begun = self.begin_sum(unit, &memory, &mut pending);
            // Also what was begun before something went wrong is waited for before the gradient is used again.
            self.sums.push_back(Sum {
                unit,
                pending,
                is_begun: begun.is_ok(),
                lease,
            });
            begun?;
        }
        Ok(true)
    }

    fn begin_sum(
        &self,
        unit: Unit,
        memory: &Tensor,
        pending: &mut Vec<Pending<OnDevice>>,
    ) -> Result<(), EngineError> {
        let group = self.plan.group(unit);
        let me = group.iter().position(|worker| *worker == self.config.me);
        let (Some(place), Some(lane)) = (me, self.own.of_unit(unit)) else {
            return Err(EngineError::NotHeld(unit));
        };
        for actions in actions_of_sum(self.plan.layout, unit, (place, group.len()), memory.numel()) {
            let operations = actions.into_iter().map(|(action, elements)| {
                let (start, end) = (elements.start as i64, elements.end as i64);
                let part = OnDevice::over(&memory.narrow(0, start, end - start))?;
                Ok((action, Element::Float32, part))
            });
            let operations = operations.collect::<Result<Vec<Part>, TorchError>>()?;
            let issued = issue_together(&self.own, lane, operations, self.deadline);
            let issued = issued.map_err(|e| of_nccl(e, self.late(unit)))?;
            let lost = first_lost(&issued);
            pending.extend(issued);
            if let Some(error) = lost {
                return Err(of_nccl(error, self.late(unit)));
            }
        }
        Ok(())
    }

    /// Waits for the next sum; none where all that were begun have been returned.
    pub(super) fn next(&mut self) -> Result<Option<Summed>, EngineError> {
        let Some(sum) = self.sums.front() else {
            return Ok(None);
        };
        for pending in &sum.pending {
            let done = pending.wait(self.deadline);
            done.map_err(|e| of_nccl(e, self.late(sum.unit)))?;
        }
        self.sums.pop_front().map(Sum::take).transpose()
    }

    /// Ends all, after the communicators were revoked. Adds the sums that were done to those over the link; if parameters were not, none counts.
    pub(super) fn stop(&mut self, summed: &mut Vec<Summed>) -> Result<(), EngineError> {
        let is_done = |pending: &Pending<OnDevice>| pending.is_done() == Ok(true);
        for sum in std::mem::take(&mut self.sums) {
            // The next step writes to its gradient; the device must not.
            let is_whole = sum.is_begun && sum.pending.iter().all(is_done);
            let sum = sum.take()?;
            if is_whole {
                summed.push(sum);
            }
        }
        let coming = std::mem::take(&mut self.coming).into_values().flatten();
        let used = std::mem::take(&mut self.used)
            .into_iter()
            .map(|(_, pending)| pending);
        for pending in coming.chain(used) {
            if !is_done(&pending) {
                summed.clear();
            }
            pending.release(Instant::now() + ENDING).ok_or_else(stuck)?;
        }
        Ok(())
    }

    /// What a missed deadline says: some other worker of the unit did not come.
    fn late(&self, unit: Unit) -> LinkError {
        let me = self.config.me;
        let other = self.plan.group(unit).iter().find(|w| **w != me);
        LinkError::Deadline {
            from: other.copied().unwrap_or(me),
            tag: Tag::Ring {
                step: self.step,
                unit,
                round: 0,
            },
        }
    }
}

impl Sum {
    /// The sum, in the device's memory.
    fn take(self) -> Result<Summed, EngineError> {
        for pending in self.pending {
            pending.release(Instant::now() + ENDING).ok_or_else(stuck)?;
        }
        Ok(Summed {
            unit: self.unit,
            lease: self.lease,
            on_host: false,
        })
    }
}

/// What a rank does for the sum of a unit's gradient of so many elements with its tail: by what is issued together. `place` is the rank, of `members`.
fn actions_of_sum(
    layout: Layout,
    unit: Unit,
    (place, members): (usize, usize),
    elements: usize,
) -> Vec<Vec<(Action, Range<usize>)>> {
    let mut shares = match layout.is_shared_out(members) {
        true => layout.shares(unit, members, elements - TAIL),
        false => Vec::new(),
    };
    match shares.last_mut() {
        // The tail goes with the last part, whoever holds it.
        Some(last) => last.elements.end = elements,
        None => return vec![vec![(Action::AllReduceSum, 0..elements)]],
    }
    let (mut sums, mut copies) = (Vec::new(), Vec::new());
    for StateShare { elements, places } in shares {
        let (first, second) = (places[0], places[1]);
        sums.push((Action::ReduceSum { root: small(first) }, elements.clone()));
        if place == first {
            copies.push((Action::Send { to: small(second) }, elements));
        } else if place == second {
            copies.push((Action::Receive { from: small(first) }, elements));
        }
    }
    // Who holds no part, of a unit with few elements, has none to pass on.
    [sums, copies]
        .into_iter()
        .filter(|together| !together.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ELEMENTS: usize = 1000 + TAIL;

    fn actions(place: usize, members: usize, elements: usize) -> Vec<Vec<(Action, Range<usize>)>> {
        let layout = Layout::new(3, true).in_ranges(12);
        actions_of_sum(layout, Unit(1), (place, members), elements)
    }

    #[test]
    fn a_gradient_is_summed_whole_where_everybody_needs_all_of_it() {
        let whole = vec![vec![(Action::AllReduceSum, 0..ELEMENTS)]];
        for members in [2, 13, 24] {
            assert_eq!(actions(0, members, ELEMENTS), whole, "{members}");
        }
        assert_eq!(
            actions_of_sum(Layout::new(3, true), Unit(1), (0, 4), ELEMENTS),
            whole
        );
        // A head without parameters: there is the loss alone, which follows no share.
        assert_eq!(actions(1, 4, TAIL), vec![vec![(Action::AllReduceSum, 0..TAIL)]]);
    }

    #[test]
    fn where_state_is_shared_out_each_part_is_summed_for_one_rank_which_gives_it_to_one_more() {
        for members in 3..=12 {
            let all: Vec<_> = (0..members)
                .map(|place| actions(place, members, ELEMENTS))
                .collect();
            let mut sent: Vec<(usize, u32, Range<usize>)> = Vec::new();
            let mut received = Vec::new();
            for (place, actions) in all.iter().enumerate() {
                assert_eq!(
                    actions[0], all[0][0],
                    "all ranks sum the same parts in the same order"
                );
                for (action, elements) in &actions[1] {
                    match action {
                        Action::Send { to } => sent.push((place, *to, elements.clone())),
                        Action::Receive { from } => {
                            received.push((*from as usize, place as u32, elements.clone()))
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
            sent.sort_by_key(|(_, _, elements)| elements.start);
            received.sort_by_key(|(_, _, elements)| elements.start);
            assert_eq!(sent, received);
            let sums: Vec<_> = all[0][0].iter().zip(&sent).collect();
            assert_eq!(sums.len(), sent.len());
            let mut end = 0;
            for ((action, elements), (first, second, copied)) in sums {
                assert_eq!(*action, Action::ReduceSum { root: small(*first) });
                assert!(elements.start == end && elements == copied && *second != small(*first));
                end = elements.end;
            }
            assert_eq!(end, ELEMENTS, "the tail belongs to the last part");
        }
    }
}
