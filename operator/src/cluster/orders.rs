//! Writes a coordinator's orders into the spec of its job's `VarunaRun`. The coordinator writes the status alone.

use super::ownership::verify;
use crate::decide::objects::{metadata, record_name};
use crate::decide::{JobPart, ObservedJob};
use crate::error::Error;
use kube::api::{ApiResource, DynamicObject, ObjectMeta, PostParams};
use kube::{Api, Client};
use serde_json::json;
use varuna_api::crd::{RunSpec, VarunaRun};

/// The resource `VarunaRun`. Runs are watched untyped: one that does not parse must not hide all others.
#[must_use]
pub fn resource() -> ApiResource {
    ApiResource::erase::<VarunaRun>(&())
}

/// The runs of a namespace.
#[must_use]
pub fn runs(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &resource())
}

/// Writes orders: into a new object where there is none, else over the version that they were decided on. Returns the object as it is now.
///
/// # Errors
/// The API server refuses or does not answer, the name is another's, or the object has changed since: then a watch shows it soon.
pub async fn write(
    client: &Client,
    job: &ObservedJob,
    orders: &RunSpec,
    present: Option<&ObjectMeta>,
) -> Result<DynamicObject, Error> {
    let runs = runs(client, &job.namespace);
    let name = record_name(job);
    let mut object = DynamicObject::new(&name, &resource());
    object.data = json!({ "spec": orders });
    let params = PostParams::default();
    let answer = if let Some(present) = present {
        object.metadata = present.clone();
        runs.replace(&name, &params, &object).await
    } else {
        object.metadata = serde_json::from_value(metadata(job, &name)).map_err(kube::Error::SerdeError)?;
        runs.create(&params, &object).await
    };
    match answer {
        Ok(written) => Ok(written),
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            let found = runs.get_opt(&name).await?;
            found.map_or(Ok(()), |found| verify("VarunaRun", &found.metadata, job))?;
            Err(Error::Stale)
        }
        Err(error) => Err(Error::changed_or_refused(JobPart::Coordinator)(error)),
    }
}
