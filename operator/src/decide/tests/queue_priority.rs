//! The priority of jobs in queues of Kueue.

use super::queue::{admission, made, queued, seen};
use super::*;
use serde_json::json;

/// A job in a queue of a cluster with some priority classes. The job names this WorkloadPriorityClass, and its pods this PriorityClass.
fn prioritised(workload_class: Option<&str>, pod_class: Option<&str>) -> Observed {
    let template = pod_class.map_or(String::new(), |name| {
        format!("  workers: {{template: {{spec: {{priorityClassName: {name}}}}}}}\n")
    });
    let mut observed = queued(2, &template);
    let job = observed.job.spec.as_mut().unwrap();
    job.workload_priority_class = workload_class.map(str::to_owned);
    let classes = &mut observed.queue.classes;
    for (kind, name, value) in [
        (PriorityKind::Workload, "gold", 100),
        (PriorityKind::Workload, "silver", 50),
        (PriorityKind::Pod, "gold", 7),
        (PriorityKind::Pod, "usual", 3),
    ] {
        classes.values.insert((kind, name.into()), value);
    }
    observed
}

#[test]
fn priority_is_the_label_then_the_pod_class() {
    let said = |observed: &Observed| {
        let workload = made(&decide(observed)).clone();
        let spec = &workload["spec"];
        (
            spec.get("priority").cloned(),
            spec.get("priorityClassRef").cloned(),
        )
    };
    let of = |group: &str, kind: &str, name: &str, value: i64| {
        let class = json!({ "group": group, "kind": kind, "name": name });
        (Some(json!(value)), Some(class))
    };
    let both = prioritised(Some("gold"), Some("usual"));
    assert_eq!(
        said(&both),
        of("kueue.x-k8s.io", "WorkloadPriorityClass", "gold", 100)
    );
    let of_pods = prioritised(None, Some("gold"));
    assert_eq!(
        said(&of_pods),
        of("scheduling.k8s.io", "PriorityClass", "gold", 7)
    );
    let mut neither = prioritised(None, None);
    assert_eq!(said(&neither), (None, None));
    // A race can leave two default classes.
    neither.queue.classes.defaults = BTreeSet::from(["gold".into(), "usual".into()]);
    assert_eq!(
        said(&neither),
        of("scheduling.k8s.io", "PriorityClass", "usual", 3)
    );
}

#[test]
fn an_older_kueue_is_told_in_its_own_fields() {
    let mut observed = prioritised(Some("gold"), None);
    observed.queue.served = Some(KueueVersion::V1Beta1);
    let workload = made(&decide(&observed)).clone();
    assert_eq!(workload["spec"]["priority"], 100);
    assert_eq!(workload["spec"]["priorityClassName"], "gold");
    assert_eq!(
        workload["spec"]["priorityClassSource"],
        "kueue.x-k8s.io/workloadpriorityclass"
    );
    assert_eq!(workload["spec"].get("priorityClassRef"), None);
}

#[test]
fn missing_priority_class_is_reported() {
    for (observed, missing) in [
        (prioritised(Some("bronze"), None), "WorkloadPriorityClass bronze"),
        (prioritised(None, Some("silver")), "PriorityClass silver"),
    ] {
        let desired = decide(&observed);
        assert_eq!(desired.workload, []);
        let admitted = condition(&desired, ConditionType::Admitted);
        assert_eq!(admitted.reason, "WaitsForQuota");
        let words = format!("the job names {missing}, which does not exist");
        assert!(admitted.message.contains(&words), "{}", admitted.message);
    }
}

#[test]
fn changed_priority_label_is_applied() {
    let before = prioritised(Some("silver"), None);
    let workload = made(&decide(&before)).clone();
    let mut after = prioritised(Some("gold"), None);
    after.queue.workload = Some(seen(&workload, &json!({})));
    let WorkloadChange::Patch { patch, .. } = &decide(&after).workload[0] else {
        panic!()
    };
    assert_eq!(patch["spec"]["priority"], 100);
    assert!(patch["spec"]["podSets"].is_array());

    let admitted = admission(&[("coordinator", 1), ("workers", 2)]);
    after.queue.workload = Some(seen(&workload, &admitted));
    let WorkloadChange::Patch { patch, .. } = &decide(&after).workload[0] else {
        panic!()
    };
    assert_eq!(patch["spec"]["priorityClassRef"]["name"], "gold");
    // Nothing else of the Workload can be changed.
    assert_eq!(patch["spec"].as_object().unwrap().len(), 2);
    after.queue.workload = Some(seen(made(&decide(&prioritised(Some("gold"), None))), &admitted));
    let is_patch = |change: &WorkloadChange| matches!(change, WorkloadChange::Patch { .. });
    assert!(!decide(&after).workload.iter().any(is_patch));
    // Without the label, the job no longer has a priority of its own.
    let mut none = prioritised(None, None);
    none.queue.workload = Some(seen(&workload, &json!({})));
    let WorkloadChange::Patch { patch, .. } = &decide(&none).workload[0] else {
        panic!()
    };
    assert_eq!(patch["spec"]["priority"], Value::Null);
    assert_eq!(patch["spec"].get("priorityClassRef"), Some(&Value::Null));
}
