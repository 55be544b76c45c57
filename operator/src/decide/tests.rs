use super::*;
use crate::index::ObjectKind;
use carried_out::{Decided, carried_out, decide, next_pods, number_of};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use varuna_api::crd::{Condition, RunCheckpoints, RunGoal, RunSpec, Status};
use varuna_api::{ConditionType, Job, JobPhase, Reason, parse_job};
use varuna_plan::{Generation, Step, WorkerId};
use varuna_protocol::coordinator::{RunMode, RunView, Snapshot, WorkerView};

mod carried_out;
mod checkpoints;
mod coordinator;
mod disruption_budget;
mod domains;
mod failures;
mod increments;
mod job_progress;
mod many_workers;
mod network_policies;
mod news;
mod pod_template;
mod pod_verdicts;
mod properties;
mod queue;
mod queue_priority;
mod rollout;
mod sentences;
mod unreadable_spec;
mod unstarted;
mod worker_groups;
mod worker_notices;

const NOW: i64 = 1_800_000_000;

fn spec(max: u32, extra: &str) -> Job {
    let text = format!(
        "apiVersion: varuna.dev/v1alpha1\nkind: VarunaJob\nmetadata: {{name: j}}\nspec:\n  model: {{preset: gpt2-tiny}}\n  data: {{path: d}}\n  training: {{globalBatchSize: 8, steps: 10, optimizer: {{learningRate: 1e-3}}}}\n  elasticity: {{minWorkers: 1, maxWorkers: {max}}}\n{extra}"
    );
    parse_job(&text).unwrap()
}

fn observed(max: u32) -> Observed {
    Observed {
        job: ObservedJob {
            name: "j".into(),
            namespace: "n".into(),
            uid: "u".into(),
            generation: 1,
            spec: Ok(spec(max, "")),
            save_at: None,
            status: Status::default(),
            deleting: false,
        },
        pods: vec![],
        nodes: BTreeMap::from([(
            "good".to_owned(),
            ObservedNode {
                ready: true,
                ..ObservedNode::default()
            },
        )]),
        coordinators: vec![],
        orders: None,
        run: None,
        coordinator_probe: None,
        failures: vec![],
        now: NOW,
        settings: Settings {
            image: Some("img".into()),
            coordinator_image: Some("coordinator-img".into()),
            coordinator_priority_class: None,
            gpu_resource: Some("nvidia.com/gpu".into()),
            node_signals: vec![],
            topology_labels: vec!["example.com/rack".into()],
        },
        queue: ObservedQueue::default(),
        old_credentials: 0,
    }
}

fn pod(number: i64, phase: PodPhase) -> ObservedPod {
    ObservedPod {
        name: format!("j-w{number}-u"),
        number,
        phase,
        node: (phase != PodPhase::Pending).then(|| "good".to_owned()),
        ..ObservedPod::default()
    }
}

fn running_on(node: &str, number: i64) -> ObservedPod {
    ObservedPod {
        node: Some(node.into()),
        ..pod(number, PodPhase::Running)
    }
}

/// A job with the nodes `a` to `f`.
fn on_nodes(max: u32) -> Observed {
    let mut observed = observed(max);
    for name in ["a", "b", "c", "d", "e", "f"] {
        let ready = ObservedNode {
            ready: true,
            ..ObservedNode::default()
        };
        observed.nodes.insert(name.into(), ready);
    }
    observed
}

fn ended(number: i64, code: i32, reason: &str, ago: i64) -> ObservedPod {
    let end = ContainerEnd {
        started: 0,
        at: NOW - ago,
        code,
        reason: reason.into(),
        message: "last words".into(),
    };
    let phase = if code == 0 {
        PodPhase::Succeeded
    } else {
        PodPhase::Failed
    };
    ObservedPod {
        ended: Some(end),
        ..pod(number, phase)
    }
}

