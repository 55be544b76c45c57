//! The objects of a job, as documents: what the operator sets, and no field more.

use super::observed::{Credentials, ObservedJob, ObservedRun, Settings};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use varuna_api::manifest::{API_VERSION, KIND};
use varuna_api::{Job, WorkerDevice};
use varuna_protocol::coordinator::Snapshot;

/// Label with the job's name, on everything that belongs to a job.
pub const JOB_LABEL: &str = "varuna.dev/job";
/// Label with a pod's number.
pub const NUMBER_LABEL: &str = "varuna.dev/pod-number";
/// Port of the coordinator's Service.
pub const PORT: u16 = 7070;
/// Name of a worker's container; in a template, the container of this name is the one that is completed.
const WORKER: &str = "worker";
/// A pod on a node that does not answer is deleted after this time (Kubernetes' default: 300).
const UNREACHABLE_SECONDS: i64 = 15;

/// Selects a job's pods.
#[must_use]
pub fn selector(job: &str) -> String {
    format!("{JOB_LABEL}={job}")
}

/// Name of a job's coordinator Service and of its EndpointSlice.
#[must_use]
pub fn coordinator_name(job: &str) -> String {
    format!("{job}-coordinator")
}

/// Key of the token in the Secret with a job's credentials.
pub(crate) const TOKEN_KEY: &str = "token";
/// Key of the coordinator's certificate, as in a TLS Secret.
pub(crate) const CERTIFICATE_KEY: &str = "tls.crt";
/// Key of the certificate's private key, as in a TLS Secret.
pub(crate) const PRIVATE_KEY: &str = "tls.key";

/// Name of the Secret with a job's credentials.
#[must_use]
pub fn token_name(job: &str) -> String {
    format!("{job}-token")
}

/// Name of the Secret that holds the coordinator's record.
#[must_use]
pub fn record_name(job: &str) -> String {
    format!("{job}-record")
}

/// Name of a pod.
#[must_use]
pub fn pod_name(job: &str, number: i64) -> String {
    format!("{job}-w{number}")
}

/// Metadata of an object that is garbage-collected with its job.
#[must_use]
pub fn metadata(job: &ObservedJob, name: &str) -> Value {
    json!({
        "name": name,
        "namespace": job.namespace,
        "labels": { JOB_LABEL: job.name, "app.kubernetes.io/managed-by": "varuna-operator" },
        "ownerReferences": [{
            "apiVersion": API_VERSION, "kind": KIND, "name": job.name, "uid": job.uid,
            "controller": true, "blockOwnerDeletion": true,
        }],
    })
}

/// Token, Service, EndpointSlice and a ConfigMap that shows the plan.
#[must_use]
pub fn job_objects(job: &ObservedJob, credentials: &Credentials, run: Option<&ObservedRun>) -> Vec<Value> {
    let secret = |text: &str| k8s_openapi::ByteString(text.as_bytes().to_vec());
    let mut data = BTreeMap::from([(TOKEN_KEY, secret(&credentials.token))]);
    if let Some(identity) = &credentials.identity {
        data.insert(CERTIFICATE_KEY, secret(&identity.certificate));
        data.insert(PRIVATE_KEY, secret(&identity.key));
    }
    let service = coordinator_name(&job.name);
    let mut objects = vec![
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": metadata(job, &token_name(&job.name)),
            "data": data,
        }),
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": metadata(job, &service),
            // Without a selector: the EndpointSlice below says where the leader runs.
            "spec": { "ports": [{ "name": "grpc", "protocol": "TCP", "port": PORT, "targetPort": PORT }] },
        }),
    ];
    let Some(run) = run else { return objects };
    if let Some((ip, port)) = &run.address {
        let mut slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": metadata(job, &service),
            "addressType": if ip.contains(':') { "IPv6" } else { "IPv4" },
            "endpoints": [{ "addresses": [ip], "conditions": { "ready": true } }],
            "ports": [{ "name": "grpc", "protocol": "TCP", "port": port }],
        });
        let labels = &mut slice["metadata"]["labels"];
        labels["kubernetes.io/service-name"] = service.into();
        labels["endpointslice.kubernetes.io/managed-by"] = "varuna-operator".into();
        objects.push(slice);
    }
    if let Some(snapshot) = run.snapshot.as_ref().filter(|s| s.run.generation.0 > 0) {
        objects.push(json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": metadata(job, &format!("{}-plan", job.name)),
            "data": {
                "generation": snapshot.run.generation.0.to_string(),
                "shape": snapshot.run.plan.clone().unwrap_or_default(),
                "rank-map": rank_map(snapshot),
            },
        }));
    }
    objects
}

