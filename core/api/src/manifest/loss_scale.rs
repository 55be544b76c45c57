//! `spec.training.lossScale`.

#[cfg(feature = "kubernetes")]
use crate::{limits, schema};
#[cfg(feature = "kubernetes")]
use kube_derive::KubeSchema;
use serde::{Deserialize, Serialize};

/// Factor by which the loss is multiplied before the backward, so that small gradients do not become zero in fp16. Each value is a power of
/// two from 1 to 4294967296. A step with gradients that are not finite is skipped, and the scale is halved.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(
    feature = "kubernetes",
    derive(KubeSchema),
    x_kube(
        crates(kube_core = "::kube_core"),
        validation = ("!has(self.static) || !(has(self.initial) || has(self.minimum) || has(self.window))",
            "set either static, or initial, minimum and window: a static scale never changes"),
        validation = ("(has(self.minimum) ? self.minimum : 1) <= (has(self.initial) ? self.initial : 65536)",
            "make minimum at most initial"),
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LossScaleSpec {
    /// Loss scale of the first step, a power of two. Default: 65536.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(limits::loss_scales())))]
    pub initial: Option<u64>,
    /// Number of consecutive steps without overflow after which the scale is doubled. Default: 1000.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::WINDOW)))]
    pub window: Option<u32>,
    /// Minimum loss scale, a power of two. Default: 1.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(limits::loss_scales())))]
    pub minimum: Option<u64>,
    /// Loss scale of all steps, a power of two. It replaces `initial`, `window` and `minimum`.
    #[serde(rename = "static")]
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(limits::loss_scales())))]
    pub fixed: Option<u64>,
}
