//! `spec.coordinator`.

#[cfg(feature = "kubernetes")]
use crate::{limits, schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Pod of the job's coordinator, in a cluster.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CoordinatorSpec {
    /// Service account of the coordinator's pod, which accesses the checkpoint location. If workers use the same account, they can write
    /// the job's record. Default: the service account of the workers' template, or one that is created for the job.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::text(limits::TEXT)))]
    pub service_account_name: Option<String>,
    /// Pod template of the coordinator. The operator completes it: from the workers' template it takes what gives access to the checkpoint
    /// location, which is the environment, the volumes and the pull secrets.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::open_object))]
    pub template: Option<Value>,
}
