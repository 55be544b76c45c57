//! Converts the report of a coordinator to what decisions are made from. Pure.

use crate::decide::ObservedRun;
use crate::object_document::parse_known_fields;
use varuna_api::crd::{RunGoal, RunSpec, RunStatus};

/// What the coordinator in charge by these orders reports: none where none is wanted, and empty before it has reported. `status`: the
/// report, as JSON; what this release cannot read of it is left out.
#[must_use]
pub fn reports(orders: &RunSpec, status: &str) -> Option<ObservedRun> {
    if orders.goal == RunGoal::None {
        return None;
    }
    let status: RunStatus = parse_known_fields(status);
    if status.coordinator != orders.coordinator {
        return Some(ObservedRun::default());
    }
    Some(ObservedRun {
        snapshot: status.state,
        loss: status.loss,
        skipped_steps: status.skipped_steps,
        loss_scale: status.loss_scale,
        checkpoints: status.checkpoints,
        address: status.address.and_then(|a| a.parse().ok()),
        health_address: status.health_address.and_then(|a| a.parse().ok()),
        messages: status.messages,
        recoveries: status.recoveries,
        ended: status.end,
    })
}
