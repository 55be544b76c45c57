//! Jobs with a queue of Kueue.

use super::*;
use crate::observe_queue;
use kube::api::DynamicObject;
use proptest::prelude::*;
use serde_json::json;

const QUEUED: &str = "  checkpoint: {uri: s3://b, intervalSteps: 10}\n";

/// A job with a queue in a cluster with Kueue; it has no Workload yet.
pub(super) fn queued(max: u32, extra: &str) -> Observed {
    let mut observed = observed(max);
    let mut job = spec(max, &format!("{QUEUED}{extra}"));
    job.queue = Some("team-a".into());
    observed.job.spec = Ok(job);
    observed.queue.served = Some(KueueVersion::V1Beta2);
    let on_demand = Placement {
        node_selector: BTreeMap::from([("pool".into(), "on-demand".into())]),
        tolerations: vec![json!({ "key": "reserved", "operator": "Exists" })],
        ..Placement::default()
    };
    observed.queue.flavors.insert("on-demand".into(), on_demand);
    observed
}

/// The Workload that a decision creates.
pub(super) fn made(desired: &Decided) -> &Value {
    match &desired.workload[..] {
        [WorkloadChange::Create(workload)] => workload,
        other => panic!("{other:?}"),
    }
}

/// A Workload with this status, as the API server shows it.
pub(super) fn seen(workload: &Value, status: &Value) -> ObservedWorkload {
    let mut object = workload.clone();
    object["metadata"]["resourceVersion"] = "7".into();
    object["metadata"]["generation"] = 1.into();
    object["status"] = status.clone();
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    observe_queue::workload(&object).unwrap()
}

pub(super) fn stated(kind: &str, is: bool, reason: &str, message: &str) -> Value {
    let status = if is { "True" } else { "False" };
    json!({ "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z" })
}

/// Kueue's admission of these sets with these counts, on the flavour `on-demand`.
pub(super) fn admission(sets: &[(&str, u32)]) -> Value {
    let sets = sets.iter().map(
        |(name, count)| json!({ "name": name, "count": count, "flavors": { "nvidia.com/gpu": "on-demand", "cpu": "on-demand" } }),
    );
    json!({
        "conditions": [stated("QuotaReserved", true, "QuotaReserved", ""), stated("Admitted", true, "Admitted", "")],
        "admission": { "clusterQueue": "all", "podSetAssignments": sets.collect::<Vec<_>>() },
    })
}

/// A job whose Workload was admitted with this many workers.
pub(super) fn admitted(max: u32, workers: u32, extra: &str) -> Observed {
    let mut observed = queued(max, extra);
    let desired = decide(&observed);
    let status = admission(&[("coordinator", 1), ("workers", workers)]);
    observed.queue.workload = Some(seen(made(&desired), &status));
    observed
}

/// The same job after the queue has taken its quota back.
pub(super) fn evicted(observed: &Observed, reason: &str) -> Observed {
    let mut evicted = observed.clone();
    let workload = evicted.queue.workload.as_mut().unwrap();
    let condition = stated("Evicted", true, reason, "a job of team b is preferred");
    workload
        .conditions
        .push(serde_json::from_value(condition).unwrap());
    evicted
}

/// A run whose newest checkpoint has this step.
fn saved(step: u64, run: ObservedRun) -> ObservedRun {
    ObservedRun {
        checkpoints: Some(RunCheckpoints {
            newest_step: Some(step),
            ..RunCheckpoints::default()
        }),
        ..run
    }
}

pub(super) fn sets(workload: &Value) -> Vec<(&str, u64, Option<u64>)> {
    let sets = workload["spec"]["podSets"].as_array().unwrap().iter();
    let set = |s: &'_ Value| (s["count"].as_u64().unwrap(), s["minCount"].as_u64());
    sets.map(|s| (s["name"].as_str().unwrap(), set(s).0, set(s).1))
        .collect()
}

pub(super) fn status_of(change: &WorkloadChange) -> BTreeMap<String, (String, String)> {
    let WorkloadChange::PatchStatus { patch, .. } = change else {
        panic!("{change:?}");
    };
    assert_eq!(patch["metadata"]["resourceVersion"], "7");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let conditions = patch["status"]["conditions"].as_array().unwrap().iter();
    conditions
        .map(|c| (text(&c["type"]), (text(&c["status"]), text(&c["reason"]))))
        .collect()
}

