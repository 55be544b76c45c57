use super::*;
use crate::decide::ObservedJob;
use crate::decide::objects::{
    APPLIED_ANNOTATION, COORDINATOR_LABEL, JOB_LABEL, MADE_FROM_ANNOTATION, NUMBER_LABEL, increment_name,
    workload_name, workload_prefix,
};
use crate::fixtures;
use crate::node_object::NodeObject;
use crate::resource::job_ref;
use crate::run_object::RunObject;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DynamicObject;
use kube::core::PartialObjectMeta;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use varuna_api::manifest::{API_VERSION, KIND};

fn index() -> Index {
    Index::new(fixtures::settings())
}

fn owner(job: &str) -> Value {
    json!([{ "apiVersion": API_VERSION, "kind": KIND, "name": job, "uid": format!("uid-{job}"), "controller": true }])
}

fn pod(job: &str, number: u32, node: &str, more: &Value) -> Pod {
    let name = format!("{job}-w{number}");
    let labels = json!({ JOB_LABEL: job, NUMBER_LABEL: number.to_string() });
    let mut metadata = json!({
        "name": name, "namespace": "n", "uid": format!("uid-{name}"), "labels": labels, "ownerReferences": owner(job),
    });
    for (field, value) in more.as_object().unwrap() {
        metadata[field] = value.clone();
    }
    let spec = json!({ "nodeName": node, "containers": [] });
    serde_json::from_value(json!({ "metadata": metadata, "spec": spec, "status": { "phase": "Running" } }))
        .unwrap()
}

