use super::*;
use crate::store::FileStore;
use crate::test_job::job;
use tempfile::TempDir;
use tokio::sync::mpsc::channel;
use tokio::sync::watch;
use varuna_plan::device::Hardware;
use varuna_protocol::Report;
use varuna_protocol::coordinator::Timing;
use varuna_protocol::member::{Member, MemberConfig, MemberEffect, MemberInput, MemberTiming};

const WORKER: WorkerId = WorkerId(1);
const STREAM: StreamNumber = StreamNumber(1);
/// Time enough for an order.
const PATIENCE: Duration = Duration::from_secs(60);

fn driver(folder: &TempDir, inbound: &Sender<Inbound>) -> Driver {
    let options = Options {
        job: job(None),
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
        checkpoints: None,
        costs: None,
        scale: None,
    };
    let folder = RunFolder::open(folder.path(), "").unwrap();
    let record = RecordClient::Direct(Box::new(FileStore::new(folder.files().record_path())));
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
        // It has the job: before that no plan uses it.
        hardware: Some(Hardware::Processor),
        memory_bytes: None,
        scores: None,
        device: String::new(),
        speed: 1.0,
        run: String::new(),
    }
}

/// What a worker says first of itself.
fn first_status(job: &Job) -> Report {
    let mut member = Member::new(MemberConfig {
        follows: false,
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
    // The welcome takes one place, the first order the next one.
    for (room, stays) in [(1, false), (2, true)] {
        let temp = TempDir::new().unwrap();
        let (inbound, _inbox) = channel(1);
        let mut driver = driver(&temp, &inbound);
        driver.feed(CoordinatorInput::LastStep(Step(9)));
        let (down, unread) = channel(room);
        driver.attach(STREAM, hello(), down);
        assert!(is_up(&driver), "its stream is up before the first order");
        let report = first_status(&driver.job);
        driver.hear(WORKER, STREAM, Upward::Report(report));
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
