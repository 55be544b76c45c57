//! Reconciles one job: observe -> decide -> carry out -> report -> publish.

use crate::cluster::observe;
use crate::cluster::ownership::is_of;
use crate::cluster::publish::{publish, publish_event};
use crate::context::Context;
use crate::decide::{
    CoordinatorGoal, Credentials, Decision, EventNote, Observed, ObservedJob, PodVerdict, Report, decide,
    deletion_events, report,
};
use crate::error::{DEADLINE, Error};
use crate::resource::{job_ref, resource};
use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use kube::runtime::controller::Action;
use kube::{Api, ResourceExt};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use varuna_api::Reason;

/// Without any event a job is reconciled at this interval: no watch promises every event.
const INTERVAL: Duration = Duration::from_secs(300);
/// A failed reconciliation is repeated after this time.
const RETRY: Duration = Duration::from_secs(10);

/// Reconciles a job within the deadline, and measures it.
///
/// # Errors
/// Something could not be carried out; all of it is tried again.
pub async fn reconcile(object: Arc<DynamicObject>, context: Arc<Context>) -> Result<Action, Error> {
    let began = Instant::now();
    let result = tokio::time::timeout(DEADLINE, reconcile_job(&object, &context)).await;
    let result = result.unwrap_or(Err(Error::Timeout));
    let kind = result.as_ref().err().map(Error::kind);
    context.health.metrics.reconciled(began.elapsed(), kind);
    result
}

async fn reconcile_job(object: &DynamicObject, context: &Context) -> Result<Action, Error> {
    let observed = observe_cached(object, context);
    let Some((object, observed)) = confirm(object.clone(), observed, context).await? else {
        return Ok(Action::await_change());
    };
    let job = &observed.job;
    let decision = decide(&observed);
    // First: once the pods are gone nobody can tell why, and carrying it out may fail or be cut short by the deadline.
    for note in deletion_events(&decision) {
        publish_event(&context.recorder, job, &note).await;
    }
    match carry_out(&object, &observed, &decision, context).await {
        Ok(()) => context.backoff.succeeded(job, &observed.failures),
        Err(Error::Refused { part, message }) => context.backoff.failed(job, part, &message),
        Err(error) => return Err(error),
    }
    if decision.delete_job {
        let read = object.resource_version();
        context.applier.delete_job(job, read).await?;
        return Ok(Action::await_change());
    }
    let report = report(&observed, &decision, &context.backoff.failures(job));
    measure(&observed, &decision, &report, context);
    publish(&context.client, &context.recorder, job, &report).await?;
    publish_sentences(job, context).await;
    let again = report.reconcile_in.and_then(|s| u64::try_from(s).ok());
    let again = again.map_or(INTERVAL, Duration::from_secs);
    Ok(Action::requeue(again.clamp(Duration::from_secs(1), INTERVAL)))
}

/// What the watches have shown.
fn observe_cached(object: &DynamicObject, context: &Context) -> Observed {
    let job = observe::job(object);
    let pods = context.pods.state();
    let pods = pods.iter().filter(|pod| {
        pod.namespace().as_deref() == Some(&job.namespace)
            && observe::job_of(pod) == Some(&job.name)
            && is_of(&pod.metadata, &job)
    });
    let nodes = context.nodes.state();
    Observed {
        run: context.runs.observed(&job),
        failures: context.backoff.failures(&job),
        pods: pods.filter_map(|pod| observe::pod(pod)).collect(),
        nodes: nodes.iter().map(|n| (n.name_any(), observe::node(n))).collect(),
        now: Timestamp::now().as_second(),
        settings: context.settings.clone(),
        job,
    }
}

/// Caches may be old: pods are created and deleted only on what the API server has now. None where the job is gone.
async fn confirm(
    object: DynamicObject,
    observed: Observed,
    context: &Context,
) -> Result<Option<(DynamicObject, Observed)>, Error> {
    if !decide(&observed).changes_pods() {
        return Ok(Some((object, observed)));
    }
    let jobs: Api<DynamicObject> =
        Api::namespaced_with(context.client.clone(), &observed.job.namespace, &resource());
    let Some(object) = jobs.get_opt(&observed.job.name).await? else {
        return Ok(None);
    };
    let job = observe::job(&object);
    let pods = context.applier.pods(&job).await?;
    let observed = Observed {
        job,
        pods: pods.iter().filter_map(observe::pod).collect(),
        ..observed
    };
    Ok(Some((object, observed)))
}

async fn carry_out(
    object: &DynamicObject,
    observed: &Observed,
    decision: &Decision<'_>,
    context: &Context,
) -> Result<(), Error> {
    let job = &observed.job;
    let spec = object.data.get("spec").cloned().unwrap_or_default();
    let credentials = match decision.coordinator {
        CoordinatorGoal::Run | CoordinatorGoal::RunAndSave => context.credentials.credentials(job).await?,
        CoordinatorGoal::Stop | CoordinatorGoal::Absent => Credentials::default(),
    };
    context.runs.carry_out(job, &spec, decision, &credentials).await?;
    context.runs.notify(job, &decision.notices);
    context.applier.apply(job, decision).await
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

/// What the coordinator has reported since the last reconciliation.
async fn publish_sentences(job: &ObservedJob, context: &Context) {
    for (reason, text) in context.runs.take_sentences(job) {
        let note = EventNote {
            warning: false,
            lasting: false,
            reason,
            text,
        };
        publish_event(&context.recorder, job, &note).await;
    }
}

/// A failed reconciliation is repeated after a while, and an Event says why.
pub fn failed(object: Arc<DynamicObject>, error: &Error, context: Arc<Context>) -> Action {
    let job = observe::job(&object);
    tracing::warn!(%error, job = %job_ref(&job.namespace, &job.name), "will be tried again");
    if matches!(error, Error::Refused { .. }) {
        let note = EventNote {
            warning: true,
            lasting: true,
            reason: Reason::CannotRun,
            text: error.to_string(),
        };
        tokio::spawn(async move { publish_event(&context.recorder, &job, &note).await });
    }
    Action::requeue(RETRY)
}