/// Observations for the test of all messages to users.
pub(super) fn scenes() -> Vec<Observed> {
    let mut no_kueue = queued(2, "");
    no_kueue.queue = ObservedQueue::default();
    let mut waits = queued(2, "");
    let full = stated(
        "QuotaReserved",
        false,
        "WaitingForQuota",
        "insufficient unused quota for nvidia.com/gpu",
    );
    waits.queue.workload = Some(seen(made(&decide(&waits)), &json!({ "conditions": [full] })));
    let mut off = admitted(2, 2, "");
    off.queue.workload.as_mut().unwrap().is_active = false;
    let taken = evicted(&admitted(2, 2, ""), "Preempted");
    let mut listed = queued(2, "");
    listed.queue.is_being_listed = true;
    vec![
        no_kueue,
        queued(2, ""),
        waits,
        admitted(2, 2, ""),
        off,
        taken,
        listed,
    ]
}

#[test]
fn queued_job_requests_quota_and_has_no_pods() {
    let mut waiting = queued(8, "");
    let desired = decide(&waiting);
    assert_eq!((names(&desired).len(), desired.starts.is_some()), (0, false));
    let workload = made(&desired).clone();
    assert_eq!(workload["apiVersion"], "kueue.x-k8s.io/v1beta2");
    assert_eq!(workload["metadata"]["name"], "j-q1-u");
    assert_eq!(workload["metadata"]["labels"]["kueue.x-k8s.io/job-uid"], "u");
    assert_eq!(workload["metadata"]["ownerReferences"][0]["uid"], "u");
    assert_eq!(workload["spec"]["queueName"], "team-a");
    assert_eq!(
        sets(&workload),
        [("coordinator", 1, None), ("workers", 8, Some(1))]
    );
    let worker = &workload["spec"]["podSets"][1]["template"]["spec"]["containers"][0];
    assert_eq!(worker["resources"]["limits"]["nvidia.com/gpu"], "1");
    assert_eq!(desired.status.phase, Some(JobPhase::Queued));

    let no_quota = stated(
        "QuotaReserved",
        false,
        "WaitingForQuota",
        "no quota of nvidia.com/gpu is free",
    );
    waiting.queue.workload = Some(seen(&workload, &json!({ "conditions": [no_quota] })));
    let desired = decide(&waiting);
    assert_eq!((names(&desired).len(), desired.starts.is_some()), (0, false));
    assert_eq!(desired.workload, [], "nothing to correct");
    let admitted = condition(&desired, ConditionType::Admitted);
    assert_eq!(
        (admitted.status.as_str(), admitted.reason.as_str()),
        ("False", "WaitsForQuota")
    );
    assert_eq!(
        admitted.message,
        "queue team-a: no quota of nvidia.com/gpu is free"
    );
}

#[test]
fn admitted_count_limits_pods_and_flavor_places_them() {
    let observed = admitted(8, 3, "");
    let desired = decide(&observed);
    assert_eq!(names(&desired).len(), 3);
    let coordinator = desired.starts.as_ref().unwrap();
    for pod in desired.create.iter().chain([coordinator]) {
        assert_eq!(pod["spec"]["nodeSelector"]["pool"], "on-demand");
        let tolerations = pod["spec"]["tolerations"].as_array().unwrap();
        let added = tolerations.iter().filter(|t| t["key"] == "reserved");
        assert_eq!(added.count(), 1, "once, although two resources have the flavour");
    }
    let condition = condition(&desired, ConditionType::Admitted);
    assert_eq!(condition.status, "True");
    assert_eq!(
        condition.message,
        "queue team-a has admitted 1 of coordinator on on-demand, 3 of workers on on-demand"
    );
    // There is one pod too many, as after a second admission with fewer: the newest is deleted.
    let mut many = observed;
    many.pods = (1..=4).map(|i| pod(i, PodPhase::Running)).collect();
    assert_eq!(deleted(&decide(&many)), ["j-w4-u"]);
}

#[test]
fn a_workload_that_is_refused_holds_up_no_pod() {
    let mut observed = admitted(8, 3, "");
    observed.failures = vec![Failure {
        part: JobPart::Workload,
        message: "a webhook denied the request".into(),
        retry_in: 4,
    }];
    let desired = decide(&observed);
    assert_eq!(names(&desired).len(), 3);
    assert!(desired.workload.is_empty(), "it is tried again later");
}

#[test]
fn a_flavour_that_is_not_known_yet_holds_the_pods_back() {
    let mut observed = admitted(8, 3, "");
    observed.queue.flavors.clear();
    let desired = decide(&observed);
    assert_eq!((names(&desired).len(), desired.starts.is_some()), (0, false));
    assert_eq!(desired.orders, None, "nor is anybody in charge");
}

