use super::forwarded_orders::time_until;
use super::*;
use crate::orders::tests::written;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use kube::client::Body;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;
use tokio::sync::mpsc::{Receiver, UnboundedReceiver, UnboundedSender, channel, unbounded_channel};
use varuna_api::crd::{RunGoal, RunSpec};
use varuna_coordinator::WorkerNotice;

const JOB: &str = "{apiVersion: varuna.dev/v1alpha1, kind: VarunaJob, metadata: {name: j}, spec: {model: {preset: gpt2-tiny}, \
                   data: {path: d}, training: {globalBatchSize: 8, steps: 10, optimizer: {learningRate: 1e-3}}}}";

/// A coordinator's handle whose orders are not carried out, and the channel for the locations of nodes.
fn control() -> (Control, Receiver<BTreeMap<String, String>>) {
    let (control, told, _) = control_with_notices();
    (control, told)
}

/// The same with the channel for notices about workers.
fn control_with_notices() -> (
    Control,
    Receiver<BTreeMap<String, String>>,
    Receiver<WorkerNotice>,
) {
    let (domains, told) = channel(1);
    let (notices, noticed) = channel(1);
    let control = Control {
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        view: watch::channel(View::default()).1,
        save_and_stop: channel(1).0,
        stop: channel(1).0,
        abandon: channel(1).0,
        save: channel(1).0,
        steps: channel(1).0,
        domains,
        allow_state_loss: channel(1).0,
        process_ended: channel(1).0,
        notices,
        outcome: tokio::spawn(std::future::pending()),
    };
    (control, told, noticed)
}

#[tokio::test]
async fn shortened_notice_is_forwarded_as_remaining_time() {
    let now = SystemTime::now();
    let in_a_minute = now + Duration::from_secs(60);
    let seconds = in_a_minute
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let at = i64::try_from(seconds).unwrap();
    let left = time_until(at, now);
    assert!(left <= Duration::from_secs(60) && left > Duration::from_secs(58));
    assert_eq!(time_until(at - 100, now), Duration::ZERO);
    assert_eq!(time_until(-1, now), Duration::ZERO);

    let (control, _domains, mut noticed) = control_with_notices();
    let mut passed = ForwardedOrders::default();
    let ends = |at| RunSpec {
        ends_at: BTreeMap::from([("w1".to_owned(), at)]),
        ..orders("a")
    };
    let within = |notice| match notice {
        Ok(WorkerNotice::Leaving(name, Some(within))) if name == "w1" => within,
        other => panic!("{other:?}"),
    };
    passed.forward(&ends(at), &control);
    assert!(within(noticed.try_recv()) > Duration::from_secs(50));
    passed.forward(&ends(at), &control);
    assert!(noticed.try_recv().is_err(), "it is known");
    passed.forward(&ends(at - 100), &control);
    assert_eq!(within(noticed.try_recv()), Duration::ZERO);
}

#[tokio::test]
async fn a_notice_has_its_length_whatever_the_clock_says() {
    let (mut control, _domains, mut noticed) = control_with_notices();
    let (allow, _allowed) = channel(1);
    control.allow_state_loss = allow;
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let now = i64::try_from(since_1970.as_secs()).unwrap();
    let ends = |at: i64| RunSpec {
        ends_at: BTreeMap::from([("w1".to_owned(), at)]),
        written_at: Some(at - 20),
        ..orders("a")
    };
    let mut within = || match noticed.try_recv() {
        Ok(WorkerNotice::Leaving(_, Some(within))) => within.as_secs(),
        other => panic!("{other:?}"),
    };
    let mut passed = ForwardedOrders::default();
    assert!(passed.forward(&orders("a"), &control));
    // The coordinator's clock is behind the operator's, then ahead of it.
    for at in [now + 300, now - 300] {
        passed.forward(&ends(at), &control);
        assert_eq!(within(), 20);
    }
    // A coordinator that has just started does not know how old the orders are.
    let mut from_the_beginning = |at: i64| {
        ForwardedOrders::default().forward(&ends(at), &control);
        within()
    };
    assert_eq!(from_the_beginning(now + 300), 20);
    assert!(from_the_beginning(now + 8) <= 8);
}

