//! Runs the operator as a separate process, and measures the CPU time and memory of this process and of the machine.

use crate::scrape;
use anyhow::{Context as _, Result, ensure};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// The operator as a separate process. It is killed with SIGKILL when dropped.
pub(crate) struct Operator {
    process: Child,
    health: u16,
    log: PathBuf,
    options: OperatorOptions,
}

/// Settings for starting an operator.
#[derive(Clone, Debug)]
pub(crate) struct OperatorOptions {
    pub(crate) binary: PathBuf,
    /// The kubeconfig with which it connects to the API server.
    pub(crate) kubeconfig: PathBuf,
    /// Folder for its log.
    pub(crate) folder: PathBuf,
    /// Namespace of the jobs and of the Lease.
    pub(crate) namespace: String,
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Operator {
    pub(crate) fn start(options: OperatorOptions) -> Result<Operator> {
        let health = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let path = options.folder.join(format!("operator-{health}.log"));
        let log = std::fs::File::create(&path)?;
        let process = Command::new(&options.binary)
            .args(["--namespace", &options.namespace, "--address", "127.0.0.1"])
            .args(["--coordinator-image", "c:1", "--worker-image", "w:1"])
            .args(["--identity", &format!("bench-{health}")])
            .args(["--lease-namespace", &options.namespace])
            .args(["--health", &format!("127.0.0.1:{health}")])
            .env("KUBECONFIG", &options.kubeconfig)
            .env("VARUNA_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", options.binary.display()))?;
        Ok(Operator {
            process,
            health,
            log: path,
            options,
        })
    }

    /// Starts another operator, which waits for the Lease of this one.
    pub(crate) fn another(&self) -> Result<Operator> {
        Operator::start(self.options.clone())
    }

    /// Starts the process again if it has ended because it lost its Lease, as the kubelet would. Returns whether it was started.
    ///
    /// # Errors
    /// The process has ended for another reason.
    pub(crate) fn restart_if_lease_lost(&mut self) -> Result<bool> {
        let Err(why) = self.check_runs() else {
            return Ok(false);
        };
        if !why.to_string().contains("leadership is lost") {
            return Err(why);
        }
        println!("the operator has lost its Lease, and is started again");
        *self = self.another()?;
        Ok(true)
    }

    /// The text of its `/metrics`.
    pub(crate) async fn metrics(&self) -> Result<String> {
        scrape(self.health, "/metrics").await
    }

    /// Whether it is ready to take over at once.
    pub(crate) async fn is_ready(&self) -> bool {
        let answer = scrape(self.health, "/readyz").await;
        answer.is_ok_and(|text| text.starts_with("HTTP/1.1 200"))
    }

    /// Number of jobs that train, as far as it has reconciled them.
    pub(crate) async fn trains(&self) -> usize {
        let text = self.metrics().await.unwrap_or_default();
        let trains = |l: &&str| {
            l.starts_with("varuna_job_phase{") && l.contains("\"Training\"") && l.ends_with(" 1.0")
        };
        text.lines().filter(trains).count()
    }

    /// # Errors
    /// The process has ended; the error has the last lines of its log.
    pub(crate) fn check_runs(&self) -> Result<()> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap_or_default();
        let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        ensure!(
            state.is_some_and(|state| state != 'Z'),
            "the operator has ended: {log}"
        );
        Ok(())
    }

    /// Resident memory in MB, and CPU time so far in seconds.
    pub(crate) fn cost(&self) -> Result<(f64, f64)> {
        let id = self.process.id();
        let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
        let kb = status.lines().find_map(|l| {
            l.strip_prefix("VmRSS:")?
                .trim()
                .strip_suffix(" kB")?
                .parse::<f64>()
                .ok()
        });
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat"))?;
        // After the name, which may contain any characters: user and system time are the 12th and 13th field, in hundredths of a second.
        let rest: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
        let ticks = |i: usize| rest.get(i).and_then(|t| t.parse::<f64>().ok()).unwrap_or(0.0);
        Ok((kb.context("VmRSS")? / 1e3, (ticks(11) + ticks(12)) / 100.0))
    }
}

/// CPU time of the machine since it was booted: busy and total ticks of all CPUs.
#[derive(Clone, Copy)]
pub(crate) struct MachineTime {
    busy: f64,
    all: f64,
}

impl MachineTime {
    pub(crate) fn now() -> Result<MachineTime> {
        let text = std::fs::read_to_string("/proc/stat")?;
        let line = text.lines().next().context("/proc/stat")?;
        let ticks: Vec<f64> = line
            .split_whitespace()
            .skip(1)
            .take(8)
            .filter_map(|t| t.parse().ok())
            .collect();
        let all: f64 = ticks.iter().sum();
        // Idle, and idle while waiting for a disk.
        let idle: f64 = ticks.iter().skip(3).take(2).sum();
        Ok(MachineTime {
            busy: all - idle,
            all,
        })
    }

    /// The share of the CPU time of all CPUs that was used since then, in percent.
    pub(crate) fn busy_percent(self) -> Result<f64> {
        let now = MachineTime::now()?;
        Ok(100.0 * (now.busy - self.busy) / (now.all - self.all).max(1.0))
    }
}
