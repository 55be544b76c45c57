//! The controller: which jobs are reconciled, and when. Decides nothing about them.

use crate::cluster::connection::within;
use crate::context::Context;
use crate::decide::Settings;
use crate::error::{DEADLINE, Error};
use crate::health::Health;
use crate::job_object::JobObject;
use crate::kueue_watch;
use crate::reconcile::{failed, reconcile};
use crate::resource::{JobRef, job_ref};
use crate::watches::{self, Reports, WATCHES};
use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::ListParams;
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::{Store, store::Writer};
use kube::runtime::{Predicate as _, WatchStreamExt as _, predicates, watcher};
use kube::{Api, Client, ResourceExt};
use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::sync::{Semaphore, SemaphorePermit, watch};

pub use crate::watches::Scope;

/// Requests to reconcile a job that may wait in the queue.
const REQUESTS_MAX: usize = 1024;
/// How long a process that ends may still write the last reports: its pod has 15 s, and the next leader waits for this.
const LAST_WRITES: Duration = Duration::from_secs(3);
/// An API server that does not answer at the start is asked again after this time.
const LIST_RETRY: Duration = Duration::from_secs(2);
/// Refusals in a row that count: an API server that has just started knows neither all roles nor all resources for a moment.
const LIST_REFUSALS: u32 = 5;
/// What is known of deleted jobs is forgotten within this time.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Runs the controller until the process ends. Watches at once; jobs are reconciled while `leads` is true. `instance`: the name of this process, for
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
    let never = std::future::pending();
    run_until(client, scope, settings, instance, health, leads, never).await
}

/// The same until the process is `stopped`: then no job is reconciled any more, and the last reports are written, for `LAST_WRITES` at
/// most.
///
/// # Errors
/// The resource of jobs is not installed.
pub async fn run_until(
    client: Client,
    scope: Scope,
    settings: Settings,
    instance: &str,
    health: Arc<Health>,
    leads: watch::Receiver<bool>,
    stopped: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let mut stopped = pin!(stopped);
    let jobs = watches::jobs(&client, &scope);
    tokio::select! {
        listed = listable(&jobs, &health) => listed?,
        () = &mut stopped => return Ok(()),
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
    let gate = Gate {
        leads,
        watches_filled: watches_filled.clone(),
        jobs: store.clone(),
    };
    let work = reconcile_jobs(jobs, writer, requests, gate, Arc::clone(&context));
    let index = Arc::clone(&context.index);
    let reports = Reports {
        index: &index,
        changed,
        filled: &filled,
        metrics: &metrics,
    };
    let known = store.clone();
    let queued = move || queued_jobs(&known);
    let mut publishing = pin!(context.publisher.run());
    tokio::select! {
        () = work => {}
        () = watches::run(&client, &scope, &reports) => {}
        () = kueue_watch::run(&client, &scope, &reports, queued) => {}
        () = forget_deleted_jobs(&context, store) => {}
        () = report_filled_caches(&health, watches_filled) => {}
        () = &mut publishing => {}
        () = stopped => {}
    }
    context.publisher.flush_on_shutdown();
    if tokio::time::timeout(LAST_WRITES, publishing).await.is_err() {
        tracing::warn!("what was reported last of some jobs is not written: the next leader finds it again");
    }
    Ok(())
}

/// Returns once jobs can be listed. An API server that does not answer, or is too busy, is asked until it answers: a leader that loses its Lease in an outage
/// ends and is started again, and if it ended then as well, its kubelet would start it later each time, at last five minutes after the outage.
///
/// # Errors
/// The resource of jobs is not installed, or the role does not allow to list it.
async fn listable(jobs: &Api<JobObject>, health: &Health) -> anyhow::Result<()> {
    let one = ListParams::default().limit(1);
    let mut refusals = 0;
    loop {
        health.worked();
        match within(DEADLINE, jobs.list(&one)).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_forbidden() => {
                refusals += 1;
                let why = &status.message;
                if refusals == LIST_REFUSALS {
                    anyhow::bail!("VarunaJobs cannot be listed (install crds/, check the role): {why}");
                }
                tracing::warn!(why, refusals, "VarunaJobs cannot be listed yet");
            }
            Err(error) => {
                refusals = 0;
                tracing::warn!(%error, "VarunaJobs cannot be listed yet");
            }
        }
        tokio::time::sleep(LIST_RETRY).await;
    }
}

