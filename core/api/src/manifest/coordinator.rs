//! `spec.coordinator`.

#[cfg(feature = "kubernetes")]
use crate::{limits, schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The pod of the job's coordinator, in a cluster.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CoordinatorSpec {
    /// Service account of the coordinator's pod, which opens the checkpoint location. Where left out, that of the workers' template, else one
    /// that is made for the job. An account that workers share lets them write the job's record.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::text(limits::TEXT)))]
    pub service_account_name: Option<String>,
    /// Pod template of the coordinator; the operator completes it, from the workers' template what opens a checkpoint location: environment,
    /// volumes and pull secrets.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::open_object))]
    pub template: Option<Value>,
}
