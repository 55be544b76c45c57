//! Reconciles one job: observe -> decide -> carry out -> report. Joins these parts and says when the job is reconciled again; each part is
//! in a module of its own. Reports are published separately (`cluster/publish.rs`).

use crate::carry_out::{Carried, Execution, pods_to_create};
use crate::context::Context;
use crate::decide::{
    Decision, News, Observed, PodVerdict, Report, decide, deletion_events, report, waits_for_server,
};
use crate::error::Error;
use crate::job_object::JobObject;
use crate::observe::Observer;
use crate::resource::job_ref;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Without any event a job is reconciled at this interval: no watch promises every event. Longer than the longest pause between two reports of a
/// coordinator (300 s): a job that trains undisturbed is reconciled once for each report, and not once more just before it.
const INTERVAL: Duration = Duration::from_secs(420);
/// A reconciliation in a process that does not lead is repeated after this time.
const RETRY: Duration = Duration::from_secs(10);
/// A reconciliation that came too early is repeated after this time, if no watch shows the change before. So is one that reported more than
/// figures.
const SOON: Duration = Duration::from_secs(1);

/// Reconciles a job, and measures it.
///
/// # Errors
/// Something has changed in the meantime; all of it is tried again. What is refused or not answered is reported instead, and tried again later each time.
pub async fn reconcile(object: Arc<JobObject>, context: Arc<Context>) -> Result<Action, Error> {
    let began = Instant::now();
    let result = reconcile_job(&object, &context).await;
    let failed = result
        .as_ref()
        .map_or_else(|error| Some(error.kind()), |(_, failed)| *failed);
    context.health.metrics.reconciled(began.elapsed(), failed);
    result.map(|(action, _)| action)
}

/// Returns when the job is reconciled again, and the kind of the error that is reported, if there is one.
async fn reconcile_job(
    object: &JobObject,
    context: &Context,
) -> Result<(Action, Option<&'static str>), Error> {
    if object.is_managed_by_another() {
        // It cannot become ours: the API server refuses that.
        return Ok((Action::await_change(), None));
    }
    let job = context.specs.job(object);
    let key = (job.namespace.clone(), job.name.clone());
    let unmet = || context.index.pods.lock().unmet(Instant::now(), &key);
    let waits = unmet();
    if let Some(left) = waits.filter(|left| !left.is_zero()) {
        // The watch will show what was done, and then this job is reconciled again.
        return Ok((Action::requeue(left), None));
    }
    let seen = Observer::new(object, context)
        .observe(job, waits.is_some())
        .await?;
    let observed = &seen.observed;
    let job = &observed.job;
    let mut decision = decide(observed);
    let pods = pods_to_create(&mut decision);
    let (mut failed, mut left_in) = (seen.failed, None);
    if !waits_for_server(&observed.failures) {
        // This comes first: once the pods are gone, the reasons are no longer known, and the actions may fail or be ended by the deadline.
        for note in deletion_events(&decision) {
            context.publisher.note(job, &note);
        }
        let execution = Execution {
            seen: &seen,
            decision: &decision,
            pods: &pods,
            context,
        };
        match execution.run().await {
            Ok(Carried::JobDeleted) => return Ok((Action::await_change(), failed)),
            Ok(carried) => {
                if let Carried::Partly(again) = carried {
                    left_in = Some(again);
                }
                context.backoff.succeeded(job, &observed.failures);
            }
            Err(error) => failed = Some(context.backoff.note(job, error)?),
        }
    }
    let report = report(observed, &decision, &context.backoff.failures(job));
    measure(observed, &decision, &report, context);
    let news = context.publisher.report(job, &report);
    follow_coordinator(observed, context);
    Ok((Action::requeue(due_in(&report, news, left_in, unmet())), failed))
}

/// When a job is reconciled again if nothing happens before. `left_in`: when the rest of the decision is to be carried out; `unmet`: how long
/// it waits at most for what is expected of its pods.
fn due_in(report: &Report, news: News, left_in: Option<Duration>, unmet: Option<Duration>) -> Duration {
    let asked = report.reconcile_in.and_then(|s| u64::try_from(s).ok());
    let asked = asked.map_or(INTERVAL, Duration::from_secs);
    // The next decision may depend on this report. No watch reports it, because only this program writes statuses.
    let latest = if news == News::Facts {
        SOON
    } else {
        left_in.unwrap_or(INTERVAL)
    };
    // A watch that is cut off does not report pods either.
    let latest = latest.min(unmet.unwrap_or(INTERVAL)).max(SOON);
    asked.clamp(SOON, latest)
}

/// Asks the coordinator in charge from now on whether it answers.
fn follow_coordinator(observed: &Observed, context: &Context) {
    let run = observed.run.as_ref().filter(|run| run.ended.is_none());
    let number = observed.orders.as_ref().map(|o| o.coordinator);
    let coordinator = number.zip(run.and_then(|run| run.health_address));
    let job = &observed.job;
    context
        .probes
        .follow(&job.uid, &job_ref(&job.namespace, &job.name), coordinator);
}

