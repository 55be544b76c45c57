//! Reconciles one job: observe -> decide -> carry out -> report. Reports are published separately (`cluster/publish.rs`).

use crate::cluster::orders;
use crate::cluster::ownership::is_of;
use crate::cluster::pod_writer::PodDocument;
use crate::cluster::record::begin_run;
use crate::cluster::workloads;
use crate::context::Context;
use crate::decide::objects::{JOB_LABEL, record_name};
use crate::decide::{
    Decision, JobPart, News, Observed, ObservedJob, ObservedNode, PodVerdict, Report, coordinator_failure,
    decide, deletion_events, report, waits_for_server,
};
use crate::error::{DEADLINE, Error};
use crate::index::{IndexedPod, JobKey, resource_version};
use crate::job_object::JobObject;
use crate::node_object::NodeObject;
use crate::resource::job_ref;
use crate::run_object::RunObject;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::runtime::controller::Action;
use kube::{Api, Resource as _, ResourceExt};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use varuna_api::crd::{Status, Time};

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
    let mut failed = None;
    let result = reconcile_job(&object, &context, &mut failed).await;
    let kind = result.as_ref().err().map(Error::kind).or(failed);
    context.health.metrics.reconciled(began.elapsed(), kind);
    result
}

/// What a call gives within the deadline.
async fn within<T>(call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let result = tokio::time::timeout(DEADLINE, call).await;
    result.unwrap_or(Err(Error::Timeout))
}

/// Notes that something has failed, for the report, and when it is tried again.
///
/// # Errors
/// Something has changed in the meantime: there is nothing to report.
fn note_failure(
    job: &ObservedJob,
    error: Error,
    context: &Context,
    kind: &mut Option<&'static str>,
) -> Result<(), Error> {
    let Some((part, message)) = error.failure() else {
        return Err(error);
    };
    tracing::warn!(%error, job = %job_ref(&job.namespace, &job.name), "will be tried again");
    context.backoff.failed(job, part, &message);
    *kind = Some(error.kind());
    Ok(())
}

/// `failed`: the kind of the error that is reported, if there is one.
async fn reconcile_job(
    object: &JobObject,
    context: &Context,
    failed: &mut Option<&'static str>,
) -> Result<Action, Error> {
    if object.is_managed_by_another() {
        // It cannot become ours: the API server refuses that.
        return Ok(Action::await_change());
    }
    let job = observed_job(object, context);
    let key = (job.namespace.clone(), job.name.clone());
    let unmet = context.index.pods.lock().unmet(Instant::now(), &key);
    if let Some(left) = unmet.filter(|left| !left.is_zero()) {
        // The watch will show what was done, and then this job is reconciled again.
        return Ok(Action::requeue(left));
    }
    let seen = observe(job, object, unmet.is_some(), context, failed).await?;
    let observed = &seen.observed;
    let job = &observed.job;
    let mut decision = decide(observed);
    let pods = pods_to_create(&mut decision);
    let mut latest = INTERVAL;
    if !waits_for_server(&observed.failures) {
        // This comes first: once the pods are gone, the reasons are no longer known, and the actions may fail or be ended by the deadline.
        for note in deletion_events(&decision) {
            context.publisher.note(job, &note);
        }
        match within(carry_out(&seen, &decision, &pods, context)).await {
            Ok(Carried::JobDeleted) => return Ok(Action::await_change()),
            Ok(carried) => {
                if let Carried::Partly(again) = carried {
                    latest = again;
                }
                context.backoff.succeeded(job, &observed.failures);
            }
            Err(error) => note_failure(job, error, context, failed)?,
        }
    }
    let report = report(observed, &decision, &context.backoff.failures(job));
    measure(observed, &decision, &report, context);
    let news = context.publisher.report(job, &report);
    follow_coordinator(observed, context);
    let again = report.reconcile_in.and_then(|s| u64::try_from(s).ok());
    let again = again.map_or(INTERVAL, Duration::from_secs);
    // The next decision may depend on this report. No watch reports it, because only this program writes statuses.
    if news == News::Facts {
        latest = SOON;
    }
    // A watch that is cut off does not report pods either.
    let unmet = context.index.pods.lock().unmet(Instant::now(), &key);
    let latest = latest.min(unmet.unwrap_or(INTERVAL)).max(SOON);
    Ok(Action::requeue(again.clamp(SOON, latest)))
}

/// A job as it was seen: its object, its run, and what decisions are made from.
struct Seen<'a> {
    object: &'a JobObject,
    run: Option<Arc<RunObject>>,
    observed: Observed,
    /// When the job ended, as its object shows.
    shown_end: Option<Time>,
}

