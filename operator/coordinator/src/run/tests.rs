use super::forwarded_orders::time_until;
use super::*;
use kube::client::Body;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;
use tokio::sync::mpsc::{Receiver, channel};
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

fn orders(zone: &str) -> RunSpec {
    RunSpec {
        uid: "u".into(),
        goal: RunGoal::Run,
        coordinator: 1,
        newest_coordinator: 1,
        steps: 0,
        allow_state_loss: false,
        save_at: None,
        leaving: vec![],
        ends_at: BTreeMap::new(),
        ended: vec![],
        domains: BTreeMap::from([("node".to_owned(), zone.to_owned())]),
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
        let mut lead = Lead {
            by: Reporter {
                number: 1,
                address: None,
                health_address: String::new(),
            },
            messages: Messages::new(1),
            publish: watch::channel(None).0,
            metrics: Arc::new(Metrics::new("n", "j")),
            orders,
        };
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
