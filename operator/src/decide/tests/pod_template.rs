//! The pods that are created from a template.

use super::*;

#[test]
fn older_pods_cost_more_to_delete() {
    let cost =
        |made: &Value| made["metadata"]["annotations"]["controller.kubernetes.io/pod-deletion-cost"].clone();
    let mut observed = observed(2);
    let made = decide(&observed).create;
    assert_eq!(
        (cost(&made[0]), cost(&made[1])),
        ("999999".into(), "999998".into())
    );
    let given = "  workers: {template: {metadata: {annotations: {controller.kubernetes.io/pod-deletion-cost: '-5'}}}}\n";
    observed.job.spec = Ok(spec(2, given));
    assert_eq!(cost(&decide(&observed).create[0]), "-5");
}
use serde_json::json;

fn made(workers: &str) -> Value {
    let mut observed = observed(64);
    observed.job.spec = Ok(spec(64, &format!("  workers: {{{workers}}}\n")));
    decide(&observed).create[0].clone()
}

fn worker_of(pod: &Value) -> &Value {
    &pod["spec"]["containers"][0]
}

#[test]
fn cpu_job_requests_no_gpu_and_user_requests_stay() {
    let limits = |workers: &str| worker_of(&made(workers))["resources"]["limits"].clone();
    let one_gpu = json!({ "nvidia.com/gpu": "1" });
    assert_eq!(limits("device: auto"), one_gpu);
    assert_eq!(limits("device: cuda"), one_gpu);
    assert_eq!(limits("device: cpu"), Value::Null);
    for device in [
        "example.com/gpu",
        "nvidia.com/mig-1g.5gb",
        "nvidia.com/gpu.shared",
    ] {
        let given =
            format!("{{spec: {{containers: [{{name: worker, resources: {{limits: {{{device}: 2}}}}}}]}}}}");
        for workers in [
            format!("device: cuda, template: {given}"),
            format!("device: cpu, template: {given}"),
        ] {
            assert_eq!(limits(&workers), json!({ device: 2 }));
        }
    }
    let of_job = limits("resources: {limits: {nvidia.com/gpu.shared: 1}}");
    assert_eq!(of_job, json!({ "nvidia.com/gpu.shared": 1 }));
    let claim = "template: {spec: {containers: [{name: worker, resources: {claims: [{name: gpu}]}}]}}";
    assert_eq!(limits(claim), Value::Null);
}

#[test]
fn gang_of_the_template_is_only_on_worker_pods() {
    let mut observed = observed(2);
    let group =
        "{spec: {schedulerName: volcano, schedulingGroup: {podGroupName: mine}}, metadata: {labels: {a: b}}}";
    observed.job.spec = Ok(spec(2, &format!("  workers: {{template: {group}}}\n")));
    let desired = decide(&observed);
    assert_eq!(desired.create.len(), 2);
    for pod in &desired.create {
        assert_eq!(pod["spec"]["schedulingGroup"], json!({ "podGroupName": "mine" }));
        assert_eq!(pod["spec"]["schedulerName"], "volcano");
        assert_eq!(pod["metadata"]["labels"]["a"], "b");
    }
    assert_eq!(desired.starts.unwrap()["spec"]["schedulingGroup"], Value::Null);
}

#[test]
fn a_request_of_one_resource_drops_no_other() {
    let resources = |workers: &str| worker_of(&made(workers))["resources"].clone();
    assert_eq!(
        resources(""),
        json!({ "limits": { "nvidia.com/gpu": "1" }, "requests": { "cpu": "100m", "memory": "256Mi" } })
    );
    let network = "resources: {requests: {cpu: 8}, limits: {vpc.amazonaws.com/efa: 1, memory: 64Gi}}";
    assert_eq!(
        resources(network),
        json!({
            "limits": { "nvidia.com/gpu": "1", "vpc.amazonaws.com/efa": 1, "memory": "64Gi" },
            "requests": { "cpu": 8 },
        })
    );
    let both = "resources: {requests: {cpu: 8, memory: 1Gi}}, template: {spec: {containers: [{name: worker, resources: {requests: {cpu: 2}}}]}}";
    assert_eq!(
        resources(both)["requests"],
        json!({ "cpu": 2, "memory": "1Gi" }),
        "the template takes precedence"
    );
}

#[test]
fn security_context_is_merged_by_field() {
    let pod = made(
        "template: {spec: {securityContext: {fsGroup: 1000}, containers: [{name: worker, securityContext: {capabilities: {add: [IPC_LOCK]}}}]}}",
    );
    let context = &pod["spec"]["securityContext"];
    assert_eq!(
        (&context["fsGroup"], &context["runAsNonRoot"]),
        (&1000.into(), &true.into())
    );
    assert_eq!(context["seccompProfile"]["type"], "RuntimeDefault");
    let of_worker = &worker_of(&pod)["securityContext"];
    assert_eq!(
        of_worker["capabilities"],
        json!({ "add": ["IPC_LOCK"], "drop": ["ALL"] })
    );
    assert_eq!(of_worker["readOnlyRootFilesystem"], true);
}

#[test]
fn worker_has_writable_tmp_and_shared_memory() {
    let pod = made("shmSize: 2Gi");
    assert_eq!(
        worker_of(&pod)["volumeMounts"],
        json!([{ "name": "varuna-tmp", "mountPath": "/tmp" }, { "name": "varuna-shm", "mountPath": "/dev/shm" }])
    );
    assert_eq!(
        pod["spec"]["volumes"][1]["emptyDir"],
        json!({ "medium": "Memory", "sizeLimit": "2147483648" })
    );
    let own = made(
        "shmSize: 2Gi, template: {spec: {volumes: [{name: scratch, hostPath: {path: /x}}], containers: [{name: worker, volumeMounts: [{name: scratch, mountPath: /tmp}]}]}}",
    );
    let mounts = worker_of(&own)["volumeMounts"].as_array().unwrap();
    assert_eq!(mounts.iter().filter(|m| m["mountPath"] == "/tmp").count(), 1);
    assert_eq!(own["spec"]["volumes"].as_array().unwrap().len(), 2);
}

