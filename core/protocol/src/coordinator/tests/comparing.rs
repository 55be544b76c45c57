//! The consequences of comparing the holders' states.

use super::*;
use crate::comparison_record::Rollback;
use crate::message::Digests;

const ALL: [WorkerId; 3] = [A, B, C];

impl Rig {
    /// Sends a worker's digests of a state. The digest of the first unit is always the same; `bits` is the digest of the second one.
    fn digests(&mut self, from: WorkerId, id: StateId, saved: bool, bits: u64) {
        let units = vec![(Unit(0), 5), (Unit(1), bits)];
        self.say(from, Report::Digests(Digests { id, saved, units }));
    }

    fn differ(&self) -> Vec<(u64, Vec<WorkerId>)> {
        let found = self.events.iter().filter_map(|e| match e {
            Event::StatesDiffer { step, replaced, .. } => Some((step.0, replaced.clone())),
            _ => None,
        });
        found.collect()
    }

    /// These workers answer the fence; they hold the whole model at this state.
    fn all_answer(&mut self, workers: &[WorkerId], id: StateId) {
        for worker in workers {
            self.answer(*worker, &[(Unit(0), id), (Unit(1), id)]);
        }
    }

    fn base(&self) -> (StateId, bool) {
        match self.plan().base {
            Base::Fixed { id, checkpoint, .. } => (id, checkpoint),
            Base::AtSwitch { .. } => panic!("a planned change"),
        }
    }

    fn has_fenced(&self) -> bool {
        self.sent.iter().any(|(_, o)| matches!(o, Order::Fence { .. }))
    }

    /// Two workers that agreed on a checkpoint of step 4, and then differ at step 6.
    fn torn(compared: bool) -> Rig {
        let stored = CoordinatorConfig {
            final_checkpoint: true,
            ..config()
        };
        let mut rig = Rig::training_with(stored, &[A, B]);
        rig.wait(100);
        for worker in [A, B] {
            rig.status(worker, 1, Phase::Running, state(1, 6));
            rig.digests(worker, state(1, 4), compared, 7);
        }
        rig.complete = vec![state(1, 4), state(1, 5)];
        rig.digests(A, state(1, 6), false, 7);
        assert!(!rig.has_fenced());
        rig.digests(B, state(1, 6), false, 8);
        assert_eq!(rig.differ(), [(6, vec![])]);
        rig
    }
}

#[test]
fn agreement_of_holders_is_recorded() {
    let mut rig = Rig::training(&ALL);
    rig.wait(100);
    for (step, saved) in [(2, false), (4, true)] {
        for worker in ALL {
            rig.digests(worker, state(1, step), saved, 7);
        }
    }
    assert!(rig.differ().is_empty() && !rig.has_fenced());
    assert_eq!(rig.store.trust.compared, [state(1, 4)]);
    assert_eq!(rig.plan().generation, Generation(1));
}

/// After a recovery that begins at a checkpoint, its shards may be put again by workers whose memory has changed since.
#[test]
fn incomplete_checkpoint_is_not_rolled_back_to() {
    let at = state(1, 4);
    for (complete, compared) in [(vec![at], vec![at]), (vec![state(1, 3)], vec![])] {
        let mut rig = Rig::training(&ALL);
        rig.wait(100);
        for worker in ALL {
            rig.status(worker, 1, Phase::Running, at);
            rig.digests(worker, at, true, 7);
        }
        assert_eq!(rig.store.trust.compared, [at]);
        rig.complete = complete;
        rig.say(A, suspect(1, B));
        rig.all_answer(&ALL, at);
        assert_eq!(rig.plan().generation, Generation(2));
        assert_eq!(rig.base(), (at, false));
        assert_eq!(rig.store.trust.compared, compared);
    }
}

#[test]
fn a_comparison_that_a_recovery_finds_unwritten_counts_nothing() {
    let mut rig = Rig::training(&ALL);
    let at = state(1, 4);
    for worker in ALL {
        rig.status(worker, 1, Phase::Running, at);
        rig.digests(worker, at, true, 7);
    }
    assert!(rig.store.trust.is_empty(), "not written so soon after the start");
    rig.say(A, suspect(1, B));
    rig.all_answer(&ALL, at);
    for phase in [Phase::Ready, Phase::Running] {
        for worker in ALL {
            rig.status(worker, 2, phase, at);
        }
    }
    rig.wait(200);
    assert!(rig.store.trust.is_empty());
}

