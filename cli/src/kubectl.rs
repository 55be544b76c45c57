//! `kubectl varuna`: jobs of a cluster, from their status and Events. kubectl finds this program under the name `kubectl-varuna`.
//!
//! It talks with the API server alone, with the rights of whoever calls it: `save` and `scale` change the job, and the operator does the rest.

mod proxy;
mod text;

use crate::coordinator::runtime;
use crate::failure::Failure;
use crate::io::{print, print_line};
use clap::{Parser, Subcommand};
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Api, Client, Config, ResourceExt as _};
use serde_json::json;
use text::{Happened, JobView};
use varuna_api::crd::{SAVE_AT, Status, api_resource};

/// Events of a job that are asked for; the operator writes no more than one in five seconds for long.
const EVENTS_MAX: u32 = 500;

/// What varuna's jobs in a cluster are doing.
///
/// Exit codes: 0 success; 1 the cluster does not answer; 2 bad input: no such job, or the API server refuses.
#[derive(Parser)]
#[command(name = "kubectl varuna", bin_name = "kubectl varuna", version)]
struct Arguments {
    /// Namespace of the job [default: the context's].
    #[arg(long, short, global = true)]
    namespace: Option<String>,
    /// Context of the kubeconfig [default: the current one].
    #[arg(long, global = true)]
    context: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show what a job is doing: phase, progress, where its time went, plan, checkpoint, latest recoveries.
    Status {
        /// The job.
        job: String,
    },
    /// Show the plan in force, and the ranks of each stage.
    Plan {
        /// The job.
        job: String,
    },
    /// Show what has happened to a job: its Events, and its history, which outlives them.
    Events {
        /// The job.
        job: String,
    },
    /// Ask for a checkpoint of the next step.
    Save {
        /// The job.
        job: String,
    },
    /// Set the most workers that a job uses.
    Scale {
        /// The job.
        job: String,
        /// Number of workers.
        workers: u32,
    },
}

/// Runs the plugin with this process's command line.
pub(crate) fn run() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    runtime()?.block_on(async {
        let cluster = Cluster::reach(&arguments).await?;
        match &arguments.command {
            Command::Status { job } => {
                let view = cluster.job(job).await?;
                let events = cluster.happened(&view).await?;
                print(&text::status(&view, &events));
            }
            Command::Plan { job } => print(&text::plan(&cluster.job(job).await?)?),
            Command::Events { job } => {
                let view = cluster.job(job).await?;
                print(&text::events(&cluster.happened(&view).await?));
            }
            Command::Save { job } => cluster.save(job).await?,
            Command::Scale { job, workers } => cluster.scale(job, *workers).await?,
        }
        Ok(())
    })
}

/// An API server, and the namespace that is meant.
struct Cluster {
    client: Client,
    namespace: String,
}

impl Cluster {
    async fn reach(arguments: &Arguments) -> Result<Cluster, Failure> {
        let options = KubeConfigOptions {
            context: arguments.context.clone(),
            ..KubeConfigOptions::default()
        };
        let kubeconfig = Kubeconfig::read().map_err(unusable)?;
        let named = proxy::of_context(&kubeconfig, options.context.as_deref());
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        let mut config = config.map_err(unusable)?;
        proxy::set(&mut config, named.as_deref(), |name| std::env::var(name).ok())?;
        let namespace = arguments.namespace.clone();
        Ok(Cluster {
            namespace: namespace.unwrap_or_else(|| config.default_namespace.clone()),
            client: Client::try_from(config).map_err(|e| Failure::Input(format!("the kubeconfig: {e}")))?,
        })
    }

    fn jobs(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &api_resource())
    }

    async fn job(&self, name: &str) -> Result<JobView, Failure> {
        let object = self.jobs().get(name).await.map_err(|e| self.failure(name, e))?;
        let status = object.data.get("status").cloned().unwrap_or_else(|| json!({}));
        let status: Status = serde_json::from_value(status)
            .map_err(|e| Failure::Internal(format!("the status of {name} is not understood: {e}")))?;
        Ok(JobView {
            name: name.to_owned(),
            namespace: self.namespace.clone(),
            uid: object.uid().unwrap_or_default(),
            most_workers: object
                .data
                .pointer("/spec/elasticity/maxWorkers")
                .and_then(|n| n.as_i64()),
            saves: object.data.pointer("/spec/checkpoint").is_some(),
            status,
        })
    }

    /// The job's Events and its history, oldest first.
    async fn happened(&self, job: &JobView) -> Result<Vec<Happened>, Failure> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        let of_job = format!("involvedObject.kind=VarunaJob,involvedObject.uid={}", job.uid);
        let listed = events
            .list(&ListParams::default().fields(&of_job).limit(EVENTS_MAX))
            .await;
        let listed = listed.map_err(|e| self.failure(&job.name, e))?;
        Ok(text::merged(
            &job.status,
            listed.items.iter().filter_map(happened),
        ))
    }

    async fn save(&self, name: &str) -> Result<(), Failure> {
        if !self.job(name).await?.saves {
            return Err(Failure::Input(format!(
                "{name} names no location for checkpoints (spec.checkpoint)"
            )));
        }
        let now = Timestamp::now().to_string();
        let annotation = json!({ "metadata": { "annotations": { SAVE_AT: now } } });
        let patched = self
            .jobs()
            .patch(name, &PatchParams::default(), &Patch::Merge(&annotation))
            .await;
        patched.map_err(|e| self.failure(name, e))?;
        print_line(&format!(
            "a checkpoint of {name} is asked for; it is of the next step that the job trains"
        ));
        Ok(())
    }

    async fn scale(&self, name: &str, workers: u32) -> Result<(), Failure> {
        let replicas = json!({ "spec": { "replicas": workers } });
        let patched = self
            .jobs()
            .patch_scale(name, &PatchParams::default(), &Patch::Merge(&replicas))
            .await;
        patched.map_err(|e| self.failure(name, e))?;
        print_line(&format!(
            "{name} uses {workers} workers at most (spec.elasticity.maxWorkers)"
        ));
        Ok(())
    }

    fn failure(&self, job: &str, error: kube::Error) -> Failure {
        match error {
            kube::Error::Api(status) if status.is_not_found() => Failure::Input(format!(
                "there is no VarunaJob {job} in namespace {}",
                self.namespace
            )),
            kube::Error::Api(status) => Failure::Input(status.message),
            other => Failure::Internal(format!("the cluster does not answer: {other}")),
        }
    }
}

fn unusable(error: KubeconfigError) -> Failure {
    match error {
        KubeconfigError::ParseNoProxy(why) => Failure::Input(format!(
            "NO_PROXY or no_proxy: {why}: allowed are hosts, addresses and networks with commas between, and none that is empty"
        )),
        other => Failure::Input(format!("the kubeconfig: {other}")),
    }
}

fn happened(event: &Event) -> Option<Happened> {
    let series = event
        .series
        .as_ref()
        .and_then(|s| s.last_observed_time.as_ref())
        .map(|t| t.0);
    let last = event.last_timestamp.as_ref().map(|t| t.0);
    let at = series
        .or(last)
        .or_else(|| event.event_time.as_ref().map(|t| t.0))?;
    Some(Happened {
        at,
        reason: event.reason.clone().unwrap_or_default(),
        text: event.message.clone().unwrap_or_default(),
    })
}
