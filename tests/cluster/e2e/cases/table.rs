//! The list of all cases.

use crate::world::Need;
use varuna_cluster_tests::Family;

/// A case of the end-to-end tests.
pub(crate) struct Case {
    /// Name of the case.
    pub(crate) name: &'static str,
    /// Description of the case.
    pub(crate) about: &'static str,
    /// What it needs besides a cluster.
    pub(crate) needs: &'static [Need],
}

impl Case {
    /// The address family of a cluster that is made for the case: the one that the case needs, or else `otherwise`.
    pub(crate) fn family(&self, otherwise: Family) -> Family {
        if self.needs.contains(&Need::Ipv6) {
            Family::V6
        } else {
            otherwise
        }
    }
}

const fn case(name: &'static str, about: &'static str, needs: &'static [Need]) -> Case {
    Case { name, about, needs }
}

/// All cases, in the order in which they run.
pub(crate) const CASES: &[Case] = &[
    case("pod-deleted", "a worker's pod is deleted by hand", &[]),
    case(
        "worker-killed",
        "a worker's process is killed with -9",
        &[Need::OwnCluster],
    ),
    case("eviction", "a worker's pod is evicted", &[]),
    case(
        "preemption",
        "a pod of higher priority takes a worker's GPU",
        &[Need::OwnCluster],
    ),
    case(
        "spot-taint",
        "a node announces its end by a spot taint, and stays",
        &[Need::OwnCluster],
    ),
    case(
        "node-announced",
        "a condition of a node announces its end, and pods could still be scheduled there",
        &[Need::OwnCluster],
    ),
    case(
        "eight-workers",
        "eight workers on two nodes, of which one is drained",
        &[Need::OwnCluster],
    ),
    case("drain", "kubectl drain, then uncordon", &[Need::OwnCluster]),
    case("scale", "kubectl scale to 2 workers and back", &[]),
    case(
        "node-cut",
        "a node is disconnected from the network, then comes back",
        &[Need::OwnCluster],
    ),
    case(
        "kubelet-killed",
        "a node's kubelet is killed, then started again",
        &[Need::OwnCluster],
    ),
    case(
        "containerd-killed",
        "a node's containerd is killed, then started again",
        &[Need::OwnCluster],
    ),
    case(
        "leader-killed",
        "the leading operator is killed in the middle of a recovery",
        &[],
    ),
    case(
        "coordinator-killed",
        "the job's coordinator and a worker are killed with -9 at the same moment",
        &[Need::OwnCluster],
    ),
    case(
        "coordinator-evicted",
        "the pod of the job's coordinator is deleted: another one runs before it ends",
        &[],
    ),
    case(
        "coordinator-cut",
        "the node of the job's coordinator is disconnected from the network",
        &[Need::OwnCluster],
    ),
    case(
        "operator-gone",
        "no operator runs for ten minutes, in which a worker dies",
        &[Need::OwnCluster],
    ),
    case(
        "api-down",
        "the API server does not answer for 60 s",
        &[Need::OwnCluster],
    ),
    case(
        "suspend",
        "suspended, then resumed from the checkpoint",
        &[Need::Bucket],
    ),
    case(
        "all-gone",
        "all workers are lost at once and come back: the job resumes from the bucket",
        &[Need::Bucket],
    ),
    case(
        "store-down",
        "the bucket does not answer for a while",
        &[Need::Bucket],
    ),
    case(
        "bad-input",
        "jobs that cannot run say why, and do not affect other jobs",
        &[Need::Bucket],
    ),
    case(
        "monitoring",
        "a Prometheus scrapes the run: each query of the dashboard gives data, each alert is evaluated",
        &[Need::Bucket, Need::Prometheus],
    ),
    case(
        "two-tenants",
        "two namespaces with a bucket each: neither opens the other's",
        &[Need::Bucket],
    ),
    case(
        "upgrade",
        "helm upgrade to a build that speaks a newer version, coordinator and workers one by one, and back",
        &[Need::OwnCluster, Need::NextImages],
    ),
    case(
        "sidecar",
        "a worker beside a sidecar is killed with -9: its pod is replaced although it still runs",
        &[Need::OwnCluster],
    ),
    case(
        "two-workers-a-pod",
        "pods have two workers and a sidecar, and one worker is killed with -9: it is started again in its pod",
        &[Need::OwnCluster],
    ),
    case(
        "rejected",
        "the kubelets reject the job's pods: no hot loop, and the job says why",
        &[Need::OwnCluster],
    ),
    case(
        "image-corrected",
        "an image that does not exist is corrected",
        &[],
    ),
    case(
        "rolling-update",
        "the template changes while the job trains: all pods are replaced, and no step is lost",
        &[],
    ),
    case(
        "suspend-refused",
        "a job without checkpoints is not suspended, and continues to train",
        &[],
    ),
    case(
        "name-taken",
        "somebody's Secret, and then somebody's pod, has a name that a job needs: it is left alone and named, and the job continues when it is gone",
        &[],
    ),
    case(
        "made-again",
        "the job is deleted and created again at once: it begins at its first step",
        &[],
    ),
    case(
        "worker-groups",
        "two spot workers and two others: the spot node announces its end, the others continue to train, and only spot pods are replaced",
        &[Need::OwnCluster],
    ),
    case(
        "kueue",
        "in a queue of Kueue's own controller a job is admitted in part, and preempted by one of higher priority; it continues when that one is complete, and grows when there is more quota",
        &[Need::OwnCluster, Need::Bucket, Need::Kueue],
    ),
    case("job-deleted", "the job is deleted: nothing of it is left", &[]),
    // This case is the last, because it makes a cluster of its own.
    case(
        "ipv6",
        "on a cluster without IPv4 a worker's process is killed with -9, and the job trains to its end",
        &[Need::OwnCluster, Need::Ipv6],
    ),
];
