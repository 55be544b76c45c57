//! Reads objects that arrive often, and keeps only the fields that are needed.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, OwnerReference, Time};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// All of [`ObjectMeta`] except the managed fields: they are never used here, are often the longest part of an object, and each of their
/// fields would become a separate value.
#[derive(Deserialize)]
#[serde(remote = "ObjectMeta", rename_all = "camelCase")]
pub(crate) struct WithoutManagedFields {
    annotations: Option<BTreeMap<String, String>>,
    creation_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    deletion_timestamp: Option<Time>,
    finalizers: Option<Vec<String>>,
    generate_name: Option<String>,
    generation: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    #[serde(skip)]
    managed_fields: Option<Vec<ManagedFieldsEntry>>,
    name: Option<String>,
    namespace: Option<String>,
    owner_references: Option<Vec<OwnerReference>>,
    resource_version: Option<String>,
    self_link: Option<String>,
    uid: Option<String>,
}

/// An object as the API server sends it. Spec and status are kept as text until they are read as their types: as values they would be made twice.
#[derive(Deserialize)]
pub(crate) struct ObjectDocument {
    #[serde(default, with = "WithoutManagedFields")]
    pub(crate) metadata: ObjectMeta,
    spec: Option<Box<RawValue>>,
    status: Option<Box<RawValue>>,
}

impl ObjectDocument {
    /// The spec as JSON; `null` if there is none.
    pub(crate) fn spec(&self) -> &str {
        self.spec.as_deref().map_or("null", RawValue::get)
    }

    /// The status as JSON; `null` if there is none.
    pub(crate) fn status(&self) -> &str {
        self.status.as_deref().map_or("null", RawValue::get)
    }
}

/// A JSON document with only those of its fields that this release can read.
pub(crate) fn parse_known_fields<T: DeserializeOwned + Default>(text: &str) -> T {
    serde_json::from_str(text)
        .unwrap_or_else(|_| readable_fields(serde_json::from_str(text).unwrap_or_default()))
}

/// A document, of which not all can be read, with only those of its fields that can.
pub(crate) fn readable_fields<T: DeserializeOwned + Default>(mut document: Value) -> T {
    if let Value::Object(fields) = &mut document {
        fields.retain(|name, field| serde_json::from_value::<T>(json!({ name: field })).is_ok());
    }
    serde_json::from_value(document).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_read_whole_but_for_what_managers_have_set() {
        let mut document = json!({
            "name": "j", "namespace": "n", "uid": "u", "resourceVersion": "7", "generation": 2, "generateName": "j-",
            "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-01T00:01:00Z", "deletionGracePeriodSeconds": 30,
            "annotations": { "a": "1" }, "labels": { "l": "1" }, "finalizers": ["example.com/f"], "selfLink": "s",
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": true }],
        });
        let all: ObjectMeta = serde_json::from_value(document.clone()).unwrap();
        document["managedFields"] =
            json!([{ "manager": "m", "operation": "Update", "fieldsV1": { "f:spec": {} } }]);
        document["newField"] = json!(1);
        assert_eq!(WithoutManagedFields::deserialize(document).unwrap(), all);
        let empty = WithoutManagedFields::deserialize(json!({})).unwrap();
        assert_eq!(empty, ObjectMeta::default());
    }
}