/// Whether everybody can see that a job has ended and how: what was reported may not be written yet.
fn shows_its_end(shown: Option<&Time>, reported: &Status) -> bool {
    shown.is_some() && shown == reported.completion_time.as_ref()
}

/// What the watches have shown. `reads_pods`: the pods' watch has not shown for a while what was done.
async fn observe<'a>(
    mut job: ObservedJob,
    object: &'a JobObject,
    reads_pods: bool,
    context: &Context,
    failed: &mut Option<&'static str>,
) -> Result<Seen<'a>, Error> {
    let shown_end = job.status.completion_time.clone();
    let reported = context
        .publisher
        .status(&job.uid, resource_version(object.meta()))?;
    if let Some(reported) = reported {
        job.status = reported;
    }
    let run = context.index.runs.lock().of(&job.namespace, &record_name(&job));
    let run = run.filter(|run| is_of(&run.metadata, &job));
    let (pods, unread) = pods_of(&job, reads_pods, context).await;
    let (coordinators, workers): (Vec<_>, Vec<_>) = pods.iter().partition(|pod| pod.is_coordinator);
    let observed_pods = |pods: Vec<&Arc<IndexedPod>>| pods.iter().map(|pod| pod.observed()).collect();
    let mut observed = Observed {
        nodes: nodes_of(&job, &pods, context),
        pods: observed_pods(workers),
        coordinators: observed_pods(coordinators),
        orders: run.as_ref().and_then(|run| run.orders.clone()),
        run: run.as_ref().and_then(|run| run.reports.clone()),
        coordinator_probe: context.probes.probe(&job.uid),
        failures: context.backoff.failures(&job),
        now: Timestamp::now().as_second(),
        settings: context.settings.clone(),
        queue: context.index.queues.lock().of(&job),
        job,
    };
    if let Some((number, why)) = coordinator_failure(&observed) {
        let job = &observed.job;
        context
            .backoff
            .attempt_failed(job, JobPart::Coordinator, number, &why);
        observed.failures = context.backoff.failures(job);
    }
    if let Some(error) = unread {
        note_failure(&observed.job, error, context, failed)?;
        observed.failures = context.backoff.failures(&observed.job);
        // Nothing is carried out now, and nothing is reported about nodes that could not be read.
        for name in pods.iter().filter_map(|pod| pod.node()) {
            let ready = || ObservedNode {
                ready: true,
                ..ObservedNode::default()
            };
            observed.nodes.entry(name.to_owned()).or_insert_with(ready);
        }
    }
    Ok(Seen {
        object,
        run,
        observed,
        shown_end,
    })
}

/// A job's pods; and why they, or their nodes, could not be read, where the watches have not shown them.
async fn pods_of(
    job: &ObservedJob,
    reads_pods: bool,
    context: &Context,
) -> (Vec<Arc<IndexedPod>>, Option<Error>) {
    let key = (job.namespace.clone(), job.name.clone());
    let unread = if reads_pods {
        within(read_pods(&key, context)).await.err()
    } else {
        None
    };
    let pods: Vec<Arc<IndexedPod>> = {
        let all = context.index.pods.lock();
        let own = all.of(&key).filter(|pod| pod.is_of(&job.uid));
        own.cloned().collect()
    };
    if unread.is_some() {
        return (pods, unread);
    }
    let unread = within(find_nodes(&pods, context)).await.err();
    (pods, unread)
}

/// Reads a job's pods from the API server. Otherwise pods that were created, but that the watch does not show because it is cut off, would be
/// created once more.
async fn read_pods(key: &JobKey, context: &Context) -> Result<(), Error> {
    let (namespace, job) = key;
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let of_job = ListParams::default().labels(&format!("{JOB_LABEL}={job}"));
    let listed = pods.list(&of_job).await?;
    tracing::warn!(job = %job_ref(namespace, job), "no watch has shown what was done to its pods: they are read");
    context.index.pods.lock().read(key, &listed.items);
    Ok(())
}

/// The nodes that matter to a job: those of its pods, those that its pods have to avoid, those on which something failed lately, and those
/// that announce their end.
fn nodes_of(
    job: &ObservedJob,
    pods: &[Arc<IndexedPod>],
    context: &Context,
) -> BTreeMap<String, ObservedNode> {
    let of_pods = pods.iter().filter_map(|pod| pod.node());
    let avoided = pods.iter().flat_map(|pod| pod.avoids());
    let failed = job.status.recent_failures.iter();
    let failed = failed.filter_map(|failure| failure.node.as_deref());
    let names = of_pods.chain(avoided).chain(failed);
    let signals = job
        .spec
        .as_ref()
        .map_or(&[][..], |spec| &spec.disruption.node_signals);
    context.index.nodes.lock().of(names, signals)
}

