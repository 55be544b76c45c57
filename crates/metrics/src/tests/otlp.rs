//! Figures as a receiver of OpenTelemetry gets them.

use super::{metric, ms, view};
use crate::push::{LAST_FIGURES, Prepared, Push};
use crate::receiver::Receiver;
use crate::{Cause, Follower, Measured, Metrics, Phase};
use axum::body::Bytes;
use axum::extract::State;
use axum::{Router, routing};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{metric as of_metric, number_data_point};
use parking_lot::Mutex;
use prost::Message as _;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};
use varuna_coordinator::{CheckpointHealth, View};
use varuna_plan::Step;
use varuna_protocol::coordinator::SpareCopiesView;

/// Timeout of all waits, far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// What a busy machine may add to a limit.
const SLACK: Duration = Duration::from_secs(10);

/// A receiver that keeps what it gets, or refuses it.
#[derive(Clone)]
struct Kept {
    requests: Arc<Mutex<Vec<ExportMetricsServiceRequest>>>,
    /// How many have come, refused ones included.
    count: Arc<watch::Sender<usize>>,
    refuses: Arc<AtomicBool>,
}

impl Kept {
    fn new() -> Kept {
        Kept {
            requests: Arc::default(),
            count: Arc::new(watch::channel(0).0),
            refuses: Arc::default(),
        }
    }

    fn take(&self, request: ExportMetricsServiceRequest) -> bool {
        self.requests.lock().push(request);
        self.count.send_modify(|count| *count += 1);
        !self.refuses.load(Ordering::Relaxed)
    }

    /// Waits until so many more requests have come.
    async fn wait_for_more(&self, more: usize) {
        let mut count = self.count.subscribe();
        let wanted = *count.borrow_and_update() + more;
        let come = count.wait_for(|count| *count >= wanted);
        tokio::time::timeout(PATIENCE, come).await.unwrap().unwrap();
    }
}

#[tonic::async_trait]
impl MetricsService for Kept {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        match self.take(request.into_inner()) {
            true => Ok(Response::new(ExportMetricsServiceResponse::default())),
            // One that is not tried again at once.
            false => Err(Status::invalid_argument("refused")),
        }
    }
}

async fn any_port() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn over_grpc() -> (SocketAddr, Kept) {
    let (listener, address) = any_port().await;
    let kept = Kept::new();
    let service = MetricsServiceServer::new(kept.clone());
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    (address, kept)
}

async fn over_http() -> (SocketAddr, Kept) {
    let (listener, address) = any_port().await;
    let kept = Kept::new();
    let take = |State(kept): State<Kept>, body: Bytes| async move {
        kept.take(ExportMetricsServiceRequest::decode(body).unwrap());
        ExportMetricsServiceResponse::default().encode_to_vec()
    };
    let router = Router::new()
        .route("/v1/metrics", routing::post(take))
        .with_state(kept.clone());
    tokio::spawn(axum::serve(listener, router).into_future());
    (address, kept)
}

/// Pushes metrics to an address.
fn push(metrics: &Metrics, protocol: &str, address: SocketAddr, more: &[(&str, &str)]) -> Push {
    let endpoint = format!("http://{address}");
    let receiver = Receiver::from_variables(|name| match name {
        "OTEL_EXPORTER_OTLP_ENDPOINT" => Some(OsString::from(&endpoint)),
        "OTEL_EXPORTER_OTLP_PROTOCOL" => Some(OsString::from(protocol)),
        name => more
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, value)| OsString::from(value)),
    });
    let receiver = receiver.unwrap().unwrap();
    Prepared::new(&receiver).unwrap().start(metrics, "here")
}

/// A run of which every figure is known.
fn all_known() -> View {
    let mut view = view(Some(SpareCopiesView {
        units: 7,
        kept: 5,
        in_step: 3,
        verdict: None,
    }));
    view.metric = Some(metric(true));
    view.checkpoints = Some(CheckpointHealth {
        newest: Some(Step(80)),
        ..CheckpointHealth::default()
    });
    let run = &mut view.snapshot.as_mut().unwrap().run;
    (run.observed_ms, run.predicted_ms) = (Some(100.0), Some(90.0));
    view
}

