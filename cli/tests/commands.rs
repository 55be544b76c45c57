//! Error messages and exit codes of commands with invalid arguments or files, and the files that commands leave when they end.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use varuna_model::presets;
use varuna_plan::profile::Profile;
use varuna_plan::{Costs, Device};

/// Timeout of all waits, far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

const JOB: &str = "
apiVersion: varuna.dev/v1alpha1
kind: VarunaJob
metadata: {name: tiny}
spec:
  model: {layers: 2, hiddenSize: 16, heads: 2, sequenceLength: 8, vocabularySize: 257}
  data: {path: DATA}
  training: {globalBatchSize: 8, microBatchSize: 2, steps: 5, seed: 1, optimizer: {learningRate: 0.001}}
  pipeline: {minDepth: 1, maxDepth: 4}
";

/// A folder with a job and its dataset.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(TempDir::new().unwrap());
        std::fs::write(place.path("text.txt"), "in the beginning ".repeat(60)).unwrap();
        let text = place.path("text.txt");
        let built = place.varuna(&["data", "build", "--tokenizer", "byte", "-o", &place.data(), &text]);
        assert_eq!(built.status.code(), Some(0), "{}", output_text(&built));
        place.job("job.yaml", |text| text);
        place
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn data(&self) -> String {
        self.path("data")
    }

    /// Writes the job with a change. Returns its path.
    fn job(&self, name: &str, change: impl FnOnce(String) -> String) -> String {
        let path = self.path(name);
        std::fs::write(&path, change(JOB.replace("DATA", &self.data()))).unwrap();
        path
    }

    /// Writes a worker program that is a shell script. Returns its path.
    fn worker(&self, script: &str) -> String {
        let path = self.path("worker.sh");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_varuna"));
        command
            .args(arguments)
            .current_dir(self.0.path())
            .stdin(Stdio::null());
        command.env_remove("VARUNA_WORKER").env_remove("VARUNA_TOKEN");
        command
    }

    fn varuna(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs a command that must fail with this exit code, and with these parts in its message.
    fn refuses(&self, arguments: &[&str], code: i32, parts: &[&str]) {
        let output = self.varuna(arguments);
        let output_text = output_text(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output_text}");
        for part in parts {
            assert!(
                output_text.contains(part),
                "{arguments:?} does not say {part:?}: {output_text}"
            );
        }
    }

    /// Starts a run whose workers write their process ids into `pids` and then wait for ever.
    fn idle_run(&self, workers: usize) -> Child {
        self.idle_run_with(workers, |_| {})
    }

    /// The same, with a change of the command.
    fn idle_run_with(&self, workers: usize, change: impl FnOnce(&mut Command)) -> Child {
        let pids = self.path("pids");
        let worker = self.worker(&format!("echo $$ >> {pids}; exec sleep 1000"));
        let job = self.path("job.yaml");
        let count = workers.to_string();
        let run = [
            "run",
            &job,
            "-n",
            &count,
            "--run-dir",
            &self.path("run"),
            "--worker-binary",
            &worker,
        ];
        let mut command = self.command(&run);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        change(&mut command);
        let child = command.spawn().unwrap();
        wait_for("the workers' start", || self.pids().len() == workers);
        child
    }

    fn pids(&self) -> Vec<i32> {
        let text = std::fs::read_to_string(self.path("pids")).unwrap_or_default();
        text.lines().map(|l| l.parse().unwrap()).collect()
    }
}

fn output_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_alive(pid: i32) -> bool {
    // A killed process remains as a zombie until its parent waits for it.
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = status.rsplit_once(')').map_or("", |(_, rest)| rest.trim_start());
    !state.is_empty() && !state.starts_with('Z')
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
}

#[test]
fn invalid_job_is_refused_with_field_value_and_limits() {
    let place = Place::new();
    let plan = |job: &str, parts: &[&str]| place.refuses(&["plan", job, "-n", "2"], 2, parts);
    plan("nowhere.yaml", &["nowhere.yaml", "cannot read"]);
    let change = |from: &'static str, to: &'static str| {
        place.job("bad.yaml", |text| {
            assert!(text.contains(from));
            text.replace(from, to)
        })
    };
    plan(&change("hiddenSize", "hidenSize"), &["hidenSize"]);
    plan(
        &change("globalBatchSize: 8, ", ""),
        &["spec.training.globalBatchSize: missing"],
    );
    plan(
        &change("microBatchSize: 2", "microBatchSize: 3"),
        &["spec.training.microBatchSize: 3", "divisor"],
    );
    plan(
        &change("maxDepth: 4", "maxDepth: 7"),
        &["spec.pipeline.maxDepth: 7", "1 to 6"],
    );
    plan(
        &change("hiddenSize: 16, heads: 2", "hiddenSize: 16, heads: 3"),
        &["heads"],
    );
    let two = place.job("bad.yaml", |t| {
        t.replace("steps: 5", "steps: 0")
            .replace("layers: 2", "layers: 0")
    });
    plan(&two, &["spec.training.steps: 0", "spec.model.layers: 0"]);
}

