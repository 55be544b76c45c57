//! Tells the coordinator of workers that have ended, which it would otherwise only suspect. A hint: after some tries it is dropped.

use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use varuna_wire::client::connect;
use varuna_wire::process_host;
use varuna_wire::v1::ProcessEndedRequest;

/// Maximum number of ends that wait to be reported.
const WAITING_MAX: usize = 64;
/// A try that takes longer has failed.
const DEADLINE: Duration = Duration::from_secs(3);
/// Tries for one end, and the time between them.
const TRIES: u32 = 10;
const BETWEEN: Duration = Duration::from_secs(1);

/// Where the coordinator is, and what it is shown.
#[derive(Clone, Debug)]
pub struct Coordinator {
    /// `host:port`.
    pub address: String,
    /// The run's token.
    pub token: String,
    /// The certificate (PEM) that it must show; in the clear without it.
    pub certificate: Option<String>,
}

/// Takes process ids of workers that have ended.
pub struct Reports {
    queue: Option<Sender<u32>>,
    task: Option<JoinHandle<()>>,
}

impl Reports {
    /// Reports to a coordinator, if there is one.
    #[must_use]
    pub fn start(to: Option<Coordinator>) -> Reports {
        let Some(to) = to else {
            return Reports {
                queue: None,
                task: None,
            };
        };
        let (queue, ends) = channel(WAITING_MAX);
        Reports {
            queue: Some(queue),
            task: Some(tokio::spawn(report_ends(to, ends))),
        }
    }

    /// A worker's process has ended.
    pub fn ended(&self, process: u32) {
        if let Some(queue) = &self.queue {
            // If the queue is full, the coordinator notices the end by itself.
            let _ = queue.try_send(process);
        }
    }

    /// Tells what is left, for at most this time.
    pub async fn finish(self, at_most: Duration) {
        drop(self.queue);
        if let Some(task) = self.task {
            // If it takes longer, the end of this process closes the connections of all its workers.
            let _ = timeout(at_most, task).await;
        }
    }
}

async fn report_ends(to: Coordinator, mut ends: Receiver<u32>) {
    let host = process_host();
    while let Some(process) = ends.recv().await {
        for attempt in 1..=TRIES {
            match timeout(DEADLINE, report_end(&to, &host, process)).await {
                Ok(Ok(())) => break,
                Ok(Err(error)) => tracing::debug!(process, attempt, error, "the coordinator was not told"),
                Err(_) => tracing::debug!(process, attempt, "the coordinator does not answer"),
            }
            sleep(BETWEEN).await;
        }
    }
}

async fn report_end(to: &Coordinator, host: &str, process: u32) -> Result<(), String> {
    let certificate = to.certificate.as_deref().filter(|c| !c.is_empty());
    let connected = connect(&to.address, certificate, &to.token).await;
    let mut client = connected.map_err(|e| e.to_string())?;
    let request = ProcessEndedRequest {
        host: host.to_owned(),
        process,
    };
    client
        .process_ended(request)
        .await
        .map_err(|s| s.message().to_owned())?;
    Ok(())
}
