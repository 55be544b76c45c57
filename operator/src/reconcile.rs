//! Reconciles one job: observe -> decide -> carry out -> report -> publish.

use crate::cluster::ownership::is_of;
use crate::cluster::publish::{publish, publish_event};
use crate::cluster::record::begin_run;
use crate::cluster::{observe, orders};
use crate::context::Context;
use crate::decide::objects::record_name;
use crate::decide::{
    Decision, EventNote, JobPart, Observed, ObservedJob, PodVerdict, Report, coordinator_failure, decide,
    deletion_events, report,
};
use crate::error::{DEADLINE, Error};
use crate::resource::{job_ref, resource};
use k8s_openapi::api::core::v1::Pod;
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
/// One that came too early is, if no watch shows the change before.
const SOON: Duration = Duration::from_secs(1);

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
    let seen = observe_cached(object, context);
    let Some(seen) = confirm(seen, context).await? else {
        return Ok(Action::await_change());
    };
    let Seen { object, observed, .. } = &seen;
    let job = &observed.job;
    let decision = decide(observed);
    // First: once the pods are gone nobody can tell why, and carrying it out may fail or be cut short by the deadline.
    for note in deletion_events(&decision) {
        publish_event(&context.recorder, job, &note).await;
    }
    match carry_out(&seen, &decision, context).await {
        Ok(()) => context.backoff.succeeded(job, &observed.failures),
        Err(Error::Refused { part, message }) => context.backoff.failed(job, part, &message),
        Err(error) => return Err(error),
    }
    if decision.delete_job {
        let read = object.resource_version();
        context.applier.delete_job(job, read).await?;
        return Ok(Action::await_change());
    }
    let report = report(observed, &decision, &context.backoff.failures(job));
    measure(observed, &decision, &report, context);
    publish(&context.client, &context.recorder, job, &report).await?;
    follow_coordinator(observed, context);
    let again = report.reconcile_in.and_then(|s| u64::try_from(s).ok());
    let again = again.map_or(INTERVAL, Duration::from_secs);
    Ok(Action::requeue(again.clamp(Duration::from_secs(1), INTERVAL)))
}

/// A job as it was seen: its object, the object with its coordinator's orders and reports, and what decisions are made from.
struct Seen {
    object: DynamicObject,
    run: Option<Arc<DynamicObject>>,
    observed: Observed,
}

/// What the watches have shown.
fn observe_cached(object: &DynamicObject, context: &Context) -> Seen {
    let job = observe::job(object);
    let run = context
        .runs
        .get(&orders::run_ref(&job))
        .filter(|run| is_of(&run.metadata, &job));
    let pods = context.pods.state();
    let pods = pods.iter().filter(|pod| {
        pod.namespace().as_deref() == Some(&job.namespace)
            && observe::job_of(pod) == Some(&job.name)
            && is_of(&pod.metadata, &job)
    });
    let pods: Vec<&Pod> = pods.map(|pod| &**pod).collect();
    let observed = observe_parts(job, &pods, run.as_deref(), context);
    Seen {
        object: object.clone(),
        run,
        observed,
    }
}

fn observe_parts(
    job: ObservedJob,
    pods: &[&Pod],
    run: Option<&DynamicObject>,
    context: &Context,
) -> Observed {
    let (orders, reports) = run.map_or((None, None), observe::run);
    let nodes = context.nodes.state();
    Observed {
        pods: pods.iter().filter_map(|pod| observe::pod(pod)).collect(),
        coordinators: pods
            .iter()
            .filter_map(|pod| observe::coordinator_pod(pod))
            .collect(),
        orders,
        run: reports,
        coordinator_probe: context.probes.probe(&job.uid),
        failures: context.backoff.failures(&job),
        nodes: nodes.iter().map(|n| (n.name_any(), observe::node(n))).collect(),
        now: Timestamp::now().as_second(),
        settings: context.settings.clone(),
        job,
    }
}

/// Caches may be old, each by another moment: pods are created and deleted, and a coordinator has failed, only by what the API server has now.
/// None where the job is gone.
async fn confirm(seen: Seen, context: &Context) -> Result<Option<Seen>, Error> {
    let observed = &seen.observed;
    if coordinator_failure(observed).is_none() && !decide(observed).changes_pods() {
        return Ok(Some(seen));
    }
    let jobs: Api<DynamicObject> =
        Api::namespaced_with(context.client.clone(), &observed.job.namespace, &resource());
    let Some(object) = jobs.get_opt(&observed.job.name).await? else {
        return Ok(None);
    };
    let job = observe::job(&object);
    let pods = context.applier.pods(&job).await?;
    let runs = orders::runs(&context.client, &job.namespace);
    let run = runs.get_opt(&record_name(&job)).await?.map(Arc::new);
    let run = run.filter(|run| is_of(&run.metadata, &job));
    let pods: Vec<&Pod> = pods.iter().collect();
    let mut observed = observe_parts(job, &pods, run.as_deref(), context);
    if let Some((number, why)) = coordinator_failure(&observed) {
        let job = &observed.job;
        context
            .backoff
            .attempt_failed(job, JobPart::Coordinator, number, &why);
        observed.failures = context.backoff.failures(job);
    }
    Ok(Some(Seen {
        object,
        run,
        observed,
    }))
}

/// Orders come before pods: a coordinator hears of a deletion before its worker does.
async fn carry_out(seen: &Seen, decision: &Decision<'_>, context: &Context) -> Result<(), Error> {
    let job = &seen.observed.job;
    if decision.starts_coordinator {
        context.credentials.make_sure(job).await?;
        let spec = seen.object.data.get("spec").cloned().unwrap_or_default();
        let text = observe::run_document(&job.name, &job.namespace, &spec).to_string();
        begin_run(&context.client, job, &text, decision.takes_present_spec).await?;
    }
    if let Some(orders) = &decision.orders {
        orders::write(&context.client, job, orders, seen.run.as_deref()).await?;
    }
    context.applier.apply(job, decision).await
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
    Action::requeue(if matches!(error, Error::Stale) {
        SOON
    } else {
        RETRY
    })
}
