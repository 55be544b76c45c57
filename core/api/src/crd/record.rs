//! The custom resource `VarunaRecord`: what a coordinator persists, and the job with which its run began. Only the programs write it.

use k8s_openapi::ByteString;
use kube_derive::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Maximum number of characters of a record: an API server and its store accept objects of 1.5 MiB.
const RECORD_CHARACTERS_MAX: usize = 1_400_000;

/// Identity of the run to which this record belongs. The operator writes it; a coordinator may change only the status.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema, CustomResource)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core", kube = "::kube_derive"),
    attr = "x_kube(crates(kube_core = \"::kube_core\"))",
    group = "varuna.dev", version = "v1alpha1", kind = "VarunaRecord", plural = "varunarecords", namespaced,
    status = "RecordStatus", derive = "PartialEq",
    doc = "The record of a VarunaJob's coordinator. The operator and the coordinator use it; users do not change it.",
    printcolumn(name = "Version", json_path = ".status.version", type_ = "integer", description = "Version of the record: the number of writes."),
    printcolumn(name = "Age", json_path = ".metadata.creationTimestamp", type_ = "date", description = "Time since the run began."),
    validation = ("self.spec.uid == oldSelf.spec.uid", "a record belongs to one job: its uid cannot change"),
)]
pub struct RecordSpec {
    /// UID of the job.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
    /// The job with which the run was started, as a JSON document.
    #[schemars(length(min = 2, max = 500_000))]
    pub job: String,
}

/// The coordinator's record. The coordinator writes it, by compare-and-swap of the object's resourceVersion.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecordStatus {
    /// Version of the record. It grows by one with every write.
    pub version: i64,
    /// The record as JSON, compressed by gzip if it is long.
    #[schemars(schema_with = "record_bytes")]
    pub record: ByteString,
}

fn record_bytes(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string", "format": "byte", "maxLength": RECORD_CHARACTERS_MAX,
        "description": "The record as JSON, compressed by gzip if it is long.",
    })
}