fn node(name: &str, taints: &[&str], heartbeat: &str) -> NodeObject {
    let taints: Vec<Value> = taints
        .iter()
        .map(|key| json!({ "key": key, "effect": "NoSchedule" }))
        .collect();
    let ready = json!({ "type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat });
    let status = json!({ "conditions": [ready] });
    serde_json::from_value(
        json!({ "metadata": { "name": name }, "spec": { "taints": taints }, "status": status }),
    )
    .unwrap()
}

fn seen<K>(index: &impl Fill<K>, object: &K) -> Vec<JobRef> {
    index.seen(object)
}

/// All objects, as a watch shows them when it starts again.
fn relist<K>(index: &impl Fill<K>, objects: &[K]) -> Vec<JobRef> {
    index.begin();
    let mut changed: Vec<JobRef> = objects.iter().flat_map(|object| index.seen(object)).collect();
    changed.extend(index.complete());
    changed
}

const NOON: &str = "2026-01-01T12:00:00Z";
const LATER: &str = "2026-01-01T12:05:00Z";

#[test]
fn relist_shows_missed_taints() {
    let index = index();
    relist(&index, &[node("a", &[], NOON), node("b", &[], NOON)]);
    seen(&index, &pod("j", 1, "a", &json!({})));
    seen(&index, &pod("k", 1, "b", &json!({})));
    assert_eq!(seen(&index, &node("a", &[], LATER)), [], "a heartbeat");
    // The watch starts again: meanwhile one node was tainted, and the other is gone.
    let changed = relist(&index, &[node("a", &["karpenter.sh/disrupted"], LATER)]);
    assert_eq!(changed, [job_ref("n", "j"), job_ref("n", "k")]);
    let nodes = index.nodes.lock();
    assert!(!nodes.knows("b"));
    let of = nodes.of(std::iter::empty(), &[]);
    let keys: Vec<&str> = of["a"].taints.iter().map(|t| t.key.as_str()).collect();
    assert_eq!(
        keys,
        ["karpenter.sh/disrupted"],
        "it announces its end to every job"
    );
}

#[test]
fn a_job_knows_its_own_nodes_and_those_that_announce_their_end() {
    let index = index();
    let all = ["a", "b", "c", "d"].map(|name| {
        let taint: &[&str] = match name {
            "b" => &["karpenter.sh/disrupted"],
            "c" => &["example.com/going"],
            _ => &[],
        };
        node(name, taint, NOON)
    });
    relist(&index, &all);
    let of = |signals: &[String]| -> Vec<String> {
        index
            .nodes
            .lock()
            .of(["a", "gone"].into_iter(), signals)
            .into_keys()
            .collect()
    };
    assert_eq!(of(&[]), ["a", "b"]);
    assert_eq!(of(&["example.com/".to_owned()]), ["a", "b", "c"]);
    seen(&index, &node("b", &[], NOON));
    assert_eq!(of(&[]), ["a"], "it stays after all");
}

#[test]
fn relist_removes_missed_pods() {
    let index = index();
    relist(
        &index,
        &[pod("j", 1, "a", &json!({})), pod("j", 2, "b", &json!({}))],
    );
    assert_eq!(
        seen(&index, &pod("j", 1, "a", &json!({ "resourceVersion": "9" }))),
        []
    );
    let changed = relist(&index, &[pod("j", 2, "b", &json!({}))]);
    assert_eq!(changed, [job_ref("n", "j")]);
    let key = ("n".to_owned(), "j".to_owned());
    let names = |index: &Index| -> Vec<String> {
        let pods = index.pods.lock();
        pods.of(&key).map(|p| p.name().to_owned()).collect()
    };
    assert_eq!(names(&index), ["j-w2"]);
    assert_eq!(
        Fill::<NodeObject>::gone(&index, &node("a", &[], NOON)),
        [],
        "nobody is on it any more"
    );
    assert_eq!(
        Fill::<NodeObject>::gone(&index, &node("b", &[], NOON)),
        [job_ref("n", "j")]
    );
}

#[test]
fn expected_changes_are_not_repeated() {
    let index = index();
    seen(&index, &pod("j", 1, "a", &json!({})));
    let (key, start) = (("n".to_owned(), "j".to_owned()), Instant::now());
    let unmet = |now| index.pods.lock().unmet(now, &key);
    assert_eq!(unmet(start), None);
    let (created, deleted) = (["j-w2".to_owned()], ["j-w1".to_owned()]);
    let expect = || {
        let mut pods = index.pods.lock();
        pods.expect(
            start,
            &key,
            created.clone().into_iter(),
            deleted.clone().into_iter(),
        );
    };
    expect();
    assert!(unmet(start).is_some());
    assert_eq!(seen(&index, &pod("j", 2, "a", &json!({}))), [job_ref("n", "j")]);
    assert!(unmet(start).is_some(), "one is not gone yet");
    let going = pod("j", 1, "a", &json!({ "deletionTimestamp": NOON }));
    assert_eq!(seen(&index, &going), [job_ref("n", "j")]);
    assert_eq!(unmet(start), None);
    // A refused call is not expected to show.
    expect();
    index.pods.lock().met(&key, "j-w2");
    index.pods.lock().met(&key, "j-w1");
    assert_eq!(unmet(start), None);
}

#[test]
fn pods_hidden_by_a_silent_watch_are_read() {
    let index = index();
    let at = |number| pod("j", number, "a", &json!({}));
    relist(&index, &[at(1), at(2), pod("k", 1, "a", &json!({}))]);
    let (key, start) = (("n".to_owned(), "j".to_owned()), Instant::now());
    let unmet = |now| index.pods.lock().unmet(now, &key);
    let (created, deleted) = (["j-w3".to_owned(), "j-w4".to_owned()], ["j-w1".to_owned()]);
    index
        .pods
        .lock()
        .expect(start, &key, created.into_iter(), deleted.into_iter());
    // Many calls take a while. The time for the watch to show their results starts when they have ended.
    let ended = start + Duration::from_secs(25);
    index.pods.lock().calls_ended(ended, &key);
    let left = unmet(ended).expect("the watch has just got the time to show them");
    assert!(left > Duration::ZERO, "{left:?}");
    let silent = ended + left;
    assert_eq!(unmet(silent), Some(Duration::ZERO), "they are not taken for lost");
    assert_eq!(
        unmet(silent + left),
        Some(Duration::ZERO),
        "however long it takes"
    );
    index.pods.lock().read(&key, &[at(2), at(3)]);
    assert_eq!(unmet(silent), None, "what is not there does not come");
    let names = |job: &str| -> Vec<String> {
        let key = ("n".to_owned(), job.to_owned());
        let pods = index.pods.lock();
        pods.of(&key).map(|p| p.name().to_owned()).collect()
    };
    assert_eq!(names("j"), ["j-w2", "j-w3"]);
    assert_eq!(names("k"), ["k-w1"], "another job's");
    // Deleted pods are on no node any more.
    index.pods.lock().read(&key, &[]);
    assert_eq!(
        Fill::<NodeObject>::gone(&index, &node("a", &[], NOON)),
        [job_ref("n", "k")]
    );
}

/// The names of the job's pods, and whether they are being deleted.
fn known_pods(index: &Index, key: &JobKey) -> Vec<(String, bool)> {
    let pods = index.pods.lock();
    let known = pods.of(key).map(|pod| (pod.name().to_owned(), pod.is_deleting()));
    known.collect()
}

#[test]
fn list_that_is_older_than_the_watch_changes_nothing() {
    let index = index();
    let runs = |number| pod("j", number, "a", &json!({}));
    let goes = |number| pod("j", number, "a", &json!({ "deletionTimestamp": NOON }));
    relist(&index, &[runs(1), runs(2), runs(3)]);
    let (key, start) = (("n".to_owned(), "j".to_owned()), Instant::now());
    let deleted = ["j-w1", "j-w3"].map(str::to_owned);
    index
        .pods
        .lock()
        .expect(start, &key, std::iter::empty(), deleted.into_iter());
    // While the list is on its way, the watch shows that one pod is going, that one is gone, and that one is new.
    index.pods.lock().begin_read(&key);
    seen(&index, &goes(1));
    Fill::<Pod>::gone(&index, &runs(2));
    seen(&index, &runs(4));
    index.pods.lock().read(&key, &[runs(1), runs(2), goes(3)]);
    let of = |number: u32, going| (format!("j-w{number}"), going);
    assert_eq!(known_pods(&index, &key), [of(1, true), of(3, true), of(4, false)]);
    assert_eq!(index.pods.lock().unmet(start, &key), None);
    // A list that was asked for later, and one after a list that did not come, are believed.
    index.pods.lock().begin_read(&key);
    index.pods.lock().read(&key, &[runs(4)]);
    assert_eq!(known_pods(&index, &key), [of(4, false)]);
    index.pods.lock().begin_read(&key);
    seen(&index, &runs(5));
    index.pods.lock().read_failed(&key);
    index.pods.lock().read(&key, &[]);
    assert!(known_pods(&index, &key).is_empty());
}

#[test]
fn read_of_a_deleted_jobs_pods_collects_no_more_names() {
    let index = index();
    let key = ("n".to_owned(), "j".to_owned());
    // The reconciliation is dropped in the middle of the read.
    index.pods.lock().begin_read(&key);
    index.pods.lock().retain(|_, _| false);
    seen(&index, &pod("j", 1, "a", &json!({})));
    index.pods.lock().read(&key, &[]);
    assert!(known_pods(&index, &key).is_empty(), "no name was kept");
}

#[test]
fn deletion_that_a_late_list_misses_is_still_expected() {
    let index = index();
    relist(&index, &[pod("j", 1, "a", &json!({}))]);
    let (key, start) = (("n".to_owned(), "j".to_owned()), Instant::now());
    let deleted = std::iter::once("j-w1".to_owned());
    index.pods.lock().expect(start, &key, std::iter::empty(), deleted);
    index.pods.lock().begin_read(&key);
    seen(&index, &pod("j", 1, "b", &json!({})));
    index.pods.lock().read(&key, &[]);
    assert!(index.pods.lock().unmet(start, &key).is_some());
}

#[test]
fn pod_that_was_only_read_is_no_part_of_a_relist() {
    let index = index();
    let key = ("n".to_owned(), "j".to_owned());
    Fill::<Pod>::begin(&index);
    index.pods.lock().read(&key, &[pod("j", 1, "a", &json!({}))]);
    // The pod was gone when the watch's own list was made.
    assert_eq!(Fill::<Pod>::complete(&index), [job_ref("n", "j")]);
    assert!(known_pods(&index, &key).is_empty());
}

fn run(version: u64, coordinator: i64) -> RunObject {
    let spec = json!({ "uid": "uid-j", "goal": "Run", "coordinator": coordinator });
    serde_json::from_value(json!({
        "apiVersion": API_VERSION, "kind": "VarunaRun", "spec": spec,
        "metadata": { "name": "j-1", "namespace": "n", "uid": "r", "resourceVersion": version.to_string(), "ownerReferences": owner("j") },
    }))
    .unwrap()
}

#[test]
fn older_run_does_not_replace_a_written_one() {
    let index = index();
    assert_eq!(seen(&index, &run(5, 1)), [job_ref("n", "j")]);
    index.runs.lock().written(&run(9, 2));
    let number = || {
        index
            .runs
            .lock()
            .of("n", "j-1")
            .unwrap()
            .orders
            .as_ref()
            .unwrap()
            .coordinator
    };
    assert_eq!(seen(&index, &run(7, 1)), [], "the watch is late");
    assert_eq!(number(), 2);
    assert_eq!(seen(&index, &run(10, 3)), [job_ref("n", "j")]);
    assert_eq!(number(), 3);
    assert_eq!(relist::<RunObject>(&index, &[]), [job_ref("n", "j")]);
    assert!(index.runs.lock().of("n", "j-1").is_none());
}

fn service(version: u64, applied: &str) -> PartialObjectMeta<DynamicObject> {
    service_with(version, applied, &json!({ "f:spec": {} }))
}

fn service_with(version: u64, applied: &str, ours: &Value) -> PartialObjectMeta<DynamicObject> {
    let managed = |manager: &str, time: &str, fields: &Value| json!({ "manager": manager, "operation": "Apply", "time": time, "fieldsType": "FieldsV1", "fieldsV1": fields });
    serde_json::from_value(json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": {
            "name": "s", "namespace": "n", "uid": "s", "resourceVersion": version.to_string(),
            "annotations": { APPLIED_ANNOTATION: applied }, "ownerReferences": owner("j"),
            "managedFields": [managed("varuna-operator", NOON, ours), managed("else", LATER, &json!({}))],
        },
    }))
    .unwrap()
}

