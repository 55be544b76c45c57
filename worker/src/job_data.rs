//! Opens the job's datasets when a worker starts. It waits for a store that is away: a worker that ended would be a crash of the job, and those of
//! a few new workers in an outage, in which nobody can train a step, would make the job fail.

use crate::agent::uplink::UplinkEvent;
use crate::arguments::Arguments;
use anyhow::{Context, Result, bail};
use backon::{BackoffBuilder, ExponentialBuilder};
use std::io::ErrorKind;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Receiver;
use varuna_api::{Data, Job};
use varuna_dataset::{DataError, SampleShape, TrainingData};
use varuna_protocol::Order;
use varuna_wire::Welcome;

/// Pauses between two attempts. They are random, so that the workers of a job do not try at the same moment.
const BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_secs(1))
    .with_max_delay(Duration::from_secs(30))
    .with_jitter()
    .without_max_times();
/// How long a store is waited for. Where it can never be reached, because of a wrong endpoint for example, the worker's end says so.
const WAIT_MAX: Duration = Duration::from_secs(30 * 60);

/// What a worker is told while it waits.
struct Told<'a> {
    /// Its run.
    run: &'a str,
    /// What comes from the coordinator.
    orders: &'a mut Receiver<UplinkEvent>,
    /// Notices.
    drain: &'a mut Receiver<()>,
}

/// The job's datasets, which must be the coordinator's and fit the model. None after a notice, or at the end of the run: nobody plans with this
/// worker yet, so it can go at once.
///
/// # Errors
/// The data cannot be used, or not be opened for long; or the coordinator refuses this worker.
pub(crate) async fn open(
    arguments: &Arguments,
    (job, welcome): (&Job, &Welcome),
    (orders, drain): (&mut Receiver<UplinkEvent>, &mut Receiver<()>),
) -> Result<Option<TrainingData>> {
    let run = welcome.run.as_str();
    let written = data_of(arguments, job)?;
    let shape = SampleShape {
        length: job.model.sample_length(),
        records: job.model.reads_records(),
    };
    let open = || TrainingData::open(&written, shape, job.training.seed);
    let Some(data) = opened((BACKOFF, WAIT_MAX), open, Told { run, orders, drain }).await? else {
        return Ok(None);
    };
    data.check_vocabulary(job.model.vocabulary_size())
        .context("cannot use the job's data")?;
    let (own, theirs) = (data.fingerprint(), &welcome.data_fingerprint);
    if !theirs.is_empty() && own != *theirs {
        let paths: Vec<&str> = written.train.iter().map(|source| source.path.as_str()).collect();
        bail!(
            "the data ({}) are others than the coordinator's (their fingerprint is {own}, the coordinator's is {theirs})",
            paths.join(", ")
        );
    }
    Ok(Some(data))
}

/// The job's data, with the path of the command line.
fn data_of(arguments: &Arguments, job: &Job) -> Result<Data> {
    let mut written = job.data.clone();
    if let Some(path) = &arguments.data {
        let [alone] = written.train.as_mut_slice() else {
            let sources = written.train.len();
            bail!("--data is {path}, but the job has {sources} datasets: allowed with one alone");
        };
        alone.path.clone_from(path);
    }
    Ok(written)
}

/// What `open` gives, which is tried again after each of these pauses, for so long, while its error may pass. None if the worker has to end.
async fn opened<T>(
    (backoff, limit): (ExponentialBuilder, Duration),
    mut open: impl FnMut() -> Result<T, DataError>,
    mut told: Told<'_>,
) -> Result<Option<T>> {
    let (began, mut pauses) = (Instant::now(), backoff.build());
    loop {
        let error = match open() {
            Ok(data) => return Ok(Some(data)),
            Err(error) => error,
        };
        if !may_pass(&error) || began.elapsed() >= limit {
            return Err(error).context("cannot use the job's data");
        }
        let pause = pauses.next().unwrap_or_default();
        tracing::warn!(%error, ?pause, "the job's data cannot be opened, which is tried again");
        if must_end_within(pause, &mut told).await? {
            tracing::info!("this worker ends: it could not open the job's data before");
            return Ok(None);
        }
    }
}

