//! Writes the reports of a coordinator into the status of its `VarunaRun`: at once where something has changed that matters, from time to
//! time where only steps were committed.

use crate::orders::{Turn, orders_of, turn};
use crate::report::UrgentPart;
use kube::Api;
use kube::api::{DynamicObject, PostParams};
use serde_json::json;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use varuna_api::crd::RunStatus;

/// Reports of steps alone are at least this far apart: one for each step would be too many.
const STEPS_INTERVAL: Duration = Duration::from_secs(15);
/// All reports are at least this far apart, so that a burst of changes is one report.
const BURST: Duration = Duration::from_millis(100);
/// A write that takes longer has failed.
const DEADLINE: Duration = Duration::from_secs(5);
/// After a failed write the next one waits this long.
const RETRY: Duration = Duration::from_secs(1);

/// Why reporting has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The last report is written.
    Reported,
    /// Another coordinator is in charge, or the job is gone.
    Deposed,
}

/// Where the reports go, and by whom they are.
pub struct Reports {
    /// The runs of the job's namespace.
    pub runs: Api<DynamicObject>,
    /// The name of the job's.
    pub name: String,
    /// The coordinator that reports.
    pub number: i64,
}

impl Reports {
    /// Writes what `reports` holds whenever it changes, until one says how the coordinator ended and is written, or another is in charge.
    pub async fn write(self, mut reports: watch::Receiver<Option<RunStatus>>) -> Ended {
        let mut written: Option<(UrgentPart, Instant)> = None;
        let mut version = None;
        loop {
            let report = reports.borrow_and_update().clone();
            let is_due = |report: &RunStatus| {
                written.as_ref().is_none_or(|(part, at)| {
                    at.elapsed() >= STEPS_INTERVAL || *part != UrgentPart::of(report)
                })
            };
            if let Some(report) = report.filter(is_due) {
                match self.write_one(&report, &mut version).await {
                    Ok(Written::Done) if report.end.is_some() => return Ended::Reported,
                    Ok(Written::Done) => written = Some((UrgentPart::of(&report), Instant::now())),
                    Ok(Written::Deposed) => return Ended::Deposed,
                    Err(why) => {
                        tracing::warn!(why, "the report is not written");
                        version = None;
                        tokio::time::sleep(RETRY).await;
                        continue;
                    }
                }
                tokio::time::sleep(BURST).await;
            }
            let later = tokio::time::sleep(STEPS_INTERVAL);
            tokio::select! {
                changed = reports.changed() => if changed.is_err() {
                    // Its owner has ended without a last report.
                    return Ended::Deposed;
                },
                () = later => {}
            }
        }
    }

    /// Writes one report over the version that was read last, so that it replaces no report of a later coordinator.
    async fn write_one(&self, report: &RunStatus, version: &mut Option<String>) -> Result<Written, String> {
        for _ in 0..3 {
            if version.is_none() {
                let Some(object) = within(self.runs.get_opt(&self.name)).await? else {
                    return Ok(Written::Deposed);
                };
                if orders_of(&object).is_some_and(|spec| turn(&spec, self.number) == Turn::Leave) {
                    return Ok(Written::Deposed);
                }
                version.clone_from(&object.metadata.resource_version);
            }
            let mut object = DynamicObject::new(&self.name, &crate::orders::resource());
            object.metadata.resource_version.clone_from(version);
            object.data = json!({ "status": report });
            match within(
                self.runs
                    .replace_status(&self.name, &PostParams::default(), &object),
            )
            .await
            {
                Ok(object) => {
                    *version = object.metadata.resource_version;
                    return Ok(Written::Done);
                }
                Err(Failure::Api(kube::Error::Api(status)))
                    if status.is_conflict() || status.is_not_found() =>
                {
                    *version = None;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err("others write it as well".into())
    }
}

enum Written {
    Done,
    Deposed,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Api(#[from] kube::Error),
    #[error("no answer within {} s", DEADLINE.as_secs())]
    Late,
}

impl From<Failure> for String {
    fn from(failure: Failure) -> String {
        failure.to_string()
    }
}

async fn within<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
    let answer = tokio::time::timeout(DEADLINE, call).await;
    Ok(answer.map_err(|_| Failure::Late)??)
}