#[test]
fn gpu_and_spot_taints_are_tolerated() {
    let keys = |workers: &str| -> Vec<String> {
        let pod = made(workers);
        let tolerations = pod["spec"]["tolerations"].as_array().unwrap();
        tolerations
            .iter()
            .map(|t| t["key"].as_str().unwrap_or("all").to_owned())
            .collect()
    };
    let gpu = keys("");
    for key in [
        "nvidia.com/gpu",
        "sku",
        "kubernetes.azure.com/scalesetpriority",
        "cloud.google.com/gke-spot",
    ] {
        assert!(gpu.iter().any(|k| k == key), "{key}");
    }
    assert!(
        keys("device: cpu")
            .iter()
            .all(|k| k != "nvidia.com/gpu" && k != "sku")
    );
    let own =
        keys("template: {spec: {tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoExecute}]}}");
    assert_eq!(
        own.iter().filter(|k| *k == "nvidia.com/gpu").count(),
        1,
        "the template's stands"
    );
}

#[test]
fn a_pod_in_its_nodes_network_finds_the_coordinators_name() {
    let dns =
        |template: &str| made(&format!("template: {{spec: {{{template}}}}}"))["spec"]["dnsPolicy"].clone();
    assert_eq!(dns(""), Value::Null);
    assert_eq!(dns("hostNetwork: true"), "ClusterFirstWithHostNet");
    assert_eq!(dns("hostNetwork: true, dnsPolicy: None"), "None");
}

#[test]
fn workers_of_a_pod_share_a_container() {
    let mut observed = observed(5);
    observed.job.spec = Ok(spec(5, "  workers: {gpusPerPod: 2}\n"));
    let desired = decide(&observed);
    assert_eq!(desired.create.len(), 2, "5 workers allowed: 2 pods of 2");
    let containers = desired.create[0]["spec"]["containers"].as_array().unwrap();
    assert_eq!(
        containers.len(),
        1,
        "GPUs of two containers do not reach each other"
    );
    let worker = &containers[0];
    assert_eq!(worker["command"][0], "varuna-launcher");
    let arguments = worker["args"].as_array().unwrap();
    assert_eq!(arguments[..2], ["--workers", "2"]);
    assert_eq!(worker["resources"]["limits"]["nvidia.com/gpu"], "2");
    assert_eq!(
        worker["resources"]["requests"],
        json!({ "cpu": "200m", "memory": "512Mi" })
    );
}

#[test]
fn the_template_is_completed_and_its_own_fields_stand() {
    let mut observed = observed(1);
    observed.job.spec = Ok(spec(
        1,
        "  workers:\n    template:\n      metadata: {labels: {team: a, varuna.dev/job: other}}\n      spec:\n        futureField: {x: 1}\n        containers:\n        - {name: sidecar, image: s}\n        - {name: worker, resources: {limits: {cpu: 2}}, env: [{name: VARUNA_NODE, value: rack1}]}\n",
    ));
    let pod = &decide(&observed).create[0];
    assert_eq!(pod["spec"]["futureField"]["x"], 1);
    assert_eq!(pod["metadata"]["labels"]["team"], "a");
    assert_eq!(pod["metadata"]["labels"]["varuna.dev/job"], "j");
    let worker = &pod["spec"]["containers"][0];
    assert_eq!(worker["name"], "worker");
    assert_eq!(worker["resources"]["limits"]["cpu"], 2);
    let env = worker["env"].as_array().unwrap();
    assert_eq!(env.iter().filter(|e| e["name"] == "VARUNA_NODE").count(), 1);
    assert_eq!(pod["spec"]["containers"][1]["name"], "sidecar");
}

#[test]
fn workers_listen_in_the_family_of_their_pod() {
    for (workers, last) in [("gpusPerPod: 1", 2), ("gpusPerPod: 4", 8)] {
        let pod = made(workers);
        let arguments = worker_of(&pod)["args"].as_array().unwrap().clone();
        assert_eq!(arguments.len(), last, "{arguments:?}");
        assert_eq!(
            arguments[last - 2..],
            [json!("--advertise"), json!("$(VARUNA_POD_IP)")]
        );
        assert!(
            !arguments.contains(&json!("--bind")),
            "the worker follows --advertise: {arguments:?}"
        );
    }
}

#[test]
fn own_labels_in_templates_are_ignored() {
    let metadata = "{labels: {varuna.dev/worker-group: spot, varuna.dev/coordinator-number: '7', team: a}, annotations: {varuna.dev/made-from: old, varuna.dev/avoided-nodes: good}}";
    let mut observed = observed(2);
    let template = format!("  workers: {{template: {{metadata: {metadata}}}}}\n");
    observed.job.spec = Ok(spec(2, &template));
    let first = decide(&observed);
    assert_eq!(names(&first), ["j-w1-u", "j-w2-u"]);
    let coordinator = first.starts.as_ref().unwrap();
    assert_eq!(coordinator["metadata"]["labels"][objects::COORDINATOR_LABEL], "1");
    for pod in first.create.iter().chain([coordinator]) {
        assert_eq!(pod["metadata"]["labels"]["team"], "a");
        assert_eq!(pod["metadata"]["labels"][objects::GROUP_LABEL], Value::Null);
    }
    let next = decide(&carried_out(&observed, &first));
    assert_eq!((names(&next).len(), deleted(&next).len()), (0, 0));
    assert_eq!((next.starts, next.orders), (None, None));
}
