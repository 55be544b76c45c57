//! Nodes with real kubelets on this machine, each in namespaces of its own. This needs root. `node.sh` makes the nodes; this module starts
//! and stops their processes.
//!
//! A machine can have one set of nodes at a time: names and addresses are fixed, and a second process waits for a lock.

use crate::family::Family;
use crate::{log_tail, root};
use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Lock file that is held while nodes exist.
const LOCK: &str = "/run/varuna-test-nodes.lock";
/// Timeout for the start of a part of a node, which takes a few seconds, or more on a busy machine.
const START: Duration = Duration::from_secs(120);

/// Waits until something exists. The error has the end of the log of the process that should have created it, because the log is deleted
/// with the cluster.
fn wait_for(what: &str, log: &Path, is_there: impl Fn() -> bool) -> Result<()> {
    let began = Instant::now();
    while !is_there() {
        ensure!(
            began.elapsed() < START,
            "{what}, after {} s: {}",
            START.as_secs(),
            log_tail(log)
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Why this machine cannot have real nodes; none if it can.
#[must_use]
pub fn missing() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("not root".into());
    }
    let needed = [
        "containerd",
        "ctr",
        "runc",
        "ip",
        "iptables",
        "ip6tables",
        "nsenter",
        "unshare",
    ];
    let found = |tool: &&str| {
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
        path.split(':').any(|p| Path::new(p).join(tool).exists())
    };
    let absent: Vec<&str> = needed.into_iter().filter(|t| !found(t)).collect();
    if !absent.is_empty() {
        return Some(format!("missing: {}", absent.join(", ")));
    }
    if !Path::new("/usr/lib/cni/bridge").exists() {
        return Some("missing: containernetworking-plugins".into());
    }
    let works = Command::new("unshare")
        .args(["--net", "ip", "link", "add", "x0", "type", "bridge"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success());
    (!works).then(|| "no network namespaces or bridges here".into())
}

/// A process group that is killed when this is dropped.
struct Group(Child);

impl Group {
    fn kill(&mut self) {
        if let Ok(id) = i32::try_from(self.0.id()) {
            let _ = killpg(Pid::from_raw(id), Signal::SIGKILL);
        }
        let _ = self.0.wait();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The processes of one node.
#[derive(Default)]
struct Node {
    kubelet: Option<Group>,
    proxy: Option<Group>,
    runtime: Option<Group>,
    /// The process that keeps the node's namespaces alive.
    _host: Option<Group>,
}

/// The nodes of a cluster.
pub struct Nodes {
    state: PathBuf,
    family: Family,
    nodes: BTreeMap<u8, Node>,
    dns: Option<Group>,
    _lock: File,
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.dns = None;
        self.nodes.clear();
        let _ = self.script(&["down"]).status();
    }
}

impl Nodes {
    /// Waits until no other test has nodes, removes what a killed test left, and creates the network, with addresses of this family only.
    /// `state` is the folder of the future control plane.
    ///
    /// # Errors
    /// The network cannot be made.
    pub fn prepare(state: &Path, family: Family) -> Result<Nodes> {
        let mut lock = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(LOCK)
            .with_context(|| format!("cannot write {LOCK}"))?;
        lock.lock()?;
        // A killed test leaves its kubelets running. Two kubelets with the same node name would kill each other's containers.
        let mut left = String::new();
        lock.read_to_string(&mut left)?;
        if !left.is_empty() {
            let _ = Command::new(script()).args(["down", &left]).status();
        }
        lock.set_len(0)?;
        lock.rewind()?;
        lock.write_all(state.to_string_lossy().as_bytes())?;
        let nodes = Nodes {
            state: state.to_owned(),
            family,
            nodes: BTreeMap::new(),
            dns: None,
            _lock: lock,
        };
        nodes.run(&["down"])?;
        let made = Command::new(script())
            .env("FAMILY", family.name())
            .arg("net")
            .status()?;
        ensure!(made.success(), "node.sh net failed");
        Ok(nodes)
    }

    fn script(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(script());
        // Order of the arguments: the command, the state folder, the others.
        command.arg(arguments[0]).arg(&self.state).args(&arguments[1..]);
        command
            .env("TESTCLUSTER", root().join(".cache/kube/testcluster"))
            .env("FAMILY", self.family.name());
        command
    }

    fn run(&self, arguments: &[&str]) -> Result<()> {
        let output = self.script(arguments).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "node.sh {arguments:?}: {said}");
        Ok(())
    }

    fn spawn(&self, name: &str, arguments: &[&str]) -> Result<Group> {
        let log = File::options()
            .append(true)
            .create(true)
            .open(self.state.join(format!("{name}.log")))?;
        let mut command = self.script(arguments);
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0);
        Ok(Group(command.spawn().context("node.sh")?))
    }

    /// Starts the cluster's DNS server.
    ///
    /// # Errors
    /// CoreDNS is missing: `scripts/setup-kube.sh` builds it.
    pub fn start_dns(&mut self) -> Result<()> {
        let binary = root().join(".cache/kube/coredns");
        let kubeconfig = self.state.join("admin.kubeconfig");
        let bridge = self.family.bridge();
        let file = format!(
            ".:53 {{\n bind {bridge}\n errors\n kubernetes cluster.local {{\n  kubeconfig {} t\n }}\n}}\n",
            kubeconfig.display()
        );
        let path = self.state.join("Corefile");
        std::fs::write(&path, file)?;
        let said = self.state.join("coredns.log");
        let log = File::create(&said)?;
        let mut command = Command::new(&binary);
        command
            .arg("-conf")
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        self.dns = Some(Group(child));
        wait_for("CoreDNS does not listen", &said, || {
            std::net::TcpStream::connect((bridge, 53)).is_ok()
        })
    }

    /// Adds nodes with these images. Returns when their kubelets have been started.
    ///
    /// # Errors
    /// A node cannot be made.
    pub fn add(&mut self, numbers: &[u8], images: &[PathBuf]) -> Result<()> {
        for number in numbers {
            let n = number.to_string();
            let node = Node {
                _host: Some(self.spawn(&format!("host-{n}"), &["host", &n])?),
                ..Node::default()
            };
            self.nodes.insert(*number, node);
        }
        for number in numbers {
            // The script writes this file once the namespaces of the node are ready.
            let pid = self.state.join(format!("host{number}/host.pid"));
            let log = self.state.join(format!("host-{number}.log"));
            wait_for(&format!("node t{number} has no namespaces"), &log, || {
                pid.exists()
            })?;
            self.start_runtime(*number)?;
        }
        self.load_images(numbers, images)?;
        for number in numbers {
            let n = number.to_string();
            let proxy = self.spawn(&format!("proxy-{n}"), &["proxy", &n])?;
            if let Some(node) = self.nodes.get_mut(number) {
                node.proxy = Some(proxy);
            }
            self.start_kubelet(*number)?;
        }
        Ok(())
    }

    /// Loads archives of images into the containerd of each of these nodes.
    ///
    /// # Errors
    /// An archive cannot be loaded.
    pub fn load_images(&self, numbers: &[u8], images: &[PathBuf]) -> Result<()> {
        let images: Vec<String> = images.iter().map(|p| p.to_string_lossy().into_owned()).collect();
        let load = |number: &u8| {
            let n = number.to_string();
            let arguments = ["images", &n].into_iter();
            self.run(
                &arguments
                    .chain(images.iter().map(String::as_str))
                    .collect::<Vec<_>>(),
            )
        };
        let loads: Vec<Result<()>> = std::thread::scope(|scope| {
            let threads: Vec<_> = numbers.iter().map(|n| scope.spawn(|| load(n))).collect();
            let failed = |_| Err(anyhow::anyhow!("loading images panicked"));
            threads
                .into_iter()
                .map(|t| t.join().unwrap_or_else(failed))
                .collect()
        });
        loads.into_iter().collect()
    }

    /// Starts a node's containerd. It finds the containers of its predecessor.
    ///
    /// # Errors
    /// The runtime cannot be started.
    pub fn start_runtime(&mut self, number: u8) -> Result<()> {
        let n = number.to_string();
        let runtime = self.spawn(&format!("runtime-{n}"), &["runtime", &n])?;
        if let Some(node) = self.nodes.get_mut(&number) {
            node.runtime = Some(runtime);
        }
        Ok(())
    }

    /// Kills a node's containerd with SIGKILL. The containers continue, because their shims are separate processes.
    pub fn kill_runtime(&mut self, number: u8) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.runtime = None;
        }
    }

    /// Starts a node's kubelet.
    ///
    /// # Errors
    /// The kubelet cannot be started.
    pub fn start_kubelet(&mut self, number: u8) -> Result<()> {
        let n = number.to_string();
        let labels = format!("varuna.dev/node=t{n}");
        let kubelet = self.spawn(
            &format!("kubelet-{n}"),
            &["kubelet", &n, "--fast-nodes", "--labels", &labels],
        )?;
        if let Some(node) = self.nodes.get_mut(&number) {
            node.kubelet = Some(kubelet);
        }
        Ok(())
    }

    /// Kills a node's kubelet. Its containers continue.
    pub fn kill_kubelet(&mut self, number: u8) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.kubelet = None;
        }
    }

    /// Disconnects a node from the network, or connects it again.
    ///
    /// # Errors
    /// There is no such node.
    pub fn network(&self, number: u8, on: bool) -> Result<()> {
        let command = if on { "join" } else { "cut" };
        let done = Command::new(script())
            .args([command, &number.to_string()])
            .status()?;
        ensure!(done.success(), "node.sh {command} {number}");
        Ok(())
    }
}

fn script() -> PathBuf {
    root().join("tests/cluster/node.sh")
}
