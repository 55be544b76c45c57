//! A control plane with an audit log, and accounts whose requests the benchmark counts there.

use anyhow::{Context as _, Result};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use serde_json::Value;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use tempfile::TempDir;
use varuna_cluster_tests::Cluster;

/// The accounts that send requests. Each has all rights: they exist only so that requests can be counted by sender.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Account {
    /// The operator.
    Operator,
    /// The coordinators.
    Coordinator,
    /// The benchmark itself, which deletes pods and taints nodes.
    Signals,
}

impl Account {
    const ALL: [Account; 3] = [Account::Operator, Account::Coordinator, Account::Signals];

    pub(crate) fn account(self) -> &'static str {
        match self {
            Account::Operator => "bench-operator",
            Account::Coordinator => "bench-coordinator",
            Account::Signals => "bench-signals",
        }
    }
}

/// Namespace of the service accounts.
pub(crate) const NAMESPACE: &str = "default";

/// An audit policy that logs the requests of these accounts: sender, object and time. It leaves out watches, leases and the list of API
/// groups, which the operator requests every 30 s for all jobs together: their number does not depend on events.
fn policy() -> Value {
    let users: Vec<String> = Account::ALL
        .iter()
        .map(|who| format!("system:serviceaccount:{NAMESPACE}:{}", who.account()))
        .collect();
    serde_json::json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived", "ResponseStarted"],
        "rules": [
            { "level": "None", "verbs": ["watch"] },
            { "level": "None", "resources": [{ "group": "coordination.k8s.io" }] },
            { "level": "None", "nonResourceURLs": ["/api", "/api/*", "/apis", "/apis/*", "/version"] },
            { "level": "Metadata", "users": users },
            { "level": "None" },
        ],
    })
}

/// One request of one of these accounts.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Request {
    /// When the API server received it, in seconds since 1970.
    pub(crate) at: f64,
    /// When the API server had answered it, in seconds since 1970.
    pub(crate) done: f64,
    pub(crate) who: Account,
    pub(crate) verb: String,
    /// The resource with its subresource: `varunajobs/status`.
    pub(crate) resource: String,
    pub(crate) name: String,
    pub(crate) code: u64,
}

impl Request {
    fn of(line: &str) -> Option<Request> {
        let entry: Value = serde_json::from_str(line).ok()?;
        let account = entry["user"]["username"].as_str()?.rsplit(':').next()?;
        let who = Account::ALL.into_iter().find(|who| who.account() == account)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let seconds = |field: &str| {
            let at: Timestamp = entry[field].as_str()?.parse().ok()?;
            #[expect(clippy::cast_precision_loss, reason = "microseconds are below 2^53")]
            let micros = at.as_microsecond() as f64;
            Some(micros / 1e6)
        };
        let object = &entry["objectRef"];
        let (resource, below) = (text(&object["resource"]), text(&object["subresource"]));
        Some(Request {
            at: seconds("requestReceivedTimestamp")?,
            done: seconds("stageTimestamp")?,
            who,
            verb: text(&entry["verb"]),
            resource: if below.is_empty() {
                resource
            } else {
                format!("{resource}/{below}")
            },
            name: text(&object["name"]),
            code: entry["responseStatus"]["code"].as_u64().unwrap_or(0),
        })
    }

    /// Whether it changes anything other than a status or an Event.
    pub(crate) fn is_effect(&self) -> bool {
        let reads = ["get", "list"].contains(&self.verb.as_str());
        let reports = ["varunajobs/status", "events"].contains(&self.resource.as_str());
        self.who == Account::Operator && !reads && !reports
    }
}

/// Number of requests of each kind, the most frequent kind first.
pub(crate) fn by_kind(requests: &[Request]) -> Vec<(usize, String)> {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for r in requests.iter().filter(|r| r.who != Account::Signals) {
        let answer = if r.code < 300 {
            String::new()
        } else {
            format!(" -> {}", r.code)
        };
        let kind = format!("{:?} {} {}{answer}", r.who, r.verb, r.resource);
        *kinds.entry(kind).or_default() += 1;
    }
    let mut kinds: Vec<_> = kinds.into_iter().map(|(kind, n)| (n, kind)).collect();
    kinds.sort_by(|a, b| b.cmp(a));
    kinds
}

/// A control plane with an audit log.
pub(crate) struct Audited {
    /// The control plane.
    pub(crate) cluster: Cluster,
    /// Folder for files of the benchmark, including the audit log.
    pub(crate) folder: TempDir,
    /// Position in the audit log up to which it was read, in bytes.
    read: Cell<u64>,
}

impl Audited {
    pub(crate) fn start() -> Result<Audited> {
        let folder = tempfile::tempdir()?;
        let (file, log) = (folder.path().join("policy.yaml"), folder.path().join("audit.log"));
        std::fs::write(&file, policy().to_string())?;
        let options = format!(
            "--audit-policy-file={} --audit-log-path={} --audit-log-maxsize=100000",
            file.display(),
            log.display()
        );
        let audited = Audited {
            cluster: Cluster::own(tempfile::tempdir()?, &["--api-args", &options])?,
            folder,
            read: Cell::new(0),
        };
        for who in Account::ALL {
            let kubectl = |arguments: &[&str]| audited.cluster.kubectl(arguments, "");
            let (name, role) = (who.account(), "--clusterrole=cluster-admin");
            kubectl(&["-n", NAMESPACE, "create", "serviceaccount", name])?;
            let account = format!("--serviceaccount={NAMESPACE}:{name}");
            kubectl(&["create", "clusterrolebinding", name, role, &account])?;
        }
        Ok(audited)
    }

    /// A client that uses one of the accounts.
    pub(crate) async fn client(&self, who: Account) -> Result<Client> {
        self.cluster.client_as(NAMESPACE, who.account()).await
    }

    /// A kubeconfig for one of the accounts.
    pub(crate) fn kubeconfig(&self, who: Account) -> Result<PathBuf> {
        let token = self.cluster.token(NAMESPACE, who.account())?;
        let raw = self
            .cluster
            .kubectl(&["config", "view", "--raw", "-o", "json"], "")?;
        let mut config: Value = serde_json::from_str(&raw)?;
        config["users"][0]["user"] = serde_json::json!({ "token": token });
        let path = self.folder.path().join(format!("{}.kubeconfig", who.account()));
        std::fs::write(&path, config.to_string())?;
        Ok(path)
    }

    /// The requests since the last call.
    pub(crate) fn requests(&self) -> Result<Vec<Request>> {
        let mut file = std::fs::File::open(self.folder.path().join("audit.log")).context("the audit log")?;
        file.seek(SeekFrom::Start(self.read.get()))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        // The last line may be incomplete.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.read.set(self.read.get() + u64::try_from(whole)?);
        Ok(text[..whole].lines().filter_map(Request::of).collect())
    }
}
