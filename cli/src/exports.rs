//! How other systems read the figures of a run on this machine: Prometheus scrapes them, and they are pushed to an OpenTelemetry receiver.

use crate::failure::Failure;
use crate::io::show_line;
use crate::signals::Interrupts;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;
use varuna_coordinator::View;
use varuna_metrics::push::{Prepared, Push};
use varuna_metrics::receiver::{Receiver, ReceiverError};
use varuna_metrics::{Follower, Metrics, scrapes};
use varuna_wire::process_host;

/// How other systems read the figures of a run.
#[derive(clap::Args)]
pub(crate) struct Exports {
    /// Address on which to serve the run's figures to Prometheus, host:port, at the path /metrics. Whoever reaches it can read them. An IPv6
    /// address stands in brackets. Port 0 is any free port [default: they are not served]. Apart from this, they are pushed to an
    /// OpenTelemetry receiver if OTEL_EXPORTER_OTLP_ENDPOINT names one.
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,
}

/// What is ready before the run begins.
pub(crate) struct ReadyExports {
    push: Option<Prepared>,
    listener: Option<TcpListener>,
}

/// What reads the figures while the run goes on. If it is dropped, the last figures are not pushed.
#[derive(Default)]
pub(crate) struct RunningExports {
    push: Option<Push>,
    follower: Option<Follower>,
}

impl Exports {
    /// Makes ready before anything is begun: a wrong address or variable ends the command.
    pub(crate) async fn prepare(&self) -> Result<ReadyExports, Failure> {
        let receiver = Receiver::from_environment()?;
        let listener = match &self.metrics {
            None => None,
            Some(address) => Some(listen(address).await?),
        };
        Ok(ReadyExports {
            push: receiver.as_ref().map(Prepared::new).transpose()?,
            listener,
        })
    }
}

async fn listen(address: &str) -> Result<TcpListener, Failure> {
    let cannot = |error: std::io::Error| {
        let why = format!("cannot listen on {address} (--metrics): {error}");
        match error.kind() {
            ErrorKind::AddrInUse => Failure::Busy(why),
            _ => Failure::Input(why),
        }
    };
    let listener = TcpListener::bind(address).await.map_err(cannot)?;
    let bound = listener.local_addr().map_err(cannot)?;
    show_line(&format!("metrics at http://{bound}/metrics"));
    Ok(listener)
}

impl ReadyExports {
    /// Begins to measure the job's run in a folder, if somebody is to read it.
    pub(crate) fn start(self, job: &str, folder: &Path, view: watch::Receiver<View>) -> RunningExports {
        if self.push.is_none() && self.listener.is_none() {
            return RunningExports::default();
        }
        let metrics = Arc::new(Metrics::outside_a_cluster(job));
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        let instance = format!("{}:{}", process_host(), folder.display());
        if let Some(listener) = self.listener {
            tokio::spawn(scrapes::serve(listener, Arc::clone(&metrics)));
        }
        RunningExports {
            push: self.push.map(|push| push.start(&metrics, &instance)),
            follower: Some(Follower::start(view, metrics)),
        }
    }
}

impl RunningExports {
    /// Takes the newest view and pushes the last figures. A receiver that does not answer delays this by a few seconds at most, and only until
    /// the end at once is asked for.
    pub(crate) async fn end(self, interrupts: &mut Interrupts) {
        if let Some(follower) = self.follower {
            follower.end().await;
        }
        if let Some(push) = self.push {
            push.end_unless(interrupts.at_once()).await;
        }
    }
}

impl From<ReceiverError> for Failure {
    fn from(error: ReceiverError) -> Self {
        Failure::Input(error.to_string())
    }
}
