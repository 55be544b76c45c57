//! Handles what workers send, in every mode: streams, statuses, inventories, commits.

use super::config::Hello;
use super::event::{Divergence, Event};
use super::shared::Shared;
use super::turn::{Scope, Turn};
use crate::message::{Inventory, Order, Phase, Status, Suspicion, Time};
use crate::record::Record;
use std::time::Duration;
use varuna_plan::{Base, Decision, Generation, StateId, Step, WorkerId};

impl Shared {
    /// After a pause of the coordinator itself, which shows with the first input that follows, the coordinator waits for workers anew
    /// instead of declaring them all dead.
    pub(super) fn notice_own_pause(&mut self, now: Time) {
        let late = now > self.ticked_at.after(self.config.timing.heartbeat * 2);
        if !late || bug!(PauseSilencesEverybody) {
            return;
        }
        self.ticked_at = now;
        self.resumed_at = now;
        self.progress.commits.note_own_pause();
        for worker in self.roster.workers.values_mut().filter(|w| w.connected) {
            worker.heard_at = now;
        }
    }

    /// A stream on which nothing has arrived for too long counts as down.
    pub(super) fn listen(&mut self, turn: &mut Turn<'_>) {
        let silent_after = self.config.timing.silent;
        self.ticked_at = turn.now;
        let connected = self.roster.workers.iter().filter(|(_, w)| w.connected);
        let silent = connected.filter(|(_, w)| turn.now > w.heard_at.after(silent_after));
        let silent: Vec<WorkerId> = silent.map(|(id, _)| *id).collect();
        for id in silent {
            self.lose_stream(id, turn);
        }
        self.forget_gone();
    }

    /// Forgets workers that have left, unless a plan in the record names them.
    fn forget_gone(&mut self) {
        let record = &self.record;
        let is_needed = |id| bug!(KeepGoneWorkers) || record.plans().any(|p| p.involves(id));
        for worker in self.roster.forget_gone(is_needed) {
            self.outbox.forget(worker);
            self.speeds.forget(worker);
            self.quarantine.data_errors.forget(worker);
            self.quarantine.exhausted.forget(worker);
        }
    }

    pub(super) fn stream_up(&mut self, from: WorkerId, hello: Hello, turn: &mut Turn<'_>) {
        self.outbox.forget(from);
        if let Some(hardware) = &hello.hardware {
            self.planner.note_worker(hardware, &hello.node);
        }
        if let Some(scores) = hello.scores {
            self.planner.meet_scores(scores);
        }
        let is_new = self.roster.hello(from).is_none();
        if self.roster.connect(from, hello, turn.now) {
            self.emit_joined(from, turn);
        }
        if is_new {
            self.inherit_limit(from);
        }
    }

    fn emit_joined(&self, worker: WorkerId, turn: &mut Turn<'_>) {
        if let Some(Hello { name, address, .. }) = self.roster.hello(worker) {
            turn.event(Event::WorkerJoined {
                worker,
                name: name.clone(),
                address: address.clone(),
            });
        }
    }

    pub(super) fn lose_stream(&mut self, from: WorkerId, turn: &mut Turn<'_>) {
        let name = self.roster.name(from);
        if self.roster.disconnect(from, turn.now) {
            self.judge_end(from, &name, turn.now);
            turn.event(Event::WorkerLost { worker: from, name });
        }
    }

    /// Notes that a member ended. One that ends within its first steps may do so again and again.
    fn judge_end(&mut self, worker: WorkerId, name: &str, now: Time) {
        if !self.record.plans().any(|p| p.has(worker)) || self.roster.is_corrupt(worker) {
            return;
        }
        let first = self.roster.get(worker).and_then(|w| w.first_step);
        let lived = first.map_or(0, |first| self.progress.step().0.saturating_sub(first.0));
        self.quarantine.ended(now, name, lived);
    }

    /// A recovery is planned with those that answered. Members of the plan in force that did not are lost: nothing was planned around them.
    pub(super) fn collected(&mut self, answered: Vec<WorkerId>, missing: Vec<WorkerId>, turn: &mut Turn<'_>) {
        if let Some(plan) = &self.record.stored.plan {
            let lost = missing.iter().copied().filter(|w| plan.has(*w)).collect();
            self.roster.losses.note(plan.generation, lost, turn.now);
        }
        turn.event(Event::Collected { answered, missing });
    }