#[test]
fn a_job_that_needs_more_workers_says_how_many() {
    let place = Place::new();
    let job = place.job("deep.yaml", |t| t.replace("minDepth: 1", "minDepth: 3"));
    place.refuses(&["plan", &job, "-n", "2"], 2, &["3 workers"]);
}

#[test]
fn a_plan_for_an_absurd_number_of_workers_is_refused() {
    let place = Place::new();
    let job = place.path("job.yaml");
    let refuses = |workers: &[&str], number: &str| {
        let arguments = [&["plan", job.as_str()][..], workers].concat();
        place.refuses(&arguments, 2, &[number, "at most 100000"]);
    };
    let most = u64::MAX.to_string();
    refuses(&["-n", &most], &most);
    refuses(&["--nodes", "101x1000"], "101000 workers");
}

#[test]
fn data_that_cannot_be_used_is_told_before_any_worker_starts() {
    let place = Place::new();
    let worker = place.worker(&format!("touch {}", place.path("started")));
    let run = |job: &str, parts: &[&str]| {
        let run_dir = place.path("run");
        place.refuses(
            &["run", job, "--run-dir", &run_dir, "--worker-binary", &worker],
            2,
            parts,
        );
        assert!(
            !Path::new(&run_dir).exists(),
            "nothing is made for a run that cannot be"
        );
    };
    let small = place.job("small.yaml", |t| {
        t.replace("vocabularySize: 257", "vocabularySize: 256")
    });
    run(&small, &["spec.data.path:", "257", "256"]);
    let missing = place.job("missing.yaml", |t| t.replace(&place.data(), "/nowhere/data"));
    run(&missing, &["spec.data.path:", "/nowhere/data.bin"]);
    let bin = PathBuf::from(place.path("data.bin"));
    let whole = std::fs::read(&bin).unwrap();
    std::fs::write(&bin, &whole[..whole.len() / 2]).unwrap();
    run(&place.path("job.yaml"), &["data.bin", "cut short"]);
    place.refuses(&["data", "info", &place.data()], 2, &["data.bin", "cut short"]);
    assert!(!Path::new(&place.path("started")).exists());
}

#[test]
fn data_show_prints_tokens_and_reports_an_empty_split() {
    let place = Place::new();
    std::fs::write(
        place.path("few.jsonl"),
        "{\"text\": \"one\"}\n{\"text\": \"two\"}\n",
    )
    .unwrap();
    let (few, texts) = (place.path("few"), place.path("few.jsonl"));
    let build = ["data", "build", "--tokenizer", "byte", "-o", &few, &texts];
    let show = |more: &[&str]| {
        let shown = place.varuna(&[&["data", "show", &few], more].concat());
        assert!(shown.status.success(), "{shown:?}");
        String::from_utf8(shown.stdout).unwrap()
    };
    let built = place.varuna(&build);
    assert!(
        built.status.success() && !output_text(&built).contains("no tokens"),
        "{built:?}"
    );
    assert_eq!(show(&["--first", "1", "--count", "4"]), "[110,101,256,116]\n");
    assert_eq!(show(&["--text"]), "one\ntwo\n");
    place.refuses(
        &["data", "show", &few, "--first", "8"],
        2,
        &["first token: 8", "below 8"],
    );
    // Two documents are too few for three sets.
    let split = place.varuna(&[&build[..], &["--split", "1,1,1", "--overwrite"]].concat());
    assert!(
        split.status.success() && output_text(&split).contains("has no tokens"),
        "{split:?}"
    );
}

