//! The object of a `VarunaRun`, as the operator keeps it.

use crate::decide::ObservedRun;
use crate::object_document::ObjectDocument;
use crate::observe_run;
use kube::Resource;
use kube::api::ObjectMeta;
use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Serialize, Serializer};
use varuna_api::crd::{RunSpec, VarunaRun};

/// The object of a run. Any object can be read as one, whatever its orders and its report are: one that does not parse must not hide all others.
#[derive(Clone, PartialEq, Debug, Deserialize, kube_derive::Resource)]
#[resource(inherit = VarunaRun)]
#[serde(from = "ObjectDocument")]
pub struct RunObject {
    /// Metadata without managed fields.
    pub metadata: ObjectMeta,
    /// What its coordinator was ordered to do; none where this release cannot read it.
    pub orders: Option<RunSpec>,
    /// Report of the job's coordinator.
    pub reports: Option<ObservedRun>,
}

impl From<ObjectDocument> for RunObject {
    fn from(document: ObjectDocument) -> RunObject {
        let orders: Option<RunSpec> = serde_json::from_str(document.spec()).ok();
        let reports = orders
            .as_ref()
            .and_then(|orders| observe_run::reports(orders, document.status()));
        RunObject {
            metadata: document.metadata,
            orders,
            reports,
        }
    }
}

/// The object as the operator writes it. The reports belong to the coordinator.
impl Serialize for RunObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("VarunaRun", 4)?;
        object.serialize_field("apiVersion", &RunObject::api_version(&()))?;
        object.serialize_field("kind", &RunObject::kind(&()))?;
        object.serialize_field("metadata", &self.metadata)?;
        object.serialize_field("spec", &self.orders)?;
        object.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use varuna_api::crd::RunGoal;
    use varuna_plan::spare_copies::SpareCopyDecision;
    use varuna_plan::{Generation, Step, WorkerId};
    use varuna_protocol::coordinator::{LeftOutReason, RunMode, RunView, Snapshot, WorkerView};

    fn snapshot() -> Snapshot {
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
            left_out: None,
        };
        let workers = vec![worker];
        Snapshot { run, workers }
    }

    /// The object with these parts, read from the text that a server sends.
    fn read(spec: &Value, status: &Value) -> RunObject {
        let metadata = json!({ "name": "j", "namespace": "n", "managedFields": [{ "manager": "m" }] });
        let document = json!({ "metadata": metadata, "spec": spec, "status": status });
        serde_json::from_str(&document.to_string()).unwrap()
    }

    #[test]
    fn unknown_words_hide_nothing_else_of_a_report() {
        let mut state = serde_json::to_value(snapshot()).unwrap();
        state["run"]["mode"] = "hibernating".into();
        state["run"]["new"] = json!({});
        state["workers"][0]["phase"] = "Dreaming".into();
        state["workers"][0]["leftOut"] = json!({ "reason": "dreamy", "why": "it dreams", "since": 7 });
        let verdict = json!({ "reason": "keptInDreams", "why": "they are dreamt of" });
        state["run"]["spareCopies"] = json!({ "units": 2, "kept": 1, "inStep": 0, "verdict": verdict });
        let status = json!({ "coordinator": 2, "state": state, "loss": "much" });
        let run = read(&json!({ "uid": "u", "goal": "Run", "coordinator": 2 }), &status)
            .reports
            .unwrap();
        assert_eq!((run.step(), run.generation(), run.loss), (7, 3, None));
        assert_eq!(run.workers(true).collect::<Vec<_>>(), ["j-w1-u"]);
        let state = run.snapshot.unwrap();
        assert_eq!((state.run.mode, state.workers[0].phase), (RunMode::Unknown, None));
        let left_out = state.workers[0].left_out.as_ref().unwrap();
        assert_eq!(
            (left_out.reason, left_out.why.as_str()),
            (LeftOutReason::Unknown, "it dreams")
        );
        let copies = state.run.spare_copies.unwrap();
        let verdict = copies.verdict.unwrap();
        assert_eq!((copies.kept, verdict.reason), (1, SpareCopyDecision::Unknown));
        assert_eq!(verdict.why, "they are dreamt of");
    }

    #[test]
    fn any_object_can_be_read_as_a_run() {
        let orders = json!({ "uid": "u", "goal": "Run", "coordinator": 2 });
        let empty = Some(ObservedRun::default());
        for status in [json!(null), json!("nonsense"), json!({ "coordinator": 1 })] {
            assert_eq!(read(&orders, &status).reports, empty, "{status}");
        }
        for spec in [json!(null), json!("nonsense"), json!({ "goal": "Fly" })] {
            let run = read(&spec, &json!({ "coordinator": 2 }));
            assert_eq!((run.orders, run.reports), (None, None), "{spec}");
        }
        let without: RunObject = serde_json::from_str(r#"{ "metadata": { "name": "j" } }"#).unwrap();
        assert_eq!((without.orders, without.reports), (None, None));
    }

    #[test]
    fn a_run_is_written_with_its_orders_and_without_a_report() {
        let spec = json!({ "uid": "u", "goal": "Run", "coordinator": 2 });
        let run = read(&spec, &json!({ "coordinator": 2 }));
        assert_eq!(run.orders.as_ref().map(|orders| orders.goal), Some(RunGoal::Run));
        let written = serde_json::to_value(&run).unwrap();
        assert_eq!(written["kind"], "VarunaRun");
        assert_eq!(written["apiVersion"], "varuna.dev/v1alpha1");
        assert_eq!(written["metadata"], json!({ "name": "j", "namespace": "n" }));
        assert_eq!(
            (&written["spec"]["coordinator"], &written["status"]),
            (&json!(2), &json!(null))
        );
    }
}
