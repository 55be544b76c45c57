//! The documents that the operator and a job's coordinator share, each read like its reader does. Anybody who may write in the namespace,
//! or another release, may have changed them.

use super::messages::status_document;
use super::{MORE, Seeds, json, round_trip};
use crate::{Form, Target};
use kube::api::DynamicObject;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use varuna_api::crd::{Recovery, RunCheckpoints, RunEnd, RunMessage, RunSpec, RunStatus, Status, Time};
use varuna_api::parse_job;
use varuna_cluster_coordinator::orders::{Orders, orders_of};
use varuna_cluster_coordinator::report::ReportedPart;
use varuna_operator::decide::{
    Observed, ObservedJob, ObservedNode, ObservedPod, ObservedQueue, ObservedRun, PodPhase, Settings, decide,
    report,
};
use varuna_operator::run_object::RunObject;
use varuna_plan::WorkerId;
use varuna_protocol::coordinator::{Snapshot, WorkerView};

/// The present time, in seconds since 1970.
const NOW: i64 = 1_800_000_000;
const JOB: &str = "apiVersion: varuna.dev/v1alpha1
kind: VarunaJob
metadata: {name: j}
spec:
  model: {preset: gpt2-tiny}
  data: {path: d}
  training: {globalBatchSize: 8, steps: 20, optimizer: {learningRate: 1e-3}}
  elasticity: {minWorkers: 1, maxWorkers: 4}
";
/// Maximum number of pods of a job: the operator compares each of them with all others.
const PODS: usize = 64;

pub(super) const RUN: Target = Target {
    name: "cluster-run",
    what: "a VarunaRun (JSON): orders as a coordinator reads them, reports as the operator does, and what it decides from them",
    form: Form::Json,
    words: &[
        "Run",
        "Save",
        "Stop",
        "None",
        "Done",
        "Stopped",
        "StateLost",
        "Diverged",
        "CheckpointsTaken",
        "Failed",
        "training",
        "0000000000000001",
        "9223372036854775807",
        "18446744073709551615",
        "10.0.0.1:7070",
        "j-w1",
    ],
    memory: MORE,
    seeds,
    run,
};

fn orders(goal: &str) -> Value {
    json!({
        "uid": "u", "goal": goal, "coordinator": 2, "newestCoordinator": 3, "steps": 20, "saveAt": "now",
        "leaving": ["j-w2"], "ended": ["j-w3"], "domains": {"good": "zone-a/block-3"},
    })
}

fn document(goal: &str, status: &RunStatus) -> Vec<u8> {
    json(&json!({
        "apiVersion": "varuna.dev/v1alpha1", "kind": "VarunaRun", "metadata": {"name": "j", "resourceVersion": "7"},
        "spec": orders(goal), "status": status,
    }))
}

/// The status of a run with one attached worker, and one that was lost.
fn snapshot() -> Snapshot {
    let status = status_document();
    let view = status.workers[0].view.clone();
    let lost = WorkerView {
        id: WorkerId(2),
        name: "j-w2".into(),
        up: false,
        phase: None,
        ..view.clone()
    };
    let attached = WorkerView {
        name: "j-w1".into(),
        ..view
    };
    Snapshot {
        run: status.run,
        workers: vec![attached, lost],
    }
}

