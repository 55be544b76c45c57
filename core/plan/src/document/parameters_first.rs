//! Plans whose members compute the first step with parameters that others send them, while the rest of the state that they lack is still on
//! its way (ADR 43).
//!
//! Who sends which parameters follows from the plan alone, as with sharded optimizer state: a member that lacks a unit at the base gets its
//! parameters from the source that it asks first for the unit's state.

use super::{Base, Plan};
use crate::ids::{Step, Unit, WorkerId};
use crate::state::StateId;

impl Plan {
    /// Whether the members of a plan that begins at this base can be given parameters first: somebody lacks state, members have all of
    /// it, and everybody knows the base beforehand.
    #[must_use]
    pub fn can_send_parameters_first(&self) -> bool {
        let known = matches!(self.base, Base::Fixed { id, .. } if id != StateId::INITIAL);
        if !known || self.relay || self.layout.ranges > 1 {
            return false;
        }
        let mut lacked = self.lacked().peekable();
        lacked.peek().is_some() && lacked.all(|(_, _, source)| source.is_some_and(|w| self.has(w)))
    }

    /// The worker that sends this one the parameters of a unit for this step. None if this worker has the unit's state, does not compute
    /// with the unit, or the step is not the first of a plan that sends parameters first.
    #[must_use]
    pub fn parameters_sender(&self, worker: WorkerId, unit: Unit, step: Step) -> Option<WorkerId> {
        let first = self.first_source(worker, unit);
        first.filter(|_| self.sends_parameters_in(step))
    }

    /// The units whose parameters this worker sends for this step, in order, each with a worker that lacks it.
    #[must_use]
    pub fn parameters_sent_by(&self, worker: WorkerId, step: Step) -> &[(Unit, WorkerId)] {
        match self.sends_parameters_in(step) {
            true => self.index.of(self).first_receivers(worker),
            false => &[],
        }
    }

    /// The workers to which this one sends the parameters of a unit for this step, ascending.
    #[must_use]
    pub fn parameters_receivers(&self, worker: WorkerId, unit: Unit, step: Step) -> Vec<WorkerId> {
        let sent = self.parameters_sent_by(worker, step).iter();
        sent.filter(|(of, _)| *of == unit).map(|(_, to)| *to).collect()
    }

    /// Whether members send parameters at the begin of this step.
    #[must_use]
    pub fn sends_parameters_in(&self, step: Step) -> bool {
        let is_first = matches!(self.base, Base::Fixed { id, .. } if id.step == step);
        self.parameters_first && is_first
    }

    /// Each unit that a member lacks at the base, with the source that it asks first.
    pub(crate) fn lacked(&self) -> impl Iterator<Item = (WorkerId, Unit, Option<WorkerId>)> {
        let units = self.layout.all_units();
        units.flat_map(move |unit| {
            let has = self.sources.get(unit.index()).map_or(&[][..], Vec::as_slice);
            let lacking = self.holders(unit).iter().filter(move |w| !has.contains(w));
            lacking.map(move |worker| (*worker, unit, self.first_source(*worker, unit)))
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
