//! The pod of a job's coordinator: its template, completed field by field. What is needed to open the checkpoint location comes from the
//! workers' template.

use super::decision::AvoidedNodes;
use super::objects::{
    CERTIFICATE_KEY, COORDINATOR, COORDINATOR_LABEL, HEALTH_PORT, MADE_FROM_ANNOTATION, PORT, PRIVATE_KEY,
    TOKEN_KEY, WORKER, coordinator_account, coordinator_pod_name, identity_of, metadata, record_name,
    token_name,
};
use super::observed::ObservedJob;
use super::pod_parts::{append, fill_in_metadata, security_context, take_container};
use super::pod_placement::{avoid_nodes, note_avoided, tolerate};
use super::settings::Settings;
use serde_json::{Map, Value, json};
use std::path::Path;
use varuna_api::{Job, fill_in};

/// Seconds for which a coordinator continues after it was asked to end: another one takes over in that time.
const GRACE_SECONDS: i64 = 30;
/// Maximum size of the run folder. It grows by a kilobyte with each step, for `metrics.jsonl` and the event files, and holds a thousand plans, each of some
/// hundred bytes for a worker. The kubelet evicts a pod whose volume is larger than this. It is only a limit: nothing is reserved.
const RUN_FOLDER_MAX: &str = "32Gi";
/// Labels by which clouds mark nodes that may be taken away at any time: key and value.
const SPOT_LABELS: &[(&str, &str)] = &[
    ("cloud.google.com/gke-spot", "true"),
    ("cloud.google.com/gke-preemptible", "true"),
    ("karpenter.sh/capacity-type", "spot"),
    ("eks.amazonaws.com/capacityType", "SPOT"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
];
/// Fields of the workers' pods that the coordinator's have as well, where its own template does not say otherwise.
const AS_WORKERS: &[&str] = &[
    "imagePullSecrets",
    "securityContext",
    "tolerations",
    "dnsConfig",
    "dnsPolicy",
    "hostAliases",
    "schedulerName",
];
/// Sources of volumes that hold keys and certificates. Others hold data, and may be attached to one node only.
const KEY_VOLUMES: &[&str] = &["secret", "configMap", "projected", "downwardAPI", "csi"];

/// The image of the coordinator's pods.
pub(super) fn image(job: &Job, settings: &Settings) -> Option<String> {
    let template = job.coordinator.template.clone().unwrap_or_else(|| json!({}));
    let mut spec = template["spec"].as_object().cloned().unwrap_or_default();
    let (own, _) = take_container(&mut spec, COORDINATOR);
    let given = own["image"].as_str().map(str::to_owned);
    given.or_else(|| settings.coordinator_image.clone())
}

/// Identity of what a coordinator's pod is made from, whatever its number is and where it may go: one that cannot start is out of date with another one.
pub(super) fn made_from(observed: &ObservedJob, job: &Job, settings: &Settings) -> String {
    identity_of(&document(observed, job, 0, &AvoidedNodes::default(), settings))
}

/// The coordinator's pod of a number.
pub(super) fn pod(
    observed: &ObservedJob,
    job: &Job,
    number: i64,
    avoid: &AvoidedNodes,
    settings: &Settings,
) -> Value {
    let mut pod = document(observed, job, number, avoid, settings);
    let identity = json!({ MADE_FROM_ANNOTATION: made_from(observed, job, settings) });
    fill_in(&mut pod["metadata"]["annotations"], &identity);
    pod
}

/// The coordinator's pod of a number, without the identity of what it is made from.
fn document(
    observed: &ObservedJob,
    job: &Job,
    number: i64,
    avoid: &AvoidedNodes,
    settings: &Settings,
) -> Value {
    let template = |given: &Option<Value>| given.clone().unwrap_or_else(|| json!({}));
    let (own, workers) = (
        template(&job.coordinator.template),
        template(&job.workers.template),
    );
    let mut meta = metadata(observed, &coordinator_pod_name(observed, number));
    meta["labels"][COORDINATOR_LABEL] = number.to_string().into();
    note_avoided(&mut meta, avoid);
    for from in [&own, &workers] {
        fill_in_metadata(&mut meta, from);
    }
    let mut spec = own["spec"].as_object().cloned().unwrap_or_default();
    for field in AS_WORKERS {
        fill_in(
            spec.entry(*field).or_insert(Value::Null),
            &workers["spec"][*field],
        );
    }
    without_kernel_parameters(&mut spec, &own);
    spec.retain(|_, value| !value.is_null());
    let (base, mut containers) = take_container(&mut spec, COORDINATOR);
    let (mut worker, _) = take_container(
        &mut workers["spec"].as_object().cloned().unwrap_or_default(),
        WORKER,
    );
    take_volumes(&mut spec, &mut worker, &workers["spec"]["volumes"], job);
    containers.insert(
        0,
        container(observed, number, base, &worker, image(job, settings)),
    );
    spec.insert("containers".into(), containers.into());
    complete(&mut spec, observed, job, settings);
    avoid_nodes(&mut spec, avoid);
    avoid_spot_nodes(&mut spec);
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec })
}

