//! The identity of training state, and the decision that advances it by one step (`docs/internals/protocol.md`).

use crate::ids::{Generation, Step};
use crate::loss_scale::{LossScaling, OptimizerProgress};
use serde::{Deserialize, Serialize};

/// The identity of a state: equal ids mean equal bits. Ordered by (generation that ran its last step, step).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "WrittenStateId")]
pub struct StateId {
    /// Generation that ran the last step.
    pub run_gen: Generation,
    /// Steps done.
    pub step: Step,
    /// Hash of all decisions so far.
    pub chain: Chain,
}

impl StateId {
    /// Upper limit of steps and generations: a greater number comes from a damaged name or message.
    pub const NUMBER_MAX: u64 = 1 << 48;

    /// Whether its numbers are possible in a run.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        self.step.0 <= StateId::NUMBER_MAX && self.run_gen.0 <= StateId::NUMBER_MAX
    }
}

/// An error: a document has a state or a decision that is impossible in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ImpossibleState {
    /// One of its numbers is too large.
    #[error("{0}: numbers up to {max} are allowed", max = StateId::NUMBER_MAX)]
    Number(StateId),
    /// A decision covers exactly one step: anything else would break the order of states.
    #[error("a decision that leads from {parent} to {id}: the step after the first is allowed")]
    Decision {
        /// The state before the step.
        parent: StateId,
        /// The state after the step.
        id: StateId,
    },
}

/// An identity as it is written, before its numbers are checked.
#[derive(Deserialize)]
struct WrittenStateId {
    run_gen: Generation,
    step: Step,
    chain: Chain,
}

impl TryFrom<WrittenStateId> for StateId {
    type Error = ImpossibleState;
    fn try_from(written: WrittenStateId) -> Result<StateId, ImpossibleState> {
        let WrittenStateId { run_gen, step, chain } = written;
        let id = StateId { run_gen, step, chain };
        id.is_possible().then_some(id).ok_or(ImpossibleState::Number(id))
    }
}

/// A 64-bit hash, serialized as 16 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Chain(pub u64);

impl Serialize for Chain {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&format_args!("{:016x}", self.0))
    }
}

impl<'de> Deserialize<'de> for Chain {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        u64::from_str_radix(&text, 16)
            .map(Chain)
            .map_err(serde::de::Error::custom)
    }
}

impl StateId {
    /// The state before the first step: every worker can make it from the job's seed.
    pub const INITIAL: StateId = StateId {
        run_gen: Generation(0),
        step: Step(0),
        chain: Chain(0),
    };
}

impl std::fmt::Display for StateId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "step {} of generation {} ({:016x})",
            self.step, self.run_gen, self.chain.0
        )
    }
}

/// The `loss` of a step whose batch has no target, in a [`UnitNorm`] and a [`Decision`]: a mean over nothing is no number. It is negative
/// zero, which no loss is ([`UnitNorm::new`]). Builds that do not know it add it up as the 0 that they had for such a step, so all builds
/// of a run name the same states.
pub const NO_LOSS: f64 = -0.0;

fn is_no_loss(loss: f64) -> bool {
    loss.to_bits() == NO_LOSS.to_bits()
}

/// What the norm exchange tells every member about one step. Besides a unit's own gradient it is all that the optimizer needs to take the
/// step, so any worker that has the reduced gradient and the decision gets the same bits.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(try_from = "WrittenDecision")]
pub struct Decision {
    /// The state that the step starts from.
    pub parent: StateId,
    /// The state that it leads to.
    pub id: StateId,
    /// Squared L2 norm of the whole gradient (each parameter once), summed in unit order.
    #[serde(serialize_with = "any_f64::serialize")]
    pub norm2: f64,
    /// Some gradient was not finite: the optimizer skips this step (the step still counts).
    pub overflow: bool,
    /// What the optimizer had counted at `parent`.
    pub before: OptimizerProgress,
    /// Sum of the samples' losses divided by the global batch size (nats per token), or [`NO_LOSS`].
    #[serde(serialize_with = "any_f64::serialize")]
    pub loss: f64,
    /// Mean loss on the held-out split at `parent`, where this step began with an evaluation (nats per token).
    #[serde(serialize_with = "any_f64::option::serialize")]
    pub eval_loss: Option<f64>,
    /// The generation to which all members switch after this step, if all are armed for a planned change.
    pub switch: Option<Generation>,
}