/// Reconciles jobs when they change, when it is requested, and at the time that their last reconciliation has named. Never ends.
async fn reconcile_jobs(
    jobs: Api<JobObject>,
    writer: Writer<JobObject>,
    requests: Receiver<JobRef>,
    gate: Gate,
    context: Arc<Context>,
) {
    let store = writer.as_reader();
    // Only this program writes statuses, and it knows what it writes.
    let interesting = predicates::generation
        .combine(predicates::annotations)
        .combine(predicates::labels);
    let of_shown = Arc::clone(&context);
    let job_events = watcher(jobs, watches::config())
        .default_backoff()
        .reflect(writer)
        .touched_objects()
        .inspect_ok(move |job| of_shown.publisher.shown(job))
        .predicate_filter(interesting, Default::default());
    // Without a limit of the controller's own: among jobs that wait for it, it chooses in no order, so that some wait very long while others
    // change again and again. The gate lets them in one after the other.
    let controller = Controller::for_stream(job_events, store)
        .with_config(Config::default().concurrency(0))
        .reconcile_on(stream(requests));
    let reconcile_when_ready = move |object, context| {
        let gate = gate.clone();
        async move { gate.passed(object, context).await }
    };
    controller
        .run(reconcile_when_ready, failed, context)
        .for_each(|_| std::future::ready(()))
        .await;
}

/// All jobs with a queue.
fn queued_jobs(known: &Store<JobObject>) -> Vec<JobRef> {
    let jobs = known.state().into_iter();
    let queued = jobs.filter(|job| job.has_queue());
    queued
        .map(|job| job_ref(&job.namespace().unwrap_or_default(), &job.name_any()))
        .collect()
}

/// Reports once that the caches are filled; never ends.
async fn report_filled_caches(health: &Health, mut filled: watch::Receiver<usize>) {
    if filled.wait_for(|filled| *filled >= WATCHES).await.is_ok() {
        health.caches_filled();
    }
    std::future::pending().await
}

/// Decides when a job may be reconciled, and in which version.
#[derive(Clone)]
struct Gate {
    leads: watch::Receiver<bool>,
    watches_filled: watch::Receiver<usize>,
    jobs: Store<JobObject>,
}

impl Gate {
    async fn passed(self, object: Arc<JobObject>, context: Arc<Context>) -> Result<Action, Error> {
        match self.opened(&object, &context.reconciliations).await? {
            // Boxed: one that waits at the gate takes little memory.
            Some((job, _turn)) => Box::pin(reconcile(job, Arc::clone(&context))).await,
            // Another job of that name has its own reconciliation.
            None => Ok(Action::await_change()),
        }
    }

    /// Waits until the caches are filled, this process leads, and it is this job's turn. Without filled caches, a pod on a node that is not in
    /// them would be taken for lost. A reconciliation may wait here for days. The controller started it with the job of that time
    /// (`called_with`), but it decides on the job as it is now. None if that is gone.
    async fn opened<'a>(
        mut self,
        called_with: &JobObject,
        turns: &'a Semaphore,
    ) -> Result<Option<(Arc<JobObject>, SemaphorePermit<'a>)>, Error> {
        let filled = self.watches_filled.wait_for(|filled| *filled >= WATCHES);
        let is_filled = filled.await.is_ok();
        let leads = self.leads.wait_for(|leads| *leads).await.is_ok();
        if !(is_filled && leads) {
            return Err(Error::Timeout);
        }
        let turn = turns.acquire().await.map_err(|_| Error::Timeout)?;
        let namespace = called_with.namespace().unwrap_or_default();
        let now = self.jobs.get(&job_ref(&namespace, &called_with.name_any()));
        let same = now.filter(|job| job.uid() == called_with.uid());
        Ok(same.map(|job| (job, turn)))
    }
}

fn stream(requests: Receiver<JobRef>) -> impl futures::Stream<Item = JobRef> + Send + 'static {
    futures::stream::unfold(requests, |mut requests| async {
        requests.recv().await.map(|job| (job, requests))
    })
}