/// A pod whose init container ended with this exit code.
fn init_failed(number: i64, code: i32, ago: i64) -> ObservedPod {
    let failed = ended(number, code, "Error", ago);
    ObservedPod {
        init_failed: failed.ended.map(|end| ("fetch".to_owned(), end)),
        ended: None,
        ..failed
    }
}

fn training(step: u64) -> ObservedRun {
    run(RunMode::Training, 1, step)
}

fn run(mode: RunMode, generation: u64, step: u64) -> ObservedRun {
    let run = RunView {
        mode,
        term: 1,
        generation: Generation(generation),
        next: None,
        step: Step(step),
        last_step: Step(10),
        plan: Some("P2xD1".into()),
        predicted_ms: None,
        observed_ms: None,
        compute_factor: None,
        members: 2,
        min_workers: 1,
        max_workers: None,
        spare_copies: None,
    };
    let snapshot = Snapshot {
        run,
        workers: vec![worker("a", true), worker("b", true)],
    };
    ObservedRun {
        snapshot: Some(snapshot),
        ..ObservedRun::default()
    }
}

fn worker(name: &str, up: bool) -> WorkerView {
    WorkerView {
        id: WorkerId(1),
        name: name.into(),
        node: "good".into(),
        up,
        phase: None,
        generation: Generation(1),
        step: Step(1),
        draining: false,
        speed: 1.0,
        segments: vec![],
        pipeline: None,
        left_out: None,
    }
}

/// A run with these workers attached, and these detached.
fn with_workers(mut run: ObservedRun, up: &[&str], down: &[&str]) -> ObservedRun {
    let up = up.iter().map(|name| worker(name, true));
    let workers = up.chain(down.iter().map(|name| worker(name, false)));
    run.snapshot.as_mut().unwrap().workers = workers.collect();
    run
}

/// The run with a place in the plan for each of its workers.
fn all_placed(mut run: ObservedRun) -> ObservedRun {
    let workers = &mut run.snapshot.as_mut().unwrap().workers;
    workers.iter_mut().for_each(|w| w.pipeline = Some(0));
    run
}

/// The pod of a coordinator.
fn coordinator(number: i64, phase: PodPhase) -> ObservedPod {
    ObservedPod {
        name: objects::coordinator_pod_name(&observed(1).job, number),
        image: Some("coordinator-img".into()),
        ..pod(number, phase)
    }
}

