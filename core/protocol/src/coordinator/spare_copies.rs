//! Decides which workers keep spare copies under a new plan (ADR 27).

use super::event::Event;
use super::shared::Shared;
use super::spare_copies_view::{SpareCopiesVerdict, SpareCopiesView};
use super::turn::Turn;
use crate::message::{Keeping, Status, Time};
use std::time::Duration;
use varuna_plan::spare_copies::{Expected, SpareCopyDecision, decide, keepers};
use varuna_plan::{Generation, Shape, SpareCopies, SpareCosts, Unit, WorkerId, WorkerInfo};

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
        let costs = self.spare_costs(shape, &workers);
        let able = |w: WorkerId| {
            let status = self.roster.status(w);
            status.is_some_and(|s| s.keeping != Keeping::Unable) || bug!(KeepersThatCannotFollow)
        };
        let locations = workers.iter().map(|w| (w.id, w.location())).collect();
        let expected = self.expected(shape, turn.now);
        let found = keepers(&layout, shape, &locations, able, &costs, expected.step_ms);
        let verdict = decide(wanted, &layout, shape, &found, &costs, &expected);
        let mut found = found.of_units;
        if !verdict.keeps() {
            found.clear();
        }
        let in_force = self.record.generation();
        self.last_reports
            .copy_verdicts
            .retain(|known, _| *known == in_force);
        let why = why(verdict, wanted, &expected);
        let said = SpareCopiesVerdict { reason: verdict, why };
        self.last_reports.copy_verdicts.insert(generation, said);
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

    /// What spare copies would cost under a shape on these workers.
    pub(super) fn spare_costs(&self, shape: &Shape, workers: &[WorkerInfo]) -> SpareCosts {
        let apart = |w: &WorkerInfo| Some((w.id, self.roster.hello(w.id)?.copies_bytes?));
        SpareCosts {
            apart_bytes: workers.iter().filter_map(apart).collect(),
            ..self.planner.spare_costs(shape, &self.config.layout, workers)
        }
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
        let mut view = SpareCopiesView {
            verdict: self.last_reports.copy_verdicts.get(&plan.generation).cloned(),
            ..SpareCopiesView::default()
        };
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
    pub(super) fn expected(&self, shape: &Shape, now: Time) -> Expected {
        let step = self.progress.commits.mean_step_time();
        let step_ms = step.map_or(shape.predicted.step_ms, milliseconds);
        let is_stored = self.config.final_checkpoint;
        let loss_ms = milliseconds(self.roster.losses.expected(now, self.config.timing.stay));
        let every = self.config.save_every.filter(|_| is_stored);
        // Without copies each loss would cost state.
        let adaptive = self.interval_between_losses(loss_ms);
        let interval = every.into_iter().chain(adaptive).min();
        let steps = self.config.save_every_steps.filter(|_| is_stored);
        Expected {
            step_ms,
            loss_ms,
            redo_ms: Expected::redo_ms(step_ms, interval.map(milliseconds), steps),
        }
    }
}

/// The decision in a sentence.
fn why(verdict: SpareCopyDecision, wanted: SpareCopies, expected: &Expected) -> String {
    let losses = match wanted {
        SpareCopies::Auto => format!(
            "; a loss of workers is expected once in {}",
            time(expected.loss_ms)
        ),
        SpareCopies::One | SpareCopies::Off => String::new(),
    };
    let all = "each unit that one worker alone holds";
    match verdict {
        SpareCopyDecision::Kept => format!("another worker keeps a copy of {all}{losses}"),
        SpareCopyDecision::KeptInPart => {
            format!("no worker has memory for a copy of {all}: only some are kept{losses}")
        }
        SpareCopyDecision::KeptWhereLinksAllow => {
            "only some copies are kept: the gradients of the others would take more than half of a step on some link"
                .to_owned()
        }
        SpareCopyDecision::NotWanted => "the job wants none".to_owned(),
        SpareCopyDecision::NothingAlone => "several workers hold each unit".to_owned(),
        SpareCopyDecision::NoKeeper => "no worker that could keep a copy has memory for it".to_owned(),
        SpareCopyDecision::LinksTooSlow => format!(
            "the gradients would take more than half of a step of {} on some link",
            time(expected.step_ms)
        ),
        SpareCopyDecision::LossesTooRare => format!(
            "a loss of workers is expected once in {}, and to repeat {} of work: the copies would cost more",
            time(expected.loss_ms),
            time(expected.redo_ms.unwrap_or_default())
        ),
        SpareCopyDecision::Unknown => String::new(),
    }
}

/// A time in the unit that fits it: `90 ms`, `45 s`, `30 min`, `5.5 h`.
fn time(ms: f64) -> String {
    let (seconds, minutes, hours) = (ms / 1e3, ms / 60e3, ms / 3600e3);
    if hours >= 2.0 {
        format!("{hours:.1} h")
    } else if minutes >= 2.0 {
        format!("{minutes:.0} min")
    } else if seconds >= 10.0 {
        format!("{seconds:.0} s")
    } else {
        format!("{ms:.0} ms")
    }
}
