//! One coordinator, from its start to its end: it waits until it is in charge, runs the job's run, and reports.

mod forwarded_orders;

use crate::error::Error;
use crate::health::{self, Shown, Startup};
use crate::orders::{self, Orders, Role};
use crate::page::Title;
use crate::record::ClusterStore;
use crate::report::{Messages, Reporter, report, run_end};
use crate::reporter::{Ended, Reports};
use forwarded_orders::ForwardedOrders;
use kube::{Api, Client};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;
use varuna_api::crd::{RecordSpec, RunEnd, RunStatus, VarunaRecord};
use varuna_api::{Job, parse_job_of_any_release, run_identity};
use varuna_checkpoint::{Claim, Store};
use varuna_coordinator::{Checkpointing, Control, Identity, Options, RunFolder, Timing, View, serve_with};
use varuna_metrics::push::Prepared;
use varuna_metrics::receiver::Receiver;
use varuna_metrics::{Measurements, Metrics};
use varuna_plan::Layout;

/// A run without checkpoints fails only after its workers were unreachable for this time, because networks and nodes often come back.
/// Workers that are known to have ended are not waited for.
const LOST: Duration = Duration::from_secs(600);
/// How often the record is read to notice a newer coordinator. This is rare, because the orders name the coordinator in charge, and the
/// next write would notice it. Reading more often would cost requests for every idle job.
const WATCH: Duration = Duration::from_secs(300);
/// The API server is asked again after this time for what the start needs.
const RETRY: Duration = Duration::from_secs(2);
/// An answer to that which takes longer does not come.
const ANSWER: Duration = Duration::from_secs(5);
/// A coordinator that cannot read its orders for this time ends: another one may have the right to.
const ORDERS: Duration = Duration::from_secs(300);
/// Orders for which the coordinator had no room, as for the notices of hundreds of workers, are passed on after this time.
const FORWARD_AGAIN: Duration = Duration::from_millis(100);
/// How long the last report is tried.
const LAST_REPORT: Duration = Duration::from_secs(300);
/// How long the run of a deleted job may take to give its checkpoint location up: longer than the last copies of event files and the store's answer may
/// take, and less than its pod's grace period.
const ABANDON: Duration = Duration::from_secs(15);

/// Which run, and where the coordinator listens and writes.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Namespace of the job.
    pub namespace: String,
    /// Name of the job.
    pub job: String,
    /// Name of the job's `VarunaRun` and of its `VarunaRecord`.
    pub run: String,
    /// Number of this coordinator.
    pub number: i64,
    /// The run's token.
    pub token: String,
    /// The certificate that workers trust, with its key.
    pub identity: Option<Identity>,
    /// IP address at which workers reach this process.
    pub address: IpAddr,
    /// Where it listens for workers.
    pub bind: SocketAddr,
    /// Where it answers probes and scrapes.
    pub health: SocketAddr,
    /// Where figures are pushed, if the user names a receiver.
    pub receiver: Option<Receiver>,
    /// Folder of the run folder; it need not outlive the process.
    pub folder: PathBuf,
}

impl Configuration {
    /// Identity of this process among those that push figures.
    fn instance(&self) -> String {
        format!("{}/{}/{}", self.namespace, self.run, self.number)
    }
}

/// Runs the coordinator until its run has ended, another one is in charge, or the job is gone.
///
/// # Errors
/// The coordinator cannot listen for probes, figures cannot be pushed, or its orders cannot be read.
pub async fn run(client: Client, configuration: Configuration) -> Result<(), Error> {
    let push = configuration.receiver.as_ref().map(Prepared::new);
    let push = push.transpose()?;
    let listen = |source| Error::Listen {
        address: configuration.health,
        source,
    };
    let listener = TcpListener::bind(configuration.health).await.map_err(listen)?;
    let port = listener.local_addr().map_err(listen)?.port();
    let health_address = SocketAddr::new(configuration.address, port);
    let metrics = Arc::new(Metrics::new(&configuration.namespace, &configuration.job));
    let (told, mut orders) = watch::channel(Orders::Unknown);
    let runs = orders::runs(&client, &configuration.namespace);
    let (saw, seen) = watch::channel(None);
    let follow = orders::follow(runs.clone(), configuration.run.clone(), told, saw);
    let _following = AbortOnDrop(tokio::spawn(follow).abort_handle());
    let (publish, reports) = watch::channel(None);
    let startup = Arc::new(Startup::default());
    let shown = shown(&configuration, &metrics, &reports, &startup);
    let answering = health::serve(listener, shown);
    let _answering = AbortOnDrop(tokio::spawn(answering).abort_handle());
    let number = configuration.number;
    if !is_in_charge(&mut orders, &configuration).await? {
        tracing::info!(number, "another coordinator is in charge, or none is wanted");
        return Ok(());
    }
    tracing::info!(number, "in charge");
    startup.begin(Instant::now());
    let push = push.map(|push| push.start(&metrics, &configuration.instance()));
    let writer = Reports {
        runs,
        name: configuration.run.clone(),
        number,
        seen,
    };
    let mut lead = Lead {
        by: Reporter {
            number,
            address: None,
            health_address: health_address.to_string(),
        },
        messages: Messages::new(number),
        publish,
        metrics,
        orders,
    };
    let write = writer.write_and_tell(reports, move || startup.reported());
    let mut writing = tokio::spawn(write);
    let _writing = AbortOnDrop(writing.abort_handle());
    let ended = lead_until_deposed(&mut lead, &mut writing, &client, &configuration).await;
    if let Some((view, end)) = ended {
        tracing::info!(number, ?end, "the run has ended");
        lead.report(&view, Some(end));
        match tokio::time::timeout(LAST_REPORT, writing).await {
            Ok(Ok(Ended::Reported | Ended::Deposed | Ended::Gone)) => {}
            _ => tracing::error!("the end of the run could not be reported"),
        }
    } else {
        tracing::info!(number, "another coordinator is in charge, or the job is gone");
    }
    if let Some(push) = push {
        push.end().await;
    }
    Ok(())
}

