//! Jobs that grow while they run, by additional Workloads of Kueue.

use super::queue::{admission, admitted, evicted, queued, seen, sets, stated, status_of};
use super::*;
use proptest::prelude::*;
use serde_json::json;

/// Name of the first increment of the job.
const GROWS: &str = "j-q-grow1-u";
/// Name of the job's first Workload.
const OWN: &str = "j-q1-u";

/// A job of up to `max` workers that was admitted with fewer, all of which run.
fn running(max: u32, workers: u32) -> Observed {
    let mut observed = admitted(max, workers, "");
    let numbers = 1..=i64::from(workers);
    observed.pods = numbers.map(|i| pod(i, PodPhase::Running)).collect();
    observed.coordinators = vec![coordinator(1, PodPhase::Running)];
    observed.run = Some(training(5));
    observed
}

/// The Workloads that a decision creates.
fn made(desired: &Decided) -> Vec<&Value> {
    let made = desired.workload.iter().filter_map(|change| match change {
        WorkloadChange::Create(workload) => Some(workload),
        _ => None,
    });
    made.collect()
}

/// The only Workload that the decision creates.
fn asked(observed: &Observed) -> Value {
    let desired = decide(observed);
    match made(&desired)[..] {
        [workload] => workload.clone(),
        _ => panic!("{:?}", desired.workload),
    }
}

/// The changes of the Workload with this name in a decision.
fn changes<'a>(desired: &'a Decided, of: &str) -> Vec<&'a WorkloadChange> {
    let is_of = |change: &&WorkloadChange| match change {
        WorkloadChange::Create(made) => made["metadata"]["name"] == of,
        WorkloadChange::Patch { name, .. }
        | WorkloadChange::PatchStatus { name, .. }
        | WorkloadChange::Delete(name) => name == of,
    };
    desired.workload.iter().filter(is_of).collect()
}

/// A status condition that has just become true.
fn now(kind: &str, reason: &str, message: &str) -> Condition {
    let mut condition: Condition = serde_json::from_value(stated(kind, true, reason, message)).unwrap();
    condition.last_transition_time = decision::time(NOW);
    condition
}

/// Kueue's admission of this many more workers, on the flavour `spot`.
fn admission_on_spot(workers: u32) -> Value {
    let mut status = admission(&[("workers", workers)]);
    status["admission"]["podSetAssignments"][0]["flavors"] = json!({ "nvidia.com/gpu": "spot" });
    status
}

/// The job with the increment that it requests; the increment has this status.
fn with_increment(mut observed: Observed, status: &Value) -> Observed {
    let mut increment = seen(&asked(&observed), status);
    increment.made = NOW;
    observed.queue.increments.push(increment);
    let spot = Placement {
        node_selector: BTreeMap::from([("pool".into(), "spot".into())]),
        ..Placement::default()
    };
    observed.queue.flavors.insert("spot".into(), spot);
    observed
}

/// A running job whose increment waits for quota.
fn pending(max: u32, workers: u32) -> Observed {
    let full = stated(
        "QuotaReserved",
        false,
        "Pending",
        "insufficient unused quota for nvidia.com/gpu",
    );
    with_increment(running(max, workers), &json!({ "conditions": [full] }))
}

/// A running job whose increment was admitted with this many more workers, which run as well.
fn grown(max: u32, workers: u32, more: u32) -> Observed {
    let grows = with_increment(running(max, workers), &admission_on_spot(more));
    let mut grown = carried_out(&grows, &decide(&grows));
    for pod in &mut grown.pods {
        pod.phase = PodPhase::Running;
        pod.node = Some("good".into());
    }
    grown
}

/// The same job after Kueue has evicted the increment.
fn after_eviction(mut observed: Observed) -> Observed {
    let evicted = now("Evicted", "Preempted", "a job of team b is preferred");
    observed.queue.increments[0].conditions.push(evicted);
    observed
}

fn admitted_message(observed: &Observed) -> String {
    let desired = decide(observed);
    let condition = condition(&desired, ConditionType::Admitted);
    assert_eq!(condition.status, "True");
    condition.message.clone()
}

