//! `spec.disruption`.

#[cfg(feature = "kubernetes")]
use crate::{limits, schema};
use serde::{Deserialize, Serialize};

/// Signals that announce the end of a worker.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DisruptionSpec {
    /// Prefixes of node taints, and types of node conditions, that announce the end of a node. They are added to those that the operator
    /// knows.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::set_of_texts(limits::NODE_SIGNALS_MAX, limits::NODE_SIGNAL)))]
    pub node_signals: Option<Vec<String>>,
    /// Seconds from a notice to the end of the worker. If the field is set, the worker trains until shortly before its end. If it is not
    /// set, the job continues without the worker as soon as possible, and the worker has 25 seconds to end. Default: not set.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::NOTICE_SECONDS)))]
    pub notice_seconds: Option<u32>,
}
