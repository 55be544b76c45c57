//! Creates and deletes a job's pods, and notes which changes the pods' watch is expected to show.

use super::apply::created_by_us;
use super::ownership::{is_of, verify};
use crate::decide::{Decision, JobPart, ObservedJob, PodDeletion};
use crate::error::Error;
use crate::index::{Index, JobKey};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Preconditions};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use std::collections::BTreeMap;
use std::iter::{empty, once};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pods of one job that are created and deleted concurrently.
const PODS_CONCURRENTLY: usize = 8;
/// Calls about one job's pods are begun for this time, and the others in the next reconciliation. Admission webhooks may take half a second for each
/// pod: a thousand pods then take longer than a reconciliation may (30 s), at whose end calls under way were dropped and the API server was taken for
/// silent.
const BEGUN_WITHIN: Duration = Duration::from_secs(15);

/// A pod to create, as JSON text: many wait at a time, and as values they would take ten times as much memory, which the process keeps in
/// part for ever.
#[derive(Debug)]
pub struct PodDocument(Box<str>);

impl PodDocument {
    /// The document of a pod.
    #[must_use]
    pub fn new(pod: &Value) -> PodDocument {
        PodDocument(pod.to_string().into())
    }
}

/// Writes a job's pods.
pub struct PodWriter {
    client: Client,
    index: Arc<Index>,
}

impl PodWriter {
    /// A writer that notes in this index what it does.
    #[must_use]
    pub fn new(client: Client, index: Arc<Index>) -> PodWriter {
        PodWriter { client, index }
    }

    /// Deletes pods and creates others, a coordinator's first where the decision starts one, and expects the watch to show what was done, or may have been.
    /// False if some are left for the next reconciliation, because the calls took long.
    ///
    /// # Errors
    /// The API server refuses or does not answer. What was done until then stays, and the next reconciliation continues from there.
    pub async fn change(
        &self,
        job: &ObservedJob,
        decision: &Decision<'_>,
        pods: &[PodDocument],
    ) -> Result<bool, Error> {
        let until = Instant::now() + BEGUN_WITHIN;
        let key = (job.namespace.clone(), job.name.clone());
        let uids = self.uids(job, &key);
        // The coordinator's is the first: what a quota leaves is for it.
        let (coordinator, workers) = pods.split_at(usize::from(decision.starts_coordinator));
        let delete = |deletion| self.delete(job, &key, deletion, &uids);
        let deletions: Vec<_> = decision.delete.iter().map(delete).collect();
        let create = |pod| self.create(job, &key, pod);
        let coordinator: Vec<_> = coordinator.iter().map(create).collect();
        let workers: Vec<_> = workers.iter().map(create).collect();
        let creations = async {
            concurrently(coordinator, until).await?;
            concurrently(workers, until).await
        };
        // Both to their end: one that fails does not leave the other half done.
        let (deleted, created) = futures::join!(concurrently(deletions, until), creations);
        self.index.pods.lock().calls_ended(Instant::now(), &key);
        // Where both fail, the next try finds that deletions fail still.
        let (created, deleted) = (created?, deleted?);
        Ok(created && deleted)
    }

    /// The uids of the job's own pods, by name, as they were seen last.
    fn uids(&self, job: &ObservedJob, key: &JobKey) -> BTreeMap<String, String> {
        let pods = self.index.pods.lock();
        let own = pods.of(key).filter(|pod| pod.is_of(&job.uid));
        let uids = own.map(|pod| (pod.name().to_owned(), pod.uid.to_string()));
        uids.collect()
    }

    /// Deletes the pod that was seen and no other of its name.
    async fn delete(
        &self,
        job: &ObservedJob,
        key: &JobKey,
        deletion: &PodDeletion,
        uids: &BTreeMap<String, String>,
    ) -> Result<(), Error> {
        let Some(uid) = uids.get(&deletion.name) else {
            // The watch has shown in the meantime that it is gone: what has its name now is not the job's.
            return Ok(());
        };
        tracing::info!(pod = deletion.name, why = deletion.why, "delete");
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &job.namespace);
        let params = DeleteParams::default().preconditions(Preconditions {
            uid: Some(uid.clone()),
            resource_version: None,
        });
        let goes = once(deletion.name.clone());
        let now = Instant::now();
        self.index.pods.lock().expect(now, key, empty(), goes);
        match pods.delete(&deletion.name, &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {
                self.index.pods.lock().met(key, &deletion.name);
                Ok(())
            }
            Err(error) => {
                self.has_failed(key, &deletion.name, &error);
                Err(refused(JobPart::Deletions, job, &deletion.name, error))
            }
        }
    }

    /// As a document: a typed pod would drop the template's fields that are newer than this program.
    async fn create(&self, job: &ObservedJob, key: &JobKey, pod: &PodDocument) -> Result<(), Error> {
        let pod: DynamicObject = serde_json::from_str(&pod.0).map_err(|e| Error::Refused {
            part: JobPart::Pods,
            message: e.to_string(),
        })?;
        let resource = ApiResource::erase::<Pod>(&());
        let pods: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &job.namespace, &resource);
        let name = pod.name_any();
        let (now, comes) = (Instant::now(), once(name.clone()));
        self.index.pods.lock().expect(now, key, comes, empty());
        match pods.create(&created_by_us(), &pod).await {
            Ok(_) => Ok(()),
            // It was created before, the answer was lost, and the watch has not shown it yet; or it is not ours.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                let found = pods.get_opt(&name).await?;
                if !found.as_ref().is_some_and(|found| is_of(&found.metadata, job)) {
                    self.index.pods.lock().met(key, &name);
                }
                found.map_or(Err(Error::Stale), |found| verify("Pod", &found.metadata, job))
            }
            Err(error) => {
                self.has_failed(key, &name, &error);
                Err(refused(JobPart::Pods, job, &name, error))
            }
        }
    }

    /// A call about a pod has failed. Unless the API server refused it, it may have been carried out, and its effect is still expected.
    fn has_failed(&self, key: &JobKey, pod: &str, error: &kube::Error) {
        if matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code)) {
            self.index.pods.lock().met(key, pod);
        }
    }
}

