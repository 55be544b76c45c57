//! Every message that the operator shows to users, in one file that can be reviewed as a whole.

use super::*;
use std::collections::{BTreeMap, BTreeSet};
use varuna_plan::ScaleFactor;
use varuna_protocol::coordinator::Divergence;

const CHECKPOINT: &str = "  checkpoint: {uri: s3://b, intervalSteps: 10}\n";

fn with_spec(extra: &str) -> Observed {
    let mut observed = observed(2);
    observed.job.spec = Ok(spec(2, extra));
    observed
}

fn failing(part: JobPart, message: &str) -> Observed {
    let failure = Failure {
        part,
        message: message.into(),
        retry_in: 4,
    };
    Observed {
        failures: vec![failure],
        ..observed(2)
    }
}

fn with_pod(pod: ObservedPod) -> Observed {
    Observed {
        pods: vec![pod],
        ..observed(2)
    }
}

fn with_run(extra: &str, run: ObservedRun) -> Observed {
    Observed {
        run: Some(run),
        ..with_spec(extra)
    }
}

fn saved(newest: Option<u64>, failing: Option<&str>, stale: bool, run: ObservedRun) -> ObservedRun {
    ObservedRun {
        checkpoints: Some(RunCheckpoints {
            newest_step: newest,
            newest_at: None,
            failing: failing.map(str::to_owned),
            stale,
        }),
        ..run
    }
}

fn ended_run(end: RunEnd) -> ObservedRun {
    ObservedRun {
        ended: Some(end),
        ..training(5)
    }
}

/// A job of which six pods have ended one after the other.
fn six(pod: impl Fn(i64, i64) -> ObservedPod) -> Observed {
    Observed {
        pods: (1..=6).map(|i| pod(i, 120 - 20 * i)).collect(),
        ..observed(2)
    }
}

fn pod_scenes() -> Vec<Observed> {
    let on = |node: &str| ObservedPod {
        node: Some(node.into()),
        ..pod(1, PodPhase::Running)
    };
    let disrupted = |pod| ObservedPod {
        disrupted: Some("EvictionByEvictionAPI".into()),
        ..pod
    };
    let mut spot = with_pod(on("spot"));
    let taints = vec!["karpenter.sh/disrupted".into()];
    spot.nodes.insert(
        "spot".into(),
        ObservedNode {
            ready: true,
            taints,
            ..ObservedNode::default()
        },
    );
    let mut silent = with_run("", training(5));
    silent.pods = vec![on("silent")];
    silent.nodes.insert("silent".into(), ObservedNode::default());
    let crashes = six(|i, ago| ended(i, 1, "Error", ago));
    let mut memory = six(|i, ago| ended(i, 137, "OOMKilled", ago));
    memory.pods[5].ended.as_mut().unwrap().message.clear();
    let init = six(|i, ago| init_failed(i, 2, ago));
    let mut gone = with_run("", training(5));
    gone.pods = vec![on("gone")];
    let mut rejected = pod(1, PodPhase::Failed);
    rejected.rejected = Some(Rejection {
        made: NOW,
        at: NOW,
        reason: "OutOfnvidia.com/gpu".into(),
        message: "Node didn't have enough resource: nvidia.com/gpu".into(),
    });
    let mut old = with_run(CHECKPOINT, with_workers(training(5), &["j-w1-u", "j-w2-u"], &[]));
    old.pods = [1, 2].map(|i| pod(i, PodPhase::Running)).to_vec();
    old.pods[0].made_from = Some("old".into());
    let mut avoiding = pod(1, PodPhase::Pending);
    avoiding.unschedulable = Some("0/3 nodes are available".into());
    avoiding.avoids.insert("good".into());
    let mut beside = ended(1, 1, "Error", 5);
    beside.phase = PodPhase::Running;
    vec![
        spot,
        silent,
        with_pod(rejected),
        old,
        with_pod(avoiding),
        with_pod(beside),
        crashes,
        memory,
        init,
        with_pod(init_failed(1, 2, 1)),
        gone,
        with_pod(disrupted(ObservedPod {
            deleting: true,
            ..on("good")
        })),
        with_pod(disrupted(ended(1, 143, "Error", 1))),
        with_pod(ended(1, 1, "Error", 1)),
        with_pod(ObservedPod {
            waiting: Some(("ImagePullBackOff".into(), "no such image: x".into())),
            ..pod(1, PodPhase::Pending)
        }),
        with_pod(ObservedPod {
            unschedulable: Some("0/3 nodes are available".into()),
            ..pod(1, PodPhase::Pending)
        }),
    ]
}