#[test]
fn a_pipe_that_nobody_reads_any_more_is_no_error() {
    let place = Place::new();
    let (data, checkpoints) = (place.data(), place.path("checkpoints"));
    std::fs::create_dir(&checkpoints).unwrap();
    let commands: [&[&str]; 3] = [
        &["checkpoint", "ls", &checkpoints],
        &["data", "info", &data],
        &["data", "show", &data],
    ];
    for arguments in commands {
        let (unread, stdout) = std::io::pipe().unwrap();
        drop(unread);
        let output = place.command(arguments).stdout(stdout).output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(0),
            "{arguments:?}: {}",
            output_text(&output)
        );
        assert_eq!(output_text(&output), "", "{arguments:?}");
    }
}

/// A file that accepts no data, as on a full disk.
fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

#[test]
fn failing_stdout_is_an_error_and_failing_stderr_is_not() {
    let place = Place::new();
    let (data, missing) = (place.data(), place.path("missing"));
    let output = place.command(&["data", "info", &data]).stdout(full()).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", output_text(&output));
    assert!(
        output_text(&output).contains("cannot write to standard output: "),
        "{}",
        output_text(&output)
    );
    let output = place.command(&["data", "info", &missing]).stderr(full()).output();
    assert_eq!(output.unwrap().status.code(), Some(2));
}

#[test]
fn run_continues_without_its_log_and_log_files_have_no_colors() {
    let place = Place::new();
    let mut run = place.idle_run_with(1, |command| {
        command.env("VARUNA_LOG", "trace").stdout(full()).stderr(full());
    });
    let folder = place.path("run");
    let mut status = place.command(&["status", &folder]);
    status.env("VARUNA_LOG", "trace").env_remove("NO_COLOR");
    let status = status.output().unwrap();
    assert_eq!(status.status.code(), Some(0), "{}", output_text(&status));
    let log = output_text(&status);
    assert!(!log.is_empty() && !log.contains('\u{1b}'), "{log}");
    signal(&run, Signal::SIGTERM);
    assert_eq!(run.wait().unwrap().code(), Some(130));
}

#[test]
fn a_dataset_that_exists_is_not_overwritten_unless_asked() {
    let place = Place::new();
    let before = std::fs::read(place.path("data.bin")).unwrap();
    std::fs::write(place.path("other.txt"), "other").unwrap();
    let build = [
        "data",
        "build",
        "--tokenizer",
        "byte",
        "-o",
        &place.data(),
        &place.path("other.txt"),
    ];
    place.refuses(&build, 2, &["data.bin", "exists"]);
    assert_eq!(std::fs::read(place.path("data.bin")).unwrap(), before);
    place.refuses(
        &["data", "build", "--tokenizer", "words", "-o", "x", "other.txt"],
        2,
        &["words", "byte"],
    );
    assert_eq!(
        place
            .varuna(&[&build[..], &["--overwrite"]].concat())
            .status
            .code(),
        Some(0)
    );
}

#[test]
fn wrong_arguments_exit_like_other_bad_input() {
    let place = Place::new();
    let job = place.path("job.yaml");
    place.refuses(
        &["run", &job, "--workers", "0"],
        2,
        &["--workers: 0", "at least 1"],
    );
    place.refuses(
        &["run", &job, "--worker-binary", "/nowhere/w"],
        2,
        &["/nowhere/w", "--worker-binary"],
    );
    place.refuses(&["run", &job, "--wrokers", "2"], 2, &["--wrokers"]);
    place.refuses(&["status", &place.path("nothing")], 2, &["is not a run folder"]);
    place.refuses(
        &["scale", &place.path("nothing"), "3"],
        2,
        &["is not a run folder"],
    );
    let worker = place.worker("exit 0");
    let bind = ["run", &job, "--worker-binary", &worker, "--bind", "256.0.0.1:1"];
    place.refuses(&bind, 2, &["256.0.0.1:1"]);
}

#[test]
fn a_port_in_use_and_a_held_run_folder_have_their_own_exit_code() {
    let place = Place::new();
    let (job, worker) = (place.path("job.yaml"), place.worker("exit 0"));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let bind = [
        "coordinator",
        "--job",
        &job,
        "--run-dir",
        &place.path("a"),
        "--bind",
        &address,
    ];
    place.refuses(&bind, 3, &["cannot listen on", &address]);
    let mut run = place.idle_run(1);
    let held = place.path("run");
    place.refuses(
        &["run", &job, "--run-dir", &held, "--worker-binary", &worker],
        3,
        &[&held, "held"],
    );
    let second = [
        "coordinator",
        "--job",
        &job,
        "--run-dir",
        &held,
        "--bind",
        "127.0.0.1:0",
    ];
    place.refuses(&second, 3, &[&held, "held"]);
    run.kill().unwrap();
    run.wait().unwrap();
    let other = place.job("other.yaml", |t| t.replace("seed: 1", "seed: 2"));
    let over = [
        "coordinator",
        "--job",
        &other,
        "--run-dir",
        &held,
        "--bind",
        "127.0.0.1:0",
    ];
    place.refuses(&over, 2, &[&held, "another job", "spec.training.seed: 2 — 1"]);
    place.job("other.yaml", |t| t.replace("steps: 5", "steps: 4"));
    place.refuses(&over, 2, &[&held, "spec.training.steps: 4 — at least 5"]);
}