/// Reads the nodes of pods that no watch has shown yet: pods and nodes come by two watches, and a pod whose node is gone is lost.
async fn find_nodes(pods: &[Arc<IndexedPod>], context: &Context) -> Result<(), Error> {
    let unknown: BTreeSet<&str> = {
        let nodes = context.index.nodes.lock();
        let names = pods.iter().filter_map(|pod| pod.node());
        names.filter(|name| !nodes.knows(name)).collect()
    };
    let all: Api<NodeObject> = Api::all(context.client.clone());
    for name in unknown {
        if let Some(node) = all.get_opt(name).await? {
            context.index.node_read(&node);
        }
    }
    Ok(())
}

/// How far a decision was carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Carried {
    /// The decision was carried out completely.
    Whole,
    /// Something is left to do, after this time.
    Partly(Duration),
    /// The job is deleted, as its time is over.
    JobDeleted,
}

/// Takes the pods to create out of a decision: nothing else reads them.
fn pods_to_create(decision: &mut Decision<'_>) -> Vec<PodDocument> {
    let pods = std::mem::take(&mut decision.create);
    pods.iter().map(PodDocument::new).collect()
}

/// Orders come before pods: a coordinator hears of a deletion before its worker does. Objects that are missing come before pods, which need
/// them; the others after, and only while few jobs need that.
async fn carry_out(
    seen: &Seen<'_>,
    decision: &Decision<'_>,
    pods: &[PodDocument],
    context: &Context,
) -> Result<Carried, Error> {
    let job = &seen.observed.job;
    if decision.delete_job && shows_its_end(seen.shown_end.as_ref(), &job.status) {
        // All that belongs to it goes with it, whatever could not be written of that.
        let read = seen.object.resource_version();
        context.applier.delete_job(job, read).await?;
        return Ok(Carried::JobDeleted);
    }
    if decision.starts_coordinator {
        let text = seen.object.run_document().to_string();
        let secret = begin_run(&context.client, job, &text, decision.takes_present_spec).await?;
        context.credentials.ensure(job, secret).await?;
    }
    if let Some(orders) = &decision.orders {
        let written = orders::write(&context.client, job, orders, seen.run.as_deref()).await?;
        context.index.runs.lock().seen(&written);
    }
    // What Kueue refuses holds up neither objects nor pods: those follow what it has admitted.
    let queued = workloads::carry_out(&context.client, &context.index, job, &decision.workload).await;
    let objects = context.applier.outdated(job, &decision.objects);
    context.applier.apply_objects(job, objects.missing).await?;
    context.pods.change(job, decision, pods).await?;
    let postponed = context.applier.adjust_objects(job, objects.changed).await?;
    queued?;
    Ok(match postponed.or(objects.again_in) {
        _ if decision.delete_job => Carried::Partly(SOON),
        Some(again) => Carried::Partly(again),
        None => Carried::Whole,
    })
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

/// A job, whose spec is parsed once for each of its generations.
fn observed_job(object: &JobObject, context: &Context) -> ObservedJob {
    let uid = object.uid().unwrap_or_default();
    let generation = object.meta().generation.unwrap_or(0);
    // Labels are no part of the spec: they change no generation.
    let version = (generation, object.queue_labels());
    let parsed = {
        let specs = context.specs.lock();
        let known = specs.get(&uid).filter(|known| known.0 == version);
        known.map(|known| known.1.clone())
    };
    let parsed = parsed.unwrap_or_else(|| {
        let parsed = object.parsed_spec();
        let known = Box::new((version, parsed.clone()));
        context.specs.lock().insert(uid, known);
        parsed
    });
    object.observed(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::fake_server::{ReceivedRequest, refusal, server};
    use crate::decide::Settings;
    use crate::decide::objects::NUMBER_LABEL;
    use crate::health::Health;
    use serde_json::json;
    use tokio::sync::mpsc::channel;
    use varuna_api::manifest::{API_VERSION, KIND};

    fn settings() -> Settings {
        Settings {
            image: None,
            coordinator_image: None,
            coordinator_priority_class: None,
            gpu_resource: None,
            node_signals: vec![],
            topology_labels: vec![],
        }
    }

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
