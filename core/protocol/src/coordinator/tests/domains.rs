//! The locations of workers' nodes.

use super::*;

#[test]
fn locations_are_used_by_the_next_plan_only() {
    let mut rig = Rig::with(config(), Record::default());
    for (worker, node) in [(A, "n1"), (B, "n2")] {
        let hello = Hello {
            address: "a:1".into(),
            name: format!("on-{node}"),
            node: node.into(),
            hardware: None,
            memory_bytes: None,
            copies_bytes: None,
            scores: None,
            speed: 1.0,
        };
        rig.put(CoordinatorInput::StreamUp { from: worker, hello });
    }
    let domains = |rig: &Rig| {
        let infos = rig.machine.shared.infos(&[A, B]);
        infos.into_iter().map(|info| info.domain).collect::<Vec<_>>()
    };
    assert_eq!(domains(&rig), ["", ""]);
    let (made, sent) = (MADE.get(), rig.sent.len());
    let told = |node: &str, domain: &str| BTreeMap::from([(node.to_owned(), domain.to_owned())]);
    rig.put(CoordinatorInput::Domains(told("n2", "zone-b/rack-7")));
    assert_eq!(domains(&rig), ["", "zone-b/rack-7"]);
    // New locations replace all earlier ones.
    rig.put(CoordinatorInput::Domains(told("n1", "zone-a")));
    assert_eq!(domains(&rig), ["zone-a", ""]);
    assert_eq!((MADE.get(), rig.sent.len()), (made, sent));
}
