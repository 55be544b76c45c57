//! Jobs and their documents, as an API server returns them.

use anyhow::{Context as _, Result, ensure};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client};
use varuna_api::crd::{VarunaRecord, api_resource};
use varuna_operator::decide::ObservedJob;
use varuna_operator::job_object::JobObject;

/// The jobs of a namespace.
#[must_use]
pub fn jobs(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &api_resource())
}

/// A job as the operator observes it, from which the names of its objects follow.
///
/// # Errors
/// There is no such job.
pub async fn observed(client: &Client, namespace: &str, name: &str) -> Result<ObservedJob> {
    let jobs: Api<JobObject> = Api::namespaced(client.clone(), namespace);
    Ok(observed_job(&jobs.get(name).await?))
}

/// A job's object as the operator observes it.
#[must_use]
pub fn observed_job(object: &JobObject) -> ObservedJob {
    object.observed(object.parsed_spec())
}

/// The record of the namespace's only job.
///
/// # Errors
/// There is no record, or there are several.
pub async fn record(client: &Client, namespace: &str) -> Result<VarunaRecord> {
    let records: Api<VarunaRecord> = Api::namespaced(client.clone(), namespace);
    let mut all = records.list(&ListParams::default()).await?.items;
    ensure!(all.len() == 1, "{} records", all.len());
    all.pop().context("one record")
}

/// The objects of a kind, as documents.
#[must_use]
pub fn documents(client: &Client, namespace: &str, resource: &ApiResource) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, resource)
}
