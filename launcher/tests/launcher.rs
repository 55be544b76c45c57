//! The launcher with real processes: shell scripts instead of workers.

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio_stream::Stream;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, Streaming};
use varuna_wire::v1::coordinator_server::{Coordinator, CoordinatorServer};
use varuna_wire::v1::{
    Down, ProcessEndedReply, ProcessEndedRequest, SaveReply, SaveRequest, ScaleReply, ScaleRequest,
    StatusReply, StatusRequest, StopReply, StopRequest, Up,
};

const PATIENCE: Duration = Duration::from_secs(60);

fn launcher(arguments: &[&str], script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_varuna-launcher"));
    command
        .args(arguments)
        .args(["--device", "cpu", "--", "/bin/sh", "-c", script, "worker"])
        .env_remove("VARUNA_COORDINATOR");
    command
}

/// A launcher in its own process group. Dropping this kills all processes of the group, also after a failed test.
struct Launched(Child);

impl Drop for Launched {
    fn drop(&mut self) {
        if let Ok(id) = i32::try_from(self.0.id()) {
            // No process may be left.
            let _ = killpg(Pid::from_raw(id), Signal::SIGKILL);
        }
        let _ = self.0.wait();
    }
}

#[expect(clippy::unwrap_used, reason = "a test helper")]
fn start(command: &mut Command) -> Launched {
    Launched(command.stdout(Stdio::piped()).process_group(0).spawn().unwrap())
}

/// Sends SIGTERM to a launcher, but not to its child processes.
#[expect(clippy::unwrap_used, reason = "a test helper")]
fn terminate(child: &Launched) {
    let process = Pid::from_raw(i32::try_from(child.0.id()).unwrap());
    kill(process, Signal::SIGTERM).unwrap();
}

#[expect(clippy::unwrap_used, reason = "a test helper")]
fn ended(mut child: Launched) -> i32 {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.0.try_wait().unwrap() {
            return status.code().unwrap();
        }
        assert!(Instant::now() < until, "the launcher does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The next lines that the workers print.
#[expect(clippy::unwrap_used, reason = "a test helper")]
fn lines(child: &mut Launched, count: usize) -> Vec<String> {
    let out = child.0.stdout.as_mut().unwrap();
    let mut reader = BufReader::with_capacity(1, out);
    let mut lines = Vec::new();
    for _ in 0..count {
        let mut line = String::new();
        assert!(reader.read_line(&mut line).unwrap() > 0, "after {lines:?}");
        lines.push(line.trim().to_owned());
    }
    lines
}

#[test]
fn workers_get_shares_and_the_pod_ends_well_with_them() {
    let mut child = start(&mut launcher(&["--workers", "2"], "echo \"$*\""));
    for line in lines(&mut child, 2) {
        let bytes: u64 = line.strip_prefix("--host-memory ").expect(&line).parse().unwrap();
        assert!(bytes > 0);
    }
    assert_eq!(ended(child), 0);
    let mut alone = start(&mut launcher(&["--workers", "1"], "echo \"alone$*\""));
    assert_eq!(lines(&mut alone, 1), ["alone"], "it has the machine for itself");
    assert_eq!(ended(alone), 0);
}

#[test]
fn workers_see_shared_gpus_only_if_told_to_and_the_log_tells() {
    let script = "echo \"$CUDA_VISIBLE_DEVICES $*\"";
    let printed = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_varuna-launcher"));
        command
            .args(["--workers", "2", "--", "/bin/sh", "-c", script, "worker"])
            .args(more)
            .env("CUDA_VISIBLE_DEVICES", "5")
            .env_remove("VARUNA_COORDINATOR")
            .env_remove("VARUNA_LOG")
            .stderr(Stdio::piped());
        let mut child = start(&mut command);
        let mut found = lines(&mut child, 2);
        found.sort_unstable();
        let mut log = String::new();
        let mut stderr = child.0.stderr.take().unwrap();
        stderr.read_to_string(&mut log).unwrap();
        assert_eq!(ended(child), 0);
        assert!(log.contains("GPUs (1) than workers (2)"), "{log}");
        found
    };
    for (place, line) in printed(&[]).iter().enumerate() {
        assert!(
            line.starts_with("5 ") && line.ends_with(&format!("--gpu-place {place}/2")),
            "{line}"
        );
    }
    for line in printed(&["--share-gpus"]) {
        assert!(
            line.starts_with("5 --share-gpus ") && line.ends_with("--workers-on-gpu 2"),
            "{line}"
        );
    }
}

#[test]
fn a_killed_worker_is_started_again_and_the_others_run_on() {
    let script = "trap 'exit 0' TERM; echo $$; while :; do sleep 0.05; done";
    let mut child = start(&mut launcher(&["--workers", "2"], script));
    let first = lines(&mut child, 2);
    kill(Pid::from_raw(first[0].parse().unwrap()), Signal::SIGKILL).unwrap();
    let again = lines(&mut child, 1);
    assert!(!first.contains(&again[0]));
    assert!(
        Path::new("/proc").join(&first[1]).exists(),
        "the other one runs on"
    );
    terminate(&child);
    assert_eq!(ended(child), 0, "SIGTERM is passed on, and both end well");
}

#[test]
fn the_pod_ends_as_its_workers_end_after_a_notice() {
    let script = "trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done";
    let mut child = start(&mut launcher(&["--workers", "2"], script));
    lines(&mut child, 2);
    terminate(&child);
    assert_eq!(ended(child), 7);
}

#[test]
fn a_worker_failing_too_often_ends_the_pod_and_tells_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let (told, first) = (folder.path().join("told"), folder.path().join("first"));
    // The worker that creates the folder first keeps running; the other one fails.
    let script = format!(
        "if mkdir {first} 2>/dev/null; then trap 'touch {told}; exit 0' TERM; while :; do sleep 0.05; done; fi; exit 3",
        first = first.display(),
        told = told.display()
    );
    let began = Instant::now();
    let child = start(&mut launcher(&["--workers", "2"], &script));
    assert_eq!(ended(child), 3);
    assert!(told.exists(), "the other one had a notice");
    assert!(
        began.elapsed() >= Duration::from_secs(15),
        "1 + 2 + 4 + 8 s between the tries"
    );
}

