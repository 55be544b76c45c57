//! The custom resource definitions: of `VarunaJob`, derived from the types of the job file, and of the documents that operator and
//! coordinator share.
//!
//! kube-derive makes the definition: names, columns and subresources from the attributes here, the schema from
//! [`crate::manifest::Spec`], whose fields have the limits and rules, and from [`Status`]. `make crds` writes the definitions into
//! `crds/`, and a test checks that these files are up to date. The resolver also checks what no rule can express: the operator parses each
//! job with `parse_job` and reports errors in a condition. The derived types are used for nothing else, because jobs are read untyped.

mod progress;
mod record;
mod run;
mod status;

pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
pub use progress::{HISTORY_MAX, HistoryEntry, RECOVERIES_MAX, Recovery, RecoveryTotals, TimeSpent};
pub use record::{RecordSpec, RecordStatus, VarunaRecord};
pub use run::{
    DOMAINS_BYTES_MAX, DOMAINS_MAX, MESSAGES_MAX, NOTICES_BYTES_MAX, NOTICES_MAX, RUN_BYTES_MAX,
    RunCheckpoints, RunEnd, RunGoal, RunMessage, RunSpec, RunStatus, VarunaRun, entry_bytes,
};
pub use status::{
    CheckpointStatus, CrashMoment, LEFT_OUT_MAX, LeftOutWorker, PlanStatus, RecentFailure, RolloutStatus,
    SpareCopiesStatus, Status, Suspending, WorkerGroupStatus,
};

use crate::manifest::Spec;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube_core::{ApiResource, CustomResourceExt};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Model, data and settings of a training run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, CustomResource)]
#[serde(transparent)]
#[kube(
    crates(kube_core = "::kube_core", kube = "::kube_derive"),
    attr = "x_kube(crates(kube_core = \"::kube_core\"))",
    group = "varuna.dev", version = "v1alpha1", kind = "VarunaJob", plural = "varunajobs", namespaced,
    shortname = "vj", category = "all", status = "Status",
    doc = "A training run that continues while its workers come and go.",
    scale(
        spec_replicas_path = ".spec.elasticity.maxWorkers",
        status_replicas_path = ".status.workers",
        label_selector_path = ".status.selector"
    ),
    // `kubectl get vj` shows whether the job trains, how fast, and what it has lost.
    printcolumn(name = "Phase", json_path = ".status.phase", type_ = "string", description = "Phase of the job: what it is doing."),
    printcolumn(name = "Step", json_path = ".status.progress", type_ = "string", description = "Committed steps and all steps of the run."),
    printcolumn(name = "Loss", json_path = ".status.loss", type_ = "string", description = "Training loss of the last committed step."),
    printcolumn(name = "Tok/s", json_path = ".status.tokensPerSecond", type_ = "integer", description = "Training speed, in tokens per second."),
    printcolumn(name = "Goodput", json_path = ".status.goodput", type_ = "string", description = "Share of the time spent on steps that were not lost later."),
    printcolumn(name = "Workers", json_path = ".status.workers", type_ = "integer", description = "Number of running workers."),
    printcolumn(name = "ETA", json_path = ".status.eta", type_ = "string", description = "Time until the last step at the current speed."),
    printcolumn(name = "Age", json_path = ".metadata.creationTimestamp", type_ = "date", description = "Time since the job was created."),
    printcolumn(name = "Plan", json_path = ".status.plan.shape", type_ = "string", priority = 1, description = "Shape of the current plan."),
    printcolumn(name = "Generation", json_path = ".status.plan.generation", type_ = "integer", priority = 1, description = "Number of the current plan."),
    printcolumn(name = "Step-ms", json_path = ".status.plan.observedStepMs", type_ = "integer", priority = 1, description = "Observed time of a step, in milliseconds."),
    printcolumn(name = "Lost", json_path = ".status.stepsLost", type_ = "integer", priority = 1, description = "Number of steps that had to be trained again."),
    printcolumn(name = "Checkpoint", json_path = ".status.checkpoint.newestStep", type_ = "integer", priority = 1, description = "Step of the newest complete checkpoint."),
    printcolumn(name = "Message", json_path = ".status.message", type_ = "string", priority = 1, description = "What the job waits for, or why it failed."),
    // Pods and services are named after the job, and their names have at most 63 characters.
    validation = ("size(self.metadata.name) <= 40", "choose a name of at most 40 characters: pods are named after the job"),
    validation = ("!self.metadata.name.contains('.')", "choose a name without dots: services are named after the job"),
)]
struct JobSpec(Spec);

/// The annotation of a job that requests a checkpoint: each new text requests one. Usually it is the time.
pub const SAVE_AT: &str = "varuna.dev/save-at";

/// The resource, for clients of an API server.
#[must_use]
pub fn api_resource() -> ApiResource {
    VarunaJob::api_resource()
}

/// The definition of `VarunaJob`, as an object of `apiextensions.k8s.io/v1`.
#[must_use]
pub fn definition() -> CustomResourceDefinition {
    adapted(VarunaJob::crd())
}

/// All definitions, in the order in which they are installed.
#[must_use]
pub fn definitions() -> [CustomResourceDefinition; 3] {
    [
        definition(),
        adapted(VarunaRun::crd()),
        adapted(VarunaRecord::crd()),
    ]
}

fn adapted(mut definition: CustomResourceDefinition) -> CustomResourceDefinition {
    let versions = definition.spec.versions.iter_mut();
    versions
        .filter_map(|v| v.schema.as_mut()?.open_api_v3_schema.as_mut())
        .for_each(adapt);
    definition
}

/// Changes parts of the schema that kube-derive writes differently from what our parser accepts, or that API servers warn of.
fn adapt(schema: &mut JSONSchemaProps) {
    if let Some(text) = &mut schema.description {
        *text = text.replace('\n', " ").replace('`', "");
    }
    // If a field is not nullable, a server drops a null. Otherwise the server keeps it, and our parser refuses it.
    schema.nullable = None;
    // A server warns of formats that it does not know (`uint32`). 64 signed bits are enough for all of our fields.
    if schema.format.as_ref().is_some_and(|f| f.starts_with("uint")) {
        schema.format = Some("int64".into());
    }
    schema
        .properties
        .iter_mut()
        .flat_map(|p| p.values_mut())
        .for_each(adapt);
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        adapt(items);
    }
}

#[cfg(test)]
mod tests;