#[test]
fn what_admission_checks_ask_is_added_to_the_pods_of_their_set() {
    let mut observed = queued(2, "");
    let mut status = admission(&[("coordinator", 1), ("workers", 2)]);
    status["admissionChecks"] = json!([{ "name": "provision", "state": "Ready", "podSetUpdates": [{
        "name": "workers", "labels": { "a": "b" }, "annotations": { "c": "d" }, "nodeSelector": { "reservation": "r" },
        "tolerations": [{ "key": "t", "operator": "Exists" }],
    }] }]);
    observed.queue.workload = Some(seen(made(&decide(&observed)), &status));
    let desired = decide(&observed);
    let pod = &desired.create[0];
    assert_eq!(
        (
            &pod["metadata"]["labels"]["a"],
            &pod["metadata"]["annotations"]["c"]
        ),
        (&json!("b"), &json!("d"))
    );
    assert_eq!(
        pod["spec"]["nodeSelector"],
        json!({ "pool": "on-demand", "reservation": "r" })
    );
    assert_eq!(
        desired.starts.unwrap()["spec"]["nodeSelector"],
        json!({ "pool": "on-demand" })
    );
}

#[test]
fn an_eviction_saves_stops_and_then_gives_the_quota_back() {
    let mut running = admitted(2, 2, "");
    running.pods = vec![pod(1, PodPhase::Running), pod(2, PodPhase::Running)];
    running.coordinators = vec![coordinator(1, PodPhase::Running)];
    let mut run = training(5);
    run.checkpoints = Some(RunCheckpoints {
        newest_step: Some(2),
        newest_at: None,
        failing: None,
        stale: false,
    });
    running.run = Some(run);
    let ready = decide(&running);
    assert_eq!(status_of(&ready.workload[0])["PodsReady"].0, "True");

    let mut evicted = evicted(&running, "Preempted");
    let saving = decide(&evicted);
    assert_eq!(saving.coordinator, CoordinatorGoal::RunAndSave);
    assert_eq!((saving.workload.len(), deleted(&saving).len()), (0, 0));
    evicted.job.status = saving.status.clone();
    evicted
        .run
        .as_mut()
        .unwrap()
        .checkpoints
        .as_mut()
        .unwrap()
        .newest_step = Some(5);
    let stopping = decide(&evicted);
    assert_eq!(stopping.coordinator, CoordinatorGoal::Stop);
    assert_eq!(stopping.workload, [], "the quota is used as long as pods run");
    assert_eq!(stopping.status.phase, Some(JobPhase::Queued));

    evicted.run.as_mut().unwrap().ended = Some(RunEnd::Stopped);
    let stopped = decide(&evicted);
    assert_eq!(deleted(&stopped), ["j-w1-u", "j-w2-u"]);
    assert_eq!(stopped.workload, []);
    evicted.pods.iter_mut().for_each(|p| p.deleting = true);
    assert_eq!(decide(&evicted).workload, [], "they still end");
    evicted.pods.clear();
    evicted.coordinators = vec![coordinator(1, PodPhase::Succeeded)];
    let released = decide(&evicted);
    let conditions = status_of(&released.workload[0]);
    for (kind, status) in [
        ("QuotaReserved", "False"),
        ("Admitted", "False"),
        ("Requeued", "True"),
        ("Evicted", "True"),
    ] {
        assert_eq!(conditions[kind].0, status, "{kind}");
    }
    let WorkloadChange::PatchStatus { patch, .. } = &released.workload[0] else {
        panic!()
    };
    assert_eq!(patch["status"].get("admission"), Some(&Value::Null));
}

#[test]
fn deleted_workload_stops_the_job() {
    let off = evicted(&admitted(2, 2, ""), "Deactivated");
    assert_eq!(status_of(&decide(&off).workload[0])["Requeued"].0, "False");
    let mut deleted = admitted(2, 2, "");
    deleted.run = Some(saved(5, training(5)));
    deleted.queue.workload.as_mut().unwrap().deleting = true;
    assert_eq!(decide(&deleted).coordinator, CoordinatorGoal::Stop);
    deleted.queue.workload = None;
    assert_eq!(decide(&deleted).coordinator, CoordinatorGoal::Stop);
}