/// A decision as it is written, before it is checked.
#[derive(Deserialize)]
struct WrittenDecision {
    parent: StateId,
    id: StateId,
    #[serde(with = "any_f64")]
    norm2: f64,
    overflow: bool,
    /// Omitted in documents of older versions. It is used only for display: the optimizer has its own counters.
    #[serde(default)]
    before: OptimizerProgress,
    #[serde(with = "any_f64")]
    loss: f64,
    #[serde(with = "any_f64::option")]
    eval_loss: Option<f64>,
    switch: Option<Generation>,
}

impl TryFrom<WrittenDecision> for Decision {
    type Error = ImpossibleState;
    fn try_from(written: WrittenDecision) -> Result<Decision, ImpossibleState> {
        let WrittenDecision { parent, id, .. } = written;
        if id.step.0.checked_sub(1) != Some(parent.step.0) {
            return Err(ImpossibleState::Decision { parent, id });
        }
        Ok(Decision {
            parent,
            id,
            norm2: written.norm2,
            overflow: written.overflow,
            before: written.before,
            loss: written.loss,
            eval_loss: written.eval_loss,
            switch: written.switch,
        })
    }
}

/// One unit's contribution to the norm exchange, reported by the unit's first holder in pipeline order.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct UnitNorm {
    /// Squared L2 norm of the unit's reduced gradient.
    pub norm2: f64,
    /// A gradient of this unit is not finite.
    pub overflow: bool,
    /// Sum of sample losses that was carried by the unit's reduction (only the last segment's carries any), divided by the batch size; or
    /// [`NO_LOSS`], from the last segment.
    pub loss: f64,
    /// The same for the evaluation that preceded this step, divided by the number of evaluated samples.
    pub eval_loss: Option<f64>,
    /// What the optimizer had counted before this step: the same for all units.
    pub before: OptimizerProgress,
}

/// Maps every non-finite value to the same one, so that equal steps have equal decisions: which infinity or NaN results depends on the
/// order in which the hardware met several of them, and no NaN equals itself.
fn finite_or_infinity(value: f64) -> f64 {
    if value.is_finite() { value } else { f64::INFINITY }
}

impl UnitNorm {
    /// A unit's contribution: the sum of its gradient's squares, and the losses carried by its reduction.
    #[must_use]
    pub fn new(norm2: f64, loss: f64, eval_loss: Option<f64>, before: OptimizerProgress) -> UnitNorm {
        UnitNorm {
            norm2: finite_or_infinity(norm2),
            overflow: !(norm2.is_finite() && (loss.is_finite() || bug!(IgnoreLossOverflow))),
            // A loss may round to negative zero, which would be no loss.
            loss: finite_or_infinity(loss) + 0.0,
            eval_loss: eval_loss.map(finite_or_infinity),
            before,
        }
    }

    /// The same of a step whose batch has no target.
    #[must_use]
    pub fn without_loss(self) -> UnitNorm {
        UnitNorm {
            loss: NO_LOSS,
            ..self
        }
    }
}

impl Decision {
    /// The mean loss of the step's targets, in nats per token; none where its batch has no target.
    #[must_use]
    pub fn mean_loss(&self) -> Option<f64> {
        (!is_no_loss(self.loss)).then_some(self.loss)
    }

    /// What the optimizer has counted once this step is committed.
    #[must_use]
    pub fn after(&self, scaling: &LossScaling) -> OptimizerProgress {
        self.before.after(self.overflow, scaling)
    }

