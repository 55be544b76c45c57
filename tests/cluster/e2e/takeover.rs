//! Measures how long a job has no coordinator, from what the coordinators themselves write. Events come some seconds later, so they cannot
//! be used for this.

use crate::job::Job;
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{ApiResource, ListParams};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use varuna_api::crd::{VarunaRecord, VarunaRun};
use varuna_cluster_tests::{documents, eventually};
use varuna_coordinator::record_format;
use varuna_operator::decide::objects::JOB_LABEL;

/// Maximum time until a coordinator whose process was killed is replaced.
pub(crate) const AFTER_KILL_MAX: Duration = Duration::from_secs(5);
/// Maximum time until a coordinator whose node was disconnected is replaced.
pub(crate) const AFTER_CUT_MAX: Duration = Duration::from_secs(15);

impl Job {
    /// Waits until the coordinator with this number leads the run, and returns the time from `since` until then. It leads once the job's
    /// record has its term, which no earlier coordinator can overwrite, and once its address is in the EndpointSlice, where workers find
    /// it. The first coordinator has term 1, and each that takes over has the next term. So if no takeover fails, the term equals the
    /// coordinator's number.
    ///
    /// # Errors
    /// The coordinator did not lead in time.
    pub(crate) async fn wait_for_leader(&self, number: i64, since: Instant) -> Result<Duration> {
        eventually(&format!("coordinator {number} leads"), || async {
            let term = self.term().await?;
            ensure!(
                i64::try_from(term)? == number,
                "the record is of term {term} after {:.1} s",
                since.elapsed().as_secs_f64()
            );
            let address = self.reported_address(number).await?;
            let shown = self.slice_addresses().await?;
            ensure!(shown == [address.ip().to_string()], "{shown:?} and not {address}");
            Ok(since.elapsed())
        })
        .await
    }

    /// The term of the coordinator that last wrote the job's record.
    async fn term(&self) -> Result<u64> {
        let records: Api<VarunaRecord> = Api::namespaced(self.client.clone(), &self.namespace);
        let record = records.list(&ListParams::default()).await?.items.pop();
        let status = record.and_then(|r| r.status).context("a record")?;
        Ok(record_format::decode(&status.record.0)?.term)
    }

    /// The address for workers that the coordinator with this number reports.
    async fn reported_address(&self, number: i64) -> Result<SocketAddr> {
        let runs = documents(
            &self.client,
            &self.namespace,
            &ApiResource::erase::<VarunaRun>(&()),
        );
        let run = runs.list(&ListParams::default()).await?.items.pop();
        let status = run.context("a run")?.data["status"].clone();
        ensure!(
            status["coordinator"] == number,
            "{} reports",
            status["coordinator"]
        );
        Ok(status["address"].as_str().context("an address")?.parse()?)
    }

    async fn slice_addresses(&self) -> Result<Vec<String>> {
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &self.namespace);
        let of_job = ListParams::default().labels(&format!("{JOB_LABEL}=j"));
        let slices = slices.list(&of_job).await?.items;
        Ok(slices
            .into_iter()
            .flat_map(|s| s.endpoints.unwrap_or_default())
            .flat_map(|e| e.addresses)
            .collect())
    }
}

/// Prints how long a job had no coordinator, under this name. Fails if that is longer than promised.
///
/// # Errors
/// The job had no coordinator for longer than promised.
pub(crate) fn within(name: &str, took: Duration, promised: Duration) -> Result<()> {
    println!("RESULT {name} {:.1}", took.as_secs_f64());
    ensure!(
        took <= promised,
        "another coordinator leads after {:.1} s, {} s at most were promised",
        took.as_secs_f64(),
        promised.as_secs()
    );
    Ok(())
}
