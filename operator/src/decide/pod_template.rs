//! The pods of a job: its template, completed field by field. Fields that the template sets are kept, and missing ones are filled in, also
//! inside a mapping that the template sets in part. So a request for memory does not drop the GPU, and an added capability does not drop
//! the ban on all others.

use super::decision::AvoidedNodes;
use super::objects::{
    CERTIFICATE_KEY, GROUP_LABEL, MADE_FROM_ANNOTATION, NUMBER_LABEL, PORT, TOKEN_KEY, WORKER,
    coordinator_name, metadata, pod_name, token_name,
};
use super::observed::ObservedJob;
use super::pod_parts::{append, fill_in_metadata, may_use_gpu, security_context, take_container};
use super::pod_placement::{avoid_nodes, note_avoided, tolerate};
use super::settings::Settings;
use serde_json::{Map, Value, json};
use varuna_api::{Job, PodGroup, WorkerDevice, fill_in};

/// What a worker requests if neither the job nor its template names a request: a pod without any request is the first to be evicted.
const WORKER_MILLICORES: u32 = 100;
/// Memory that a worker requests by default.
const WORKER_MEBIBYTES: u32 = 256;

/// The annotation with the cost of deleting a pod, for controllers and autoscalers that choose among pods: an i32, 0 if it is missing.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// The deletion cost of a job's first pod.
const DELETION_COST_MAX: i64 = 1_000_000;

/// The cost of deleting a pod. It is set when the pod is created and never changed (ADR 28). Each later pod costs a little less, because
/// the newest pods are those that wait for a place or got theirs last.
fn deletion_cost(number: i64) -> i64 {
    (DELETION_COST_MAX - number).max(1)
}

/// The pod of a number: its group's template, completed.
pub(super) fn pod(
    observed: &ObservedJob,
    (job, group): (&Job, &PodGroup<'_>),
    number: i64,
    avoid: &AvoidedNodes,
    settings: &Settings,
) -> Value {
    let job = &job.of_group(group);
    let template = job.workers.template.clone().unwrap_or_else(|| json!({}));
    let mut meta = metadata(observed, &pod_name(observed, number));
    meta["labels"][NUMBER_LABEL] = number.to_string().into();
    if let Some(name) = group.name {
        meta["labels"][GROUP_LABEL] = name.into();
    }
    meta["annotations"] = json!({ MADE_FROM_ANNOTATION: job.workers.pods_hash() });
    note_avoided(&mut meta, avoid);
    if template["metadata"]["annotations"].get(DELETION_COST).is_none() {
        meta["annotations"][DELETION_COST] = deletion_cost(number).to_string().into();
    }
    fill_in_metadata(&mut meta, &template);
    let mut spec = template["spec"].as_object().cloned().unwrap_or_default();
    let (base, mut containers) = take_container(&mut spec, WORKER);
    let mut worker = worker(observed, job, &base, settings);
    mount_folders(&mut spec, &mut worker, job);
    containers.insert(0, worker);
    spec.insert("containers".into(), containers.into());
    complete(&mut spec, job);
    avoid_nodes(&mut spec, avoid);
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec })
}

fn complete(spec: &mut Map<String, Value>, job: &Job) {
    // A worker that is restarted in place would come back under the same name with nothing in its memory.
    spec.insert("restartPolicy".into(), "Never".into());
    let mut default = |field: &str, value: Value| {
        fill_in(spec.entry(field).or_insert(Value::Null), &value);
    };
    let grace = i64::from(job.disruption.grace_seconds()) + 5;
    default("terminationGracePeriodSeconds", grace.into());
    default("automountServiceAccountToken", false.into());
    default("enableServiceLinks", false.into());
    default("securityContext", security_context());
    // Its last output is put into the job's condition if it fails.
    for container in spec
        .get_mut("initContainers")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        fill_in(
            container,
            &json!({ "terminationMessagePolicy": "FallbackToLogsOnError" }),
        );
    }
    if spec.get("hostNetwork") == Some(&Value::Bool(true)) {
        // The coordinator is found by the name of a Service.
        let dns = spec.entry("dnsPolicy").or_insert(Value::Null);
        fill_in(dns, &"ClusterFirstWithHostNet".into());
    }
    tolerate(spec, job);
}

/// Gives the worker `/tmp`, as its root is read-only, and `/dev/shm` of the size that the job names, unless the template mounts them.
fn mount_folders(spec: &mut Map<String, Value>, container: &mut Value, job: &Job) {
    let shm = job
        .workers
        .shm_bytes
        .map(|bytes| json!({ "medium": "Memory", "sizeLimit": bytes.to_string() }));
    for (name, path, volume) in [
        ("varuna-tmp", "/tmp", Some(json!({}))),
        ("varuna-shm", "/dev/shm", shm),
    ] {
        let Some(volume) = volume else { continue };
        let mounts = container["volumeMounts"].as_array();
        if mounts.into_iter().flatten().any(|m| m["mountPath"] == path) {
            continue;
        }
        append(
            &mut container["volumeMounts"],
            vec![json!({ "name": name, "mountPath": path })],
        );
        let volumes = spec.entry("volumes").or_insert(Value::Null);
        if !volumes
            .as_array()
            .into_iter()
            .flatten()
            .any(|v| v["name"] == name)
        {
            append(volumes, vec![json!({ "name": name, "emptyDir": volume })]);
        }
    }
}

