//! The active mode: launches the plan in force, watches its members, and promotes a planned change once its members have switched.

use super::all_of::AllOf;
use super::catching_up::CatchingUp;
use super::config::{CoordinatorEffect, Timing};
use super::considered::{Considered, Refused};
use super::event::Event;
use super::launching::LateLaunches;
use super::shared::Shared;
use super::turn::{Next, Scope, Turn};
use crate::message::{Order, Phase, Status, Time};
use std::sync::Arc;
use varuna_plan::{Generation, Plan, WorkerId};

/// What this coordinator knows about the plan in force and the planned change under way. It survives a recovery and a write: if the write
/// is refused, the coordinator goes back to it. Generation fields are compared with the plans in the record; an older one means "not yet".
#[derive(Default)]
pub(super) struct Active {
    /// The last generation whose members were told to go.
    go_sent: Generation,
    /// The last generation for which all members were seen connected.
    connected: Generation,
    all: AllMembers,
    /// Which members of the present and the next plan are connected to their peers of the next plan.
    pub(super) present_ready: AllOf,
    pub(super) next_ready: AllOf,
    /// Whether a planned change is waiting for its newcomers to catch up, and since when.
    pub(super) catching_up: CatchingUp,
    /// The last switch that was seen to have been decided.
    switch: Option<DecidedSwitch>,
    /// The last planned change whose members were armed.
    pub(super) armed: Generation,
    /// The last planned change that has taken place.
    promoted: Generation,
    /// The last planned change that this coordinator proposed itself.
    pub(super) proposed: Generation,
    /// When the newest plan was written, or found.
    pub(super) planned_at: Time,
    /// No planned change is proposed before this time.
    pub(super) change_after: Time,
    /// When a planned change was last considered.
    pub(super) considered: Option<Considered>,
    /// A planned change to use idle workers that was rejected because its gain would not cover its cost.
    pub(super) refused: Option<Refused>,
    /// A suspicion that arrived while the record was being written, or while a new coordinator settled. It is handled later.
    pub(super) suspicion: Option<(Generation, String)>,
    /// Changes in a row that were cancelled because connecting took too long. Each one gives the next more time.
    pub(super) slow_changes: u32,
    late_launches: LateLaunches,
    /// The change that cannot succeed, and why.
    pub(super) cancel_because: Option<(Generation, String)>,
    /// When the store is listed again for the last step's checkpoint.
    pub(super) list_at: Time,
    /// While nothing changes: when all workers are checked again.
    look_at: Time,
}

/// Conditions that every member has to meet.
#[derive(Default)]
struct AllMembers {
    connected: AllOf,
    ready: AllOf,
    finished: AllOf,
}

/// A switch to the next plan that its members have decided.
#[derive(Clone, Copy)]
struct DecidedSwitch {
    generation: Generation,
    /// When it was first seen.
    seen_at: Time,
    /// A worker that was seen to be based in the generation.
    based: WorkerId,
}

impl Active {
    /// Nothing is known yet. The store is not listed before `list_at`.
    pub(super) fn asking_at(list_at: Time) -> Self {
        Self {
            list_at,
            ..Self::default()
        }
    }

    /// Go was sent to the generation's members.
    pub(super) fn is_running(&self, generation: Generation) -> bool {
        self.go_sent == generation
    }

    /// Whether it is certain that no member is armed for this change yet.
    pub(super) fn may_cancel(&self, generation: Generation) -> bool {
        self.armed != generation && (self.proposed == generation || bug!(CancelUnknownChange))
    }

    /// The last generation whose members were told to go.
    pub(super) fn running(&self) -> Generation {
        self.go_sent
    }

    /// Continues with a plan that an earlier coordinator left.
    pub(super) fn resume_inherited(&mut self, shared: &mut Shared, now: Time) {
        self.planned_at = now;
        shared.progress.at = now;
        self.change_after = now.after(shared.config.timing.change_delay);
    }

    /// A write failed: after a delay, what it contained is proposed again.
    pub(super) fn write_failed(&mut self, now: Time, timing: &Timing) {
        self.considered = None;
        self.change_after = now.after(timing.change_delay * 3);
    }

