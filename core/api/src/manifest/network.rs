//! `spec.network`.

#[cfg(feature = "kubernetes")]
use crate::{choices, limits, schema};
#[cfg(feature = "kubernetes")]
use kube_derive::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Connections between workers, and who may open them.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(
    feature = "kubernetes",
    derive(KubeSchema),
    x_kube(
        crates(kube_core = "::kube_core"),
        validation = ("!has(self.extraIngress) || !has(self.policy) || self.policy != 'none'",
            "leave extraIngress out, or make policy ingress or isolated: with none, anybody may come in"),
        validation = ("!has(self.extraEgress) || (has(self.policy) && self.policy == 'isolated')",
            "leave extraEgress out, or make policy isolated: with any other, pods may reach everything"),
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkSpec {
    /// `none` (where left out), for a private network or one that encrypts by itself, or `tls`: activations, gradients and states
    /// go over TLS 1.3, which costs both sides processor time for each byte. All of them then go over TCP, also between GPUs.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(choices::ENCRYPTION.map(|(name, _)| name))))]
    pub encryption: Option<String>,
    /// `ingress` (where left out), only the job's own pods may reach its workers and its coordinator, and anybody the port for probes and
    /// scrapes; `isolated`, the job's pods may also reach nothing but each other, DNS, HTTPS and the clouds' identity services; or `none`, no
    /// NetworkPolicy is made. It holds where the cluster's network enforces policies, and not for pods in their node's network.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(choices::NETWORK_POLICIES.map(|(name, _)| name))))]
    pub policy: Option<String>,
    /// Who else may reach the job's pods: rules as in `spec.ingress` of a NetworkPolicy.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::open_objects(limits::NETWORK_RULES_MAX)))]
    pub extra_ingress: Option<Vec<Value>>,
    /// What else the job's pods may reach with `policy: isolated`, as a bucket that is not at port 443: rules as in `spec.egress` of a
    /// NetworkPolicy.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::open_objects(limits::NETWORK_RULES_MAX)))]
    pub extra_egress: Option<Vec<Value>>,
}
