//! Decides which workers keep spare copies under a new plan (ADR 27).

use super::event::{Event, SpareCopiesView};
use super::shared::Shared;
use super::turn::Turn;
use crate::message::{Keeping, Status};
use std::time::Duration;
use varuna_plan::spare_copies::{Expected, decide, keepers};
use varuna_plan::{Generation, Shape, SpareCopies, Unit, WorkerId};

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl Shared {
    /// For each unit, the worker that keeps a copy under this shape. Empty if no copies are kept. A verdict that has changed is emitted as an
    /// event.
    pub(super) fn keepers(
        &mut self,
        generation: Generation,
        shape: &Shape,
        turn: &mut Turn<'_>,
    ) -> Vec<Option<WorkerId>> {
        let wanted = self.config.spare_copies;
        if wanted == SpareCopies::Off {
            return Vec::new();
        }
        let layout = self.config.layout;
        let workers = self.infos(&shape.members());
        let costs = self.planner.spare_costs(shape, &self.config.layout, &workers);
        let able = |w: WorkerId| {
            let status = self.roster.status(w);
            status.is_some_and(|s| s.keeping != Keeping::Unable) || bug!(KeepersThatCannotFollow)
        };
        let locations = workers.iter().map(|w| (w.id, w.location())).collect();
        let expected = self.expected(shape);
        let found = keepers(&layout, shape, &locations, able, &costs, expected.step_ms);
        let verdict = decide(wanted, &layout, shape, &found, &costs, &expected);
        let mut found = found.of_units;
        if !verdict.keeps() {
            found.clear();
        }
        if self.last_reports.spare_copies != Some(verdict) {
            self.last_reports.spare_copies = Some(verdict);
            let kept = found.iter().flatten().count();
            turn.event(Event::SpareCopies {
                generation,
                verdict,
                kept,
            });
        }
        found
    }

    /// How up to date the copies of the plan in force are, according to the last reports of their keepers. None if the job wants no copies.
    pub(super) fn spare_copies_view(&self) -> Option<SpareCopiesView> {
        let wanted = self.config.spare_copies != SpareCopies::Off;
        let plan = self.record.stored.plan.as_ref().filter(|_| wanted)?;
        let alone = |unit: &Unit| matches!(plan.holders(*unit), [_]);
        let in_step = |keeper: WorkerId| {
            let status = self.roster.status(keeper);
            let here = |s: &Status| s.generation == plan.generation || bug!(InStepInAnyGeneration);
            status.filter(here).is_some_and(|s| s.keeping == Keeping::InStep)
        };
        let mut view = SpareCopiesView::default();
        let mut known: Option<(WorkerId, bool)> = None;
        for unit in plan.layout.all_units().filter(alone) {
            view.units += 1;
            let Some(keeper) = plan.keeper(unit) else { continue };
            view.kept += 1;
            // Units of one stage follow each other, and have one keeper.
            let (_, is_in_step) = match known {
                Some(last) if last.0 == keeper => last,
                _ => *known.insert((keeper, in_step(keeper))),
            };
            view.in_step += usize::from(is_in_step);
        }
        Some(view)
    }

    /// What the run has shown so far. The work that a loss costs is known only if checkpoints are made at intervals of time or of steps.
    fn expected(&self, shape: &Shape) -> Expected {
        let step = self.progress.commits.mean_step_time();
        let step_ms = step.map_or(shape.predicted.step_ms, milliseconds);
        let is_stored = self.config.final_checkpoint;
        let interval = self.config.save_every.filter(|_| is_stored);
        let steps = self.config.save_every_steps.filter(|_| is_stored);
        Expected {
            step_ms,
            change_ms: milliseconds(self.roster.churn.horizon()),
            redo_ms: Expected::redo_ms(step_ms, interval.map(milliseconds), steps),
        }
    }
}