    pub(super) fn step(&mut self, shared: &mut Shared, turn: &mut Turn<'_>) -> Next {
        let stored = &shared.record.stored;
        let Some(plan) = stored.plan.clone().filter(|_| !stored.is_stopped()) else {
            return Next::Recover("no plan that anybody runs".into());
        };
        let next = shared.record.stored.next.clone();
        if next.is_none() && self.is_quiet(shared, turn, &plan) {
            return Next::Stay;
        }
        let switched = next
            .as_ref()
            .is_some_and(|n| self.has_switched(shared, turn, &plan, n));
        let target = next.clone().filter(|_| switched).unwrap_or_else(|| plan.clone());
        let broken = self.take_suspicion(shared);
        let broken = broken.or_else(|| broken_off(shared, turn, &target));
        let broken = broken.or_else(|| shared.corruption_reason());
        fence_older_generations(shared, turn, &target);
        shared.send_last_step(turn);
        if let Some(because) = broken.or_else(|| self.launch(shared, turn, &target)) {
            return Next::Recover(because);
        }
        let finished = self.has_finished(shared, turn.scope, &target);
        let patience = shared.progress.step_deadline(&target).saturating_mul(4);
        let running = self.is_running(target.generation);
        let stalled = !bug!(NoStallDetection) && turn.now > shared.progress.at.after(patience);
        if running && !finished && stalled {
            return Next::Recover("no step was committed for four deadlines".into());
        }
        if !shared.is_last_step_written() {
            return Next::Write(shared.record.stored.clone());
        }
        let unreported_commits = shared.ask_for_commits(turn);
        if finished && !unreported_commits {
            return self.finish(shared, turn);
        }
        if finished {
            return Next::Stay;
        }
        if running {
            shared.order_checkpoint(&target, turn);
        }
        let compared = shared
            .comparison
            .unwritten
            .filter(|_| running && turn.now >= self.change_after);
        if let Some(id) = compared {
            shared.comparison.unwritten = None;
            return Next::Write(shared.record.with_compared(id));
        }
        match next {
            Some(next) if switched && running => {
                self.promote(next, shared, turn);
                Next::Stay
            }
            Some(_) if switched => Next::Stay,
            Some(next) => self.change(shared, turn, &plan, &next),
            None if running && turn.now >= self.change_after && turn.scope == Scope::Everyone => {
                match self.propose(shared, turn, &plan) {
                    Some(next) => Next::Write(shared.record.with_next(Some(next))),
                    None if shared.record.is_promotion_due(turn.now) => {
                        Next::Write(shared.record.stored.clone())
                    }
                    None => {
                        shared.prepare_plan(turn.now);
                        Next::Stay
                    }
                }
            }
            None => Next::Stay,
        }
    }

    /// True if the generation is training, no worker joined, left or announced its leave, and all were checked a moment ago: thousands of
    /// workers need not be checked on every tick. A worker that sends something is checked when it does.
    fn is_quiet(&mut self, shared: &Shared, turn: &Turn<'_>, plan: &Plan) -> bool {
        let writes = !shared.is_last_step_written() || shared.record.is_promotion_due(turn.now);
        if turn.scope != Scope::Everyone || writes {
            return false;
        }
        let trains = self.is_running(plan.generation) && self.suspicion.is_none();
        let known = self
            .considered
            .as_ref()
            .is_some_and(|c| c.holds(shared, turn.now, plan));
        if trains && known && turn.now < self.look_at {
            return true;
        }
        self.look_at = turn.now.after(shared.config.timing.repeat / 2);
        false
    }

    /// Whether all members run in this generation and have reached the last step. The step alone proves nothing: a member that is still
    /// loading reports the state that it had before.
    fn has_finished(&mut self, shared: &Shared, scope: Scope, target: &Plan) -> bool {
        let (generation, last_step) = (target.generation, shared.last_step());
        let finished = |s: Status| {
            (s.generation == generation || bug!(FinishedInAnyGeneration))
                && (s.phase == Phase::Running || bug!(FinishedInAnyPhase))
                && s.at.step >= last_step
        };
        let finished = |w| shared.roster.status(w).is_some_and(finished);
        self.all
            .finished
            .holds(scope, generation, target.members(), finished)
    }

