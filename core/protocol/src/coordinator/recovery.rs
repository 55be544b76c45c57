//! Recovery: fence, collect inventories, decide where to resume, plan.

mod holder_wait;

use super::active::Active;
use super::catching_up::can_follow;
use super::config::{CoordinatorEffect, Listing};
use super::considered::Considered;
use super::event::Event;
use super::final_checkpoint::may_put_anew;
use super::resume::{Evidence, Resume};
use super::shared::Shared;
use super::turn::{Scope, Turn};
use crate::message::{Inventory, Time};
use crate::record::Record;
use holder_wait::HolderWait;
use std::collections::{BTreeMap, BTreeSet};
use varuna_plan::deadline::MOST_DOUBLINGS;
use varuna_plan::{Base, Infeasible, Plan, Shape, StateId, Unit, WorkerId};

/// What a recovery does next.
pub(super) enum Action {
    /// Wait: there are not enough answers or workers yet, or not enough time has passed.
    Wait,
    /// Write the record with the new plan.
    Write(Record),
    /// The record with the time waited so far is written; the recovery keeps waiting meanwhile.
    Note(Record),
    /// No worker and no checkpoint has the state of these units any more.
    GiveUp(Vec<Unit>),
}

/// The deadline is doubled at least this many times until a step of this run has been observed. Until then there is only an estimate, and
/// the first step also loads libraries and fills caches. On a loaded machine that took longer than the minimum deadline, and cost a plan.
const UNOBSERVED_DOUBLINGS: u32 = 2;
/// All workers were told to stop; their inventories are waited for.
pub(super) struct Collecting {
    since: Time,
    holder_wait: HolderWait,
    answers: BTreeMap<WorkerId, Inventory>,
    /// Members and sources of the plans in the record that have not answered. None if this has to be computed again.
    missing: Option<BTreeSet<WorkerId>>,
    /// Resuming was tried and failed. The next attempt waits for the clock, since each one examines everything that all workers hold.
    tried: bool,
    /// Complete checkpoints, once the store was listed.
    listing: Option<Listing>,
    /// When the store last confirmed them.
    confirmed_at: Time,
    ask_at: Time,
    /// What was known about the plan in force before the recovery. If the write is refused, the coordinator goes back to it.
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
        shared.last_reports.problem = None;
        let (progress, running) = (&shared.progress, interrupted.running());
        shared.without_commit.note(running, progress);
        for to in shared.roster.connected() {
            shared.fence(to, turn);
        }
        turn.push(CoordinatorEffect::ListCheckpoints);
        Self {
            since: turn.now,
            holder_wait: HolderWait::begin(turn.now, shared),
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

    /// Takes the store's list of checkpoints. Once the store has answered in this recovery, a later failure to answer removes nothing.
    pub(super) fn take_listing(&mut self, now: Time, listing: Listing) {
        if listing.fresh {
            self.confirmed_at = now;
        }
        let fresh = listing.fresh || self.listing.as_ref().is_some_and(|l| l.fresh);
        self.listing = Some(Listing { fresh, ..listing });
    }

    /// What was known about the plan in force before the recovery.
    pub(super) fn interrupted(&mut self) -> &mut Active {
        &mut self.interrupted
    }

    /// Returns to the state before the recovery. The store was listed a moment ago, so it is not listed again before that is due.
    pub(super) fn into_interrupted(mut self) -> Active {
        self.interrupted.list_at = self.ask_at;
        self.interrupted
    }

    pub(super) fn step(&mut self, shared: &mut Shared, turn: &mut Turn<'_>) -> Action {
        self.ask_again(shared, turn);
        shared.release_corrupt(turn);
        shared.exclude_corrupt(&mut self.answers);
        let missing = self.find_missing(shared, turn.scope);
        let stopped = shared.record.stored.is_stopped();
        let gone = stopped || missing.iter().all(|w| shared.roster.is_disconnected(*w));
        let collected = turn.now >= self.since.after(shared.config.timing.collect);
        let tried = std::mem::replace(&mut self.tried, gone || collected) && turn.scope != Scope::Everyone;
        if !bug!(RecoverWithoutWaiting) && ((!gone && !collected) || tried) {
            return Action::Wait;
        }
        let missing: Vec<WorkerId> = self.missing.iter().flatten().copied().collect();
        if shared.comparison.rolls_back {
            return self.roll_back(missing, shared, turn);
        }
        let Some(checkpoints) = self.usable_checkpoints(&missing, shared, turn.now) else {
            return Action::Wait;
        };
        let evidence = Evidence {
            layout: shared.config.layout,
            answers: &self.answers,
            persisted: shared.record.decision(),
            checkpoints: &checkpoints,
            reached: shared.reached_in_force(),
        };
        match evidence.resume() {
            Some(resume) if self.may_resume(&resume, &missing, shared, turn.now) => {
                self.recover(resume, missing, shared, turn)
            }
            None if self.may_give_up(missing, shared, turn.now) => Action::GiveUp(evidence.uncovered()),
            _ => self.note_wait(shared, turn.now),
        }
    }

    /// Repeats fences and the listing of checkpoints at a fixed interval.
    fn ask_again(&mut self, shared: &Shared, turn: &mut Turn<'_>) {
        if turn.now < self.ask_at {
            return;
        }
        self.ask_at = turn.now.after(shared.config.timing.ask_again);
        for to in shared.roster.connected() {
            if !self.answers.contains_key(&to) {
                shared.fence(to, turn);
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
            expected.retain(|w| !answers.contains_key(w) && !shared.roster.is_corrupt(*w));
            expected
        })
    }

    /// The complete checkpoints. The initial state, which is made from the seed, counts as one only while no commit is known, or if all
    /// commits may be given up. None if the store was not listed yet and there is no plan: the number of the first plan must be greater
    /// than those in the store.
    fn usable_checkpoints(&self, missing: &[WorkerId], shared: &Shared, now: Time) -> Option<Vec<StateId>> {
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
        // A pending planned change does not prove a commit: workers switch at a commit, and a worker that has switched reports it.
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
        if bug!(OverlookNewestCheckpoint) && list.len() > 1 {
            let newest = list.iter().copied().max();
            list.retain(|id| Some(*id) != newest);
        }
        if nothing_committed || self.may_begin_anew(missing, shared, now) {
            list.push(StateId::INITIAL);
        }
        Some(list)
    }

    /// Nobody knows which of the holders has the right bits, so the run goes back to the newest checkpoint whose state was compared, or to
    /// the seed if there is none. This needs a fresh listing of the store: a newer checkpoint may have been completed.
    fn roll_back(&mut self, missing: Vec<WorkerId>, shared: &mut Shared, turn: &mut Turn<'_>) -> Action {
        let Some(listing) = self.listing.as_ref().filter(|l| l.fresh) else {
            return Action::Wait;
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
            Some(plan) => Action::Write(shared.with_minority_holders(shared.record.with_rollback(plan, to))),
            None => Action::Wait,
        }
    }

    fn recover(
        &mut self,
        resume: Resume,
        missing: Vec<WorkerId>,
        shared: &mut Shared,
        turn: &mut Turn<'_>,
    ) -> Action {
        let id = resume.id;
        if shared.checkpoints.last.is_damaged(id) {
            let record = &shared.record.stored;
            if !may_put_anew(record) {
                return Action::GiveUp(shared.config.layout.all_units().collect());
            }
            let every = shared.config.timing.ask_again;
            shared.checkpoints.last.discard(id, record, every, turn);
            return Action::Wait;
        }
        let stored = self.listing.as_ref().is_some_and(|l| l.complete.contains(&id));
        let plan = self.plan(resume, missing, shared, turn);
        let write = |plan| Action::Write(shared.resume_at(id, stored, plan));
        plan.map_or(Action::Wait, write)
    }

    /// The plan that resumes at this state. None while there are too few workers, or while the store refuses writes.
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
        shared.check_data_readers(turn.now, |w| self.answers.contains_key(w));
        let pool = self.pool(shared, turn)?;
        let mut held: BTreeMap<WorkerId, Vec<Unit>> = BTreeMap::new();
        for (unit, sources) in shared.config.layout.all_units().zip(&resume.sources) {
            for worker in sources {
                held.entry(*worker).or_default().push(unit);
            }
        }
        let (pool, (shape, haste)) = self.shape(pool, &held, shared, turn)?;
        let reason = why(shared, &missing) + &shared.exceptions(turn.now, &shape) + &haste;
        if shared.record.stored.plan.is_some() {
            shared.collected(self.answers.keys().copied().collect(), missing, turn);
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
        plan.keepers = shared.keepers(plan.generation, &plan.shape, turn);
        shared.begin_with_parameters(&mut plan, &self.answers);
        // If all workers can follow, or some leave soon, this plan was chosen for a short time. A better one is looked for once it runs.
        let lasts = !can_follow(shared, &pool) && haste.is_empty();
        self.interrupted.considered = lasts.then(|| Considered::now(pool, shared, turn.now));
        Some(plan)
    }

    /// The best shape for these workers, what to add to its reason, and the workers that it was chosen from. Workers that will leave, or that
    /// cannot read their data at present, are used only if there is no plan without them: training stops until there is one.
    fn shape(
        &self,
        pool: Vec<WorkerId>,
        held: &BTreeMap<WorkerId, Vec<Unit>>,
        shared: &mut Shared,
        turn: &mut Turn<'_>,
    ) -> Option<(Vec<WorkerId>, (Shape, String))> {
        let reason = match shared.shape_for_recovery(&pool, held, turn.now) {
            Ok(shape) => return Some((pool, shape)),
            Err(Infeasible(reason)) => reason,
        };
        let usable = self.usable(shared);
        let more = [
            shared.pool(turn.now, &usable),
            shared.pool_with_unread(turn.now, &usable),
        ];
        let mut tried = pool;
        for pool in more.into_iter().filter(|_| !bug!(NeverUseDraining)) {
            if pool == tried {
                continue;
            }
            if let Ok(shape) = shared.shape_for_recovery(&pool, held, turn.now) {
                return Some((pool, shape));
            }
            tried = pool;
        }
        shared.report_problem(Event::NoPlan { reason }, turn);
        None
    }

    /// Workers that have answered and can be reached.
    fn usable(&self, shared: &Shared) -> Vec<WorkerId> {
        let up = |w: &WorkerId| shared.roster.status(*w).is_some();
        self.answers.keys().copied().filter(up).collect()
    }

    /// The workers that the next plan may use. None while there are too few, or while the first plan still waits for more.
    fn pool(&self, shared: &mut Shared, turn: &mut Turn<'_>) -> Option<Vec<WorkerId>> {
        let need = shared.config.min_workers;
        let mut from = shared.roster.staying();
        from.retain(|w| bug!(PlanWithUnanswered) || self.answers.contains_key(w));
        let mut pool = shared.pool(turn.now, &from);
        // A worker that will leave is better than two that cannot reach one another.
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
        if shared.record.stored.plan.is_none() || shared.record.stored.is_stopped() {
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

/// How many times the deadline of a step is doubled.
fn doublings(shared: &Shared) -> u32 {
    let most = if bug!(DeadlineNeverGrows) {
        0
    } else {
        MOST_DOUBLINGS
    };
    let unobserved = shared.progress.commits.mean_step_time().is_none() && !bug!(FirstStepHasNoMoreTime);
    let least = if unobserved { UNOBSERVED_DOUBLINGS } else { 0 };
    shared.without_commit.generations.max(least).min(most)
}

/// The reason for the new plan, as text for people.
fn why(shared: &Shared, missing: &[WorkerId]) -> String {
    let names: Vec<String> = missing.iter().map(|w| shared.roster.name(*w)).collect();
    match (shared.record.stored.plan.is_none(), names.is_empty()) {
        (true, _) => "the run begins".to_owned(),
        (false, true) => "everyone answered the fence".to_owned(),
        (false, false) => format!("lost {}", names.join(", ")),
    }
}