/// With nothing else that changes: neither the orders, nor what the coordinator shows.
#[tokio::test(start_paused = true)]
async fn notices_for_which_there_was_no_room_follow_soon() {
    let (mut control, _domains, mut noticed) = control_with_notices();
    let (allow, _allowed) = channel(1);
    control.allow_state_loss = allow;
    let names: Vec<String> = (0..200).map(|number| format!("w{number}")).collect();
    let lost = RunSpec {
        ended: names.clone(),
        ..orders("a")
    };
    let (_order, orders) = watch::channel(Orders::Given(lost));
    let mut lead = lead(orders);
    let layout = parse_job_of_any_release(JOB).unwrap().model.layout();
    let told = async {
        let mut told = vec![];
        while told.len() < names.len() {
            match noticed.recv().await {
                Some(WorkerNotice::Ended(name)) => told.push(name),
                other => panic!("{other:?}"),
            }
        }
        told
    };
    let leads = lead.follow(control, &layout);
    let all = async {
        tokio::select! {
            end = leads => panic!("{end:?}"),
            told = told => told,
        }
    };
    let told = tokio::time::timeout(Duration::from_secs(600), all).await;
    assert_eq!(told.expect("all of them are passed on"), names);
}

/// A coordinator in charge that follows these orders.
fn lead(orders: watch::Receiver<Orders>) -> Lead {
    Lead {
        by: Reporter {
            number: 1,
            address: None,
            health_address: String::new(),
        },
        messages: Messages::new(1),
        publish: watch::channel(None).0,
        metrics: Arc::new(Metrics::new("n", "j")),
        orders,
    }
}

fn orders(zone: &str) -> RunSpec {
    RunSpec {
        domains: BTreeMap::from([("node".to_owned(), zone.to_owned())]),
        ..written(RunGoal::Run, 1)
    }
}

#[tokio::test]
async fn whether_the_state_may_be_lost_is_passed_on_as_it_is_now() {
    let (mut control, _domains) = control();
    let (allow, mut told) = channel(1);
    control.allow_state_loss = allow;
    let mut passed = ForwardedOrders::default();
    let ordered = |allow_state_loss| RunSpec {
        allow_state_loss,
        ..orders("a")
    };
    for allowed in [false, true, false] {
        passed.forward(&ordered(allowed), &control);
        assert_eq!(told.try_recv(), Ok(allowed), "also what it began with");
        passed.forward(&ordered(allowed), &control);
        assert!(told.try_recv().is_err(), "it is known");
    }
}

#[tokio::test]
async fn where_nodes_are_is_passed_on_once_and_again_when_it_changes() {
    let (control, mut told) = control();
    let mut passed = ForwardedOrders::default();
    passed.forward(&orders("a"), &control);
    assert_eq!(told.try_recv().unwrap(), orders("a").domains);
    passed.forward(&orders("a"), &control);
    assert!(told.try_recv().is_err(), "it is known");
    passed.forward(&orders("b"), &control);
    // The channel is full, so these orders are sent again with the next ones.
    passed.forward(&orders("c"), &control);
    assert_eq!(told.try_recv().unwrap(), orders("b").domains);
    passed.forward(&orders("c"), &control);
    assert_eq!(told.try_recv().unwrap(), orders("c").domains);
}

#[tokio::test]
async fn deleted_job_releases_its_location_and_deposed_one_does_not() {
    for (last, gives_up) in [
        (Orders::Gone, true),
        (
            Orders::Given(RunSpec {
                coordinator: 2,
                ..orders("a")
            }),
            false,
        ),
    ] {
        let (mut control, _told) = control();
        let (abandon, mut abandoned) = channel(1);
        control.abandon = abandon;
        // The run ends once it gets the order.
        let (ended, given_up) = tokio::sync::oneshot::channel();
        control.outcome = tokio::spawn(async move {
            let told = abandoned.recv().await.is_some();
            let _ = ended.send(told);
            Ok(varuna_coordinator::Outcome::Stopped)
        });
        let (order, orders) = watch::channel(Orders::Given(orders("a")));
        let mut lead = lead(orders);
        let layout = parse_job_of_any_release(JOB).unwrap().model.layout();
        order.send_replace(last);
        assert_eq!(lead.follow(control, &layout).await, None);
        assert_eq!(given_up.await.unwrap_or(false), gives_up);
    }
}