#[test]
fn minority_holder_is_released_and_not_resumed_from() {
    let mut rig = Rig::training(&ALL);
    for worker in ALL {
        rig.status(worker, 1, Phase::Running, state(1, 4));
    }
    rig.digests(C, state(1, 4), false, 9);
    rig.digests(A, state(1, 4), false, 7);
    assert!(rig.differ().is_empty(), "one holder has not said anything yet");
    rig.digests(B, state(1, 4), false, 7);
    assert_eq!(rig.differ(), [(4, vec![C])]);
    assert!(rig.has_fenced());
    let at = state(1, 4);
    rig.all_answer(&ALL, at);
    assert_eq!(rig.plan().members(), [A, B]);
    assert!(rig.plan().sources.iter().all(|s| !s.contains(&C)));
    assert_eq!(rig.base(), (at, false), "no step is lost");
    assert!(rig.store.trust.compared.is_empty() && rig.store.trust.rollbacks.is_empty());
    for phase in [Phase::Ready, Phase::Running] {
        for worker in [A, B] {
            rig.status(worker, 2, phase, at);
        }
    }
    rig.wait(200);
    assert!(rig.sent.contains(&(C, Order::Release)));
}

/// The coordinator that has made the comparison ends before its recovery has a plan.
#[test]
fn minority_holder_is_recorded_first() {
    let mut rig = Rig::training(&ALL);
    let at = state(1, 4);
    for (worker, bits) in ALL.into_iter().zip([7, 7, 9]) {
        rig.status(worker, 1, Phase::Running, at);
        rig.digests(worker, at, false, bits);
    }
    assert_eq!(rig.plan().generation, Generation(1));
    let mut rig = Rig::with(config(), rig.store);
    for worker in ALL {
        rig.join(worker);
    }
    rig.wait(20);
    rig.all_answer(&ALL, at);
    assert_eq!(rig.plan().generation, Generation(2));
    assert_eq!(rig.plan().members(), [A, B]);
    assert!(rig.plan().sources.iter().all(|s| !s.contains(&C)));
    // A worker with the same name is left out as well.
    let again = WorkerId(4);
    rig.join_as(again, "w3");
    rig.wait(500);
    assert_eq!(rig.store.next, None);
}

/// New processes replace those that end.
#[test]
fn minority_holder_ends_even_if_too_few_remain() {
    let three = CoordinatorConfig {
        min_workers: 3,
        ..config()
    };
    let mut rig = Rig::training_with(three, &ALL);
    for (worker, bits) in ALL.into_iter().zip([7, 7, 9]) {
        rig.digests(worker, state(1, 4), false, bits);
    }
    rig.all_answer(&[A, B], state(1, 4));
    assert!(!rig.sent.contains(&(C, Order::Release)), "it may still run");
    rig.all_answer(&[C], state(1, 4));
    assert!(rig.sent.contains(&(C, Order::Release)));
    assert_eq!(rig.plan().generation, Generation(1));
    let again = WorkerId(4);
    rig.join(again);
    rig.answer(again, &[]);
    assert_eq!(rig.plan().members(), [A, B, again]);
}

/// The process of the odd holder has ended, and another one joins from the same machine.
#[test]
fn machine_of_a_minority_holder_is_left_out_for_a_while() {
    let mut rig = Rig::training(&ALL);
    for (worker, bits) in ALL.into_iter().zip([7, 7, 9]) {
        rig.status(worker, 1, Phase::Running, state(1, 40));
        rig.digests(worker, state(1, 4), false, bits);
    }
    rig.put(CoordinatorInput::StreamDown { from: C });
    let again = WorkerId(4);
    rig.join_as(again, "w3");
    rig.all_answer(&[A, B], state(1, 4));
    rig.answer(again, &[]);
    rig.wait(60);
    assert_eq!(rig.plan().members(), [A, B]);
}