fn measure(observed: &Observed, decision: &Decision<'_>, report: &Report, context: &Context) {
    let job = &observed.job;
    let mut pods: BTreeMap<_, _> = PodVerdict::LABELS.iter().map(|l| (*l, 0)).collect();
    for judged in &decision.pods {
        *pods.entry(judged.verdict.label()).or_default() += 1;
    }
    let key = (job.namespace.clone(), job.name.clone());
    let steps = job.spec.as_ref().map_or(0, |j| j.training.steps);
    let jobs = &context.health.metrics.jobs;
    jobs.reconciled(&key, &report.status, steps, pods);
}

/// A reconciliation that came too early, or to a process that does not lead, is repeated.
pub fn failed(object: Arc<JobObject>, error: &Error, _: Arc<Context>) -> Action {
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    tracing::warn!(%error, job = %job_ref(&namespace, &name), "will be tried again");
    Action::requeue(if matches!(error, Error::Stale) {
        SOON
    } else {
        RETRY
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::fake_server::{ReceivedRequest, refusal, server};
    use crate::decide::objects::{JOB_LABEL, NUMBER_LABEL};
    use crate::fixtures::settings;
    use crate::health::Health;
    use serde_json::json;
    use tokio::sync::mpsc::channel;
    use varuna_api::crd::Status;
    use varuna_api::manifest::{API_VERSION, KIND};

    #[tokio::test]
    async fn pods_that_no_watch_shows_are_read_first() {
        let owner =
            json!([{ "apiVersion": API_VERSION, "kind": KIND, "name": "j", "uid": "u", "controller": true }]);
        let labels = json!({ JOB_LABEL: "j", NUMBER_LABEL: "1" });
        let pod = json!({
            "metadata": { "name": "j-w1", "namespace": "n", "uid": "p", "labels": labels, "ownerReferences": owner },
            "spec": { "containers": [] }, "status": { "phase": "Pending" },
        });
        let list = json!({ "apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [pod] });
        let (client, asked) = server(move |asked: &ReceivedRequest| {
            if asked.path.contains("/pods?") {
                Some((200, list.clone()))
            } else {
                refusal(403, "Forbidden")
            }
        });
        let (changed, _requests) = channel(1);
        let health = Arc::new(Health::new(Arc::default()));
        let context = Arc::new(Context::new(client, settings(), "i", health, changed));
        let job: JobObject = serde_json::from_value(json!({
            "apiVersion": API_VERSION, "kind": KIND, "metadata": { "name": "j", "namespace": "n", "uid": "u" },
        }))
        .unwrap();
        let key = ("n".to_owned(), "j".to_owned());
        let made = std::iter::once("j-w1".to_owned());
        let now = Instant::now();
        context
            .index
            .pods
            .lock()
            .expect(now, &key, made, std::iter::empty());
        let waits = reconcile(Arc::new(job.clone()), Arc::clone(&context)).await;
        assert!(
            waits.is_ok() && asked.lock().is_empty(),
            "the watch may show it yet"
        );
        // The time is over if the calls ended long ago.
        let long_ago = now.checked_sub(Duration::from_secs(20)).unwrap_or(now);
        context.index.pods.lock().calls_ended(long_ago, &key);
        let reconciled = reconcile(Arc::new(job), Arc::clone(&context)).await;
        assert!(reconciled.is_ok(), "{reconciled:?}");
        let first = asked.lock()[0].clone();
        assert_eq!(first.method, "GET");
        assert!(first.path.contains("namespaces/n/pods?"), "{}", first.path);
        let pods = context.index.pods.lock();
        assert_eq!(pods.of(&key).map(|pod| pod.name()).collect::<Vec<_>>(), ["j-w1"]);
        assert_eq!(pods.unmet(now, &key), None);
    }

    #[test]
    fn next_reconciliation_comes_when_the_first_reason_for_it_does() {
        let asked = |reconcile_in| Report {
            status: Status::default(),
            events: vec![],
            reconcile_in,
        };
        let seconds = Duration::from_secs;
        let undisturbed = due_in(&asked(None), News::Figures, None, None);
        assert_eq!(undisturbed, INTERVAL);
        assert_eq!(due_in(&asked(Some(60)), News::Figures, None, None), seconds(60));
        assert_eq!(due_in(&asked(Some(0)), News::Nothing, None, None), SOON);
        let report = asked(Some(60));
        assert_eq!(due_in(&report, News::Facts, None, None), SOON);
        assert_eq!(due_in(&report, News::Figures, Some(seconds(5)), None), seconds(5));
        let unmet = due_in(&report, News::Figures, Some(seconds(5)), Some(seconds(3)));
        assert_eq!(unmet, seconds(3), "a watch may be cut off");
        let over = due_in(&report, News::Figures, None, Some(Duration::ZERO));
        assert_eq!(over, SOON, "never at once");
    }
}
