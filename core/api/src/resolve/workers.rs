//! `spec.elasticity`, `spec.workers`, `spec.coordinator`, `spec.network` and `spec.disruption`: how many workers there may be, what each has,
//! who coordinates them, how they are connected, and what announces the end of one.

use super::check::Check;
use crate::choices::{DEVICES, ENCRYPTION, NETWORK_POLICIES, TRANSPORTS, spare_copies};
use crate::job::{
    CoordinatorPod, Elasticity, Encryption, Network, NetworkPolicy, Restriction, WorkerDevice,
    WorkerTransport, Workers,
};
use crate::lifecycle::{Disruption, FailurePolicy};
use crate::limits;
use crate::manifest::{
    CoordinatorSpec, DisruptionSpec, ElasticitySpec, FailurePolicySpec, NetworkSpec, WorkersSpec,
};
use serde_json::Value;
use varuna_plan::SpareCopies;

pub(super) fn elasticity(check: &mut Check, written: &ElasticitySpec, min_depth: u32) -> Elasticity {
    let at = |field: &str| format!("spec.elasticity.{field}");
    let min_workers = written.min_workers.unwrap_or(min_depth);
    if min_workers == 0 || min_workers < min_depth {
        let allowed = format!("at least spec.pipeline.minDepth ({min_depth}): a pipeline needs that many");
        check.0.push(&at("minWorkers"), min_workers, allowed);
    }
    if let Some(max) = written.max_workers.filter(|max| *max < min_workers.max(1)) {
        let allowed = format!("at least minWorkers ({min_workers})");
        check.0.push(&at("maxWorkers"), max, allowed);
    }
    Elasticity {
        min_workers,
        max_workers: written.max_workers,
        spare_copies: copies(check, &at("spareCopies"), written.spare_copies.as_ref()),
    }
}

fn copies(check: &mut Check, path: &str, written: Option<&Value>) -> SpareCopies {
    let Some(written) = written else {
        return SpareCopies::Off;
    };
    let named = spare_copies().into_iter().find(|(name, _)| name == written);
    named.map_or_else(
        || {
            check.0.push(path, written, "0, 1 or auto");
            SpareCopies::Off
        },
        |(_, copies)| copies,
    )
}

pub(super) fn workers(check: &mut Check, written: WorkersSpec) -> Workers {
    let at = |field: &str| format!("spec.workers.{field}");
    let device_memory_bytes = check.bytes(&at("deviceMemory"), written.device_memory.as_ref());
    template(check, &at("template"), written.template.as_ref());
    if let Some(image) = &written.image {
        check.characters(&at("image"), image, limits::TEXT);
    }
    resources(check, &at("resources"), written.resources.as_ref());
    let shm_bytes = check.bytes(&at("shmSize"), written.shm_size.as_ref());
    let gpus_per_pod = written.gpus_per_pod.unwrap_or(1);
    let threads = written.threads;
    let device = check.choice(&at("device"), written.device, &DEVICES);
    let transport = check.choice(&at("transport"), written.transport, &TRANSPORTS);
    if (device, transport) == (WorkerDevice::Cpu, WorkerTransport::Nccl) {
        let allowed = "auto or tcp, as spec.workers.device is cpu: NCCL needs GPUs";
        check.0.push(&at("transport"), "nccl", allowed);
    }
    Workers {
        gpus_per_pod: check.within(&at("gpusPerPod"), gpus_per_pod, limits::GPUS_PER_POD),
        image: written.image,
        device_memory_bytes,
        device,
        transport,
        threads: threads.map(|t| check.within(&at("threads"), t, limits::THREADS)),
        shm_bytes,
        resources: written.resources,
        template: written.template,
    }
}

pub(super) fn template(check: &mut Check, at: &str, written: Option<&Value>) {
    if let Some(template) = written.filter(|t| !t.is_object()) {
        check.0.push(at, template, "a pod template (a mapping)");
    }
}

pub(super) fn resources(check: &mut Check, at: &str, written: Option<&Value>) {
    for (name, given) in written.and_then(Value::as_object).into_iter().flatten() {
        if !matches!(name.as_str(), "limits" | "requests") || !given.is_object() {
            let allowed = "limits and requests, each a mapping from a resource's name to a quantity";
            check.0.push(&format!("{at}.{name}"), given, allowed);
        }
    }
    if let Some(resources) = written.filter(|r| !r.is_object()) {
        check.0.push(at, resources, "a mapping with limits and requests");
    }
}

