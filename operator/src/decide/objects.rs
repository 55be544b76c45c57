//! The objects of a job, except its pods, as documents. They contain the fields that the operator sets, and no others.

use super::observed::{Credentials, ObservedJob, ObservedRun};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use varuna_api::Job;
use varuna_api::manifest::{API_VERSION, KIND};

/// Label with the job's name, on everything that belongs to a job.
pub const JOB_LABEL: &str = "varuna.dev/job";
/// Label with a pod's number.
pub const NUMBER_LABEL: &str = "varuna.dev/pod-number";
/// Label with the group of a worker's pod. Pods of a job without groups have none.
pub const GROUP_LABEL: &str = "varuna.dev/worker-group";
/// Label with the number of a coordinator's pod. Workers' pods have none.
pub const COORDINATOR_LABEL: &str = "varuna.dev/coordinator-number";
/// Port of the coordinator and of its Service.
pub const PORT: u16 = 7070;
/// Port at which a coordinator answers probes and scrapes.
pub const HEALTH_PORT: u16 = 8081;
/// Name of a worker's container; in a template, the container of this name is the one that is completed.
pub(crate) const WORKER: &str = "worker";
/// Name of a coordinator's container; in its template, the container of this name is the one that is completed.
pub(crate) const COORDINATOR: &str = "coordinator";
/// Annotation of a pod: the identity of what it was made from.
pub const MADE_FROM_ANNOTATION: &str = "varuna.dev/made-from";
/// Annotation of a pod: the nodes that it has to avoid, with commas between them.
pub const AVOIDS_ANNOTATION: &str = "varuna.dev/avoided-nodes";

/// Annotation of a worker's pod: the increment that it was admitted with. Others were admitted with the job's Workload, or wait for no queue.
pub const WORKLOAD_ANNOTATION: &str = "varuna.dev/workload";

/// Annotation of every object of a job other than a pod: the identity of what it was applied as.
pub const APPLIED_ANNOTATION: &str = "varuna.dev/applied";

/// Identity of what an object is applied as. Another release may compute another one: then the object is applied once more.
#[must_use]
pub fn identity_of(object: &Value) -> String {
    let mut hasher = DefaultHasher::new();
    object.to_string().hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Selects a job's pods, those of its coordinators included.
#[must_use]
pub fn selector(job: &str) -> String {
    format!("{JOB_LABEL}={job}")
}

/// Selects a job's worker pods.
#[must_use]
pub fn worker_selector(job: &str) -> String {
    format!("{JOB_LABEL}={job},{NUMBER_LABEL}")
}

/// Name of an object of a job. It ends in the first 8 digits of the job's uid: others may have objects of any other name, and a job that
/// is made again under its name has others.
fn name_of(job: &ObservedJob, object: &str) -> String {
    let uid = job.uid.get(..8).unwrap_or(&job.uid);
    format!("{}{object}-{uid}", job.name)
}

/// Name of a job's coordinator Service and of its EndpointSlice.
#[must_use]
pub fn coordinator_name(job: &ObservedJob) -> String {
    name_of(job, "-coordinator")
}

/// Key of the token in the Secret with a job's credentials.
pub(crate) const TOKEN_KEY: &str = "token";
/// Key of the coordinator's certificate, as in a TLS Secret.
pub(crate) const CERTIFICATE_KEY: &str = "tls.crt";
/// Key of the certificate's private key, as in a TLS Secret.
pub(crate) const PRIVATE_KEY: &str = "tls.key";

/// Name of the Secret with a job's credentials.
#[must_use]
pub fn token_name(job: &ObservedJob) -> String {
    name_of(job, "-token")
}

/// Name of the `VarunaRun` with the coordinator's orders and reports, and of the `VarunaRecord` with its record.
#[must_use]
pub fn record_name(job: &ObservedJob) -> String {
    name_of(job, "")
}

/// Name of the `PodDisruptionBudget` and of the `NetworkPolicy` of the workers' pods. Those of coordinators have the coordinator's name.
#[must_use]
pub fn workers_name(job: &ObservedJob) -> String {
    name_of(job, "-workers")
}

/// First part of the names of a job's Workloads.
#[must_use]
pub fn workload_prefix(job: &str) -> String {
    format!("{job}-q")
}

/// Name of a job's Workload of a number.
#[must_use]
pub fn workload_name(job: &ObservedJob, number: i64) -> String {
    name_of(job, &format!("-q{number}"))
}

/// What follows [`workload_prefix`] in the names of increments. A release that does not know increments expects a number there, and does
/// not take a name without one for a job's Workload.
pub const INCREMENT_INFIX: &str = "-grow";

/// Name of a job's increment of a number.
#[must_use]
pub fn increment_name(job: &ObservedJob, number: i64) -> String {
    name_of(job, &format!("-q{INCREMENT_INFIX}{number}"))
}

/// Name of a coordinator's pod.
#[must_use]
pub fn coordinator_pod_name(job: &ObservedJob, number: i64) -> String {
    format!("{}-{number}", coordinator_name(job))
}

/// Name of a worker's pod. With the 40 characters that a job's name may have and numbers of up to twelve digits it is a host's name, too.
#[must_use]
pub fn pod_name(job: &ObservedJob, number: i64) -> String {
    name_of(job, &format!("-w{number}"))
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

/// The Secret with a job's credentials. It is made once and never changed.
pub(crate) fn token_secret(job: &ObservedJob, credentials: &Credentials) -> Value {
    let secret = |text: &str| k8s_openapi::ByteString(text.as_bytes().to_vec());
    let identity = &credentials.identity;
    let data = BTreeMap::from([
        (TOKEN_KEY, secret(&credentials.token)),
        (CERTIFICATE_KEY, secret(&identity.certificate)),
        (PRIVATE_KEY, secret(&identity.key)),
    ]);
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": metadata(job, &token_name(job)),
        "data": data,
    })
}