#[test]
fn pods_of_a_job_have_once_what_they_have_in_common() {
    let index = index();
    let made_from = |what: &str, label: &str| json!({ "labels": { JOB_LABEL: "j", label: "1" }, "annotations": { MADE_FROM_ANNOTATION: what } });
    let worker = |number: u32, what: &str| pod("j", number, "a", &made_from(what, NUMBER_LABEL));
    let mut coordinator = pod("j", 0, "a", &made_from("c", COORDINATOR_LABEL));
    coordinator.metadata.name = Some("j-coordinator-1".into());
    seen(&index, &coordinator);
    for (number, what) in [(1, "t"), (2, "t"), (3, "u"), (4, "t")] {
        seen(&index, &worker(number, what));
    }
    let pods = index.pods.lock();
    let key = ("n".to_owned(), "j".to_owned());
    let all: Vec<_> = pods.of(&key).collect();
    let [coordinator, first, second, other, last] = all[..] else {
        panic!("{all:?}");
    };
    assert!(coordinator.is_coordinator && !first.shares_with(coordinator));
    assert!(second.shares_with(first) && last.shares_with(first));
    assert!(!other.shares_with(first));
    assert!(all.iter().all(|pod| pod.is_of("uid-j")));
}

#[test]
fn an_object_that_somebody_deletes_makes_its_job_be_looked_at() {
    let index = index();
    let services = KindIndex(&index, ObjectKind::ALL[0]);
    let key = ("Service".to_owned(), "n".to_owned(), "s".to_owned());
    let applied = || {
        index
            .owned
            .lock()
            .get(&key)
            .and_then(|known| known.applied.clone())
    };
    relist(&services, &[service(3, "a")]);
    let written = KnownObject::of(&service(5, "b").metadata);
    index.owned.lock().written(key.clone(), written);
    seen(&services, &service(4, "a"));
    assert_eq!(applied().as_deref(), Some("b"), "the watch is late");
    let taken = service_with(6, "b", &json!({}));
    assert_eq!(
        seen(&services, &taken),
        [job_ref("n", "j")],
        "somebody has set our field"
    );
    assert!(index.owned.lock().get(&key).unwrap().is_touched);
    assert_eq!(services.gone(&service(5, "b")), [job_ref("n", "j")]);
    assert_eq!(applied(), None);
    // These objects were created while there was no watch.
    relist(&services, &[service(6, "c")]);
    assert_eq!(relist(&services, &[]), [job_ref("n", "j")]);
    assert_eq!(applied(), None);
}

