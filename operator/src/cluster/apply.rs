//! Makes a job's objects and pods what a decision wants them to be. Server-side apply: fields that others set on them stay.
//!
//! Apply is forced, so it is used only on an object that is known to be the job's, and names its uid: the API server then refuses to touch
//! another object that has taken the name meanwhile.

use super::applied::{Applied, least};
use super::ownership::{is_of, verify};
use crate::decide::objects::{APPLIED_ANNOTATION, identity_of};
use crate::decide::{Decision, JobPart, ObservedJob, PodDeletion};
use crate::error::Error;
use crate::index::{Index, JobKey, KnownObject, ObjectKey};
use crate::job_object::JobObject;
use crate::resource::MANAGER;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
    Preconditions, TypeMeta,
};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The first of several changes of an object is applied at once, and what follows after this time.
const BETWEEN: Duration = Duration::from_secs(1);
/// Pods of one job that are created and deleted concurrently.
const PODS_CONCURRENTLY: usize = 8;
/// Objects are applied again after this time even if nothing seems to have changed. The first time after half of it to all of it, so that
/// those of many jobs do not come together.
const REAPPLY: Duration = Duration::from_secs(7200);

/// Which of a job's objects are to be written.
#[derive(Debug)]
pub struct Objects {
    /// Those that are missing.
    pub missing: Vec<Outdated>,
    /// Those that are there but not as they should be.
    pub changed: Vec<Outdated>,
    /// Some were written a moment ago and have to wait.
    pub wait: bool,
}

/// An object that is not as it should be.
#[derive(Debug)]
pub struct Outdated {
    key: ObjectKey,
    object: Value,
}

/// Writes objects and pods.
pub struct Applier {
    client: Client,
    index: Arc<Index>,
    /// By the job's uid and their own keys.
    applied: Mutex<BTreeMap<String, BTreeMap<ObjectKey, Applied>>>,
}

impl Applier {
    /// An applier that has applied nothing yet.
    #[must_use]
    pub fn new(client: Client, index: Arc<Index>) -> Applier {
        Applier {
            client,
            index,
            applied: Mutex::default(),
        }
    }

    /// Which of a job's objects are to be written.
    #[must_use]
    pub fn outdated(&self, job: &ObservedJob, objects: &[Value]) -> Objects {
        let (mut missing, mut changed, mut found_soon) = (vec![], vec![], false);
        let (owned, mut applied) = (self.index.owned.lock(), self.applied.lock());
        let applied = applied.entry(job.uid.clone()).or_default();
        for object in objects {
            let hash = identity_of(object);
            let mut object = object.clone();
            object["metadata"]["annotations"][APPLIED_ANNOTATION] = hash.clone().into();
            let key = key(&object);
            let known = owned
                .get(&key)
                .filter(|known| known.owner.as_ref() == Some(&job.uid));
            let Some(known) = known else {
                missing.push(Outdated { key, object });
                continue;
            };
            let now = Instant::now();
            // Another leader has applied it: it is as that has left it, or somebody has written it since.
            let found = || Applied {
                at: None,
                again: if known.is_touched {
                    now
                } else {
                    now + spread(&known.uid)
                },
                fields: known.fields,
                least: None,
                next: None,
            };
            let before = applied.entry(key.clone()).or_insert_with(found);
            let is_same = known.applied.as_ref() == Some(&hash) && known.fields == before.fields;
            let may_wait = before.may_wait(now, least(&object));
            if is_same && before.again > now {
                continue;
            }
            if may_wait && known.fields == before.fields {
                found_soon = true;
                continue;
            }
            if before.at.is_some_and(|at| now.duration_since(at) < BETWEEN) {
                found_soon = true;
                continue;
            }
            changed.push(Outdated { key, object });
        }
        Objects {
            missing,
            changed,
            wait: found_soon,
        }
    }