#[test]
fn most_flexible_group_may_be_admitted_in_part() {
    let groups = "  workerGroups:\n    - {name: spot, maxWorkers: 12, gpusPerPod: 2}\n    - {name: coordinator, minWorkers: 1, maxWorkers: 3}\n    - {name: none, maxWorkers: 0}\n";
    let mut observed = queued(16, groups);
    let job = observed.job.spec.as_mut().unwrap();
    job.elasticity.min_workers = 8;
    let desired = decide(&observed);
    // The second group has 3 workers, so the first needs at least 5: three pods with two workers each.
    let expected = [
        ("varuna-coordinator", 1, None),
        ("spot", 6, Some(3)),
        ("coordinator", 3, None),
    ];
    assert_eq!(sets(made(&desired)), expected);
    let status = admission(&[("varuna-coordinator", 1), ("spot", 4), ("coordinator", 3)]);
    observed.queue.workload = Some(seen(made(&desired), &status));
    let desired = decide(&observed);
    let of_group = |name: &str| {
        desired
            .create
            .iter()
            .filter(|p| p["metadata"]["labels"][objects::GROUP_LABEL] == name)
            .count()
    };
    assert_eq!((of_group("spot"), of_group("coordinator")), (4, 3));
}

#[test]
fn workload_is_fixed_once_it_has_quota() {
    let mut waiting = queued(4, "");
    let workload = made(&decide(&waiting)).clone();
    waiting.queue.workload = Some(seen(&workload, &json!({})));
    waiting.job.spec.as_mut().unwrap().elasticity.max_workers = Some(6);
    let desired = decide(&waiting);
    let [WorkloadChange::Patch { patch, .. }] = &desired.workload[..] else {
        panic!("{:?}", desired.workload);
    };
    assert_eq!(patch["spec"]["podSets"][1]["count"], 6);
    let mut admitted = admitted(4, 4, "");
    admitted.job.spec.as_mut().unwrap().elasticity.max_workers = Some(6);
    let desired = decide(&admitted);
    assert_eq!(names(&desired).len(), 4);
    let is_patch = |c: &WorkloadChange| matches!(c, WorkloadChange::Patch { .. });
    assert!(!desired.workload.iter().any(is_patch), "{:?}", desired.workload);
    // The label was removed: a Workload with quota keeps it, and other Workloads are deleted.
    admitted.job.spec.as_mut().unwrap().queue = None;
    assert_eq!(names(&decide(&admitted)).len(), 4);
    waiting.job.spec.as_mut().unwrap().queue = None;
    let desired = decide(&waiting);
    assert_eq!(desired.workload, [WorkloadChange::Delete("j-q1-u".into())]);
    assert_eq!(names(&desired).len(), 6);
}

#[test]
fn the_end_of_a_job_and_its_suspension_give_the_quota_back() {
    let mut done = admitted(2, 2, "");
    done.run = Some(ObservedRun {
        ended: Some(RunEnd::Done),
        ..training(10)
    });
    done.pods = vec![pod(1, PodPhase::Running)];
    assert_eq!(decide(&done).workload, [], "a pod still ends");
    done.pods = vec![];
    let finished = decide(&done);
    assert_eq!(
        status_of(&finished.workload[0])["Finished"],
        ("True".into(), "Succeeded".into())
    );
    // More steps are ordered: another Workload is created, and the finished one is deleted.
    let finish = stated("Finished", true, "Succeeded", "");
    let workload = done.queue.workload.as_mut().unwrap();
    workload.conditions.push(serde_json::from_value(finish).unwrap());
    assert_eq!(decide(&done).workload, []);
    done.job.spec.as_mut().unwrap().training.steps = 20;
    assert_eq!(made(&decide(&done))["metadata"]["name"], "j-q2-u");
    done.queue.earlier = vec!["j-q1-u".into()];
    assert_eq!(decide(&done).workload[0], WorkloadChange::Delete("j-q1-u".into()));

    let mut suspended = admitted(2, 2, "");
    suspended.job.spec.as_mut().unwrap().suspend = true;
    assert_eq!(
        decide(&suspended).workload,
        [WorkloadChange::Delete("j-q1-u".into())]
    );
    suspended.queue.workload = None;
    assert_eq!(
        decide(&suspended).workload,
        [],
        "who suspends a job waits for no quota"
    );
}

