use super::*;
use crate::inbox::CheckpointListing;
use crate::options::Checkpointing;
use crate::store::{FileStore, RecordStore as _};
use crate::test_job::job;
use std::collections::BTreeMap;
use tempfile::TempDir;
use tokio::sync::mpsc::channel;
use tokio::sync::{oneshot, watch};
use varuna_checkpoint::{Claim, Store};
use varuna_plan::device::Hardware;
use varuna_plan::state::Chain;
use varuna_plan::{Base, Decision, OptimizerProgress};
use varuna_protocol::coordinator::Timing;
use varuna_protocol::member::{Member, MemberConfig, MemberEffect, MemberInput, MemberTiming};
use varuna_protocol::{ComparisonRecord, Inventory, Record, Rollback, RunMode};
use varuna_run_folder::RunFiles;

const WORKER: WorkerId = WorkerId(1);
const STREAM: StreamNumber = StreamNumber(1);
/// Timeout of a wait for an order.
const PATIENCE: Duration = Duration::from_secs(60);

fn driver(folder: &TempDir, inbound: &Sender<Inbound>) -> Driver {
    driver_of(folder, inbound, false)
}

fn driver_of(folder: &TempDir, inbound: &Sender<Inbound>, allow_state_loss: bool) -> Driver {
    let options = Options {
        allow_state_loss,
        ..options(job(None))
    };
    driver_with(folder, inbound, options)
}

fn options(job: Job) -> Options {
    Options {
        job,
        steps: 9,
        job_text: String::new(),
        run: "a-run".into(),
        data_fingerprint: String::new(),
        bind: String::new(),
        token: String::new(),
        identity: None,
        timing: Timing::default(),
        host: None,
        expected_workers: Some(1),
        allow_state_loss: false,
        checkpoints: None,
        costs: None,
        scale: None,
    }
}

fn driver_with(folder: &TempDir, inbound: &Sender<Inbound>, options: Options) -> Driver {
    let folder = RunFolder::open(folder.path(), "").unwrap();
    let record = RecordClient::direct(Box::new(FileStore::new(folder.files().record_path())));
    let (watchers, _) = watch::channel(View::default());
    Driver::new(options, folder, record, watchers, inbound)
}

fn hello() -> Hello {
    Hello {
        worker: WORKER,
        name: "w1".into(),
        address: "127.0.0.1:1".into(),
        node: "n".into(),
        host: "h".into(),
        pid: 7,
        // With the hardware, it counts as a worker that has the job; no plan uses it before that.
        hardware: Some(Hardware::Processor),
        workers_on_gpu: 1,
        memory_bytes: None,
        copies_bytes: None,
        scores: None,
        device: String::new(),
        speed: 1.0,
        run: String::new(),
    }
}

/// The first status of a worker.
fn first_status(job: &Job) -> Report {
    let mut member = Member::new(MemberConfig {
        follows: false,
        parameters_first: false,
        id: WORKER,
        layout: job.layout(),
        last_step: Step(job.training.steps),
        checkpoint_every: None,
        compare_every: None,
        timing: MemberTiming::default(),
    });
    let mut effects = Vec::new();
    member.handle(Time(0), MemberInput::Stream, &mut effects);
    let status = effects.into_iter().find_map(|effect| match effect {
        MemberEffect::Report(report) => Some(report),
        _ => None,
    });
    status.unwrap()
}

fn is_up(driver: &Driver) -> bool {
    let workers = driver.machine.snapshot().workers;
    workers.iter().any(|w| w.id == WORKER && w.up)
}

#[tokio::test]
async fn a_worker_whose_queue_is_full_counts_as_gone_at_once() {
    // The welcome takes one place in the queue, and the first order takes the next one.
    for (room, stays) in [(1, false), (2, true)] {
        let temp = TempDir::new().unwrap();
        let (inbound, _inbox) = channel(1);
        let mut driver = driver(&temp, &inbound);
        driver.feed(CoordinatorInput::LastStep(Step(9)));
        let (down, unread) = channel(room);
        driver.attach(STREAM, hello(), down);
        assert!(is_up(&driver), "its stream is up before the first order");
        let report = first_status(&driver.job);
        driver.handle_message(WORKER, STREAM, Upward::Report(report));
        let start = Instant::now();
        while unread.len() < 2 && is_up(&driver) {
            assert!(start.elapsed() < PATIENCE, "neither an order nor a lost worker");
            driver.feed(CoordinatorInput::Tick);
        }
        assert_eq!(
            is_up(&driver),
            stays,
            "as the machine knows it, with room for {room}"
        );
        assert_eq!(driver.streams.get(WORKER).is_some(), stays, "its stream");
    }
}

