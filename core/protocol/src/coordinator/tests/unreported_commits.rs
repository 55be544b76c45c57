//! Commits that were not reported, and whose witnesses end soon.

use super::*;
use varuna_plan::Decision;

pub(super) fn decision(step: u64) -> Decision {
    Decision {
        parent: match step {
            1 => StateId::INITIAL,
            _ => state(1, step - 1),
        },
        id: state(1, step),
        norm2: 1.0,
        overflow: false,
        before: OptimizerProgress::START,
        loss: 1.0,
        eval_loss: None,
        switch: None,
    }
}

fn published(rig: &Rig) -> Vec<u64> {
    let step = |e: &Event| match e {
        Event::Committed { step, .. } => Some(step.0),
        _ => None,
    };
    rig.events.iter().filter_map(step).collect()
}

/// The worker answers its orders one after the other: it sends commits up to this one, and answers the fence. Then it ends.
fn answers_and_ends(rig: &mut Rig, from: WorkerId, upto: u64) {
    let orders: Vec<Order> = rig
        .sent
        .iter()
        .filter(|(to, _)| *to == from)
        .map(|(_, o)| o.clone())
        .collect();
    for order in orders {
        match order {
            Order::Tell { after } => {
                let decisions = (after.0 + 1..=upto).map(decision).collect();
                rig.say(from, Report::Commits { after, decisions });
            }
            Order::Fence { .. } => rig.answer(from, &[(Unit(0), state(1, upto)), (Unit(1), state(1, upto))]),
            _ => {}
        }
    }
    rig.put(CoordinatorInput::ProcessEnded { worker: from });
    rig.put(CoordinatorInput::StreamDown { from });
}

#[test]
fn commits_of_one_ending_worker_are_published_in_order() {
    let mut rig = Rig::training(&[A, B]);
    rig.say(
        A,
        Report::Committed {
            decision: decision(1),
        },
    );
    // Steps 2 to 8 were committed while there was no coordinator. Of the workers that ran them only B is left.
    rig.status(B, 1, Phase::Running, state(1, 8));
    rig.say(B, suspect(1, A));
    answers_and_ends(&mut rig, B, 8);
    assert_eq!(published(&rig), [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn best_informed_worker_is_used() {
    let mut rig = Rig::training(&[A, B, C]);
    for (w, step) in [(A, 3), (B, 3), (C, 6)] {
        rig.status(w, 1, Phase::Running, state(1, step));
    }
    rig.say(A, suspect(1, B));
    for (w, step) in [(A, 3), (C, 6)] {
        answers_and_ends(&mut rig, w, step);
    }
    assert_eq!(published(&rig), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn uninformed_worker_does_not_end_the_search() {
    let mut rig = Rig::training(&[A, B]);
    for w in [A, B] {
        rig.status(w, 1, Phase::Running, state(1, 4));
    }
    rig.say(A, suspect(1, B));
    let told = |steps: std::ops::RangeInclusive<u64>| Report::Commits {
        after: Step(0),
        decisions: steps.map(decision).collect(),
    };
    for _ in 0..4 {
        rig.say(A, told(4..=4));
    }
    assert!(published(&rig).is_empty(), "B may know those before it");
    rig.say(B, told(1..=4));
    assert_eq!(published(&rig), [1, 2, 3, 4]);
}

#[test]
fn who_knows_nothing_more_is_fenced_and_asked_nothing() {
    let mut rig = Rig::training(&[A, B]);
    rig.say(
        A,
        Report::Committed {
            decision: decision(1),
        },
    );
    for w in [A, B] {
        rig.status(w, 1, Phase::Running, state(1, 1));
    }
    rig.say(A, suspect(1, B));
    assert!(!rig.sent.iter().any(|(_, o)| matches!(o, Order::Tell { .. })));
}

/// Found by a real run that went on from another job's checkpoint: the first step was committed while the workers, one after the other,
/// still answered that they knew of nothing before it.
#[test]
fn commit_made_while_others_are_asked_is_published() {
    let mut rig = Rig::training(&[A, B, C]);
    for w in [A, B, C] {
        rig.status(w, 1, Phase::Running, state(1, 20));
    }
    let tell = |rig: &Rig| {
        rig.sent.iter().rev().find_map(|(to, order)| match order {
            Order::Tell { after } => Some((*to, after.0)),
            _ => None,
        })
    };
    for number in 0..3 {
        rig.sent.clear();
        rig.wait(50);
        let (to, after) = tell(&rig).expect("a worker is asked");
        assert_eq!(after, 0);
        if number == 2 {
            rig.say(
                A,
                Report::Committed {
                    decision: decision(21),
                },
            );
        }
        let nothing = Report::Commits {
            after: Step(after),
            decisions: vec![],
        };
        rig.say(to, nothing);
    }
    assert!(published(&rig).is_empty());
    rig.sent.clear();
    rig.status(A, 1, Phase::Running, state(1, 21));
    rig.wait(50);
    let (to, after) = tell(&rig).expect("step 21 is asked for");
    assert_eq!(after, 20, "nobody knows the steps before");
    let decisions = vec![decision(21)];
    rig.say(
        to,
        Report::Commits {
            after: Step(20),
            decisions,
        },
    );
    assert_eq!(published(&rig), [21]);
}
