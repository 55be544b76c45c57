//! `spec.training.lossScale`.

#[cfg(feature = "kubernetes")]
use crate::{limits, schema};
#[cfg(feature = "kubernetes")]
use kube_derive::KubeSchema;
use serde::{Deserialize, Serialize};

/// By what the loss is multiplied before the backward, so that small gradients do not vanish in fp16. All of it is a power of two from 1
/// to 4294967296. A step whose gradients are not finite is skipped, and the scale halved.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(
    feature = "kubernetes",
    derive(KubeSchema),
    x_kube(
        crates(kube_core = "::kube_core"),
        validation = ("!has(self.static) || !(has(self.initial) || has(self.minimum) || has(self.window))",
            "give static, or initial, minimum and window: a static scale never changes"),
        validation = ("(has(self.minimum) ? self.minimum : 1) <= (has(self.initial) ? self.initial : 65536)",
            "make minimum at most initial"),
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LossScaleSpec {
    /// The scale of the first step; 65536 where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(limits::loss_scales())))]
    pub initial: Option<u64>,
    /// Steps in a row without overflow after which the scale is doubled; 1000 where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::WINDOW)))]
    pub window: Option<u32>,
    /// The scale is never halved below it; 1 where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(limits::loss_scales())))]
    pub minimum: Option<u64>,
    /// One scale for all steps, in place of the three others.
    #[serde(rename = "static")]
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(limits::loss_scales())))]
    pub fixed: Option<u64>,
}
