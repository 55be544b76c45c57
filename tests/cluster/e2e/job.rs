//! A job in the cluster, which is watched from its creation to its end.

use crate::metrics;
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ApiResource, DynamicObject, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use varuna_api::crd::VarunaRun;
use varuna_cluster_tests::{documents, eventually, jobs};
use varuna_operator::decide::objects::{COORDINATOR_LABEL, worker_selector};

/// Interval at which the job's status is read.
const POLL_INTERVAL: Duration = Duration::from_millis(150);

/// The job of the tests. It is small, trains on real text, and runs long enough to be disturbed.
pub(crate) fn spec(name: &str) -> Value {
    json!({
        "apiVersion": "varuna.dev/v1alpha1", "kind": "VarunaJob", "metadata": { "name": name },
        "spec": {
            "model": { "layers": 4, "hiddenSize": 64, "heads": 4, "sequenceLength": 64, "vocabularySize": 320 },
            "data": { "path": "/data/kjv", "validationFraction": 0.05 },
            "training": {
                "globalBatchSize": 32, "steps": 1_000_000, "seed": 1,
                "optimizer": { "learningRate": 0.001, "warmupSteps": 20, "decaySteps": 5000 },
            },
            // At least two stages, so that a lost worker takes a part of the model with it.
            "pipeline": { "minDepth": 2 },
            "elasticity": { "minWorkers": 2, "maxWorkers": 4 },
            "workers": workers(),
            // The coordinator is on one fixed node, so that cases can add and remove nodes of workers.
            "coordinator": { "template": { "spec": { "nodeSelector": { "varuna.dev/node": "t2" } } } },
        },
    })
}

/// A job of one worker in one stage. These fields of `workers` replace the usual ones.
pub(crate) fn small(name: &str, workers: Value) -> Value {
    let mut document = spec(name);
    document["spec"]["pipeline"] = json!({});
    document["spec"]["elasticity"] = json!({ "minWorkers": 1, "maxWorkers": 1 });
    document["spec"]["workers"] = workers;
    document
}

/// Makes a job write checkpoints to this location, which workers open with these environment variables.
pub(crate) fn with_checkpoints(mut document: Value, uri: &str, variables: Vec<Value>) -> Value {
    document["spec"]["checkpoint"] = json!({ "uri": uri, "intervalSteps": 20 });
    document["spec"]["workers"]["template"]["spec"]["containers"] =
        json!([{ "name": "worker", "env": variables }]);
    document
}

/// The usual fields of `workers`.
pub(crate) fn workers() -> Value {
    json!({ "threads": 1 })
}

/// The job at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Observation {
    /// Time of the observation.
    pub(crate) at: Instant,
    /// Status of the job.
    pub(crate) status: Value,
}

impl Observation {
    fn number(&self, pointer: &str) -> i64 {
        self.status.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
    }

    /// Number of committed steps.
    pub(crate) fn step(&self) -> i64 {
        self.number("/step")
    }

    /// Number of the plan.
    pub(crate) fn generation(&self) -> i64 {
        self.number("/plan/generation")
    }

    /// Number of workers in the plan.
    pub(crate) fn members(&self) -> i64 {
        self.number("/plan/workers")
    }

    /// Number of attached workers, with or without a place in the plan.
    pub(crate) fn attached(&self) -> i64 {
        self.members() + self.number("/plan/idle")
    }

    /// Phase of the job.
    pub(crate) fn phase(&self) -> &str {
        self.status["phase"].as_str().unwrap_or("")
    }
}

/// What was observed of a job so far.
#[derive(Default)]
struct Seen {
    observations: Vec<Observation>,
    /// Step and loss, scraped from the coordinator.
    losses: Vec<(u64, f64)>,
}

/// A job that is being watched.
pub(crate) struct Job {
    /// Namespace of the job; no other job of the tests has it.
    pub(crate) namespace: String,
    /// A client with all rights.
    pub(crate) client: Client,
    operator: String,
    seen: Arc<Mutex<Seen>>,
    watch: JoinHandle<()>,
}

impl Drop for Job {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl Job {
    /// Creates the job `j` in a namespace and watches it. `operator` is the operator's namespace.
    ///
    /// # Errors
    /// The API server refuses the job.
    pub(crate) async fn create(
        client: &Client,
        namespace: &str,
        operator: &str,
        document: Value,
    ) -> Result<Job> {
        let document: DynamicObject = serde_json::from_value(document)?;
        jobs(client, namespace)
            .create(&PostParams::default(), &document)
            .await?;
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let watch = tokio::spawn(observe(client.clone(), namespace.to_owned(), Arc::clone(&seen)));
        Ok(Job {
            namespace: namespace.to_owned(),
            client: client.clone(),
            operator: operator.to_owned(),
            seen,
            watch,
        })
    }

    /// The newest observation.
    ///
    /// # Errors
    /// There was none.
    pub(crate) fn now(&self) -> Result<Observation> {
        let seen = self
            .seen
            .lock()
            .map_err(|_| anyhow::anyhow!("the watch panicked"))?;
        seen.observations
            .last()
            .cloned()
            .context("the job has not been seen")
    }

    /// Waits for an observation that satisfies a condition.
    ///
    /// # Errors
    /// No such observation came in time; the error has the last one.
    pub(crate) async fn until(
        &self,
        what: &str,
        wanted: impl Fn(&Observation) -> bool,
    ) -> Result<Observation> {
        eventually(what, || async {
            let now = self.now()?;
            ensure!(wanted(&now), "{}", now.status);
            Ok(now)
        })
        .await
    }