/// Observations for the test of all messages to users.
pub(super) fn scenes() -> Vec<Observed> {
    let mut off = grown(4, 3, 1);
    off.queue.increments[0].is_active = false;
    vec![pending(4, 3), grown(4, 3, 1), after_eviction(grown(4, 3, 1)), off]
}

#[test]
fn partly_admitted_job_requests_the_rest_once_running() {
    let workload = asked(&running(8, 3));
    assert_eq!(workload["metadata"]["name"], GROWS);
    assert_eq!(workload["metadata"]["labels"]["kueue.x-k8s.io/job-uid"], "u");
    assert_eq!(workload["metadata"]["ownerReferences"][0]["uid"], "u");
    assert_eq!(workload["spec"]["queueName"], "team-a");
    assert_eq!(sets(&workload), [("workers", 5, Some(1))]);
    assert_eq!(sets(&asked(&running(4, 3))), [("workers", 1, None)]);
    // The maximum is raised after the job was admitted with all of its workers.
    let mut raised = running(3, 3);
    raised.job.spec.as_mut().unwrap().elasticity.max_workers = Some(5);
    assert_eq!(sets(&asked(&raised)), [("workers", 2, Some(1))]);
}

#[test]
fn useless_increment_is_not_requested() {
    let with = |change: &dyn Fn(&mut Observed)| {
        let mut observed = running(8, 3);
        change(&mut observed);
        observed
    };
    let job = |change: fn(&mut Job)| with(&|o| change(o.job.spec.as_mut().unwrap()));
    let scenes = [
        ("it has all", running(3, 3)),
        ("a pod waits", with(&|o| o.pods[2] = pod(3, PodPhase::Pending))),
        ("a pod is missing", with(&|o| o.pods.truncate(2))),
        (
            "a pod is tried again later",
            with(&|o| o.pods[2] = ended(3, 1, "Error", 0)),
        ),
        ("another queue", job(|j| j.queue = Some("team-b".into()))),
        ("no queue", job(|j| j.queue = None)),
        (
            "no such priority",
            job(|j| j.workload_priority_class = Some("none".into())),
        ),
        ("it saves before it is suspended", job(|j| j.suspend = true)),
        ("it loses its quota", evicted(&running(8, 3), "Preempted")),
        ("Kueue is gone", with(&|o| o.queue = ObservedQueue::default())),
        ("one is asked for already", pending(8, 3)),
    ];
    for (why, observed) in scenes {
        let desired = decide(&observed);
        assert!(made(&desired).is_empty(), "{why}: {:?}", desired.workload);
    }
}

#[test]
fn of_several_groups_the_first_that_lacks_pods_grows() {
    let groups = "  workerGroups:\n    - {name: spot, maxWorkers: 6}\n    - {name: lasting, maxWorkers: 2}\n";
    let mut observed = queued(8, groups);
    let status = admission(&[("coordinator", 1), ("spot", 4), ("lasting", 2)]);
    observed.queue.workload = Some(seen(&asked(&observed), &status));
    let of_group = |number: i64| ObservedPod {
        group: Some(if number > 4 { "lasting" } else { "spot" }.to_owned()),
        ..pod(number, PodPhase::Running)
    };
    observed.pods = (1..=6).map(of_group).collect();
    assert_eq!(sets(&asked(&observed)), [("spot", 2, Some(1))]);
    observed.pods.pop();
    assert!(
        made(&decide(&observed)).is_empty(),
        "the other one waits for a pod"
    );
}