/// The service account of a coordinator's pod, and whether it is made for the job.
pub(super) fn coordinator_account(observed: &ObservedJob, job: &Job) -> (String, bool) {
    let of = |template: &Option<Value>| {
        let name = &template.as_ref()?["spec"]["serviceAccountName"];
        name.as_str().filter(|name| !name.is_empty()).map(str::to_owned)
    };
    let coordinator = &job.coordinator;
    let given = coordinator
        .service_account
        .clone()
        .or_else(|| of(&coordinator.template))
        .or_else(|| of(&job.workers.template));
    match given {
        Some(name) => (name, false),
        None => (coordinator_name(observed), true),
    }
}

/// The rights of a job's coordinator: to read its orders, to report, and to keep its record, and nothing else.
fn coordinator_rights(observed: &ObservedJob, job: &Job) -> Vec<Value> {
    let name = coordinator_name(observed);
    let (account, own) = coordinator_account(observed, job);
    let meta = metadata(observed, &name);
    let documents = [record_name(observed)];
    let rule = |resource: &str, verbs: &[&str]| json!({ "apiGroups": ["varuna.dev"], "resources": [resource], "resourceNames": documents, "verbs": verbs });
    let mut objects = vec![
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": meta,
            "rules": [
                rule("varunaruns", &["get", "list", "watch"]),
                rule("varunaruns/status", &["update"]),
                rule("varunarecords", &["get"]),
                rule("varunarecords/status", &["update"]),
            ],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": meta,
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name },
            "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": observed.namespace }],
        }),
    ];
    if own {
        objects.push(json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta }));
    }
    objects
}

/// The coordinator's account and rights, Service and EndpointSlice.
#[must_use]
pub fn job_objects(job: &ObservedJob, spec: &Job, run: Option<&ObservedRun>) -> Vec<Value> {
    let service = coordinator_name(job);
    let mut objects = coordinator_rights(job, spec);
    objects.push(json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": metadata(job, &service),
        // Without a selector: the EndpointSlice below follows the coordinator in charge at once.
        "spec": { "ports": [{ "name": "grpc", "protocol": "TCP", "port": PORT, "targetPort": PORT }] },
    }));
    let Some(run) = run else { return objects };
    if let Some(address) = &run.address {
        let mut slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": metadata(job, &service),
            "addressType": if address.is_ipv6() { "IPv6" } else { "IPv4" },
            "endpoints": [{ "addresses": [address.ip()], "conditions": { "ready": true } }],
            "ports": [{ "name": "grpc", "protocol": "TCP", "port": address.port() }],
        });
        let labels = &mut slice["metadata"]["labels"];
        labels["kubernetes.io/service-name"] = service.into();
        labels["endpointslice.kubernetes.io/managed-by"] = "varuna-operator".into();
        objects.push(slice);
    }
    objects
}