fn run_scenes() -> Vec<Observed> {
    let modes = [
        RunMode::Starting,
        RunMode::Settling,
        RunMode::Launching,
        RunMode::Training,
        RunMode::Changing,
        RunMode::Waiting,
        RunMode::Recovering,
        RunMode::Persisting,
        RunMode::Done,
        RunMode::Stopped,
        RunMode::Ended,
    ];
    let mut scenes: Vec<_> = modes.into_iter().map(|m| with_run("", run(m, 1, 5))).collect();
    let suspend = format!("  suspend: true\n{CHECKPOINT}");
    let first = || run(RunMode::Waiting, 0, 0);
    let mut overdue = with_run("  activeDeadlineSeconds: 60\n", training(5));
    overdue.job.status.start_time = Some(decision::time(NOW - 60));
    scenes.extend([
        with_run("", with_workers(run(RunMode::Waiting, 1, 5), &[], &[])),
        with_run(
            CHECKPOINT,
            saved(None, Some("403"), false, with_workers(first(), &["a"], &[])),
        ),
        with_run(CHECKPOINT, saved(Some(10), None, false, training(15))),
        with_run(CHECKPOINT, saved(Some(10), None, true, training(50))),
        with_run(CHECKPOINT, saved(None, Some("403"), false, training(15))),
        with_run(&suspend, saved(Some(10), None, false, training(15))),
        with_run(&suspend, saved(Some(20), None, false, training(15))),
        with_run(&suspend, saved(None, Some("403"), false, training(15))),
        with_run("  suspend: true\n", training(5)),
        with_run("  suspend: true\n  allowStateLoss: true\n", training(5)),
        overdue,
        with_run("  suspend: true\n", ended_run(RunEnd::Stopped)),
        with_run("", ended_run(RunEnd::Done)),
        with_run("", ended_run(RunEnd::StateLost("segments 2..4".into()))),
        with_run("", ended_run(RunEnd::Diverged(diverged().to_string()))),
        with_run(
            CHECKPOINT,
            ended_run(RunEnd::CheckpointsTaken("default/other".into())),
        ),
        // Its checkpoints are not known yet.
        with_run(&format!("{CHECKPOINT}  suspend: true\n"), training(3)),
    ]);
    scenes
}

fn other_scenes() -> Vec<Observed> {
    let mut invalid = observed(2);
    invalid.job.spec = Err("spec.training.steps: 0 — 1 to 2".into());
    vec![
        observed(2),
        invalid,
        failing(JobPart::Objects, "forbidden"),
        failing(JobPart::Pods, "exceeded quota: q"),
        failing(JobPart::Pods, "spec.containers[0].image: Required value"),
        failing(JobPart::Coordinator, "address in use"),
        failing(JobPart::Deletions, "a webhook denied the request"),
        failing(JobPart::Workload, "a webhook denied the request"),
        failing(JobPart::Policies, "a webhook denied the request"),
        Observed {
            run: Some(ended_run(RunEnd::Done)),
            ..failing(JobPart::JobDeletion, "a webhook denied the request")
        },
        failing(JobPart::Server, "connection refused"),
        coordinator_waits("0/3 nodes are available", None),
        coordinator_waits("", Some("no such image: c")),
        failing(
            JobPart::Names,
            "the job (uid u) needs the name of Secret j-token-u, which no controller owns",
        ),
    ]
}

/// A coordinator whose pod does not start.
fn coordinator_waits(unschedulable: &str, image: Option<&str>) -> Observed {
    let waits = ObservedPod {
        unschedulable: Some(unschedulable.to_owned()).filter(|text| !text.is_empty()),
        waiting: image.map(|why| ("ErrImagePull".into(), why.into())),
        ..coordinator(1, PodPhase::Pending)
    };
    Observed {
        orders: Some(RunSpec {
            uid: "u".into(),
            goal: RunGoal::Run,
            coordinator: 1,
            newest_coordinator: 1,
            steps: 10,
            allow_state_loss: false,
            save_at: None,
            leaving: vec![],
            ends_at: BTreeMap::new(),
            written_at: None,
            ended: vec![],
            domains: BTreeMap::new(),
        }),
        coordinators: vec![waits],
        run: Some(ObservedRun::default()),
        ..observed(2)
    }
}

fn diverged() -> Divergence {
    Divergence {
        step: Step(120),
        failed_in_a_row: 21,
        loss_scale: ScaleFactor::ONE,
    }
}

#[test]
fn the_sentences_that_users_see_are_those_that_were_reviewed() {
    let mut lines: BTreeSet<String> = BTreeSet::new();
    let of_queues = [queue::scenes(), increments::scenes()].concat();
    for scene in [pod_scenes(), run_scenes(), other_scenes(), of_queues].concat() {
        let decided = decide(&scene);
        for c in &decided.status.conditions {
            lines.insert(format!(
                "condition {}={} {}: {}",
                c.type_, c.status, c.reason, c.message
            ));
        }
        for e in &decided.events {
            let kind = if e.warning { "warning" } else { "event" };
            lines.insert(format!("{kind} {}: {}", e.reason, e.text));
        }
        lines.extend(
            decided
                .delete
                .iter()
                .map(|d| format!("log delete {}: {}", d.name, d.why)),
        );
    }
    // Messages of the coordinator and errors of the API server are not written by the operator.
    for reason in Reason::ALL
        .iter()
        .filter(|r| !matches!(r, Reason::Run | Reason::Resumed))
    {
        let shown = format!(" {reason}: ");
        assert!(
            lines.iter().any(|l| l.contains(&shown)),
            "no scene shows {reason}"
        );
    }
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/decide/tests/sentences.txt");
    if std::env::var_os("VARUNA_UPDATE_GOLDEN").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let reviewed = std::fs::read_to_string(path).unwrap_or_default();
    let new: Vec<_> = text.lines().filter(|l| !reviewed.contains(*l)).collect();
    assert!(
        text == reviewed,
        "review the sentences in {path} and write them with VARUNA_UPDATE_GOLDEN=1; new: {new:#?}"
    );
}