fn names(desired: &Decided) -> Vec<String> {
    desired
        .create
        .iter()
        .map(|p| p["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

fn deleted(desired: &Decided) -> Vec<&str> {
    desired.delete.iter().map(|d| d.name.as_str()).collect()
}

fn condition(desired: &Decided, kind: ConditionType) -> &Condition {
    desired.status.condition(kind).unwrap()
}

#[test]
fn recreated_job_has_other_pod_names() {
    let mut job = observed(1).job;
    job.name = "j".repeat(40);
    let name_under = |uid: &str| {
        let job = ObservedJob {
            uid: uid.into(),
            ..job.clone()
        };
        objects::pod_name(&job, 999_999_999_999)
    };
    let (first, again) = (name_under("0123456789ab"), name_under("ba9876543210"));
    assert_ne!(first, again);
    assert!(first.ends_with("-w999999999999-01234567"), "{first}");
    assert_eq!(first.len(), 63, "{first}");
}

#[test]
fn a_new_job_gets_its_pods_its_token_and_its_service() {
    let desired = decide(&observed(3));
    assert_eq!(names(&desired), ["j-w1-u", "j-w2-u", "j-w3-u"]);
    let kinds: Vec<_> = desired
        .objects
        .iter()
        .map(|o| o["kind"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        [
            "Role",
            "RoleBinding",
            "ServiceAccount",
            "Service",
            "PodDisruptionBudget",
            "NetworkPolicy",
            "NetworkPolicy"
        ]
    );
    for kind in kinds {
        let is_watched = ObjectKind::ALL.iter().any(|watched| watched.kind == kind);
        assert!(is_watched, "a {kind} that somebody deletes is not noticed");
    }
    assert_eq!(desired.coordinator, CoordinatorGoal::Run);
    let pod = &desired.create[0];
    assert_eq!(pod["spec"]["restartPolicy"], "Never");
    assert_eq!(pod["metadata"]["ownerReferences"][0]["uid"], "u");
    assert_eq!(
        pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"],
        "1"
    );
    assert_eq!(condition(&desired, ConditionType::Accepted).status, "True");
    assert_eq!(desired.status.observed_generation, Some(1));
}

fn snapshot_mode(observed: &mut Observed, mode: RunMode) {
    let run = observed.run.as_mut().unwrap();
    run.snapshot.as_mut().unwrap().run.mode = mode;
}

#[test]
fn a_lost_pod_is_replaced_at_once_under_another_name() {
    let mut observed = observed(2);
    observed.pods = vec![
        pod(1, PodPhase::Running),
        ObservedPod {
            node: Some("gone".into()),
            ..pod(2, PodPhase::Running)
        },
    ];
    observed.run = Some(with_workers(training(3), &["j-w1-u"], &["j-w2-u"]));
    let desired = decide(&observed);
    assert_eq!(
        (names(&desired), deleted(&desired)),
        (vec!["j-w3-u".into()], vec!["j-w2-u"])
    );
    assert!(desired.events.iter().any(|n| n.reason == Reason::WorkerLost));
    // The pod is in the state Terminating for as long as its node is away, and does not block anything.
    let next = decide(&carried_out(&observed, &desired));
    assert!(next.create.is_empty() && next.delete.is_empty(), "{next:?}");
}

#[test]
fn pods_leave_a_node_before_its_end() {
    let mut observed = observed(1);
    let spot = ObservedNode {
        ready: true,
        taints: vec!["my.cloud/spot-warning".into()],
        conditions: vec![],
        domain: String::new(),
    };
    observed.nodes.insert("spot".into(), spot);
    observed.pods = vec![ObservedPod {
        node: Some("spot".into()),
        ..pod(1, PodPhase::Running)
    }];
    assert!(decide(&observed).delete.is_empty(), "not a signal of this job");
    observed.job.spec = Ok(spec(1, "  disruption: {nodeSignals: [my.cloud/]}\n"));
    let desired = decide(&observed);
    assert_eq!(
        (names(&desired), deleted(&desired)),
        (vec!["j-w2-u".into()], vec!["j-w1-u"])
    );
    assert!(desired.events.iter().any(|n| n.reason == Reason::WorkerNoticed));
}

#[test]
fn preempted_pod_is_replaced_before_a_crashed_one() {
    let mut observed = observed(1);
    observed.pods = vec![ObservedPod {
        disrupted: Some("PreemptionByScheduler".into()),
        ..ended(1, 143, "Error", 0)
    }];
    assert_eq!(names(&decide(&observed)), ["j-w2-u"]);
    observed.pods = vec![
        ended(1, 1, "Error", 23),
        ended(2, 1, "Error", 12),
        ended(3, 1, "Error", 0),
    ];
    let desired = decide(&observed);
    assert!(desired.create.is_empty());
    assert_eq!(
        desired.reconcile_in,
        Some(4),
        "the third in ten minutes waits four seconds"
    );
    observed.now += 4;
    assert_eq!(names(&decide(&observed)), ["j-w4-u"]);
    assert_eq!(
        condition(&desired, ConditionType::Degraded).reason,
        "WorkersCrash"
    );
}

#[test]
fn event_reports_removed_pods_but_not_own_deletions() {
    let mut observed = observed(1);
    let leaving = ObservedPod {
        deleting: true,
        node: Some("n1".into()),
        ..pod(1, PodPhase::Running)
    };
    observed.pods = vec![leaving.clone()];
    let told = |observed: &Observed| {
        let events = decide(observed).events;
        events.into_iter().find(|n| n.reason == Reason::WorkerPreempted)
    };
    assert_eq!(told(&observed), None);
    observed.pods = vec![ObservedPod {
        disrupted: Some("EvictionByEvictionAPI".into()),
        ..leaving
    }];
    let note = told(&observed).unwrap();
    assert!(note.lasting && note.warning, "{note:?}");
    assert_eq!(
        note.text,
        "pod j-w1-u on n1 is taken away (EvictionByEvictionAPI)"
    );
}

#[test]
fn what_failed_is_postponed_and_reported() {
    let failure = |part, retry_in| Failure {
        part,
        message: "exceeded quota: q".into(),
        retry_in,
    };
    let mut observed = observed(4);
    observed.run = Some(training(5));
    observed.pods = vec![pod(1, PodPhase::Running)];
    observed.failures = vec![failure(JobPart::Pods, 7)];
    let desired = decide(&observed);
    assert_eq!(names(&desired), Vec::<String>::new());
    assert_eq!(
        (desired.coordinator, desired.reconcile_in),
        (CoordinatorGoal::Run, Some(7))
    );
    assert_eq!(desired.status.newest_pod, 1, "no number is used up");
    let degraded = condition(&desired, ConditionType::Degraded);
    assert_eq!(
        (degraded.status.as_str(), degraded.reason.as_str()),
        ("True", "PodsRefused")
    );
    assert!(
        degraded.message.contains("exceeded quota: q; raise the quota"),
        "{degraded:?}"
    );
    assert_eq!(condition(&desired, ConditionType::Training).status, "True");
    observed.failures = vec![failure(JobPart::Pods, 0)];
    assert_eq!(names(&decide(&observed)).len(), 3, "its time has come");
    observed.failures = vec![failure(JobPart::Coordinator, 7)];
    let mut desired = decide(&observed);
    assert_eq!(
        (desired.coordinator, desired.create.len()),
        (CoordinatorGoal::Run, 0),
        "one that runs goes on"
    );
    let run = observed.run.take();
    desired = decide(&observed);
    assert_eq!(
        (desired.coordinator, desired.create.len()),
        (CoordinatorGoal::Absent, 0)
    );
    observed.run = run;
    observed.failures = vec![failure(JobPart::Objects, 7)];
    assert_eq!(decide(&observed).objects.len(), 0);
    observed.failures = vec![failure(JobPart::Names, 7)];
    let desired = decide(&observed);
    assert_eq!((desired.objects.len(), desired.create.len()), (0, 0));
    assert_eq!(desired.coordinator, CoordinatorGoal::Run, "one that runs goes on");
    observed.run = None;
    assert_eq!(decide(&observed).coordinator, CoordinatorGoal::Absent);
}

#[test]
fn undeletable_pods_and_their_replacements_wait() {
    let mut observed = observed(2);
    observed.pods = vec![pod(1, PodPhase::Running), pod(2, PodPhase::Running)];
    observed.pods[0].node = Some("gone".into());
    observed.run = Some(with_workers(training(5), &["j-w2-u"], &[]));
    let tries = decide(&observed);
    assert_eq!(
        (deleted(&tries), names(&tries)),
        (vec!["j-w1-u"], vec!["j-w3-u".into()])
    );
    observed.failures = vec![Failure {
        part: JobPart::Deletions,
        message: "a webhook denied the request".into(),
        retry_in: 7,
    }];
    let waits = decide(&observed);
    assert_eq!((waits.delete.len(), waits.create.len()), (0, 0));
    assert_eq!(
        (waits.reconcile_in, waits.status.newest_pod),
        (Some(7), 2),
        "no number is used up"
    );
    let degraded = condition(&waits, ConditionType::Degraded);
    assert_eq!(degraded.reason, "PodsRefused");
    assert!(degraded.message.contains("does not delete"), "{degraded:?}");
    // Nothing must be deleted, so the missing pod is created.
    observed.pods.remove(0);
    assert_eq!(names(&decide(&observed)).len(), 1);
}

#[test]
fn surplus_pods_without_state_are_deleted_first() {
    let mut observed = observed(2);
    observed.pods = (1..=4).map(|i| pod(i, PodPhase::Running)).collect();
    assert_eq!(
        deleted(&decide(&observed)),
        ["j-w4-u", "j-w3-u"],
        "nobody holds anything"
    );
    let mut run = with_workers(training(5), &["j-w1-u", "j-w2-u", "j-w3-u", "j-w4-u"], &[]);
    for worker in &mut run.snapshot.as_mut().unwrap().workers {
        worker.pipeline = ["j-w2-u", "j-w4-u"].contains(&worker.name.as_str()).then_some(0);
    }
    observed.run = Some(run);
    assert_eq!(deleted(&decide(&observed)), ["j-w3-u", "j-w1-u"]);
}

#[test]
fn crashes_hold_back_their_own_places_only() {
    let mut observed = observed(4);
    observed.pods = vec![ended(1, 1, "Error", 0)];
    assert_eq!(names(&decide(&observed)), ["j-w2-u", "j-w3-u", "j-w4-u"]);
}

#[test]
fn crashing_job_fails_and_is_retried_when_changed() {
    let mut observed = observed(1);
    observed.pods = (1..=6).map(|i| ended(i, 1, "Error", 120 - 20 * i)).collect();
    let desired = decide(&observed);
    let failed = condition(&desired, ConditionType::Failed);
    assert_eq!(failed.status, "True");
    assert!(
        failed.message.contains("last words") && failed.message.contains("exit code 1"),
        "{failed:?}"
    );
    assert!(desired.create.is_empty() && desired.status.phase == Some(JobPhase::Failed));
    let mut next = carried_out(&observed, &desired);
    next.now += 1000;
    assert!(decide(&next).create.is_empty(), "it stays failed");
    next.job.generation = 2;
    let again = decide(&next);
    assert_eq!(names(&again), ["j-w7-u"]);
    assert_eq!(condition(&again, ConditionType::Failed).status, "False");
    let after = decide(&carried_out(&next, &again));
    assert_eq!(
        condition(&after, ConditionType::Failed).status,
        "False",
        "what crashed before counts no more"
    );
}

#[test]
fn crashes_with_steps_between_them_do_not_fail_the_job() {
    let mut observed = observed(2);
    observed.pods = (1..=6).map(|i| ended(i, 1, "Error", 120 - 20 * i)).collect();
    observed.pods.push(pod(7, PodPhase::Running));
    observed.run = Some(training(5));
    let desired = decide(&observed);
    assert_eq!(condition(&desired, ConditionType::Failed).status, "False");
    assert_eq!(desired.status.step, Some(5));
}

#[test]
fn an_image_that_cannot_be_pulled_is_named() {
    let mut observed = observed(1);
    observed.pods = vec![ObservedPod {
        waiting: Some(("ImagePullBackOff".into(), "no such image: x".into())),
        ..pod(1, PodPhase::Pending)
    }];
    let desired = decide(&observed);
    let degraded = condition(&desired, ConditionType::Degraded);
    assert!(
        degraded.status == "True" && degraded.message.contains("no such image: x"),
        "{degraded:?}"
    );
    assert!(desired.status.message.unwrap().contains("no such image: x"));
    assert!(desired.create.is_empty() && desired.delete.is_empty());
}

#[test]
fn loss_scale_and_skipped_steps_stay_but_no_old_loss_does() {
    let mut observed = observed(2);
    observed.run = Some(ObservedRun {
        skipped_steps: Some(3),
        loss_scale: Some(65_536),
        ..training(5)
    });
    let desired = decide(&observed);
    assert_eq!(desired.status.skipped_steps, Some(3));
    assert_eq!(desired.status.loss_scale, Some(65_536));
    let mut next = carried_out(&observed, &desired);
    // The next coordinator has published no step yet.
    next.run = Some(training(5));
    let status = decide(&next).status;
    assert_eq!((status.skipped_steps, status.loss_scale), (Some(3), Some(65_536)));
    // A step without a loss does not show that of an earlier one.
    let loss_after = |of_step: ObservedRun| {
        let mut next = carried_out(&observed, &desired);
        next.job.status.loss = Some("2.5000".into());
        next.run = Some(of_step);
        decide(&next).status.loss
    };
    assert_eq!(loss_after(training(5)).as_deref(), Some("2.5000"));
    let without = ObservedRun {
        skipped_steps: Some(3),
        ..training(5)
    };
    assert_eq!(loss_after(without), None);
    let mut plain = observed;
    plain.run = Some(training(5));
    plain.job.status = Status::default();
    assert_eq!(decide(&plain).status.loss_scale, None, "the job scales no loss");
}

#[test]
fn lower_maximum_removes_unstarted_and_newest_pods() {
    let mut observed = observed(2);
    observed.pods = vec![
        pod(1, PodPhase::Running),
        pod(2, PodPhase::Pending),
        pod(3, PodPhase::Running),
        pod(4, PodPhase::Running),
    ];
    assert_eq!(deleted(&decide(&observed)), ["j-w2-u", "j-w4-u"]);
}

#[test]
fn a_suspended_job_stops_its_run_first_then_its_pods() {
    let mut observed = observed(2);
    observed.job.spec = Ok(spec(2, "  suspend: true\n  allowStateLoss: true\n"));
    observed.pods = vec![pod(1, PodPhase::Running), pod(2, PodPhase::Running)];
    observed.run = Some(training(3));
    let desired = decide(&observed);
    assert_eq!(desired.coordinator, CoordinatorGoal::Stop);
    assert!(desired.delete.is_empty() && desired.create.is_empty());
    observed.run = Some(ObservedRun {
        ended: Some(RunEnd::Stopped),
        ..training(3)
    });
    let desired = decide(&observed);
    assert_eq!(deleted(&desired), ["j-w1-u", "j-w2-u"]);
    assert_eq!(condition(&desired, ConditionType::Suspended).status, "True");
    let mut next = carried_out(&observed, &desired);
    next.job.spec = Ok(spec(2, ""));
    next.job.generation = 2;
    assert_eq!(decide(&next).coordinator, CoordinatorGoal::Run);
    assert_eq!(names(&decide(&next)), ["j-w3-u", "j-w4-u"]);
}

#[test]
fn a_complete_job_stays_complete_without_a_coordinator() {
    let mut observed = observed(1);
    observed.run = Some(ObservedRun {
        ended: Some(RunEnd::Done),
        ..run(RunMode::Done, 1, 10)
    });
    observed.pods = vec![ended(1, 0, "Completed", 1), pod(2, PodPhase::Pending)];
    let desired = decide(&observed);
    assert_eq!(deleted(&desired), ["j-w2-u"]);
    assert_eq!(
        (
            desired.coordinator,
            condition(&desired, ConditionType::Complete).status.as_str()
        ),
        (CoordinatorGoal::Absent, "True")
    );
    let mut next = carried_out(&observed, &desired);
    next.run = None;
    let after = decide(&next);
    assert_eq!(
        (after.coordinator, after.create.len()),
        (CoordinatorGoal::Absent, 0)
    );
    assert_eq!(after.status.phase, Some(JobPhase::Complete));
}

#[test]
fn lost_state_fails_the_job_and_says_which() {
    let mut observed = observed(1);
    observed.run = Some(ObservedRun {
        ended: Some(RunEnd::StateLost("segments 2..4".into())),
        ..training(4)
    });
    let desired = decide(&observed);
    assert!(
        condition(&desired, ConditionType::Failed)
            .message
            .contains("segments 2..4")
    );
    assert_eq!(desired.coordinator, CoordinatorGoal::Absent);
}

#[test]
fn a_wrong_spec_is_refused_in_a_condition_and_nothing_is_made() {
    let mut observed = observed(1);
    observed.job.spec = Err("spec.training.steps: 0 — 1 to 2".into());
    let desired = decide(&observed);
    assert!(desired.objects.is_empty() && desired.create.is_empty());
    let accepted = condition(&desired, ConditionType::Accepted);
    assert!(accepted.status == "False" && accepted.message.contains("spec.training.steps"));
}

#[test]
fn a_spec_that_this_release_cannot_read_ends_no_run() {
    let mut observed = observed(2);
    observed.pods = vec![pod(1, PodPhase::Running), pod(2, PodPhase::Running)];
    observed.job.spec = Err("spec.model.preset: gpt9 — one of gpt2".into());
    for (coordinator, phase) in [
        (CoordinatorGoal::Absent, JobPhase::Refused),
        (CoordinatorGoal::Run, JobPhase::Training),
    ] {
        let desired = decide(&observed);
        assert_eq!(desired.coordinator, coordinator);
        assert_eq!(desired.status.phase, Some(phase));
        assert!(
            desired.create.is_empty() && desired.delete.is_empty(),
            "{desired:?}"
        );
        assert_eq!(condition(&desired, ConditionType::Accepted).status, "False");
        observed.run = Some(training(5));
    }
    observed.job.deleting = true;
    assert_eq!(decide(&observed).coordinator, CoordinatorGoal::Absent);
}

#[test]
fn the_present_spec_is_taken_only_where_no_worker_holds_another() {
    let takes = |pods: Vec<ObservedPod>| {
        let mut observed = observed(1);
        observed.pods = pods;
        super::decide(&observed).takes_present_spec
    };
    assert!(takes(vec![]));
    assert!(takes(vec![ended(1, 0, "Completed", 5)]));
    assert!(!takes(vec![pod(1, PodPhase::Running)]));
    assert!(!takes(vec![ended(1, 1, "Error", 5), pod(2, PodPhase::Pending)]));
    let going = ObservedPod {
        deleting: true,
        ..pod(1, PodPhase::Running)
    };
    assert!(takes(vec![going]));
}

#[test]
fn a_job_that_is_being_deleted_is_left_to_its_owner_references() {
    let mut observed = observed(2);
    observed.job.deleting = true;
    observed.run = Some(training(1));
    let desired = decide(&observed);
    assert!(desired.objects.is_empty() && desired.create.is_empty() && desired.delete.is_empty());
    assert_eq!(desired.coordinator, CoordinatorGoal::Absent);
}

#[test]
fn new_plan_is_counted_and_the_endpoint_follows_the_leader() {
    let mut observed = observed(2);
    observed.run = Some(ObservedRun {
        address: Some("10.0.0.7:4321".parse().unwrap()),
        ..training(3)
    });
    let first = decide(&observed);
    assert_eq!(first.status.reconfigurations, None);
    let slice = first
        .objects
        .iter()
        .find(|o| o["kind"] == "EndpointSlice")
        .unwrap();
    assert_eq!(
        (&slice["endpoints"][0]["addresses"][0], &slice["ports"][0]["port"]),
        (&"10.0.0.7".into(), &4321.into())
    );
    let mut next = carried_out(&observed, &first);
    next.run = Some(run(RunMode::Training, 2, 4));
    let second = decide(&next);
    assert_eq!(second.status.reconfigurations, Some(1));
    assert!(second.events.iter().any(|n| n.text.contains("plan 2")));
}

#[test]
fn step_falls_only_after_a_restore() {
    let mut observed = observed(2);
    observed.job.status.step = Some(9);
    let settling = run(RunMode::Settling, 1, 0);
    for (run, step, lost) in [(settling, 9, 0), (training(12), 12, 0), (training(6), 6, 3)] {
        observed.run = Some(run);
        let status = decide(&observed).status;
        assert_eq!((status.step, status.steps_lost), (Some(step), Some(lost)));
    }
}