#[tokio::test]
async fn worker_without_welcome_is_gone_at_once() {
    let temp = TempDir::new().unwrap();
    let (inbound, _inbox) = channel(1);
    let mut driver = driver(&temp, &inbound);
    driver.feed(CoordinatorInput::LastStep(Step(9)));
    let (down, _unread) = channel(64);
    driver.attach(STREAM, hello(), down);
    assert!(is_up(&driver));
    let (down, closed) = channel(64);
    drop(closed);
    driver.attach(StreamNumber(2), hello(), down);
    assert!(!is_up(&driver), "the ends of both streams come to nobody");
}

/// Attaches a worker, which answers that it holds nothing.
fn attach_newcomer(driver: &mut Driver, worker: WorkerId, down: DownSender) {
    driver.feed(CoordinatorInput::LastStep(Step(9)));
    driver.feed(CoordinatorInput::Tick);
    driver.attach(STREAM, Hello { worker, ..hello() }, down);
    let report = first_status(&driver.job);
    driver.handle_message(worker, STREAM, Upward::Report(report));
    let inventory = Inventory {
        upto: driver.machine.record().highest,
        units: BTreeMap::new(),
        prepared: BTreeMap::new(),
        ran: None,
        decision: None,
    };
    driver.handle_message(worker, STREAM, Upward::Report(Report::Inventory(inventory)));
    driver.feed(CoordinatorInput::Tick);
}

/// Asks for another number of workers. Returns the place of the answer.
fn ask_to_scale(driver: &mut Driver, workers: u32) -> oneshot::Receiver<Result<String, String>> {
    let (answer, told) = oneshot::channel();
    driver.take(Inbound::Scale(workers, answer));
    told
}

#[tokio::test]
async fn a_run_told_to_stop_is_not_scaled_by_a_distant_view() {
    let temp = TempDir::new().unwrap();
    let (inbound, _inbox) = channel(1);
    let (scale, mut requests) = channel(1);
    let options = Options {
        scale: Some(scale),
        ..options(job(None))
    };
    let mut driver = driver_with(&temp, &inbound, options);
    let (down, _unread) = channel(64);
    attach_newcomer(&mut driver, WORKER, down);
    let _told = ask_to_scale(&mut driver, 2);
    assert_eq!(requests.try_recv().ok().map(|request| request.workers), Some(2));
    // The last view took long, so the next one would come in two seconds.
    let began = Instant::now().checked_sub(Duration::from_millis(20)).unwrap();
    driver.publisher.view_sent(began);
    assert!(!driver.publisher.view_due());
    driver.take(Inbound::Stop);
    assert!(driver.outcome.is_none(), "a worker still has to be released");
    assert!(driver.publisher.view_due(), "whoever starts workers sees the end");
    let why = ask_to_scale(&mut driver, 3).await.unwrap().unwrap_err();
    assert!(why.contains("the run is ending"), "{why}");
    assert!(requests.try_recv().is_err(), "nobody was asked");
}

#[tokio::test]
async fn a_run_is_scaled_up_to_the_maximum_of_its_job() {
    let temp = TempDir::new().unwrap();
    let (inbound, _inbox) = channel(1);
    let (scale, mut requests) = channel(2);
    let mut limited = job(None);
    limited.elasticity.max_workers = Some(4);
    let options = Options {
        scale: Some(scale),
        ..options(limited)
    };
    let mut driver = driver_with(&temp, &inbound, options);
    let why = ask_to_scale(&mut driver, 5).await.unwrap().unwrap_err();
    assert!(
        why.contains("5 workers") && why.contains("1 to 4 (spec.elasticity.maxWorkers)"),
        "{why}"
    );
    assert!(requests.try_recv().is_err(), "nobody was asked");
    let _told = ask_to_scale(&mut driver, 4);
    assert_eq!(requests.try_recv().ok().map(|request| request.workers), Some(4));
}

/// The record of a run that was stopped in order after a change of plan: no plan in it names the state that the run began with.
fn stopped_after_a_change(record: &Record) -> Record {
    let changed = Plan {
        base: Base::AtSwitch { from: Generation(0) },
        ..record.plan.as_deref().unwrap().clone()
    };
    Record {
        plan: Some(Arc::new(changed)),
        stopped: record.highest,
        ..record.clone()
    }
}

