//! Carries out what was decided about a job: turns the actions of a decision into calls to the API server, in the order in which they depend
//! on each other. Decides nothing.

use crate::cluster::orders;
use crate::cluster::pod_writer::PodDocument;
use crate::cluster::record::begin_run;
use crate::cluster::workloads;
use crate::context::Context;
use crate::decide::{Decision, ObservedJob};
use crate::error::{Error, within};
use crate::observe::Seen;
use kube::ResourceExt as _;
use std::time::Duration;
use varuna_api::crd::{Status, Time};

/// A deletion of the job that waits for its object to show the end is tried again after this time.
const DELETION_RETRY: Duration = Duration::from_secs(1);
/// Pods that are left to create or to delete follow after this time, or as soon as the watch has shown those before them.
const REST_OF_PODS: Duration = Duration::from_secs(1);

/// How far a decision was carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Carried {
    /// The decision was carried out completely.
    Whole,
    /// Something is left to do, after this time.
    Partly(Duration),
    /// The job is deleted, as its time is over.
    JobDeleted,
}

/// Takes the pods to create out of a decision: nothing else reads them.
pub(crate) fn pods_to_create(decision: &mut Decision<'_>) -> Vec<PodDocument> {
    let pods = std::mem::take(&mut decision.create);
    pods.iter().map(PodDocument::new).collect()
}

/// A decision about one job that is to be carried out.
pub(crate) struct Execution<'a> {
    /// What was seen of the job: the decision is carried out only on these versions of its objects.
    pub(crate) seen: &'a Seen<'a>,
    /// What was decided, without the pods to create.
    pub(crate) decision: &'a Decision<'a>,
    /// The pods to create.
    pub(crate) pods: &'a [PodDocument],
    /// What writes.
    pub(crate) context: &'a Context,
}

impl Execution<'_> {
    /// Carries the decision out.
    ///
    /// # Errors
    /// The API server refuses or does not answer in time, or something has changed. What was done until then stays.
    pub(crate) async fn run(&self) -> Result<Carried, Error> {
        within(self.carry_out()).await
    }

    /// Orders come before pods: a coordinator hears of a deletion before its worker does. Objects that are missing come before pods, which
    /// need them; the others after, and only while few jobs need that.
    async fn carry_out(&self) -> Result<Carried, Error> {
        let (job, decision, context) = (self.job(), self.decision, self.context);
        if decision.delete_job && shows_its_end(self.seen.shown_end.as_ref(), &job.status) {
            // All that belongs to it goes with it, whatever could not be written of that.
            let read = self.seen.object.resource_version();
            context.applier.delete_job(job, read).await?;
            return Ok(Carried::JobDeleted);
        }
        if decision.starts_coordinator {
            self.begin_run().await?;
        }
        self.write_orders().await?;
        // What Kueue refuses holds up neither objects nor pods: those follow what it has admitted.
        let queued = workloads::carry_out(&context.client, &context.index, job, &decision.workload).await;
        let objects = context.applier.outdated(job, &decision.objects);
        context.applier.apply_objects(job, objects.missing).await?;
        let is_whole = context.pods.change(job, decision, self.pods).await?;
        let with_policies = decision.changes_policies;
        let postponed = context
            .applier
            .adjust_objects(job, objects.changed, with_policies)
            .await?;
        queued?;
        let pods_left = (!is_whole).then_some(REST_OF_PODS);
        Ok(match pods_left.or(postponed).or(objects.again_in) {
            _ if decision.delete_job => Carried::Partly(DELETION_RETRY),
            Some(again) => Carried::Partly(again),
            None => Carried::Whole,
        })
    }

    fn job(&self) -> &ObservedJob {
        &self.seen.observed.job
    }

    /// Makes sure that the job has what a coordinator needs before it starts: the record of the run, and credentials.
    async fn begin_run(&self) -> Result<(), Error> {
        let (job, context) = (self.job(), self.context);
        let text = self.seen.object.run_document().to_string();
        let takes_text = self.decision.takes_present_spec;
        let secret = begin_run(&context.client, job, &text, takes_text).await?;
        let pods = &self.seen.observed.pods;
        let newest_pod = pods.iter().map(|pod| pod.number).max().unwrap_or(0);
        context.credentials.ensure(job, secret, newest_pod).await
    }

    /// Writes orders, if others than the present ones were decided.
    async fn write_orders(&self) -> Result<(), Error> {
        let Some(orders) = &self.decision.orders else {
            return Ok(());
        };
        let present = self.seen.run.as_deref();
        let written = orders::write(&self.context.client, self.job(), orders, present).await?;
        self.context.index.runs.lock().written(&written);
        Ok(())
    }
}

/// Whether everybody can see that a job has ended and how: what was reported may not be written yet.
fn shows_its_end(shown: Option<&Time>, reported: &Status) -> bool {
    shown.is_some() && shown == reported.completion_time.as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::jiff::Timestamp;

    #[test]
    fn a_job_shows_its_end_once_what_was_reported_last_is_written() {
        let at = |second| Time(Timestamp::from_second(second).unwrap());
        let ended = |completion_time| Status {
            completion_time,
            ..Status::default()
        };
        let reported = ended(Some(at(7)));
        assert!(!shows_its_end(None, &reported), "it is not written yet");
        assert!(shows_its_end(Some(&at(7)), &reported));
        // The job has run again since then, and has ended.
        assert!(!shows_its_end(Some(&at(3)), &reported));
        assert!(!shows_its_end(None, &ended(None)));
    }
}
