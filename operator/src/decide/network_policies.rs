//! Who may reach a job's pods, and with `policy: isolated` whom they may reach: a policy for the workers and one for the coordinators.
//!
//! A policy is made for each job that asks for one, and stays as long as the job. More traffic is allowed by more rules, never by removing
//! the policy. A policy does not cover pods in their node's network, whose packets come from the node.

use super::objects::{
    COORDINATOR_LABEL, HEALTH_PORT, JOB_LABEL, NUMBER_LABEL, PORT, coordinator_name, metadata, workers_name,
};
use super::observed::ObservedJob;
use serde_json::{Value, json};
use varuna_api::{Job, Restriction};

/// DNS: the port of the Service, and the port of its pods, because some networks apply policies after the Service's address was translated
/// (OpenShift's DNS pods serve at 5353).
const DNS_PORTS: [u16; 2] = [53, 5353];
/// Buckets and tokens of identities, wherever they are: their addresses change from day to day.
const HTTPS_PORT: u16 = 443;
/// The API server behind its Service, as it listens on nodes.
const API_SERVER_PORT: u16 = 6443;
/// Where clouds give pods their identity: address and ports.
const IDENTITY_SERVICES: [(&str, &[u16]); 5] = [
    // The metadata servers of GKE (with Dataplane V2), AWS and Azure.
    ("169.254.169.254/32", &[80]),
    ("fd00:ec2::254/128", &[80]),
    // GKE's, as pods' packets reach it.
    ("169.254.169.252/32", &[80, 988]),
    // EKS Pod Identity.
    ("169.254.170.23/32", &[80]),
    ("fd00:ec2::23/128", &[80]),
];

/// The job's policies; none where it asks for none.
pub(super) fn network_policies(observed: &ObservedJob, job: &Job) -> Vec<Value> {
    if job.network_policy.restriction == Restriction::None {
        return vec![];
    }
    let mut from_workers = vec![];
    if in_nodes_network(job.coordinator.template.as_ref()) {
        from_workers.push(json!({ "ports": ports(&[PORT]) }));
    }
    let workers = policy(
        observed,
        job,
        (&workers_name(observed), NUMBER_LABEL),
        vec![json!({ "from": [pods_of(observed)] })],
        from_workers,
    );
    let mut to_coordinator = json!({ "ports": ports(&[PORT]) });
    let groups = job.pod_groups();
    if !groups
        .iter()
        .any(|g| in_nodes_network(g.workers.template.as_ref()))
    {
        to_coordinator["from"] = json!([pods_of(observed)]);
    }
    let coordinator = policy(
        observed,
        job,
        (&coordinator_name(observed), COORDINATOR_LABEL),
        // Probes of the operator, and scrapes: what they read is not secret, and it is not known here which pods scrape.
        vec![to_coordinator, json!({ "ports": ports(&[HEALTH_PORT]) })],
        vec![json!({ "ports": ports(&[API_SERVER_PORT]) })],
    );
    vec![workers, coordinator]
}

/// A policy for those of the job's pods that have this label.
fn policy(
    observed: &ObservedJob,
    job: &Job,
    (name, label): (&str, &str),
    mut ingress: Vec<Value>,
    mut egress: Vec<Value>,
) -> Value {
    let asked = &job.network_policy;
    ingress.extend(asked.extra_ingress.iter().cloned());
    let mut spec = json!({
        "podSelector": {
            "matchLabels": { JOB_LABEL: observed.name },
            "matchExpressions": [{ "key": label, "operator": "Exists" }],
        },
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    });
    if asked.restriction == Restriction::IngressAndEgress {
        egress.extend(needed_by_all(observed));
        egress.extend(asked.extra_egress.iter().cloned());
        spec["policyTypes"] = json!(["Ingress", "Egress"]);
        spec["egress"] = egress.into();
    }
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": metadata(observed, name), "spec": spec,
    })
}

/// What every pod of a job has to reach.
fn needed_by_all(observed: &ObservedJob) -> Vec<Value> {
    let dns = DNS_PORTS
        .iter()
        .flat_map(|port| ["UDP", "TCP"].map(|protocol| json!({ "protocol": protocol, "port": port })));
    let identity = IDENTITY_SERVICES
        .iter()
        .map(|(network, at)| json!({ "to": [{ "ipBlock": { "cidr": network } }], "ports": ports(at) }));
    let mut rules = vec![
        json!({ "to": [pods_of(observed)] }),
        json!({ "ports": dns.collect::<Vec<_>>() }),
        json!({ "ports": ports(&[HTTPS_PORT]) }),
    ];
    rules.extend(identity);
    rules
}

fn ports(numbers: &[u16]) -> Value {
    let port = |number| json!({ "protocol": "TCP", "port": number });
    numbers.iter().map(port).collect()
}

/// All pods of the job, at any port: workers listen where there is room.
fn pods_of(observed: &ObservedJob) -> Value {
    json!({ "podSelector": { "matchLabels": { JOB_LABEL: observed.name } } })
}

/// Whether pods of a template are in their node's network: what they send comes from the node, and no policy can say that it is theirs.
fn in_nodes_network(template: Option<&Value>) -> bool {
    template.is_some_and(|template| template["spec"]["hostNetwork"] == true)
}