/// Which worker runs which stages: a line for each pipeline.
fn rank_map(snapshot: &Snapshot) -> String {
    let mut pipelines: BTreeMap<usize, Vec<(u32, String)>> = BTreeMap::new();
    for worker in &snapshot.workers {
        let Some(pipeline) = worker.pipeline else { continue };
        let stages = worker.segments.iter();
        let stages = stages.map(|s| (s.start, format!("{s} {}", worker.name)));
        pipelines.entry(pipeline).or_default().extend(stages);
    }
    let lines = pipelines.into_values().map(|mut stages| {
        stages.sort();
        let stages: Vec<_> = stages.into_iter().map(|(_, stage)| stage).collect();
        stages.join("; ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The pod of a number: the job's template, completed.
#[must_use]
pub fn pod(observed: &ObservedJob, job: &Job, number: i64, settings: &Settings) -> Value {
    let template = job.workers.template.clone().unwrap_or_else(|| json!({}));
    let mut meta = metadata(observed, &pod_name(&observed.name, number));
    for field in ["labels", "annotations"] {
        for (key, value) in template["metadata"][field].as_object().into_iter().flatten() {
            if meta[field].get(key).is_none() {
                meta[field][key.as_str()] = value.clone();
            }
        }
    }
    meta["labels"][NUMBER_LABEL] = number.to_string().into();
    let mut spec = template["spec"].as_object().cloned().unwrap_or_default();
    let mut containers = spec
        .remove("containers")
        .and_then(|c| c.as_array().cloned())
        .unwrap_or_default();
    let worker_at = containers.iter().position(|c| c["name"] == WORKER);
    let base = worker_at.map_or_else(|| json!({}), |at| containers.remove(at));
    let workers = (0..job.workers.gpus_per_pod).map(|i| worker(&observed.name, job, &base, i, settings));
    containers.splice(0..0, workers);
    spec.insert("containers".into(), containers.into());
    complete(&mut spec, job.disruption.notice_seconds);
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec })
}

fn complete(spec: &mut Map<String, Value>, notice_seconds: u32) {
    // A worker that is restarted in place would come back under the same name with nothing in its memory.
    spec.insert("restartPolicy".into(), "Never".into());
    let mut default = |field: &str, value: Value| {
        spec.entry(field).or_insert(value);
    };
    default(
        "terminationGracePeriodSeconds",
        (i64::from(notice_seconds) + 5).into(),
    );
    default("automountServiceAccountToken", false.into());
    default("enableServiceLinks", false.into());
    default(
        "securityContext",
        json!({
            "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
            "seccompProfile": { "type": "RuntimeDefault" },
        }),
    );
    default("tolerations", json!([]));
    if let Some(Value::Array(tolerations)) = spec.get_mut("tolerations") {
        for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
            if tolerations.iter().all(|t| t["key"] != key) {
                tolerations.push(json!({
                    "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": UNREACHABLE_SECONDS,
                }));
            }
        }
    }
}

/// Whether workers are to have a GPU each. One that may take a GPU or not is given one: without, it would never see any.
fn may_use_gpu(device: WorkerDevice) -> bool {
    match device {
        WorkerDevice::Auto | WorkerDevice::Cuda => true,
        WorkerDevice::Cpu => false,
    }
}

/// One worker process: a container, with one GPU unless the job computes on the processor.
fn worker(name: &str, job: &Job, base: &Value, index: u32, settings: &Settings) -> Value {
    let mut container = base.as_object().cloned().unwrap_or_default();
    let label = if index == 0 {
        WORKER.to_owned()
    } else {
        format!("{WORKER}-{index}")
    };
    container.insert("name".into(), label.into());
    let mut default = |field: &str, value: Option<Value>| {
        if let Some(value) = value {
            container.entry(field).or_insert(value);
        }
    };
    let image = job.workers.image.clone().or_else(|| settings.image.clone());
    default("image", image.map(Value::from));
    default("command", Some(json!(["varuna-worker"])));
    default(
        "args",
        Some(json!(["--bind", "0.0.0.0:0", "--advertise", "$(VARUNA_POD_IP)"])),
    );
    default(
        "resources",
        settings
            .gpu_resource
            .as_ref()
            .filter(|_| may_use_gpu(job.workers.device))
            .map(|gpu| json!({ "limits": { gpu: "1" } })),
    );
    default("terminationMessagePolicy", Some("FallbackToLogsOnError".into()));
    default(
        "securityContext",
        Some(json!({
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": { "drop": ["ALL"] },
        })),
    );
    let field =
        |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let secret = |variable: &str, key: &str, optional: bool| {
        let reference = json!({ "name": token_name(name), "key": key, "optional": optional });
        json!({ "name": variable, "valueFrom": { "secretKeyRef": reference } })
    };
    let mut env = vec![
        field("VARUNA_POD_IP", "status.podIP"),
        field("VARUNA_NODE", "spec.nodeName"),
        field("VARUNA_WORKER_NAME", "metadata.name"),
        json!({ "name": "VARUNA_COORDINATOR", "value": format!("{}:{PORT}", coordinator_name(name)) }),
        secret("VARUNA_TOKEN", TOKEN_KEY, false),
        // Jobs that were created before there were certificates have none.
        secret("VARUNA_CERTIFICATE", CERTIFICATE_KEY, true),
    ];
    // What the template sets takes precedence.
    let given = base["env"].as_array().cloned().unwrap_or_default();
    env.retain(|e| given.iter().all(|g| g["name"] != e["name"]));
    env.extend(given);
    container.insert("env".into(), env.into());
    Value::Object(container)
}
