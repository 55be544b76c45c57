//! The queries of the chart's dashboard and alerts.

use super::{CaseRun, process_of};
use crate::prometheus::Prometheus;
use crate::world::OPERATOR;
use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use nix::sys::signal::{Signal, kill};
use serde_json::Value;
use varuna_cluster_tests::{eventually, root};

impl CaseRun<'_> {
    /// A Prometheus scrapes the run while a worker is killed. Each query of the dashboard must give data, and each alert must be evaluated.
    pub(super) async fn monitoring(&mut self) -> Result<()> {
        let before = self.saved().await?;
        let mut pods: Vec<(String, String)> = self
            .world
            .operators()
            .await?
            .iter()
            // The pod of `helm test` has ended.
            .filter(|p| p.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running"))
            .map(|p| (OPERATOR.to_owned(), p.name_any()))
            .collect();
        let coordinator = self.job.coordinator().await?.name_any();
        pods.push((self.job.namespace.clone(), coordinator));
        let folder = self
            .world
            .cluster
            .state()
            .context("a cluster of its own")?
            .join("prometheus");
        let prometheus = Prometheus::start(&self.world.cluster, &folder, &pods).await?;
        // A rate needs two scrapes of each series, before and after the event.
        eventually("the first scrapes", || async {
            let seen = prometheus.query("count(varuna_job_step)").await?;
            ensure!(!seen.is_empty(), "none");
            Ok(())
        })
        .await?;
        let pod = self.first_pod().await?;
        let workers = self.job.pods().await?;
        let worker = workers.iter().find(|p| p.name_any() == pod).context("the pod")?;
        kill(process_of(worker, "varuna-worker")?, Signal::SIGKILL)?;
        self.wait_for_next_plan(&before).await?;
        let expressions = expressions()?;
        eventually("every panel of the dashboard has data", || async {
            let mut empty = vec![];
            for (panel, expression) in &expressions {
                let expression = expression.replace("$namespace", &self.job.namespace);
                let expression = expression.replace("$job", ".*");
                if !has_number(&prometheus.query(&expression).await?) {
                    empty.push(format!("{panel}: {expression}"));
                }
            }
            ensure!(empty.is_empty(), "no data: {empty:#?}");
            Ok(())
        })
        .await?;
        let alerts = alerts()?;
        let sound = prometheus.healthy_alerts().await?;
        ensure!(alerts == sound, "evaluated {sound:?} of {alerts:?}");
        Ok(())
    }
}

/// Whether a query returned a number at least once. A quantile or a quotient of counts that do not change is NaN, which is no data.
fn has_number(answer: &[Value]) -> bool {
    let mut values = answer
        .iter()
        .filter_map(|series| series["value"][1].as_str()?.parse::<f64>().ok());
    values.any(f64::is_finite)
}

/// The queries of the dashboard, each with its panel.
fn expressions() -> Result<Vec<(String, String)>> {
    let text = std::fs::read_to_string(root().join("charts/varuna/dashboard.json"))?;
    let dashboard: Value = serde_json::from_str(&text)?;
    let panels = dashboard["panels"].as_array().context("panels")?;
    let mut found = vec![];
    for panel in panels {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let title = panel["title"].as_str().unwrap_or_default().to_owned();
            found.push((
                title,
                target["expr"].as_str().context("an expression")?.to_owned(),
            ));
        }
    }
    ensure!(found.len() > 10, "{} queries", found.len());
    Ok(found)
}

/// The names of the chart's alerts.
fn alerts() -> Result<Vec<String>> {
    let text = std::fs::read_to_string(root().join("charts/varuna/rules.yaml"))?;
    let rules: Value = serde_saphyr::from_str(&text)?;
    let rules = rules["groups"][0]["rules"].as_array().context("rules")?;
    rules
        .iter()
        .map(|rule| rule["alert"].as_str().map(str::to_owned).context("a name"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_not_a_number_is_no_data() {
        let series = |value: &str| json!({ "metric": {}, "value": [1_795_344_944.2, value] });
        assert!(!has_number(&[]));
        assert!(!has_number(&[series("NaN"), series("+Inf")]));
        assert!(has_number(&[series("NaN"), series("0")]));
    }
}