/// Whether resources name a device that a worker computes on, however it is called: a share of a GPU, another vendor's, or a claim.
fn names_a_device(resources: &Value, gpu: &str) -> bool {
    let vendor = gpu.split('/').next().unwrap_or(gpu);
    let is_device = |name: &str| match name.split_once('/') {
        Some((domain, device)) => domain == vendor || device.contains("gpu"),
        None => false,
    };
    let lists = ["limits", "requests"]
        .into_iter()
        .filter_map(|l| resources[l].as_object());
    let claims = resources["claims"].as_array().is_some_and(|c| !c.is_empty());
    claims || lists.flatten().any(|(name, _)| is_device(name))
}

/// The resources of a worker's container: the template's, then the job's, then what every worker needs.
fn resources(given: &Value, job: &Job, settings: &Settings) -> Value {
    let mut resources = given.clone();
    if let Some(of_job) = &job.workers.resources {
        fill_in(&mut resources, of_job);
    }
    fill_in(&mut resources, &json!({}));
    if let Some(gpu) = &settings.gpu_resource
        && may_use_gpu(job.workers.device)
        && !names_a_device(&resources, gpu)
    {
        let count = job.workers.gpus_per_pod.to_string();
        fill_in(&mut resources, &json!({ "limits": { gpu: count } }));
    }
    let workers = job.workers.gpus_per_pod;
    let cpu = format!("{}m", WORKER_MILLICORES * workers);
    let memory = format!("{}Mi", WORKER_MEBIBYTES * workers);
    for (name, quantity) in [("cpu", cpu), ("memory", memory)] {
        // A request that is left out beside a limit is the limit.
        if resources["limits"].get(name).is_none() {
            fill_in(&mut resources, &json!({ "requests": { name: quantity } }));
        }
    }
    resources
}

/// What the container runs: a worker, or the launcher of as many workers as the pod has GPUs. All of them are in one container: GPUs of different
/// containers do not reach each other's memory.
fn command(job: &Job) -> (&'static str, Vec<String>) {
    let worker = ["--advertise", "$(VARUNA_POD_IP)"].map(str::to_owned);
    if job.workers.gpus_per_pod == 1 {
        return ("varuna-worker", worker.to_vec());
    }
    let device = match job.workers.device {
        WorkerDevice::Auto => "auto",
        WorkerDevice::Cpu => "cpu",
        WorkerDevice::Cuda => "cuda",
    };
    let count = job.workers.gpus_per_pod.to_string();
    let launcher = ["--workers", &count, "--device", device, "--", "varuna-worker"].map(str::to_owned);
    ("varuna-launcher", [&launcher[..], &worker[..]].concat())
}

/// The container of a pod's workers, with a GPU for each of them unless the job computes on the processor.
fn worker(observed: &ObservedJob, job: &Job, base: &Value, settings: &Settings) -> Value {
    let mut container = base.clone();
    container["name"] = WORKER.into();
    container["resources"] = resources(&base["resources"], job, settings);
    let (program, arguments) = command(job);
    let image = job.workers.image.clone().or_else(|| settings.image.clone());
    fill_in(
        &mut container,
        &json!({
            "image": image,
            "command": [program],
            "args": arguments,
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "securityContext": {
                "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": { "drop": ["ALL"] },
            },
        }),
    );
    let field =
        |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let secret = |variable: &str, key: &str| {
        let reference = json!({ "name": token_name(observed), "key": key });
        json!({ "name": variable, "valueFrom": { "secretKeyRef": reference } })
    };
    let mut env = vec![
        field("VARUNA_POD_IP", "status.podIP"),
        field("VARUNA_NODE", "spec.nodeName"),
        field("VARUNA_WORKER_NAME", "metadata.name"),
        json!({ "name": "VARUNA_COORDINATOR", "value": format!("{}:{PORT}", coordinator_name(observed)) }),
        secret("VARUNA_TOKEN", TOKEN_KEY),
        secret("VARUNA_CERTIFICATE", CERTIFICATE_KEY),
        // The root is read-only, and libraries write caches into it.
        json!({ "name": "HOME", "value": "/tmp" }),
    ];
    // What the template sets takes precedence.
    let given = base["env"].as_array().cloned().unwrap_or_default();
    env.retain(|e| given.iter().all(|g| g["name"] != e["name"]));
    env.extend(given);
    container["env"] = env.into();
    container
}