/// The refusal of a call about a pod, in a sentence that is the same whichever of the job's pods it is: several are tried at a time and any of them may be
/// answered first, and with each other sentence the job would have another Event and another status.
fn refused(part: JobPart, job: &ObservedJob, pod: &str, error: kube::Error) -> Error {
    match Error::refused(part)(error) {
        Error::Refused { part, message } => Error::Refused {
            part,
            message: message.replace(pod, &format!("{}-...", job.name)),
        },
        other => other,
    }
}

/// Makes calls, several at a time. After a failure, or after `until`, no call is started; those under way are waited for, to know what was done.
/// Returns whether all calls were made.
async fn concurrently(
    calls: Vec<impl Future<Output = Result<(), Error>>>,
    until: Instant,
) -> Result<bool, Error> {
    let mut calls = calls.into_iter();
    let mut begun: FuturesUnordered<_> = calls.by_ref().take(PODS_CONCURRENTLY).collect();
    let mut result = Ok(());
    while let Some(answer) = begun.next().await {
        result = result.and(answer);
        if result.is_ok() && Instant::now() < until {
            begun.extend(calls.next());
        }
    }
    result.map(|()| calls.as_slice().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::fake_server::{ReceivedRequest, refusal, server};
    use crate::decide::objects::{JOB_LABEL, NUMBER_LABEL};
    use crate::fixtures;
    use serde_json::json;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use varuna_api::manifest::{API_VERSION, KIND};

    fn job() -> ObservedJob {
        fixtures::job("j", "uid-j")
    }

    fn writer(client: Client) -> PodWriter {
        PodWriter::new(client, Arc::new(Index::new(fixtures::settings())))
    }

    /// How a call about a pod ended to which the server answers so, and whether the watch is expected to show the pod then.
    async fn called(answer: Option<(u16, Value)>, creates: bool) -> (Result<(), Error>, bool) {
        let (client, _) = server(
            move |asked: &ReceivedRequest| match (asked.method.as_str(), &answer) {
                // It is another's.
                ("GET", _) => Some((
                    200,
                    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "j-w1" } }),
                )),
                (_, answer) => answer.clone(),
            },
        );
        let (writer, job) = (writer(client), job());
        let key = (job.namespace.clone(), job.name.clone());
        let called = if creates {
            let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "j-w1", "namespace": "n" } });
            writer.create(&job, &key, &PodDocument::new(&pod)).await
        } else {
            let deletion = PodDeletion {
                name: "j-w1".into(),
                why: "it is too many".into(),
                event: None,
            };
            let uids = BTreeMap::from([("j-w1".to_owned(), "p".to_owned())]);
            writer.delete(&job, &key, &deletion, &uids).await
        };
        let pods = writer.index.pods.lock();
        let is_expected = pods.unmet(Instant::now(), &key).is_some();
        (called, is_expected)
    }

    #[tokio::test]
    async fn unclear_pod_calls_are_expected_and_refused_ones_are_not() {
        let done = Some((
            200,
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "j-w1" } }),
        ));
        for creates in [true, false] {
            assert!(matches!(called(done.clone(), creates).await, (Ok(()), true)));
            // Others of its pods may have been made before: those stay expected.
            let (refused, is_expected) = called(refusal(403, "Forbidden"), creates).await;
            assert!(matches!(refused, Err(Error::Refused { .. })) && !is_expected);
            let (unknown, is_expected) = called(refusal(504, "Timeout"), creates).await;
            assert!(
                unknown.is_err() && is_expected,
                "its store may have it all the same"
            );
        }
        let gone = called(refusal(404, "NotFound"), false).await;
        assert!(matches!(gone, (Ok(()), false)));
        let (taken, is_expected) = called(refusal(409, "AlreadyExists"), true).await;
        assert!(matches!(taken, Err(Error::Refused { .. })) && !is_expected);
    }

    #[tokio::test]
    async fn pod_that_went_while_it_was_created_is_decided_anew() {
        let (client, _) = server(|asked: &ReceivedRequest| match asked.method.as_str() {
            "GET" => refusal(404, "NotFound"),
            _ => refusal(409, "AlreadyExists"),
        });
        let (writer, job) = (writer(client), job());
        let key = (job.namespace.clone(), job.name.clone());
        let pod =
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "j-w1", "namespace": "n" } });
        let created = writer.create(&job, &key, &PodDocument::new(&pod)).await;
        assert!(matches!(created, Err(Error::Stale)), "{created:?}");
        assert_eq!(writer.index.pods.lock().unmet(Instant::now(), &key), None);
    }

    #[tokio::test]
    async fn pod_of_another_with_that_name_is_not_deleted() {
        let answer = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "j-w1" } });
        let (client, asked) = server(move |_: &ReceivedRequest| Some((200, answer.clone())));
        let (writer, job) = (writer(client), job());
        let key = (job.namespace.clone(), job.name.clone());
        let deletion = PodDeletion {
            name: "j-w1".into(),
            why: "it is too many".into(),
            event: None,
        };
        let pod = |owner: &str| -> Pod {
            let owner = json!([{ "apiVersion": API_VERSION, "kind": KIND, "name": "j", "uid": owner, "controller": true }]);
            let labels = json!({ JOB_LABEL: "j", NUMBER_LABEL: "1" });
            let metadata = json!({ "name": "j-w1", "namespace": "n", "uid": "p", "labels": labels, "ownerReferences": owner });
            serde_json::from_value(json!({ "metadata": metadata })).unwrap()
        };
        for (pods, calls) in [(vec![], 0), (vec![pod("another")], 0), (vec![pod("uid-j")], 1)] {
            writer.index.pods.lock().read(&key, &pods);
            let uids = writer.uids(&job, &key);
            writer.delete(&job, &key, &deletion, &uids).await.unwrap();
            assert_eq!(asked.lock().len(), calls, "{pods:?}");
        }
        assert_eq!(asked.lock()[0].body["preconditions"]["uid"], "p");
    }

    #[tokio::test]
    async fn refusals_of_several_pods_are_one_sentence() {
        let (client, _) = server(|asked: &ReceivedRequest| {
            let name = asked.body["metadata"]["name"].as_str().unwrap_or_default();
            let message = format!("pods \"{name}\" is forbidden: exceeded quota: gpus");
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": "Forbidden", "code": 403,
            });
            Some((403, status))
        });
        let (writer, job) = (writer(client), job());
        let key = (job.namespace.clone(), job.name.clone());
        for name in ["j-w1", "j-w12"] {
            let pod =
                json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "n" } });
            let created = writer.create(&job, &key, &PodDocument::new(&pod)).await;
            let sentence = "pods \"j-...\" is forbidden: exceeded quota: gpus".to_owned();
            assert_eq!(
                created.unwrap_err().failure(),
                Some((JobPart::Pods, sentence)),
                "{name}"
            );
        }
    }

    #[tokio::test]
    async fn failed_call_starts_no_others() {
        let (begun, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let call = |fails: bool| {
            let (begun, ended) = (&begun, &ended);
            async move {
                begun.fetch_add(1, Ordering::Relaxed);
                if fails {
                    return Err(Error::Stale);
                }
                tokio::task::yield_now().await;
                ended.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        };
        let calls = (0..100).map(|i| call(i == 3)).collect();
        let result = concurrently(calls, Instant::now() + BEGUN_WITHIN).await;
        assert!(matches!(result, Err(Error::Stale)), "{result:?}");
        let (begun, ended) = (begun.into_inner(), ended.into_inner());
        assert!((PODS_CONCURRENTLY..100).contains(&begun), "{begun}");
        assert_eq!(ended, begun - 1, "all but the one that failed");
    }

    #[tokio::test]
    async fn calls_that_take_long_are_left_for_the_next_time() {
        let begun = AtomicUsize::new(0);
        let call = || {
            let begun = &begun;
            async move {
                begun.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                Ok::<(), Error>(())
            }
        };
        let calls = |number| (0..number).map(|_| call()).collect::<Vec<_>>();
        let over = Instant::now();
        assert!(!concurrently(calls(100), over).await.unwrap());
        assert_eq!(
            begun.load(Ordering::Relaxed),
            PODS_CONCURRENTLY,
            "some are always made"
        );
        assert!(concurrently(calls(PODS_CONCURRENTLY), over).await.unwrap());
        let in_time = over + Duration::from_secs(600);
        assert!(concurrently(calls(100), in_time).await.unwrap());
        assert_eq!(begun.load(Ordering::Relaxed), 2 * PODS_CONCURRENTLY + 100);
    }
}
