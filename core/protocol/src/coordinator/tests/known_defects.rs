//! What the coordinator should do and does not do yet. Each is a schedule that a review found.

use super::*;
use crate::known_defect;

const C: WorkerId = WorkerId(3);

/// Both units are at the state everywhere.
fn all_at(id: StateId) -> [(Unit, StateId); 2] {
    [(Unit(0), id), (Unit(1), id)]
}

fn is_fence(order: &Order) -> bool {
    matches!(order, Order::Fence { .. })
}

#[test]
fn a_worker_that_is_left_in_an_older_generation_is_told_to_stop() {
    let mut rig = Rig::training(&[A, B, C]);
    let here = state(1, 4);
    for w in [A, B, C] {
        rig.status(w, 1, Phase::Running, here);
    }
    // C is cut off: its fence is lost with its stream.
    rig.put(CoordinatorInput::StreamDown { from: C });
    rig.say(A, suspect(1, C));
    for w in [A, B] {
        rig.answer(w, &all_at(here));
    }
    assert_eq!(rig.plan().members(), [A, B]);
    for phase in [Phase::Ready, Phase::Running] {
        for w in [A, B] {
            rig.status(w, 2, phase, here);
        }
    }
    rig.wait(200);
    rig.sent.clear();
    rig.join(C);
    rig.status(C, 1, Phase::Running, here);
    rig.wait(300);
    let stopped = rig.sent.iter().any(|(to, order)| *to == C && is_fence(order));
    known_defect(stopped);
}

#[test]
fn a_pending_change_does_not_end_a_run_that_has_committed_nothing() {
    let mut rig = Rig::training(&[A, B]);
    rig.wait(100);
    rig.join(C);
    rig.wait(20);
    assert!(rig.store.next.is_some());
    rig.say(A, suspect(1, B));
    rig.put(CoordinatorInput::ProcessEnded { worker: B });
    rig.answer(A, &[(Unit(0), StateId::INITIAL)]);
    rig.answer(C, &[]);
    rig.wait(400);
    known_defect(rig.finished.is_none());
}

#[test]
fn a_run_is_not_given_up_before_the_time_that_a_restore_waits() {
    let timing = Timing {
        gather: Duration::from_millis(10),
        ..Timing::default()
    };
    let config = CoordinatorConfig { timing, ..config() };
    let mut rig = Rig::training_with(config, &[A, B]);
    for w in [A, B] {
        rig.status(w, 1, Phase::Running, state(1, 4));
    }
    rig.wait(100);
    let start = rig.now;
    rig.put(CoordinatorInput::StreamDown { from: B });
    let mut fenced = false;
    while rig.finished.is_none() && rig.now.since(start) < timing.restore {
        rig.wait(100);
        if fenced {
            rig.answer(A, &[(Unit(1), state(1, 4))]);
        } else {
            rig.status(A, 1, Phase::Running, state(1, 4));
        }
        fenced = rig.sent.iter().any(|(_, order)| is_fence(order));
    }
    assert!(fenced);
    known_defect(rig.finished.is_none());
}

#[test]
fn writes_that_fail_do_not_make_the_deadline_longer() {
    let deadline = |failures: usize| {
        let mut rig = Rig::training(&[A, B]);
        rig.say(A, suspect(1, B));
        let answer = |rig: &mut Rig| {
            for w in [A, B] {
                rig.answer(w, &all_at(state(1, 4)));
            }
            rig.wait(200);
        };
        rig.manual = true;
        for _ in 0..failures {
            answer(&mut rig);
            let record = rig.written.clone().unwrap();
            rig.put(CoordinatorInput::Written { ok: false, record });
        }
        rig.manual = false;
        answer(&mut rig);
        assert!(rig.plan().generation > Generation(1));
        rig.plan().deadline_ns
    };
    known_defect(deadline(5) == deadline(0));
}

