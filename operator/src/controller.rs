//! The controller: which jobs are looked at, and when. Decides nothing about them.

use crate::context::Context;
use crate::decide::Settings;
use crate::error::Error;
use crate::health::Health;
use crate::job_object::JobObject;
use crate::kueue_watch;
use crate::reconcile::{failed, reconcile};
use crate::resource::{JobRef, job_ref};
use crate::watches::{self, Reports, WATCHES};
use futures::StreamExt as _;
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::{Store, store::Writer};
use kube::runtime::{Predicate as _, WatchStreamExt as _, predicates, watcher};
use kube::{Client, ResourceExt};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::sync::watch;

pub use crate::watches::Scope;

/// Jobs whose pods and orders are written concurrently.
const CONCURRENCY: u16 = 32;
/// Requests to reconcile a job that may wait in the queue.
const REQUESTS_MAX: usize = 1024;
/// What is known of deleted jobs is forgotten within this time.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Runs the controller until the process ends. Watches at once; jobs are looked at while `leads`. `instance`: the name of this process, for
/// Events.
///
/// # Errors
/// The resource of jobs is not installed.
pub async fn run(
    client: Client,
    scope: Scope,
    settings: Settings,
    instance: &str,
    health: Arc<Health>,
    leads: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let jobs = watches::jobs(&client, &scope);
    if let Err(error) = jobs.list(&kube::api::ListParams::default().limit(1)).await {
        anyhow::bail!("VarunaJobs cannot be listed (install crds/, check the role): {error}");
    }
    let (changed, requests) = channel(REQUESTS_MAX);
    let (filled, watches_filled) = watch::channel(0);
    let metrics = Arc::clone(&health.metrics);
    let context = Arc::new(Context::new(
        client.clone(),
        settings,
        instance,
        Arc::clone(&health),
        changed.clone(),
    ));
    let writer = Writer::default();
    let store = writer.as_reader();
    // A status is written by this program alone, and it knows what it writes.
    let interesting = predicates::generation
        .combine(predicates::annotations)
        .combine(predicates::labels);
    let job_events = watcher(jobs, watches::config())
        .default_backoff()
        .reflect(writer)
        .touched_objects()
        .predicate_filter(interesting, Default::default());
    let controller = Controller::for_stream(job_events, store.clone())
        .with_config(Config::default().concurrency(CONCURRENCY))
        .reconcile_on(stream(requests));
    let gate = Gate {
        leads,
        watches_filled: watches_filled.clone(),
    };
    let reconcile_when_ready = move |object, context| {
        let gate = gate.clone();
        async move { gate.passed(object, context).await }
    };
    let index = Arc::clone(&context.index);
    let reports = Reports {
        index: &index,
        changed,
        filled: &filled,
        metrics: &metrics,
    };
    let known = store.clone();
    let queued = move || {
        let jobs = known.state().into_iter();
        let queued = jobs.filter(|job| job.has_queue());
        queued
            .map(|job| job_ref(&job.namespace().unwrap_or_default(), &job.name_any()))
            .collect()
    };
    let work = controller
        .run(reconcile_when_ready, failed, Arc::clone(&context))
        .for_each(|_| std::future::ready(()));
    tokio::select! {
        () = work => {}
        () = watches::run(&client, &scope, &reports) => {}
        () = kueue_watch::run(&client, &scope, &reports, queued) => {}
        () = forget_deleted_jobs(&context, store) => {}
        () = report_filled_caches(&health, watches_filled) => {}
        () = context.publisher.run() => {}
    }
    Ok(())
}

/// Reports once that the caches are filled; never ends.
async fn report_filled_caches(health: &Health, mut filled: watch::Receiver<usize>) {
    if filled.wait_for(|filled| *filled >= WATCHES).await.is_ok() {
        health.caches_filled();
    }
    std::future::pending().await
}

/// When jobs may be looked at.
#[derive(Clone)]
struct Gate {
    leads: watch::Receiver<bool>,
    watches_filled: watch::Receiver<usize>,
}

impl Gate {
    /// No decision before the caches are filled, as a pod on a node that is not in them would be taken for lost, and none by a process that
    /// does not lead.
    async fn passed(mut self, object: Arc<JobObject>, context: Arc<Context>) -> Result<Action, Error> {
        let filled = self.watches_filled.wait_for(|filled| *filled >= WATCHES);
        let is_filled = filled.await.is_ok();
        let leads = self.leads.wait_for(|leads| *leads).await.is_ok();
        if !(is_filled && leads) {
            return Err(Error::Timeout);
        }
        reconcile(object, context).await
    }
}

fn stream(requests: Receiver<JobRef>) -> impl futures::Stream<Item = JobRef> + Send + 'static {
    futures::stream::unfold(requests, |mut requests| async {
        requests.recv().await.map(|job| (job, requests))
    })
}

/// Forgets deleted jobs: a controller is not called when an object without finalizers is gone. Never ends.
async fn forget_deleted_jobs(context: &Context, jobs: Store<JobObject>) {
    let mut ticks = tokio::time::interval(SWEEP_INTERVAL);
    let mut known = BTreeSet::new();
    loop {
        ticks.tick().await;
        let uids: BTreeSet<String> = jobs.state().iter().filter_map(|j| j.uid()).collect();
        if uids == known {
            continue;
        }
        let exists = |namespace: &str, name: &str| jobs.get(&job_ref(namespace, name)).is_some();
        context.health.metrics.jobs.retain(exists);
        context.index.pods.lock().retain(exists);
        context.index.runs.lock().retain(|uid| uids.contains(uid));
        context.specs.lock().retain(|uid, _| uids.contains(uid));
        context.publisher.retain(|uid| uids.contains(uid));
        context.backoff.retain(|uid| uids.contains(uid));
        context.applier.retain(|uid| uids.contains(uid));
        context.credentials.retain(|uid| uids.contains(uid));
        context.probes.retain(|uid| uids.contains(uid));
        known = uids;
    }
}
