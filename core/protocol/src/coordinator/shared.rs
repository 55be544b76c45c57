//! The state of a coordinator that outlives all modes.

use super::bad_links::BadLinks;
use super::checkpoints::{Checkpoints, Purpose};
use super::comparison::Comparison;
use super::config::{CoordinatorConfig, CoordinatorEffect};
use super::event::{Divergence, Event};
use super::outbox::Outbox;
use super::prepared_plans::PreparedPlans;
use super::progress::{GenerationsWithoutCommit, Progress};
use super::quarantine::Quarantine;
use super::record::RecordKeeper;
use super::roster::{Roster, Worker};
use super::spare_copies_view::SpareCopiesVerdict;
use super::speeds::Speeds;
use super::turn::Turn;
use crate::message::{Order, Time};
use std::collections::BTreeMap;
use std::time::Duration;
use varuna_plan::spare_copies::SpareCopyDecision;
use varuna_plan::{Base, Generation, Plan, Planner, StateId, Step, WorkerId};

/// The part of the coordinator's state that all modes share.
pub(super) struct Shared {
    pub(super) config: CoordinatorConfig,
    pub(super) planner: Box<dyn Planner + Send>,
    /// Whether a recovery may begin again from the seed, if no other state is left.
    pub(super) may_begin_anew: bool,
    /// Maximum number of workers to use.
    pub(super) max_workers: Option<usize>,
    pub(super) record: RecordKeeper,
    pub(super) roster: Roster,
    pub(super) outbox: Outbox,
    pub(super) progress: Progress,
    pub(super) checkpoints: Checkpoints,
    pub(super) speeds: Speeds,
    pub(super) prepared_plans: PreparedPlans,
    pub(super) bad_links: BadLinks,
    pub(super) quarantine: Quarantine,
    pub(super) comparison: Comparison,
    pub(super) without_commit: GenerationsWithoutCommit,
    /// Set if more steps in a row failed than the job allows: the run ends.
    pub(super) diverged: Option<Divergence>,
    /// Since when there are enough workers for the first plan.
    pub(super) enough_since: Option<Time>,
    pub(super) last_reports: LastReports,
    /// When the last Tick came: a gap is a pause of the coordinator itself.
    pub(super) ticked_at: Time,
    /// When the last such pause ended. Before that, time does not count as waiting.
    pub(super) resumed_at: Time,
}

/// The last reports of things that are reported again only when they change.
#[derive(Default)]
pub(super) struct LastReports {
    pub(super) problem: Option<Event>,
    pub(super) spare_copies: Option<SpareCopyDecision>,
    /// The interval of the checkpoints that are made because of losses; none if there are none.
    pub(super) checkpoint_interval: Option<Duration>,
    /// What was decided about spare copies under the plan in force, and under the newest one that was made.
    pub(super) copy_verdicts: BTreeMap<Generation, SpareCopiesVerdict>,
}

impl Shared {
    pub(super) fn new(config: CoordinatorConfig, planner: Box<dyn Planner + Send>) -> Self {
        Self {
            planner,
            may_begin_anew: false,
            max_workers: None,
            record: RecordKeeper::default(),
            roster: Roster::new(config.timing.stay, config.names.clone()),
            outbox: Outbox::new(config.timing.repeat),
            progress: Progress::after(config.published),
            checkpoints: Checkpoints::default(),
            speeds: Speeds::default(),
            prepared_plans: PreparedPlans::default(),
            bad_links: BadLinks::default(),
            quarantine: Quarantine::default(),
            comparison: Comparison::default(),
            without_commit: GenerationsWithoutCommit::default(),
            diverged: None,
            enough_since: None,
            last_reports: LastReports::default(),
            ticked_at: Time(0),
            resumed_at: Time(0),
            config,
        }
    }

    /// Reports a problem once, until a different one is reported.
    pub(super) fn report_problem(&mut self, event: Event, turn: &mut Turn<'_>) {
        if self.last_reports.problem.as_ref() != Some(&event) {
            self.last_reports.problem = Some(event.clone());
            turn.event(event);
        }
    }

    /// A generation was told to go.
    pub(super) fn generation_runs(&mut self, plan: &Plan, now: Time) {
        let step = self.progress.step();
        for worker in plan.members() {
            self.roster.trains_from(*worker, step);
        }
        self.progress.at = now;
        self.last_reports.problem = None;
        self.roster.begin_generation(now, self.config.timing.stay);
        self.prepared_plans.forget();
        self.weigh_losses(plan);
    }

    /// Requests a checkpoint beyond the present state, if there is a store.
    pub(super) fn want_checkpoint(&mut self) {
        if self.config.final_checkpoint {
            self.checkpoints.request(Purpose::Regular);
        }
    }

    /// Orders the requested checkpoint in a running generation.
    pub(super) fn order_checkpoint(&mut self, target: &Plan, turn: &mut Turn<'_>) {
        let interval = self.adaptive_interval(turn.now);
        if self.config.final_checkpoint {
            let every = self.config.save_every;
            self.checkpoints.request_by_age(turn.now, every, interval);
        }
        self.report_interval(interval, turn);
        if self.config.final_checkpoint
            && let Some(purpose) = self.due_before_an_end(target, turn.now)
        {
            self.checkpoints.request(purpose);
        }
        // The members' statuses may be of steps that were given up. A checkpoint would then be made after each step until those are reached.
        let reached = self.reached_in_force().map_or(Step(0), |state| state.step);
        let wanted = self
            .checkpoints
            .wanted_after(turn.now, target.generation, reached);
        let Some(after) = wanted else { return };
        for to in turn.scope.among(target.members()) {
            self.outbox.order(turn, *to, Order::Save { after });
        }
        if self
            .checkpoints
            .is_listing_due(turn.now, self.config.timing.heartbeat)
        {
            turn.push(CoordinatorEffect::ListCheckpoints);
        }
    }

    /// The checkpoint to order because a member leaves. It may still train until then, because there is no plan without it, and steps after the
    /// last checkpoint would be lost with it.
    fn due_before_an_end(&mut self, target: &Plan, now: Time) -> Option<Purpose> {
        if let Some(leaves_at) = self.roster.first_leaves_at(|w| target.has(w)) {
            let step = self.progress.commits.mean_step_time().unwrap_or_default();
            let step_ends = self.progress.commits.next_at(now);
            return self.checkpoints.due_before(now, leaves_at, step_ends, step);
        }
        let leaves = |w: &WorkerId| self.roster.get(*w).is_some_and(Worker::is_draining);
        let is_due = self.record.stored.next.is_none()
            && self
                .checkpoints
                .is_due_before_an_unknown_end(now, self.config.assumed_notice)
            && target.members().iter().any(leaves);
        is_due.then_some(Purpose::Extra)
    }

    /// The newest state that the run is known to have reached since it last went back, under the plan in force or the plan before a switch.
    /// Commits under earlier plans may have been given up.
    pub(super) fn reached_in_force(&self) -> Option<StateId> {
        let plan = self.record.stored.plan.as_ref()?;
        let (base, since) = match plan.base {
            Base::Fixed { id, .. } => (Some(id), plan.generation),
            Base::AtSwitch { from } => (None, from),
        };
        base.max(self.progress.newest_since(since))
    }

    /// Releases all workers at once.
    pub(super) fn release_all(&self, turn: &mut Turn<'_>) {
        for to in self.roster.connected() {
            turn.send(to, Order::Release);
        }
    }
}
