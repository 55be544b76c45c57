use super::*;
use kube::core::Status as Refusal;
use kube::core::response::StatusDetails;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::thread::JoinHandle;

fn view(phase: &str, saves: bool) -> JobView {
    JobView {
        name: "demo".into(),
        namespace: "team".into(),
        uid: "u".into(),
        most_workers: None,
        saves,
        status: serde_json::from_value(json!({ "phase": phase })).unwrap(),
    }
}

/// The error message, and whether it is a mistake of the user.
fn said(error: kube::Error) -> (String, bool) {
    let failure = failure("team", "demo", error);
    (failure.to_string(), matches!(failure, Failure::Input(_)))
}

#[test]
fn missing_job_missing_definition_and_server_error_differ() {
    let api = |message: &str, reason: &str, code| Refusal::failure(message, reason).with_code(code);
    let details: StatusDetails = serde_json::from_value(json!({ "name": "demo" })).unwrap();
    let missing = api("not found", "NotFound", 404).with_details(details);
    for (status, words, is_input) in [
        (missing, "there is no VarunaJob demo in namespace team", true),
        (
            api("404 page not found", "Failed to parse error data", 404),
            "Varuna is not installed",
            true,
        ),
        (
            api("User u cannot get varunajobs", "Forbidden", 403),
            "User u cannot get varunajobs",
            true,
        ),
        (
            api("etcdserver: request timed out", "InternalError", 500),
            "does not answer: etcdserver",
            false,
        ),
        (api("", "", 502), "does not answer: HTTP status 502", false),
        (
            api("slow down", "TooManyRequests", 429),
            "does not answer: slow down",
            false,
        ),
    ] {
        let (text, input) = said(kube::Error::Api(status.boxed()));
        assert!(text.contains(words) && input == is_input, "{text}");
    }
}

