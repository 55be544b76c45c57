//! Makes a job's objects what a decision wants them to be; its pods: `pod_writer.rs`. Server-side apply: fields that others set on them stay.
//!
//! Apply is forced. So it is used only on an object that is known to be the job's, and names its uid: the API server then refuses to change
//! another object that was created under this name in the meantime.

use super::applied::{Applied, BETWEEN, REAPPLY, least};
use super::ownership::verify;
use crate::decide::objects::{APPLIED_ANNOTATION, identity_of};
use crate::decide::{JobPart, ObservedJob};
use crate::error::Error;
use crate::index::{Index, KnownObject, ObjectKey};
use crate::job_object::JobObject;
use crate::resource::MANAGER;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
    Preconditions, TypeMeta,
};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Kinds of objects that nothing else of the job needs in their newest form.
const POLICIES: [&str; 2] = ["PodDisruptionBudget", "NetworkPolicy"];
/// Jobs whose objects are adjusted concurrently.
const ADJUSTED_CONCURRENTLY: usize = 4;

/// Which of a job's objects are to be written.
#[derive(Debug)]
pub struct Objects {
    /// Objects that are missing.
    pub missing: Vec<Outdated>,
    /// Objects that exist but are not as they should be.
    pub changed: Vec<Outdated>,
    /// When to reconcile again, because some have to wait.
    pub again_in: Option<Duration>,
}

/// An object that is not as it should be.
#[derive(Debug)]
pub struct Outdated {
    key: ObjectKey,
    /// Identity of the object as it should be (see [`identity_of`]).
    identity: String,
    object: Value,
}

impl Outdated {
    /// That it is to be so, with the identity of that in an annotation.
    fn new(key: ObjectKey, identity: String, object: &Value) -> Outdated {
        let mut object = object.clone();
        object["metadata"]["annotations"][APPLIED_ANNOTATION] = identity.clone().into();
        Outdated {
            key,
            identity,
            object,
        }
    }

    fn is_policy(&self) -> bool {
        POLICIES.contains(&self.key.0.as_str())
    }
}

/// Writes a job's objects.
pub struct Applier {
    client: Client,
    index: Arc<Index>,
    /// What was applied, by the job's uid and the objects' keys.
    applied: Mutex<BTreeMap<String, BTreeMap<ObjectKey, Applied>>>,
    /// Permits to adjust a job's objects.
    adjustments: Semaphore,
}

impl Applier {
    /// An applier that has applied nothing yet.
    #[must_use]
    pub fn new(client: Client, index: Arc<Index>) -> Applier {
        Applier {
            client,
            index,
            applied: Mutex::default(),
            adjustments: Semaphore::new(ADJUSTED_CONCURRENTLY),
        }
    }

    /// Which of a job's objects are to be written.
    #[must_use]
    pub fn outdated(&self, job: &ObservedJob, objects: &[Value]) -> Objects {
        let (mut missing, mut changed, mut again_in) = (vec![], vec![], None::<Duration>);
        let mut wait = |left: Duration| again_in = Some(again_in.map_or(left, |known| known.min(left)));
        let (owned, mut applied) = (self.index.owned.lock(), self.applied.lock());
        let applied = applied.entry(job.uid.clone()).or_default();
        for object in objects {
            let identity = identity_of(object);
            let key = key(object);
            let known = owned
                .get(&key)
                .filter(|known| known.owner.as_ref() == Some(&job.uid));
            let Some(known) = known else {
                missing.push(Outdated::new(key, identity, object));
                continue;
            };
            let now = Instant::now();
            let before = applied
                .entry(key.clone())
                .or_insert_with(|| Applied::found(known, now));
            let is_same = known.applied.as_ref() == Some(&identity) && known.fields == before.fields;
            let may_wait = before.may_wait(now, least(object));
            if is_same && before.again > now {
                continue;
            }
            if may_wait && known.fields == before.fields {
                wait(BETWEEN);
                continue;
            }
            if let Some(left) = before.backoff_left(now, &identity) {
                wait(left);
                continue;
            }
            changed.push(Outdated::new(key, identity, object));
        }
        Objects {
            missing,
            changed,
            again_in,
        }
    }

