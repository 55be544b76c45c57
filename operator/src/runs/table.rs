//! The table of all coordinators of this process.

use super::run::{Launcher, Run};
use crate::decide::{CoordinatorGoal, Credentials, Decision, ObservedJob, ObservedRun};
use crate::error::Error;
use crate::metrics::JobKey;
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use serde_json::Value;
use std::collections::BTreeMap;
use varuna_api::Reason;
use varuna_coordinator::WorkerNotice;

/// All coordinators of this process.
pub struct Runs {
    runs: Mutex<BTreeMap<JobKey, Run>>,
    launcher: Launcher,
}

fn key(job: &ObservedJob) -> JobKey {
    (job.namespace.clone(), job.name.clone())
}

impl Runs {
    /// An empty table, whose coordinators are started by a launcher.
    #[must_use]
    pub fn new(launcher: Launcher) -> Runs {
        Runs {
            runs: Mutex::default(),
            launcher,
        }
    }

    /// The run of a job. It must not be held across an await.
    fn get(&self, job: &ObservedJob) -> Option<MappedMutexGuard<'_, Run>> {
        let run = MutexGuard::try_map(self.runs.lock(), |runs| runs.get_mut(&key(job)));
        run.ok().filter(|r| r.uid == job.uid)
    }

    /// A job's coordinator, if it runs here.
    #[must_use]
    pub fn observed(&self, job: &ObservedJob) -> Option<ObservedRun> {
        self.get(job).map(|run| run.observed())
    }

    /// Takes the coordinator's sentences that were not recorded as Events yet.
    #[must_use]
    pub fn take_sentences(&self, job: &ObservedJob) -> Vec<(Reason, String)> {
        self.get(job)
            .map(|mut run| run.take_sentences())
            .unwrap_or_default()
    }

    /// Tells a job's coordinator what the cluster shows about its workers.
    pub fn notify(&self, job: &ObservedJob, notices: &[WorkerNotice]) {
        if let Some(run) = self.get(job) {
            run.notify(notices);
        }
    }

    /// Starts, stops or removes a job's coordinator. One that starts takes the present spec, or the one that the run began with.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn carry_out(
        &self,
        job: &ObservedJob,
        spec: &Value,
        decision: &Decision<'_>,
        credentials: &Credentials,
    ) -> Result<(), Error> {
        let goal = decision.coordinator;
        match goal {
            CoordinatorGoal::Absent => {
                if self.get(job).is_some() {
                    self.runs.lock().remove(&key(job));
                }
            }
            CoordinatorGoal::Stop => {
                if let Some(run) = self.get(job) {
                    run.stop();
                }
            }
            CoordinatorGoal::Run | CoordinatorGoal::RunAndSave => {
                if let Some(mut run) = self.get(job).filter(|r| r.observed().ended.is_none()) {
                    run.save(goal == CoordinatorGoal::RunAndSave);
                    return Ok(());
                }
                // Another job's of the same name, or one that has ended.
                self.runs.lock().remove(&key(job));
                let run = self
                    .launcher
                    .start(job, spec, decision.takes_present_spec, credentials.clone())
                    .await?;
                self.runs.lock().insert(key(job), run);
            }
        }
        Ok(())
    }

    /// Removes the coordinators of deleted jobs.
    pub fn retain(&self, exists: impl Fn(&str, &str) -> bool) {
        self.runs
            .lock()
            .retain(|(namespace, name), _| exists(namespace, name));
    }
}