/// Waits for so long. True if the worker has to end before.
async fn must_end_within(pause: Duration, told: &mut Told<'_>) -> Result<bool> {
    let Told { run, orders, drain } = told;
    let end = tokio::time::sleep(pause);
    tokio::pin!(end);
    loop {
        let event = tokio::select! {
            () = &mut end => return Ok(false),
            Some(()) = drain.recv() => return Ok(true),
            event = orders.recv() => event,
        };
        match event {
            Some(UplinkEvent::Order {
                order: Order::Release,
                ..
            }) => return Ok(true),
            Some(UplinkEvent::Up(welcome)) if welcome.run != *run => {
                bail!(
                    "the coordinator has the run {} now, this worker is of {run}",
                    welcome.run
                )
            }
            Some(UplinkEvent::Refused(reason)) => bail!("the coordinator refused this worker: {reason}"),
            // Other orders are repeated. Nobody answers them before this worker has its data, and their queue must not become full.
            Some(UplinkEvent::Order { .. } | UplinkEvent::Up(_) | UplinkEvent::Down) => {}
            None => bail!("the stream to the coordinator ended"),
        }
    }
}

/// Whether another attempt may succeed: not where a file is missing, forbidden, malformed or no file.
fn may_pass(error: &DataError) -> bool {
    use ErrorKind::{
        ConnectionAborted, ConnectionRefused, ConnectionReset, HostUnreachable, NetworkDown,
        NetworkUnreachable, NotConnected, Other, TimedOut,
    };
    let DataError::Io { source, .. } = error else {
        return false;
    };
    // A store's own errors are of the kind `Other`; the rest is of network file systems.
    matches!(
        source.kind(),
        ConnectionAborted
            | ConnectionRefused
            | ConnectionReset
            | HostUnreachable
            | NetworkDown
            | NetworkUnreachable
            | NotConnected
            | Other
            | TimedOut
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc::channel;

    const SOON: ExponentialBuilder = ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(1))
        .without_max_times();

    fn told<'a>(orders: &'a mut Receiver<UplinkEvent>, drain: &'a mut Receiver<()>) -> Told<'a> {
        let run = "demo-1";
        Told { run, orders, drain }
    }

    fn failed(kind: ErrorKind) -> DataError {
        DataError::Io {
            action: "open",
            path: "s3://b/tokens.bin".into(),
            source: kind.into(),
        }
    }

    #[tokio::test]
    async fn data_on_a_store_that_is_away_are_waited_for() {
        let ((_tell, mut drain), (_events, mut orders)) = (channel(1), channel(1));
        let mut tries = 0;
        let open = || {
            tries += 1;
            match tries {
                3 => Ok(7),
                _ => Err(failed(ErrorKind::Other)),
            }
        };
        let data = opened((SOON, WAIT_MAX), open, told(&mut orders, &mut drain));
        let data = data.await.unwrap();
        assert_eq!((data, tries), (Some(7), 3));
        let away = || Err::<(), _>(failed(ErrorKind::TimedOut));
        let late = opened((SOON, Duration::ZERO), away, told(&mut orders, &mut drain)).await;
        assert!(format!("{:#}", late.unwrap_err()).contains("s3://b/tokens.bin"));
    }

    #[tokio::test]
    async fn data_that_are_not_there_are_not_waited_for() {
        let ((_tell, mut drain), (_events, mut orders)) = (channel(1), channel(1));
        for kind in [
            ErrorKind::NotFound,
            ErrorKind::PermissionDenied,
            ErrorKind::InvalidInput,
        ] {
            let mut tries = 0;
            let open = || {
                tries += 1;
                Err::<(), _>(failed(kind))
            };
            let opened = opened((SOON, WAIT_MAX), open, told(&mut orders, &mut drain)).await;
            assert!(opened.is_err());
            assert_eq!(tries, 1, "{kind}");
        }
    }

    #[tokio::test]
    async fn a_notice_or_a_release_ends_the_wait_for_data() {
        let ((tell, mut drain), (events, mut orders)) = (channel(1), channel(4));
        let away = || Err::<(), _>(failed(ErrorKind::Other));
        let long = (BACKOFF.with_min_delay(Duration::from_secs(30)), WAIT_MAX);
        tell.send(()).await.unwrap();
        let ended = opened(long, away, told(&mut orders, &mut drain)).await;
        assert_eq!(ended.unwrap(), None);
        // What else comes is passed over.
        events.send(UplinkEvent::Down).await.unwrap();
        let order = Order::Release;
        events.send(UplinkEvent::Order { term: 1, order }).await.unwrap();
        let ended = opened(long, away, told(&mut orders, &mut drain)).await;
        assert_eq!(ended.unwrap(), None);
        let other = Welcome {
            job: String::new(),
            run: "demo-2".to_owned(),
            data_fingerprint: String::new(),
        };
        let refused = UplinkEvent::Refused("the run is over".to_owned());
        for (event, expected) in [(UplinkEvent::Up(other), "demo-2"), (refused, "the run is over")] {
            events.send(event).await.unwrap();
            let ended = opened(long, away, told(&mut orders, &mut drain)).await;
            let why = ended.unwrap_err().to_string();
            assert!(why.contains(expected), "{why}");
        }
    }
}
