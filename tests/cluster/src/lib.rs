//! A real control plane for tests, with fake nodes.
//!
//! With `KUBECONFIG` set, the tests run on that cluster (and need `kubectl`). Otherwise each test process starts its own control plane from
//! `.cache/kube/testcluster` (see `scripts/setup-kube.sh`) on free ports, which ends with the process.

mod clients;
mod coordinators;
mod documents;
mod fake;
mod family;
mod faults;
pub mod kubelet;
mod kueue;
pub mod nodes;

pub use coordinators::{Coordinators, coordinators};
pub use documents::{documents, jobs, observed, observed_job, record};
pub use fake::FakeNode;
pub use family::Family;
pub use faults::{Fault, Faults};
pub use kueue::{KueueController, built_kueue, kueue_queues, kueue_resource};

use anyhow::{Context as _, Result, bail, ensure};
use kube::Client;
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use varuna_operator::controller::{self, Scope};
use varuna_operator::decide::Settings;
use varuna_operator::health::Health;

/// Timeout for the start of a control plane, which takes three to ten seconds on two cores. Its own timeout is shorter.
const START: Duration = Duration::from_secs(330);
/// Timeout of [`eventually`].
const WAIT: Duration = Duration::from_secs(180);

/// Root folder of the repository.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A cluster in which the definition of jobs is installed.
pub struct Cluster {
    kubeconfig: PathBuf,
    kubectl: Vec<PathBuf>,
    /// The control plane; it ends when its standard input is closed.
    _process: Option<Child>,
    folder: Option<TempDir>,
}

/// The machine's kubectl, or else the one that is part of the tests' own control plane.
fn kubectl() -> Vec<PathBuf> {
    let on_path = |folder: PathBuf| folder.join("kubectl").is_file();
    let own = root().join(".cache/kube/testcluster");
    let path = std::env::var_os("PATH").unwrap_or_default();
    if own.exists() && !std::env::split_paths(&path).any(on_path) {
        vec![own, "kubectl".into()]
    } else {
        vec!["kubectl".into()]
    }
}

/// The cluster of this test process.
///
/// # Panics
/// There is no control plane: `make test-kube` builds one.
pub fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| match Cluster::start() {
        Ok(cluster) => cluster,
        Err(error) => panic!("no cluster for the tests: {error:#}"),
    })
}

impl Cluster {
    fn start() -> Result<Cluster> {
        match Cluster::given()? {
            Some(cluster) => Ok(cluster),
            None => Cluster::own(tempfile::tempdir()?, &[]),
        }
    }

    /// The cluster of `KUBECONFIG`; none if that is not set.
    ///
    /// # Errors
    /// The definition of jobs cannot be installed there.
    pub fn given() -> Result<Option<Cluster>> {
        let Some(kubeconfig) = std::env::var_os("KUBECONFIG").filter(|k| !k.is_empty()) else {
            return Ok(None);
        };
        let cluster = Cluster {
            kubeconfig: kubeconfig.into(),
            kubectl: kubectl(),
            _process: None,
            folder: None,
        };
        cluster.define()?;
        Ok(Some(cluster))
    }

