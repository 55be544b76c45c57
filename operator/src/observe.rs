//! What one reconciliation observes of its job: reads it from the index, and from the API server only what no watch has shown. Decides
//! nothing about the job.

use crate::cluster::ownership::is_of;
use crate::context::Context;
use crate::decide::objects::{JOB_LABEL, record_name};
use crate::decide::{JobPart, Observed, ObservedJob, ObservedNode, coordinator_failure};
use crate::error::{Error, within};
use crate::index::{IndexedPod, JobKey, resource_version};
use crate::job_object::JobObject;
use crate::node_object::NodeObject;
use crate::resource::job_ref;
use crate::run_object::RunObject;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, Resource as _};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use varuna_api::crd::Time;

/// Nodes of one job that are read concurrently.
const NODES_CONCURRENTLY: usize = 8;

/// A job as it was seen: its object, its run, and what decisions are made from.
pub(crate) struct Seen<'a> {
    /// The job's object.
    pub(crate) object: &'a JobObject,
    /// The job's `VarunaRun`, if it has one.
    pub(crate) run: Option<Arc<RunObject>>,
    /// What decisions are made from.
    pub(crate) observed: Observed,
    /// When the job ended, as its object shows.
    pub(crate) shown_end: Option<Time>,
    /// The kind of the error, if something could not be read.
    pub(crate) failed: Option<&'static str>,
}

/// Observes one job.
pub(crate) struct Observer<'a> {
    object: &'a JobObject,
    context: &'a Context,
}

impl<'a> Observer<'a> {
    /// An observer of the job with this object.
    pub(crate) fn new(object: &'a JobObject, context: &'a Context) -> Observer<'a> {
        Observer { object, context }
    }

    /// What the watches have shown of the job. `reads_pods`: the pods' watch has not shown for a while what was done, so the pods are read.
    ///
    /// # Errors
    /// The object is older than one that the watch has shown since. What cannot be read is noted, and is no error here.
    pub(crate) async fn observe(&self, mut job: ObservedJob, reads_pods: bool) -> Result<Seen<'a>, Error> {
        let context = self.context;
        let shown_end = job.status.completion_time.clone();
        let version = resource_version(self.object.meta());
        if let Some(reported) = context.publisher.status(&job.uid, version)? {
            job.status = reported;
        }
        let run = context.index.runs.lock().of(&job.namespace, &record_name(&job));
        let run = run.filter(|run| is_of(&run.metadata, &job));
        let (pods, unread) = self.pods(&job, reads_pods).await;
        let mut observed = self.observed(job, run.as_deref(), &pods);
        if let Some((number, why)) = coordinator_failure(&observed) {
            let job = &observed.job;
            context
                .backoff
                .attempt_failed(job, JobPart::Coordinator, number, &why);
            observed.failures = context.backoff.failures(job);
        }
        let mut failed = None;
        if let Some(error) = unread {
            failed = Some(context.backoff.note(&observed.job, error)?);
            observed.failures = context.backoff.failures(&observed.job);
            assume_ready(&pods, &mut observed.nodes);
        }
        Ok(Seen {
            object: self.object,
            run,
            observed,
            shown_end,
            failed,
        })
    }

    /// What decisions are made from, as far as it is known now.
    fn observed(&self, job: ObservedJob, run: Option<&RunObject>, pods: &[Arc<IndexedPod>]) -> Observed {
        let context = self.context;
        let (coordinators, workers): (Vec<_>, Vec<_>) = pods.iter().partition(|pod| pod.is_coordinator);
        let observed_pods = |pods: Vec<&Arc<IndexedPod>>| pods.iter().map(|pod| pod.observed()).collect();
        Observed {
            nodes: self.nodes(&job, pods),
            pods: observed_pods(workers),
            coordinators: observed_pods(coordinators),
            orders: run.and_then(|run| run.orders.clone()),
            run: run.and_then(|run| run.reports.clone()),
            coordinator_probe: context.probes.probe(&job.uid),
            failures: context.backoff.failures(&job),
            now: Timestamp::now().as_second(),
            settings: context.settings.clone(),
            queue: context.index.queues.lock().of(&job),
            old_credentials: context.credentials.old_pods(&job.uid),
            job,
        }
    }

    /// The job's pods; and why they, or their nodes, could not be read, where the watches have not shown them.
    async fn pods(&self, job: &ObservedJob, reads_pods: bool) -> (Vec<Arc<IndexedPod>>, Option<Error>) {
        let key = (job.namespace.clone(), job.name.clone());
        let unread = if reads_pods {
            self.read_pods(&key).await.err()
        } else {
            None
        };
        let pods: Vec<Arc<IndexedPod>> = {
            let all = self.context.index.pods.lock();
            let own = all.of(&key).filter(|pod| pod.is_of(&job.uid));
            own.cloned().collect()
        };
        if unread.is_some() {
            return (pods, unread);
        }
        let unread = within(self.read_unknown_nodes(&pods)).await.err();
        (pods, unread)
    }

    /// Reads the job's pods from the API server. Otherwise pods that were created, but that the watch does not show because it is cut off,
    /// would be created once more.
    async fn read_pods(&self, key: &JobKey) -> Result<(), Error> {
        let (namespace, job) = key;
        let pods: Api<Pod> = Api::namespaced(self.context.client.clone(), namespace);
        let of_job = ListParams::default().labels(&format!("{JOB_LABEL}={job}"));
        let index = &self.context.index.pods;
        index.lock().begin_read(key);
        let listed = within(async { pods.list(&of_job).await.map_err(Error::from) }).await;
        match listed {
            Ok(listed) => {
                tracing::warn!(job = %job_ref(namespace, job), "no watch has shown what was done to its pods: they are read");
                index.lock().read(key, &listed.items);
                Ok(())
            }
            Err(error) => {
                index.lock().read_failed(key);
                Err(error)
            }
        }
    }

    /// The nodes that matter to the job: those of its pods, those that its pods have to avoid, those on which something failed lately, and
    /// those that announce their end.
    fn nodes(&self, job: &ObservedJob, pods: &[Arc<IndexedPod>]) -> BTreeMap<String, ObservedNode> {
        let of_pods = pods.iter().filter_map(|pod| pod.node());
        let avoided = pods.iter().flat_map(|pod| pod.avoids());
        let failed = job.status.recent_failures.iter();
        let failed = failed.filter_map(|failure| failure.node.as_deref());
        let names = of_pods.chain(avoided).chain(failed);
        let signals = job
            .spec
            .as_ref()
            .map_or(&[][..], |spec| &spec.disruption.node_signals);
        self.context.index.nodes.lock().of(names, signals)
    }

    /// Reads the nodes of pods that no watch has shown yet: pods and nodes come by two watches, and a pod whose node is gone is lost. Where hundreds of
    /// nodes are gone at once, their pods may stay for minutes, and each reconciliation would ask for all of those nodes again.
    async fn read_unknown_nodes(&self, pods: &[Arc<IndexedPod>]) -> Result<(), Error> {
        let unknown: BTreeSet<&str> = {
            let nodes = self.context.index.nodes.lock();
            let pods = pods.iter().filter(|pod| pod.depends_on_node());
            let names = pods.filter_map(|pod| pod.node());
            names.filter(|name| !nodes.knows(name)).collect()
        };
        let all: Api<NodeObject> = Api::all(self.context.client.clone());
        let calls: Vec<_> = unknown.into_iter().map(|name| all.get_opt(name)).collect();
        let mut calls = calls.into_iter();
        let mut begun: FuturesUnordered<_> = calls.by_ref().take(NODES_CONCURRENTLY).collect();
        while let Some(read) = begun.next().await {
            if let Some(node) = read? {
                self.context.index.node_read(&node);
            }
            begun.extend(calls.next());
        }
        Ok(())
    }
}

