//! Collective operations, from device to device, of the workers that compute with a unit: they sum its gradient and, if they divide its
//! state among them, send the parameters that they hold to the others (reduce-scatter and all-gather of ZeRO-1, Rajbhandari et al. 2020).
//!
//! NCCL's own reduce-scatter and all-gather need shares of equal size, which these are not. So each share is a reduction to its first
//! holder, or a broadcast from it, and those of a unit are issued together. The second holder gets a copy of the first one's sum, so that
//! both have the same bits. Nothing may be received into the memory of state: an operation that is stopped may leave anything there.

use super::super::exchange::{ENDING, Summed};
use super::super::place::small;
use super::actions::actions_of_sum;
use super::{Communicators, EngineError, element, of_nccl, stuck};
use crate::engine::EngineConfig;
use crate::model::tied_weight_of;
use crate::state::{GatheredUnit, size};
use crate::transport::nccl::Lane;
use crate::transport::{LinkError, Tag};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use tch::{Kind, Tensor};
use varuna_cuda::{Action, Element, NcclError, Operation, Pending, issue};
use varuna_model::StateShare;
use varuna_plan::communicators::reduction_order;
use varuna_plan::{Plan, SegmentRange, Step, Unit};
use varuna_torch::{FlatBuffer, Lease, OnDevice, TorchError};

/// One operation on a piece of memory.
pub(super) type Part = (Action, Element, OnDevice);

/// A sum that was begun.
struct Sum {
    unit: Unit,
    /// The operations of the sum.
    pending: Vec<Pending<OnDevice>>,
    /// Whether all operations were begun.
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
    /// Units of communicators whose sums have not begun, in the order in which all workers begin them.
    order: VecDeque<Unit>,
    /// Units whose gradients are complete, and whose turn has not come.
    finished: BTreeMap<Unit, (Tensor, Lease)>,
    sums: VecDeque<Sum>,
    /// Parameters on their way that nothing was computed with yet.
    coming: BTreeMap<Unit, Vec<Pending<OnDevice>>>,
    /// The unit whose parameters were sent on their way last.
    latest: Option<Unit>,
    /// Where parameters go that this worker has: see [`Collectives::memory_of_parameters`].
    unread: Option<Tensor>,
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

/// Why operations have failed already: for example, a peer did not connect in time. Later operations would only report that the
/// communicator was revoked.
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
            unread: None,
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
        let own = Arc::clone(&self.own);
        let Some(lane) = own.of_unit(whole) else {
            return Ok(false);
        };
        let members = self.plan.group(whole).len();
        let (element, _) = element(self.config.backend.numerics.boundary());
        let mut shares = self.plan.layout.shares(whole, members, here.elements());
        shares.retain(|share| share.places.len() < members);
        let memory = self.memory_of_parameters(whole, here, &shares)?;
        let mut operations = Vec::new();
        for (share, parts) in shares.iter().zip(memory) {
            let action = Action::Broadcast {
                root: small(share.places[0]),
            };
            for part in parts {
                operations.push((action, element, OnDevice::over(&part)?));
            }
        }
        if operations.is_empty() {
            return Ok(true);
        }
        let late = self.late(whole);
        let late = |error| of_nccl(error, late.clone());
        // One unit after the other, in the same order on all workers: operations that wait for their peers occupy a part of the device, and
        // two workers must not fill theirs with different ones.
        let latest = self.latest.and_then(|unit| self.coming.get(&unit)?.last());
        if let Some(event) = latest.and_then(Pending::event) {
            lane.stream.wait(event).map_err(|e| late(e.into()))?;
        }
        let issued = issue_together(&own, lane, operations, self.deadline).map_err(late)?;
        let lost = first_lost(&issued);
        self.coming.insert(whole, issued);
        self.latest = Some(whole);
        lost.map_or(Ok(true), |error| Err(late(error)))
    }

    /// The memory for the broadcast of each share: that of the parameters, which are only read on the root. Another holder of masters that lie
    /// there receives what it has already, and must receive it elsewhere: NCCL's kernels for short messages store whatever they have read when they
    /// are told to stop (`readLL` in its `prims_ll.h`), and a fence may do that at any time. One unit's operations follow the other's, so this memory
    /// serves all of them.
    fn memory_of_parameters(
        &mut self,
        whole: Unit,
        here: &GatheredUnit,
        shares: &[StateShare],
    ) -> Result<Vec<Vec<Tensor>>, TorchError> {
        let group = self.plan.group(whole);
        let me = group.iter().position(|worker| *worker == self.config.me);
        let has_it = |share: &StateShare| {
            let others = share.places.iter().skip(1);
            here.has_masters() && others.copied().any(|place| Some(place) == me)
        };
        let unread = shares.iter().filter(|share| has_it(share));
        let elements: usize = unread.map(|share| share.elements.len()).sum();
        let known = self.unread.take();
        let unread = match known.filter(|known| known.numel() >= elements) {
            Some(known) => known,
            None => {
                let on = (Kind::Float, self.config.backend.device.tensors());
                Tensor::f_empty([size(elements)], on).map_err(|e| TorchError(e.to_string()))?
            }
        };
        let mut at = 0;
        let memory = shares.iter().map(|share| {
            if !has_it(share) {
                return here.parts(share.elements.clone());
            }
            let length = size(share.elements.len());
            at += length;
            let part = unread.f_narrow(0, at - length, length);
            part.map(|part| vec![part]).map_err(|e| TorchError(e.to_string()))
        });
        let memory = memory.collect();
        self.unread = Some(unread);
        memory
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
    pub(super) fn poll_pending(&mut self) -> Result<(), EngineError> {
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