    /// Starts a control plane whose state is in `state` in this folder, with additional options for `testcluster up`.
    ///
    /// # Errors
    /// The program is missing, or it does not start.
    pub fn own(folder: TempDir, options: &[&str]) -> Result<Cluster> {
        let binary = root().join(".cache/kube/testcluster");
        ensure!(
            binary.exists(),
            "{} is missing: run scripts/setup-kube.sh",
            binary.display()
        );
        let dir = folder.path().join("state");
        let log = std::fs::File::create(folder.path().join("log"))?;
        // A cluster in a static is never dropped. So the shell removes the folder when the control plane ends.
        let mut process = Command::new("sh")
            .args(["-c", r#""$@" && rm -rf -- "$0""#])
            .arg(folder.path())
            .arg(&binary)
            .args(["up", "--while-stdin", "--dir"])
            .arg(&dir)
            .args(options)
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start the control plane")?;
        let began = Instant::now();
        while !dir.join("ready").exists() {
            if let Some(status) = process.try_wait()? {
                bail!(
                    "the control plane ended with {status}\n{}",
                    log_tails(folder.path())
                );
            }
            ensure!(
                began.elapsed() < START,
                "the control plane is not ready after {} s\n{}",
                START.as_secs(),
                log_tails(folder.path())
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        let cluster = Cluster {
            kubeconfig: dir.join("admin.kubeconfig"),
            kubectl: vec![binary, "kubectl".into()],
            _process: Some(process),
            folder: Some(folder),
        };
        cluster.define()?;
        Ok(cluster)
    }

    /// Whether this process started the cluster.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.folder.is_some()
    }

    /// Folder of the cluster's state, if this process started it.
    #[must_use]
    pub fn state(&self) -> Option<PathBuf> {
        self.folder.as_ref().map(|f| f.path().join("state"))
    }

    /// The process of one of the cluster's components (`kube-apiserver`, ...), if this process started the cluster.
    #[must_use]
    pub fn component(&self, name: &str) -> Option<Pid> {
        let text = std::fs::read_to_string(self.state()?.join(format!("{name}.pid"))).ok()?;
        text.trim().parse().ok().map(Pid::from_raw)
    }

    /// Installs the definitions of our resources.
    fn define(&self) -> Result<()> {
        let folder = root().join("crds");
        self.kubectl(&["apply", "--server-side", "-f", &folder.to_string_lossy()], "")?;
        self.kubectl(
            &[
                "wait",
                "--for=condition=Established",
                "crd/varunajobs.varuna.dev",
                "crd/varunaruns.varuna.dev",
                "crd/varunarecords.varuna.dev",
                "--timeout=180s",
            ],
            "",
        )?;
        Ok(())
    }

    /// Runs kubectl and returns its output, including warnings.
    ///
    /// # Errors
    /// The command failed; the error has the output.
    pub fn kubectl(&self, arguments: &[&str], input: &str) -> Result<String> {
        let mut command = self.kubectl_command();
        command.args(arguments);
        self.output(command, input)
    }

    /// A command that runs kubectl on this cluster.
    #[must_use]
    pub fn kubectl_command(&self) -> Command {
        let mut command = Command::new(&self.kubectl[0]);
        command
            .args(&self.kubectl[1..])
            .env("KUBECONFIG", &self.kubeconfig);
        command
    }

    /// Path of the kubeconfig, for programs that need one.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Runs helm and returns its output.
    ///
    /// # Errors
    /// The command failed; the error has the output.
    pub fn helm(&self, arguments: &[&str]) -> Result<String> {
        let own = root().join(".cache/kube/helm");
        let mut command = Command::new(if own.exists() { own } else { "helm".into() });
        command.args(arguments);
        self.output(command, "")
    }

    fn output(&self, mut command: Command, input: &str) -> Result<String> {
        let mut child = command
            .env("KUBECONFIG", &self.kubeconfig)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        child
            .stdin
            .take()
            .context("a pipe")?
            .write_all(input.as_bytes())?;
        let output = child.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{text}");
        Ok(text.into_owned())
    }

    /// Creates a namespace for one test.
    ///
    /// # Errors
    /// The API server refuses.
    pub fn namespace(&self, name: &str) -> Result<String> {
        let name = format!("{name}-{}", std::process::id());
        self.kubectl(&["create", "namespace", &name], "")?;
        let began = Instant::now();
        // The API server refuses pods until the namespace has its service account.
        while self
            .kubectl(&["-n", &name, "get", "serviceaccount", "default"], "")
            .is_err()
        {
            ensure!(began.elapsed() < START, "no service account in {name}");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(name)
    }
}

/// The last lines of the logs of a control plane and its components. The logs are deleted with its folder.
fn log_tails(folder: &Path) -> String {
    let state = std::fs::read_dir(folder.join("state"));
    let mut logs: Vec<PathBuf> = state
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "log"))
        .collect();
    logs.sort();
    logs.push(folder.join("log"));
    logs.iter()
        .map(|log| format!("-- {}\n{}\n", log.display(), log_tail(log)))
        .collect()
}

/// The last lines of a log; empty if there is no log.
#[must_use]
pub fn log_tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let mut tail: Vec<&str> = text.lines().rev().take(8).collect();
    tail.reverse();
    tail.join("\n")
}

/// Retries until `what` succeeds; after a timeout it returns the last error. Watches would be faster, but need more code.
///
/// # Errors
/// The call did not succeed before the timeout.
pub async fn eventually<T, F: Future<Output = Result<T>>>(
    what: &str,
    mut ask: impl FnMut() -> F,
) -> Result<T> {
    let began = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(error) if began.elapsed() > WAIT => {
                return Err(error.context(what.to_owned()));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// An operator in the test process, which manages one namespace.
#[must_use]
pub fn operator(client: Client, namespace: &str) -> JoinHandle<Result<()>> {
    if let Ok(filter) = tracing_subscriber::EnvFilter::try_from_env("VARUNA_LOG") {
        // If another test has set the subscriber already, that one is used.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_test_writer()
            .try_init();
    }
    let namespace = namespace.to_owned();
    let scope = Scope {
        namespace: Some(namespace.clone()),
    };
    let settings = Settings {
        image: Some("worker:test".into()),
        coordinator_image: Some("coordinator:test".into()),
        coordinator_priority_class: None,
        gpu_resource: Some("nvidia.com/gpu".into()),
        node_signals: vec![],
        topology_labels: vec![],
    };
    let health = Arc::new(Health::new(Arc::default()));
    let (_, leads) = tokio::sync::watch::channel(true);
    tokio::spawn(async move { controller::run(client, scope, settings, "of a test", health, leads).await })
}

/// A small valid job.
#[must_use]
pub fn job(name: &str) -> Value {
    json!({
        "apiVersion": "varuna.dev/v1alpha1", "kind": "VarunaJob",
        "metadata": { "name": name },
        "spec": {
            "model": { "preset": "gpt2-tiny" },
            "data": { "path": "data/kjv" },
            "training": { "globalBatchSize": 16, "steps": 100, "optimizer": { "learningRate": 0.001 } },
            "coordinator": unscheduled(),
        },
    })
}

/// The coordinator's template of a job whose coordinator pod is never scheduled, because the test process runs the coordinator.
#[must_use]
pub fn unscheduled() -> Value {
    json!({ "template": { "spec": { "schedulerName": "none" } } })
}