#[test]
fn a_refused_run_occupies_no_folder() {
    let place = Place::new();
    let job = place.job("bad.yaml", |t| {
        format!("{t}  checkpoint: {{uri: \"http://x/y\", intervalSteps: 5}}\n")
    });
    let (worker, folder) = (place.worker("exit 1"), place.path("run"));
    let run = ["run", &job, "--worker-binary", &worker];
    let named = [&run[..], &["--run-dir", &folder]].concat();
    place.refuses(&named, 2, &["spec.checkpoint.uri", "http://x/y"]);
    assert!(!Path::new(&folder).exists());
    place.refuses(&run, 2, &["spec.checkpoint.uri", "http://x/y"]);
    assert_eq!(std::fs::read_dir(place.path("runs")).unwrap().count(), 0);
    // As an earlier release left it.
    std::fs::create_dir(&folder).unwrap();
    for name in ["lock", "job.yaml", "events.jsonl"] {
        std::fs::write(Path::new(&folder).join(name), "").unwrap();
    }
    let mut begun = place.idle_run(1);
    signal(&begun, Signal::SIGTERM);
    assert_eq!(begun.wait().unwrap().code(), Some(130));
    let own = [
        "run",
        &place.path("job.yaml"),
        "--worker-binary",
        &worker,
        "--run-dir",
    ];
    place.refuses(
        &[&own[..], &[place.path("").as_str()]].concat(),
        2,
        &["is no run folder"],
    );
}

#[test]
fn a_coordinator_that_others_reach_needs_a_token_and_tls() {
    let place = Place::new();
    let (job, run) = (place.path("job.yaml"), place.path("run"));
    let beyond = [
        "coordinator",
        "--job",
        &job,
        "--run-dir",
        &run,
        "--bind",
        "0.0.0.0:0",
    ];
    place.refuses(&beyond, 2, &["0.0.0.0:0", "--tls", "VARUNA_TOKEN", "--insecure"]);
    let worker = place.worker("exit 0");
    let beyond = ["run", &job, "--worker-binary", &worker, "--bind", "0.0.0.0:0"];
    place.refuses(&beyond, 2, &["0.0.0.0:0", "--tls", "--insecure"]);
    assert!(!Path::new(&run).exists(), "nothing was begun");
}