pub(super) fn coordinator(check: &mut Check, written: CoordinatorSpec) -> CoordinatorPod {
    if let Some(account) = &written.service_account_name {
        check.characters("spec.coordinator.serviceAccountName", account, limits::TEXT);
    }
    template(check, "spec.coordinator.template", written.template.as_ref());
    CoordinatorPod {
        service_account: written.service_account_name,
        template: written.template,
    }
}

pub(super) fn failure_policy(check: &mut Check, written: &FailurePolicySpec) -> FailurePolicy {
    let mut within = |field: &str, count: Option<u32>| {
        let path = format!("spec.failurePolicy.{field}");
        count.map(|count| check.within(&path, count, limits::CRASHES))
    };
    let max_crashes = within("maxCrashes", written.max_crashes);
    let default = FailurePolicy::default();
    FailurePolicy {
        max_crashes,
        avoid_node_after: within("avoidNodeAfter", written.avoid_node_after)
            .unwrap_or(default.avoid_node_after),
    }
}

pub(super) fn network(check: &mut Check, written: &NetworkSpec) -> Network {
    Network {
        encryption: check.choice("spec.network.encryption", written.encryption.clone(), &ENCRYPTION),
    }
}

/// Refuses a transport that cannot encrypt if the network requires encryption. With `auto`, tensors then use TCP.
pub(super) fn encrypted_transport(check: &mut Check, workers: &Workers, network: Network) {
    if (workers.transport, network.encryption) == (WorkerTransport::Nccl, Encryption::Tls) {
        let allowed = "auto or tcp, as spec.network.encryption is tls: NCCL does not encrypt what it sends";
        check.0.push("spec.workers.transport", "nccl", allowed);
    }
}

pub(super) fn network_policy(check: &mut Check, written: NetworkSpec) -> NetworkPolicy {
    // If the policy is unknown, it is also unknown which settings fit it.
    let is_known = |policy: &String| NETWORK_POLICIES.iter().any(|(name, _)| name == policy);
    let is_known = written.policy.as_ref().is_none_or(is_known);
    let restriction = check.choice("spec.network.policy", written.policy, &NETWORK_POLICIES);
    let mut rules = |field: &str, given: Option<Vec<Value>>, unused: Option<&str>| {
        let at = format!("spec.network.{field}");
        let given = given.unwrap_or_default();
        if given.len() > limits::NETWORK_RULES_MAX {
            let allowed = format!("at most {}", limits::NETWORK_RULES_MAX);
            check.0.push(&at, format!("{} rules", given.len()), allowed);
        }
        for (i, rule) in given.iter().enumerate().filter(|(_, rule)| !rule.is_object()) {
            check.0.push(
                &format!("{at}.{i}"),
                rule,
                "a rule of a NetworkPolicy (a mapping)",
            );
        }
        if let Some(allowed) = unused.filter(|_| !given.is_empty()) {
            check.0.push(&at, format!("{} rules", given.len()), allowed);
        }
        given
    };
    let in_vain = |is: bool, allowed: &'static str| (is && is_known).then_some(allowed);
    NetworkPolicy {
        restriction,
        extra_ingress: rules(
            "extraIngress",
            written.extra_ingress,
            in_vain(
                restriction == Restriction::None,
                "none, because spec.network.policy is none: everyone can reach the pods",
            ),
        ),
        extra_egress: rules(
            "extraEgress",
            written.extra_egress,
            in_vain(
                restriction != Restriction::IngressAndEgress,
                "none, unless spec.network.policy is isolated: pods can reach everything",
            ),
        ),
    }
}

pub(super) fn disruption(check: &mut Check, written: DisruptionSpec) -> Disruption {
    let at = |field: &str| format!("spec.disruption.{field}");
    let node_signals = written.node_signals.unwrap_or_default();
    if node_signals.len() > limits::NODE_SIGNALS_MAX {
        let allowed = format!("at most {}", limits::NODE_SIGNALS_MAX);
        let found = format!("{} signals", node_signals.len());
        check.0.push(&at("nodeSignals"), found, allowed);
    }
    for (i, signal) in node_signals.iter().enumerate() {
        check.characters(&at(&format!("nodeSignals.{i}")), signal, limits::NODE_SIGNAL);
    }
    let within = |seconds| check.within(&at("noticeSeconds"), seconds, limits::NOTICE_SECONDS);
    Disruption {
        node_signals,
        notice_seconds: written.notice_seconds.map(within),
    }
}
