//! A launcher that notices the end of a worker's process reports it, so nobody waits for a timeout of the worker.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic as the tests do")]

#[expect(dead_code, reason = "shared with tests that ask for the status")]
mod server;

use server::{TOKEN, coordinator};
use std::time::Duration;
use tokio::sync::mpsc::channel;
use tokio_stream::wrappers::ReceiverStream;
use varuna_plan::WorkerId;
use varuna_wire::v1::ProcessEndedRequest;
use varuna_wire::{Downward, Hello, Upward};

const PATIENCE: Duration = Duration::from_secs(60);

fn hello(worker: u64, host: &str) -> Hello {
    Hello {
        worker: WorkerId(worker),
        name: format!("w{worker}"),
        address: "127.0.0.1:1".into(),
        node: "n".into(),
        host: host.into(),
        pid: 7,
        hardware: None,
        workers_on_gpu: 0,
        memory_bytes: None,
        copies_bytes: None,
        scores: None,
        device: String::new(),
        speed: 1.0,
        run: String::new(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_process_is_known_by_number_and_pod() {
    let temp = tempfile::TempDir::new().unwrap();
    let (mut control, address) = coordinator(&temp, None).await;
    let mut client = varuna_wire::connect(&address, None, TOKEN).await.unwrap();
    let mut streams = Vec::new();
    for (worker, host) in [(1, "pod-a"), (2, "pod-b")] {
        let (up, requests) = channel(4);
        up.send(Upward::Hello(hello(worker, host)).to_wire())
            .await
            .unwrap();
        let down = client.attach(ReceiverStream::new(requests)).await.unwrap();
        let mut down = down.into_inner();
        let first = down.message().await.unwrap().unwrap();
        assert!(matches!(
            Downward::from_wire(first).unwrap().1,
            Downward::Welcome(_)
        ));
        streams.push((up, down));
    }
    let ended = ProcessEndedRequest {
        host: "pod-a".into(),
        process: 7,
    };
    client.process_ended(ended).await.unwrap();
    // Its stream is still open, so only the report can have ended it.
    let attached = |view: &varuna_coordinator::View| -> Vec<u64> {
        let workers = view.snapshot.iter().flat_map(|s| &s.workers);
        workers.filter(|w| w.up).map(|w| w.id.0).collect()
    };
    let seen = control.view.wait_for(|view| attached(view) == [2]);
    tokio::time::timeout(PATIENCE, seen).await.unwrap().unwrap();
    control.outcome.abort();
}
