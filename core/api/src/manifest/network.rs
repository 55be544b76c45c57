//! `spec.network`.

#[cfg(feature = "kubernetes")]
use crate::{choices, limits, schema};
#[cfg(feature = "kubernetes")]
use kube_derive::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Encryption between workers, and network policies for the job's pods.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(
    feature = "kubernetes",
    derive(KubeSchema),
    x_kube(
        crates(kube_core = "::kube_core"),
        validation = ("!has(self.extraIngress) || !has(self.policy) || self.policy != 'none'",
            "leave extraIngress out, or make policy ingress or isolated: with none, everyone can reach the pods"),
        validation = ("!has(self.extraEgress) || (has(self.policy) && self.policy == 'isolated')",
            "leave extraEgress out, or make policy isolated: with any other policy, pods can reach everything"),
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkSpec {
    /// Encryption of activations, gradients and states between workers. `none` is for a private network, or one that encrypts by itself.
    /// `tls` uses TLS 1.3: it costs both sides processor time for each byte, and all data goes over TCP, also between GPUs. Default:
    /// `none`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(choices::ENCRYPTION.map(|(name, _)| name))))]
    pub encryption: Option<String>,
    /// Network policies of the job's pods. `ingress`: only the job's own pods can reach its workers and its coordinator, and every client
    /// can reach the port for probes and metrics. `isolated`: in addition, the job's pods can reach only each other, DNS, HTTPS, the
    /// identity services of the clouds and, from the coordinator, the API server. `none`: no NetworkPolicy is created. Policies have an
    /// effect only if the cluster's network enforces them, and not for pods in the network of their node. Default: `ingress`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(choices::NETWORK_POLICIES.map(|(name, _)| name))))]
    pub policy: Option<String>,
    /// Additional rules for who can reach the job's pods, as in `spec.ingress` of a NetworkPolicy. Not allowed with `policy: none`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::open_objects(limits::NETWORK_RULES_MAX)))]
    pub extra_ingress: Option<Vec<Value>>,
    /// Additional rules for what the job's pods can reach, as in `spec.egress` of a NetworkPolicy. For example, a bucket that does not use
    /// port 443 needs one. Only allowed with `policy: isolated`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::open_objects(limits::NETWORK_RULES_MAX)))]
    pub extra_egress: Option<Vec<Value>>,
}