    /// Another component reports that the worker will leave, and perhaps when.
    pub(super) fn notice(&mut self, from: WorkerId, leaves_in: Option<Duration>, turn: &mut Turn<'_>) {
        let leaves_at = leaves_in.or(self.config.notice).map(|time| turn.now.after(time));
        if self.roster.take_notice(from, leaves_at) {
            self.note_leaving(from, turn);
        }
        self.roster.mark_leaving(turn.now, self.config.timing.following);
    }

    fn note_leaving(&mut self, worker: WorkerId, turn: &mut Turn<'_>) {
        self.want_checkpoint();
        self.checkpoints.note_notice(turn.now);
        let name = self.roster.name(worker);
        turn.event(Event::WorkerDraining { worker, name });
    }

    /// A worker sent something. False if it never sent a Hello.
    pub(super) fn note_message(&mut self, from: WorkerId, turn: &mut Turn<'_>) -> bool {
        let back = self.roster.note_message(from, turn.now);
        if back == Some(true) {
            self.emit_joined(from, turn);
        }
        back.is_some()
    }

    /// Takes a worker's status.
    pub(super) fn status(&mut self, from: WorkerId, status: Status, turn: &mut Turn<'_>) {
        if self.roster.take_status(from, status) {
            self.note_leaving(from, turn);
            let leaves_at = self.config.notice.map(|time| turn.now.after(time));
            if leaves_at.is_some() {
                self.roster.take_notice(from, leaves_at);
                self.roster.mark_leaving(turn.now, self.config.timing.following);
            }
        }
        if matches!(status.phase, Phase::Running | Phase::Loading | Phase::Ready) {
            self.reached(status.at, turn.now);
        }
    }

    /// Notes that a member is or was at this state.
    pub(super) fn reached(&mut self, at: StateId, now: Time) {
        if at > self.progress.best {
            self.progress.best = at;
            self.progress.at = now;
            if !bug!(NeverResetFailedGenerations) {
                self.without_commit.generations = 0;
                self.clear_faults(at);
            }
        }
    }

    /// A worker suspects another worker, or the link to it, which is then planned around. Returns the reason as text for people.
    pub(super) fn note_suspicion(
        &mut self,
        from: WorkerId,
        about: WorkerId,
        why: Suspicion,
        now: Time,
    ) -> String {
        let of_link = match why {
            Suspicion::Gone | Suspicion::NoData | Suspicion::NoMemory(_) => false,
            Suspicion::Unreachable => true,
            Suspicion::Damaged => !bug!(ForgetDamage),
        };
        if of_link && about != from && !bug!(ForgetBadLinks) {
            let least = self.config.timing.bad_link;
            self.bad_links.mark(now, from, about, least);
        }
        let (who, whom) = (self.roster.name(from), self.roster.name(about));
        match (why, about == from) {
            (Suspicion::Unreachable, _) => format!("{who} cannot reach {whom}"),
            (Suspicion::Damaged, _) => format!("what {who} gets from {whom} is damaged"),
            (Suspicion::NoData, _) => format!("{who} cannot read its data or its model's code"),
            (Suspicion::NoMemory(shortage), _) => format!("{who} ran out of memory ({shortage})"),
            (Suspicion::Gone, false) => format!("{who} lost {whom}"),
            (Suspicion::Gone, true) => format!("{who} is stuck"),
        }
    }

    /// The answer to a fence is also a status: nothing runs on this worker.
    pub(super) fn inventory(&mut self, from: WorkerId, inventory: &Inventory, turn: &mut Turn<'_>) {
        let worker = self.roster.workers.get_mut(&from);
        if let Some(status) = worker.and_then(|w| w.status.as_mut()) {
            if !bug!(InventoryProvesNoFence) {
                status.fenced = status.fenced.max(inventory.upto);
            }
            status.generation = Generation(0);
            status.phase = Phase::Idle;
        }
        if let Some(decision) = inventory.decision {
            self.publish(decision, turn);
        }
    }

    /// A member reports a commit.
    pub(super) fn committed(&mut self, decision: Decision, turn: &mut Turn<'_>) {
        self.reached(decision.id, turn.now);
        self.publish(decision, turn);
    }

    /// Publishes a commit that is reported for the first time.
    pub(super) fn publish(&mut self, decision: Decision, turn: &mut Turn<'_>) {
        if self.progress.publishes(turn.now, &decision) {
            self.emit_commit(&decision, turn);
        }
    }