    /// Whether some worker is based in the next generation, so that the switch has been decided.
    fn has_switched(&mut self, shared: &Shared, turn: &Turn<'_>, plan: &Plan, next: &Plan) -> bool {
        let is_based = |w: WorkerId| {
            shared.roster.status(w).is_some_and(|s| {
                let based = s.based && !bug!(SwitchedOnlyWhenRunning);
                s.generation == next.generation && (based || s.phase == Phase::Running)
            })
        };
        let seen = self.switch.filter(|s| s.generation == next.generation);
        if seen.is_some_and(|s| is_based(s.based)) {
            return true;
        }
        // If the worker that was seen is gone, another one may qualify whose status arrived earlier, so all are checked.
        let scope = if seen.is_some() {
            Scope::Everyone
        } else {
            turn.scope
        };
        let mut all = scope
            .among(plan.members())
            .iter()
            .chain(scope.among(next.members()));
        let Some(based) = all.find(|w| is_based(**w)) else {
            return false;
        };
        self.switch = Some(DecidedSwitch {
            generation: next.generation,
            seen_at: seen.map_or(turn.now, |s| s.seen_at),
            based: *based,
        });
        true
    }

    /// Since when the members have been able to load the generation's state. Members of a planned change cannot before the switch:
    /// newcomers follow the run and the step is finished first, and neither counts as time for loading.
    fn can_load_since(&self, generation: Generation) -> Time {
        let switch = self
            .switch
            .filter(|s| s.generation == generation && !bug!(LaunchFromPlan));
        switch.map_or(self.planned_at, |s| s.seen_at)
    }

    /// The next plan is the one in force from here on.
    fn promote(&mut self, next: Arc<Plan>, shared: &mut Shared, turn: &mut Turn<'_>) {
        let generation = next.generation;
        let due = turn.now.after(shared.config.timing.promotion);
        shared.record.promote(next, due);
        // After a write whose outcome was unclear the record is read, which may not show it.
        if self.promoted != generation {
            self.promoted = generation;
            turn.event(Event::Switched { generation });
        }
    }

    /// Takes the suspicion that had to wait.
    fn take_suspicion(&mut self, shared: &Shared) -> Option<String> {
        let (generation, because) = self.suspicion.take()?;
        let here = shared.record.plans().any(|p| p.generation == generation);
        here.then_some(because)
    }

    /// Everyone is at the last step.
    fn finish(&mut self, shared: &Shared, turn: &mut Turn<'_>) -> Next {
        if bug!(DoneWithoutFinalCheckpoint) || !shared.config.final_checkpoint {
            return Next::Write(shared.record.with_done());
        }
        if shared.checkpoints.last.is_damaged(shared.progress.best) {
            return Next::Recover("the checkpoint of the last step was found damaged".to_owned());
        }
        if turn.now >= self.list_at {
            self.list_at = turn.now.after(shared.config.timing.ask_again);
            turn.push(CoordinatorEffect::ListCheckpoints);
        }
        Next::Stay
    }

