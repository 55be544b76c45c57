//! The locations of the nodes of a job's workers, as its coordinator gets them.

use super::*;

/// The domain of a node with these labels, with the operator's labels and one additional label.
fn domain(labels: &[(&str, &str)]) -> String {
    let labels = labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    observed(1).settings.domain(&labels.collect())
}

#[test]
fn domain_goes_from_zone_to_rack() {
    assert_eq!(domain(&[("kubernetes.io/hostname", "n")]), "");
    assert_eq!(
        domain(&[
            ("example.com/rack", "r7"),
            ("topology.kubernetes.io/zone", "eu-1a"),
            ("cloud.google.com/gce-topology-block", "b3"),
        ]),
        "eu-1a/b3/r7"
    );
    assert_eq!(
        domain(&[
            ("nvidia.com/gpu.clique", "c.1"),
            ("topology.k8s.aws/network-node-layer-3", "nn-3"),
            ("topology.k8s.aws/network-node-layer-1", "nn-1"),
        ]),
        "nn-1/nn-3/c.1"
    );
    let long = domain(&[("topology.kubernetes.io/zone", &"z".repeat(1000))]);
    assert_eq!(long.len(), 512);
}

#[test]
fn orders_have_the_domains_of_used_nodes_only() {
    let mut observed = observed(3);
    for (name, domain) in [("good", "eu-1a"), ("other", "eu-1b"), ("unknown", "")] {
        let node = ObservedNode {
            ready: true,
            domain: domain.into(),
            ..ObservedNode::default()
        };
        observed.nodes.insert(name.to_owned(), node);
    }
    let told = |observed: &Observed| decide(observed).orders.unwrap().domains;
    observed.pods = vec![pod(1, PodPhase::Pending)];
    assert_eq!(told(&observed), BTreeMap::new(), "it has no node yet");
    // As soon as the pod is bound, and before it runs: its worker must not attach earlier.
    observed.pods[0].node = Some("good".into());
    observed.pods.push(ObservedPod {
        node: Some("unknown".into()),
        ..pod(2, PodPhase::Running)
    });
    observed.pods.push(ended(3, 1, "Error", 5));
    observed.pods[2].node = Some("other".into());
    let good = BTreeMap::from([("good".to_owned(), "eu-1a".to_owned())]);
    assert_eq!(told(&observed), good);
}

#[test]
fn orders_have_room_for_so_many_long_domains() {
    use varuna_api::crd::{DOMAINS_BYTES_MAX, entry_bytes};
    let mut observed = observed(3000);
    for number in 1..=3000 {
        let node = format!("node-{number:04}");
        observed.pods.push(running_on(&node, number));
        let known = ObservedNode {
            ready: true,
            domain: "z".repeat(500),
            ..ObservedNode::default()
        };
        observed.nodes.insert(node, known);
    }
    let domains = decide(&observed).orders.unwrap().domains;
    let bytes: usize = domains
        .iter()
        .map(|(node, domain)| entry_bytes(node, domain.len()))
        .sum();
    assert!((900..3000).contains(&domains.len()) && bytes <= DOMAINS_BYTES_MAX);
}
