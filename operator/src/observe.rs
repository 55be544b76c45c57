//! Converts the cluster's objects to what decisions are made from. Pure.

use crate::decide::{ObservedNode, ObservedRun, Settings};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::DynamicObject;
use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use varuna_api::crd::{RunGoal, RunSpec, RunStatus};

/// The orders and the reports in a `VarunaRun`. Reports are those of the coordinator in charge: none where none is wanted, and empty before it
/// has reported. What this release cannot read of a report is left out.
#[must_use]
pub fn run(object: &DynamicObject) -> (Option<RunSpec>, Option<ObservedRun>) {
    let Some(Ok(orders)) = object.data.get("spec").map(RunSpec::deserialize) else {
        return (None, None);
    };
    if orders.goal == RunGoal::None {
        return (Some(orders), None);
    }
    let status: RunStatus = object.data.get("status").map(lenient).unwrap_or_default();
    if status.coordinator != orders.coordinator {
        return (Some(orders), Some(ObservedRun::default()));
    }
    let run = ObservedRun {
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
    };
    (Some(orders), Some(run))
}

/// A document with only those of its fields that this release can read.
pub(crate) fn lenient<T: DeserializeOwned + Default>(value: &Value) -> T {
    if let Ok(whole) = T::deserialize(value) {
        return whole;
    }
    let mut value = value.clone();
    if let Value::Object(fields) = &mut value {
        fields.retain(|name, field| serde_json::from_value::<T>(json!({ name: field })).is_ok());
    }
    serde_json::from_value(value).unwrap_or_default()
}

/// A node.
#[must_use]
pub fn node(node: &Node, settings: &Settings) -> ObservedNode {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_ref());
    let conditions = node
        .status
        .as_ref()
        .and_then(|s| s.conditions.as_deref())
        .unwrap_or_default();
    ObservedNode {
        // A node that says nothing of itself is new.
        ready: conditions
            .iter()
            .all(|c| c.type_ != "Ready" || c.status == "True"),
        taints: taints.into_iter().flatten().map(|t| t.key.clone()).collect(),
        conditions: conditions
            .iter()
            .filter(|c| c.status == "True")
            .map(|c| c.type_.clone())
            .collect(),
        domain: settings.domain(node.labels()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::api::ApiResource;
    use varuna_plan::{Generation, Step, WorkerId};
    use varuna_protocol::coordinator::{RunMode, RunView, Snapshot, WorkerView};

    #[test]
    fn words_that_only_a_later_release_knows_hide_nothing_else_of_a_report() {
        let run = RunView {
            mode: RunMode::Training,
            term: 1,
            generation: Generation(3),
            next: None,
            step: Step(7),
            last_step: Step(10),
            plan: None,
            predicted_ms: None,
            observed_ms: None,
            compute_factor: None,
            members: 1,
            min_workers: 1,
            max_workers: None,
            spare_copies: None,
        };
        let worker = WorkerView {
            id: WorkerId(1),
            name: "j-w1-u".into(),
            node: "n".into(),
            up: true,
            phase: None,
            generation: Generation(3),
            step: Step(7),
            draining: false,
            speed: 1.0,
            segments: vec![],
            pipeline: Some(0),
        };
        let workers = vec![worker];
        let mut state = serde_json::to_value(Snapshot { run, workers }).unwrap();
        state["run"]["mode"] = "hibernating".into();
        state["run"]["new"] = json!({});
        state["workers"][0]["phase"] = "Dreaming".into();
        let status = json!({ "coordinator": 2, "state": state, "loss": "much" });
        let mut object = DynamicObject::new("j", &ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&()));
        object.data = json!({ "spec": { "uid": "u", "goal": "Run", "coordinator": 2 }, "status": status });
        let (_, run) = super::run(&object);
        let run = run.unwrap();
        assert_eq!((run.step(), run.generation(), run.loss), (7, 3, None));
        assert_eq!(run.workers(true).collect::<Vec<_>>(), ["j-w1-u"]);
        let state = run.snapshot.unwrap();
        assert_eq!((state.run.mode, state.workers[0].phase), (RunMode::Unknown, None));
    }
}