/// The workers' kernel parameters are for the workers' traffic, and a kubelet that does not allow them rejects the pod. So the coordinator
/// has only those of its own template.
fn without_kernel_parameters(spec: &mut Map<String, Value>, own: &Value) {
    let none_of_its_own = own["spec"]["securityContext"]["sysctls"].is_null();
    if let (true, Some(context)) = (
        none_of_its_own,
        spec.get_mut("securityContext").and_then(Value::as_object_mut),
    ) {
        context.remove("sysctls");
    }
}

fn complete(spec: &mut Map<String, Value>, observed: &ObservedJob, job: &Job, settings: &Settings) {
    // Another one has another number: one that is restarted in place would be the same to the operator.
    spec.insert("restartPolicy".into(), "Never".into());
    spec.insert(
        "serviceAccountName".into(),
        coordinator_account(observed, job).0.into(),
    );
    spec.insert("automountServiceAccountToken".into(), true.into());
    let mut default = |field: &str, value: Value| {
        fill_in(spec.entry(field).or_insert(Value::Null), &value);
    };
    default("terminationGracePeriodSeconds", GRACE_SECONDS.into());
    default("enableServiceLinks", false.into());
    default("securityContext", security_context());
    if let Some(class) = &settings.coordinator_priority_class {
        default("priorityClassName", class.as_str().into());
    }
    let volumes = spec.entry("volumes").or_insert(Value::Null);
    let keys = [TOKEN_KEY, CERTIFICATE_KEY, PRIVATE_KEY].map(|key| json!({ "key": key, "path": key }));
    append(
        volumes,
        vec![
            json!({ "name": "varuna-credentials", "secret": { "secretName": token_name(observed), "items": keys, "defaultMode": 0o440 } }),
            json!({ "name": "varuna-run", "emptyDir": { "sizeLimit": RUN_FOLDER_MAX } }),
        ],
    );
    tolerate(spec, job);
}

fn container(
    observed: &ObservedJob,
    number: i64,
    base: Value,
    worker: &Value,
    image: Option<String>,
) -> Value {
    let mut container = base;
    container["name"] = COORDINATOR.into();
    let run = record_name(observed);
    fill_in(
        &mut container,
        &json!({
            "image": image,
            "command": ["varuna-coordinator"],
            "args": ["--job", observed.name, "--run", run, "--number", number.to_string(), "--run-dir", "/tmp/varuna"],
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "ports": [{ "name": "grpc", "containerPort": PORT }, { "name": "health", "containerPort": HEALTH_PORT }],
            "livenessProbe": { "httpGet": { "path": "/healthz", "port": HEALTH_PORT }, "periodSeconds": 10, "failureThreshold": 4 },
            "resources": { "requests": { "cpu": "100m", "memory": "128Mi" } },
            "securityContext": {
                "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": { "drop": ["ALL"] },
            },
        }),
    );
    let field =
        |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let mut env = vec![
        field("VARUNA_POD_IP", "status.podIP"),
        field("VARUNA_POD_NAMESPACE", "metadata.namespace"),
        json!({ "name": "HOME", "value": "/tmp" }),
    ];
    // Its own template's first, then the workers': what opens the checkpoint location for workers also opens it for the coordinator.
    for given in [&worker["env"], &container["env"]] {
        let given = given.as_array().cloned().unwrap_or_default();
        env.retain(|e| given.iter().all(|g| g["name"] != e["name"]));
        env.extend(given);
    }
    container["env"] = env.into();
    let from = worker["envFrom"].as_array().cloned().unwrap_or_default();
    if !from.is_empty() {
        append(&mut container["envFrom"], from);
    }
    mount(&mut container, worker);
    container
}

