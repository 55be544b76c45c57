//! `kubectl varuna`: jobs of a cluster, from their status and Events. kubectl finds this program under the name `kubectl-varuna`.
//!
//! It talks only to the API server, with the rights of its user. `save` and `scale` change the job, and the operator does the rest.

mod kubeconfig;
mod proxy;
mod text;

use crate::coordinator::runtime;
use crate::failure::Failure;
use crate::io::{print, print_line};
use clap::{Parser, Subcommand};
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, KubeconfigError};
use kube::{Api, Client, Config, ResourceExt as _};
use serde_json::{Value, json};
use std::error::Error as _;
use std::time::Duration;
use text::{JobEvent, JobView};
use varuna_api::JobPhase;
use varuna_api::crd::{SAVE_AT, Status, api_resource};
use varuna_wire::with_causes;

/// Events of a job that are asked for at a time.
const EVENTS_PER_PAGE: u32 = 500;
/// The number of answers after which no more Events are requested. In the long run the operator writes at most one in five seconds, and API
/// servers keep them for an hour by default.
const PAGES_MAX: usize = 20;
/// How long to wait for an API server that does not answer: kube would wait for ever.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Show and change Varuna's jobs in a cluster.
///
/// Exit codes: 0 success; 1 the cluster does not answer; 2 bad input: there is no such job, or the API server refuses.
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
    /// Show what a job is doing: phase, progress, how its time was spent, plan, checkpoint, latest recoveries.
    Status {
        /// Name of the job.
        job: String,
    },
    /// Show the current plan, and the ranks of each stage.
    Plan {
        /// Name of the job.
        job: String,
    },
    /// Show what has happened to a job: its Events, and its history, which is kept longer than Events.
    Events {
        /// Name of the job.
        job: String,
    },
    /// Ask for a checkpoint of the next step.
    Save {
        /// Name of the job.
        job: String,
    },
    /// Set the maximum number of workers of a job: from its minimum to 100,000, and no more than its worker groups have together.
    Scale {
        /// Name of the job.
        job: String,
        /// New maximum number of workers.
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
        let list = std::env::var_os("KUBECONFIG");
        let kubeconfig = kubeconfig::read(list.as_deref()).map_err(unusable)?;
        let named = proxy::of_context(&kubeconfig, options.context.as_deref());
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        let mut config = bounded(config.map_err(unusable)?);
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
        let mut status = object.data.get("status").cloned().unwrap_or_else(|| json!({}));
        text::make_printable(&mut status);
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
    async fn happened(&self, job: &JobView) -> Result<Vec<JobEvent>, Failure> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        let of_job = format!("involvedObject.kind=VarunaJob,involvedObject.uid={}", job.uid);
        let mut page = ListParams::default().fields(&of_job).limit(EVENTS_PER_PAGE);
        let mut all = Vec::new();
        // Events are listed by their names, which say nothing of time: any part of them may hold the newest.
        for _ in 0..PAGES_MAX {
            let listed = events.list(&page).await;
            let listed = listed.map_err(|e| self.failure(&job.name, e))?;
            all.extend(listed.items.iter().filter_map(happened));
            match listed.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => break,
            }
        }
        Ok(text::merged(&job.status, all.into_iter()))
    }

    async fn save(&self, name: &str) -> Result<(), Failure> {
        check_saves(&self.job(name).await?)?;
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
        let object = self.jobs().get(name).await.map_err(|e| self.failure(name, e))?;
        check_groups(name, workers, &object.data)?;
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
        failure(&self.namespace, job, error)
    }
}

/// Whether a checkpoint of the next step can be asked for.
fn check_saves(job: &JobView) -> Result<(), Failure> {
    let name = &job.name;
    if !job.saves {
        return Err(Failure::Input(format!(
            "{name} names no location for checkpoints (spec.checkpoint)"
        )));
    }
    match job.status.phase {
        Some(phase @ (JobPhase::Complete | JobPhase::Failed | JobPhase::Refused)) => Err(Failure::Input(
            format!("{name} is {phase}: it trains no further step that a checkpoint could be of"),
        )),
        _ => Ok(()),
    }
}

/// Whether the job's groups of workers have places for so many: the operator starts no more than these, however great the maximum is. The
/// API server checks everything else.
fn check_groups(name: &str, workers: u32, job: &Value) -> Result<(), Failure> {
    let groups = job.pointer("/spec/workerGroups").and_then(Value::as_array);
    let Some(groups) = groups.filter(|groups| !groups.is_empty()) else {
        return Ok(());
    };
    // A group without a maximum takes as many as the job may have.
    let places = groups.iter().try_fold(0u64, |sum, group| {
        let most = group.get("maxWorkers").and_then(Value::as_u64)?;
        Some(sum.saturating_add(most))
    });
    // Without a minimum it is the smallest pipeline.
    let least = ["/spec/elasticity/minWorkers", "/spec/pipeline/minDepth"];
    let least = least
        .iter()
        .find_map(|field| job.pointer(field)?.as_u64())
        .unwrap_or(1);
    match places.filter(|places| u64::from(workers) > *places) {
        Some(places) => Err(Failure::Input(format!(
            "spec.elasticity.maxWorkers: {workers} — minWorkers ({least}) to {places}: the worker groups of {name} have no more (spec.workerGroups[].maxWorkers)"
        ))),
        None => Ok(()),
    }
}

/// A configuration with which a command never waits for long. The user can call it again. kube would silently try fifteen times, in the end
/// with pauses of minutes.
fn bounded(mut config: Config) -> Config {
    config.read_timeout = Some(READ_TIMEOUT);
    config.default_retry = false;
    config
}

/// What an error of the API server means for a user who has named a job.
fn failure(namespace: &str, job: &str, error: kube::Error) -> Failure {
    let status = match error {
        kube::Error::Api(status) => status,
        // A program that the kubeconfig names for credentials, or its token.
        kube::Error::Auth(why) => {
            let why = with_causes(&why.to_string(), why.source());
            return Failure::Input(format!("the kubeconfig: {why}"));
        }
        other => {
            // Its own text is but "client error (Connect)".
            let why = with_causes(&other.to_string(), other.source());
            return Failure::Internal(format!("the cluster does not answer: {why}"));
        }
    };
    // An object that is missing is named in the details; an address that nobody serves has none.
    if status.code == 404 && status.details.is_none() {
        return Failure::Input("the cluster knows no VarunaJobs: Varuna is not installed there".into());
    }
    if status.code == 404 {
        return Failure::Input(format!("there is no VarunaJob {job} in namespace {namespace}"));
    }
    let code = status.code;
    let said = match status.message {
        said if said.is_empty() => format!("HTTP status {code}"),
        said => said,
    };
    // Too many requests, or trouble of its own: the same may be asked again later.
    match code == 429 || code >= 500 {
        true => Failure::Internal(format!("the cluster does not answer: {said}")),
        false => Failure::Input(said),
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

fn happened(event: &Event) -> Option<JobEvent> {
    let series = event
        .series
        .as_ref()
        .and_then(|s| s.last_observed_time.as_ref())
        .map(|t| t.0);
    let last = event.last_timestamp.as_ref().map(|t| t.0);
    let at = series
        .or(last)
        .or_else(|| event.event_time.as_ref().map(|t| t.0))?;
    Some(JobEvent {
        at,
        reason: text::printable(event.reason.as_deref().unwrap_or_default()),
        text: text::printable(event.message.as_deref().unwrap_or_default()),
    })
}

#[cfg(test)]
mod tests;
