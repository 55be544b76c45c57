//! What waits to be published of each job, and when it is due: the latest status, and Events. State only: no clock, no I/O.

use crate::decide::{EventNote, ObservedJob};
use crate::error::Error;
use crate::resource::JobIdentity;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use varuna_api::JobPhase;
use varuna_api::crd::Status;

/// Changes for which others wait ([`is_awaited`]) are one write if they come within this time.
pub(super) const DEBOUNCE: Duration = Duration::from_secs(1);
/// All other changes: what follows from a preemption until its replacement trains is reported within this time, and is one write then.
const FIGURES_DEBOUNCE: Duration = Duration::from_secs(8);
/// Sentences within this time are published together: no program acts on them, and a preemption with all its consequences takes about as
/// long.
pub(super) const EVENTS_DEBOUNCE: Duration = FIGURES_DEBOUNCE;
/// The longest delay after a write that failed; the first is a second.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Sentences of a job that wait to be written; more are dropped.
const EVENTS_MAX: usize = 128;
/// Among them, sentences that stay true for a while. A dropped one is found again; other sentences come only once.
pub(super) const LASTING_MAX: usize = EVENTS_MAX / 2;
/// How much later than statuses Events are written when the process ends.
const AFTER_STATUSES: Duration = Duration::from_millis(1);

/// What is published of one job.
#[derive(Debug, Default)]
pub(super) struct Publication {
    /// The status that was reported last; none where the watch shows it.
    pub(super) status: Option<Arc<Status>>,
    /// Whether that status is not written yet.
    pub(super) is_dirty: bool,
    is_being_written: bool,
    /// The version of the object that the last write has made.
    written: Option<u64>,
    /// The newest version of the object that the watch has shown.
    shown: Option<u64>,
    pub(super) events: Vec<EventNote>,
    /// Time at which the Events are due.
    pub(super) events_due: Option<Instant>,
    failures: u32,
    /// When it is due, if it is.
    due: Option<Instant>,
}

impl Publication {
    /// The watch has shown this version of the object.
    fn shown(&mut self, version: Option<u64>) {
        self.shown = self.shown.max(version);
        self.forget_if_shown();
    }

    /// Forgets the status once the watch has shown it: there is one for each job, and its object holds it as well.
    fn forget_if_shown(&mut self) {
        let is_shown = self.written.is_some() && self.written <= self.shown;
        if is_shown && !self.is_dirty && !self.is_being_written {
            self.status = None;
        }
    }
}

/// What is published of all jobs, and when.
#[derive(Debug, Default)]
pub(super) struct Publications {
    pub(super) jobs: BTreeMap<String, (JobIdentity, Publication)>,
    due: BTreeSet<(Instant, String)>,
    /// Whether nothing more is reported. Then no write waits for later reports.
    is_last: bool,
}

impl Publications {
    fn of(&mut self, job: &ObservedJob) -> &mut Publication {
        let entry = self.jobs.entry(job.uid.clone());
        let new = || (JobIdentity::of(job), Publication::default());
        &mut entry.or_insert_with(new).1
    }

    /// The status to use instead of the one in a job's object of this version ([`super::Publisher::status`]).
    pub(super) fn status(&mut self, uid: &str, version: Option<u64>) -> Result<Option<Status>, Error> {
        let Some((_, publication)) = self.jobs.get_mut(uid) else {
            return Ok(None);
        };
        publication.shown(version);
        if publication.status.is_none() && publication.written > version {
            return Err(Error::Stale);
        }
        Ok(publication.status.as_deref().cloned())
    }

    /// The watch has shown this version of a job's object.
    pub(super) fn shown(&mut self, uid: &str, version: Option<u64>) {
        if let Some((_, publication)) = self.jobs.get_mut(uid) {
            publication.shown(version);
        }
    }

    /// A status is to be written in a while.
    pub(super) fn report(&mut self, now: Instant, job: &ObservedJob, status: &Status) {
        let publication = self.of(job);
        publication.status = Some(Arc::new(status.clone()));
        publication.is_dirty = true;
        let delay = if is_awaited(&job.status, status) {
            DEBOUNCE
        } else {
            FIGURES_DEBOUNCE
        };
        self.schedule(&job.uid, now + delay);
    }

