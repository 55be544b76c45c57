//! The custom resource definition of `VarunaJob`, made from the very types of the job file.
//!
//! The schema is derived from [`crate::manifest::Spec`] and [`Status`]; limits, rules and their messages are in `rules`; what an
//! API server wants written otherwise is rewritten in `structural`. This module never talks to a cluster and knows no client:
//! `make crds` writes what it returns into `crds/varunajobs.yaml`, and a test holds the two equal.

mod rules;
mod status;
mod structural;

pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
pub use status::{CheckpointStatus, PlanStatus, Status, Suspending};

use crate::manifest::{API_VERSION, KIND, Spec};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// API group.
pub const GROUP: &str = "varuna.dev";
/// API version within the group.
pub const VERSION: &str = "v1alpha1";
/// Plural name, as in the resource's path.
pub const PLURAL: &str = "varunajobs";

/// A quantity: a number or a text.
pub(crate) fn int_or_string(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-int-or-string": true })
}

/// A mapping that belongs to somebody else and is kept as it is, so that no field of a newer Kubernetes is dropped.
pub(crate) fn open_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// The definition, as an object of `apiextensions.k8s.io/v1`, its keys in alphabetical order.
#[must_use]
pub fn definition() -> Value {
    debug_assert_eq!(API_VERSION, format!("{GROUP}/{VERSION}"));
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{PLURAL}.{GROUP}") },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND, "listKind": "VarunaJobList", "plural": PLURAL, "singular": "varunajob",
                "shortNames": ["vj"], "categories": ["all"],
            },
            "versions": [{
                "name": VERSION, "served": true, "storage": true,
                "schema": { "openAPIV3Schema": schema() },
                "additionalPrinterColumns": columns(),
                "subresources": {
                    "status": {},
                    "scale": {
                        "specReplicasPath": ".spec.elasticity.maxWorkers",
                        "statusReplicasPath": ".status.workers",
                        "labelSelectorPath": ".status.selector",
                    },
                },
            }],
        },
    });
    structural::sorted(&definition)
}

fn schema() -> Value {
    let mut spec = structural::of::<Spec>();
    for (path, limits) in rules::limits() {
        structural::merge(structural::property(&mut spec, path), limits);
    }
    for rule in rules::spec() {
        structural::add_rule(structural::property(&mut spec, rule.at), &rule);
    }
    let mut root = json!({
        "type": "object",
        "description": "A training run that goes on while its workers come and go.",
        "required": ["spec"],
        "properties": {
            "apiVersion": { "type": "string", "description": "varuna.dev/v1alpha1." },
            "kind": { "type": "string", "description": "VarunaJob." },
            "metadata": { "type": "object" },
            "spec": spec,
            "status": structural::of::<Status>(),
        },
    });
    for rule in rules::object() {
        structural::add_rule(&mut root, &rule);
    }
    root
}

/// What `kubectl get vj` answers: is it training, how fast, what did it lose.
fn columns() -> Value {
    let column = |name: &str, path: &str, kind: &str, priority: u8, description: &str| json!({ "name": name, "jsonPath": path, "type": kind, "priority": priority, "description": description });
    json!([
        column("Phase", ".status.phase", "string", 0, "What the job is doing."),
        column("Step", ".status.step", "integer", 0, "Steps committed."),
        column("Of", ".spec.training.steps", "integer", 0, "Steps of the run."),
        column("Workers", ".status.workers", "integer", 0, "Workers that run."),
        column(
            "Plan",
            ".status.plan.shape",
            "string",
            0,
            "Shape of the plan in force."
        ),
        column(
            "Step-ms",
            ".status.plan.observedStepMs",
            "integer",
            0,
            "Observed time of a step."
        ),
        column(
            "Loss",
            ".status.loss",
            "string",
            0,
            "Training loss of the last step."
        ),
        column(
            "Lost",
            ".status.stepsLost",
            "integer",
            0,
            "Steps that had to be trained again."
        ),
        column(
            "Age",
            ".metadata.creationTimestamp",
            "date",
            0,
            "Since the job was made."
        ),
        column(
            "Generation",
            ".status.plan.generation",
            "integer",
            1,
            "Number of the plan in force."
        ),
        column(
            "Checkpoint",
            ".status.checkpoint.newestStep",
            "integer",
            1,
            "Step of the newest checkpoint."
        ),
        column(
            "Message",
            ".status.message",
            "string",
            1,
            "What the job waits for, or why it failed."
        ),
    ])
}

#[cfg(test)]
mod tests;