fn job(name: &str) -> ObservedJob {
    fixtures::job(name, &format!("uid-{name}"))
}

/// A Workload that was admitted on a flavour.
fn workload(job: &str, name: &str, flavor: &str) -> DynamicObject {
    let assigned = json!({ "name": "workers", "count": 1, "flavors": { "cpu": flavor } });
    serde_json::from_value(json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
        "metadata": {
            "name": name, "namespace": "n", "uid": format!("uid-{name}"), "resourceVersion": "1", "creationTimestamp": NOON,
            "ownerReferences": owner(job),
        },
        "spec": { "queueName": "q" }, "status": { "admission": { "podSetAssignments": [assigned] } },
    }))
    .unwrap()
}

#[test]
fn increments_are_told_from_the_other_workloads_of_their_job() {
    let (index, j) = (index(), job("j"));
    let other = job("j-q-grow1");
    let (first, second) = (workload_name(&j, 1), workload_name(&j, 2));
    let increments = [2, 10].map(|number| increment_name(&j, number));
    relist(
        &Workloads(&index),
        &[
            workload("j", &first, "before"),
            workload("j", &second, "own"),
            workload("j", &increments[1], "more"),
            workload("j", &increments[0], "own"),
            workload(&other.name, &workload_name(&other, 1), "else"),
        ],
    );
    let flavors = ["before", "own", "more", "else"].map(|name| {
        let flavor = json!({ "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": { "name": name } });
        serde_json::from_value::<DynamicObject>(flavor).unwrap()
    });
    relist(&Flavors(&index), &flavors);
    let queue = index.queues.lock().of(&j);
    assert_eq!(queue.workload.as_ref().unwrap().name, second);
    assert_eq!(queue.earlier, [first]);
    let found = queue.increments.iter().map(|w| (w.name.clone(), w.number));
    let [two, ten] = increments.clone();
    assert_eq!(found.collect::<Vec<_>>(), [(two, 2), (ten, 10)]);
    assert!(queue.increments.iter().all(|w| w.is_increment && w.made > 0));
    assert_eq!(queue.flavors.into_keys().collect::<Vec<_>>(), ["more", "own"]);
    let of_other = index.queues.lock().of(&other);
    assert_eq!(of_other.workload.unwrap().number, 1);
    assert!(of_other.increments.is_empty() && of_other.earlier.is_empty());

    // How an operator without increments reads a name: if there is no number at this place, it is not one of its Workloads.
    let read = |name: &str| -> Option<i64> {
        let rest = name.strip_prefix(&workload_prefix("j"))?;
        rest.split('-').next()?.parse().ok()
    };
    assert_eq!(read(&second), Some(2));
    assert!(increments.iter().all(|name| read(name).is_none()));
}

