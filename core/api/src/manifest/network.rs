//! `spec.network`.

#[cfg(feature = "kubernetes")]
use crate::{choices, schema};
use serde::{Deserialize, Serialize};

/// Connections between workers.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkSpec {
    /// `none` (where left out), for a private network or one that encrypts by itself, or `tls`: activations, gradients and states
    /// go over TLS 1.3, which costs both sides processor time for each byte.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(choices::ENCRYPTION.map(|(name, _)| name))))]
    pub encryption: Option<String>,
}