/// Waits until this coordinator is in charge. False if another one is, or if none is wanted.
async fn is_in_charge(
    orders: &mut watch::Receiver<Orders>,
    configuration: &Configuration,
) -> Result<bool, Error> {
    let number = configuration.number;
    let read = tokio::time::timeout(ORDERS, orders.wait_for(|o| *o != Orders::Unknown));
    let is_silent = read.await.is_err();
    if is_silent {
        return Err(Error::NoOrders(configuration.run.clone()));
    }
    let role = orders.wait_for(|o| o.role(number) != Role::Wait).await;
    Ok(role.is_ok_and(|orders| orders.role(number) == Role::Lead))
}

/// The last view and how the run has ended; none where another coordinator is in charge, or the job is gone.
async fn lead_until_deposed(
    lead: &mut Lead,
    writing: &mut JoinHandle<Ended>,
    client: &Client,
    configuration: &Configuration,
) -> Option<(View, RunEnd)> {
    let leading = lead.run(client, configuration);
    tokio::pin!(leading);
    let wrote = tokio::select! {
        end = &mut leading => return end,
        wrote = writing => wrote,
    };
    if matches!(wrote, Ok(Ended::Gone)) {
        // The orders are gone as well, or will be in a moment.
        leading.await;
    }
    // Else it was deposed: workers go to the other coordinator, and this one's connections close with it.
    None
}

fn shown(
    configuration: &Configuration,
    metrics: &Arc<Metrics>,
    reports: &watch::Receiver<Option<RunStatus>>,
    startup: &Arc<Startup>,
) -> Shown {
    Shown {
        metrics: Arc::clone(metrics),
        title: Title {
            namespace: configuration.namespace.clone(),
            job: configuration.job.clone(),
            number: configuration.number,
        },
        reports: reports.clone(),
        startup: Arc::clone(startup),
    }
}

/// Aborts a task when dropped.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A coordinator in charge.
struct Lead {
    by: Reporter,
    messages: Messages,
    publish: watch::Sender<Option<RunStatus>>,
    metrics: Arc<Metrics>,
    orders: watch::Receiver<Orders>,
}

impl Lead {
    fn report(&self, view: &View, end: Option<RunEnd>) {
        self.publish
            .send_replace(Some(report(&self.by, view, &self.messages, end)));
    }

    /// Runs until the run has ended. Returns the last view and how it ended; none where another coordinator has taken over, or the job is gone.
    async fn run(&mut self, client: &Client, configuration: &Configuration) -> Option<(View, RunEnd)> {
        let orders = self.orders.borrow().clone();
        let (control, job) = match start(client, configuration, &orders).await {
            Ok(started) => started,
            Err(error) => return Some((View::default(), RunEnd::Failed(error.to_string()))),
        };
        let address = SocketAddr::new(configuration.address, control.address.port());
        self.by.address = Some(address.to_string());
        let mut view = control.view.clone();
        self.report(&View::default(), None);
        let end = self.follow(control, &job.layout()).await?;
        let last = view.borrow_and_update().clone();
        Some((last, end))
    }