#[test]
fn answer_about_an_object_that_is_gone_is_not_kept() {
    let index = index();
    let orders = run(5, 1);
    Fill::<RunObject>::gone(&index, &orders);
    index.runs.lock().written(&orders);
    assert!(index.runs.lock().of("n", "j-1").is_none());
    let key: ObjectKey = ("Service".into(), "n".into(), "s".into());
    let applied = service(5, "b");
    KindIndex(&index, ObjectKind::ALL[0]).gone(&applied);
    let written = KnownObject::of(&applied.metadata);
    index.owned.lock().written(key.clone(), written);
    assert!(index.owned.lock().get(&key).is_none());
    let j = job("j");
    let asked = workload("j", &workload_name(&j, 1), "own");
    Workloads(&index).gone(&asked);
    index.queues.lock().written(&asked);
    assert!(index.queues.lock().of(&j).workload.is_none());
    let mut read = node("a", &[], NOON);
    kube::Resource::meta_mut(&mut read).uid = Some("uid-a".into());
    Fill::<NodeObject>::gone(&index, &read);
    index.node_read(&read);
    assert!(!index.nodes.lock().knows("a"));
}

#[test]
fn answer_about_an_object_that_a_relist_misses_is_not_kept() {
    let index = index();
    let orders = run(5, 1);
    relist(&index, std::slice::from_ref(&orders));
    relist::<RunObject>(&index, &[]);
    index.runs.lock().written(&orders);
    assert!(index.runs.lock().of("n", "j-1").is_none());
    let (services, applied) = (KindIndex(&index, ObjectKind::ALL[0]), service(5, "b"));
    relist(&services, std::slice::from_ref(&applied));
    relist(&services, &[]);
    let key: ObjectKey = ("Service".into(), "n".into(), "s".into());
    let written = KnownObject::of(&applied.metadata);
    index.owned.lock().written(key.clone(), written);
    assert!(index.owned.lock().get(&key).is_none());
    let j = job("j");
    let asked = workload("j", &workload_name(&j, 1), "own");
    relist(&Workloads(&index), std::slice::from_ref(&asked));
    relist(&Workloads(&index), &[]);
    index.queues.lock().written(&asked);
    assert!(index.queues.lock().of(&j).workload.is_none());
}

#[test]
fn end_of_an_object_takes_none_made_after_it_along() {
    let index = index();
    let another = || Some("another".to_owned());
    let mut orders = run(9, 2);
    orders.metadata.uid = another();
    index.runs.lock().written(&orders);
    assert_eq!(Fill::<RunObject>::gone(&index, &run(5, 1)), []);
    assert!(index.runs.lock().of("n", "j-1").is_some());
    let key: ObjectKey = ("Service".into(), "n".into(), "s".into());
    let mut made = service(9, "b");
    made.metadata.uid = another();
    let written = KnownObject::of(&made.metadata);
    index.owned.lock().written(key.clone(), written);
    KindIndex(&index, ObjectKind::ALL[0]).gone(&service(5, "b"));
    assert!(index.owned.lock().get(&key).is_some());
    let j = job("j");
    let name = workload_name(&j, 1);
    let mut asked = workload("j", &name, "own");
    asked.metadata.uid = another();
    index.queues.lock().written(&asked);
    assert_eq!(Workloads(&index).gone(&workload("j", &name, "own")), []);
    assert!(index.queues.lock().of(&j).workload.is_some());
}
