//! `spec.failurePolicy`.

#[cfg(feature = "kubernetes")]
use crate::{limits, schema};
use serde::{Deserialize, Serialize};

/// What crashing workers do to the job, in a cluster.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FailurePolicySpec {
    /// The job fails after so many crashes without a committed step between them. Crashes within ten seconds of each other count as one,
    /// and those on a node that new pods avoid do not count. Where left out: 6, and one more for each 8 workers above 48.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::CRASHES)))]
    pub max_crashes: Option<u32>,
    /// New pods avoid a node for an hour after so many failures on it, while workers run well on other nodes; 3 where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::CRASHES)))]
    pub avoid_node_after: Option<u32>,
}