/// Gives the pod those of the workers' volumes that open the checkpoint location, and takes the others out of the worker's mounts.
fn take_volumes(spec: &mut Map<String, Value>, worker: &mut Value, volumes: &Value, job: &Job) {
    let folder = job
        .checkpoint
        .as_ref()
        .and_then(|c| match c.uri.split_once("://") {
            None => Some(c.uri.as_str()),
            Some(("file", path)) => Some(path),
            Some(_) => None,
        });
    let mounts = worker["volumeMounts"].as_array().cloned().unwrap_or_default();
    let is_above = |mount: &Value| {
        let path = mount["mountPath"].as_str();
        path.zip(folder)
            .is_some_and(|(path, folder)| Path::new(folder).starts_with(path))
    };
    let opens = |volume: &Value| {
        KEY_VOLUMES.iter().any(|source| !volume[source].is_null())
            || mounts.iter().any(|m| m["name"] == volume["name"] && is_above(m))
    };
    let taken: Vec<Value> = volumes
        .as_array()
        .into_iter()
        .flatten()
        .filter(|v| opens(v))
        .cloned()
        .collect();
    worker["volumeMounts"] = mounts
        .iter()
        .filter(|m| taken.iter().any(|v| v["name"] == m["name"]))
        .cloned()
        .collect();
    // What its own template says there is kept, even if the API server would not accept it.
    let own = spec.entry("volumes").or_insert_with(|| json!([]));
    let new = taken
        .into_iter()
        .filter(|t| {
            own.as_array()
                .into_iter()
                .flatten()
                .all(|g| g["name"] != t["name"])
        })
        .collect();
    append(own, new);
}

/// The workers' mounts, and its own.
fn mount(container: &mut Value, worker: &Value) {
    let own = [
        json!({ "name": "varuna-credentials", "mountPath": "/run/varuna/credentials", "readOnly": true }),
        json!({ "name": "varuna-run", "mountPath": "/tmp" }),
    ];
    let of_workers = worker["volumeMounts"].as_array().cloned().unwrap_or_default();
    for mount in of_workers.into_iter().chain(own) {
        let given = container["volumeMounts"].as_array();
        let is_taken = given
            .into_iter()
            .flatten()
            .any(|m| m["mountPath"] == mount["mountPath"]);
        if !is_taken {
            append(&mut container["volumeMounts"], vec![mount]);
        }
    }
}

/// A node that may be taken away at any time is the second choice.
fn avoid_spot_nodes(spec: &mut Map<String, Value>) {
    let not_spot: Vec<Value> = SPOT_LABELS
        .iter()
        .map(|(key, value)| json!({ "key": key, "operator": "NotIn", "values": [value] }))
        .collect();
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let affinity = spec.entry("affinity").or_insert(Value::Null);
    fill_in(affinity, &json!({ "nodeAffinity": { preferred: [] } }));
    if let Some(preferences) = affinity.pointer_mut(&format!("/nodeAffinity/{preferred}")) {
        let preference = json!({ "matchExpressions": not_spot });
        append(
            preferences,
            vec![json!({ "weight": 50, "preference": preference })],
        );
    }
}
