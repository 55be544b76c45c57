//! Orders to workers. They are idempotent and repeated, but only at intervals: an answer never triggers an order directly.

use super::turn::Turn;
use crate::message::{Order, Time};
use std::collections::BTreeMap;
use std::time::Duration;
use varuna_plan::WorkerId;

/// The kinds of orders. Orders of one kind to one worker are repeated at intervals.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum OrderKind {
    Prepare,
    Arm,
    Save,
    Tell,
    Go,
    LastStep,
    Fence,
    Release,
}

/// Which order was last sent to whom, and when.
pub(super) struct Outbox {
    repeat: Duration,
    /// For each worker and kind: the number that the order carried, and when it was sent.
    sent: BTreeMap<(WorkerId, OrderKind), (u64, Time)>,
}

impl Outbox {
    /// `repeat`: the shortest interval at which an order to one worker is repeated.
    pub(super) fn new(repeat: Duration) -> Self {
        Self {
            repeat,
            sent: BTreeMap::new(),
        }
    }

    /// Sends the order, unless it was sent a short while ago.
    pub(super) fn order(&mut self, turn: &mut Turn<'_>, to: WorkerId, order: Order) {
        let (kind, number) = match &order {
            Order::Prepare(plan) => (OrderKind::Prepare, plan.generation.0),
            Order::Arm { generation } => (OrderKind::Arm, generation.0),
            Order::Save { .. } => (OrderKind::Save, 0),
            Order::Tell { after } => (OrderKind::Tell, after.0),
            Order::Go { generation } => (OrderKind::Go, generation.0),
            Order::Fence { upto } => (OrderKind::Fence, upto.0),
            Order::LastStep { step } => (OrderKind::LastStep, step.0),
            Order::Release => (OrderKind::Release, 0),
        };
        let sent = self.sent.get(&(to, kind));
        if sent.is_some_and(|(n, at)| *n == number && turn.now < at.after(self.repeat)) {
            return;
        }
        self.sent.insert((to, kind), (number, turn.now));
        turn.send(to, order);
    }

    pub(super) fn has_sent(&self, to: WorkerId, kind: OrderKind) -> bool {
        self.sent.contains_key(&(to, kind))
    }

    pub(super) fn len(&self) -> usize {
        self.sent.len()
    }

    /// The worker has a new stream: what was sent on the old one may be lost.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.sent.retain(|(w, _), _| *w != worker);
    }
}