    /// Fences a worker. First it is asked for the commits that nobody has reported: it may be the only worker that knows them, and it may
    /// end as soon as it has answered.
    pub(super) fn fence(&self, to: WorkerId, turn: &mut Turn<'_>) {
        let after = self.progress.commits.step();
        let knows_more = self.roster.status(to).is_some_and(|s| s.at.step > after);
        if knows_more && !bug!(FenceWithoutTell) {
            turn.send(to, Order::Tell { after });
        }
        let upto = self.record.stored.highest;
        turn.send(to, Order::Fence { upto });
    }

    /// Takes the answer to Tell. `alone`: the worker was asked alone, not as part of a fence that asks everyone.
    pub(super) fn commits(
        &mut self,
        (after, decisions): (Step, Vec<Decision>),
        alone: bool,
        turn: &mut Turn<'_>,
    ) {
        for decision in self.progress.take_reported(turn.now, after, decisions, alone) {
            self.emit_commit(&decision, turn);
        }
    }

    /// Asks for commits that were not reported, first of all the workers that have trained longest, whether they are members or not. True
    /// while an answer is worth waiting for.
    pub(super) fn ask_for_commits(&mut self, turn: &mut Turn<'_>) -> bool {
        let timing = self.config.timing;
        let Some((since, misses)) = self.progress.unreported_commits(turn.now) else {
            return false;
        };
        if turn.now < since.after(timing.repeat) {
            return true; // they are on their way
        }
        let after = self.progress.commits.step();
        let statuses = self.roster.statuses(Scope::Everyone).into_iter();
        let trained_from = |w: WorkerId| self.roster.get(w).and_then(|w| w.first_step);
        let beyond = statuses.filter(|(_, s)| s.at.step > after);
        let mut knowing: Vec<(Step, WorkerId)> = beyond
            .map(|(w, _)| (trained_from(w).unwrap_or(Step(u64::MAX)), w))
            .collect();
        knowing.sort_unstable();
        self.progress.note_asked(knowing.len());
        if let Some((_, to)) = knowing.get(misses % knowing.len().max(1)) {
            self.outbox.order(turn, *to, Order::Tell { after });
        }
        turn.now < since.after(timing.settle)
    }

    fn emit_commit(&mut self, decision: &Decision, turn: &mut Turn<'_>) {
        let progress = decision.after(&self.config.loss_scaling);
        turn.event(Event::Committed {
            id: decision.id,
            generation: decision.id.run_gen,
            step: decision.id.step,
            loss: decision.mean_loss(),
            eval_loss: decision.eval_loss,
            gradient_norm: decision.norm2.sqrt(),
            overflow: decision.overflow,
            progress,
        });
        let limit = self.config.skip_limit;
        if limit.is_some_and(|limit| progress.failed_in_a_row > limit) && !bug!(SkipForEver) {
            // The first step beyond the limit is the one to report.
            self.diverged.get_or_insert(Divergence {
                step: decision.id.step,
                failed_in_a_row: progress.failed_in_a_row,
                loss_scale: decision.before.loss_scale.factor,
            });
        }
        if let Some(plan) = self.record.stored.plan.as_ref() {
            self.progress.note_step_time(plan);
        }
        self.compare_step_time(decision.id.run_gen, turn);
    }

    /// Emits events for what a write changed.
    pub(super) fn emit_write(&mut self, before: &Record, turn: &mut Turn<'_>) {
        if self.record.stored.trust.rollbacks != before.trust.rollbacks {
            self.comparison.begin_anew();
        }
        let new = self.record.plans().find(|p| p.generation > before.highest);
        if let Some(plan) = new.cloned() {
            turn.event(Event::Planned {
                generation: plan.generation,
                plan: plan.shape.summary(),
                workers: plan.members().len(),
                predicted_ms: plan.shape.predicted.step_ms,
                change: matches!(plan.base, Base::AtSwitch { .. }),
                reason: plan.reason.clone(),
            });
            let Base::Fixed {
                id,
                decision,
                checkpoint,
            } = plan.base
            else {
                return;
            };
            if let Some(decision) = decision {
                self.publish(decision, turn);
            }
            turn.event(Event::Resumed {
                generation: plan.generation,
                base: id,
                finished: decision.is_some(),
                restored: checkpoint,
            });
        }
    }
}
