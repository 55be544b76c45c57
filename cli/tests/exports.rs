//! The figures of a run on their way to other systems: scraped, and pushed to an OpenTelemetry receiver.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Timeout of all waits, far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

const JOB: &str = "
apiVersion: varuna.dev/v1alpha1
kind: VarunaJob
metadata: {name: tiny}
spec:
  model: {layers: 2, hiddenSize: 16, heads: 2, sequenceLength: 8, vocabularySize: 257}
  data: {path: nowhere}
  training: {globalBatchSize: 8, microBatchSize: 2, steps: 5, seed: 1, optimizer: {learningRate: 0.001}}
";

/// The arguments of a coordinator on any free port, in the folder of its job.
const COORDINATOR: [&str; 7] = [
    "coordinator",
    "--job",
    "job.yaml",
    "--run-dir",
    "run",
    "--bind",
    "127.0.0.1:0",
];

/// A coordinator without workers, its standard output, and its folder.
struct Coordinator {
    child: Child,
    /// Lines of its standard output.
    said: Receiver<String>,
    folder: TempDir,
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command with these of OpenTelemetry's variables and no others.
fn command(folder: &Path, variables: &[(&str, &str)], arguments: &[&str]) -> Command {
    std::fs::write(folder.join("job.yaml"), JOB).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_varuna"));
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("OTEL_") {
            command.env_remove(name);
        }
    }
    command.env_remove("VARUNA_TOKEN").envs(variables.iter().copied());
    command
}

impl Coordinator {
    fn start(variables: &[(&str, &str)]) -> Coordinator {
        let folder = TempDir::new().unwrap();
        let arguments = [&COORDINATOR[..], &["--metrics", "127.0.0.1:0"]].concat();
        let errors = std::fs::File::create(folder.path().join("errors")).unwrap();
        let mut child = command(folder.path(), variables, &arguments)
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .unwrap();
        let (say, said) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = say.send(line);
            }
        });
        Coordinator { child, said, folder }
    }

    /// The rest of the first line that begins like this.
    fn said(&self, begin: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = self.said.recv_timeout(left).unwrap();
            if let Some(rest) = line.strip_prefix(begin) {
                return rest.to_owned();
            }
        }
    }

    /// Ends it in order. Returns how it has ended, and what it said on standard error.
    fn stop(&mut self) -> (ExitStatus, String) {
        let id = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        kill(id, Signal::SIGINT).unwrap();
        let status = self.child.wait().unwrap();
        let errors = std::fs::read_to_string(self.folder.path().join("errors"));
        (status, errors.unwrap())
    }
}

/// The head and the body of one request, which is answered.
fn take_request(listener: &TcpListener) -> (String, Vec<u8>) {
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        let line = line.to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    reader.get_mut().write_all(answer).unwrap();
    (head, body)
}

fn any_port() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    (listener, endpoint)
}

/// What a scrape gets.
fn scrape(url: &str) -> String {
    let address = url.strip_prefix("http://").unwrap();
    let (address, path) = address.split_once('/').unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET /{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_coordinator_is_scraped_and_pushes_with_the_users_headers() {
    let (listener, endpoint) = any_port();
    let receiving = std::thread::spawn(move || take_request(&listener));
    let mut coordinator = Coordinator::start(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=s3cret"),
        ("OTEL_RESOURCE_ATTRIBUTES", "team=nine"),
        ("OTEL_SERVICE_NAME", "training"),
        ("VARUNA_LOG", "debug"),
    ]);
    let url = coordinator.said("metrics at ");
    coordinator.said("coordinator at ");
    let line = r#"varuna_job_workers{job_name="tiny",state="member"} 0.0"#;
    let began = Instant::now();
    loop {
        let text = scrape(&url);
        if text.lines().any(|l| l == line) {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "no {line} in:\n{text}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let (status, errors) = coordinator.stop();
    assert_eq!(status.code(), Some(130), "{errors}");
    assert!(!errors.contains("s3cret"), "{errors}");
    let (head, body) = receiving.join().unwrap();
    for part in ["post /v1/metrics ", "x-key: s3cret", "application/x-protobuf"] {
        assert!(head.contains(part), "no {part} in:\n{head}");
    }
    // Texts stand in protobuf as they are.
    let body = String::from_utf8_lossy(&body);
    for part in ["varuna_job_workers", "tiny", "training", "team", "nine"] {
        assert!(body.contains(part), "no {part} in {body}");
    }
}

#[test]
fn a_silent_receiver_delays_the_end_by_seconds_at_most() {
    let (_listener, endpoint) = any_port();
    let mut coordinator = Coordinator::start(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)]);
    coordinator.said("coordinator at ");
    let began = Instant::now();
    let (status, errors) = coordinator.stop();
    assert_eq!(status.code(), Some(130), "{errors}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let told = errors.lines().filter(|line| line.contains("takes no figures"));
    assert_eq!(told.count(), 1, "{errors}");
}

#[test]
fn nothing_is_pushed_where_the_user_switches_it_off() {
    let (listener, endpoint) = any_port();
    let mut coordinator = Coordinator::start(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
        ("OTEL_METRIC_EXPORT_INTERVAL", "100"),
        ("OTEL_SDK_DISABLED", "true"),
    ]);
    coordinator.said("coordinator at ");
    let (status, errors) = coordinator.stop();
    assert_eq!(status.code(), Some(130), "{errors}");
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "somebody has connected");
}

#[test]
fn an_unusable_receiver_or_address_ends_the_command_at_once() {
    let folder = TempDir::new().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let wrong = ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318");
    let key = ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=s3cret");
    for (variables, more, code, part) in [
        (
            &[wrong, key][..],
            &[][..],
            2,
            "OTEL_EXPORTER_OTLP_ENDPOINT: collector:4318",
        ),
        (&[], &["--metrics", "nowhere"], 2, "(--metrics)"),
        (&[], &["--metrics", &taken], 3, "(--metrics)"),
    ] {
        let arguments = [&COORDINATOR[..], more].concat();
        let output = command(folder.path(), variables, &arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{more:?}: {said}");
        assert!(said.contains(part) && !said.contains("s3cret"), "{said}");
        assert!(!folder.path().join("run").exists(), "{more:?}: a run has begun");
    }
}
