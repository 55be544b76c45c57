use super::*;
use tokio::sync::mpsc::{Receiver, channel};

/// A coordinator's handle whose orders nobody carries out, and what it is told of nodes.
fn control() -> (Control, Receiver<BTreeMap<String, String>>) {
    let (domains, told) = channel(1);
    let control = Control {
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        view: watch::channel(View::default()).1,
        stop: channel(1).0,
        save: channel(1).0,
        steps: channel(1).0,
        domains,
        process_ended: channel(1).0,
        notices: channel(1).0,
        outcome: tokio::spawn(std::future::pending()),
    };
    (control, told)
}

fn orders(zone: &str) -> RunSpec {
    RunSpec {
        uid: "u".into(),
        goal: RunGoal::Run,
        coordinator: 1,
        newest_coordinator: 1,
        steps: 0,
        save_at: None,
        leaving: vec![],
        ended: vec![],
        domains: BTreeMap::from([("node".to_owned(), zone.to_owned())]),
    }
}

#[tokio::test]
async fn where_nodes_are_is_passed_on_once_and_again_when_it_changes() {
    let (control, mut told) = control();
    let mut passed = Told::default();
    passed.tell(&orders("a"), &control);
    assert_eq!(told.try_recv().unwrap(), orders("a").domains);
    passed.tell(&orders("a"), &control);
    assert!(told.try_recv().is_err(), "it is known");
    passed.tell(&orders("b"), &control);
    // The channel is full: the next orders tell it.
    passed.tell(&orders("c"), &control);
    assert_eq!(told.try_recv().unwrap(), orders("b").domains);
    passed.tell(&orders("c"), &control);
    assert_eq!(told.try_recv().unwrap(), orders("c").domains);
}