    /// Passes orders on and reports until the coordinator has ended. None where another one is in charge, or the job is gone.
    async fn follow(&mut self, mut control: Control, layout: &Layout) -> Option<RunEnd> {
        // Dropped where reporting finds that another one is in charge.
        let _serving = AbortOnDrop(control.outcome.abort_handle());
        let began = Instant::now();
        let mut measured = Measurements::default();
        let mut told = ForwardedOrders::default();
        let mut view = control.view.clone();
        loop {
            let orders = self.orders.borrow_and_update().clone();
            if orders == Orders::Gone {
                abandon(control).await;
                return None;
            }
            if orders.role(self.by.number) == Role::Leave {
                return None;
            }
            let is_whole = orders.given().is_none_or(|spec| told.forward(spec, &control));
            tokio::select! {
                outcome = &mut control.outcome => {
                    self.observe(&view.borrow_and_update().clone(), began, &mut measured);
                    return match outcome {
                        Ok(result) => run_end(result, layout),
                        Err(panic) => Some(RunEnd::Failed(panic.to_string())),
                    };
                }
                Ok(()) = self.orders.changed() => {}
                // Neither the orders nor the view need change for that: a worker that is gone is shown as before when it has certainly ended.
                () = tokio::time::sleep(FORWARD_AGAIN), if !is_whole => {}
                Ok(()) = view.changed() => {
                    let view = view.borrow_and_update().clone();
                    self.observe(&view, began, &mut measured);
                    self.report(&view, None);
                }
            }
        }
    }

    /// Measures what a view shows, and takes its messages.
    fn observe(&mut self, view: &View, began: Instant, measured: &mut Measurements) {
        self.metrics.figures.observe(view, began.elapsed());
        self.messages.take(&view.messages);
        for (sentence, over) in measured.observe(view, &self.metrics) {
            self.messages.resumed(sentence);
            self.messages.recovered(SystemTime::now(), &over);
        }
    }
}

/// Gives up the checkpoint location when the job was deleted: a new job with its name may need it at once. A lease that is not given up
/// expires.
async fn abandon(mut control: Control) {
    // An error means that it has ended.
    let _ = control.abandon.send(()).await;
    if tokio::time::timeout(ABANDON, &mut control.outcome).await.is_err() {
        tracing::warn!("the checkpoint location is not given up in time: its lease runs out");
    }
}

/// Starts the coordinator's server and state machine, with the job as its run began.
async fn start(
    client: &Client,
    configuration: &Configuration,
    orders: &Orders,
) -> Result<(Control, Job), Error> {
    let records: Api<VarunaRecord> = Api::namespaced(client.clone(), &configuration.namespace);
    let begun = read_record(&records, &configuration.run).await?;
    let document = |why: String| Error::Document {
        kind: "VarunaRecord",
        name: configuration.run.clone(),
        why,
    };
    let job = parse_job_of_any_release(&begun.job).map_err(|e| document(e.to_string()))?;
    let folder =
        RunFolder::open(&configuration.folder, &begun.job).map_err(|e| Error::Folder(e.to_string()))?;
    let record = ClusterStore::new(
        records,
        configuration.run.clone(),
        begun.uid.clone(),
        tokio::runtime::Handle::current(),
    );
    let options = options(&job, begun, orders, configuration)?;
    let control = serve_with(options, folder, Box::new(record)).await?;
    tracing::info!(address = %control.address, "listens for workers");
    Ok((control, job))
}

/// The record's spec. It is requested until the API server answers: the server may be unavailable while a job trains.
async fn read_record(records: &Api<VarunaRecord>, name: &str) -> Result<RecordSpec, Error> {
    loop {
        match tokio::time::timeout(ANSWER, records.get(name)).await {
            Ok(Ok(record)) => return Ok(record.spec),
            Ok(Err(kube::Error::Api(status))) if status.is_not_found() || status.is_forbidden() => {
                return Err(kube::Error::Api(status).into());
            }
            Ok(Err(error)) => tracing::warn!(%error, "the record cannot be read"),
            Err(late) => tracing::warn!(%late, "the record cannot be read"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

fn options(
    job: &Job,
    begun: RecordSpec,
    orders: &Orders,
    configuration: &Configuration,
) -> Result<Options, Error> {
    let store = Store::of_job(job, "").map_err(|e| Error::Store(e.to_string()))?;
    // Without a process: another coordinator takes the location over for the same job.
    let claim = Claim {
        run: format!("{}/{} {}", configuration.namespace, configuration.job, begun.uid),
        machine: String::new(),
        process: 0,
        started: 0,
    };
    let keep = job.checkpoint.as_ref().map_or(0, |c| c.keep as usize);
    let ordered = orders.given();
    Ok(Options {
        job: job.clone(),
        steps: ordered.map_or(0, |spec| spec.steps),
        run: run_identity(&begun.uid, &begun.job),
        job_text: begun.job,
        data_fingerprint: String::new(),
        bind: configuration.bind.to_string(),
        token: configuration.token.clone(),
        identity: configuration.identity.clone(),
        host: None,
        expected_workers: None,
        // This is not taken from the job's text, because it may change while the job runs.
        allow_state_loss: ordered.is_some_and(|spec| spec.allow_state_loss),
        timing: Timing {
            lost: LOST,
            watch: WATCH,
            ..Timing::default()
        },
        checkpoints: store.map(|store| Checkpointing {
            store,
            keep,
            claim,
            ownership: None,
            event_files: true,
        }),
        costs: None,
        scale: None,
    })
}

#[cfg(test)]
mod tests;
