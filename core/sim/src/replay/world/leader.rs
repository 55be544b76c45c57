//! The coordinator: its effects, the record, the diary that the account is kept by.

use super::members::{LAST_STEP, nanoseconds};
use super::{Ev, Setup, World};
use crate::replay::ledger::{Activity, Cause};
use crate::replay::report::{Loss, Reconfiguration, Report, Why};
use crate::replay::trace::Trace;
use std::cell::Cell;
use std::time::Duration;
use varuna_plan::{CostPlanner, Generation, Infeasible, PlanRequest, Planner, Shape, StateId};
use varuna_protocol::{
    Coordinator, CoordinatorConfig, CoordinatorEffect, CoordinatorInput, Event, MemberInput, Timing,
};

/// The planner; a coordinator below its minimum asks at every tick, and the answer for fewer equal workers than were too few
/// before is known.
struct Asked {
    planner: CostPlanner,
    too_few: Cell<usize>,
}

impl Planner for Asked {
    fn plan(&self, request: &PlanRequest) -> Result<Shape, Infeasible> {
        let there = request.workers.len();
        if there <= self.too_few.get() {
            return Err(Infeasible(format!("no plan for {there} workers")));
        }
        let found = self.planner.plan(request);
        if found.is_err() {
            self.too_few.set(there);
        }
        found
    }
}

pub(super) fn coordinator(setup: &Setup) -> Coordinator {
    let config = CoordinatorConfig {
        layout: setup.planner.costs.layout(),
        global_batch_size: setup.global_batch_size,
        last_step: LAST_STEP,
        min_workers: setup.min_workers,
        expected_workers: None,
        // A plan is the same before and after the loss: here it only takes the replay's time.
        timing: Timing {
            prepare_plans_every: Duration::ZERO,
            ..Timing::default()
        },
        final_checkpoint: false,
        save_every: None,
        published: None,
        secret_seed: [0; 16],
    };
    let planner = Asked {
        planner: setup.planner.clone(),
        too_few: Cell::new(0),
    };
    // A job whose holders all went before its first checkpoint begins anew, by hand in the real world.
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
        reconfigurations: Vec::new(),
        timeline: Vec::new(),
        simulated_steps: 0,
    }
}

impl World<'_> {
    /// Gives the coordinator an input and carries out what follows.
    pub(super) fn lead(&mut self, input: CoordinatorInput) {
        let now = self.time();
        let mut effects = Vec::new();
        self.leader.handle(now, input, &mut effects);
        let term = self.leader.term();
        for effect in effects {
            match effect {
                CoordinatorEffect::Send { to, order } => {
                    self.after(
                        self.latency_ns,
                        Ev::Member(to, MemberInput::Order { term, order }),
                    );
                }
                CoordinatorEffect::Write { expect, record } => {
                    let ok = self.record.version == expect;
                    if ok {
                        self.record = record.clone();
                    }
                    let written = Ev::Leader(CoordinatorInput::Written { ok, record });
                    self.after(nanoseconds(self.setup.parts.plan_ms), written);
                }
                CoordinatorEffect::ReadRecord => {
                    let record = self.record.clone();
                    self.after(self.latency_ns, Ev::Leader(CoordinatorInput::Record(record)));
                }
                CoordinatorEffect::ListCheckpoints => {
                    let list = self.checkpoints();
                    self.after(self.latency_ns, Ev::Leader(CoordinatorInput::Checkpoints(list)));
                }
                CoordinatorEffect::Event(event) => self.heard(&event),
                CoordinatorEffect::Finish(outcome) => self.ended = Some(outcome),
            }
        }
    }

    /// The coordinator's diary.
    fn heard(&mut self, event: &Event) {
        if !matches!(
            event,
            Event::Committed { .. } | Event::BelowMinimum { .. } | Event::NoPlan { .. }
        ) {
            self.busy();
        }
        match event {
            Event::Fenced { .. } => self.turn(Activity::Standing(Cause::Plan)),
            Event::Planned {
                generation,
                plan,
                workers,
                predicted_ms,
                change,
                ..
            } => {
                let first = self.report.reconfigurations.is_empty();
                let why = match (first, change) {
                    (true, _) => Why::Start,
                    (false, true) => Why::Change,
                    (false, false) => Why::Loss,
                };
                let entry = Reconfiguration {
                    at_s: self.seconds(),
                    generation: generation.0,
                    why,
                    plan: plan.clone(),
                    there: self.nodes.len(),
                    workers: *workers,
                    step_ms: *predicted_ms,
                    pause_ms: 0.0,
                    moved_bytes: 0.0,
                    rolled_back_steps: 0,
                    ran: false,
                };
                self.report.reconfigurations.push(entry);
                if !change && !first {
                    self.turn(Activity::Standing(Cause::Connect));
                }
            }
            Event::Resumed { base, restored, .. } => self.resumed(*base, *restored),
            Event::Connected { .. } if self.ledger.activity == Activity::Standing(Cause::Connect) => {
                self.turn(Activity::Standing(Cause::Transfer));
            }
            Event::Running { generation } => self.runs(*generation),
            _ => {}
        }
    }

    /// A generation was told to go.
    #[expect(clippy::cast_precision_loss, reason = "a batch, and nanoseconds of a pause")]
    fn runs(&mut self, generation: Generation) {
        let Some(plan) = self.plans.get(&generation).cloned() else {
            return;
        };
        let batch = self.setup.global_batch_size as f64;
        let rate = batch / (plan.shape.predicted.step_ms * 1e6);
        let since = self.stands_at.max(self.possible_at);
        let of = |r: &&mut Reconfiguration| r.generation == generation.0;
        if let Some(entry) = self.report.reconfigurations.iter_mut().rev().find(of) {
            entry.ran = true;
            entry.pause_ms = (self.now - since) as f64 / 1e6;
        }
        self.plans = self.plans.split_off(&generation);
        self.in_force = Some(plan);
        self.turn(Activity::Running { rate });
        self.judge_plan(false);
        self.mark();
    }

    /// A recovery has decided where to resume.
    fn resumed(&mut self, base: StateId, restored: bool) {
        let saved = self.saved.get(&base).filter(|_| restored).map(|s| s.steps);
        let steps = match saved {
            Some(steps) => steps,
            None if base == StateId::INITIAL => 0,
            None => u64::try_from(i128::from(base.step.0) + self.ahead_steps).unwrap_or(0),
        };
        let back = self.ledger.steps.saturating_sub(steps);
        if let Some(entry) = self.report.reconfigurations.last_mut() {
            entry.rolled_back_steps = back;
        }
        self.ledger.resume_at(steps);
        self.ahead_steps = i128::from(steps) - i128::from(base.step.0);
        self.tip = base;
        self.saved.retain(|id, _| *id <= base);
    }

    /// Closes the account.
    pub(super) fn finish(mut self) -> Report {
        let end = self.trace.end_ns();
        self.mark();
        self.ledger.turn(end, Activity::Standing(Cause::Start));
        let ideal = self.ledger.ideal.max(f64::MIN_POSITIVE);
        let loss = |cause: Cause| Loss {
            cause,
            percent: self.ledger.loss(cause) / ideal * 100.0,
        };
        self.report.losses = Cause::ALL.into_iter().map(loss).collect();
        self.report.steps = self.ledger.steps;
        self.report.trained_samples = self.ledger.trained();
        self.report.ideal_samples = self.ledger.ideal;
        self.report.goodput = self.ledger.trained() / ideal;
        self.report
    }
}