#[tokio::test]
async fn run_without_state_begins_anew_if_the_job_allows_it() {
    let (inbound, _inbox) = channel(1);
    let temp = TempDir::new().unwrap();
    let mut before = driver(&temp, &inbound);
    let (down, _unread) = channel(64);
    attach_newcomer(&mut before, WORKER, down);
    let record = stopped_after_a_change(before.machine.record());
    for (at_start, later) in [(true, false), (false, true), (false, false)] {
        let temp = TempDir::new().unwrap();
        let path = RunFiles::new(temp.path()).record_path();
        assert!(FileStore::new(path).compare_and_swap(0, &record).unwrap());
        let mut after = driver_of(&temp, &inbound, at_start);
        let (down, _unread) = channel(64);
        attach_newcomer(&mut after, WorkerId(2), down);
        if later {
            after.take(Inbound::AllowStateLoss(true));
        }
        let plan = after.machine.record().plan.clone().unwrap();
        let seed = |base: &Base| matches!(base, Base::Fixed { id, .. } if *id == StateId::INITIAL);
        assert_eq!(
            seed(&plan.base),
            at_start || later,
            "allowed {at_start} {later}: generation {}",
            plan.generation
        );
    }
}

/// The decision that leads to this step.
fn decision(step: u64) -> Decision {
    let state = |step| StateId {
        run_gen: Generation(1),
        step: Step(step),
        chain: Chain(step),
    };
    Decision {
        parent: state(step - 1),
        id: state(step),
        norm2: 1.0,
        overflow: false,
        before: OptimizerProgress::START,
        loss: 1.0,
        eval_loss: None,
        switch: None,
    }
}

#[tokio::test]
async fn step_time_needs_two_timely_reports() {
    let temp = TempDir::new().unwrap();
    let (inbound, _inbox) = channel(1);
    let mut driver = driver(&temp, &inbound);
    driver.feed(CoordinatorInput::LastStep(Step(9)));
    let (down, _unread) = channel(64);
    driver.attach(STREAM, hello(), down);
    let on_time = |step| Report::Committed {
        decision: decision(step),
    };
    // The coordinator requested it, because no worker had reported it.
    let late = Report::Commits {
        after: Step(2),
        decisions: vec![decision(3)],
    };
    let reports = [on_time(1), on_time(2), late, on_time(4), on_time(5)];
    let timed = reports.map(|report| {
        driver.handle_message(WORKER, STREAM, Upward::Report(report));
        let metric = driver.publisher.last_metric().unwrap();
        (metric.step.0, metric.figures.tokens_per_second.is_some())
    });
    let expected = [(1, false), (2, true), (3, false), (4, false), (5, true)];
    assert_eq!(timed, expected);
}

/// A job with checkpoints in this folder.
fn options_with_checkpoints(folder: &TempDir) -> Options {
    let location = format!("uri: {}, intervalSteps: 9", folder.path().join("store").display());
    let job = job(Some(&location));
    let checkpoints = Checkpointing {
        store: Store::of_job(&job, "").unwrap().unwrap(),
        keep: 1,
        claim: Claim {
            run: "a-run".into(),
            machine: String::new(),
            process: 0,
            started: 0,
        },
        ownership: None,
        event_files: false,
    };
    Options {
        checkpoints: Some(checkpoints),
        ..options(job)
    }
}

/// The store has this checkpoint, and a worker comes; until there is a plan.
fn plan_from(driver: &mut Driver, saved: StateId) {
    let (down, _unread) = channel(64);
    attach_newcomer(driver, WORKER, down);
    driver.take(Inbound::Checkpoints(CheckpointListing {
        answered: true,
        usable: vec![saved],
        damaged: vec![],
        newest_generation: Generation(1),
        ..CheckpointListing::default()
    }));
    let start = Instant::now();
    while driver.machine.record().plan.is_none() {
        assert!(start.elapsed() < PATIENCE, "no plan");
        driver.feed(CoordinatorInput::Tick);
    }
}

#[tokio::test]
async fn no_state_that_a_rollback_gave_up_is_shown_as_newest() {
    let temp = TempDir::new().unwrap();
    let (inbound, _inbox) = channel(1);
    let rollback = Rollback {
        to: decision(5).id,
        generation: Generation(2),
    };
    let record = Record {
        version: 1,
        trust: ComparisonRecord {
            rollbacks: vec![rollback],
            ..ComparisonRecord::default()
        },
        ..Record::default()
    };
    let path = RunFiles::new(temp.path()).record_path();
    assert!(FileStore::new(path).compare_and_swap(0, &record).unwrap());
    let mut driver = driver_with(&temp, &inbound, options_with_checkpoints(&temp));
    driver.feed(CoordinatorInput::LastStep(Step(9)));
    let start = Instant::now();
    while driver.machine.record().trust.is_empty() {
        assert!(start.elapsed() < PATIENCE, "the record is not read");
        driver.feed(CoordinatorInput::Tick);
    }
    driver.take(Inbound::Checkpoints(CheckpointListing {
        answered: true,
        usable: vec![decision(5).id, decision(7).id],
        ..CheckpointListing::default()
    }));
    let shown = driver.status().checkpoint.unwrap();
    assert_eq!(shown.newest_step, Some(Step(5)));
}

