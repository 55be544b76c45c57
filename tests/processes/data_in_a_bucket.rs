//! Runs of real processes whose dataset is in a blob store.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use nix::sys::signal::Signal;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::runtime::Runtime;
use varuna_fixtures::{JobFile, Metric, Run, assert_same_curve, last_of_each, program, signal, undisturbed};
use varuna_store_tests::{Answer, FaultyProxy, Server, minio};

const STEPS: u64 = 60;
/// Size of the blocks in which a worker reads a file.
const BLOCK_BYTES: u64 = 64 << 10;
const DOCUMENTS: usize = 6_000;

/// A dataset of many short documents, both on a disk and in a bucket. A proxy in front of the bucket counts requests.
struct Data {
    server: Server,
    proxy: FaultyProxy,
    local: String,
    in_bucket: String,
    /// Number of blocks of its `.bin` file.
    blocks: usize,
    _folder: tempfile::TempDir,
    _runtime: Runtime,
}

impl Data {
    fn new() -> Data {
        let folder = tempfile::tempdir().unwrap();
        let (source, prefix) = (folder.path().join("text.jsonl"), folder.path().join("data"));
        // Documents of one word to a few sentences, so that a sample of 64 tokens contains several documents or a part of one.
        let document = |i: usize| "and it was so ".repeat(1 + i * 7 % 11) + &i.to_string();
        let lines = (0..DOCUMENTS).map(|i| serde_json::json!({ "text": document(i) }).to_string() + "\n");
        std::fs::write(&source, lines.collect::<String>()).unwrap();
        let built = Command::new(program("varuna"))
            .args(["data", "build", "--tokenizer", "byte", "--output"])
            .args([&prefix, &source])
            .output()
            .unwrap();
        assert!(built.status.success(), "{built:?}");
        let bytes = std::fs::metadata(prefix.with_extension("bin")).unwrap().len();

        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let server = runtime.block_on(minio());
        Data {
            in_bucket: runtime.block_on(server.upload_dataset(&prefix, "sets")),
            local: prefix.display().to_string(),
            blocks: usize::try_from(bytes.div_ceil(BLOCK_BYTES)).unwrap(),
            proxy: runtime.block_on(FaultyProxy::start(&server.endpoint)),
            server,
            _folder: folder,
            _runtime: runtime,
        }
    }

    fn run(&self, workers: usize) -> Run {
        let settings = self.server.settings_by(&self.proxy.endpoint);
        Run::start_with(&packed(&self.in_bucket), workers, &settings)
    }

    /// The losses of a run with the same data on a disk.
    fn undisturbed(&self) -> &'static [Metric] {
        undisturbed(&packed(&self.local))
    }
}

fn packed(path: &str) -> JobFile {
    JobFile {
        data_path: Some(path.to_owned()),
        data: vec!["packing: {blockMask: true, resetPositions: true, maskLoss: true}".to_owned()],
        ..JobFile::default()
    }
}

#[test]
fn packed_dataset_in_a_bucket_trains_through_a_kill() {
    let data = Data::new();
    let mut run = data.run(2);
    let workers = run.wait_for_workers(2);
    run.wait_for_step(STEPS / 4);
    signal(workers[1].pid, Signal::SIGKILL);
    run.wait_for_workers(1);
    assert!(run.varuna(&["scale", "RUN", "2"]).status.success());
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    let packed_metrics = data.undisturbed();
    assert_same_curve(packed_metrics, &last_of_each(&run.metrics()), STEPS);
    // None of the three workers reads a block twice.
    let seen = data.proxy.seen("GET", "data.bin");
    assert!(
        (data.blocks..=3 * data.blocks).contains(&seen),
        "{seen} reads of {} blocks",
        data.blocks
    );
    let as_one_text = undisturbed(&JobFile {
        data: Vec::new(),
        ..packed(&data.local)
    });
    assert!(
        (as_one_text[0].loss - packed_metrics[0].loss).abs() > 1e-6,
        "packing changes the loss"
    );
}

#[test]
fn a_bucket_that_fails_for_a_moment_stops_nobody() {
    let data = Data::new();
    let failed = AtomicUsize::new(0);
    data.proxy.rule(move |method, path| {
        let is_data = method == "GET" && path.contains("data.bin");
        (is_data && failed.fetch_add(1, Ordering::Relaxed) < 9).then_some(Answer::Status(503))
    });
    let mut run = data.run(2);
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    assert!(
        data.proxy.seen("GET", "data.bin") > 9,
        "it failed, and was asked again"
    );
    assert_same_curve(data.undisturbed(), &last_of_each(&run.metrics()), STEPS);
}

#[test]
fn a_dataset_that_is_not_in_the_bucket_is_refused_by_its_url() {
    let data = Data::new();
    let other = format!("{}-other", data.in_bucket);
    let mut run = Run::start_with(&packed(&other), 1, &data.server.settings);
    assert_eq!(run.exit_code(), 2, "{}", run.report());
    assert!(run.report().contains(&format!("{other}.bin")), "{}", run.report());
}
