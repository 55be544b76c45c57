//! `spec.failurePolicy`.

#[cfg(feature = "kubernetes")]
use crate::{limits, schema};
use serde::{Deserialize, Serialize};

/// Limits on crashes and failures, in a cluster.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FailurePolicySpec {
    /// Number of crashes of workers or init containers, without a committed step between them, after which the job fails. Crashes within
    /// ten seconds of each other count as one. Crashes on nodes that new pods avoid do not count. Default: `elasticity.maxWorkers` divided
    /// by 8 and rounded up, at least 6.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::CRASHES)))]
    pub max_crashes: Option<u32>,
    /// Number of failures on a node within an hour after which new pods avoid the node. A node is avoided only while workers run on other
    /// nodes. Default: 3.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::CRASHES)))]
    pub avoid_node_after: Option<u32>,
}
