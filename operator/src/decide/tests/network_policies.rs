//! The network rules of a job's pods: who may connect to them, and where they may connect to.

use super::*;
use serde_json::json;

fn policies(extra: &str) -> Vec<Value> {
    let mut observed = observed(2);
    observed.job.spec = Ok(spec(2, extra));
    let objects = decide(&observed).objects;
    objects
        .into_iter()
        .filter(|o| o["kind"] == "NetworkPolicy")
        .collect()
}

fn of_workers_and_coordinator(extra: &str) -> (Value, Value) {
    let [workers, coordinator] = policies(extra).try_into().expect("two policies");
    let selects = |policy: &Value| policy["spec"]["podSelector"]["matchExpressions"][0]["key"].clone();
    assert_eq!(selects(&workers), objects::NUMBER_LABEL);
    assert_eq!(selects(&coordinator), objects::COORDINATOR_LABEL);
    (workers, coordinator)
}

/// A selector of the job's own pods.
fn own_pods() -> Value {
    json!({ "podSelector": { "matchLabels": { objects::JOB_LABEL: "j" } } })
}

#[test]
fn default_policy_restricts_ingress_only() {
    let (workers, coordinator) = of_workers_and_coordinator("");
    assert_eq!(workers["spec"]["ingress"], json!([{ "from": [own_pods()] }]));
    let port = |number: u16| json!([{ "protocol": "TCP", "port": number }]);
    assert_eq!(
        coordinator["spec"]["ingress"],
        json!([{ "from": [own_pods()], "ports": port(7070) }, { "ports": port(8081) }])
    );
    for policy in [workers, coordinator] {
        assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress"]));
        assert_eq!(policy["spec"]["egress"], Value::Null);
        assert_eq!(policy["metadata"]["ownerReferences"][0]["uid"], "u");
        assert_eq!(
            policy["spec"]["podSelector"]["matchLabels"][objects::JOB_LABEL],
            "j"
        );
    }
}

/// Whether a rule allows packets of this protocol to a port, in this network if it names networks.
fn lets_through(policy: &Value, network: Option<&str>, (protocol, port): (&str, u16)) -> bool {
    let rules = policy["spec"]["egress"].as_array().unwrap();
    rules.iter().any(|rule| {
        let to = match network {
            Some(network) => rule["to"][0]["ipBlock"]["cidr"] == network,
            None => rule["to"].is_null(),
        };
        let ports = rule["ports"].as_array();
        to && ports
            .into_iter()
            .flatten()
            .any(|p| p["protocol"] == protocol && p["port"] == port)
    })
}

#[test]
fn isolated_job_reaches_only_needed_services() {
    let (workers, coordinator) = of_workers_and_coordinator("  network: {policy: isolated}\n");
    for policy in [&workers, &coordinator] {
        assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
        let rules = policy["spec"]["egress"].as_array().unwrap();
        assert!(rules.contains(&json!({ "to": [own_pods()] })), "{rules:?}");
        for wanted in [
            (None, ("UDP", 53)),
            (None, ("TCP", 53)),
            (None, ("UDP", 5353)),
            (None, ("TCP", 443)),
            (Some("169.254.170.23/32"), ("TCP", 80)),
            (Some("169.254.169.252/32"), ("TCP", 988)),
            (Some("169.254.169.254/32"), ("TCP", 80)),
            (Some("fd00:ec2::23/128"), ("TCP", 80)),
            (Some("fd00:ec2::254/128"), ("TCP", 80)),
        ] {
            assert!(lets_through(policy, wanted.0, wanted.1), "{wanted:?}: {policy}");
        }
        assert!(!lets_through(policy, None, ("TCP", 80)), "{policy}");
        let everything = rules
            .iter()
            .find(|rule| rule["to"].is_null() && rule["ports"].is_null());
        assert_eq!(everything, None);
    }
    // Only the coordinator needs the API server; workers do not.
    assert!(lets_through(&coordinator, None, ("TCP", 6443)));
    assert!(!lets_through(&workers, None, ("TCP", 6443)));
}

#[test]
fn extra_rules_are_copied_and_none_means_no_policy() {
    let more = "  network: {policy: isolated, extraIngress: [{ports: [{port: 9400}]}], extraEgress: [{ports: [{port: 9000}]}]}\n";
    let (workers, coordinator) = of_workers_and_coordinator(more);
    for policy in [workers, coordinator] {
        let last = |of: &str| policy["spec"][of].as_array().unwrap().last().cloned();
        assert_eq!(last("ingress"), Some(json!({ "ports": [{ "port": 9400 }] })));
        assert_eq!(last("egress"), Some(json!({ "ports": [{ "port": 9000 }] })));
    }
    assert_eq!(policies("  network: {policy: none}\n"), Vec::<Value>::new());
}

#[test]
fn workers_in_the_node_network_reach_the_coordinator() {
    let host = "  workers: {template: {spec: {hostNetwork: true}}}\n";
    let (_, coordinator) = of_workers_and_coordinator(host);
    let to_port = &coordinator["spec"]["ingress"][0];
    assert_eq!(to_port["ports"][0]["port"], 7070);
    assert_eq!(to_port["from"], Value::Null);
    let host = "  coordinator: {template: {spec: {hostNetwork: true}}}\n  network: {policy: isolated}\n";
    let (workers, _) = of_workers_and_coordinator(host);
    assert!(lets_through(&workers, None, ("TCP", 7070)), "{workers}");
}
