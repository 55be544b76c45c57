//! Coordinator to worker: orders, and the answers to a hello.

use crate::error::{WireError, need};
use crate::version::{VERSIONS, of_message};
use crate::{encoded_plans, v1};
use std::sync::Arc;
use v1::down::Order as Wire;
use varuna_plan::{Generation, StateId, Step};
use varuna_protocol::Order;

/// The answer to a hello that was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The job file, as written.
    pub job: String,
    /// Identity of the run.
    pub run: String,
    /// Fingerprint of the dataset; empty = not known.
    pub data_fingerprint: String,
}

/// What a coordinator sends, without its term.
#[derive(Clone, Debug, PartialEq)]
pub enum Downward {
    /// The worker is accepted.
    Welcome(Welcome),
    /// The worker is refused, and the stream ends.
    Refused {
        /// Reason, as text for users.
        reason: String,
        /// Whether trying again is useless.
        is_final: bool,
    },
    /// An order for the worker's `Member`.
    Order(Order),
}

impl Downward {
    /// The wire form.
    #[must_use]
    pub fn to_wire(&self, term: u64) -> v1::Down {
        let order = match self {
            Downward::Welcome(welcome) => Wire::Welcome(v1::Welcome {
                job: welcome.job.clone(),
                run: welcome.run.clone(),
                data_fingerprint: welcome.data_fingerprint.clone(),
                protocol_version: VERSIONS.newest,
                oldest_protocol_version: VERSIONS.oldest,
            }),
            Downward::Refused { reason, is_final } => Wire::Refused(v1::Refused {
                reason: reason.clone(),
                r#final: *is_final,
            }),
            Downward::Order(order) => order_to_wire(order),
        };
        v1::Down {
            term,
            order: Some(order),
        }
    }

    /// Reads a message from the wire: the term and what was sent.
    ///
    /// # Errors
    /// A missing field, or a value that is not allowed.
    pub fn from_wire(down: v1::Down) -> Result<(u64, Downward), WireError> {
        let generation = |g: u64, message| match g {
            0 => Err(WireError::value(
                message,
                "generation",
                0,
                "a number of a persisted plan, 1 or more",
            )),
            g => Ok(Generation(g)),
        };
        let meaning = match need(down.order, "Down", "order")? {
            Wire::Welcome(w) => {
                WireError::unless_common(of_message(w.oldest_protocol_version, w.protocol_version))?;
                Downward::Welcome(Welcome {
                    job: w.job,
                    run: w.run,
                    data_fingerprint: w.data_fingerprint,
                })
            }
            Wire::Refused(r) => Downward::Refused {
                reason: r.reason,
                is_final: r.r#final,
            },
            // A fence of 0 is sent before the first plan: it asks for an inventory and stops nothing.
            Wire::Fence(f) => Downward::Order(Order::Fence {
                upto: Generation(f.upto),
            }),
            Wire::Prepare(p) => Downward::Order(Order::Prepare(Arc::new(encoded_plans::decode(&p.plan)?))),
            Wire::Arm(a) => Downward::Order(Order::Arm {
                generation: generation(a.generation, "Arm")?,
            }),
            Wire::Go(g) => Downward::Order(Order::Go {
                generation: generation(g.generation, "Go")?,
            }),
            Wire::Save(s) => Downward::Order(Order::Save { after: Step(s.after) }),
            Wire::Tell(t) => Downward::Order(Order::Tell { after: Step(t.after) }),
            Wire::LastStep(l) => Downward::Order(Order::LastStep {
                step: last_step(l.step)?,
            }),
            Wire::Release(v1::Release {}) => Downward::Order(Order::Release),
        };
        Ok((down.term, meaning))
    }
}

fn last_step(step: u64) -> Result<Step, WireError> {
    if (1..=StateId::NUMBER_MAX).contains(&step) {
        return Ok(Step(step));
    }
    Err(WireError::value("LastStep", "step", step, "1 to 281474976710656"))
}

fn order_to_wire(order: &Order) -> Wire {
    match order {
        Order::Fence { upto } => Wire::Fence(v1::Fence { upto: upto.0 }),
        Order::Prepare(plan) => Wire::Prepare(v1::Prepare {
            plan: encoded_plans::encode(plan),
        }),
        Order::Arm { generation } => Wire::Arm(v1::Arm {
            generation: generation.0,
        }),
        Order::Go { generation } => Wire::Go(v1::Go {
            generation: generation.0,
        }),
        Order::Save { after } => Wire::Save(v1::Save { after: after.0 }),
        Order::Tell { after } => Wire::Tell(v1::Tell { after: after.0 }),
        Order::LastStep { step } => Wire::LastStep(v1::LastStep { step: step.0 }),
        Order::Release => Wire::Release(v1::Release {}),
    }
}
