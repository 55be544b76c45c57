//! Fields whose value is one of a few names, and the meaning of each name. The resolver reads the names, and the CRD's schema lists them.

use crate::job::{Encryption, Precision, Restriction, WorkerDevice, WorkerTransport};
use crate::training::Sharding;
use serde_json::{Value, json};
use varuna_model::{Mlp, Norm, ParameterKind};
use varuna_plan::{Moments, Recompute, SpareCopies};

/// Schedule of a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// 1F1B.
    Plain,
    /// All forwards, then all backwards.
    Gpipe,
    /// 1F1B with several stages for each worker.
    Interleaved,
}

/// `spec.model.mlp`. The default is that of the preset.
pub(crate) const MLPS: [(&str, Mlp); 4] = [
    ("gelu", Mlp::Gelu),
    ("geluErf", Mlp::GeluErf),
    ("swiglu", Mlp::SwiGlu),
    ("relu2", Mlp::Relu2),
];

/// `spec.model.norm`. The default is that of the preset.
pub(crate) const NORMS: [(&str, Norm); 2] = [("layer", Norm::LayerNorm), ("rms", Norm::RmsNorm)];

/// How tokens learn of their position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PositionKind {
    /// A learned vector for each position.
    Learned,
    /// Rotations of queries and keys.
    Rotary,
}

/// `spec.model.positions`. The default is that of the preset.
pub(crate) const POSITIONS: [(&str, PositionKind); 2] = [
    ("learned", PositionKind::Learned),
    ("rotary", PositionKind::Rotary),
];

/// How the angles of rotary positions are scaled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RopeScaling {
    /// Slow rotations become slower, as in Llama 3.1 and 3.2.
    Llama3,
    /// No scaling.
    Off,
}

/// `spec.model.ropeScaling.kind`. The first is the default.
pub(crate) const ROPE_SCALINGS: [(&str, RopeScaling); 2] =
    [("llama3", RopeScaling::Llama3), ("none", RopeScaling::Off)];

/// What follows the warm-up of the learning rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Decay {
    /// Half a period of a cosine.
    Cosine,
    /// A straight line.
    Linear,
    /// The peak for a while, then a straight line.
    AfterStable,
    /// No decay.
    Never,
}

/// `spec.training.optimizer.kind`. The first is the default.
pub(crate) const OPTIMIZERS: [(&str, Moments); 3] = [
    ("adamw", Moments::Adam),
    ("sgd", Moments::Momentum),
    ("muon", Moments::Muon),
];

/// `spec.training.optimizer.schedule`. The first is the default.
pub(crate) const DECAYS: [(&str, Decay); 4] = [
    ("cosine", Decay::Cosine),
    ("linear", Decay::Linear),
    ("wsd", Decay::AfterStable),
    ("constant", Decay::Never),
];

/// `spec.training.optimizer.sharding`. The first is the default: with one or two pipelines, sharding saves no memory.
pub(crate) const SHARDINGS: [(&str, Sharding); 2] = [("none", Sharding::Off), ("zero1", Sharding::Zero1)];

/// `spec.training.optimizer.weightDecayOn`.
pub(crate) const PARAMETER_KINDS: [(&str, ParameterKind); 4] = [
    ("matrices", ParameterKind::Matrix),
    ("embeddings", ParameterKind::Embedding),
    ("biases", ParameterKind::Bias),
    ("norms", ParameterKind::Norm),
];

/// `spec.pipeline.schedule`. The first is the default.
pub(crate) const SCHEDULES: [(&str, Order); 3] = [
    ("1f1b", Order::Plain),
    ("gpipe", Order::Gpipe),
    ("interleaved", Order::Interleaved),
];

/// `spec.pipeline.recompute`. The first is the default.
pub(crate) const RECOMPUTE: [(&str, &[Recompute]); 4] = [
    ("auto", &[Recompute::None, Recompute::Selective, Recompute::Full]),
    ("none", &[Recompute::None]),
    ("selective", &[Recompute::Selective]),
    ("full", &[Recompute::Full]),
];

/// `spec.network.encryption`. The first is the default: workers on one machine or on a private network would pay for encryption that
/// nobody asked for.
pub(crate) const ENCRYPTION: [(&str, Encryption); 2] = [("none", Encryption::None), ("tls", Encryption::Tls)];

/// `spec.network.policy`. The first is the default: only the job needs to reach its workers, but the destinations that pods need (a bucket,
/// a proxy, an identity service) differ from cloud to cloud.
pub(crate) const NETWORK_POLICIES: [(&str, Restriction); 3] = [
    ("ingress", Restriction::Ingress),
    ("isolated", Restriction::IngressAndEgress),
    ("none", Restriction::None),
];

/// `spec.workers.device`. The first is the default.
pub(crate) const DEVICES: [(&str, WorkerDevice); 3] = [
    ("auto", WorkerDevice::Auto),
    ("cpu", WorkerDevice::Cpu),
    ("cuda", WorkerDevice::Cuda),
];

/// `spec.workers.transport`. The first is the default.
pub(crate) const TRANSPORTS: [(&str, WorkerTransport); 3] = [
    ("auto", WorkerTransport::Auto),
    ("nccl", WorkerTransport::Nccl),
    ("tcp", WorkerTransport::Tcp),
];

/// `spec.elasticity.spareCopies`. The first is the default: spare copies take memory and a part of each link, and most jobs have
/// several holders of each unit. A number or a name, as in the manifest.
pub(crate) fn spare_copies() -> [(Value, SpareCopies); 3] {
    [
        (json!(0), SpareCopies::Off),
        (json!(1), SpareCopies::One),
        (json!("auto"), SpareCopies::Auto),
    ]
}

/// `spec.training.precision`. The first is the default.
pub(crate) const PRECISIONS: [(&str, Precision); 3] = [
    ("fp32", Precision::Fp32),
    ("bf16", Precision::Bf16),
    ("fp16", Precision::Fp16),
];
