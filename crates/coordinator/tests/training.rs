//! The coordinator's shell over real gRPC, with workers that have everything except an engine.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod fake;

use fake::{Fake, Net, hello, loss_of};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::mpsc::channel;
use tokio_stream::wrappers::ReceiverStream;
use varuna_api::{Job, parse_job};
use varuna_checkpoint::{Claim, Store};
use varuna_coordinator::{
    Checkpointing, Control, CoordinatorError, Options, Outcome, RunFolder, Timing, View, serve,
};
use varuna_plan::Step;
use varuna_plan::device::Hardware;
use varuna_protocol::coordinator::Snapshot;
use varuna_run_folder::RunFiles;
use varuna_wire::v1::{ScaleRequest, StatusRequest};
use varuna_wire::{Downward, Hello, PROTOCOL_VERSION, Upward, VERSIONS};

const TOKEN: &str = "a-token";
const RUN: &str = "a-run";
const STEPS: u64 = 150;
/// Steps of a run that ends only when it is stopped: what a test waits for happens before its end, however fast it trains.
const UNENDING: u64 = 1_000_000;
/// Timeout of all waits, far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// At least two stages, so that each worker holds only a part of the model.
const JOB: &str = "
apiVersion: varuna.dev/v1alpha1
kind: VarunaJob
metadata: {name: fake}
spec:
  model: {layers: 4, hiddenSize: 16, heads: 2, sequenceLength: 8, vocabularySize: 64}
  data: {path: nowhere}
  training: {globalBatchSize: 8, microBatchSize: 1, steps: 150, seed: 1, optimizer: {learningRate: 0.001}}
  pipeline: {minDepth: 2, maxDepth: 2}
  elasticity: {minWorkers: 2}
  integrity: {compareEverySteps: 5}
";

fn job() -> Job {
    parse_job(JOB).unwrap()
}

fn options(bind: String) -> Options {
    let ms = Duration::from_millis;
    Options {
        job: job(),
        steps: STEPS,
        job_text: JOB.into(),
        run: RUN.into(),
        data_fingerprint: String::new(),
        bind,
        token: TOKEN.into(),
        identity: None,
        timing: Timing {
            settle: ms(2_000),
            gather: ms(500),
            watch: ms(200),
            ..Timing::default()
        },
        host: None,
        expected_workers: None,
        allow_state_loss: false,
        checkpoints: None,
        costs: None,
        scale: None,
    }
}

struct Run {
    temp: TempDir,
    control: Control,
    net: Net,
    workers: Vec<Fake>,
}

impl Run {
    async fn start(workers: u64) -> Run {
        Run::start_to(STEPS, workers).await
    }

    async fn start_to(steps: u64, workers: u64) -> Run {
        let temp = TempDir::new().unwrap();
        let control = coordinate_to(temp.path(), own_address(), steps).await;
        let mut run = Run {
            temp,
            control,
            net: Net::default(),
            workers: vec![],
        };
        for number in 1..=workers {
            run.join(number);
        }
        run
    }

    fn address(&self) -> String {
        self.control.address.to_string()
    }

    fn join(&mut self, number: u64) {
        let worker = Fake::start(&self.net, &job(), self.address(), TOKEN, number);
        self.workers.push(worker);
    }

    async fn wait_for(&mut self, what: &str, condition: impl FnMut(&View) -> bool) {
        let waited = tokio::time::timeout(PATIENCE, self.control.view.wait_for(condition)).await;
        waited
            .unwrap_or_else(|_| panic!("not in time: {what}"))
            .expect("the coordinator lives");
    }

    async fn wait_for_step(&mut self, step: u64) {
        self.wait_for(&format!("step {step}"), |v| {
            v.metric.as_ref().is_some_and(|m| m.step >= Step(step))
        })
        .await;
    }

    /// Waits for the end of the run. Every worker must be released, and every step published once, with the loss of an undisturbed run.
    async fn finish(self) -> TempDir {
        self.finish_at(STEPS).await
    }

    async fn finish_at(self, last: u64) -> TempDir {
        let (temp, published) = self.ended(Outcome::Done).await;
        assert_eq!(published, last);
        temp
    }