fn seeds() -> Seeds {
    let moment: Time = serde_json::from_str(r#""2026-11-25T10:00:00Z""#).expect("a time");
    let training = RunStatus {
        coordinator: 2,
        address: Some("10.0.0.1:7070".into()),
        health_address: Some("10.0.0.1:8081".into()),
        state: Some(snapshot()),
        loss: Some(3.5),
        skipped_steps: Some(1),
        loss_scale: Some(65_536),
        checkpoints: Some(RunCheckpoints {
            newest_step: Some(4),
            newest_at: Some(moment.clone()),
            failing: Some("no answer within 30 s".into()),
            stale: true,
        }),
        messages: vec![RunMessage {
            number: 9,
            resumed: true,
            text: "training goes on".into(),
        }],
        recoveries: vec![Recovery {
            at: moment,
            cause: "lost".into(),
            workers_lost: 1,
            pause_ms: 420,
            steps_lost: 3,
        }],
        end: None,
    };
    let ended = |end| RunStatus {
        end: Some(end),
        ..training.clone()
    };
    vec![
        ("training", document("Run", &training)),
        ("saving", document("Save", &training)),
        ("begun", document("Run", &RunStatus::default())),
        ("done", document("Run", &ended(RunEnd::Done))),
        (
            "state-lost",
            document("Run", &ended(RunEnd::StateLost("segments 2..4".into()))),
        ),
        (
            "failed",
            document("Stop", &ended(RunEnd::Failed("no memory".into()))),
        ),
        ("suspended", document("None", &training)),
    ]
}

fn run(input: &[u8]) -> Result<String, String> {
    let document: Value = serde_json::from_slice(input).map_err(|e| e.to_string())?;
    let object: DynamicObject = serde_json::from_value(document.clone()).map_err(|e| e.to_string())?;
    let status = object.data.get("status").cloned().unwrap_or_default();
    if let Ok(whole) = serde_json::from_value::<RunStatus>(status) {
        round_trip(&whole);
        let part = ReportedPart::of(&whole);
        assert_eq!(part.may_wait(&part), None, "nothing has changed");
    }
    // The document is made from values and not from text, because a text in which a field occurs twice would be refused.
    let RunObject {
        orders: read,
        reports: reported,
        ..
    } = serde_json::from_value(document).map_err(|e| e.to_string())?;
    assert_eq!(orders_of(&object), read, "the two programs read other orders");
    let Some(spec) = read else {
        return Err("these orders are not understood".into());
    };
    round_trip(&spec);
    let roles = [i64::MIN, spec.coordinator, i64::MAX].map(|n| Orders::Given(spec.clone()).role(n));
    let observed = observed(spec, reported);
    let decision = decide(&observed);
    let report = report(&observed, &decision, &[]);
    round_trip(&report.status);
    Ok(format!(
        "{roles:?}, {:?}, {} Events, again in {:?} s",
        report.status.phase,
        report.events.len(),
        report.reconcile_in
    ))
}

/// A job with these orders and this report, and a pod for each worker of the report.
fn observed(orders: RunSpec, run: Option<ObservedRun>) -> Observed {
    let job = parse_job(JOB).expect("the job is valid");
    let names = |attached| run.iter().flat_map(move |r| r.workers(attached));
    let names: BTreeSet<String> = names(true).chain(names(false)).map(str::to_owned).collect();
    let pods = names.into_iter().take(PODS).zip(1..);
    Observed {
        job: ObservedJob {
            name: "j".into(),
            namespace: "n".into(),
            uid: "u".into(),
            generation: 1,
            spec: Ok(job),
            save_at: None,
            status: Status::default(),
            deleting: false,
        },
        pods: pods.map(|(name, number)| pod(name, number)).collect(),
        nodes: BTreeMap::from([(
            "good".to_owned(),
            ObservedNode {
                ready: true,
                ..ObservedNode::default()
            },
        )]),
        coordinators: vec![pod("j-c2".to_owned(), 2)],
        orders: Some(orders),
        run,
        coordinator_probe: None,
        failures: vec![],
        now: NOW,
        settings: Settings {
            image: Some("worker".into()),
            coordinator_image: Some("coordinator".into()),
            coordinator_priority_class: None,
            gpu_resource: None,
            node_signals: vec![],
            topology_labels: vec![],
        },
        queue: ObservedQueue::default(),
        old_credentials: 0,
    }
}

fn pod(name: String, number: i64) -> ObservedPod {
    ObservedPod {
        name,
        number,
        phase: PodPhase::Running,
        node: Some("good".into()),
        ..ObservedPod::default()
    }
}