#[test]
fn commands_reach_a_coordinator_over_tls_by_its_run_folder() {
    let place = Place::new();
    let (job, run) = (place.path("job.yaml"), place.path("run"));
    let arguments = [
        "coordinator",
        "--job",
        &job,
        "--run-dir",
        &run,
        "--tls",
        "--token",
        "t",
    ];
    let mut child = place
        .command(&[&arguments[..], &["--bind", "0.0.0.0:0"]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    let status = loop {
        let status = place.varuna(&["status", &run]);
        if status.status.success() {
            break status;
        }
        assert!(start.elapsed() < PATIENCE, "{}", output_text(&status));
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(String::from_utf8_lossy(&status.stdout).contains("tiny"));
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT).unwrap();
    child.wait().unwrap();
}

#[test]
fn a_plan_is_printed_with_its_schedule() {
    let place = Place::new();
    let output = place.varuna(&["plan", &place.path("job.yaml"), "-n", "3"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    for part in [
        "plan ",
        "pipeline 0: samples 0..",
        "stage 0: worker ",
        "stage 0: f0 ",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let output = place.varuna(&["plan", &place.path("job.yaml"), "-n", "3", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(json["pipelines"].is_array());
}

#[test]
fn workers_that_all_fail_at_start_end_the_run_with_their_logs() {
    let place = Place::new();
    // Libraries may print arbitrary bytes.
    let worker = place.worker("printf '\\377\\n' >&2; echo the device is on fire >&2; exit 7");
    let run_dir = place.path("run");
    let run = [
        "run",
        &place.path("job.yaml"),
        "-n",
        "2",
        "--run-dir",
        &run_dir,
        "--worker-binary",
        &worker,
    ];
    place.refuses(
        &run,
        1,
        &[
            "all workers ended before the first step",
            "the device is on fire",
            ".log",
        ],
    );
}

#[test]
fn worker_binary_is_a_local_file_and_run_folders_are_unique() {
    let place = Place::new();
    place.worker("echo i am the one here >&2; exit 7");
    let job = place.path("job.yaml");
    let run = || place.command(&["run", &job, "-n", "1", "--worker-binary", "worker.sh"]);
    let (mut one, mut other) = (run(), run());
    for command in [&mut one, &mut other] {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    let both = [one.spawn().unwrap(), other.spawn().unwrap()];
    for child in both {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", output_text(&output));
        assert!(
            output_text(&output).contains("i am the one here"),
            "{}",
            output_text(&output)
        );
    }
    let folders = std::fs::read_dir(place.path("runs")).unwrap().count();
    assert_eq!(folders, 2);
}

#[test]
fn a_worker_that_fails_is_started_again_as_often_as_asked() {
    let place = Place::new();
    let worker = place.worker("echo \"$@\"; exit 7");
    let run_dir = place.path("run");
    let run = [
        "run",
        &place.path("job.yaml"),
        "-n",
        "1",
        "--max-restarts",
        "1",
        "--run-dir",
        &run_dir,
        "--worker-binary",
        &worker,
    ];
    let ended = place.varuna(&run);
    assert_eq!(ended.status.code(), Some(1), "{}", output_text(&ended));
    assert!(
        output_text(&ended).contains("the last log line of w1"),
        "{}",
        output_text(&ended)
    );
    let told = String::from_utf8_lossy(&ended.stdout).into_owned();
    let count = |what: &str| told.lines().filter(|line| line.contains(what)).count();
    assert_eq!(count("has ended: "), 2, "{told}");
    assert_eq!(count("; another one is started in 1 s"), 1, "{told}");
    // Workers on one machine connect to each other locally, whatever address the coordinator listens on.
    let log = std::fs::read_to_string(Path::new(&run_dir).join("workers/w0.log")).unwrap();
    assert!(
        log.contains("--bind 127.0.0.1:0") || log.contains("--bind [::1]:0"),
        "{log}"
    );
}

#[test]
fn no_worker_outlives_a_run_that_is_killed() {
    let place = Place::new();
    let mut run = place.idle_run(2);
    let pids = place.pids();
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    signal(&run, Signal::SIGKILL);
    run.wait().unwrap();
    wait_for("the workers' end", || !pids.iter().any(|pid| is_alive(*pid)));
}

#[test]
fn stopped_run_stops_its_workers() {
    for ask in [Signal::SIGTERM, Signal::SIGINT] {
        let place = Place::new();
        let mut run = place.idle_run(2);
        let pids = place.pids();
        signal(&run, ask);
        assert_eq!(run.wait().unwrap().code(), Some(130), "{ask}");
        assert!(!pids.iter().any(|pid| is_alive(*pid)), "{ask}: a worker is left");
    }
}

#[test]
fn a_running_run_is_scaled_and_looked_at_from_outside() {
    let place = Place::new();
    let mut run = place.idle_run(1);
    let folder = place.path("run");
    let scaled = place.varuna(&["scale", &folder, "3"]);
    assert_eq!(scaled.status.code(), Some(0), "{}", output_text(&scaled));
    wait_for("the new workers' start", || place.pids().len() == 3);
    place.refuses(&["scale", &folder, "0"], 2, &["0 workers cannot train"]);
    let status = place.varuna(&["status", &folder, "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!((&status["job"], &status["lastStep"]), (&"tiny".into(), &5.into()));
    let pids = place.pids();
    // The two newest workers get a notice, and these workers end at once.
    assert_eq!(place.varuna(&["scale", &folder, "1"]).status.code(), Some(0));
    wait_for("the newest workers' end", || {
        pids.iter().filter(|pid| is_alive(**pid)).count() == 1
    });
    signal(&run, Signal::SIGTERM);
    signal_again(&mut run);
}

#[test]
fn stale_status_is_marked_unless_the_run_has_ended() {
    let place = Place::new();
    let mut run = place.idle_run(1);
    let folder = place.path("run");
    let file = |name: &str| Path::new(&folder).join(name);
    wait_for("a status", || file("status.json").exists());
    let contact = std::fs::read_to_string(file("coordinator.json")).unwrap();
    let mut other: serde_json::Value = serde_json::from_str(&contact).unwrap();
    other["token"] = "another".into();
    std::fs::write(file("coordinator.json"), other.to_string()).unwrap();
    let last = "; this is the run's last status, written at 2";
    place.refuses(&["status", &folder], 1, &["(the token is not this run's)", last]);
    std::fs::write(file("coordinator.json"), contact).unwrap();
    run.kill().unwrap();
    run.wait().unwrap();
    place.refuses(&["status", &folder], 1, &["no coordinator answers at ", last]);
    let json = place.varuna(&["status", &folder, "--json"]);
    assert_eq!(json.status.code(), Some(1));
    let status: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(status["job"], "tiny");

    // For a run that has ended, the last status is the right one.
    let place = Place::new();
    let mut run = place.idle_run(1);
    signal(&run, Signal::SIGTERM);
    run.wait().unwrap();
    let last = place.varuna(&["status", &place.path("run")]);
    assert_eq!((last.status.code(), output_text(&last)), (Some(0), String::new()));
    assert!(String::from_utf8_lossy(&last.stdout).starts_with("tiny:"));
    let run = place.path("run");
    for request in [&["scale", &run, "2"][..], &["checkpoint", "save", &run]] {
        place.refuses(request, 2, &[&run, "the run has ended at step "]);
    }
}

/// Sends SIGINT after another request to end. The run must end at once.
fn signal_again(run: &mut Child) {
    let start = Instant::now();
    while run.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < PATIENCE, "the run does not end");
        let _ = kill(Pid::from_raw(i32::try_from(run.id()).unwrap()), Signal::SIGINT);
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn each_worker_sees_one_of_the_visible_gpus() {
    let place = Place::new();
    // If workers end before the first step, the run ends once all of them have ended.
    let worker = place.worker("echo \"$CUDA_VISIBLE_DEVICES\"; exit 1");
    let shown = |device: &str| {
        let job = place.job("gpus.yaml", |t| format!("{t}  workers: {{device: {device}}}\n"));
        let folder = place.path(device);
        let run = [
            "run",
            &job,
            "-n",
            "3",
            "--run-dir",
            &folder,
            "--worker-binary",
            &worker,
        ];
        let done = place
            .command(&run)
            .env("CUDA_VISIBLE_DEVICES", "5,GPU-7")
            .output()
            .unwrap();
        assert_eq!(done.status.code(), Some(1), "{}", output_text(&done));
        let log = |i| std::fs::read_to_string(Path::new(&folder).join(format!("workers/w{i}.log"))).unwrap();
        [0, 1, 2].map(|i| log(i).trim().to_owned())
    };
    for device in ["cuda", "auto"] {
        assert_eq!(shown(device), ["5", "GPU-7", "5"]);
    }
    assert_eq!(shown("cpu"), ["5,GPU-7"; 3]);
}

#[test]
fn a_profile_is_of_the_jobs_device_unless_another_is_named() {
    let place = Place::new();
    let worker = place.worker("echo \"$@\" >&2; exit 1");
    for device in ["auto", "cpu", "cuda"] {
        let job = place.job("device.yaml", |t| format!("{t}  workers: {{device: {device}}}\n"));
        let profile = ["profile", &job, "--worker-binary", &worker];
        place.refuses(&profile, 2, &[&format!("--device {device} ")]);
        let named = [&profile[..], &["--device", "cuda:1"]].concat();
        place.refuses(&named, 2, &["--device cuda:1 "]);
    }
}

#[test]
fn a_profile_of_a_processor_is_refused_for_workers_on_gpus() {
    let place = Place::new();
    let model = presets::preset("gpt2-tiny").unwrap();
    let costs = Costs::estimate(&model.spec(), Device::CPU_CORE);
    let profile = Profile::of_costs(&costs, "gpt2-tiny".into(), "cpu".into());
    let file = place.path("profile.json");
    std::fs::write(&file, serde_json::to_string(&profile).unwrap()).unwrap();
    let model = "{layers: 2, hiddenSize: 16, heads: 2, sequenceLength: 8, vocabularySize: 257}";
    let job = place.job("gpus.yaml", |t| {
        let text = t.replace(model, "{preset: gpt2-tiny}");
        format!("{text}  workers: {{device: cuda}}\n")
    });
    let plan = ["plan", &job, "-n", "2", "--profile", &file];
    place.refuses(&plan, 2, &[&file, "device: cpu", "spec.workers.device"]);
}
