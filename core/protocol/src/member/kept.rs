//! The units whose spare copy this worker keeps under its plan, and how far each has come (ADR 27). Nothing here asks or sends.

use super::followed::Arrived;
use crate::message::Time;
use std::collections::BTreeMap;
use std::time::Duration;
use varuna_plan::spare_copies::WAITING_GRADIENTS_MAX;
use varuna_plan::{Plan, StateId, Step, Unit, WorkerId};

/// The interval at which a copy is asked for doubles so often at most.
const DOUBLINGS_MAX: u32 = 6;

/// A unit whose copy this worker keeps.
#[derive(Clone, Copy, Debug)]
struct KeptUnit {
    /// Its only holder.
    from: WorkerId,
    /// The state that it is at once the engine has done what it was given; none: it needs a copy.
    at: Option<StateId>,
    /// A gradient has led on from there: its holder sends them, and steps wait for them.
    stepped: bool,
    /// What the engine was given and has not done.
    in_engine: u32,
    /// When its holder is to be asked again.
    ask_at: Time,
    /// How often it was lost because its gradients came too late.
    lost: u32,
}

/// All of them.
#[derive(Default)]
pub(super) struct Kept {
    units: BTreeMap<Unit, KeptUnit>,
    /// This worker has run its step: so long it waits for gradients. None while it runs one.
    pub(super) wait_until: Option<Time>,
}

impl Kept {
    /// What the plan names; `held`: those that are at its base already need no copy.
    pub(super) fn under(plan: &Plan, me: WorkerId, held: impl Fn(Unit) -> Option<StateId>) -> Self {
        let unit = |(unit, from)| {
            let kept = KeptUnit {
                from,
                at: held(unit),
                stepped: false,
                in_engine: 0,
                ask_at: Time(0),
                lost: 0,
            };
            (unit, kept)
        };
        Self {
            units: plan.kept_by(me).into_iter().map(unit).collect(),
            wait_until: None,
        }
    }

    /// Who is to be asked now, for what, and what is there. Those that are where the run is are not asked for: what is lacking then is the
    /// gradient of the present step.
    pub(super) fn asks(
        &mut self,
        now: Time,
        retry: Duration,
        run: StateId,
    ) -> Vec<(WorkerId, Unit, Option<StateId>)> {
        let mut asks = Vec::new();
        for (unit, kept) in &mut self.units {
            let in_step = kept.stepped && kept.at == Some(run);
            if !in_step && now >= kept.ask_at {
                kept.ask_at = now.after(retry * (1 << kept.lost.min(DOUBLINGS_MAX)));
                asks.push((kept.from, *unit, kept.at));
            }
        }
        asks
    }

    /// Whether a copy at this state takes the place of what is there: it is beyond that, and beyond the gradients that wait for it.
    pub(super) fn copied(
        &mut self,
        (now, retry): (Time, Duration),
        (unit, from): (Unit, WorkerId),
        id: StateId,
        waiting: u32,
    ) -> bool {
        let Some(kept) = self.units.get_mut(&unit).filter(|k| k.from == from) else {
            return false;
        };
        let beyond = |at: StateId| id.step.0 > at.step.0 + u64::from(waiting);
        let newer = kept.at.is_none_or(beyond);
        if newer {
            (kept.at, kept.stepped) = (Some(id), false);
            kept.ask_at = now.after(retry);
            kept.in_engine += 1;
        }
        newer
    }

    /// A gradient of a step has arrived; `waiting`: how many of the unit's wait before it.
    pub(super) fn gradient(
        &mut self,
        (now, retry): (Time, Duration),
        (unit, from): (Unit, WorkerId),
        step: Step,
        waiting: u32,
    ) -> Arrived {
        let Some(kept) = self.units.get_mut(&unit).filter(|k| k.from == from) else {
            return Arrived::Old;
        };
        // Its holder does not know yet that the copy was lost, and sends on: that says nothing more of how well it can be kept.
        let Some(at) = kept.at else {
            return if bug!(LoseLostCopyAgain) {
                Arrived::Gap
            } else {
                Arrived::Old
            };
        };
        let next = at.step.0 + u64::from(waiting);
        if step.0 < next && !bug!(KeepAcrossGap) {
            return Arrived::Old;
        }
        let full = waiting + kept.in_engine >= WAITING_GRADIENTS_MAX;
        if (step.0 != next && !bug!(KeepAcrossGap)) || full {
            return Arrived::Gap;
        }
        kept.stepped = true;
        kept.ask_at = now.after(retry);
        Arrived::Taken
    }

    /// The state that each is at.
    pub(super) fn states(&self) -> Vec<(Unit, StateId)> {
        let at = self
            .units
            .iter()
            .filter_map(|(unit, kept)| Some((*unit, kept.at?)));
        at.collect()
    }

    /// The engine was given a gradient that leads to this state.
    pub(super) fn leads_to(&mut self, unit: Unit, id: StateId) {
        if let Some(kept) = self.units.get_mut(&unit) {
            kept.at = Some(id);
            kept.in_engine += 1;
        }
    }

    /// The engine has done something that it was given for the unit.
    pub(super) fn done(&mut self, unit: Unit) {
        if let Some(kept) = self.units.get_mut(&unit) {
            kept.in_engine = kept.in_engine.saturating_sub(1);
        }
    }

    /// Those whose copies are where the run is; each of them has followed a step at least.
    pub(super) fn in_step(&self, run: StateId) -> impl Iterator<Item = Unit> {
        let in_step = move |kept: &KeptUnit| kept.stepped && kept.at == Some(run);
        self.units
            .iter()
            .filter(move |(_, k)| in_step(k))
            .map(|(unit, _)| *unit)
    }

    /// Some are kept, and all of them are where the run is.
    pub(super) fn all_in_step(&self, run: StateId) -> bool {
        let in_step = self.in_step(run).count();
        in_step > 0 && (in_step == self.units.len() || bug!(InStepWithSomeCopies))
    }

    /// Its holder; none for a unit that is not kept.
    pub(super) fn holder(&self, unit: Unit) -> Option<WorkerId> {
        self.units.get(&unit).map(|k| k.from)
    }

    /// What came was late, or damaged, or something is missing: it needs another copy.
    pub(super) fn lose(&mut self, now: Time, retry: Duration, unit: Unit) {
        if let Some(kept) = self.units.get_mut(&unit) {
            (kept.at, kept.stepped) = (None, false);
            kept.lost = kept.lost.saturating_add(1);
            kept.ask_at = now.after(retry * (1 << kept.lost.min(DOUBLINGS_MAX)));
        }
    }

    /// How often copies were lost.
    pub(super) fn given_up(&self) -> u32 {
        self.units.values().map(|k| k.lost).sum()
    }

    /// Units kept.
    pub(super) fn len(&self) -> usize {
        self.units.len()
    }
}