    /// The newest step in its status or in its coordinator's metrics. The status may be minutes behind.
    fn newest_step(&self) -> i64 {
        let scraped = self.losses().last().map_or(0, |(step, _)| *step);
        let reported = self.now().map_or(0, |n| n.step());
        reported.max(i64::try_from(scraped).unwrap_or(0))
    }

    /// Waits until this number of workers trains, and a few more steps are committed.
    ///
    /// # Errors
    /// This did not happen in time.
    pub(crate) async fn trains(&self, members: i64) -> Result<Observation> {
        let from = self.newest_step();
        let what = format!("{members} workers train beyond step {from}");
        self.until(&what, |l| {
            l.phase() == "Training" && l.members() == members && self.newest_step() > from + 3
        })
        .await
    }

    /// Checks that steps never went down, and that none was lost.
    ///
    /// # Errors
    /// A step went down or was lost; the error has the observations before and after.
    pub(crate) fn check_no_step_lost(&self) -> Result<()> {
        let seen = self
            .seen
            .lock()
            .map_err(|_| anyhow::anyhow!("the watch panicked"))?;
        ensure!(
            seen.observations.len() > 5,
            "only {} observations",
            seen.observations.len()
        );
        for pair in seen.observations.windows(2) {
            let (before, after) = (&pair[0], &pair[1]);
            ensure!(
                before.step() <= after.step(),
                "{} then {}",
                before.status,
                after.status
            );
        }
        let lost = seen.observations.last().map_or(0, |l| l.number("/stepsLost"));
        ensure!(lost == 0, "{lost} steps were lost");
        Ok(())
    }

    /// Steps and losses that were scraped.
    pub(crate) fn losses(&self) -> Vec<(u64, f64)> {
        self.seen.lock().map(|s| s.losses.clone()).unwrap_or_default()
    }

    /// Pods that are not being deleted and have not ended, by name.
    ///
    /// # Errors
    /// The API server does not answer.
    pub(crate) async fn pods(&self) -> Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut pods = pods
            .list(&ListParams::default().labels(&worker_selector("j")))
            .await?
            .items;
        pods.retain(|p| {
            let phase = p.status.as_ref().and_then(|s| s.phase.clone());
            p.metadata.deletion_timestamp.is_none()
                && !matches!(phase.as_deref(), Some("Failed" | "Succeeded"))
        });
        pods.sort_by_key(ResourceExt::name_any);
        Ok(pods)
    }

    /// The last step that its coordinator has reported in the `VarunaRun`.
    ///
    /// # Errors
    /// There is no report.
    pub(crate) async fn run_step(&self) -> Result<i64> {
        let resource = ApiResource::erase::<VarunaRun>(&());
        let runs = documents(&self.client, &self.namespace, &resource);
        let run = runs
            .list(&ListParams::default())
            .await?
            .items
            .pop()
            .context("a run")?;
        run.data["status"]["state"]["run"]["step"]
            .as_i64()
            .context("a step")
    }

    /// The pod of its coordinator; the newest, while one takes over from another.
    ///
    /// # Errors
    /// There is no such pod.
    pub(crate) async fn coordinator(&self) -> Result<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut all = pods
            .list(&ListParams::default().labels(COORDINATOR_LABEL))
            .await?
            .items;
        all.sort_by_key(|p| p.labels()[COORDINATOR_LABEL].parse::<i64>().unwrap_or(0));
        all.pop().context("no coordinator")
    }

    /// Waits for an Event with this reason whose note contains a text.
    ///
    /// # Errors
    /// There is none; the error has all Events.
    pub(crate) async fn event(&self, reason: &str, text: &str) -> Result<()> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        eventually(&format!("an Event {reason} with {text:?}"), || async {
            let all = events.list(&ListParams::default()).await?;
            let said = |e: &Event| {
                format!(
                    "{}: {}",
                    e.reason.clone().unwrap_or_default(),
                    e.note.clone().unwrap_or_default()
                )
            };
            let found = all
                .iter()
                .map(said)
                // An Event may join messages with several reasons.
                .any(|said| {
                    said.split_once(&format!("{reason}: "))
                        .is_some_and(|(_, after)| after.contains(text))
                });
            ensure!(found, "{:#?}", all.iter().map(said).collect::<Vec<_>>());
            Ok(())
        })
        .await
    }

    /// The sum of all series with this name and these labels, in the metrics of the leading operator and of the job's coordinator. A failed
    /// request is retried, because a busy machine may respond too late.
    ///
    /// # Errors
    /// No operator leads, or there is no such series.
    pub(crate) async fn metric(&self, name: &str, labels: &[&str]) -> Result<f64> {
        eventually(&format!("the metric {name} with {labels:?}"), || async {
            let mut text = metrics::of_operator(&self.client, &self.operator).await?;
            text += &metrics::of_coordinator(&self.client, &self.namespace).await?;
            metrics::sum(&text, name, labels)
        })
        .await
    }
}

async fn observe(client: Client, namespace: String, seen: Arc<Mutex<Seen>>) {
    let jobs = jobs(&client, &namespace);
    let mut ticks = 0_u32;
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        ticks += 1;
        let answer = tokio::time::timeout(Duration::from_secs(5), jobs.get("j")).await;
        if let (Ok(Ok(job)), Ok(mut seen)) = (answer, seen.lock()) {
            let observation = Observation {
                at: Instant::now(),
                status: job.data["status"].clone(),
            };
            seen.observations.push(observation);
        }
        if ticks.is_multiple_of(4)
            && let Ok(text) = metrics::of_coordinator(&client, &namespace).await
            && let Some(pair) = metrics::step_and_loss(&text, &namespace)
            && let Ok(mut seen) = seen.lock()
            && seen.losses.last() != Some(&pair)
        {
            seen.losses.push(pair);
        }
    }
}