#[test]
fn deaths_while_loading_do_not_make_the_deadline_longer() {
    let ids: Vec<WorkerId> = (1..=7).map(WorkerId).collect();
    let mut rig = Rig::training(&ids);
    let here = state(1, 4);
    for w in &ids {
        rig.status(*w, 1, Phase::Running, here);
    }
    let mut deadlines = Vec::new();
    for (dead, left) in (1..).zip(&ids[..6]).map(|(k, dead)| (*dead, &ids[k..])) {
        rig.say(left[0], suspect(rig.store.highest.0, dead));
        rig.put(CoordinatorInput::ProcessEnded { worker: dead });
        for w in left {
            rig.answer(*w, &all_at(here));
        }
        rig.wait(20);
        deadlines.push(rig.plan().deadline_ns);
    }
    assert_eq!(rig.plan().members(), ids[6..]);
    known_defect(deadlines.first() == deadlines.last());
}

#[test]
fn workers_that_have_ended_are_forgotten_some_day() {
    let mut rig = Rig::training(&[A, B]);
    for worker in (1_000..3_000).map(WorkerId) {
        rig.join(worker);
        rig.put(CoordinatorInput::ProcessEnded { worker });
    }
    known_defect(rig.machine.snapshot().workers.len() < 1_500);
}

#[test]
fn the_greatest_numbers_that_a_worker_or_a_store_can_show_do_no_harm() {
    let ran = std::panic::catch_unwind(|| {
        let mut rig = Rig::training(&[A, B]);
        rig.say(A, suspect(1, B));
        rig.say(
            A,
            Report::Inventory(Inventory {
                upto: Generation(1),
                units: [(Unit(0), state(1, 4))].into(),
                prepared: BTreeMap::new(),
                ran: Some(Ran {
                    generation: Generation(1),
                    step: Step(u64::MAX),
                    norm_put_in: true,
                }),
                decision: None,
            }),
        );
        rig.wait(400);
    });
    known_defect(ran.is_ok());
    let stored = std::panic::catch_unwind(|| {
        let mut rig = Rig::training(&[A, B]);
        rig.complete = vec![state(u64::MAX, 3)];
        rig.say(A, suspect(1, B));
        rig.put(CoordinatorInput::StreamDown { from: B });
        rig.answer(A, &all_at(state(1, 4)));
        rig.wait(1_000);
    });
    known_defect(stored.is_ok());
}

#[test]
fn a_suspicion_that_comes_while_a_new_coordinator_settles_is_not_lost() {
    let store = Rig::training(&[A, B]).store;
    let mut rig = Rig::with(config(), store);
    let running = |rig: &mut Rig, w| rig.status(w, 1, Phase::Running, state(1, 4));
    rig.join(A);
    running(&mut rig, A);
    rig.say(A, suspect(1, B));
    rig.join(B);
    running(&mut rig, B);
    for _ in 0..30 {
        for w in [A, B] {
            running(&mut rig, w);
        }
        rig.wait(10);
    }
    known_defect(rig.sent.iter().any(|(_, order)| is_fence(order)));
}

#[test]
fn a_step_that_a_silent_worker_may_have_committed_is_waited_for() {
    let mut rig = Rig::training(&[A, B]);
    let here = state(1, 4);
    rig.complete = vec![here];
    for w in [A, B] {
        rig.status(w, 1, Phase::Running, here);
    }
    rig.say(A, suspect(1, B));
    rig.put(CoordinatorInput::StreamDown { from: B });
    let start = rig.now;
    let step = Step(4);
    let run_gen = Generation(1);
    let prepared = Prepared {
        run_gen,
        step,
        norm: norm(1.0),
    };
    // A has put in its norm, so B may have committed step 5.
    rig.say(
        A,
        Report::Inventory(Inventory {
            upto: Generation(1),
            units: [(Unit(0), here)].into(),
            prepared: [(Unit(0), prepared)].into(),
            ran: Some(Ran {
                generation: run_gen,
                step,
                norm_put_in: true,
            }),
            decision: None,
        }),
    );
    while rig.store.highest == Generation(1) && rig.now.since(start) < Duration::from_secs(5) {
        rig.wait(10);
    }
    assert!(rig.store.highest > Generation(1));
    known_defect(rig.now.since(start) >= Timing::model().restore);
}
