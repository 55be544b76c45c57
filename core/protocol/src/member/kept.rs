//! The units whose spare copy this worker keeps under its plan, and how far each has come (ADR 27). Nothing here asks or sends.

use super::followed::Arrived;
use crate::message::Time;
use std::collections::BTreeMap;
use std::time::Duration;
use varuna_plan::spare_copies::WAITING_GRADIENTS_MAX;
use varuna_plan::{Plan, StateId, Step, Unit, WorkerId};

/// Maximum number of times that the interval between requests for a copy is doubled.
const DOUBLINGS_MAX: u32 = 6;

/// A unit whose copy this worker keeps.
#[derive(Clone, Copy, Debug)]
struct KeptUnit {
    /// The unit's only holder.
    from: WorkerId,
    /// The state it will have once the engine has done the work it was given; none if it needs a copy.
    at: Option<StateId>,
    /// Whether a gradient has advanced the copy: its holder sends gradients, and steps wait for them.
    stepped: bool,
    /// Number of operations that the engine was given and has not done.
    in_engine: u32,
    /// When its holder is to be asked again.
    ask_at: Time,
    /// When the last copy came, if it has not been up to date since.
    copied_at: Option<Time>,
    /// How many copies in a row had to be replaced before they were up to date.
    outrun: u32,
    /// How often the copy was lost because its gradients came too late.
    lost: u32,
}

impl KeptUnit {
    /// How long its holder is left alone now. After a copy that does not get up to date, this is twice as long as its gradients have taken so
    /// far, which is about as long as the copy and they have occupied the link. It doubles with each such copy, so that on a link that is too
    /// slow they take an ever smaller part of the time. They would otherwise follow each other without a pause.
    fn pause(&self, now: Time, retry: Duration) -> Duration {
        let doubled = |pause: Duration, times: u32| pause * (1 << times.min(DOUBLINGS_MAX));
        let behind = self.copied_at.map_or(Duration::ZERO, |at| now.since(at));
        doubled(retry, self.lost).max(doubled(behind * 2, self.outrun))
    }
}

/// All units whose copies this worker keeps.
#[derive(Default)]
pub(super) struct Kept {
    units: BTreeMap<Unit, KeptUnit>,
    /// Until when this worker, which has run its step, waits for gradients. None while it runs one.
    pub(super) wait_until: Option<Time>,
}

impl Kept {
    /// The copies that the plan assigns to worker `me`. `held`: units that are at the plan's base already need no copy.
    pub(super) fn under(plan: &Plan, me: WorkerId, held: impl Fn(Unit) -> Option<StateId>) -> Self {
        let unit = |(unit, from)| {
            let kept = KeptUnit {
                from,
                at: held(unit),
                stepped: false,
                in_engine: 0,
                ask_at: Time(0),
                copied_at: None,
                outrun: 0,
                lost: 0,
            };
            (unit, kept)
        };
        Self {
            units: plan.kept_by(me).into_iter().map(unit).collect(),
            wait_until: None,
        }
    }

    /// The requests to send now: the holder, the unit, and the state of the copy on this worker. Copies that are up to date are not
    /// requested: all that they can be missing is the gradient of the present step.
    pub(super) fn asks(
        &mut self,
        now: Time,
        retry: Duration,
        run: StateId,
    ) -> Vec<(WorkerId, Unit, Option<StateId>)> {
        let mut asks = Vec::new();
        for (unit, kept) in &mut self.units {
            if kept.stepped && kept.at == Some(run) {
                (kept.copied_at, kept.outrun) = (None, 0);
            } else if now >= kept.ask_at {
                kept.ask_at = now.after(kept.pause(now, retry));
                asks.push((kept.from, *unit, kept.at));
            }
        }
        asks
    }

    /// Whether a copy at this state replaces the present one: it must be newer than that, and newer than the gradients that wait for it.
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
            kept.outrun += u32::from(kept.copied_at.is_some());
            kept.copied_at = Some(now);
            kept.ask_at = now.after(kept.pause(now, retry));
            kept.in_engine += 1;
        }
        newer
    }

    /// A gradient of a step has arrived. `waiting`: how many gradients of the unit wait before it.
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
        // Its holder does not know yet that the copy was lost and keeps sending. That is no further evidence against keeping this copy.
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
        kept.ask_at = now.after(kept.pause(now, retry));
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

    /// The engine has done one of the operations it was given for the unit.
    pub(super) fn done(&mut self, unit: Unit) {
        if let Some(kept) = self.units.get_mut(&unit) {
            kept.in_engine = kept.in_engine.saturating_sub(1);
        }
    }

    /// The units whose copies are up to date; each has followed at least one step.
    pub(super) fn in_step(&self, run: StateId) -> impl Iterator<Item = Unit> {
        let in_step = move |kept: &KeptUnit| kept.stepped && kept.at == Some(run);
        self.units
            .iter()
            .filter(move |(_, k)| in_step(k))
            .map(|(unit, _)| *unit)
    }

    /// Whether some copies are kept, and all of them are up to date.
    pub(super) fn all_in_step(&self, run: StateId) -> bool {
        let in_step = self.in_step(run).count();
        in_step > 0 && (in_step == self.units.len() || bug!(InStepWithSomeCopies))
    }

    /// The unit's holder; none for a unit that is not kept.
    pub(super) fn holder(&self, unit: Unit) -> Option<WorkerId> {
        self.units.get(&unit).map(|k| k.from)
    }

    /// The copy is lost: a gradient was late, damaged or missing. It needs another copy.
    pub(super) fn lose(&mut self, now: Time, retry: Duration, unit: Unit) {
        if let Some(kept) = self.units.get_mut(&unit) {
            (kept.at, kept.stepped) = (None, false);
            kept.lost = kept.lost.saturating_add(1);
            kept.ask_at = now.after(kept.pause(now, retry));
        }
    }

    /// How often copies were lost.
    pub(super) fn given_up(&self) -> u32 {
        self.units.values().map(|k| k.lost).sum()
    }

    /// The units that the plan gives this worker to keep, whether it has their copy or not.
    pub(super) fn units(&self) -> impl Iterator<Item = Unit> {
        self.units.keys().copied()
    }

    /// Units kept.
    pub(super) fn len(&self) -> usize {
        self.units.len()
    }
}