    /// Applies objects.
    ///
    /// # Errors
    /// The API server refuses or does not answer, or somebody else has taken a name.
    pub async fn apply_objects(&self, job: &ObservedJob, objects: Vec<Outdated>) -> Result<(), Error> {
        for Outdated { key, object } in objects {
            let known = self.index.owned.lock().get(&key).cloned();
            let ours = known.filter(|known| known.owner.as_ref() == Some(&job.uid));
            let written = self.apply_object(job, &object, ours.map(|known| known.uid)).await;
            let (mut owned, mut applied) = (self.index.owned.lock(), self.applied.lock());
            match written {
                Ok(written) => {
                    let of_job = applied.entry(job.uid.clone()).or_default();
                    let again = Instant::now() + REAPPLY;
                    let fields = written.fields;
                    let at = Some(Instant::now());
                    let applied = Applied {
                        at,
                        again,
                        fields,
                        least: least(&object),
                        next: None,
                    };
                    of_job.insert(key.clone(), applied);
                    owned.written(key, written);
                }
                // Whatever is there, the next look makes sure of it.
                Err(error) => {
                    owned.forget(&key);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Deletes and creates pods, and expects the watch to show it.
    ///
    /// # Errors
    /// The API server refuses or does not answer; what was done until then stays, and the next reconciliation goes on from there.
    pub async fn change_pods(&self, job: &ObservedJob, decision: &Decision<'_>) -> Result<(), Error> {
        let key = (job.namespace.clone(), job.name.clone());
        let uids: BTreeMap<String, String> = {
            let pods = self.index.pods.lock();
            let uids = pods
                .of(&key)
                .map(|pod| (pod.name().to_owned(), pod.uid.to_string()));
            uids.collect()
        };
        let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let created = decision.create.iter().map(name);
        let deleted = decision.delete.iter().map(|d| d.name.clone());
        if decision.changes_pods() {
            let mut pods = self.index.pods.lock();
            pods.expect(Instant::now(), &key, created, deleted);
        }
        // The coordinator's is the first: what a quota leaves is for it.
        let (coordinator, workers) = decision.create.split_at(usize::from(decision.starts_coordinator));
        let delete = |deletion| self.delete(job, &key, deletion, &uids);
        let deletions: Vec<_> = decision.delete.iter().map(delete).collect();
        let create = |pods: &[Value]| -> Vec<_> {
            let pods = pods.iter().cloned();
            pods.map(|pod| self.create(job, &key, pod)).collect()
        };
        let (coordinator, workers) = (create(coordinator), create(workers));
        let creations = async {
            some_at_a_time(coordinator).await?;
            some_at_a_time(workers).await
        };
        // Both to their end: one that fails does not leave the other half done.
        let (deleted, created) = futures::join!(some_at_a_time(deletions), creations);
        if deleted.is_err() || created.is_err() {
            // Which of them the API server has carried out is not known: the watch shows those.
            self.index.pods.lock().forget_expected(&key);
        }
        // Where both fail, the next try finds that deletions fail still.
        created.and(deleted)
    }

    /// Deletes a job whose time is over, as it was `read`: one that was changed since then may have been given more time. What belongs to
    /// it follows by its owner references.
    ///
    /// # Errors
    /// The API server refuses or does not answer, or the job was changed.
    pub async fn delete_job(&self, job: &ObservedJob, read: Option<String>) -> Result<(), Error> {
        tracing::info!(
            job = job.name,
            namespace = job.namespace,
            "deleted: it ended a while ago"
        );
        let jobs: Api<JobObject> = Api::namespaced(self.client.clone(), &job.namespace);
        let params = DeleteParams::background().preconditions(Preconditions {
            uid: Some(job.uid.clone()),
            resource_version: read,
        });
        let deleted = jobs.delete(&job.name, &params).await;
        job_deleted(deleted.map(drop))
    }

    /// Creates an object or applies it to the one that is there, if that is the job's. `known`: the uid that it had.
    async fn apply_object(
        &self,
        job: &ObservedJob,
        object: &Value,
        known: Option<String>,
    ) -> Result<KnownObject, Error> {
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
                applied => return applied.map_err(Error::refused(JobPart::Objects)),
            }
        }
        match api.create(&created_by_us(), &document).await {
            Ok(created) => return Ok(KnownObject::of(&created.metadata)),
            Err(kube::Error::Api(s)) if s.is_already_exists() => {}
            Err(error) => return Err(Error::refused(JobPart::Objects)(error)),
        }
        let found = api.get(&name).await?;
        verify(&kind, &found.metadata, job)?;
        let uid = found.uid().unwrap_or_default();
        let applied = apply_to(&api, &name, object, &uid).await;
        applied.map_err(Error::changed_or_refused(JobPart::Objects))
    }

    /// The pod that was seen and no other of its name.
    async fn delete(
        &self,
        job: &ObservedJob,
        key: &JobKey,
        deletion: &PodDeletion,
        uids: &BTreeMap<String, String>,
    ) -> Result<(), Error> {
        tracing::info!(pod = deletion.name, why = deletion.why, "delete");
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &job.namespace);
        let params = DeleteParams::default().preconditions(Preconditions {
            uid: uids.get(&deletion.name).cloned(),
            resource_version: None,
        });
        match pods.delete(&deletion.name, &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {
                self.index.pods.lock().met(key, &deletion.name);
                Ok(())
            }
            Err(error) => Err(Error::refused(JobPart::Deletions)(error)),
        }
    }

    /// As a document: a typed pod would drop the template's fields that are newer than this program.
    async fn create(&self, job: &ObservedJob, key: &JobKey, pod: Value) -> Result<(), Error> {
        let pod: DynamicObject = serde_json::from_value(pod).map_err(|e| Error::Refused {
            part: JobPart::Pods,
            message: e.to_string(),
        })?;
        let resource = ApiResource::erase::<Pod>(&());
        let pods: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &job.namespace, &resource);
        let name = pod.name_any();
        match pods.create(&created_by_us(), &pod).await {
            Ok(_) => Ok(()),
            // It was created before, and the answer was lost; or it is not ours.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                let found = pods.get(&name).await?;
                if is_of(&found.metadata, job) {
                    self.index.pods.lock().met(key, &name);
                }
                verify("Pod", &found.metadata, job)
            }
            Err(error) => Err(Error::refused(JobPart::Pods)(error)),
        }
    }

    /// Forgets deleted jobs.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.applied.lock().retain(|uid, _| exists(uid));
    }
}

