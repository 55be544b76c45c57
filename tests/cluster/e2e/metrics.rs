//! Metrics of the operator and of a job's coordinator, read through the API server.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use std::time::Duration;
use varuna_operator::decide::objects::{COORDINATOR_LABEL, JOB_LABEL};

/// The metrics of the leading operator.
///
/// # Errors
/// No operator leads.
pub(crate) async fn of_operator(client: &Client, operator: &str) -> Result<String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), operator);
    for pod in pods.list(&ListParams::default()).await? {
        let path = format!(
            "/api/v1/namespaces/{operator}/pods/{}:8081/proxy/metrics",
            pod.name_any()
        );
        let request = http::Request::get(path).body(vec![])?;
        // A pod that does not answer does not lead.
        if let Ok(Ok(text)) = tokio::time::timeout(Duration::from_secs(2), client.request_text(request)).await
            && text.lines().any(|l| l == "varuna_operator_leader 1")
        {
            return Ok(text);
        }
    }
    anyhow::bail!("no operator leads")
}

/// The metrics of the coordinator of the job `j`; its namespace may have other jobs.
///
/// # Errors
/// There is no coordinator, or it does not answer.
pub(crate) async fn of_coordinator(client: &Client, namespace: &str) -> Result<String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let selector = format!("{COORDINATOR_LABEL},{JOB_LABEL}=j");
    let coordinators = pods.list(&ListParams::default().labels(&selector)).await?;
    let newest = coordinators
        .iter()
        .max_by_key(|p| p.metadata.creation_timestamp.clone());
    let name = newest.context("no coordinator")?.name_any();
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}:8081/proxy/metrics");
    let request = http::Request::get(path).body(vec![])?;
    let answer = tokio::time::timeout(Duration::from_secs(2), client.request_text(request)).await;
    Ok(answer??)
}

/// The sum of all series with this name whose labels contain these texts.
///
/// # Errors
/// There is no such series.
pub(crate) fn sum(text: &str, name: &str, labels: &[&str]) -> Result<f64> {
    let all = text
        .lines()
        .filter(|l| l.split(['{', ' ']).next() == Some(name) && labels.iter().all(|label| l.contains(label)));
    let values: Vec<f64> = all.filter_map(|l| l.rsplit(' ').next()?.parse().ok()).collect();
    ensure!(!values.is_empty(), "no {name} with {labels:?}");
    Ok(values.iter().sum())
}

/// The job's step and loss.
pub(crate) fn step_and_loss(metrics: &str, namespace: &str) -> Option<(u64, f64)> {
    let value = |name: &str| {
        let head = format!("{name}{{namespace=\"{namespace}\",job_name=\"j\"}} ");
        metrics
            .lines()
            .find_map(|l| l.strip_prefix(&head)?.parse::<f64>().ok())
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count of steps"
    )]
    Some((value("varuna_job_step")? as u64, value("varuna_job_loss")?))
}