#[test]
fn a_connection_that_fails_is_told_with_its_cause() {
    #[derive(Debug, thiserror::Error)]
    #[error("client error (Connect)")]
    struct Connect(#[source] std::io::Error);
    let cause = std::io::Error::other("connection refused");
    let (text, is_input) = said(kube::Error::Service(Box::new(Connect(cause))));
    let said = "does not answer: ServiceError: client error (Connect): connection refused";
    assert!(text.contains(said) && !is_input, "{text}");
}

#[test]
fn save_requires_a_training_job_with_a_checkpoint_location() {
    for phase in ["Training", "Recovering", "Suspended", "Pending"] {
        assert!(check_saves(&view(phase, true)).is_ok(), "{phase}");
    }
    for phase in ["Complete", "Failed", "Refused"] {
        let why = check_saves(&view(phase, true)).unwrap_err().to_string();
        assert!(why.contains(&format!("demo is {phase}")), "{why}");
    }
    let why = check_saves(&view("Training", false)).unwrap_err().to_string();
    assert!(why.contains("spec.checkpoint"), "{why}");
}

/// A job with groups of workers that may have so many each; none = no maximum.
fn with_groups(most: &[Option<u32>]) -> Value {
    let group = |most: &Option<u32>| match most {
        Some(most) => json!({ "name": "g", "maxWorkers": most }),
        None => json!({ "name": "g" }),
    };
    let groups: Vec<Value> = most.iter().map(group).collect();
    json!({
        "apiVersion": "varuna.dev/v1alpha1", "kind": "VarunaJob", "metadata": { "name": "demo" },
        "spec": { "elasticity": { "minWorkers": 3 }, "workerGroups": groups },
    })
}

#[test]
fn a_job_is_scaled_to_no_more_than_its_groups_have() {
    let (config, served) = serve(vec![("200 OK", with_groups(&[Some(6), Some(2)]).to_string())]);
    let answer = runtime().unwrap().block_on(async {
        let cluster = cluster(config);
        tokio::time::timeout(PATIENCE, cluster.scale("demo", 9)).await
    });
    let why = answer.expect("in time").unwrap_err().to_string();
    assert!(why.contains("maxWorkers: 9 — minWorkers (3) to 8"), "{why}");
    assert_eq!(served.join().unwrap().len(), 1, "nothing is changed");
    assert!(check_groups("demo", 8, &with_groups(&[Some(6), Some(2)])).is_ok());
    assert!(check_groups("demo", 9, &with_groups(&[Some(6), None])).is_ok());
    assert!(check_groups("demo", 9, &with_groups(&[])).is_ok());
    assert!(check_groups("demo", 9, &json!({ "spec": {} })).is_ok());
}

/// Longer than any answer takes on one machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// An API server that gives these answers one after the other, each with its HTTP status. The task returns the requests.
fn serve(answers: Vec<(&'static str, String)>) -> (Config, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let mut config = Config::new(address.parse().unwrap());
    // The connection needs no certificates of this machine.
    config.root_cert = Some(Vec::new());
    let served = std::thread::spawn(move || {
        let mut asked = Vec::new();
        for (status, answer) in answers {
            let (mut connection, _) = listener.accept().unwrap();
            let reader = BufReader::new(connection.try_clone().unwrap());
            let head = reader.lines().map(Result::unwrap);
            let head: Vec<String> = head.take_while(|line| !line.is_empty()).collect();
            asked.push(head[0].clone());
            let length = answer.len();
            write!(
                connection,
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{answer}"
            )
            .unwrap();
        }
        asked
    });
    (config, served)
}

/// A cluster with this configuration. This must be called within a tokio runtime.
fn cluster(config: Config) -> Cluster {
    Cluster {
        client: Client::try_from(bounded(config)).unwrap(),
        namespace: "team".into(),
    }
}

#[test]
fn an_api_server_in_trouble_is_not_asked_again_in_silence() {
    let (config, served) = serve(vec![("503 Service Unavailable", "starting".into())]);
    let answer = runtime().unwrap().block_on(async {
        let cluster = cluster(config);
        tokio::time::timeout(PATIENCE, cluster.job("demo")).await
    });
    let why = answer.expect("in time").map(drop).unwrap_err();
    assert!(why.to_string().contains("does not answer: starting"), "{why}");
    assert_eq!(served.join().unwrap().len(), 1);
}

#[test]
fn all_pages_of_events_are_read() {
    let list = |next: &str, second: u32, text: &str| {
        json!({
            "apiVersion": "v1", "kind": "EventList", "metadata": { "continue": next },
            "items": [{
                "metadata": { "name": text }, "involvedObject": {}, "reason": "Run", "message": text,
                "lastTimestamp": format!("2026-11-23T11:00:0{second}Z"),
            }],
        })
        .to_string()
    };
    let parts = [list("more", 2, "later"), list("", 1, "earlier")];
    let (config, served) = serve(parts.map(|part| ("200 OK", part)).into());
    let events = runtime().unwrap().block_on(async {
        let cluster = cluster(config);
        cluster.happened(&view("Training", true)).await.unwrap()
    });
    let texts: Vec<&str> = events.iter().map(|event| event.text.as_str()).collect();
    assert_eq!(texts, ["earlier", "later"]);
    let asked = served.join().unwrap();
    assert!(asked[1].contains("continue=more"), "{asked:?}");
}

#[test]
fn no_event_changes_what_a_terminal_shows() {
    let event: Event = serde_json::from_value(json!({
        "metadata": {}, "involvedObject": {}, "lastTimestamp": "2026-11-23T11:00:00Z",
        "reason": "Run\r", "message": "lost\u{1b}[2J worker\nw3",
    }))
    .unwrap();
    let shown = happened(&event).unwrap();
    assert_eq!(
        (shown.reason.as_str(), shown.text.as_str()),
        ("Run\\r", "lost\\u{1b}[2J worker\\nw3")
    );
}