async fn some_at_a_time(calls: Vec<impl Future<Output = Result<(), Error>>>) -> Result<(), Error> {
    stream::iter(calls)
        .buffer_unordered(PODS_CONCURRENTLY)
        .try_collect()
        .await
}

/// What the deletion of a job has come to.
fn job_deleted(answer: kube::Result<()>) -> Result<(), Error> {
    match answer {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        // It was changed, or another one has its name: the next look decides. That has to be asked for, as no watch tells of a status that was written.
        Err(kube::Error::Api(status)) if status.is_conflict() => Err(Error::Stale),
        answer => answer.map_err(Error::from),
    }
}

fn key(object: &Value) -> ObjectKey {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &object["metadata"];
    (
        text(&object["kind"]),
        text(&metadata["namespace"]),
        text(&metadata["name"]),
    )
}

/// From half of the interval to all of it, by the object's uid.
fn spread(uid: &str) -> Duration {
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    let thousandths = u32::try_from(hasher.finish() % 1000).unwrap_or(0);
    REAPPLY / 2 + REAPPLY / 2000 * thousandths
}

fn created_by_us() -> PostParams {
    PostParams {
        field_manager: Some(MANAGER.into()),
        ..PostParams::default()
    }
}

/// Applies to the object with this uid and to no other.
async fn apply_to(
    api: &Api<DynamicObject>,
    name: &str,
    object: &Value,
    uid: &str,
) -> kube::Result<KnownObject> {
    let mut object = object.clone();
    object["metadata"]["uid"] = uid.into();
    let params = PatchParams::apply(MANAGER).force();
    let applied = api.patch(name, &params, &Patch::Apply(&object)).await?;
    Ok(KnownObject::of(&applied.metadata))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deletion_of_a_job_that_was_changed_meanwhile_is_tried_again() {
        let answer = |code: u16, reason: &str| {
            let mut answer = kube::core::Status::failure("in its words", reason);
            answer.code = code;
            job_deleted(Err(kube::Error::Api(Box::new(answer))))
        };
        assert!(matches!(answer(409, "Conflict"), Err(Error::Stale)));
        assert!(answer(404, "NotFound").is_ok(), "it is gone");
        assert!(matches!(answer(500, "InternalError"), Err(Error::Api(_))));
        assert!(job_deleted(Ok(())).is_ok());
    }
}
