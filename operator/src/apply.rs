//! Makes the cluster's objects what `decide` wants them to be. Server-side apply: what others set on them stays.

use crate::context::{Context, lock};
use crate::decide::objects::selector;
use crate::decide::{Deletion, Desired, JobSeen, Refused};
use crate::reconcile::Error;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Field manager of all objects.
pub const MANAGER: &str = "varuna-operator";
/// Pods of one job that are made side by side.
const ABREAST: usize = 8;
/// Objects are applied again so often even if nothing changed: somebody may have changed them.
const AGAIN: Duration = Duration::from_secs(600);

/// What the API server will not do, however often it is asked, told apart from what it cannot do now.
fn refused(what: Refused) -> impl Fn(kube::Error) -> Error {
    move |error| match error {
        kube::Error::Api(s) if s.is_forbidden() || s.is_invalid() || s.code == 400 => Error::Refused {
            what,
            words: s.message.clone(),
        },
        error => error.into(),
    }
}

/// A job's pods as the API server has them now.
///
/// # Errors
/// The API server refuses or does not answer.
pub async fn pods(context: &Context, job: &JobSeen) -> Result<Vec<Pod>, Error> {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &job.namespace);
    Ok(pods
        .list(&ListParams::default().labels(&selector(&job.name)))
        .await?
        .items)
}

/// Applies objects, makes and deletes pods.
///
/// # Errors
/// The API server refuses or does not answer; what was done until then stays, and the next reconciliation goes on from there.
pub async fn apply(context: &Context, job: &JobSeen, desired: &Desired) -> Result<(), Error> {
    objects(context, job, &desired.objects).await?;
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &job.namespace);
    for deletion in &desired.delete {
        delete(&pods, deletion).await?;
    }
    let resource = ApiResource::erase::<Pod>(&());
    let documents: Api<DynamicObject> =
        Api::namespaced_with(context.client.clone(), &job.namespace, &resource);
    for pods in desired.create.chunks(ABREAST) {
        try_join_all(pods.iter().map(|pod| create(&documents, pod))).await?;
    }
    Ok(())
}

async fn objects(context: &Context, job: &JobSeen, objects: &[Value]) -> Result<(), Error> {
    let fresh = |at: &Instant| at.elapsed() < AGAIN;
    if lock(&context.applied)
        .get(&job.uid)
        .is_some_and(|(same, at)| same == objects && fresh(at))
    {
        return Ok(());
    }
    for object in objects {
        let text = |at: &Value| at.as_str().unwrap_or_default().to_owned();
        let (group, version) = match text(&object["apiVersion"]).split_once('/') {
            Some((group, version)) => (group.to_owned(), version.to_owned()),
            None => (String::new(), text(&object["apiVersion"])),
        };
        let kind = GroupVersionKind::gvk(&group, &version, &text(&object["kind"]));
        let resource = ApiResource::from_gvk(&kind);
        let api: Api<DynamicObject> = Api::namespaced_with(context.client.clone(), &job.namespace, &resource);
        let params = PatchParams::apply(MANAGER).force();
        api.patch(&text(&object["metadata"]["name"]), &params, &Patch::Apply(object))
            .await
            .map_err(refused(Refused::Objects))?;
    }
    lock(&context.applied).insert(job.uid.clone(), (objects.to_vec(), Instant::now()));
    Ok(())
}

async fn delete(pods: &Api<Pod>, deletion: &Deletion) -> Result<(), Error> {
    tracing::info!(pod = deletion.name, why = deletion.why, "delete");
    match pods.delete(&deletion.name, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// As a document: a typed pod would drop the template's fields that are newer than this program.
async fn create(pods: &Api<DynamicObject>, pod: &Value) -> Result<(), Error> {
    let pod: DynamicObject = serde_json::from_value(pod.clone()).map_err(|e| Error::Refused {
        what: Refused::Pods,
        words: e.to_string(),
    })?;
    let params = PostParams {
        field_manager: Some(MANAGER.into()),
        ..PostParams::default()
    };
    match pods.create(&params, &pod).await {
        Ok(_) => Ok(()),
        // The number was given out before, and the answer lost.
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(error) => Err(refused(Refused::Pods)(error)),
    }
}