    /// Stops the run, and requires the same of its steps until then.
    async fn stop(self) -> TempDir {
        self.control.stop.send(()).await.unwrap();
        self.ended(Outcome::Stopped).await.0
    }

    /// Waits for the end of the run; gives its folder and the number of its published steps.
    async fn ended(self, expected: Outcome) -> (TempDir, u64) {
        let outcome = tokio::time::timeout(PATIENCE, self.control.outcome)
            .await
            .expect("the run ends");
        assert_eq!(outcome.unwrap().unwrap(), expected);
        for worker in self.workers {
            tokio::time::timeout(PATIENCE, worker.released())
                .await
                .expect("every worker is released");
        }
        let metrics = RunFiles::new(self.temp.path()).metrics().unwrap();
        let steps: Vec<u64> = metrics.iter().map(|m| m.step.0).collect();
        let published = u64::try_from(steps.len()).unwrap();
        assert_eq!(
            steps,
            (1..=published).collect::<Vec<_>>(),
            "every step is published once, in order"
        );
        for metric in metrics {
            assert_eq!(
                metric.loss,
                loss_of(Step(metric.step.0 - 1)),
                "step {}",
                metric.step
            );
        }
        (self.temp, published)
    }
}

/// A free port of a loopback address of this process: no connection of another process or of its workers can take the port while the
/// coordinator is away.
fn own_address() -> String {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    format!("127.78.{high}.{}:0", low.max(1))
}

async fn coordinate(folder: &Path, bind: String) -> Control {
    coordinate_to(folder, bind, STEPS).await
}

async fn coordinate_to(folder: &Path, bind: String, steps: u64) -> Control {
    let folder = RunFolder::open(folder, JOB).unwrap();
    let options = Options {
        steps,
        ..options(bind)
    };
    serve(options, folder).await.unwrap()
}

/// The event log as JSON.
fn events(folder: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(folder.join("events.jsonl")).unwrap();
    text.lines()
        .map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{l}: {e}")))
        .collect()
}