/// Takes the nodes of pods that could not be read for ready: nothing is carried out now, and nothing is to be reported about them.
fn assume_ready(pods: &[Arc<IndexedPod>], nodes: &mut BTreeMap<String, ObservedNode>) {
    for name in pods.iter().filter_map(|pod| pod.node()) {
        let ready = || ObservedNode {
            ready: true,
            ..ObservedNode::default()
        };
        nodes.entry(name.to_owned()).or_insert_with(ready);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::fake_server::{ReceivedRequest, refusal, server};
    use crate::decide::objects::NUMBER_LABEL;
    use crate::fixtures::settings;
    use crate::health::Health;
    use serde_json::{Value, json};
    use varuna_api::manifest::{API_VERSION, KIND};

    /// A pod on a node of its own.
    fn pod(number: u32, phase: &str, more: &Value) -> Pod {
        let name = format!("j-w{number}");
        let owner =
            json!([{ "apiVersion": API_VERSION, "kind": KIND, "name": "j", "uid": "u", "controller": true }]);
        let labels = json!({ JOB_LABEL: "j", NUMBER_LABEL: number.to_string() });
        let mut metadata = json!({ "name": name, "namespace": "n", "uid": name, "labels": labels, "ownerReferences": owner });
        for (field, value) in more.as_object().unwrap() {
            metadata[field] = value.clone();
        }
        let spec = json!({ "nodeName": format!("node-{number}"), "containers": [] });
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec, "status": { "phase": phase } }))
            .unwrap()
    }

    #[tokio::test]
    async fn missing_nodes_are_read_only_for_pods_that_stay() {
        let (client, asked) = server(|_: &ReceivedRequest| refusal(404, "NotFound"));
        let (changed, _requests) = tokio::sync::mpsc::channel(1);
        let health = Arc::new(Health::new(Arc::default()));
        let context = Context::new(client, settings(), "i", health, changed);
        let object: JobObject = serde_json::from_value(json!({
            "apiVersion": API_VERSION, "kind": KIND, "metadata": { "name": "j", "namespace": "n", "uid": "u" },
        }))
        .unwrap();
        let stay = 2 * u32::try_from(NODES_CONCURRENTLY).unwrap();
        let mut pods: Vec<Pod> = (0..stay)
            .map(|number| pod(number, "Running", &json!({})))
            .collect();
        pods.push(pod(
            stay,
            "Running",
            &json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }),
        ));
        pods.push(pod(stay + 1, "Failed", &json!({})));
        context
            .index
            .pods
            .lock()
            .read(&("n".to_owned(), "j".to_owned()), &pods);
        let job = context.specs.job(&object);
        let seen = Observer::new(&object, &context)
            .observe(job, false)
            .await
            .unwrap();
        assert_eq!(seen.observed.pods.len(), pods.len());
        let read: BTreeSet<String> = asked.lock().iter().map(|one| one.path.clone()).collect();
        let expected = (0..stay).map(|number| format!("/api/v1/nodes/node-{number}"));
        assert_eq!(read, expected.collect::<BTreeSet<_>>());
    }
}
