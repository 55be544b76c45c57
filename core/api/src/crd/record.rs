//! The custom resource `VarunaRecord`: what a coordinator persists, and the job as its run began. Written by the programs alone.

use k8s_openapi::ByteString;
use kube_derive::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Most characters of a record: an API server and its store take objects of 1.5 MiB.
const RECORD_CHARACTERS_MAX: usize = 1_400_000;

/// Which run this is the record of. Written by the operator; a coordinator may change the status alone.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema, CustomResource)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core", kube = "::kube_derive"),
    attr = "x_kube(crates(kube_core = \"::kube_core\"))",
    group = "varuna.dev", version = "v1alpha1", kind = "VarunaRecord", plural = "varunarecords", namespaced,
    status = "RecordStatus", derive = "PartialEq",
    doc = "The record of a VarunaJob's coordinator: a document of the operator and the coordinator, not for users.",
    printcolumn(name = "Version", json_path = ".status.version", type_ = "integer", description = "Writes of the record."),
    printcolumn(name = "Age", json_path = ".metadata.creationTimestamp", type_ = "date", description = "Since the run began."),
    validation = ("self.spec.uid == oldSelf.spec.uid", "a record belongs to one job: its uid cannot change"),
)]
pub struct RecordSpec {
    /// The job's uid.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
    /// The job that the run was started with, as a JSON document.
    #[schemars(length(min = 2, max = 500_000))]
    pub job: String,
}

/// The record. Written by the coordinator, by compare-and-swap of the object's resourceVersion.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecordStatus {
    /// The record's own version: it grows by one with every write.
    pub version: i64,
    /// The record: JSON, compressed by gzip where that is long.
    #[schemars(schema_with = "record_bytes")]
    pub record: ByteString,
}

fn record_bytes(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string", "format": "byte", "maxLength": RECORD_CHARACTERS_MAX,
        "description": "The record: JSON, compressed by gzip where that is long.",
    })
}