#[tokio::test(start_paused = true)]
async fn record_is_requested_until_the_server_answers() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let record = json!({
        "apiVersion": "varuna.dev/v1alpha1", "kind": "VarunaRecord", "metadata": { "name": "r" }, "spec": { "uid": "u", "job": "text" },
    });
    let service = tower::service_fn(move |_: http::Request<Body>| {
        let is_first = count.fetch_add(1, Ordering::Relaxed) == 0;
        let body = Body::from(record.to_string().into_bytes());
        async move {
            if is_first {
                std::future::pending::<()>().await;
            }
            http::Response::builder().status(200).body(body)
        }
    });
    let records: Api<VarunaRecord> = Api::namespaced(Client::new(service, "default"), "n");
    let read = tokio::time::timeout(Duration::from_secs(600), read_record(&records, "r")).await;
    let spec = read.expect("it is asked for again").unwrap();
    assert_eq!((spec.uid.as_str(), asked.load(Ordering::Relaxed)), ("u", 2));
}

/// An API server with the run and the record of one job, which this coordinator is to lead. It takes whatever is written, and nothing changes.
fn api_server() -> Client {
    let metadata = json!({ "name": "r", "resourceVersion": "5" });
    let run = json!({
        "apiVersion": "varuna.dev/v1alpha1", "kind": "VarunaRun", "metadata": metadata,
        "spec": { "uid": "u", "goal": "Run", "coordinator": 1, "steps": 10 },
    });
    let runs = json!({
        "apiVersion": "varuna.dev/v1alpha1", "kind": "VarunaRunList", "metadata": { "resourceVersion": "5" }, "items": [run],
    });
    let record = json!({
        "apiVersion": "varuna.dev/v1alpha1", "kind": "VarunaRecord", "metadata": metadata, "spec": { "uid": "u", "job": JOB },
    });
    Client::new(
        tower::service_fn(move |request: http::Request<Body>| {
            let (runs, run, record) = (runs.to_string(), run.to_string(), record.to_string());
            async move {
                let (head, body) = request.into_parts();
                if head.uri.query().is_some_and(|query| query.contains("watch=true")) {
                    std::future::pending::<()>().await;
                }
                let of_record = head.uri.path().contains("/varunarecords/");
                let answer = match (head.method == http::Method::GET, of_record) {
                    (true, true) => record.into_bytes(),
                    (true, false) => runs.into_bytes(),
                    (false, true) => body.collect_bytes().await.unwrap().to_vec(),
                    (false, false) => run.into_bytes(),
                };
                http::Response::builder().status(200).body(Body::from(answer))
            }
        }),
        "default",
    )
}

/// A receiver of OpenTelemetry: its endpoint, and the bodies that it gets.
async fn otlp_receiver() -> (String, UnboundedReceiver<Bytes>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (got, pushed) = unbounded_channel();
    let take = |State(got): State<UnboundedSender<Bytes>>, body: Bytes| async move {
        // An error means that the test has seen enough.
        let _ = got.send(body);
    };
    let router = Router::new()
        .route("/v1/metrics", axum::routing::post(take))
        .with_state(got);
    tokio::spawn(async move { axum::serve(listener, router).await });
    (endpoint, pushed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn figures_are_pushed_with_the_labels_of_the_job() {
    let (endpoint, mut pushed) = otlp_receiver().await;
    let receiver = varuna_metrics::receiver::Receiver::from_variables(|name| match name {
        "OTEL_EXPORTER_OTLP_ENDPOINT" => Some(endpoint.clone().into()),
        "OTEL_METRIC_EXPORT_INTERVAL" => Some("100".into()),
        _ => None,
    });
    let folder = tempfile::tempdir().unwrap();
    let here = SocketAddr::from(([127, 0, 0, 1], 0));
    let configuration = Configuration {
        namespace: "team-a".into(),
        job: "llama".into(),
        run: "r".into(),
        number: 1,
        token: "t".into(),
        identity: None,
        address: here.ip(),
        bind: here,
        health: here,
        receiver: receiver.unwrap(),
        folder: folder.path().to_owned(),
    };
    let coordinator = AbortOnDrop(tokio::spawn(run(api_server(), configuration)).abort_handle());
    // Texts stand in protobuf as they are. The first figures may be pushed before the coordinator has any.
    let parts = [
        "varuna_job_workers",
        "namespace",
        "team-a",
        "job_name",
        "llama",
        "team-a/r/1",
    ];
    let complete = async {
        while let Some(body) = pushed.recv().await {
            let text = String::from_utf8_lossy(&body);
            if parts.iter().all(|part| text.contains(part)) {
                return true;
            }
        }
        false
    };
    let seen = tokio::time::timeout(Duration::from_secs(60), complete).await;
    assert_eq!(seen, Ok(true), "no push has {parts:?}");
    drop(coordinator);
}