#[test]
fn an_eviction_during_a_recovery_saves_as_well() {
    let mut observed = evicted(&admitted(2, 2, ""), "Preempted");
    observed.coordinators = vec![coordinator(1, PodPhase::Running)];
    observed.run = Some(run(RunMode::Recovering, 1, 5));
    let saving = decide(&observed);
    assert_eq!(
        (saving.coordinator, saving.workload.len()),
        (CoordinatorGoal::RunAndSave, 0)
    );
    let mut late = carried_out(&observed, &saving);
    late.now += suspend::WAIT_MAX_SECONDS;
    assert_eq!(decide(&late).coordinator, CoordinatorGoal::Stop);
}

#[test]
fn a_sidecar_that_outlives_its_worker_keeps_no_quota() {
    let with_end = |mut observed: Observed, end: RunEnd| {
        observed.run = Some(ObservedRun {
            ended: Some(end),
            ..training(10)
        });
        observed
    };
    let mut suspended = admitted(2, 2, "");
    suspended.job.spec.as_mut().unwrap().suspend = true;
    let scenes = [
        with_end(admitted(2, 2, ""), RunEnd::Done),
        with_end(admitted(2, 2, ""), RunEnd::StateLost("segments 2..4".into())),
        with_end(suspended, RunEnd::Stopped),
        with_end(evicted(&admitted(2, 2, ""), "Preempted"), RunEnd::Stopped),
    ];
    for mut observed in scenes {
        observed.pods = vec![ended(1, 0, "Completed", 5), ended(2, 1, "Error", 5)];
        for beside in &mut observed.pods {
            beside.phase = PodPhase::Running;
        }
        let desired = decide(&observed);
        assert_eq!(deleted(&desired), ["j-w1-u", "j-w2-u"]);
        assert_eq!(desired.workload, []);
        let going = carried_out(&observed, &desired);
        assert_eq!(deleted(&decide(&going)), Vec::<&str>::new(), "they go already");
        observed.pods.clear();
        assert_eq!(decide(&observed).workload.len(), 1, "{observed:?}");
    }
}

#[test]
fn refused_job_releases_its_quota() {
    let mut refused = admitted(2, 2, "");
    refused.run = Some(ObservedRun {
        ended: Some(RunEnd::CheckpointsTaken("default/other".into())),
        ..training(5)
    });
    refused.pods = vec![pod(1, PodPhase::Running)];
    let stopping = decide(&refused);
    assert_eq!(deleted(&stopping), ["j-w1-u"]);
    assert_eq!(stopping.workload, [], "a pod still ends");
    refused.pods.clear();
    let stopped = decide(&refused);
    assert_eq!(stopped.workload, [WorkloadChange::Delete("j-q1-u".into())]);
    let mut again = carried_out(&refused, &stopped);
    (again.queue.workload, again.run) = (None, None);
    assert_eq!(decide(&again).workload, []);
    again.now += 300;
    assert_eq!(made(&decide(&again))["metadata"]["name"], "j-q1-u");
}

#[test]
fn pods_that_may_not_be_made_use_up_no_numbers() {
    let mut saving = evicted(&admitted(4, 4, ""), "Preempted");
    saving.pods = vec![pod(1, PodPhase::Running)];
    saving.coordinators = vec![coordinator(1, PodPhase::Running)];
    saving.run = Some(saved(2, training(5)));
    let first = decide(&saving);
    assert_eq!(first.coordinator, CoordinatorGoal::RunAndSave);
    assert_eq!((names(&first).len(), first.status.newest_pod), (0, 1));
    let second = decide(&carried_out(&saving, &first));
    assert_eq!(second.status, first.status);
    let mut unplaced = admitted(4, 3, "");
    unplaced.queue.flavors.clear();
    assert_eq!(decide(&unplaced).status.newest_pod, 0);
}

#[test]
fn without_kueue_the_job_says_so_and_a_run_goes_on() {
    let mut observed = queued(2, "");
    observed.queue = ObservedQueue::default();
    let desired = decide(&observed);
    assert_eq!((names(&desired).len(), desired.workload.len()), (0, 0));
    let waits = condition(&desired, ConditionType::Admitted);
    assert_eq!(waits.reason, "NoKueue");
    assert!(
        waits.message.contains("install Kueue, or remove the label"),
        "{}",
        waits.message
    );
    observed.run = Some(training(5));
    assert_eq!(decide(&observed).coordinator, CoordinatorGoal::Run);
}

/// A job whose Workloads are still being listed, and whose training state exists only in its workers.
fn being_listed() -> Observed {
    let mut observed = queued(2, "");
    let mut job = spec(2, "  allowStateLoss: true\n");
    job.queue = Some("team-a".into());
    observed.job.spec = Ok(job);
    observed.queue.is_being_listed = true;
    observed
}