    /// A sentence is to be written in a while. False where it waits already, or is dropped because too many wait.
    pub(super) fn note(&mut self, now: Instant, job: &ObservedJob, note: &EventNote) -> bool {
        let publication = self.of(job);
        let is_known = note.lasting && publication.events.contains(note);
        let most = if note.lasting { LASTING_MAX } else { EVENTS_MAX };
        if is_known || publication.events.len() >= most {
            return false;
        }
        publication.events.push(note.clone());
        let due = *publication.events_due.get_or_insert(now + EVENTS_DEBOUNCE);
        self.schedule(&job.uid, due);
        true
    }

    /// Whether nothing more is reported.
    pub(super) fn is_last(&self) -> bool {
        self.is_last
    }

    /// Forgets deleted jobs.
    pub(super) fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        self.jobs.retain(|uid, _| exists(uid));
    }

    /// Makes a job due at this time, unless it is due sooner or is being written.
    pub(super) fn schedule(&mut self, uid: &str, at: Instant) {
        if let Some((_, publication)) = self.jobs.get_mut(uid)
            && publication.due.is_none_or(|due| at < due)
            && !publication.is_being_written
        {
            if let Some(later) = publication.due.replace(at) {
                self.due.remove(&(later, uid.to_owned()));
            }
            self.due.insert((at, uid.to_owned()));
        }
    }

    /// The next one that is due, or when one will be.
    pub(super) fn take_due(&mut self, now: Instant) -> Result<Work, Option<Instant>> {
        loop {
            let first = self.due.first().map(|(at, _)| *at);
            let Some((_, uid)) = first.filter(|at| *at <= now).and_then(|_| self.due.pop_first()) else {
                return Err(first);
            };
            if let Some((job, publication)) = self.jobs.get_mut(&uid) {
                publication.due = None;
                publication.is_being_written = true;
                // In the end all statuses come first.
                let only_status = self.is_last && publication.is_dirty;
                let says = !only_status && publication.events_due.take_if(|due| *due <= now).is_some();
                return Ok(Work {
                    job: job.clone(),
                    status: publication.status.clone().filter(|_| publication.is_dirty),
                    events: if says {
                        std::mem::take(&mut publication.events)
                    } else {
                        vec![]
                    },
                });
            }
        }
    }

    /// Makes all waiting writes due: no later reports are expected.
    pub(super) fn flush_on_shutdown(&mut self, now: Instant) {
        self.is_last = true;
        let mut due = vec![];
        for (uid, (_, publication)) in &mut self.jobs {
            if let Some(events_due) = &mut publication.events_due {
                *events_due = now + AFTER_STATUSES;
                due.push((uid.clone(), *events_due));
            }
            if publication.is_dirty {
                due.push((uid.clone(), now));
            }
        }
        for (uid, at) in due {
            self.schedule(&uid, at);
        }
    }

    /// A job's write has ended. It has the new version if it has written a status.
    pub(super) fn finish(&mut self, now: Instant, work: &Work, result: &kube::Result<Option<u64>>) {
        let uid = &work.job.uid;
        let Some((_, publication)) = self.jobs.get_mut(uid) else {
            return;
        };
        publication.is_being_written = false;
        let delay = match result {
            Ok(version) => {
                publication.failures = 0;
                // Another may have been reported meanwhile.
                if publication.status == work.status {
                    publication.is_dirty = false;
                }
                publication.written = version.or(publication.written);
                if self.is_last { Duration::ZERO } else { DEBOUNCE }
            }
            Err(_) => {
                publication.failures = publication.failures.saturating_add(1);
                RETRY_MAX.min(DEBOUNCE * (1 << publication.failures.min(5)))
            }
        };
        // The watch may have been quicker than the answer.
        publication.forget_if_shown();
        let events_due = publication.events_due;
        if publication.is_dirty {
            self.schedule(uid, now + delay);
        }
        if let Some(due) = events_due {
            self.schedule(uid, due);
        }
    }
}

/// What is written in one go.
pub(super) struct Work {
    pub(super) job: JobIdentity,
    pub(super) status: Option<Arc<Status>>,
    pub(super) events: Vec<EventNote>,
}

/// Whether programs wait for this change of a status: another phase. A job may switch between training and recovering several times within
/// a second.
pub(super) fn is_awaited(before: &Status, after: &Status) -> bool {
    let phase = |status: &Status| match status.phase {
        Some(JobPhase::Recovering) => Some(JobPhase::Training),
        phase => phase,
    };
    phase(before) != phase(after)
}
