//! The workers that the coordinator knows, and whether their streams are up.

use super::churn::Churn;
use super::config::Hello;
use super::losses::Losses;
use super::turn::Scope;
use crate::message::{Status, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use varuna_plan::{Step, WorkerId};

/// Number of departed workers that are remembered for people; up to twice as many are kept until the older ones are dropped.
const GONE_MAX: usize = 128;

/// What is known of one worker.
#[derive(Default)]
pub(super) struct Worker {
    pub(super) hello: Option<Hello>,
    /// Whether its stream is open.
    pub(super) connected: bool,
    pub(super) heard_at: Time,
    pub(super) disconnected_at: Time,
    pub(super) status: Option<Status>,
    /// Whether the worker's process has ended for certain.
    pub(super) process_ended: bool,
    /// Another component reported that it will leave, and it is planned around.
    pub(super) has_notice: bool,
    /// When it leaves, if known.
    pub(super) leaves_at: Option<Time>,
    /// The step from which it first trained.
    pub(super) first_step: Option<Step>,
}

impl Worker {
    /// Whether it will leave, as it announced itself or as another component reported, and is planned around.
    fn is_planned_around(&self) -> bool {
        let says_so = self.status.is_some_and(|s| s.draining);
        self.has_notice || (says_so && self.leaves_at.is_none())
    }

    /// Whether it will leave at some time.
    pub(super) fn is_draining(&self) -> bool {
        self.is_planned_around() || self.leaves_at.is_some()
    }
}

/// All present workers, and the last ones that have left.
pub(super) struct Roster {
    pub(super) workers: BTreeMap<WorkerId, Worker>,
    /// Names of workers that earlier coordinators have seen.
    names: BTreeMap<WorkerId, String>,
    /// Workers whose state was found to be wrong. These processes are never planned with again, nor resumed from. Nearly always empty, so
    /// that the check costs nothing where it is made for every message.
    corrupt: BTreeSet<WorkerId>,
    pub(super) churn: Churn,
    pub(super) losses: Losses,
    /// Workers that leave at a known time. Nearly always empty, so that the check costs nothing where it is made for every message.
    leaving: BTreeSet<WorkerId>,
    /// The location of each node, by name.
    pub(super) domains: BTreeMap<String, String>,
    /// Grows whenever the set of workers that may be planned with changes: a worker came, said something else of itself, went, or announced that
    /// it will leave.
    changes: u64,
}

impl Roster {
    /// No workers; `horizon` is an estimate of the time until the set of workers changes. `names`: of workers that earlier coordinators have
    /// seen.
    pub(super) fn new(horizon: Duration, names: BTreeMap<WorkerId, String>) -> Self {
        Self {
            workers: BTreeMap::new(),
            names,
            corrupt: BTreeSet::new(),
            churn: Churn::expecting(horizon),
            losses: Losses::expecting(horizon),
            leaving: BTreeSet::new(),
            domains: BTreeMap::new(),
            changes: 0,
        }
    }

    /// A generation has started.
    pub(super) fn begin_generation(&mut self, now: Time, prior: Duration) {
        self.churn.begin_generation(now, prior);
        self.losses.begin_generation(now, prior);
    }

    /// Time that the clock did not show.
    pub(super) fn skip(&mut self, time: Duration) {
        self.churn.skip(time);
        self.losses.skip(time);
    }

    /// A counter that changes whenever the set of workers that may be planned with changes.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    pub(super) fn get(&self, id: WorkerId) -> Option<&Worker> {
        self.workers.get(&id)
    }

    pub(super) fn hello(&self, id: WorkerId) -> Option<&Hello> {
        self.get(id)?.hello.as_ref()
    }

    /// Name of a worker, for users.
    pub(super) fn name(&self, id: WorkerId) -> String {
        let own = self.hello(id).map(|hello| &hello.name);
        let known = own.or_else(|| self.names.get(&id));
        known.cloned().unwrap_or_else(|| id.to_string())
    }

    /// Workers whose stream is up.
    pub(super) fn connected(&self) -> Vec<WorkerId> {
        let up = self
            .workers
            .iter()
            .filter(|(_, w)| w.connected && w.hello.is_some());
        up.map(|(id, _)| *id).collect()
    }

    /// The latest Status of a worker whose stream is up.
    pub(super) fn status(&self, id: WorkerId) -> Option<Status> {
        let worker = self.get(id).filter(|w| w.connected && w.hello.is_some())?;
        worker.status.map(|s| Status {
            draining: worker.is_planned_around(),
            ..s
        })
    }

    /// The latest Status of each worker within the scope whose stream is up.
    pub(super) fn statuses(&self, scope: Scope) -> Vec<(WorkerId, Status)> {
        let with_status = |id: WorkerId| Some((id, self.status(id)?));
        match scope {
            Scope::One(id) => with_status(id).into_iter().collect(),
            Scope::Everyone => self.workers.keys().copied().filter_map(with_status).collect(),
        }
    }

    /// Workers whose stream is up and that are not about to leave.
    pub(super) fn staying(&self) -> Vec<WorkerId> {
        let all = self.statuses(Scope::Everyone).into_iter();
        all.filter(|(_, s)| !s.draining).map(|(id, _)| id).collect()
    }

    /// Whether its stream is known to be down.
    pub(super) fn is_disconnected(&self, id: WorkerId) -> bool {
        self.get(id).is_some_and(|w| !w.connected)
    }

    /// Since when its stream has been down; 0 if it never had one.
    pub(super) fn disconnected_at(&self, id: WorkerId) -> Time {
        self.get(id).map_or(Time(0), |w| w.disconnected_at)
    }

    /// Whether the worker's process has ended for certain.
    pub(super) fn has_ended(&self, id: WorkerId) -> bool {
        self.get(id).is_some_and(|w| w.process_ended)
    }

    /// Notes that the worker sent something: a stream that was silent for too long is alive after all. None if it never sent a Hello; true
    /// if it was thought to be gone.
    pub(super) fn note_message(&mut self, id: WorkerId, now: Time) -> Option<bool> {
        let worker = self.workers.get_mut(&id).filter(|w| w.hello.is_some())?;
        worker.heard_at = now;
        let back = !std::mem::replace(&mut worker.connected, true);
        self.changes += u64::from(back);
        Some(back)
    }

    /// Takes a worker's status. True if it announces for the first time that it will leave.
    pub(super) fn take_status(&mut self, id: WorkerId, status: Status) -> bool {
        let Some(worker) = self.workers.get_mut(&id) else {
            return false;
        };
        let before = worker.status.replace(status);
        let drains = |s: &Status| s.draining;
        self.changes += u64::from(before.as_ref().map(drains) != Some(status.draining));
        let known = worker.has_notice || worker.leaves_at.is_some();
        status.draining && !known && !before.is_some_and(|s| s.draining)
    }

    /// Another component reports that the worker will leave, and perhaps when. True if that is new. If the time is known, the worker is
    /// planned around once [`Roster::mark_leaving`] finds that the time has come.
    pub(super) fn take_notice(&mut self, id: WorkerId, leaves_at: Option<Time>) -> bool {
        let Some(worker) = self.workers.get_mut(&id).filter(|w| w.connected) else {
            return false;
        };
        let known = worker.is_draining();
        match leaves_at {
            // As far as is known it leaves at once, so the new time is no earlier.
            _ if worker.has_notice && worker.leaves_at.is_none() => {}
            Some(at) => {
                let at = worker.leaves_at.map_or(at, |before| before.min(at));
                worker.leaves_at = Some(at);
                self.leaving.insert(id);
            }
            None => {
                self.changes += u64::from(!worker.has_notice);
                worker.has_notice = true;
            }
        }
        !known
    }

    /// Marks the workers that leave within `lead` as planned around.
    pub(super) fn mark_leaving(&mut self, now: Time, lead: Duration) {
        let due = |w: &Worker| !w.has_notice && w.leaves_at.is_some_and(|at| now.after(lead) >= at);
        for id in &self.leaving {
            if let Some(worker) = self.workers.get_mut(id).filter(|w| due(w)) {
                worker.has_notice = true;
                self.changes += 1;
            }
        }
    }

    /// When the first of these workers leaves, among those whose time is known.
    pub(super) fn first_leaves_at(&self, among: impl Fn(WorkerId) -> bool) -> Option<Time> {
        let leaving = self.leaving.iter().filter(|id| among(**id));
        leaving.filter_map(|id| self.leaves_at(*id)).min()
    }

    /// When the worker leaves, if known.
    pub(super) fn leaves_at(&self, id: WorkerId) -> Option<Time> {
        self.get(id)?.leaves_at
    }

    /// Marks the worker's state as wrong.
    pub(super) fn mark_corrupt(&mut self, id: WorkerId) {
        self.changes += u64::from(self.corrupt.insert(id));
    }

    /// Whether the worker's state was found to be wrong.
    pub(super) fn is_corrupt(&self, id: WorkerId) -> bool {
        !bug!(ResumeFromOddHolder) && self.corrupt.contains(&id)
    }

    /// Whose state was found to be wrong.
    pub(super) fn corrupt(&self) -> impl Iterator<Item = WorkerId> {
        let all = self.corrupt.iter().copied();
        all.filter(|_| !bug!(ResumeFromOddHolder))
    }

    /// Notes that the worker trains from this step on, if it did not before.
    pub(super) fn trains_from(&mut self, id: WorkerId, step: Step) {
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.first_step.get_or_insert(step);
        }
    }

    /// Notes that the worker's stream came up; true if it was down. A worker that does not train yet repeats its hello every few seconds: that
    /// is no change.
    pub(super) fn connect(&mut self, id: WorkerId, hello: Hello, now: Time) -> bool {
        let worker = self.workers.entry(id).or_default();
        let joins = !worker.connected;
        worker.connected = true;
        worker.heard_at = now;
        let is_new = worker.hello.as_ref() != Some(&hello);
        worker.hello = Some(hello);
        self.changes += u64::from(joins || is_new);
        if joins {
            self.churn.observe(now);
        }
        joins
    }

    /// Notes that the worker's stream is down; true if it was up.
    pub(super) fn disconnect(&mut self, id: WorkerId, now: Time) -> bool {
        let Some(worker) = self.workers.get_mut(&id).filter(|w| w.connected) else {
            return false;
        };
        worker.connected = false;
        worker.disconnected_at = now;
        self.changes += 1;
        self.churn.observe(now);
        true
    }

    /// Forgets departed workers, except the last ones and those that are needed. Returns the forgotten ones.
    pub(super) fn forget_gone(&mut self, is_needed: impl Fn(WorkerId) -> bool) -> Vec<WorkerId> {
        let gone = self.workers.iter().filter(|(_, w)| !w.connected);
        if gone.clone().count() < 2 * GONE_MAX {
            return Vec::new();
        }
        let gone = gone.filter(|(id, _)| !is_needed(**id));
        let mut gone: Vec<(Time, WorkerId)> = gone.map(|(id, w)| (w.disconnected_at, *id)).collect();
        gone.sort_unstable();
        gone.truncate(gone.len().saturating_sub(GONE_MAX));
        for (_, id) in &gone {
            self.workers.remove(id);
            self.leaving.remove(id);
            self.corrupt.remove(id);
        }
        gone.into_iter().map(|(_, id)| id).collect()
    }

    /// The process of a worker has ended and never comes back.
    pub(super) fn process_ended(&mut self, id: WorkerId) {
        self.workers.entry(id).or_default().process_ended = true;
    }
}