#[test]
fn who_ignores_the_notice_of_anothers_last_failure_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join("first");
    let script = format!(
        "if mkdir {first} 2>/dev/null; then trap '' TERM; while :; do sleep 0.05; done; fi; exit 3",
        first = first.display()
    );
    let mut command = launcher(&["--workers", "2", "--kill-after-seconds", "1"], &script);
    let child = start(&mut command);
    assert_eq!(ended(child), 3, "else it would wait for the other one for ever");
}

#[test]
fn a_log_that_cannot_be_written_ends_no_worker() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = launcher(&["--workers", "1"], "echo up");
    let mut child = start(command.stderr(full));
    assert_eq!(lines(&mut child, 1), ["up"]);
    assert_eq!(ended(child), 0);
}

#[test]
fn a_program_that_is_not_there_ends_the_pod() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_varuna-launcher"));
    let child = start(command.args(["--workers", "1", "/nowhere/varuna-worker"]));
    assert_eq!(ended(child), 127);
}

/// A coordinator that only accepts reports of ended processes.
struct ReportServer(tokio::sync::mpsc::Sender<ProcessEndedRequest>);

#[tonic::async_trait]
impl Coordinator for ReportServer {
    type AttachStream = Pin<Box<dyn Stream<Item = Result<Down, Status>> + Send>>;

    async fn attach(&self, _: Request<Streaming<Up>>) -> Result<Response<Self::AttachStream>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusReply>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn scale(&self, _: Request<ScaleRequest>) -> Result<Response<ScaleReply>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn stop(&self, _: Request<StopRequest>) -> Result<Response<StopReply>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn save(&self, _: Request<SaveRequest>) -> Result<Response<SaveReply>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn process_ended(
        &self,
        request: Request<ProcessEndedRequest>,
    ) -> Result<Response<ProcessEndedReply>, Status> {
        let reported = self.0.send(request.into_inner()).await;
        reported.map_err(|_| Status::unavailable("the test has ended"))?;
        Ok(Response::new(ProcessEndedReply {}))
    }
}

#[tokio::test]
async fn the_coordinator_is_told_of_a_worker_that_was_killed() {
    check_killed_worker_is_reported("127.0.0.1:0").await;
}

#[tokio::test]
async fn a_coordinator_on_ipv6_is_told_as_well() {
    check_killed_worker_is_reported("[::1]:0").await;
}

#[expect(clippy::unwrap_used, reason = "a test helper")]
async fn check_killed_worker_is_reported(bind: &str) {
    let listener = tokio::net::TcpListener::bind(bind).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (tell, mut reported) = tokio::sync::mpsc::channel(8);
    let server = tonic::transport::Server::builder()
        .add_service(CoordinatorServer::new(ReportServer(tell)))
        .serve_with_incoming(TcpListenerStream::new(listener));
    tokio::spawn(server);
    let script = "trap 'exit 0' TERM; echo $$; while :; do sleep 0.05; done";
    let mut command = launcher(&["--workers", "2", "--coordinator", &address], script);
    let mut child = start(command.env("VARUNA_WORKER_NAME", "j-w7"));
    let processes = lines(&mut child, 2);
    kill(Pid::from_raw(processes[0].parse().unwrap()), Signal::SIGKILL).unwrap();
    let told = tokio::time::timeout(PATIENCE, reported.recv())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(told.process.to_string(), processes[0]);
    assert_eq!(
        told.host, "j-w7",
        "several pods may have the host name of their node"
    );
    // Waits until the killed worker was restarted: if the pod ended before that, its exit code would be that worker's.
    lines(&mut child, 1);
    terminate(&child);
    assert_eq!(ended(child), 0);
}