#[test]
fn pods_use_the_flavor_of_their_workload() {
    let grows = with_increment(running(8, 3), &admission_on_spot(2));
    let desired = decide(&grows);
    assert_eq!(names(&desired), ["j-w4-u", "j-w5-u"]);
    let admitted_with = |made: &Value| made["metadata"]["annotations"]["varuna.dev/workload"].clone();
    for pod in &desired.create {
        assert_eq!(admitted_with(pod), GROWS);
        assert_eq!(pod["spec"]["nodeSelector"], json!({ "pool": "spot" }));
    }
    let mut lossy = grown(8, 3, 2);
    for lost in [0, 4] {
        lossy.pods[lost].node = Some("gone".into());
    }
    let desired = decide(&lossy);
    assert_eq!(deleted(&desired), ["j-w1-u", "j-w5-u"]);
    let [own, more] = &desired.create[..] else {
        panic!("{:?}", names(&desired));
    };
    assert_eq!(
        (admitted_with(own), admitted_with(more)),
        (Value::Null, GROWS.into())
    );
    assert_eq!(own["spec"]["nodeSelector"]["pool"], "on-demand");
    assert_eq!(more["spec"]["nodeSelector"]["pool"], "spot");
    assert!(made(&desired).is_empty(), "not all of them run");
    // The nodes of the flavour are not known yet.
    let mut unknown = grows;
    unknown.queue.flavors.remove("spot");
    assert_eq!(names(&decide(&unknown)), Vec::<String>::new());
}

#[test]
fn running_increment_allows_the_next_one() {
    let observed = grown(8, 3, 2);
    let desired = decide(&observed);
    let ready = status_of(changes(&desired, GROWS)[0]);
    assert_eq!(ready["PodsReady"], ("True".into(), "Started".into()));
    let workload = asked(&observed);
    assert_eq!(workload["metadata"]["name"], "j-q-grow2-u");
    assert_eq!(sets(&workload), [("workers", 3, Some(1))]);
    let starting = with_increment(running(8, 3), &admission_on_spot(2));
    let ready = status_of(changes(&decide(&starting), GROWS)[0]);
    assert_eq!(ready["PodsReady"].0, "False");
    assert!(made(&decide(&grown(5, 3, 2))).is_empty(), "it has all");
}

#[test]
fn a_job_has_no_more_than_eight_increments() {
    let mut observed = running(20, 3);
    for number in 1..=8 {
        observed = with_increment(observed, &admission_on_spot(1));
        observed.pods.push(ObservedPod {
            workload: Some(format!("j-q-grow{number}-u")),
            ..pod(3 + number, PodPhase::Running)
        });
    }
    assert_eq!(observed.queue.increments.len(), 8);
    assert!(made(&decide(&observed)).is_empty());
}

#[test]
fn evicted_increment_costs_only_its_pods() {
    let mut observed = grown(4, 3, 1);
    let all = ["j-w1-u", "j-w2-u", "j-w3-u", "j-w4-u"];
    observed.run = Some(with_workers(training(5), &all, &[]));
    let taken = after_eviction(observed);
    let shrinks = decide(&taken);
    assert_eq!(shrinks.coordinator, CoordinatorGoal::Run);
    assert_eq!(deleted(&shrinks), ["j-w4-u"]);
    assert_eq!(
        shrinks.orders.as_ref().unwrap().leaving,
        ["j-w4-u"],
        "a planned change"
    );
    assert!(changes(&shrinks, GROWS).is_empty(), "its quota is used");
    let mut shrunk = carried_out(&taken, &shrinks);
    assert!(changes(&decide(&shrunk), GROWS).is_empty(), "its pod still ends");
    shrunk.pods.retain(|p| !p.deleting);
    let given_back = decide(&shrunk);
    let ended = status_of(changes(&given_back, GROWS)[0]);
    assert_eq!(ended["Finished"], ("True".into(), "Withdrawn".into()));
    assert!(made(&given_back).is_empty());

    // Other Workloads have their turn before the job requests an increment again.
    let ended = now("Finished", "Withdrawn", "");
    shrunk.queue.increments[0].conditions.push(ended);
    shrunk.now = NOW + 599;
    let rests = decide(&shrunk);
    assert_eq!((changes(&rests, GROWS).len(), made(&rests).len()), (0, 0));
    assert!(!admitted_message(&shrunk).contains(GROWS));
    shrunk.now = NOW + 600;
    let rested = decide(&shrunk);
    assert_eq!(changes(&rested, GROWS), [&WorkloadChange::Delete(GROWS.into())]);
    assert!(made(&rested).is_empty());
    shrunk.queue.increments.clear();
    assert_eq!(asked(&shrunk)["metadata"]["name"], GROWS);
}

