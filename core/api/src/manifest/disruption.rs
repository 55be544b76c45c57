//! `spec.disruption`.

#[cfg(feature = "kubernetes")]
use crate::{limits, schema};
use serde::{Deserialize, Serialize};

/// What announces the end of a worker.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DisruptionSpec {
    /// Prefixes of node taints and names of node conditions that announce the end of a node.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::set_of_texts(limits::NODE_SIGNALS_MAX, limits::NODE_SIGNAL)))]
    pub node_signals: Option<Vec<String>>,
    /// Seconds between a notice and the end of the worker, which trains until shortly before it; where left out, it is planned around at once, with 25 to go.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::NOTICE_SECONDS)))]
    pub notice_seconds: Option<u32>,
}