/// Forgets old data and deleted jobs: a controller is not called when an object without finalizers is gone. This also shows `/healthz` that
/// the controller's task makes progress. Never ends.
async fn forget_deleted_jobs(context: &Context, jobs: Store<JobObject>) {
    let mut ticks = tokio::time::interval(SWEEP_INTERVAL);
    let mut known = BTreeSet::new();
    loop {
        ticks.tick().await;
        context.health.worked();
        context.publisher.forget_old();
        let uids: BTreeSet<String> = jobs.state().iter().filter_map(|j| j.uid()).collect();
        if uids == known {
            continue;
        }
        let exists = |namespace: &str, name: &str| jobs.get(&job_ref(namespace, name)).is_some();
        context.health.metrics.jobs.retain(exists);
        context.index.pods.lock().retain(exists);
        context.index.runs.lock().retain(|uid| uids.contains(uid));
        context.specs.retain(|uid| uids.contains(uid));
        context.publisher.retain(|uid| uids.contains(uid));
        context.backoff.retain(|uid| uids.contains(uid));
        context.applier.retain(|uid| uids.contains(uid));
        context.credentials.retain(|uid| uids.contains(uid));
        context.probes.retain(|uid| uids.contains(uid));
        known = uids;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::fake_server::{ReceivedRequest, refusal, server};
    use futures::FutureExt as _;
    use kube::Resource as _;
    use kube::runtime::watcher::Event;
    use serde_json::json;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use varuna_api::manifest::{API_VERSION, KIND};

    fn job(uid: &str, generation: i64) -> JobObject {
        named("j", uid, generation)
    }

    fn named(name: &str, uid: &str, generation: i64) -> JobObject {
        let metadata = json!({ "name": name, "namespace": "n", "uid": uid, "generation": generation });
        serde_json::from_value(json!({ "apiVersion": API_VERSION, "kind": KIND, "metadata": metadata }))
            .unwrap()
    }

    /// The generation that a reconciliation uses if it was requested with the job's first generation, and these events came while it
    /// waited.
    fn decided_on(meanwhile: &[Event<JobObject>]) -> Option<i64> {
        let (lead, leads) = watch::channel(false);
        let (fill, watches_filled) = watch::channel(0);
        let mut writer = Writer::default();
        writer.apply_watcher_event(&Event::Apply(job("u", 1)));
        let gate = Gate {
            leads,
            watches_filled,
            jobs: writer.as_reader(),
        };
        let (called_with, turns) = (job("u", 1), Semaphore::new(1));
        let mut waiting = pin!(gate.opened(&called_with, &turns));
        assert!(waiting.as_mut().now_or_never().is_none(), "the caches are empty");
        fill.send_replace(WATCHES);
        assert!(waiting.as_mut().now_or_never().is_none(), "another process leads");
        for event in meanwhile {
            writer.apply_watcher_event(event);
        }
        lead.send_replace(true);
        let opened = waiting.now_or_never().expect("nothing more to wait for");
        let (job, _turn) = opened.unwrap()?;
        job.meta().generation
    }

    #[test]
    fn a_look_that_has_waited_decides_on_the_job_as_it_is_then() {
        assert_eq!(decided_on(&[]), Some(1));
        assert_eq!(decided_on(&[Event::Apply(job("u", 2))]), Some(2));
        assert_eq!(decided_on(&[Event::Delete(job("u", 1))]), None, "it is gone");
        let made_anew = [Event::Delete(job("u", 1)), Event::Apply(job("v", 1))];
        assert_eq!(decided_on(&made_anew), None, "another one has its name");
    }

    /// One that waits for its turn behind others decides on what its job is when its turn comes, and no later request overtakes it.
    #[test]
    fn jobs_get_their_turns_in_the_order_in_which_they_ask() {
        let mut writer = Writer::default();
        let (leads, watches_filled) = (watch::channel(true).1, watch::channel(WATCHES).1);
        for uid in ["first", "second"] {
            writer.apply_watcher_event(&Event::Apply(named(uid, uid, 1)));
        }
        let gate = Gate {
            leads,
            watches_filled,
            jobs: writer.as_reader(),
        };
        let turns = Semaphore::new(1);
        let busy = turns.try_acquire().unwrap();
        let (first, second) = (named("first", "first", 1), named("second", "second", 1));
        let mut first_waits = pin!(gate.clone().opened(&first, &turns));
        assert!(first_waits.as_mut().now_or_never().is_none());
        let mut second_waits = pin!(gate.clone().opened(&second, &turns));
        assert!(second_waits.as_mut().now_or_never().is_none());
        writer.apply_watcher_event(&Event::Apply(named("first", "first", 2)));
        drop(busy);
        assert!(second_waits.as_mut().now_or_never().is_none(), "it came later");
        let (job, turn) = first_waits.now_or_never().unwrap().unwrap().unwrap();
        assert_eq!(job.meta().generation, Some(2));
        drop(turn);
        let (job, _turn) = second_waits.now_or_never().unwrap().unwrap().unwrap();
        assert_eq!(job.name_any(), "second");
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_is_away_at_the_start_is_waited_for() {
        let answers = |answers: &'static [u16]| {
            let asked = Arc::new(AtomicUsize::new(0));
            let empty =
                json!({ "apiVersion": API_VERSION, "kind": "VarunaJobList", "metadata": {}, "items": [] });
            let (client, _) =
                server(
                    move |_: &ReceivedRequest| match answers[asked.fetch_add(1, Ordering::Relaxed)] {
                        200 => Some((200, empty.clone())),
                        403 => refusal(403, "Forbidden"),
                        404 => refusal(404, "NotFound"),
                        code => refusal(code, "Failure"),
                    },
                );
            Api::<JobObject>::all(client)
        };
        let health = Health::new(Arc::default());
        assert!(
            listable(&answers(&[500, 503, 429, 504, 403, 404, 200]), &health)
                .await
                .is_ok()
        );
        for refused in [&[403_u16; 5], &[404; 5]] {
            let error = listable(&answers(refused), &health)
                .await
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("install crds/") && error.contains("in its words"),
                "{error}"
            );
        }
    }

    #[tokio::test]
    async fn no_look_is_made_by_a_process_that_will_not_lead() {
        let gate = Gate {
            leads: watch::channel(false).1,
            watches_filled: watch::channel(WATCHES).1,
            jobs: Writer::default().as_reader(),
        };
        let turns = Semaphore::new(1);
        assert!(matches!(
            gate.opened(&job("u", 1), &turns).await,
            Err(Error::Timeout)
        ));
    }
}
