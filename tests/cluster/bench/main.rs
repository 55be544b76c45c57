//! `varuna-bench-operator` measures how fast the operator reacts with real workers, and what it costs with a thousand jobs, on a real API
//! server with fake nodes. It prints RESULT lines.
//!
//!   varuna-bench-operator signals ROUNDS WORKER DATA     signal -> plan persisted -> next step, by kind of signal
//!   varuna-bench-operator scale JOBS PODS NODES REST OPERATOR
//!       JOBS: ascending numbers of jobs, separated by commas. Each job has PODS pods. NODES: number of nodes. OPERATOR: path of the operator.
//!       With the last number of jobs, the cluster is left idle for REST seconds.

mod audit;
mod deletions;
mod effects;
mod operator_process;
mod results;
mod scale;
mod signals;
mod simulated;
mod stand_in;

use anyhow::{Context as _, Result, bail};
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let text: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match text.as_slice() {
        ["signals", rounds, worker, data] => {
            signals::run(
                rounds.parse().context("rounds")?,
                PathBuf::from(worker),
                PathBuf::from(data),
            )
            .await
        }
        ["scale", jobs, pods, nodes, rest, operator] => {
            let jobs: Result<Vec<usize>, _> = jobs.split(',').map(str::parse).collect();
            scale::run(scale::Size {
                jobs: jobs.context("jobs")?,
                pods: pods.parse().context("pods")?,
                nodes: nodes.parse().context("nodes")?,
                rest: Duration::from_secs(rest.parse().context("seconds of rest")?),
                operator: PathBuf::from(operator),
            })
            .await
        }
        _ => bail!("signals ROUNDS WORKER DATA, or scale JOBS PODS NODES REST OPERATOR"),
    }
}

/// The response of a process on this machine to a GET request: head and body.
pub(crate) async fn scrape(port: u16, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n").as_bytes())
        .await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

/// The quantile of the values for a share, such as 0.5 for the median.
pub(crate) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index"
    )]
    let at = ((sorted.len().saturating_sub(1)) as f64 * share).ceil() as usize;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}