    /// Applies objects.
    ///
    /// # Errors
    /// The API server refuses or does not answer, or somebody else has taken a name.
    pub async fn apply_objects(&self, job: &ObservedJob, objects: Vec<Outdated>) -> Result<(), Error> {
        for outdated in objects {
            let Outdated {
                key,
                identity,
                object,
            } = outdated;
            let known = self.index.owned.lock().get(&key).cloned();
            let ours = known.filter(|known| known.owner.as_ref() == Some(&job.uid));
            let written = self.apply_object(job, &object, ours.map(|known| known.uid)).await;
            let (mut owned, mut applied) = (self.index.owned.lock(), self.applied.lock());
            match written {
                Ok(written) => {
                    let of_job = applied.entry(job.uid.clone()).or_default();
                    let now = Instant::now();
                    let before = of_job.get(&key);
                    let applied = Applied {
                        at: Some(now),
                        again: now + REAPPLY,
                        pause: before.map_or(BETWEEN, |before| before.next_pause(now, &identity)),
                        identity: Some(identity),
                        fields: written.fields,
                        least: least(&object),
                        next: None,
                    };
                    of_job.insert(key.clone(), applied);
                    owned.written(key, written);
                }
                Err(error) => {
                    // A policy whose change is refused is there as before. Were it taken for missing, pods would wait for it. Whatever else is
                    // there, the next reconciliation corrects it.
                    if !is_refused_policy(&error) {
                        owned.forget(&key);
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Applies objects that the job has already, such as its disruption budget. If many jobs lose pods at once, their orders and pods come
    /// first: a job for which no permit is left applies nothing, and tries again after the returned time. By then there may be nothing left
    /// to change. `with_policies`: also disruption budgets and network policies.
    ///
    /// # Errors
    /// As for [`Applier::apply_objects`]. The objects of both kinds were tried.
    pub async fn adjust_objects(
        &self,
        job: &ObservedJob,
        objects: Vec<Outdated>,
        with_policies: bool,
    ) -> Result<Option<Duration>, Error> {
        let (mut policies, others): (Vec<_>, Vec<_>) = objects.into_iter().partition(Outdated::is_policy);
        if !with_policies {
            policies.clear();
        }
        let others = self.adjust(job, others).await;
        let policies = self.adjust(job, policies).await;
        Ok(others?.or(policies?))
    }

    async fn adjust(&self, job: &ObservedJob, objects: Vec<Outdated>) -> Result<Option<Duration>, Error> {
        if objects.is_empty() {
            return Ok(None);
        }
        let Ok(_permit) = self.adjustments.try_acquire() else {
            return Ok(Some(BETWEEN));
        };
        self.apply_objects(job, objects).await?;
        Ok(None)
    }

    /// Deletes a job whose time is over, in the version that was `read`: a job that was changed since may have more time. Its objects
    /// follow by their owner references.
    ///
    /// # Errors
    /// The API server refuses or does not answer, or the job was changed.
    pub async fn delete_job(&self, job: &ObservedJob, read: Option<String>) -> Result<(), Error> {
        let jobs: Api<JobObject> = Api::namespaced(self.client.clone(), &job.namespace);
        let params = DeleteParams::background().preconditions(Preconditions {
            uid: Some(job.uid.clone()),
            resource_version: read,
        });
        let deleted = jobs.delete(&job.name, &params).await;
        if deleted.is_ok() {
            tracing::info!(
                job = job.name,
                namespace = job.namespace,
                "deleted: it ended a while ago"
            );
        }
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
        let change = if POLICIES.contains(&kind.as_str()) {
            JobPart::Policies
        } else {
            JobPart::Objects
        };
        if let Some(uid) = known {
            match apply_to(&api, &name, object, &uid).await {
                // It was deleted, and perhaps somebody created it again.
                Err(kube::Error::Api(s)) if s.is_conflict() || s.is_not_found() => {}
                applied => return applied.map_err(Error::refused(change)),
            }
        }
        match api.create(&created_by_us(), &document).await {
            Ok(created) => return Ok(KnownObject::of(&created.metadata)),
            Err(kube::Error::Api(s)) if s.is_already_exists() => {}
            Err(error) => return Err(Error::refused(JobPart::Objects)(error)),
        }
        let found = api.get(&name).await;
        let found = found.map_err(Error::changed_or_refused(JobPart::Objects))?;
        verify(&kind, &found.metadata, job)?;
        let uid = found.uid().unwrap_or_default();
        // No watch shows it again if it is not changed.
        let found = KnownObject::of(&found.metadata);
        self.index.owned.lock().written(key(object), found);
        let applied = apply_to(&api, &name, object, &uid).await;
        applied.map_err(Error::changed_or_refused(change))
    }

    /// Forgets deleted jobs.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.applied.lock().retain(|uid, _| exists(uid));
    }
}

fn is_refused_policy(error: &Error) -> bool {
    matches!(
        error,
        Error::Refused {
            part: JobPart::Policies,
            ..
        }
    )
}

/// What the deletion of a job has come to.
fn job_deleted(answer: kube::Result<()>) -> Result<(), Error> {
    match answer {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        // It was changed, or another one has its name: the next reconciliation decides. Ask for one, since no watch reports a written status.
        Err(kube::Error::Api(status)) if status.is_conflict() => Err(Error::Stale),
        answer => answer.map_err(Error::refused(JobPart::JobDeletion)),
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

pub(super) fn created_by_us() -> PostParams {
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
    use crate::cluster::fake_server::{ReceivedRequest, refusal, server};
    use crate::fixtures;
    use serde_json::json;

    fn job() -> ObservedJob {
        fixtures::job("j", "uid-j")
    }

    fn applier(client: Client) -> Applier {
        Applier::new(client, Arc::new(Index::new(fixtures::settings())))
    }

    #[tokio::test]
    async fn objects_are_adjusted_later_while_many_jobs_adjust_theirs() {
        let document = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": { "name": "j-workers", "namespace": "n", "uid": "b" },
        });
        let answer = document.clone();
        let (client, asked) = server(move |_: &ReceivedRequest| Some((201, answer.clone())));
        let (applier, job) = (applier(client), job());
        let outdated = || vec![Outdated::new(key(&document), "identity".into(), &document)];
        let others = applier.adjustments.try_acquire_many(4).unwrap();
        let postponed = applier.adjust_objects(&job, outdated(), true).await.unwrap();
        assert!(postponed == Some(BETWEEN) && asked.lock().is_empty());
        let nothing = applier.adjust_objects(&job, vec![], true).await.unwrap();
        assert_eq!(nothing, None, "there is nothing to come back for");
        drop(others);
        let done = applier.adjust_objects(&job, outdated(), true).await.unwrap();
        assert!(done.is_none() && asked.lock().len() == 1);
        assert!(
            applier.adjust_objects(&job, outdated(), true).await.is_ok(),
            "the permit is free again"
        );
    }

    #[tokio::test]
    async fn object_that_went_while_it_was_created_is_decided_anew() {
        let (client, _) = server(|asked: &ReceivedRequest| match asked.method.as_str() {
            "GET" => refusal(404, "NotFound"),
            _ => refusal(409, "AlreadyExists"),
        });
        let document = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "j-coordinator", "namespace": "n" },
        });
        let outdated = Outdated::new(key(&document), "identity".into(), &document);
        let applied = applier(client).apply_objects(&job(), vec![outdated]).await;
        assert!(matches!(applied, Err(Error::Stale)), "{applied:?}");
    }

    /// What fails if the API server refuses to change an object of this kind that is there, or to make it; and how often it was asked.
    async fn refused(kind: &str, is_there: bool, with_policies: bool) -> (Option<JobPart>, usize) {
        let document = json!({
            "apiVersion": "v1", "kind": kind, "metadata": crate::decide::objects::metadata(&job(), "j-workers"),
        });
        let found = document.clone();
        let (client, asked) = server(move |asked: &ReceivedRequest| match asked.method.as_str() {
            "POST" if is_there => refusal(409, "AlreadyExists"),
            "GET" => Some((200, found.clone())),
            _ => refusal(403, "Forbidden"),
        });
        let outdated = vec![Outdated::new(key(&document), "identity".into(), &document)];
        let adjusted = applier(client)
            .adjust_objects(&job(), outdated, with_policies)
            .await;
        let failure = adjusted.err().and_then(|error| error.failure());
        let asked = asked.lock().len();
        (failure.map(|(part, _)| part), asked)
    }

    #[tokio::test]
    async fn refused_change_of_a_policy_is_a_part_of_its_own() {
        for kind in POLICIES {
            assert_eq!(refused(kind, true, true).await.0, Some(JobPart::Policies));
            assert_eq!(
                refused(kind, true, false).await,
                (None, 0),
                "its time has not come"
            );
            assert_eq!(
                refused(kind, false, true).await.0,
                Some(JobPart::Objects),
                "pods do not start before it is there"
            );
        }
        assert_eq!(refused("Service", true, false).await.0, Some(JobPart::Objects));
    }

    #[tokio::test]
    async fn a_policy_whose_change_is_refused_is_not_missing() {
        for kind in POLICIES {
            let document = json!({
                "apiVersion": "v1", "kind": kind, "metadata": crate::decide::objects::metadata(&job(), "j-workers"),
            });
            let found = document.clone();
            let (client, _) = server(move |asked: &ReceivedRequest| match asked.method.as_str() {
                "POST" => refusal(409, "AlreadyExists"),
                "GET" => Some((200, found.clone())),
                _ => refusal(403, "Forbidden"),
            });
            let applier = applier(client);
            let outdated = || vec![Outdated::new(key(&document), "identity".into(), &document)];
            let objects = std::slice::from_ref(&document);
            assert_eq!(
                applier.outdated(&job(), objects).missing.len(),
                1,
                "no watch has shown it"
            );
            for _ in 0..2 {
                let refused = applier.apply_objects(&job(), outdated()).await.unwrap_err();
                assert!(is_refused_policy(&refused), "{refused:?}");
                let missing = applier.outdated(&job(), objects).missing;
                assert!(
                    missing.is_empty(),
                    "pods would wait for it at each reconciliation"
                );
            }
        }
    }

    #[test]
    fn refused_deletion_of_a_job_is_told_from_a_changed_job() {
        let answer = |code: u16, reason: &str| {
            let mut answer = kube::core::Status::failure("in its words", reason);
            answer.code = code;
            job_deleted(Err(kube::Error::Api(Box::new(answer))))
        };
        assert!(matches!(answer(409, "Conflict"), Err(Error::Stale)));
        assert!(answer(404, "NotFound").is_ok(), "it is gone");
        // The API server answers: only the deletion waits.
        let refused = answer(403, "Forbidden").unwrap_err().failure();
        assert_eq!(refused, Some((JobPart::JobDeletion, "in its words".into())));
        assert!(job_deleted(Ok(())).is_ok());
    }
}
