//! The workers that are known, and whether they can be heard.

use super::churn::Churn;
use super::config::Hello;
use super::turn::Scope;
use crate::message::{Status, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use varuna_plan::{Step, WorkerId};

/// Workers that went are remembered for people: so many, and up to twice as many until the older ones are forgotten.
const GONE_MAX: usize = 128;

/// What is known of one worker.
#[derive(Default)]
pub(super) struct Worker {
    pub(super) hello: Option<Hello>,
    /// Its stream is up.
    pub(super) connected: bool,
    pub(super) heard_at: Time,
    pub(super) disconnected_at: Time,
    pub(super) status: Option<Status>,
    /// Its process has ended for certain.
    pub(super) process_ended: bool,
    /// Somebody else has seen that it will go, and it is planned around.
    pub(super) has_notice: bool,
    /// When it goes, where that is known.
    pub(super) leaves_at: Option<Time>,
    /// The step from which it first trained.
    pub(super) first_step: Option<Step>,
}

impl Worker {
    /// It will go, as it says itself or as somebody else has seen, and it is planned around.
    fn is_planned_around(&self) -> bool {
        let says_so = self.status.is_some_and(|s| s.draining);
        self.has_notice || (says_so && self.leaves_at.is_none())
    }

    /// It will go, at some time.
    pub(super) fn is_draining(&self) -> bool {
        self.is_planned_around() || self.leaves_at.is_some()
    }
}

/// All workers that are there, and the last of those that were.
pub(super) struct Roster {
    pub(super) workers: BTreeMap<WorkerId, Worker>,
    /// Those whose state was found to be wrong: these processes are never planned with again, nor resumed from. Nearly always none, so
    /// that looking costs nothing where it is done for every message.
    distrusted: BTreeSet<WorkerId>,
    pub(super) churn: Churn,
    /// Those that go at a known time. Nearly always none, so that looking costs nothing where it is done for every message.
    leaving: BTreeSet<WorkerId>,
    /// Where nodes are, by their names.
    pub(super) domains: BTreeMap<String, String>,
    /// Grows whenever others may be planned with than before: who is there, or who will go, has changed.
    changes: u64,
}

impl Roster {
    pub(super) fn new(churn: Churn) -> Self {
        Self {
            workers: BTreeMap::new(),
            distrusted: BTreeSet::new(),
            churn,
            leaving: BTreeSet::new(),
            domains: BTreeMap::new(),
            changes: 0,
        }
    }

    /// A number that is another one whenever other workers may be planned with.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    pub(super) fn get(&self, id: WorkerId) -> Option<&Worker> {
        self.workers.get(&id)
    }

    pub(super) fn hello(&self, id: WorkerId) -> Option<&Hello> {
        self.get(id)?.hello.as_ref()
    }

    /// For people.
    pub(super) fn name(&self, id: WorkerId) -> String {
        self.hello(id).map_or_else(|| id.to_string(), |h| h.name.clone())
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

    /// Up, and not about to go.
    pub(super) fn staying(&self) -> Vec<WorkerId> {
        let all = self.statuses(Scope::Everyone).into_iter();
        all.filter(|(_, s)| !s.draining).map(|(id, _)| id).collect()
    }

    /// Its stream is known to be down.
    pub(super) fn is_disconnected(&self, id: WorkerId) -> bool {
        self.get(id).is_some_and(|w| !w.connected)
    }

    /// Since when its stream is down; 0 where it never had one.
    pub(super) fn disconnected_at(&self, id: WorkerId) -> Time {
        self.get(id).map_or(Time(0), |w| w.disconnected_at)
    }

    /// Its process has ended for certain.
    pub(super) fn has_ended(&self, id: WorkerId) -> bool {
        self.get(id).is_some_and(|w| w.process_ended)
    }

    /// Notes that the worker said something: a stream that was silent for too long lives after all. None where it never said
    /// Hello; true where it was thought to be gone.
    pub(super) fn heard(&mut self, id: WorkerId, now: Time) -> Option<bool> {
        let worker = self.workers.get_mut(&id).filter(|w| w.hello.is_some())?;
        worker.heard_at = now;
        let back = !std::mem::replace(&mut worker.connected, true);
        self.changes += u64::from(back);
        Some(back)
    }

    /// Takes a worker's level; true where it says for the first time that it will go.
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

    /// Somebody else has seen that the worker will go, and perhaps when; true where that is new. Where the time is known the worker is planned
    /// around once [`Roster::remind`] finds that it has come.
    pub(super) fn take_notice(&mut self, id: WorkerId, leaves_at: Option<Time>) -> bool {
        let Some(worker) = self.workers.get_mut(&id).filter(|w| w.connected) else {
            return false;
        };
        let known = worker.is_draining();
        match leaves_at {
            // It goes at once, as far as is known: that is no later.
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

    /// Has those planned around that go within `lead`.
    pub(super) fn remind(&mut self, now: Time, lead: Duration) {
        let due = |w: &Worker| !w.has_notice && w.leaves_at.is_some_and(|at| now.after(lead) >= at);
        for id in &self.leaving {
            if let Some(worker) = self.workers.get_mut(id).filter(|w| due(w)) {
                worker.has_notice = true;
                self.changes += 1;
            }
        }
    }

    /// When the first of those goes whose time is known.
    pub(super) fn first_leaves_at(&self, among: impl Fn(WorkerId) -> bool) -> Option<Time> {
        let leaving = self.leaving.iter().filter(|id| among(**id));
        leaving.filter_map(|id| self.leaves_at(*id)).min()
    }

    /// When the worker goes, where that is known.
    pub(super) fn leaves_at(&self, id: WorkerId) -> Option<Time> {
        self.get(id)?.leaves_at
    }

    /// Its state was found to be wrong.
    pub(super) fn distrust(&mut self, id: WorkerId) {
        self.changes += u64::from(self.distrusted.insert(id));
    }

    /// Its state was found to be wrong.
    pub(super) fn is_distrusted(&self, id: WorkerId) -> bool {
        !bug!(ResumeFromOddHolder) && self.distrusted.contains(&id)
    }

    /// Whose state was found to be wrong.
    pub(super) fn distrusted(&self) -> impl Iterator<Item = WorkerId> {
        let all = self.distrusted.iter().copied();
        all.filter(|_| !bug!(ResumeFromOddHolder))
    }

    /// It trains from this step on, if it did not before.
    pub(super) fn trains_from(&mut self, id: WorkerId, step: Step) {
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.first_step.get_or_insert(step);
        }
    }

    /// Its stream came up; true where it was down.
    pub(super) fn connect(&mut self, id: WorkerId, hello: Hello, now: Time) -> bool {
        let worker = self.workers.entry(id).or_default();
        let joins = !worker.connected;
        worker.connected = true;
        worker.heard_at = now;
        worker.hello = Some(hello);
        self.changes += 1;
        if joins {
            self.churn.observe(now);
        }
        joins
    }

    /// Its stream is down; true where it was up.
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

    /// Forgets workers that went, but for the last ones and those that are needed; returns whom.
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
            self.distrusted.remove(id);
        }
        gone.into_iter().map(|(_, id)| id).collect()
    }

    /// It never comes back.
    pub(super) fn process_ended(&mut self, id: WorkerId) {
        self.workers.entry(id).or_default().process_ended = true;
    }
}
