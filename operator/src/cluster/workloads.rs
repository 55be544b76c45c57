//! Carries out what was decided about a job's Workloads in Kueue. Each is written over the version on which the decision was based.

use super::ownership::verify;
use crate::decide::{JobPart, KueueVersion, ObservedJob, WorkloadChange};
use crate::error::Error;
use crate::index::Index;
use crate::resource::MANAGER;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams, Preconditions,
};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

/// One of Kueue's resources.
#[must_use]
pub fn resource(version: KueueVersion, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(
        KueueVersion::GROUP,
        version.version(),
        kind,
    ))
}

/// Carries changes out.
///
/// # Errors
/// The API server or a webhook of Kueue refuses or does not answer, a name is another's, or the Workload has changed since: then a watch shows it
/// soon.
pub async fn carry_out(
    client: &Client,
    index: &Index,
    job: &ObservedJob,
    changes: &[WorkloadChange],
) -> Result<(), Error> {
    if changes.is_empty() {
        return Ok(());
    }
    let Some(version) = index.queues.lock().of(job).served else {
        return Ok(());
    };
    let workloads: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), &job.namespace, &resource(version, "Workload"));
    let params = PatchParams {
        field_manager: Some(MANAGER.into()),
        ..PatchParams::default()
    };
    for change in changes {
        let written = match change {
            WorkloadChange::Create(workload) => Some(create(&workloads, job, workload).await?),
            WorkloadChange::Patch { name, patch } => Some(
                workloads
                    .patch(name, &params, &Patch::Merge(patch))
                    .await
                    .map_err(refused)?,
            ),
            WorkloadChange::PatchStatus { name, patch } => {
                let patched = workloads.patch_status(name, &params, &Patch::Merge(patch)).await;
                Some(patched.map_err(refused)?)
            }
            WorkloadChange::Delete(name) => {
                delete(index, &workloads, job, name).await?;
                None
            }
        };
        if let Some(written) = written {
            index.queues.lock().written(&written);
        }
    }
    Ok(())
}

fn refused(error: kube::Error) -> Error {
    Error::changed_or_refused(JobPart::Workload)(error)
}

async fn create(
    workloads: &Api<DynamicObject>,
    job: &ObservedJob,
    workload: &Value,
) -> Result<DynamicObject, Error> {
    let workload: DynamicObject =
        serde_json::from_value(workload.clone()).map_err(kube::Error::SerdeError)?;
    let params = PostParams {
        field_manager: Some(MANAGER.into()),
        ..PostParams::default()
    };
    match workloads.create(&params, &workload).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            let found = workloads.get(&workload.name_any()).await.map_err(refused)?;
            verify("Workload", &found.metadata, job)?;
            Ok(found)
        }
        created => created.map_err(refused),
    }
}

/// Deletes the Workload that was seen and no other of its name.
async fn delete(
    index: &Index,
    workloads: &Api<DynamicObject>,
    job: &ObservedJob,
    name: &str,
) -> Result<(), Error> {
    let Some(uid) = index.queues.lock().uid(job, name) else {
        // The watch has shown in the meantime that it is gone: what has its name now is not the job's.
        return Ok(());
    };
    let params = DeleteParams::background().preconditions(Preconditions {
        uid: Some(uid),
        resource_version: None,
    });
    match workloads.delete(name, &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        Err(error) => Err(refused(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::fake_server::{ReceivedRequest, refusal, server};
    use crate::fixtures;
    use serde_json::json;
    use varuna_api::manifest::{API_VERSION, KIND};

    /// What was asked of the server to delete the job's Workload, where the index has one of that name with this owner.
    async fn deleted(owner: &str) -> Vec<ReceivedRequest> {
        let answer = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success" });
        let (client, asked) = server(move |_: &ReceivedRequest| Some((200, answer.clone())));
        let index = Index::new(fixtures::settings());
        let owner = json!([{ "apiVersion": API_VERSION, "kind": KIND, "name": "j", "uid": owner, "controller": true }]);
        let workload: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": { "name": "j-q1-uid-j", "namespace": "n", "uid": "w", "resourceVersion": "7", "ownerReferences": owner },
        }))
        .unwrap();
        index.queues.lock().set_served(Some(KueueVersion::V1Beta2));
        index.queues.lock().written(&workload);
        let change = WorkloadChange::Delete("j-q1-uid-j".into());
        let job = fixtures::job("j", "uid-j");
        carry_out(&client, &index, &job, &[change]).await.unwrap();
        let asked = asked.lock();
        asked.clone()
    }

    #[tokio::test]
    async fn workload_of_another_with_that_name_is_not_deleted() {
        assert_eq!(deleted("another").await, []);
        let asked = deleted("uid-j").await;
        assert_eq!(asked[0].method, "DELETE");
        assert_eq!(asked[0].body["preconditions"]["uid"], "w");
    }

    #[tokio::test]
    async fn workload_that_went_while_it_was_made_is_decided_anew() {
        let (client, _) = server(|asked: &ReceivedRequest| match asked.method.as_str() {
            "GET" => refusal(404, "NotFound"),
            _ => refusal(409, "AlreadyExists"),
        });
        let index = Index::new(fixtures::settings());
        index.queues.lock().set_served(Some(KueueVersion::V1Beta2));
        let workload = json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": { "name": "j-q1-uid-j", "namespace": "n" },
        });
        let change = WorkloadChange::Create(workload);
        let created = carry_out(&client, &index, &fixtures::job("j", "uid-j"), &[change]).await;
        assert!(matches!(created, Err(Error::Stale)), "{created:?}");
    }
}