#[test]
fn run_rolls_back_to_a_compared_checkpoint_without_majority() {
    let mut rig = Rig::torn(true);
    rig.all_answer(&[A, B], state(1, 6));
    assert_eq!(rig.base(), (state(1, 4), true));
    assert_eq!(rig.plan().members(), [A, B]);
    let (to, generation) = (state(1, 4), Generation(2));
    assert_eq!(rig.store.trust.rollbacks, [Rollback { to, generation }]);
    let resumed = |e: &Event| matches!(e, Event::Resumed { base, restored: true, .. } if *base == to);
    assert!(rig.events.iter().any(resumed));
}

#[test]
fn without_a_compared_checkpoint_the_run_goes_back_to_the_seed() {
    let mut rig = Rig::torn(false);
    rig.all_answer(&[A, B], state(1, 6));
    assert_eq!(rig.base(), (StateId::INITIAL, true));
    // No step was committed since, so the recovery begins there again.
    rig.put(CoordinatorInput::StreamDown { from: B });
    rig.say(A, suspect(2, B));
    rig.all_answer(&[A], state(1, 6));
    rig.wait(1_000);
    assert_eq!(
        (rig.plan().generation, rig.base()),
        (Generation(3), (StateId::INITIAL, true))
    );
    assert_eq!(rig.finished, None);
}

/// The plan of the rollback does not start. The holders of wrong bits still have them, and the newer checkpoint is complete.
#[test]
fn rolled_back_state_is_never_resumed_from() {
    let mut rig = Rig::torn(true);
    rig.all_answer(&[A, B], state(1, 6));
    let store = rig.store.clone();
    rig.put(CoordinatorInput::StreamDown { from: B });
    rig.say(A, suspect(2, B));
    rig.all_answer(&[A], state(1, 6));
    rig.wait(1_000);
    assert_eq!(
        (rig.plan().generation, rig.base()),
        (Generation(3), (state(1, 4), true))
    );

    let mut next = Rig::with(config(), store);
    next.complete = vec![state(1, 4), state(1, 5)];
    next.wait(2_000);
    next.join(A);
    next.all_answer(&[A], state(1, 6));
    next.wait(2_000);
    assert_eq!(
        (next.plan().generation, next.base()),
        (Generation(3), (state(1, 4), true))
    );
}

#[test]
fn a_rollback_waits_for_what_the_store_says_now() {
    let stored = CoordinatorConfig {
        final_checkpoint: true,
        ..config()
    };
    let mut rig = Rig::training_with(stored, &[A, B]);
    rig.listing = Answer::FromMemory;
    for (worker, bits) in [(A, 7), (B, 8)] {
        rig.digests(worker, state(1, 6), false, bits);
    }
    rig.all_answer(&[A, B], state(1, 6));
    rig.wait_with(A, 5_000);
    assert_eq!(rig.plan().generation, Generation(1));
    rig.listing = Answer::Now;
    rig.join(B);
    rig.wait(500);
    rig.all_answer(&[A, B], state(1, 6));
    rig.wait(500);
    assert_eq!(rig.base(), (StateId::INITIAL, true));
}

#[test]
fn digests_of_other_plans_and_old_states_are_ignored() {
    let mut rig = Rig::training(&[A, B]);
    rig.join(C);
    for (worker, id, bits) in [
        (A, state(7, 2), 7), // no plan led to this state
        (B, state(7, 2), 8),
        (A, state(1, 4), 7),
        (C, state(1, 4), 8), // it is no member
        (B, state(1, 4), 7),
        (A, state(1, 2), 7), // older than a state that was compared
        (B, state(1, 2), 8),
        (A, state(1, 6), 7), // B's report is lost
        (A, state(1, 8), 7),
        (A, state(1, 9), 7),
        (A, state(1, 10), 7),
        (A, state(1, 11), 7),
        (B, state(1, 6), 8),
    ] {
        rig.digests(worker, id, false, bits);
    }
    assert!(rig.differ().is_empty() && !rig.has_fenced());
    assert!(rig.machine.tables().comparisons <= 4);
}
