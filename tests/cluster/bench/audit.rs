//! A control plane with an audit log, and an identity of the operator whose requests are counted there.

use anyhow::Result;
use serde_json::Value;
use std::path::PathBuf;
use tempfile::TempDir;
use varuna_cluster_tests::Cluster;

/// Everything is logged, as far as who, what and when.
const POLICY: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived, ResponseStarted]\nrules: [{level: Metadata}]\n";
/// The service account of the operator.
pub(crate) const ACCOUNT: &str = "bench-operator";

/// The control plane.
pub(crate) struct Audited {
    /// It.
    pub(crate) cluster: Cluster,
    /// For files of the benchmark; the audit log is one.
    pub(crate) folder: TempDir,
}

impl Audited {
    pub(crate) fn start() -> Result<Audited> {
        let folder = tempfile::tempdir()?;
        let (policy, log) = (folder.path().join("policy.yaml"), folder.path().join("audit.log"));
        std::fs::write(&policy, POLICY)?;
        let options = format!(
            "--audit-policy-file={} --audit-log-path={}",
            policy.display(),
            log.display()
        );
        Ok(Audited {
            cluster: Cluster::own(tempfile::tempdir()?, &["--api-args", &options])?,
            folder,
        })
    }

    /// Makes the operator's identity, with all rights; its kubeconfig.
    pub(crate) fn identity(&self, namespace: &str) -> Result<PathBuf> {
        let kubectl = |arguments: &[&str]| self.cluster.kubectl(arguments, "");
        kubectl(&["-n", namespace, "create", "serviceaccount", ACCOUNT])?;
        let account = format!("--serviceaccount={namespace}:{ACCOUNT}");
        kubectl(&[
            "create",
            "clusterrolebinding",
            ACCOUNT,
            "--clusterrole=cluster-admin",
            &account,
        ])?;
        let token = kubectl(&["-n", namespace, "create", "token", ACCOUNT, "--duration=2h"])?;
        let raw = kubectl(&["config", "view", "--raw", "-o", "json"])?;
        let mut config: Value = serde_json::from_str(&raw)?;
        config["users"][0]["user"] = serde_json::json!({ "token": token.trim() });
        let path = self.folder.path().join("operator.kubeconfig");
        std::fs::write(&path, config.to_string())?;
        Ok(path)
    }

    /// Requests of the operator so far; leases and watches left out.
    pub(crate) fn requests(&self) -> usize {
        let text = std::fs::read_to_string(self.folder.path().join("audit.log")).unwrap_or_default();
        let ours = |l: &&str| {
            l.contains(&format!(":{ACCOUNT}\""))
                && !l.contains("\"resource\":\"leases\"")
                && !l.contains("\"verb\":\"watch\"")
        };
        text.lines().filter(ours).count()
    }
}