#[test]
fn pods_of_a_workload_that_somebody_has_deleted_go_as_well() {
    let mut observed = grown(5, 3, 2);
    observed.queue.increments.clear();
    let desired = decide(&observed);
    assert_eq!(deleted(&desired), ["j-w5-u", "j-w4-u"]);
    assert_eq!(names(&desired), Vec::<String>::new());
}

#[test]
fn waiting_increment_follows_the_job_and_expires() {
    let mut waiting = pending(8, 3);
    assert!(changes(&decide(&waiting), GROWS).is_empty());
    waiting.job.spec.as_mut().unwrap().elasticity.max_workers = Some(6);
    let desired = decide(&waiting);
    let found = changes(&desired, GROWS);
    let [WorkloadChange::Patch { patch, .. }] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(patch["spec"]["podSets"][0]["count"], 3);
    waiting.job.spec.as_mut().unwrap().elasticity.max_workers = Some(3);
    let desired = decide(&waiting);
    assert_eq!(changes(&desired, GROWS), [&WorkloadChange::Delete(GROWS.into())]);

    let mut late = pending(8, 3);
    late.now = NOW + 599;
    assert!(changes(&decide(&late), GROWS).is_empty());
    late.now = NOW + 600;
    let ended = status_of(changes(&decide(&late), GROWS)[0]);
    assert_eq!(ended["Finished"], ("True".into(), "Withdrawn".into()));
    // The increment has quota, and waits for an admission check.
    let mut checked = with_increment(running(8, 3), &admission_on_spot(2));
    checked.queue.increments[0]
        .conditions
        .retain(|c| c.type_ != "Admitted");
    checked.now = NOW + 3600;
    let desired = decide(&checked);
    assert_eq!((changes(&desired, GROWS).len(), names(&desired).len()), (0, 0));
}

#[test]
fn lower_maximum_removes_increments_first() {
    let mut observed = grown(6, 3, 2);
    observed.job.spec.as_mut().unwrap().elasticity.max_workers = Some(4);
    let desired = decide(&observed);
    assert_eq!(deleted(&desired), ["j-w5-u"]);
    observed.job.spec.as_mut().unwrap().elasticity.max_workers = Some(3);
    let desired = decide(&observed);
    assert_eq!(deleted(&desired), ["j-w5-u", "j-w4-u"]);
    assert!(changes(&desired, GROWS).is_empty(), "its quota is used");
    observed.pods.truncate(3);
    let desired = decide(&observed);
    assert_eq!(changes(&desired, GROWS), [&WorkloadChange::Delete(GROWS.into())]);
}

#[test]
fn eviction_of_the_job_releases_all_quota() {
    let grown = grown(8, 3, 2);
    let both = with_increment(grown, &json!({}));
    let mut observed = evicted(&both, "Preempted");
    let saving = decide(&observed);
    assert_eq!(saving.coordinator, CoordinatorGoal::RunAndSave);
    assert_eq!(
        deleted(&saving),
        Vec::<&str>::new(),
        "they train until it has saved"
    );
    assert_eq!(
        saving.workload,
        [WorkloadChange::Delete("j-q-grow2-u".into())],
        "it holds nothing"
    );
    observed.queue.increments.pop();
    observed.run.as_mut().unwrap().ended = Some(RunEnd::Stopped);
    assert_eq!(
        decide(&observed).workload,
        [],
        "the quota is used as long as pods run"
    );
    observed.pods.clear();
    observed.coordinators.clear();
    let released = decide(&observed);
    assert_eq!(status_of(changes(&released, OWN)[0])["QuotaReserved"].0, "False");
    assert_eq!(changes(&released, GROWS), [&WorkloadChange::Delete(GROWS.into())]);
}