#[test]
fn a_run_goes_on_as_it_is_while_what_kueue_says_is_being_listed() {
    let mut observed = being_listed();
    observed.pods = (1..=4).map(|i| pod(i, PodPhase::Running)).collect();
    // A pod of an increment that is not known yet either, and a pod on a node that announces its end.
    observed.pods[1].workload = Some("j-q-grow1-u".into());
    observed.pods[3].node = Some("spot".into());
    let spot = ObservedNode {
        ready: true,
        taints: vec!["karpenter.sh/disrupted".into()],
        ..ObservedNode::default()
    };
    observed.nodes.insert("spot".into(), spot);
    observed.coordinators = vec![coordinator(1, PodPhase::Running)];
    observed.run = Some(training(5));
    let continued = decide(&observed);
    assert_eq!(continued.coordinator, CoordinatorGoal::Run);
    assert_eq!(continued.orders.as_ref().unwrap().goal, RunGoal::Run);
    assert_eq!(
        (deleted(&continued), names(&continued).len()),
        (vec!["j-w4-u"], 0)
    );
    assert_eq!((continued.workload.len(), continued.reconcile_in), (0, Some(2)));
    assert_eq!(continued.status.phase, Some(JobPhase::Training));
    // The operator waits before it starts the next coordinator.
    let mut without = observed.clone();
    (without.run, without.coordinators) = (None, vec![]);
    let waits = decide(&without);
    assert_eq!((deleted(&waits), waits.starts.is_some()), (vec!["j-w4-u"], false));
    observed.queue.is_being_listed = false;
    let not_admitted = decide(&observed);
    assert_eq!(
        not_admitted.coordinator,
        CoordinatorGoal::Stop,
        "there is no Workload"
    );
}

#[test]
fn nothing_starts_while_kueue_is_being_listed() {
    let mut observed = being_listed();
    let waits = decide(&observed);
    assert_eq!((names(&waits).len(), waits.starts.is_some()), (0, false));
    assert_eq!((waits.workload.len(), waits.reconcile_in), (0, Some(2)));
    assert_eq!(waits.status.phase, Some(JobPhase::Queued));
    // The earlier message of the condition remains.
    let mut before = admitted(2, 2, "");
    before.job.status = decide(&before).status;
    let said = |observed: &Observed| condition(&decide(observed), ConditionType::Admitted).clone();
    let admitted = said(&before);
    before.queue = observed.queue.clone();
    assert_eq!(said(&before), admitted);
    observed.queue.is_being_listed = false;
    assert_eq!(made(&decide(&observed))["metadata"]["name"], "j-q1-u");
}

proptest! {
    #[test]
    fn pods_never_exceed_the_admission(
        max in 1_u32..9,
        counts in proptest::option::of((0_u32..2, 0_u32..9)),
        live in 0_i64..9,
        is_evicted in any::<bool>(),
        trains in any::<bool>(),
        suspend in any::<bool>(),
    ) {
        let extra = if suspend { "  suspend: true\n" } else { "" };
        let mut observed = queued(max, "");
        let workload = made(&decide(&observed)).clone();
        observed.queue.workload = counts.map(|(coordinator, workers)| {
            seen(&workload, &admission(&[("coordinator", coordinator), ("workers", workers)]))
        });
        let mut job = spec(max, &format!("{QUEUED}{extra}"));
        job.queue = Some("team-a".into());
        observed.job.spec = Ok(job);
        if is_evicted && counts.is_some() {
            observed = evicted(&observed, "Preempted");
        }
        observed.pods = (1..=live).map(|i| pod(i, PodPhase::Running)).collect();
        observed.run = trains.then(|| training(5));
        let desired = decide(&observed);
        let allowed = counts.filter(|_| !is_evicted).map_or(0, |(_, workers)| workers as usize);
        let stay = usize::try_from(live).unwrap() - desired.delete.len();
        prop_assert!(names(&desired).is_empty() || stay + names(&desired).len() <= allowed);
        let holds = counts.is_some();
        let gives_back = desired.workload.iter().any(|c| match c {
            WorkloadChange::Delete(_) => holds,
            WorkloadChange::PatchStatus { patch, .. } => patch["status"].get("admission").is_some(),
            _ => false,
        });
        prop_assert!(!gives_back || (live == 0 && !trains), "quota is given back under running pods");
        let second = decide(&carried_out(&observed, &desired));
        prop_assert!(second.create.is_empty(), "{:?}", names(&second));
    }
}
