//! The host name that a process reports.

use std::fs;

/// The host name that a process reports together with its process id: the name of its pod, or of the machine if it runs in no pod. A pod on
/// its node's network has the node's host name, but process ids begin again in each of its pods.
#[must_use]
pub fn process_host() -> String {
    let hostname = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    host_of(std::env::var("VARUNA_WORKER_NAME").ok(), &hostname)
}

/// The pod template sets the name of the pod in the environment of its launcher and of its workers.
fn host_of(pod: Option<String>, hostname: &str) -> String {
    pod.filter(|pod| !pod.is_empty())
        .unwrap_or_else(|| hostname.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_pods_on_the_network_of_one_node_are_two_hosts() {
        let pod = |name: &str| host_of(Some(name.into()), "node-1\n");
        assert_ne!(pod("j-w1"), pod("j-w2"));
        assert_eq!(host_of(None, "machine\n"), "machine");
        assert_eq!(pod(""), "node-1");
    }
}
