//! The coordinator: its store, and its events, which the account is kept by.

use super::members::{LAST_STEP, nanoseconds};
use super::{Account, COORDINATOR, Replay, ReplayError, Result, Setup};
use crate::host::{self, Host};
use crate::replay::ledger::{Activity, Cause};
use crate::replay::report::{CheckpointsMade, ExtraMemory, Loss, PlanCause, Reconfiguration, Report};
use crate::replay::trace::Trace;
use std::cell::Cell;
use std::time::Duration;
use varuna_plan::{
    CostPlanner, Generation, Infeasible, Layout, PlanRequest, Planner, Shape, SpareCosts, StateId, WorkerInfo,
};
use varuna_protocol::Listing;
use varuna_protocol::{Coordinator, CoordinatorConfig, CoordinatorEffect, CoordinatorInput, Event, Timing};

/// The planner. A coordinator below its minimum asks at every tick; if the number of workers is no greater than one that was too small
/// before, the answer is known.
struct InfeasibilityCache {
    planner: CostPlanner,
    too_few: Cell<usize>,
}

impl Planner for InfeasibilityCache {
    fn plan(&self, request: &PlanRequest) -> Result<Shape, Infeasible> {
        Ok(self.plan_in_time(request)?.0)
    }

    fn plan_in_time(&self, request: &PlanRequest) -> Result<(Shape, Option<String>), Infeasible> {
        let there = request.workers.len();
        if there <= self.too_few.get() {
            return Err(Infeasible(format!("no plan for {there} workers")));
        }
        let found = self.planner.plan_in_time(request);
        if found.is_err() {
            self.too_few.set(there);
        }
        found
    }

    fn spare_costs(&self, shape: &Shape, layout: &Layout, workers: &[WorkerInfo]) -> SpareCosts {
        self.planner.spare_costs(shape, layout, workers)
    }
}

pub(super) fn coordinator(setup: &Setup) -> Coordinator {
    let config = CoordinatorConfig {
        min_workers: setup.min_workers,
        final_checkpoint: setup.checkpoint_steps.is_some(),
        save_every_steps: setup.checkpoint_steps,
        adaptive_checkpoints: setup.adaptive_checkpoints,
        // A plan is the same before and after the loss, so preparing plans would only take the replay's time.
        timing: Timing {
            prepare_plans_every: Duration::ZERO,
            ..Timing::default()
        },
        ..CoordinatorConfig::new(setup.layout, setup.global_batch_size, LAST_STEP)
    };
    let planner = InfeasibilityCache {
        planner: setup.planner.clone(),
        too_few: Cell::new(0),
    };
    // A job whose holders all left before its first checkpoint begins again; in reality the user would restart it.
    Coordinator::new(config, Box::new(planner)).may_begin_anew()
}

#[expect(clippy::cast_precision_loss, reason = "seconds of a trace")]
pub(super) fn empty_report(trace: &Trace, setup: &Setup) -> Report {
    Report {
        seconds: (trace.end_ns() - trace.start_ns()) as f64 / 1e9,
        nodes: trace.most(),
        joins: trace.moments.iter().map(|m| m.joins.len()).sum(),
        leaves: trace.moments.iter().map(|m| m.leaves.len()).sum(),
        notice_s: setup.notice_s,
        calibrated: setup.planner.costs.calibrated,
        steps: 0,
        trained_samples: 0.0,
        ideal_samples: 0.0,
        goodput: 0.0,
        losses: Vec::new(),
        moved_bytes: 0.0,
        gradient_bytes: 0.0,
        extra_memory: ExtraMemory::of_device(setup.planner.constraints.device_memory_bytes),
        checkpoints: CheckpointsMade::default(),
        reconfigurations: Vec::new(),
        timeline: Vec::new(),
        simulated_steps: 0,
    }
}