/// Values by name and labels.
type Series = BTreeMap<(String, BTreeMap<String, String>), f64>;

/// The series of a scrape, without the buckets of histograms and without those that nothing was added to.
fn scraped(metrics: &Metrics) -> Series {
    let text = metrics.render();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let series = lines.map(|line| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.trim_end_matches('}').split_once('{').unwrap();
        let labels = labels.split(',').map(|label| {
            let (name, value) = label.split_once('=').unwrap();
            (name.to_owned(), value.trim_matches('"').to_owned())
        });
        ((name.to_owned(), labels.collect()), value.parse().unwrap())
    });
    let is_shown = |((name, labels), value): &((String, BTreeMap<_, _>), f64)| {
        let is_time = name.starts_with("varuna_recovery_") || name.starts_with("varuna_plan_");
        !(labels.contains_key("le") || is_time && *value == 0.0)
    };
    series.filter(is_shown).collect()
}

fn labels(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |pair: &KeyValue| match pair.value.as_ref().and_then(|v| v.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => text.clone(),
        other => panic!("{other:?}"),
    };
    let pairs = attributes.iter().map(|pair| (pair.key.clone(), text(pair)));
    pairs.collect()
}

/// The series of a request, likewise.
fn pushed(request: &ExportMetricsServiceRequest) -> Series {
    let resources = request.resource_metrics.iter();
    let metrics = resources.flat_map(|r| r.scope_metrics.iter().flat_map(|s| &s.metrics));
    let mut series = Series::new();
    for metric in metrics {
        match metric.data.as_ref().unwrap() {
            of_metric::Data::Gauge(gauge) => {
                for point in &gauge.data_points {
                    let Some(number_data_point::Value::AsDouble(value)) = point.value else {
                        panic!("{point:?}");
                    };
                    series.insert((metric.name.clone(), labels(&point.attributes)), value);
                }
            }
            of_metric::Data::Histogram(histogram) => {
                for point in &histogram.data_points {
                    let of = |ending| (format!("{}_{ending}", metric.name), labels(&point.attributes));
                    series.insert(of("count"), point.count as f64);
                    series.insert(of("sum"), point.sum.unwrap());
                    assert_eq!(point.explicit_bounds, crate::table::BOUNDS);
                }
            }
            other => panic!("{other:?}"),
        }
    }
    series
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushed_names_labels_and_values_are_those_scraped() {
    for protocol in ["grpc", "http/protobuf"] {
        let (address, kept) = match protocol {
            "grpc" => over_grpc().await,
            _ => over_http().await,
        };
        let metrics = Metrics::new("ns", "j");
        let push = push(&metrics, protocol, address, &[]);
        for at in [1, 2] {
            metrics.figures.observe(&all_known(), ms(at));
        }
        for phase in [Phase::Plan, Phase::Total] {
            metrics.recovered(&Measured {
                phase,
                cause: Cause::Lost,
                took: ms(500),
                workers: 1,
            });
        }
        // The first interval is not over: these are the last figures.
        push.end().await;
        let requests = kept.requests.lock();
        let [request] = requests.as_slice() else {
            panic!("{protocol}: {requests:?}");
        };
        let (mut pushed, mut scraped) = (pushed(request), scraped(&metrics));
        for series in [&mut pushed, &mut scraped] {
            let before = series.len();
            // The age of a checkpoint is another one at each moment.
            series.retain(|(name, _), _| name != "varuna_job_checkpoint_age_seconds");
            assert_eq!(series.len(), before - 1);
        }
        assert!(scraped.len() > 25, "{scraped:?}");
        assert_eq!(pushed, scraped, "{protocol}");
        let resource = request.resource_metrics[0].resource.as_ref().unwrap();
        let resource = labels(&resource.attributes);
        assert_eq!(resource["service.instance.id"], "here");
        assert!(resource.contains_key("service.name"), "{resource:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_receiver_delays_no_run_and_its_end_within_a_limit() {
    for protocol in ["grpc", "http/protobuf"] {
        for in_order in [true, false] {
            let (listener, address) = any_port().await;
            let metrics = Metrics::outside_a_cluster("j");
            let more = [
                ("OTEL_METRIC_EXPORT_INTERVAL", "100"),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "600000"),
            ];
            metrics.figures.observe(&all_known(), ms(1));
            let push = push(&metrics, protocol, address, &more);
            // It connects and sends, and nothing comes back.
            let connected = tokio::time::timeout(PATIENCE, listener.accept()).await;
            let _stays_open = connected.unwrap().unwrap();
            let began = Instant::now();
            for at in 2..1000 {
                metrics.figures.observe(&all_known(), ms(at));
            }
            assert!(began.elapsed() < SLACK, "{protocol}: {:?}", began.elapsed());
            let (began, limit) = (Instant::now(), if in_order { LAST_FIGURES } else { ms(0) });
            match in_order {
                true => push.end().await,
                false => drop(push),
            }
            assert!(
                began.elapsed() < limit + SLACK,
                "{protocol}: {:?}",
                began.elapsed()
            );
        }
    }
}

/// What this process logs.
fn logged() -> &'static Mutex<Vec<u8>> {
    static LOG: OnceLock<Mutex<Vec<u8>>> = OnceLock::new();
    struct Kept;
    impl std::io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            logged().lock().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut is_first = false;
    let log = LOG.get_or_init(|| {
        is_first = true;
        Mutex::default()
    });
    if is_first {
        tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(|| Kept)
            .init();
    }
    log
}

/// The lines of the log that name an address.
fn said_of(address: SocketAddr) -> Vec<String> {
    let text = String::from_utf8_lossy(&logged().lock()).into_owned();
    let here = text.lines().filter(|line| line.contains(&address.to_string()));
    here.map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn last_figures_that_nobody_waits_for_are_given_up() {
    logged();
    for protocol in ["grpc", "http/protobuf"] {
        let (listener, address) = any_port().await;
        let metrics = Metrics::outside_a_cluster("j");
        metrics.figures.observe(&all_known(), ms(1));
        let push = push(&metrics, protocol, address, &[]);
        // The first interval is not over: it connects to send the last figures. Nothing comes back.
        let mut open = None;
        let connected = async { open = Some(listener.accept().await.unwrap()) };
        push.end_unless(connected).await;
        assert!(open.is_some(), "{protocol}");
        // Figures that were not given up would be said to be late.
        let said = said_of(address);
        assert!(said.is_empty(), "{protocol}: {said:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusing_receiver_is_told_of_once_and_when_it_recovers() {
    logged();
    let (address, kept) = over_grpc().await;
    kept.refuses.store(true, Ordering::Relaxed);
    let metrics = Metrics::outside_a_cluster("j");
    metrics.figures.observe(&all_known(), ms(1));
    let push = push(
        &metrics,
        "grpc",
        address,
        &[("OTEL_METRIC_EXPORT_INTERVAL", "100")],
    );
    let said = || said_of(address);
    // With the third, the answers to the first two have been read.
    kept.wait_for_more(3).await;
    let refused = said();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(
        refused[0].contains("WARN") && refused[0].contains("takes no figures"),
        "{refused:?}"
    );
    kept.refuses.store(false, Ordering::Relaxed);
    kept.wait_for_more(3).await;
    let all = said();
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(all[1].contains("takes figures again"), "{all:?}");
    push.end().await;
    assert_eq!(said(), all);
}

#[tokio::test]
async fn a_follower_measures_every_view_up_to_the_last() {
    let (publish, views) = watch::channel(View::default());
    let metrics = Arc::new(Metrics::outside_a_cluster("j"));
    let follower = Follower::start(views, Arc::clone(&metrics));
    let is_shown = |line: &str| metrics.render().lines().any(|l| l == line);
    publish.send_replace(all_known());
    let measured = async {
        while !is_shown(r#"varuna_job_step{job_name="j"} 86.0"#) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, measured).await.unwrap();
    let mut last = all_known();
    last.snapshot.as_mut().unwrap().run.step = Step(87);
    last.metric.as_mut().unwrap().step = Step(87);
    publish.send_replace(last);
    follower.end().await;
    let line = r#"varuna_job_step{job_name="j"} 87.0"#;
    assert!(is_shown(line), "no {line} in:\n{}", metrics.render());
}
