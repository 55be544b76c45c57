//! Limits of the fields of a job, each in one place: the resolver checks them, and the CRD's schema states them.

use std::ops::{Range, RangeInclusive};

/// Steps, samples and seconds. Micro-batch indices and sample offsets are products of these, and must not overflow; 2^40 is more than years
/// of training need.
pub(crate) const COUNT: RangeInclusive<u64> = 1..=1 << 40;
/// Steps that may be 0.
pub(crate) const COUNT_OR_NONE: RangeInclusive<u64> = 0..=*COUNT.end();
/// Samples in a micro-batch; the resolver knows the batch that it divides.
#[cfg(feature = "kubernetes")]
pub(crate) const MICRO_BATCH: RangeInclusive<u32> = 1..=u32::MAX;
/// Signed 64-bit: an API server and libtorch know no other.
pub(crate) const SEED: RangeInclusive<u64> = 0..=i64::MAX.cast_unsigned();

pub(crate) use varuna_model::limits::{
    HEAD, INNER, LAYERS, NORM_EPSILON_MAX, ROPE_FACTOR_MAX, ROPE_THETA_MAX, SOFTCAP_MAX, VOCABULARY, WIDTH,
};
/// Probabilities, and decays of Adam's moments.
pub(crate) const FRACTION: Range<f64> = 0.0..1.0;
/// Share of the samples that is held out.
pub(crate) const VALIDATION_FRACTION: RangeInclusive<f64> = 0.0..=0.5;

/// Datasets of a blend: a server computes the cost of rules from the greatest length of a list.
pub(crate) const DATASETS_MAX: usize = 64;
/// The weight of a dataset is above 0 and at most this: it may be a number of tokens.
pub(crate) const WEIGHT_MAX: f64 = 1e15;

/// The learning rate is above 0 and at most this.
pub(crate) const LEARNING_RATE_MAX: f64 = 10.0;
/// The resolver knows the job's own learning rate.
#[cfg(feature = "kubernetes")]
pub(crate) const MIN_LEARNING_RATE: RangeInclusive<f64> = 0.0..=LEARNING_RATE_MAX;
/// Adam's epsilon is above 0 and at most this.
pub(crate) const EPSILON_MAX: f64 = 1.0;
/// Probability that a token is masked. With a smaller one, most batches would have no target.
pub(crate) const MASK_PROBABILITY: RangeInclusive<f64> = 0.001..=0.999;
/// A token of the largest vocabulary.
#[cfg(feature = "kubernetes")]
pub(crate) const MASK_TOKEN: RangeInclusive<u32> = 0..=*VOCABULARY.end() - 1;
/// Weight decay.
pub(crate) const WEIGHT_DECAY: RangeInclusive<f64> = 0.0..=10.0;
/// Gradient norm; 0 = no clipping.
pub(crate) const CLIP_NORM: RangeInclusive<f64> = 0.0..=1e6;
/// Steps without overflow before the loss scale is doubled.
pub(crate) const WINDOW: RangeInclusive<u32> = 1..=1_000_000;
/// Steps in a row that may be skipped.
pub(crate) const SKIP_LIMIT: RangeInclusive<u32> = 0..=1_000_000;
/// Loss scales: powers of two, so that scaling rounds nothing.
#[cfg(feature = "kubernetes")]
pub(crate) fn loss_scales() -> Vec<u64> {
    let all = std::iter::successors(Some(1u64), |scale| scale.checked_mul(2));
    all.take_while(|scale| varuna_plan::ScaleFactor::try_from(*scale).is_ok())
        .collect()
}

/// Bytes of what a micro-batch sends from a stage to the next: the length of a message between workers has 32 bits.
pub(crate) const BOUNDARY_BYTES: u64 = u32::MAX as u64;

/// Warm-up factor w: a stage runs w (P - 1 - s) warm-up forwards. A larger factor than this only keeps more activations, and no schedule
/// becomes faster.
pub(crate) const WARMUP_FACTOR: RangeInclusive<f64> = 1.0..=16.0;
/// Segments of a model: two for each layer, the embedding and the head. The resolver knows the job's own number.
#[cfg(feature = "kubernetes")]
pub(crate) const SEGMENTS: RangeInclusive<u32> = 1..=2 * *LAYERS.end() + 2;
/// Workers of a job in a cluster; without one there is no limit.
#[cfg(feature = "kubernetes")]
pub(crate) const WORKERS_OF_A_CLUSTER: RangeInclusive<u32> = 1..=100_000;
/// Workers of a group, which may have none.
pub(crate) const WORKERS_OF_A_GROUP: RangeInclusive<u32> = 0..=100_000;
/// Groups of workers.
pub(crate) const WORKER_GROUPS_MAX: usize = 16;
/// GPUs, and so workers, in a pod.
pub(crate) const GPUS_PER_POD: RangeInclusive<u32> = 1..=64;
/// Failures after which a job fails, or a node is avoided. The job's status keeps no more failures than this.
pub(crate) const CRASHES: RangeInclusive<u32> = 1..=50;
/// Threads of a worker.
pub(crate) const THREADS: RangeInclusive<u32> = 1..=1024;
/// Checkpoints to keep.
pub(crate) const KEEP: RangeInclusive<u32> = 1..=1_000_000;
/// At most one day.
pub(crate) const NOTICE_SECONDS: RangeInclusive<u32> = 0..=86_400;

/// Parameters, elements and operations of a segment of an exported model, and of all segments together: 16 bytes for each stay below 2^63.
pub(crate) const AMOUNT: RangeInclusive<u64> = 0..=1 << 50;
/// Segments of an exported model: a server computes the cost of rules from the greatest length of a list, and an object has 1.5 MiB.
pub(crate) const EXPORTED_SEGMENTS_MAX: usize = 1024;
/// Dimensions of what crosses a cut, without the batch.
pub(crate) const OUTPUT_DIMENSIONS_MAX: usize = 8;
/// Characters of a SHA-256 in hex.
pub(crate) const DIGEST: RangeInclusive<usize> = 64..=64;
/// Pattern of a digest: 64 hex digits.
#[cfg(feature = "kubernetes")]
pub(crate) const DIGEST_PATTERN: &str = "^[0-9a-f]{64}$";

/// Characters of a path, of the URI of checkpoints and of an image.
pub(crate) const TEXT: RangeInclusive<usize> = 1..=1024;
/// Network rules of a job, likewise.
pub(crate) const NETWORK_RULES_MAX: usize = 32;
/// Node signals of a job: a server computes the cost of rules from the greatest length of a list.
pub(crate) const NODE_SIGNALS_MAX: usize = 64;
/// Characters of a node signal: a qualified name of Kubernetes has a prefix of at most 253.
pub(crate) const NODE_SIGNAL: RangeInclusive<usize> = 1..=253;
/// Characters of the name of a controller, as those of a Job of Kubernetes.
pub(crate) const MANAGER: RangeInclusive<usize> = 3..=63;
/// Pattern of such a name: a domain, and a name below it.
#[cfg(feature = "kubernetes")]
pub(crate) const MANAGER_PATTERN: &str = "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9_.~/-]+$";
