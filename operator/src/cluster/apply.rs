//! Makes a job's objects and pods what a decision wants them to be. Server-side apply: fields that others set on them stay.
//!
//! Apply is forced, so it is used only on an object that is known to be the job's, and names its uid: the API server then refuses to touch
//! another object that has taken the name meanwhile.

use super::ownership::{is_of, verify};
use crate::decide::objects::selector;
use crate::decide::{Decision, JobPart, ObservedJob, PodDeletion};
use crate::error::Error;
use crate::resource::resource;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
    Preconditions, TypeMeta,
};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Field manager of all objects.
pub const MANAGER: &str = "varuna-operator";
/// Pods of one job that are created concurrently.
const CREATED_CONCURRENTLY: usize = 8;
/// Objects are applied again after this time even if nothing changed: somebody may have changed them.
const REAPPLY: Duration = Duration::from_secs(600);

/// An object as it was last applied.
#[derive(Clone)]
struct Applied {
    object: Value,
    at: Instant,
    uid: String,
}

/// Kind and name of an object.
type ObjectKey = (String, String);

fn key(object: &Value) -> ObjectKey {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&object["kind"]), text(&object["metadata"]["name"]))
}

/// Writes objects and pods, and remembers which objects need not be written again.
pub struct Applier {
    client: Client,
    /// By the job's uid.
    applied: Mutex<BTreeMap<String, BTreeMap<ObjectKey, Applied>>>,
}

impl Applier {
    /// An applier that has applied nothing yet.
    #[must_use]
    pub fn new(client: Client) -> Applier {
        Applier {
            client,
            applied: Mutex::default(),
        }
    }

    /// A job's pods as the API server has them now.
    ///
    /// # Errors
    /// The API server refuses or does not answer.
    pub async fn pods(&self, job: &ObservedJob) -> Result<Vec<Pod>, Error> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &job.namespace);
        let of_job = ListParams::default().labels(&selector(&job.name));
        let mut pods = pods.list(&of_job).await?.items;
        pods.retain(|pod| is_of(&pod.metadata, job));
        Ok(pods)
    }

    /// Applies objects, deletes and creates pods.
    ///
    /// # Errors
    /// The API server refuses or does not answer; what was done until then stays, and the next reconciliation goes on from there.
    pub async fn apply(&self, job: &ObservedJob, decision: &Decision<'_>) -> Result<(), Error> {
        self.apply_objects(job, &decision.objects).await?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &job.namespace);
        for deletion in &decision.delete {
            delete(&pods, deletion).await?;
        }
        let resource = ApiResource::erase::<Pod>(&());
        let documents = Api::namespaced_with(self.client.clone(), &job.namespace, &resource);
        // The coordinator's is the first: what a quota leaves is for it.
        let (coordinator, workers) = decision.create.split_at(usize::from(decision.starts_coordinator));
        for pods in coordinator.chunks(1).chain(workers.chunks(CREATED_CONCURRENTLY)) {
            try_join_all(pods.iter().map(|pod| create(&documents, job, pod))).await?;
        }
        Ok(())
    }

    /// Deletes a job whose time is over, as it was `read`: one that was changed since then may have been given more time. What belongs to
    /// it follows by its owner references.
    ///
    /// # Errors
    /// The API server refuses or does not answer.
    pub async fn delete_job(&self, job: &ObservedJob, read: Option<String>) -> Result<(), Error> {
        tracing::info!(
            job = job.name,
            namespace = job.namespace,
            "deleted: it ended a while ago"
        );
        let jobs: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &job.namespace, &resource());
        let params = DeleteParams::background().preconditions(Preconditions {
            uid: Some(job.uid.clone()),
            resource_version: read,
        });
        match jobs.delete(&job.name, &params).await {
            Ok(_) => Ok(()),
            // It is gone, was changed, or another one has its name: the next look decides.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn apply_objects(&self, job: &ObservedJob, objects: &[Value]) -> Result<(), Error> {
        for object in objects {
            let key = key(object);
            let known = self
                .applied
                .lock()
                .get(&job.uid)
                .and_then(|of_job| of_job.get(&key).cloned());
            let is_applied = |a: &Applied| a.object == *object && a.at.elapsed() < REAPPLY;
            if known.as_ref().is_some_and(is_applied) {
                continue;
            }
            let applied = Applied {
                uid: self.apply_object(job, object, known.map(|a| a.uid)).await?,
                object: object.clone(),
                at: Instant::now(),
            };
            let mut all = self.applied.lock();
            all.entry(job.uid.clone()).or_default().insert(key, applied);
        }
        Ok(())
    }

    /// Creates an object or applies it to the one that is there, if that is the job's. Returns its uid. `known`: the uid that it had.
    async fn apply_object(
        &self,
        job: &ObservedJob,
        object: &Value,
        known: Option<String>,
    ) -> Result<String, Error> {
        let document: DynamicObject =
            serde_json::from_value(object.clone()).map_err(kube::Error::SerdeError)?;
        let TypeMeta { api_version, kind } = document.types.clone().unwrap_or_default();
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &job.namespace, &resource);
        let name = document.name_any();
        if let Some(uid) = known {
            match apply_to(&api, &name, object, &uid).await {
                // It was deleted, and perhaps made anew by somebody.
                Err(kube::Error::Api(s)) if s.is_conflict() || s.is_not_found() => {}
                applied => return applied.map(|()| uid).map_err(Error::refused(JobPart::Objects)),
            }
        }
        match api.create(&created_by_us(), &document).await {
            Ok(created) => return Ok(created.uid().unwrap_or_default()),
            Err(kube::Error::Api(s)) if s.is_already_exists() => {}
            Err(error) => return Err(Error::refused(JobPart::Objects)(error)),
        }
        let found = api.get(&name).await?;
        verify(&kind, &found.metadata, job)?;
        let uid = found.uid().unwrap_or_default();
        apply_to(&api, &name, object, &uid)
            .await
            .map_err(Error::refused(JobPart::Objects))?;
        Ok(uid)
    }

    /// Forgets deleted jobs.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.applied.lock().retain(|uid, _| exists(uid));
    }
}

fn created_by_us() -> PostParams {
    PostParams {
        field_manager: Some(MANAGER.into()),
        ..PostParams::default()
    }
}

/// Applies to the object with this uid and to no other.
async fn apply_to(api: &Api<DynamicObject>, name: &str, object: &Value, uid: &str) -> kube::Result<()> {
    let mut object = object.clone();
    object["metadata"]["uid"] = uid.into();
    let params = PatchParams::apply(MANAGER).force();
    api.patch(name, &params, &Patch::Apply(&object)).await.map(drop)
}

async fn delete(pods: &Api<Pod>, deletion: &PodDeletion) -> Result<(), Error> {
    tracing::info!(pod = deletion.name, why = deletion.why, "delete");
    match pods.delete(&deletion.name, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// As a document: a typed pod would drop the template's fields that are newer than this program.
async fn create(pods: &Api<DynamicObject>, job: &ObservedJob, pod: &Value) -> Result<(), Error> {
    let pod: DynamicObject = serde_json::from_value(pod.clone()).map_err(|e| Error::Refused {
        part: JobPart::Pods,
        message: e.to_string(),
    })?;
    match pods.create(&created_by_us(), &pod).await {
        Ok(_) => Ok(()),
        // It was created before, and the answer was lost; or it is not ours.
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            verify("Pod", &pods.get(&pod.name_any()).await?.metadata, job)
        }
        Err(error) => Err(Error::refused(JobPart::Pods)(error)),
    }
}
