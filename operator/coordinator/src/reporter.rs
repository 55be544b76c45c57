//! Writes the reports of a coordinator into the status of its `VarunaRun`: at once if something has changed on which the operator acts, a
//! moment later if it is only shown, and from time to time if only steps were committed.

use crate::orders::{Role, SeenOrders, orders_of, role};
use crate::report::{ReportedPart, bounded, room_beside};
use backon::{BackoffBuilder, ExponentialBuilder};
use kube::Api;
use kube::api::{DynamicObject, PostParams};
use serde_json::json;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use varuna_api::crd::RunStatus;

/// The time from an important change to the next report with only steps. It doubles with each further one, up to the maximum. So a user who
/// waits for a job to continue soon sees it, and a thousand running jobs write three or four reports a second.
const STEPS_INTERVAL: Duration = Duration::from_secs(15);
const STEPS_INTERVAL_MAX: Duration = Duration::from_secs(300);
/// All reports are at least this far apart: a change is reported at once, and what follows from it in one report.
const BURST: Duration = Duration::from_secs(1);
/// A write that takes longer has failed.
const DEADLINE: Duration = Duration::from_secs(5);
/// After a failed write the next one waits this long, after each further failure twice as long, and at random up to twice that. A thousand
/// coordinators that tried again at once would keep an API server down that was only overloaded for a moment (Bronson et al., "Metastable
/// Failures in Distributed Systems", HotOS 2021).
const RETRY: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_secs(1))
    .with_max_delay(Duration::from_secs(60))
    .with_jitter()
    .without_max_times();

/// Why reporting has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The last report is written.
    Reported,
    /// Another coordinator is in charge.
    Deposed,
    /// The job is gone.
    Gone,
}

/// Where the reports are written, and by which coordinator.
pub struct Reports {
    /// The runs of the job's namespace.
    pub runs: Api<DynamicObject>,
    /// The name of the job's.
    pub name: String,
    /// The coordinator that reports.
    pub number: i64,
    /// The newest orders that a watch has shown: their version is written over without reading it.
    pub seen: watch::Receiver<Option<SeenOrders>>,
}

impl Reports {
    /// Writes what `reports` holds whenever it changes, until one says how the coordinator ended and is written, or another is in charge.
    pub async fn write(self, reports: watch::Receiver<Option<RunStatus>>) -> Ended {
        self.write_and_tell(reports, || {}).await
    }

    /// The same; calls `written` after each report that was written.
    pub async fn write_and_tell(
        self,
        mut reports: watch::Receiver<Option<RunStatus>>,
        written: impl Fn(),
    ) -> Ended {
        let mut schedule = Schedule::default();
        let mut version = None;
        let mut pauses = RETRY.build();
        loop {
            let now = Instant::now();
            let (due, report) = {
                let report = reports.borrow_and_update();
                let due = report.as_ref().map(|report| schedule.due(now, report));
                let is_due = due.is_some_and(|due| due <= now);
                (due, report.as_ref().filter(|_| is_due).cloned())
            };
            if let Some(report) = report {
                match self.write_one(&report, &mut version).await {
                    Ok(Written::Done) if report.end.is_some() => return Ended::Reported,
                    Ok(Written::Done) => {
                        written();
                        schedule.wrote(Instant::now(), &report);
                        pauses = RETRY.build();
                    }
                    Ok(Written::Deposed) => return Ended::Deposed,
                    Ok(Written::Gone) => return Ended::Gone,
                    Err(failure) => {
                        let pause = failure.pause(pauses.next());
                        tracing::warn!(why = %failure, ?pause, "the report is not written, and tried again");
                        version = None;
                        tokio::time::sleep(pause).await;
                        continue;
                    }
                }
            }
            let due = due.filter(|due| *due > now);
            let not_before = schedule.not_before();
            tokio::select! {
                changed = reports.changed() => if changed.is_err() {
                    // Its owner has ended without a last report.
                    return Ended::Deposed;
                },
                () = tokio::time::sleep_until(due.unwrap_or_else(|| schedule.steps_due())) => {}
            }
            tokio::time::sleep_until(not_before).await;
        }
    }