    /// Sends the plan to the workers without it, and Go once all are ready. Returns the reason for failure if it takes too long.
    fn launch(&mut self, shared: &mut Shared, turn: &mut Turn<'_>, target: &Arc<Plan>) -> Option<String> {
        let generation = target.generation;
        let first = !self.is_running(generation);
        if first {
            for (to, status) in shared.roster.statuses(turn.scope) {
                let lacks = status.generation < generation && status.next != generation;
                if target.involves(to) && lacks {
                    shared.outbox.order(turn, to, Order::Prepare(target.clone()));
                }
            }
        }
        let members = target.members();
        let status = |w| shared.roster.status(w);
        let is_linked = |w| status(w).is_some_and(|s| s.generation == generation && s.connected);
        if self.connected != generation
            && self
                .all
                .connected
                .holds(turn.scope, generation, members, is_linked)
        {
            self.connected = generation;
            turn.event(Event::Connected { generation });
        }
        let here = |s: Status| s.generation == generation || bug!(ReadyInAnyGeneration);
        let is_ready = |w| status(w).is_some_and(|s| here(s) && s.phase >= Phase::Ready);
        let early = bug!(GoEarly) && members.iter().any(|w| is_ready(*w));
        let ready = |all: &mut AllOf| all.holds(turn.scope, generation, members, is_ready);
        if first && !early && !ready(&mut self.all.ready) {
            let allowed = self.late_launches.allowed(target, &shared.config.timing);
            let deadline = shared.progress.step_deadline(target) + allowed;
            let late = !bug!(NoLaunchDeadline) && turn.now > self.can_load_since(generation).after(deadline);
            return late.then(|| {
                self.late_launches.note(generation);
                format!("generation {generation} did not start in time")
            });
        }
        if first {
            self.go_sent = generation;
            self.late_launches.end();
            self.change_after = turn.now.after(shared.config.timing.change_delay);
            shared.generation_runs(target, turn.now);
            turn.event(Event::Running { generation });
        }
        send_go(shared, turn, target, first, early);
        None
    }
}

/// A worker whose fence was lost with its stream stays in an older generation. It is fenced again: until it stops, it can join nothing
/// else.
fn fence_older_generations(shared: &mut Shared, turn: &mut Turn<'_>, target: &Plan) {
    let in_force = shared.record.generation();
    for (to, status) in shared.roster.statuses(turn.scope) {
        let older = status.generation > Generation(0) && status.generation < in_force;
        if older && !target.involves(to) && !bug!(LeaveOlderGeneration) {
            let upto = status.generation;
            shared.outbox.order(turn, to, Order::Fence { upto });
        }
    }
}

/// The reason why the generation cannot continue, if the coordinator can see one itself.
fn broken_off(shared: &Shared, turn: &Turn<'_>, target: &Plan) -> Option<String> {
    let g = target.generation;
    let members = turn.scope.among(target.members());
    let silent = |w: &&WorkerId| !bug!(IgnoreSilentMember) && is_away(shared, turn.now, **w);
    if let Some(silent) = members.iter().find(silent) {
        return Some(format!("{} is silent", shared.roster.name(*silent)));
    }
    let fenced =
        |w: &&WorkerId| !bug!(IgnoreFencedMember) && shared.roster.status(**w).is_some_and(|s| s.fenced >= g);
    let fenced = members.iter().find(fenced)?;
    let name = shared.roster.name(*fenced);
    Some(format!("{name} was fenced past generation {g}"))
}

/// Whether the worker has had no stream for too long while no step was committed. A commit would prove that all members are alive.
fn is_away(shared: &Shared, now: Time, worker: WorkerId) -> bool {
    let since = shared.progress.at.max(shared.roster.disconnected_at(worker));
    shared.roster.status(worker).is_none() && now > since.after(shared.config.timing.grace)
}

/// Sends Go to all members the first time, and later only to those that still wait for it. Drained workers are released.
fn send_go(shared: &mut Shared, turn: &mut Turn<'_>, target: &Plan, first: bool, early: bool) {
    let generation = target.generation;
    let scope = if first { Scope::Everyone } else { turn.scope };
    for (to, status) in shared.roster.statuses(scope) {
        let here = status.generation == generation;
        let waits = here && matches!(status.phase, Phase::Ready | Phase::Source);
        let spare = !target.involves(to) && status.generation < generation;
        if waits || (first && (spare || early)) {
            shared.outbox.order(turn, to, Order::Go { generation });
        }
        let idle = status.phase == Phase::Idle && status.next != generation;
        let may_go = idle || bug!(ReleaseBusyWorker);
        let leaves = status.draining || shared.roster.is_corrupt(to);
        if !first && !target.has(to) && leaves && may_go {
            shared.release_worker(to, turn);
        }
    }
}