fn generations(view: &View) -> u64 {
    view.snapshot.as_ref().map_or(0, |s| s.run.generation.0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_workers_train_to_the_end_and_are_released() {
    let temp = Run::start(4).await.finish().await;
    let record = std::fs::read_to_string(temp.path().join("record.json")).unwrap();
    for secret in ["secret", TOKEN] {
        assert!(!record.contains(secret), "{secret} in {record}");
    }
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    assert_eq!(record["done"], true);
    let plans = RunFiles::new(temp.path()).plans().unwrap();
    let plan = plans.first().unwrap();
    assert!(plan.shape.pipelines.iter().all(|p| p.stages.len() >= 2));
    let events = events(temp.path());
    for kind in ["workerJoined", "planned", "running", "done"] {
        assert!(
            events.iter().any(|e| e["event"] == kind && e["timeMs"].is_u64()),
            "no {kind} in {events:?}"
        );
    }
    let status = RunFiles::new(temp.path()).status().unwrap();
    assert_eq!((status.job.as_str(), status.run.step), ("fake", Step(STEPS)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_worker_costs_no_step() {
    let mut run = Run::start(4).await;
    run.wait_for_step(20).await;
    let before = generations(&run.control.view.borrow());
    run.workers.remove(1).kill();
    run.wait_for("a plan without the dropped worker", |v| generations(v) > before)
        .await;
    let temp = run.finish().await;
    let events = events(temp.path());
    assert!(
        events
            .iter()
            .any(|e| e["event"] == "workerLost" && e["name"] == "w2"),
        "{events:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_joining_worker_is_taken_in_without_a_recovery() {
    let mut run = Run::start_to(UNENDING, 2).await;
    run.wait_for_step(10).await;
    let before = generations(&run.control.view.borrow());
    run.join(3);
    run.join(4);
    run.wait_for("a plan with the joined workers", |v| generations(v) > before)
        .await;
    let temp = run.stop().await;
    let events = events(temp.path());
    let fences = events
        .iter()
        .filter(|e| e["event"] == "fenced" && e["upto"].as_u64() > Some(0))
        .count();
    assert_eq!(fences, 0, "{events:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn training_continues_without_a_coordinator() {
    let mut run = Run::start_to(UNENDING, 4).await;
    run.wait_for_step(20).await;
    let address = run.address();
    run.control.outcome.abort();
    let _ = (&mut run.control.outcome).await;
    let away = run.net.newest();
    let wait = async {
        while run.net.newest() < Step(away.0 + 10) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait)
        .await
        .expect("training goes on without a coordinator");
    run.control = coordinate_to(run.temp.path(), address, UNENDING).await;
    run.wait_for_step(away.0 + 20).await;
    let temp = run.stop().await;
    let events = events(temp.path());
    let terms: Vec<_> = events
        .iter()
        .filter(|e| e["event"] == "tookOver")
        .map(|e| e["term"].clone())
        .collect();
    assert_eq!(terms, [1, 2]);
    let recovered = events
        .iter()
        .any(|e| e["event"] == "fenced" && e["upto"].as_u64() > Some(0));
    assert!(!recovered, "a new coordinator disturbs nobody: {events:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_wait_until_the_record_can_be_written() {
    let temp = TempDir::new().unwrap();
    // A folder with the name of the temporary file for the record; it cannot be removed like a file.
    let obstacle = temp.path().join("record.json.partial");
    std::fs::create_dir_all(obstacle.join("full")).unwrap();
    let control = coordinate(temp.path(), "127.0.0.1:0".into()).await;
    let mut run = Run {
        temp,
        control,
        net: Net::default(),
        workers: vec![],
    };
    run.join(1);
    run.join(2);
    run.wait_for("the failed write is told", |v| {
        v.messages.iter().any(|(_, t)| t.contains("could not write"))
    })
    .await;
    assert!(
        !run.temp.path().join("plans/g000001.json").exists(),
        "no plan is told of before it is persisted"
    );
    std::fs::remove_dir_all(obstacle).unwrap();
    run.finish().await;
}

/// A job with checkpoints in this folder, and the options of its coordinator. The run is called `mine`.
fn with_checkpoints(folder: &Path) -> (String, Options) {
    let place = folder.join("place");
    std::fs::create_dir_all(&place).unwrap();
    let text = format!(
        "{JOB}  checkpoint: {{uri: {}, intervalSteps: 10}}\n",
        place.display()
    );
    let job = parse_job(&text).unwrap();
    let given = Options {
        checkpoints: Some(Checkpointing {
            store: Store::of_job(&job, "").unwrap().unwrap(),
            keep: 3,
            claim: claim("mine"),
            ownership: None,
            event_files: false,
        }),
        job,
        ..options("127.0.0.1:0".into())
    };
    (text, given)
}

/// A run of such a job in the same folder, with two workers.
async fn two_workers(temp: TempDir, text: &str, given: Options) -> Run {
    let folder = RunFolder::open(&temp.path().join("run"), text).unwrap();
    let mut run = Run {
        control: serve(given, folder).await.unwrap(),
        temp,
        net: Net::default(),
        workers: vec![],
    };
    run.join(1);
    run.join(2);
    run
}

fn claim(run: &str) -> Claim {
    Claim {
        run: run.into(),
        machine: String::new(),
        process: 0,
        started: 0,
    }
}

fn place_of(given: &Options) -> varuna_checkpoint::Location {
    given.checkpoints.as_ref().unwrap().store.location().clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_begins_in_a_place_that_another_run_may_be_writing_to() {
    let temp = TempDir::new().unwrap();
    let (text, given) = with_checkpoints(temp.path());
    let other = place_of(&given).claim(claim("other"), |_| false).await.unwrap();
    let mut run = two_workers(temp, &text, given).await;
    run.wait_for("two workers, and the word of whose the place is", |v| {
        let saved = v.checkpoints.as_ref().and_then(|s| s.failing.as_deref());
        v.snapshot.as_ref().is_some_and(|s| s.workers.len() == 2)
            && saved.is_some_and(|why| why.contains("run other owns"))
    })
    .await;
    assert_eq!(generations(&run.control.view.borrow()), 0, "nothing is planned");
    other.release().await.unwrap();
    run.wait_for_step(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_place_of_a_run_that_is_gone_is_free_at_once() {
    let temp = TempDir::new().unwrap();
    let (text, given) = with_checkpoints(temp.path());
    let place = place_of(&given);
    let mut run = two_workers(temp, &text, given).await;
    run.wait_for_step(1).await;
    assert!(
        place.claim(claim("other"), |_| false).await.is_err(),
        "it is taken"
    );
    run.control.abandon.send(()).await.unwrap();
    let outcome = tokio::time::timeout(PATIENCE, &mut run.control.outcome).await;
    assert_eq!(outcome.unwrap().unwrap().unwrap(), Outcome::Stopped);
    place.claim(claim("other"), |_| false).await.unwrap();
}

/// The coordinator's answer to a hello.
async fn answer(address: &str, hello: Hello) -> Downward {
    answer_to(address, Upward::Hello(hello).to_wire()).await
}

async fn answer_to(address: &str, first: varuna_wire::v1::Up) -> Downward {
    let mut client = varuna_wire::connect(address, None, TOKEN).await.unwrap();
    let (up, requests) = channel(1);
    up.send(first).await.unwrap();
    let mut down = client
        .attach(ReceiverStream::new(requests))
        .await
        .unwrap()
        .into_inner();
    Downward::from_wire(down.message().await.unwrap().unwrap())
        .unwrap()
        .1
}

fn reason(answer: &Downward) -> &str {
    match answer {
        Downward::Refused {
            reason,
            is_final: true,
        } => reason,
        other => panic!("not a final refusal: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_of_another_run_or_token_are_refused_with_the_reason() {
    let run = Run::start(0).await;
    let address = run.address();
    let mut client = varuna_wire::connect(&address, None, "wrong").await.unwrap();
    let (_up, requests) = channel(1);
    let refused = client.attach(ReceiverStream::new(requests)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unauthenticated);
    assert!(refused.message().contains("token"), "{refused}");
    let other = answer(
        &address,
        Hello {
            run: "other".into(),
            ..hello(1)
        },
    )
    .await;
    assert!(reason(&other).contains("another run"));
    let impatient = answer_to(&address, varuna_wire::v1::Up::default()).await;
    assert!(reason(&impatient).contains("missing"));
    let Downward::Welcome(welcome) = answer(&address, hello(1)).await else {
        panic!("not taken in")
    };
    assert_eq!((welcome.job.as_str(), welcome.run), (JOB, RUN.to_owned()));
}

/// The hello of a build with these protocol versions. Builds from before there was a range send no oldest version.
fn of_versions(oldest: u32, newest: u32) -> varuna_wire::v1::Up {
    let mut up = Upward::Hello(hello(1)).to_wire();
    if let Some(varuna_wire::v1::up::Message::Hello(hello)) = &mut up.message {
        (hello.oldest_protocol_version, hello.protocol_version) = (oldest, newest);
    }
    up
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_release_attaches_and_incompatible_ones_may_retry() {
    let run = Run::start(0).await;
    let address = run.address();
    let next = answer_to(&address, of_versions(PROTOCOL_VERSION, PROTOCOL_VERSION + 1)).await;
    assert!(matches!(next, Downward::Welcome(_)), "{next:?}");
    for (oldest, newest, words) in [
        (PROTOCOL_VERSION + 1, PROTOCOL_VERSION + 2, "versions 7 to 8"),
        (0, VERSIONS.oldest - 1, "version 5"),
    ] {
        let refused = answer_to(&address, of_versions(oldest, newest)).await;
        let Downward::Refused { reason, is_final } = refused else {
            panic!("{refused:?}")
        };
        assert!(reason.contains(words) && !is_final, "{reason}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_workers_newest_stream_counts() {
    let run = Run::start(0).await;
    let mut client = varuna_wire::connect(&run.address(), None, TOKEN).await.unwrap();
    let mut streams = vec![];
    for _ in 0..2 {
        let (up, requests) = channel(4);
        up.send(Upward::Hello(hello(1)).to_wire()).await.unwrap();
        let mut down = client
            .attach(ReceiverStream::new(requests))
            .await
            .unwrap()
            .into_inner();
        let first = Downward::from_wire(down.message().await.unwrap().unwrap())
            .unwrap()
            .1;
        assert!(matches!(first, Downward::Welcome(_)));
        streams.push((up, down));
    }
    let (_up, old) = &mut streams[0];
    let ended = async { while let Ok(Some(_)) = old.message().await {} };
    tokio::time::timeout(PATIENCE, ended)
        .await
        .expect("the older stream is closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_says_what_it_computes_on_once_it_has_the_job() {
    let run = Run::start(0).await;
    let mut client = varuna_wire::connect(&run.address(), None, TOKEN).await.unwrap();
    let (up, requests) = channel(4);
    up.send(Upward::Hello(hello(1)).to_wire()).await.unwrap();
    let mut down = client
        .attach(ReceiverStream::new(requests))
        .await
        .unwrap()
        .into_inner();
    let first = down.message().await.unwrap().unwrap();
    assert!(matches!(
        Downward::from_wire(first).unwrap().1,
        Downward::Welcome(_)
    ));
    let equipped = Hello {
        hardware: Some(Hardware::Gpu {
            name: "Tesla T4".into(),
            memory_bytes: 16 << 30,
        }),
        memory_bytes: Some(14 << 30),
        copies_bytes: None,
        scores: None,
        device: "cuda:0 Tesla T4".into(),
        ..hello(1)
    };
    up.send(Upward::Hello(equipped).to_wire()).await.unwrap();
    let shown = async {
        loop {
            let request = StatusRequest {};
            let status = client.status(request).await.unwrap().into_inner();
            let status = varuna_wire::status::from_wire(status).unwrap();
            if status.workers.iter().any(|w| w.device == "cuda:0 Tesla T4") {
                return status.workers.len();
            }
        }
    };
    let workers = tokio::time::timeout(PATIENCE, shown).await;
    assert_eq!(workers.expect("the second hello counts"), 1, "still one worker");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standalone_coordinator_answers_commands() {
    let run = Run::start(0).await;
    let mut client = varuna_wire::connect(&run.address(), None, TOKEN).await.unwrap();
    let status = client.status(StatusRequest {}).await.unwrap().into_inner();
    let status = varuna_wire::status::from_wire(status).unwrap();
    assert_eq!((status.job.as_str(), status.run.last_step), ("fake", Step(STEPS)));
    let refused = client.scale(ScaleRequest { workers: 3 }).await.unwrap_err();
    assert!(refused.message().contains("by hand"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_releases_the_workers_and_says_so() {
    let mut run = Run::start_to(UNENDING, 2).await;
    run.wait_for_step(5).await;
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_continues_when_more_steps_are_ordered() {
    let mut run = Run::start(0).await;
    run.net.hold_before(Some(Step(STEPS)));
    run.join(1);
    run.join(2);
    run.wait_for_step(5).await;
    let more = STEPS + 40;
    run.control.steps.send(more).await.unwrap();
    run.control.steps.send(more - 10).await.unwrap();
    run.wait_for("the order is shown", |v| {
        v.snapshot.as_ref().is_some_and(|s| s.run.last_step == Step(more))
    })
    .await;
    let address = run.address();
    run.control.outcome.abort();
    let _ = (&mut run.control.outcome).await;
    run.net.hold_before(None);
    run.control = coordinate_to(run.temp.path(), address, more).await;
    run.finish_at(more).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_that_a_run_cannot_have_are_refused_with_what_it_can() {
    let run = Run::start(2).await;
    let temp = run.finish().await;
    let error = async |steps: u64| {
        let folder = RunFolder::open(temp.path(), JOB).unwrap();
        let given = Options {
            steps,
            ..options("127.0.0.1:0".into())
        };
        serve(given, folder).await.err().map(|e| e.to_string())
    };
    let without_checkpoint = error(STEPS + 1).await.unwrap();
    let expected = format!(
        "spec.training.steps: {} — {STEPS}, as the run is complete",
        STEPS + 1
    );
    assert!(without_checkpoint.starts_with(&expected), "{without_checkpoint}");
    let record = RunFiles::new(temp.path()).record_path();
    let text = std::fs::read_to_string(&record).unwrap();
    let more = text.replacen("\"done\"", &format!("\"lastStep\":{},\"done\"", STEPS + 5), 1);
    assert_ne!(text, more);
    std::fs::write(&record, more).unwrap();
    let fewer = error(STEPS + 4).await.unwrap();
    let expected = format!("spec.training.steps: {} — at least {}", STEPS + 4, STEPS + 5);
    assert!(fewer.starts_with(&expected), "{fewer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_in_use_is_told_by_its_address() {
    let run = Run::start(0).await;
    let other = TempDir::new().unwrap();
    let folder = RunFolder::open(other.path(), JOB).unwrap();
    let error = serve(options(run.address()), folder)
        .await
        .err()
        .expect("one listener a port");
    assert!(matches!(&error, CoordinatorError::Listen { .. }));
    assert!(error.to_string().contains(&run.address()), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn minority_worker_is_released_without_losing_a_step() {
    let mut run = Run::start_to(UNENDING, 6).await;
    run.wait_for_step(20).await;
    let pipelines = run
        .control
        .view
        .borrow()
        .snapshot
        .as_ref()
        .unwrap()
        .run
        .plan
        .clone();
    assert_eq!(pipelines.as_deref(), Some("P2xD3"));
    let before = generations(&run.control.view.borrow());
    run.net.damage(4);
    run.wait_for("a plan without the damaged worker", |v| {
        let is_gone = |s: &Snapshot| s.workers.iter().all(|w| w.id.0 != 4 || !w.up);
        generations(v) > before && v.snapshot.as_ref().is_some_and(is_gone)
    })
    .await;
    let events = events(run.stop().await.path());
    let found: Vec<_> = events.iter().filter(|e| e["event"] == "statesDiffer").collect();
    assert_eq!(found.len(), 1, "{found:?}");
    let of_four = serde_json::to_value([varuna_plan::WorkerId(4)]).unwrap();
    assert_eq!(found[0]["replaced"], of_four);
    let released = |e: &&serde_json::Value| e["event"] == "workerReleased" && e["name"] == "w4";
    assert_eq!(events.iter().filter(released).count(), 1);
    let resumed: Vec<_> = events.iter().filter(|e| e["event"] == "resumed").collect();
    let last = resumed.last().unwrap();
    assert_eq!(
        (&last["restored"], last["stepsLost"].as_u64().unwrap_or(0)),
        (&false.into(), 0)
    );
}

/// For each pipeline, the zones of its workers, if these two workers are in one zone and the other two of four in another zone.
async fn zones_of_pipelines(together: [u64; 2]) -> Vec<BTreeSet<&'static str>> {
    let zone = |number: u64| {
        if together.contains(&number) {
            "zone-a"
        } else {
            "zone-b"
        }
    };
    let mut run = Run::start(0).await;
    let node = |number: u64| format!("n{number}");
    let domains = (1..=4).map(|n| (node(n), zone(n).to_owned())).collect();
    run.control.domains.send(domains).await.unwrap();
    for number in 1..=4 {
        let hello = Hello {
            node: node(number),
            ..hello(number)
        };
        let to = (run.address(), TOKEN.to_owned());
        run.workers.push(Fake::start_as(&run.net, &job(), to, hello));
    }
    run.wait_for_step(1).await;
    let view = run.control.view.borrow().clone();
    let mut zones: BTreeMap<usize, BTreeSet<&'static str>> = BTreeMap::new();
    for worker in view.snapshot.unwrap().workers {
        let of_pipeline = zones.entry(worker.pipeline.unwrap()).or_default();
        of_pipeline.insert(zone(worker.id.0));
    }
    run.finish().await;
    zones.into_values().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_are_placed_by_where_their_nodes_are_told_to_be() {
    // Without the locations, the same workers would be together in both cases.
    for together in [[1, 2], [1, 3]] {
        let zones = zones_of_pipelines(together).await;
        let expected = [BTreeSet::from(["zone-a"]), BTreeSet::from(["zone-b"])];
        assert_eq!(zones, expected, "workers {together:?} are in one zone");
    }
}