    /// Sums the units' parts in unit order (the order fixes the bits) and names the resulting state.
    /// `parts` must hold every unit of the layout once, in order.
    #[must_use]
    pub fn conclude(
        parent: StateId,
        run_gen: Generation,
        parts: &[UnitNorm],
        switch: Option<Generation>,
    ) -> Decision {
        let overflow = if bug!(OneOverflowIsNotEnough) {
            parts.iter().all(|p| p.overflow)
        } else {
            parts.iter().any(|p| p.overflow)
        };
        // The norm of a gradient that is not finite is meaningless.
        let norm2 = if overflow && !bug!(OverflowKeepsNorm) {
            f64::INFINITY
        } else {
            finite_or_infinity(parts.iter().map(|p| p.norm2).sum())
        };
        let summed = finite_or_infinity(parts.iter().map(|p| p.loss).sum());
        let is_none = parts.iter().any(|p| is_no_loss(p.loss)) && !bug!(ForgetNoLoss);
        let loss = if is_none { NO_LOSS } else { summed + 0.0 };
        let eval_loss = parts.iter().filter_map(|p| p.eval_loss).reduce(|a, b| a + b);
        let eval_loss = eval_loss.map(finite_or_infinity);
        let chain = [
            run_gen.0,
            parent.step.0,
            norm2.to_bits(),
            // As builds sum it that do not know NO_LOSS: the state's name must be the same there.
            summed.to_bits(),
            u64::from(overflow),
        ]
        .into_iter()
        .fold(if bug!(ChainForgetsPast) { 0 } else { parent.chain.0 }, mix);
        let id = StateId {
            run_gen,
            step: parent.step.next(),
            chain: Chain(chain),
        };
        Decision {
            parent,
            id,
            norm2,
            overflow,
            before: parts.first().map(|p| p.before).unwrap_or_default(),
            loss,
            eval_loss,
            switch,
        }
    }
}

/// Mixes `b` into the hash `a` (splitmix64's finalizer, Steele et al. 2014).
#[must_use]
pub fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.rotate_left(17) ^ b.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Doubles in documents. JSON has no NaN and no infinities, but the decision of a diverged step has them and is persisted in plans. So
/// finite values are written as numbers and others as the words `NaN`, `inf` and `-inf`. Binary formats keep the bits.
mod any_f64 {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(f64),
        Word(String),
    }

    impl From<f64> for Written {
        fn from(value: f64) -> Self {
            if value.is_finite() {
                Written::Number(value)
            } else {
                Written::Word(value.to_string())
            }
        }
    }

    impl Written {
        fn read<E: serde::de::Error>(self) -> Result<f64, E> {
            match self {
                Written::Number(value) => Ok(value),
                Written::Word(word) => word
                    .parse()
                    .ok()
                    .filter(|value: &f64| !value.is_finite())
                    .ok_or_else(|| {
                        E::custom(format!(
                            "{word:?} is no number; NaN, inf and -inf are the only words"
                        ))
                    }),
            }
        }
    }

    pub(super) fn serialize<S: Serializer>(value: &f64, s: S) -> Result<S::Ok, S::Error> {
        if s.is_human_readable() {
            Written::from(*value).serialize(s)
        } else {
            value.serialize(s)
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
        if d.is_human_readable() {
            Written::deserialize(d)?.read()
        } else {
            f64::deserialize(d)
        }
    }

    pub(super) mod option {
        use super::Written;
        use serde::{Deserialize, Deserializer, Serialize, Serializer};

        pub(in super::super) fn serialize<S: Serializer>(
            value: &Option<f64>,
            s: S,
        ) -> Result<S::Ok, S::Error> {
            if s.is_human_readable() {
                value.map(Written::from).serialize(s)
            } else {
                value.serialize(s)
            }
        }

        pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
            d: D,
        ) -> Result<Option<f64>, D::Error> {
            if d.is_human_readable() {
                Option::<Written>::deserialize(d)?.map(Written::read).transpose()
            } else {
                Option::deserialize(d)
            }
        }
    }
}

#[cfg(test)]
mod tests;