impl Host<Replay<'_>> {
    /// The record and the list of checkpoints are in the store.
    pub(super) fn carry_out_for_coordinator(&mut self, effect: CoordinatorEffect) -> Result {
        let latency = self.env.latency_ns;
        let (delay, answer) = match effect {
            CoordinatorEffect::Write { expect, record } => {
                let ok = self.env.record.version == expect;
                if ok {
                    self.env.record = record.clone();
                }
                let delay = nanoseconds(self.env.setup.parts.plan_ms);
                (delay, CoordinatorInput::Written { ok, record })
            }
            CoordinatorEffect::ReadRecord => (latency, CoordinatorInput::Record(self.env.record.clone())),
            CoordinatorEffect::ListCheckpoints => (
                latency,
                CoordinatorInput::Checkpoints(Listing::fresh(self.checkpoints())),
            ),
            // Nothing is ever damaged here.
            CoordinatorEffect::DiscardCheckpoint { .. } => return Ok(()),
            CoordinatorEffect::Event(event) => {
                self.account_for(&event);
                return Ok(());
            }
            CoordinatorEffect::Finish(outcome) => {
                return Err(ReplayError::Ended {
                    at_s: self.whole_seconds(),
                    outcome: format!("{outcome:?}"),
                });
            }
            CoordinatorEffect::Send { .. } => return Ok(()), // the host's
        };
        self.queue
            .after(delay, host::Event::Coordinator(COORDINATOR, answer));
        Ok(())
    }

    /// Enters an event into the account.
    fn account_for(&mut self, event: &Event) {
        if !matches!(
            event,
            Event::Committed { .. } | Event::BelowMinimum { .. } | Event::NoPlan { .. }
        ) {
            self.busy();
        }
        match event {
            Event::Fenced { .. } => self.turn(Activity::Paused(Cause::Plan)),
            Event::Planned {
                generation,
                plan,
                workers,
                predicted_ms,
                change,
                ..
            } => {
                let first = self.env.account.report.reconfigurations.is_empty();
                let why = match (first, change) {
                    (true, _) => PlanCause::Start,
                    (false, true) => PlanCause::Change,
                    (false, false) => PlanCause::Loss,
                };
                let entry = Reconfiguration {
                    at_s: self.seconds(),
                    generation: generation.0,
                    why,
                    plan: plan.clone(),
                    there: self.env.nodes.len(),
                    workers: *workers,
                    step_ms: *predicted_ms,
                    pause_ms: 0.0,
                    moved_bytes: 0.0,
                    rolled_back_steps: 0,
                    ran: false,
                };
                self.env.account.report.reconfigurations.push(entry);
                if !change && !first {
                    self.turn(Activity::Paused(Cause::Connect));
                }
            }
            Event::Resumed { base, restored, .. } => self.resumed(*base, *restored),
            Event::Connected { .. }
                if self.env.account.ledger.activity == Activity::Paused(Cause::Connect) =>
            {
                self.turn(Activity::Paused(Cause::Transfer));
            }
            Event::Running { generation } => self.runs(*generation),
            _ => {}
        }
    }

    /// A generation was told to go.
    #[expect(clippy::cast_precision_loss, reason = "a batch, and nanoseconds of a pause")]
    pub(super) fn runs(&mut self, generation: Generation) {
        let Some(plan) = self.env.plans.get(&generation).cloned() else {
            return;
        };
        // Its first step may have begun before.
        let runs = matches!(self.env.account.ledger.activity, Activity::Running { .. });
        if runs
            && self
                .env
                .in_force
                .as_ref()
                .is_some_and(|p| p.generation == generation)
        {
            return;
        }
        let batch = self.env.setup.global_batch_size as f64;
        let rate = batch / (plan.shape.predicted.step_ms * 1e6);
        let now = self.now();
        let since = self.env.account.stopped_at.max(self.env.account.possible_at);
        let of = |r: &&mut Reconfiguration| r.generation == generation.0;
        if let Some(entry) = self.env.account.report.reconfigurations.iter_mut().rev().find(of) {
            entry.ran = true;
            entry.pause_ms = (now - since) as f64 / 1e6;
        }
        self.env.plans = self.env.plans.split_off(&generation);
        self.env.in_force = Some(plan);
        self.turn(Activity::Running { rate });
        self.judge_plan(false);
        self.mark();
    }

    /// A recovery has decided where to resume.
    fn resumed(&mut self, base: StateId, restored: bool) {
        let saved = self.env.saved.get(&base).filter(|_| restored).map(|s| s.steps);
        let steps = match saved {
            Some(steps) => steps,
            None if base == StateId::INITIAL => 0,
            None => u64::try_from(i128::from(base.step.0) + self.env.skipped.steps).unwrap_or(0),
        };
        let back = self.env.account.ledger.steps.saturating_sub(steps);
        if let Some(entry) = self.env.account.report.reconfigurations.last_mut() {
            entry.rolled_back_steps = back;
        }
        self.env.account.ledger.resume_at(steps);
        self.env.skipped.steps = i128::from(steps) - i128::from(base.step.0);
        self.env.newest = base;
        self.env.saved.retain(|id, _| *id <= base);
    }

    /// Closes the account.
    pub(super) fn finish(mut self) -> Report {
        let end = self.env.trace.end_ns();
        self.mark();
        let Account {
            mut ledger,
            mut report,
            ..
        } = self.env.account;
        ledger.turn(end, Activity::Paused(Cause::Start));
        let ideal = ledger.ideal.max(f64::MIN_POSITIVE);
        let loss = |cause: Cause| Loss {
            cause,
            percent: ledger.loss(cause) / ideal * 100.0,
        };
        report.losses = Cause::ALL.into_iter().map(loss).collect();
        report.steps = ledger.steps;
        report.trained_samples = ledger.trained();
        report.ideal_samples = ledger.ideal;
        report.goodput = ledger.trained() / ideal;
        report
    }
}