#[test]
fn end_of_a_job_ends_its_increments() {
    for (end, reason) in [
        (RunEnd::Done, "Succeeded"),
        (RunEnd::StateLost("segments 2..4".into()), "Failed"),
    ] {
        let mut over = grown(4, 3, 1);
        over.run = Some(ObservedRun {
            ended: Some(end),
            ..training(10)
        });
        assert_eq!(decide(&over).workload, [], "pods still end");
        over.pods.clear();
        over.coordinators.clear();
        let desired = decide(&over);
        for name in [OWN, GROWS] {
            let ended = status_of(changes(&desired, name)[0]);
            assert_eq!(ended["Finished"], ("True".into(), reason.into()), "{name}");
        }
        let increment = &mut over.queue.increments[0];
        increment.conditions.push(now("Finished", reason, ""));
        over.now += 3600;
        assert!(changes(&decide(&over), GROWS).is_empty(), "it stays with the job");
    }
    let mut suspended = grown(4, 3, 1);
    suspended.job.spec.as_mut().unwrap().suspend = true;
    suspended.run = None;
    assert_eq!(decide(&suspended).workload, [], "pods still end");
    suspended.pods.clear();
    suspended.coordinators.clear();
    let deletions = [OWN, GROWS].map(|name| WorkloadChange::Delete(name.into()));
    assert_eq!(decide(&suspended).workload, deletions);
}

#[test]
fn who_removes_kueue_takes_no_pod_from_a_job_that_has_grown() {
    let mut observed = grown(4, 3, 1);
    observed.queue = ObservedQueue::default();
    let desired = decide(&observed);
    assert_eq!((deleted(&desired).len(), names(&desired).len()), (0, 0));
}

proptest! {
    #[test]
    fn workloads_keep_quota_for_their_pods(
        (max, own) in (1_u32..9, 1_u32..6),
        increments in proptest::collection::vec((1_u32..4, 0_u8..4), 0..4),
        pods in proptest::collection::vec((0_usize..5, any::<bool>()), 0..12),
    ) {
        let base = asked(&running(9, 3));
        let mut observed = admitted(max, own.min(max), "");
        let name = |i: usize| format!("j-q-grow{i}-u");
        for ((count, state), i) in increments.iter().zip(1..) {
            let mut workload = base.clone();
            workload["metadata"]["name"] = name(i).into();
            let status = if *state == 0 { json!({}) } else { admission(&[("workers", *count)]) };
            let mut increment = seen(&workload, &status);
            increment.made = NOW;
            match state {
                2 => increment.conditions.push(now("Evicted", "Preempted", "")),
                3 => increment.conditions.push(now("Finished", "Withdrawn", "")),
                _ => {}
            }
            observed.queue.increments.push(increment);
        }
        observed.pods = pods.iter().zip(1..).map(|((of, runs), number)| ObservedPod {
            workload: (*of > 0).then(|| name(*of)),
            ..pod(number, if *runs { PodPhase::Running } else { PodPhase::Pending })
        }).collect();
        let desired = decide(&observed);
        let next = carried_out(&observed, &desired);
        let live = |observed: &Observed, of: Option<String>| {
            observed.pods.iter().filter(|p| !p.deleting && p.workload == of).count()
        };
        prop_assert!(next.pods.iter().filter(|p| !p.deleting).count() <= max as usize);
        prop_assert!(live(&next, None) <= own as usize);
        for i in 1..5 {
            let in_force = increments.get(i - 1).filter(|(_, state)| *state == 1);
            let most = in_force.map_or(0, |(count, _)| *count as usize);
            prop_assert!(live(&next, Some(name(i))) <= most, "{}", name(i));
        }
        prop_assert!(made(&desired).len() <= 1);
        for change in &desired.workload {
            let (name, gives_back) = match change {
                WorkloadChange::Delete(name) => (name, true),
                WorkloadChange::PatchStatus { name, patch } => (name, patch["status"].to_string().contains("Finished")),
                _ => continue,
            };
            let used = observed.pods.iter().any(|p| p.workload.as_ref() == Some(name));
            let is_over = observed.queue.increments.iter().any(|w| w.name == *name && (w.if_true("Finished").is_some() || !w.holds_quota()));
            prop_assert!(!gives_back || is_over || !used, "{name} gives its quota back under pods");
        }
        let second = decide(&next);
        prop_assert!(second.create.is_empty() && made(&second).len() <= 1, "{:?}", names(&second));
    }
}