#[tokio::test]
async fn failing_uploads_are_in_the_status_of_the_run() {
    let temp = TempDir::new().unwrap();
    let (inbound, _inbox) = channel(1);
    let mut driver = driver_with(&temp, &inbound, options_with_checkpoints(&temp));
    driver.feed(CoordinatorInput::LastStep(Step(9)));
    let (down, _unread) = channel(64);
    driver.attach(STREAM, hello(), down);
    let report = first_status(&driver.job);
    let Report::Status(status) = report else {
        panic!("{report:?}");
    };
    let failing = |driver: &Driver| driver.status().checkpoint.and_then(|saved| saved.failing);
    let why = "full".to_owned();
    driver.handle_message(WORKER, STREAM, Upward::UploadsFail { status, why });
    let shown = failing(&driver).unwrap();
    assert!(
        shown.starts_with("w1 cannot upload to ") && shown.ends_with("/store: full"),
        "{shown}"
    );
    driver.handle_message(WORKER, STREAM, Upward::Report(Report::Status(status)));
    assert_eq!(failing(&driver), None);
}

#[tokio::test]
async fn base_checkpoint_of_a_plan_is_kept_once_persisted() {
    let temp = TempDir::new().unwrap();
    let (inbound, _inbox) = channel(1);
    let mut driver = driver_with(&temp, &inbound, options_with_checkpoints(&temp));
    let saved = decision(5).id;
    plan_from(&mut driver, saved);
    let plan = driver.machine.record().plan.clone().unwrap();
    assert!(matches!(plan.base, Base::Fixed { id, .. } if id == saved));
    let needs = driver.checkpoints.watcher().and_then(|watcher| watcher.needs());
    let needs = needs.unwrap();
    assert_eq!((needs.protected, needs.newest), (vec![saved], Some(saved)));
    let protected = |driver: &Driver| {
        let needs = driver.checkpoints.watcher().and_then(|watcher| watcher.needs());
        needs.unwrap().protected
    };
    driver.send_last_needs(&Outcome::Deposed);
    assert_eq!(protected(&driver), [saved], "the next coordinator may need it");
    driver.send_last_needs(&Outcome::Stopped);
    assert!(protected(&driver).is_empty(), "the run has ended");
}

#[tokio::test]
async fn a_run_with_a_store_saves_before_it_stops_and_is_not_scaled() {
    let temp = TempDir::new().unwrap();
    let (inbound, _inbox) = channel(1);
    let (scale, _requests) = channel(1);
    let options = Options {
        scale: Some(scale),
        ..options_with_checkpoints(&temp)
    };
    let mut driver = driver_with(&temp, &inbound, options);
    plan_from(&mut driver, decision(5).id);
    driver.take(Inbound::SaveAndStop);
    driver.continue_final_save();
    assert!(driver.machine.wants_checkpoint());
    let mode = driver.machine.run().mode;
    assert!(!matches!(mode, RunMode::Stopped | RunMode::Ended), "{mode:?}");
    let why = ask_to_scale(&mut driver, 3).await.unwrap().unwrap_err();
    assert!(why.contains("the run is ending"), "{why}");
}

#[tokio::test]
async fn a_run_that_was_stopped_promises_no_checkpoint() {
    let temp = TempDir::new().unwrap();
    let (inbound, _inbox) = channel(1);
    let mut driver = driver_with(&temp, &inbound, options_with_checkpoints(&temp));
    plan_from(&mut driver, decision(5).id);
    assert!(driver.save().is_ok());
    driver.take(Inbound::Stop);
    let (answer, told) = oneshot::channel();
    driver.take(Inbound::Save(Some(answer)));
    let why = told.await.unwrap().unwrap_err();
    assert!(why.contains("the run is ending"), "{why}");
}

#[tokio::test]
async fn a_run_without_a_store_stops_at_once() {
    let temp = TempDir::new().unwrap();
    let (inbound, _inbox) = channel(1);
    let mut driver = driver(&temp, &inbound);
    let (down, _unread) = channel(64);
    attach_newcomer(&mut driver, WORKER, down);
    driver.take(Inbound::SaveAndStop);
    let mode = driver.machine.run().mode;
    assert!(matches!(mode, RunMode::Stopped | RunMode::Ended), "{mode:?}");
}
