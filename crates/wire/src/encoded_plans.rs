//! Plans on their way to workers, each encoded once: for thousands of workers the same bytes are sent.

use crate::{plan, v1};
use bytes::Bytes;
use prost::Message as _;
use std::collections::VecDeque;
use std::sync::Arc;
use varuna_plan::Plan;

/// The plan in force and the one on its way: no others are sent.
const KEPT: usize = 2;

/// The newest plans that were sent, encoded.
#[derive(Default)]
pub struct EncodedPlans(VecDeque<(Arc<Plan>, Bytes)>);

impl EncodedPlans {
    /// The order to prepare for the plan, in its wire form; and whether the plan was not sent before.
    pub fn prepare(&mut self, plan: &Arc<Plan>, term: u64) -> (v1::Down, bool) {
        let known = self.0.iter().find(|(kept, _)| Arc::ptr_eq(kept, plan));
        if let Some((_, bytes)) = known {
            return (prepare(bytes.clone(), term), false);
        }
        let bytes = encode(plan);
        self.0.truncate(KEPT - 1);
        self.0.push_front((Arc::clone(plan), bytes.clone()));
        (prepare(bytes, term), true)
    }
}

pub(crate) fn encode(plan: &Plan) -> Bytes {
    plan::to_wire(plan).encode_to_vec().into()
}

fn prepare(plan: Bytes, term: u64) -> v1::Down {
    v1::Down {
        term,
        order: Some(v1::down::Order::Prepare(v1::Prepare { plan })),
    }
}