    /// Writes one report over the newest version that is known, so that it replaces no report of a later coordinator.
    async fn write_one(&self, report: &RunStatus, version: &mut Option<u64>) -> Result<Written, Failure> {
        let room = room_beside(self.seen.borrow().as_ref().map(|seen| &seen.spec));
        let document = bounded(report, room);
        let workers = |report: &RunStatus| report.state.as_ref().map_or(0, |s| s.workers.len());
        let left_out = workers(report) - workers(&document);
        if left_out > 0 {
            tracing::warn!(
                left_out,
                "the report leaves out workers: the API server takes none that is longer"
            );
        }
        for attempt in 0..3 {
            // After a conflict what is known is out of date.
            let known = self.newest_version(*version).filter(|_| attempt == 0);
            let known = match known {
                Some(known) => known,
                None => match self.read_version().await? {
                    Version::InCharge(read) => read,
                    Version::Deposed => return Ok(Written::Deposed),
                    Version::Gone => return Ok(Written::Gone),
                },
            };
            let mut object = DynamicObject::new(&self.name, &crate::orders::resource());
            object.metadata.resource_version = Some(known.to_string());
            object.data = json!({ "status": document });
            match within(
                self.runs
                    .replace_status(&self.name, &PostParams::default(), &object),
            )
            .await
            {
                Ok(object) => {
                    let written = object.metadata.resource_version;
                    *version = written.and_then(|written| written.parse().ok());
                    return Ok(Written::Done);
                }
                Err(Failure::Api(kube::Error::Api(status)))
                    if status.is_conflict() || status.is_not_found() =>
                {
                    *version = None;
                }
                Err(failure) => return Err(failure),
            }
        }
        Err(Failure::Contended)
    }

    /// The newest version that is known to have this coordinator in charge. `written`: the one that was written last.
    fn newest_version(&self, written: Option<u64>) -> Option<u64> {
        let seen = self.seen.borrow();
        match seen
            .as_ref()
            .filter(|seen| written.is_none_or(|written| written < seen.version))
        {
            Some(seen) => (role(&seen.spec, self.number) != Role::Leave).then_some(seen.version),
            None => written,
        }
    }

    /// The version that there is now.
    async fn read_version(&self) -> Result<Version, Failure> {
        let Some(object) = within(self.runs.get_opt(&self.name)).await? else {
            return Ok(Version::Gone);
        };
        if orders_of(&object).is_some_and(|spec| role(&spec, self.number) == Role::Leave) {
            return Ok(Version::Deposed);
        }
        let version = object.metadata.resource_version.unwrap_or_default();
        let number = version.parse();
        number
            .map(Version::InCharge)
            .map_err(|_| Failure::NoNumber(version))
    }
}

/// When the next report is written.
#[derive(Debug, Default)]
struct Schedule {
    /// What was written last, and when.
    written: Option<(ReportedPart, Instant)>,
    /// The time from that report to the next one with only steps.
    interval: Duration,
    /// What is new beside steps: the shortest wait of it, and since when that applies.
    changed: Option<(Duration, Instant)>,
}

impl Schedule {
    /// When a report is due that has this in it.
    fn due(&mut self, now: Instant, report: &RunStatus) -> Instant {
        let Some((before, _)) = &self.written else {
            return now;
        };
        let Some(wait) = ReportedPart::of(report).may_wait(before) else {
            self.changed = None;
            return self.steps_due();
        };
        // A change that may wait less long starts another wait, so that its consequences are in the same report.
        let (_, since) = *self.changed.insert(match self.changed {
            Some((known, since)) if known <= wait => (known, since),
            _ => (wait, now),
        });
        (since + wait).min(self.steps_due()).max(self.not_before())
    }

    fn wrote(&mut self, now: Instant, report: &RunStatus) {
        let part = ReportedPart::of(report);
        let only_steps = self.written.as_ref().is_some_and(|(before, _)| *before == part);
        self.interval = if only_steps {
            (self.interval * 2).min(STEPS_INTERVAL_MAX)
        } else {
            STEPS_INTERVAL
        };
        self.written = Some((part, now));
        self.changed = None;
    }

    /// When a report with only steps is due.
    fn steps_due(&self) -> Instant {
        let interval = self.interval.max(STEPS_INTERVAL);
        let written = self.written.as_ref().map(|(_, at)| *at + interval);
        written.unwrap_or_else(|| Instant::now() + interval)
    }

    /// The time before which nothing is written.
    fn not_before(&self) -> Instant {
        self.written
            .as_ref()
            .map_or_else(Instant::now, |(_, at)| *at + BURST)
    }
}

enum Written {
    Done,
    Deposed,
    Gone,
}

/// What was read of the object.
enum Version {
    /// This coordinator is in charge; the version of the object.
    InCharge(u64),
    /// Another coordinator is in charge.
    Deposed,
    /// The job is gone.
    Gone,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Api(#[from] kube::Error),
    #[error("no answer within {} s", DEADLINE.as_secs())]
    Late,
    #[error("others write it as well")]
    Contended,
    #[error("resourceVersion {0:?} is no number")]
    NoNumber(String),
}

impl Failure {
    /// How long the next call waits: as is its turn, and no less than the API server asks for.
    fn pause(&self, turn: Option<Duration>) -> Duration {
        let asked = match self {
            Failure::Api(kube::Error::Api(status)) => status.details.as_ref().map(|d| d.retry_after_seconds),
            _ => None,
        };
        let asked = Duration::from_secs(asked.unwrap_or(0).into());
        turn.unwrap_or_default().max(asked)
    }
}

async fn within<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
    let answer = tokio::time::timeout(DEADLINE, call).await;
    Ok(answer.map_err(|_| Failure::Late)??)
}

#[cfg(test)]
mod tests;
