//! Recovery: fence, collect inventories, decide where to resume, plan.

use super::active::Active;
use super::config::{CoordinatorEffect, Listing};
use super::considered::Considered;
use super::event::Event;
use super::resume::{Evidence, Resume};
use super::shared::Shared;
use super::turn::{Scope, Turn};
use crate::message::{Inventory, Order, Record, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use varuna_plan::deadline::MOST_DOUBLINGS;
use varuna_plan::{Base, Infeasible, Plan, StateId, Unit, WorkerId};

/// What a recovery comes to.
pub(super) enum Step {
    /// Answers, workers or time are lacking.
    Wait,
    /// There is a plan.
    Write(Record),
    /// No holder and no checkpoint is left for these units.
    GiveUp(Vec<Unit>),
}

/// A worker that is connected but does not answer is waited for so many times as long as one that is not.
const SILENT: u32 = 4;

/// All workers were told to stop; their inventories are waited for.
pub(super) struct Collecting {
    since: Time,
    answers: BTreeMap<WorkerId, Inventory>,
    /// Members and sources of the plans in the record that have not answered; none where it has to be found anew.
    missing: Option<BTreeSet<WorkerId>>,
    /// It was tried to resume: again only on the clock, since that looks at all that all workers hold.
    tried: bool,
    /// Complete checkpoints, once the store was listed.
    listing: Option<Listing>,
    /// When the store last confirmed them.
    confirmed_at: Time,
    ask_at: Time,
    /// What was in force: a write that is refused goes back to it.
    interrupted: Active,
}

impl Collecting {
    /// Tells all workers to stop and to say what they hold.
    pub(super) fn begin(
        mut interrupted: Active,
        because: String,
        shared: &mut Shared,
        turn: &mut Turn<'_>,
    ) -> Self {
        let upto = shared.record.stored.highest;
        if shared.record.stored.plan.is_some() {
            turn.event(Event::Fenced { upto, because });
        }
        interrupted.suspicion = None;
        shared.problem = None;
        shared.fruitless.note(interrupted.running(), &shared.progress);
        for to in shared.roster.connected() {
            turn.send(to, Order::Fence { upto });
        }
        turn.push(CoordinatorEffect::ListCheckpoints);
        Self {
            since: turn.now,
            answers: BTreeMap::new(),
            missing: None,
            tried: false,
            listing: None,
            confirmed_at: Time(0),
            ask_at: turn.now.after(shared.config.timing.ask_again),
            interrupted,
        }
    }

    /// A worker's answer to the fence.
    pub(super) fn take_answer(&mut self, from: WorkerId, inventory: Inventory) {
        self.answers.insert(from, inventory);
        if let Some(missing) = &mut self.missing {
            missing.remove(&from);
        }
    }

    /// The worker's stream has ended: it may hold something else when it comes back.
    pub(super) fn forget_answer(&mut self, from: WorkerId) {
        self.answers.remove(&from);
        self.missing = None;
    }

    /// What the store said. Once it has answered in this recovery, a later failure to answer takes nothing away.
    pub(super) fn take_listing(&mut self, now: Time, listing: Listing) {
        if listing.fresh {
            self.confirmed_at = now;
        }
        let fresh = listing.fresh || self.listing.as_ref().is_some_and(|l| l.fresh);
        self.listing = Some(Listing { fresh, ..listing });
    }

    /// Back to what was in force. The store was listed a moment ago: not again before it is due.
    pub(super) fn into_interrupted(mut self) -> Active {
        self.interrupted.list_at = self.ask_at;
        self.interrupted
    }

    pub(super) fn step(&mut self, shared: &mut Shared, turn: &mut Turn<'_>) -> Step {
        self.ask_again(shared, turn);
        shared.let_distrusted_go(turn);
        shared.leave_out_distrusted(&mut self.answers);
        let missing = self.find_missing(shared, turn.scope);
        let gone = missing.iter().all(|w| shared.roster.is_disconnected(*w));
        let collected = turn.now >= self.since.after(shared.config.timing.collect);
        let tried = std::mem::replace(&mut self.tried, gone || collected) && turn.scope != Scope::Everyone;
        if !bug!(RecoverWithoutWaiting) && ((!gone && !collected) || tried) {
            return Step::Wait;
        }
        let missing: Vec<WorkerId> = self.missing.iter().flatten().copied().collect();
        if shared.comparison.rolls_back {
            return self.roll_back(missing, shared, turn);
        }
        let Some(checkpoints) = self.usable_checkpoints(shared) else {
            return Step::Wait;
        };
        let evidence = Evidence {
            layout: shared.config.layout,
            answers: &self.answers,
            persisted: shared.record.decision(),
            checkpoints: &checkpoints,
        };
        match evidence.resume() {
            Some(resume) if self.may_resume(&resume, &missing, shared, turn.now) => {
                self.recover(resume, missing, shared, turn)
            }
            None if self.may_give_up(missing, shared, turn.now) => Step::GiveUp(evidence.uncovered()),
            _ => Step::Wait,
        }
    }

    /// What is in memory and nothing newer is known of can be resumed from at once. Steps are given up only after a while; so is
    /// what the store may have since it last answered.
    fn may_resume(&self, resume: &Resume, missing: &[WorkerId], shared: &Shared, now: Time) -> bool {
        let ended = missing.iter().all(|w| shared.roster.has_ended(*w)) || bug!(GiveUpStepsAtOnce);
        let waited = now >= self.waiting_since(shared).after(self.patience(missing, shared));
        let newest = resume.tip || ended || waited;
        let confirmed = !resume.checkpoint || self.is_listing_fresh() || waited;
        newest && confirmed && (self.listing.is_some() || !resume.checkpoint)
    }

    /// Only by what the store says now, and when all who may hold state are gone for long: also those whom no plan names any more.
    fn may_give_up(&self, mut missing: Vec<WorkerId>, shared: &Shared, now: Time) -> bool {
        let answered = |w: &WorkerId| self.answers.contains_key(w);
        missing.extend(shared.roster.workers.keys().filter(|w| !answered(w)));
        let timing = &shared.config.timing;
        let away = if bug!(GiveUpBeforeRestore) {
            timing.grace
        } else {
            timing.restore.max(timing.grace).max(timing.lost)
        };
        let paused_until = resumed_at(shared);
        let long_gone = |w: &WorkerId| {
            let down = shared.roster.disconnected_at(*w).max(paused_until).after(away);
            shared.roster.is_disconnected(*w) && (shared.roster.has_ended(*w) || now > down)
        };
        let all_gone = !missing.is_empty() && missing.iter().all(long_gone);
        let longest = (timing.restore * SILENT).max(timing.lost);
        let waited = now >= self.waiting_since(shared).after(longest) || bug!(GiveUpOnConnected);
        // What the last ones put may still be on its way to the store.
        let put = shared.config.final_checkpoint && !bug!(GiveUpBeforeUploads);
        let all_gone = all_gone && (!put || now >= self.waiting_since(shared).after(timing.restore));
        let just_now = now <= self.confirmed_at.after(timing.ask_again * 3) || bug!(TrustOldListing);
        self.is_listing_fresh() && just_now && (all_gone || waited)
    }

    /// Since when answers are waited for.
    fn waiting_since(&self, shared: &Shared) -> Time {
        self.since.max(resumed_at(shared))
    }

    /// How long holders are waited for that do not answer. Longer where one is connected: it was paused, or what it has in hand
    /// takes its time.
    fn patience(&self, missing: &[WorkerId], shared: &Shared) -> Duration {
        let connected = |w: &WorkerId| shared.roster.status(*w).is_some() && !bug!(GiveUpOnConnected);
        let restore = shared.config.timing.restore;
        restore * if missing.iter().any(connected) { SILENT } else { 1 }
    }

    fn is_listing_fresh(&self) -> bool {
        bug!(TrustOldListing) || self.listing.as_ref().is_some_and(|l| l.fresh)
    }

    /// Fences and the list of checkpoints are asked for on a clock.
    fn ask_again(&mut self, shared: &Shared, turn: &mut Turn<'_>) {
        if turn.now < self.ask_at {
            return;
        }
        self.ask_at = turn.now.after(shared.config.timing.ask_again);
        let upto = shared.record.stored.highest;
        for to in shared.roster.connected() {
            if !self.answers.contains_key(&to) {
                turn.send(to, Order::Fence { upto });
            }
        }
        turn.push(CoordinatorEffect::ListCheckpoints);
    }

    /// Members and sources of the plans in the record that have not answered.
    fn find_missing(&mut self, shared: &Shared, scope: Scope) -> &BTreeSet<WorkerId> {
        if scope == Scope::Everyone {
            self.missing = None;
        }
        let answers = &self.answers;
        self.missing.get_or_insert_with(|| {
            let mut expected: BTreeSet<WorkerId> = BTreeSet::new();
            for plan in shared.record.plans() {
                expected.extend(plan.members());
                expected.extend(plan.sources.iter().flatten());
            }
            expected.retain(|w| !answers.contains_key(w) && !shared.roster.is_distrusted(*w));
            expected
        })
    }

    /// Complete checkpoints; the initial state is one (made from the seed) only while nothing is known to have been committed.
    /// None while the store was not listed: before the first plan, whose number must be greater than those in the store.
    fn usable_checkpoints(&self, shared: &Shared) -> Option<Vec<StateId>> {
        let planned = shared.record.stored.plan.is_some() && !bug!(WaitForSilentStore);
        let Some(mut list) = self.listing.as_ref().map(|l| l.complete.clone()) else {
            return planned.then(Vec::new);
        };
        let initial = |base: &Base| {
            matches!(
                base,
                Base::Fixed {
                    id: StateId::INITIAL,
                    ..
                }
            )
        };
        // A pending change proves no commit: its switch rides on one, and who has switched reports it.
        let counts = |p: &&std::sync::Arc<Plan>| {
            bug!(PendingChangeIsProgress) || p.generation == shared.record.generation()
        };
        let moved = shared.record.plans().filter(counts).any(|p| !initial(&p.base));
        let held = self.answers.values().flat_map(|i| i.units.values());
        let held = held.into_iter().any(|id| *id != StateId::INITIAL);
        let known = match shared.record.stored.trust.began_anew() {
            Some(generation) => shared.progress.is_known_since(generation),
            None => shared.progress.is_known(),
        };
        let nothing_committed = !moved && !held && !known;
        list.retain(|id| *id != StateId::INITIAL);
        if nothing_committed || shared.may_begin_anew {
            list.push(StateId::INITIAL);
        }
        Some(list)
    }

    /// Nobody knows which of the holders has the right bits: back to the newest checkpoint whose state was compared, and where there
    /// is none, to the seed. By what the store says now: a newer one may have been completed.
    fn roll_back(&mut self, missing: Vec<WorkerId>, shared: &mut Shared, turn: &mut Turn<'_>) -> Step {
        let Some(listing) = self.listing.as_ref().filter(|l| l.fresh) else {
            return Step::Wait;
        };
        let compared = shared.record.stored.trust.newest_compared(&listing.complete);
        let to = compared.unwrap_or(StateId::INITIAL);
        let resume = Resume {
            id: to,
            decision: None,
            checkpoint: true,
            sources: vec![Vec::new(); shared.config.layout.units()],
            tip: true,
        };
        match self.plan(resume, missing, shared, turn) {
            Some(plan) => Step::Write(shared.record.with_rollback(plan, to)),
            None => Step::Wait,
        }
    }

    fn recover(
        &mut self,
        resume: Resume,
        missing: Vec<WorkerId>,
        shared: &mut Shared,
        turn: &mut Turn<'_>,
    ) -> Step {
        let id = resume.id;
        let stored = self.listing.as_ref().is_some_and(|l| l.complete.contains(&id));
        let plan = self.plan(resume, missing, shared, turn);
        plan.map_or(Step::Wait, |plan| Step::Write(shared.resume_at(id, stored, plan)))
    }

    /// The plan that resumes there; none while workers are lacking, or the store refuses writes.
    fn plan(
        &mut self,
        resume: Resume,
        missing: Vec<WorkerId>,
        shared: &mut Shared,
        turn: &mut Turn<'_>,
    ) -> Option<Plan> {
        if shared.record.delays_writes(turn.now) {
            return None;
        }
        let pool = self.pool(shared, turn)?;
        let mut held: BTreeMap<WorkerId, Vec<Unit>> = BTreeMap::new();
        for (unit, sources) in shared.config.layout.all_units().zip(&resume.sources) {
            for worker in sources {
                held.entry(*worker).or_default().push(unit);
            }
        }
        let request = shared.request(&pool, held);
        let prepared = shared.prepared_plans.take(&request).map(Ok);
        let shape = match prepared.unwrap_or_else(|| shared.planner.plan(&request)) {
            Ok(shape) => shape,
            Err(Infeasible(reason)) => {
                shared.report_problem(Event::NoPlan { reason }, turn);
                return None;
            }
        };
        let reason = why(shared, &missing);
        if shared.record.stored.plan.is_some() {
            let answered = self.answers.keys().copied().collect();
            turn.event(Event::Collected { answered, missing });
        }
        let base = Base::Fixed {
            id: resume.id,
            decision: resume.decision.filter(|_| !bug!(RecoverWithoutDecision)),
            checkpoint: resume.checkpoint,
        };
        let mut plan = shared.document(base, shape, resume.sources, reason);
        plan.deadline.doublings = doublings(shared);
        plan.relay = !bug!(NoRelay) && shared.bad_links.any(turn.now);
        plan.evidence = self.usable(shared);
        self.interrupted.considered = Some(Considered::now(pool, shared, turn.now));
        Some(plan)
    }

    /// Who answered and can be reached.
    fn usable(&self, shared: &Shared) -> Vec<WorkerId> {
        let up = |w: &WorkerId| shared.roster.status(*w).is_some();
        self.answers.keys().copied().filter(up).collect()
    }

    /// Whom the next plan may use; none while there are too few, or more may come for the first plan.
    fn pool(&self, shared: &mut Shared, turn: &mut Turn<'_>) -> Option<Vec<WorkerId>> {
        let need = shared.config.min_workers;
        let mut from = shared.roster.staying();
        from.retain(|w| bug!(PlanWithUnanswered) || self.answers.contains_key(w));
        let mut pool = shared.pool(turn.now, &from);
        // Rather one that will go than two that cannot reach one another.
        let enough = pool.len() >= need && (bug!(KeepBadLink) || !shared.bad_links.is_among(turn.now, &pool));
        if !enough && !bug!(NeverUseDraining) {
            from = self.usable(shared);
            pool = shared.pool(turn.now, &from);
        }
        let have = pool.len();
        if have < need {
            // everyone stays fenced and keeps its state until more come
            shared.report_problem(Event::BelowMinimum { have, need }, turn);
            return None;
        }
        if shared.record.stored.plan.is_none() {
            let since = *shared.enough_since.get_or_insert(turn.now);
            let awaited = [shared.max_workers, shared.config.expected_workers];
            let full = awaited.into_iter().flatten().any(|n| have >= n);
            if !full && turn.now < since.after(shared.config.timing.gather) {
                return None;
            }
        }
        Some(pool)
    }
}

/// How often the deadline of a step doubles.
fn doublings(shared: &Shared) -> u32 {
    let most = if bug!(DeadlineNeverGrows) {
        0
    } else {
        MOST_DOUBLINGS
    };
    shared.fruitless.generations.min(most)
}

/// While the coordinator itself was paused nobody could come back or answer: time counts from here.
fn resumed_at(shared: &Shared) -> Time {
    if bug!(CountOwnPauseAsWaiting) {
        Time(0)
    } else {
        shared.resumed_at
    }
}

/// Why there is another plan, for people.
fn why(shared: &Shared, missing: &[WorkerId]) -> String {
    let names: Vec<String> = missing.iter().map(|w| shared.roster.name(*w)).collect();
    match (shared.record.stored.plan.is_none(), names.is_empty()) {
        (true, _) => "the run begins".to_owned(),
        (false, true) => "everyone answered the fence".to_owned(),
        (false, false) => format!("lost {}", names.join(", ")),
    }
}
