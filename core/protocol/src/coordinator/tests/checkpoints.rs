//! Which checkpoints are ordered, and until when the order is repeated.

use super::*;
use crate::comparison_record::Rollback;

impl Rig {
    /// The store answers a request for its checkpoints.
    pub(super) fn list(&mut self) {
        if self.listing != Answer::Never {
            self.put(CoordinatorInput::Checkpoints(Listing {
                damaged: self.damaged.clone(),
                fresh: self.listing == Answer::Now,
                ..Listing::fresh(self.complete.clone())
            }));
        }
    }
}

/// For each worker, the steps after which a checkpoint was ordered.
fn saves(rig: &mut Rig) -> BTreeSet<(WorkerId, u64)> {
    let sent = std::mem::take(&mut rig.sent);
    let saves = sent.into_iter().filter_map(|(to, order)| match order {
        Order::Save { after } => Some((to, after.0)),
        _ => None,
    });
    saves.collect()
}

#[test]
fn wanted_checkpoint_is_ordered_until_a_newer_one_exists() {
    let stored = CoordinatorConfig {
        final_checkpoint: true,
        ..config()
    };
    let mut rig = Rig::training_with(stored, &[A, B]);
    rig.status(A, 1, Phase::Running, state(1, 3));
    rig.status(B, 1, Phase::Running, state(1, 4));
    rig.wait(100);
    assert!(saves(&mut rig).is_empty());
    assert!(!rig.machine.wants_checkpoint());
    rig.put(CoordinatorInput::Save);
    rig.wait(100);
    assert_eq!(saves(&mut rig), [(A, 4), (B, 4)].into());
    assert!(rig.machine.wants_checkpoint());
    // An older checkpoint does not fulfil the order, and later steps do not change the step that was ordered.
    rig.complete = vec![state(1, 4)];
    rig.status(A, 1, Phase::Running, state(1, 5));
    rig.status(B, 1, Phase::Running, state(1, 5));
    rig.wait(200);
    assert_eq!(saves(&mut rig), [(A, 4), (B, 4)].into());
    rig.complete = vec![state(1, 5)];
    rig.wait(200);
    saves(&mut rig);
    rig.wait(200);
    assert!(saves(&mut rig).is_empty());
    assert!(!rig.machine.wants_checkpoint(), "it is there");
    // A notice also causes a checkpoint.
    let status = Status {
        generation: Generation(1),
        phase: Phase::Running,
        at: state(1, 6),
        draining: true,
        ..idle()
    };
    rig.say(B, Report::Status(status));
    rig.wait(50);
    assert_eq!(saves(&mut rig), [(A, 6), (B, 6)].into());
}

#[test]
fn wanted_checkpoint_has_all_commits_that_are_known() {
    let stored = CoordinatorConfig {
        final_checkpoint: true,
        ..config()
    };
    let mut rig = Rig::training_with(stored, &[A, B]);
    let mut at = StateId::INITIAL;
    for _ in 0..5 {
        let decision = Decision::conclude(at, Generation(1), &[norm(1.0), norm(1.0)], None);
        rig.say(A, Report::Committed { decision });
        at = decision.id;
    }
    // The workers' statuses are those of the first step. A checkpoint of the third step is on its way.
    rig.put(CoordinatorInput::Save);
    rig.wait(100);
    assert_eq!(saves(&mut rig), [(A, 5), (B, 5)].into());
    rig.complete = vec![state(1, 3)];
    rig.wait(200);
    assert!(rig.machine.wants_checkpoint(), "two steps are missing");
}

/// Found by a replay that counts checkpoints: after each step one was made, until the steps that had been given up were reached again.
#[test]
fn checkpoint_is_not_put_off_by_steps_that_were_given_up() {
    let stored = CoordinatorConfig {
        final_checkpoint: true,
        ..config()
    };
    let mut rig = Rig::training_with(stored, &[A, B, C]);
    for worker in [A, B, C] {
        rig.status(worker, 1, Phase::Running, state(1, 7));
    }
    // The holder of unit 1 is lost, and the run goes back to the third step.
    rig.complete = vec![state(1, 3)];
    rig.say(A, suspect(1, C));
    rig.put(CoordinatorInput::ProcessEnded { worker: C });
    rig.put(CoordinatorInput::StreamDown { from: C });
    for worker in [A, B] {
        rig.answer(worker, &[(Unit(0), state(1, 7))]);
    }
    rig.wait(200);
    let plan = rig.plan().clone();
    assert!(
        matches!(plan.base, Base::Fixed { id, checkpoint: true, .. } if id == state(1, 3)),
        "{plan:?}"
    );
    rig.put(CoordinatorInput::Save);
    let generation = plan.generation.0;
    for worker in [A, B] {
        rig.status(worker, generation, Phase::Ready, state(1, 7));
    }
    rig.wait(100);
    assert_eq!(saves(&mut rig), [(A, 3), (B, 3)].into());
}

#[test]
fn timed_checkpoint_is_ordered_when_the_newest_is_too_old() {
    let every = CoordinatorConfig {
        save_every: Some(Duration::from_secs(1)),
        ..config()
    };
    let mut rig = Rig::training_with(every.clone(), &[A]);
    rig.wait(1_500);
    rig.put(CoordinatorInput::Save);
    assert!(saves(&mut rig).is_empty(), "there is no store");
    let stored = CoordinatorConfig {
        final_checkpoint: true,
        ..every
    };
    let mut rig = Rig::training_with(stored, &[A]);
    for (step, ordered) in [(1, false), (2, false), (3, true)] {
        rig.status(A, 1, Phase::Running, state(1, step));
        rig.wait(400);
        assert_eq!(!saves(&mut rig).is_empty(), ordered, "{step}");
    }
    // A new checkpoint resets the timer.
    rig.complete = vec![state(1, 4)];
    rig.wait(200);
    saves(&mut rig);
    for (step, ordered) in [(4, false), (5, false), (6, true)] {
        rig.status(A, 1, Phase::Running, state(1, step));
        rig.wait(400);
        assert_eq!(!saves(&mut rig).is_empty(), ordered, "{step}");
    }
}

#[test]
fn timed_checkpoint_does_not_replace_one_on_its_way() {
    let config = CoordinatorConfig {
        save_every: Some(Duration::from_secs(1)),
        final_checkpoint: true,
        ..config()
    };
    let mut rig = Rig::training_with(config, &[A]);
    rig.status(A, 1, Phase::Running, state(1, 1));
    rig.put(CoordinatorInput::Save);
    for step in 2..9 {
        rig.wait(400);
        assert_eq!(saves(&mut rig), [(A, 1)].into(), "at step {step}");
        rig.status(A, 1, Phase::Running, state(1, step));
    }
}

/// B has notice and leaves after 20 s, and there is no plan without it. A step takes 500 ms, and its checkpoint is complete this long after
/// it. Returns the step after which each checkpoint is ordered, with the time from the order until the member's end, and that end.
fn ordered_before_an_end(rig: &mut Rig, saved_after: Duration) -> (Vec<(u64, Duration)>, Time) {
    rig.train_both(Duration::from_secs(3));
    let end = rig.now.after(Duration::from_secs(20));
    rig.put(CoordinatorInput::Notice {
        worker: B,
        leaves_in: Some(end.since(rig.now)),
    });
    let mut ordered: Vec<(u64, Duration)> = vec![];
    let mut reported = 0;
    while rig.now < end {
        let complete = rig.now.since(Time(0)).saturating_sub(saved_after).as_millis() / 500;
        rig.complete = vec![state(1, u64::try_from(complete).unwrap())];
        rig.train_both(Duration::from_millis(100));
        while reported < rig.now.0 / 500_000_000 {
            reported += 1;
            let decision = unreported_commits::decision(reported);
            rig.say(A, Report::Committed { decision });
        }
        for (_, after) in saves(rig) {
            if ordered.iter().all(|(known, _)| *known != after) {
                ordered.push((after, end.since(rig.now)));
            }
        }
    }
    (ordered, end)
}

/// A run of two workers that has a store and needs both.
fn of_two_with_a_store() -> Rig {
    let mut config = CoordinatorConfig {
        final_checkpoint: true,
        min_workers: 2,
        last_step: Step(1_000),
        ..config()
    };
    config.timing.following = Duration::from_secs(60);
    Rig::training_with(config, &[A, B])
}

/// A long step delays the commit, and is no cost of the checkpoint.
#[test]
fn checkpoint_takes_the_time_from_its_commit() {
    let mut rig = of_two_with_a_store();
    let ends = |rig: &mut Rig, step| {
        for worker in [A, B] {
            rig.status(worker, 1, Phase::Running, state(1, step));
        }
    };
    ends(&mut rig, 1);
    rig.put(CoordinatorInput::Save);
    for _ in 0..10 {
        rig.wait(100);
        ends(&mut rig, 1);
    }
    ends(&mut rig, 2);
    rig.complete = vec![state(1, 2)];
    rig.wait(200);
    let took = rig.machine.shared.checkpoints.took().expect("it is there");
    assert!(took <= Duration::from_millis(200), "{took:?}");
}

#[test]
fn last_checkpoint_before_a_known_end_is_as_late_as_possible() {
    let mut rig = of_two_with_a_store();
    let (ordered, _) = ordered_before_an_end(&mut rig, Duration::from_secs(2));
    let [(_, first), (_, last)] = ordered[..] else {
        panic!("two: {ordered:?}");
    };
    assert!(first > Duration::from_secs(19), "with the notice: {first:?}");
    let taken = Duration::from_millis(2_500);
    assert!(last > taken && last < taken * 2, "{last:?}");
}

#[test]
fn checkpoints_are_repeated_until_a_known_end() {
    let mut rig = of_two_with_a_store();
    let took = Duration::from_millis(200);
    let (ordered, end) = ordered_before_an_end(&mut rig, took);
    let [(_, first), (_, early), ref repeated @ ..] = ordered[..] else {
        panic!("at least two: {ordered:?}");
    };
    assert!(first > Duration::from_secs(19), "with the notice: {first:?}");
    assert!(early < Duration::from_secs(2), "{early:?}");
    let (after, _) = *repeated.last().expect("a later one");
    let committed = Time((after + 1) * 500_000_000);
    assert!(committed.after(took) < end, "it is complete in time: {ordered:?}");
    let next = committed.after(Duration::from_millis(500));
    assert!(next.after(took) > end, "none later would be: {ordered:?}");
    let extra = rig.machine.extra_checkpoints();
    assert!(
        !extra.is_empty() && extra.iter().all(|id| id.step.0 > ordered[1].0 + 1),
        "{extra:?}"
    );
}

/// Both members give notice and do not say when they end.
#[test]
fn checkpoints_are_repeated_for_a_while_before_an_unknown_end() {
    let mut rig = of_two_with_a_store();
    rig.machine.shared.planner = Box::new(data_errors::TwoWorkerPlanner);
    rig.train_both(Duration::from_secs(3));
    let since = rig.now;
    let mut ordered: BTreeMap<u64, Duration> = BTreeMap::new();
    while rig.now.since(since) < Duration::from_secs(40) {
        // The checkpoint of a step is complete 600 ms after it.
        rig.complete = vec![state(1, (rig.now.0 - 600_000_000) / 500_000_000)];
        rig.wait(100);
        for worker in [A, B] {
            let status = Status {
                generation: Generation(1),
                phase: Phase::Running,
                at: state(1, rig.now.0 / 500_000_000),
                draining: true,
                based: true,
                connected: true,
                ..idle()
            };
            rig.say(worker, Report::Status(status));
        }
        for (_, after) in saves(&mut rig) {
            ordered.entry(after).or_insert(rig.now.since(since));
        }
    }
    let last = ordered.values().max().copied().unwrap_or_default();
    assert!(
        last > Duration::from_secs(23) && last < Duration::from_secs(26),
        "{ordered:?}"
    );
    // A step and its checkpoint take a second and the time until the store is listed.
    assert!(ordered.len() >= 12, "{ordered:?}");
}

fn at_a_damaged_end() -> Rig {
    at_a_damaged_end_of(true, state(1, 10))
}

/// All workers train until the last step. The store lists a damaged checkpoint, in a fresh listing or an earlier one.
fn at_a_damaged_end_of(fresh: bool, damaged: StateId) -> Rig {
    let stored = CoordinatorConfig {
        final_checkpoint: true,
        ..config()
    };
    let mut rig = Rig::training_with(stored, &[A, B]);
    rig.damaged = vec![damaged];
    if !fresh {
        rig.listing = Answer::FromMemory;
    }
    for worker in [A, B] {
        rig.status(worker, 1, Phase::Running, state(1, 10));
    }
    rig
}

/// All workers answer the fence of the generation with the last state, and then run in the next generation.
fn again(rig: &mut Rig, generation: u64) {
    let last = state(1, 10);
    rig.wait(200);
    for worker in [A, B] {
        rig.answer(worker, &[(Unit(0), last), (Unit(1), last)]);
    }
    rig.wait(200);
    for phase in [Phase::Ready, Phase::Running] {
        for worker in [A, B] {
            rig.status(worker, generation + 1, phase, last);
        }
    }
}

fn told_damaged(rig: &Rig) -> Vec<bool> {
    let told = rig.events.iter().filter_map(|e| match e {
        Event::FinalCheckpointDamaged { again, .. } => Some(*again),
        _ => None,
    });
    told.collect()
}

#[test]
fn damaged_final_checkpoint_is_deleted_and_saved_again() {
    let mut rig = at_a_damaged_end();
    again(&mut rig, 1);
    let last = state(1, 10);
    assert_eq!(
        (&rig.discarded[..], &told_damaged(&rig)[..]),
        (&[last][..], &[true][..])
    );
    // It is deleted before the plan is written by which it is put again; otherwise workers would find the damaged one.
    let plan = rig.plan();
    assert_eq!(plan.generation, Generation(2));
    let base = Base::Fixed {
        id: last,
        decision: None,
        checkpoint: false,
    };
    assert_eq!(plan.base, base);
    rig.wait(500);
    assert_eq!(rig.plan().generation, Generation(2), "the new copy is waited for");
    rig.complete = vec![last];
    rig.wait(500);
    assert!(rig.store.done && rig.finished != Some(Outcome::Stopped));
}

#[test]
fn run_ends_if_each_final_checkpoint_is_damaged() {
    let mut rig = at_a_damaged_end();
    let last = state(1, 10);
    for generation in 1..=4 {
        assert_eq!(rig.finished, None);
        again(&mut rig, generation);
        rig.damaged = vec![last];
        rig.wait(200);
    }
    let units = vec![Unit(0), Unit(1)];
    assert_eq!(rig.finished, Some(Outcome::StateLost { units }));
    assert_eq!(told_damaged(&rig), [true, true, true, false]);
    assert_eq!(rig.discarded.len(), 3);
    assert!(!rig.store.done, "the next run begins at an earlier checkpoint");
}

#[test]
fn count_of_final_saves_survives_the_coordinator() {
    let mut rig = at_a_damaged_end();
    let last = state(1, 10);
    for generation in 1..=3 {
        again(&mut rig, generation);
        assert_eq!(told_damaged(&rig), [true], "plan {generation}");
        assert_eq!(u64::from(rig.store.puts_anew), generation);
        // Another coordinator takes over, and finds that the new copy is damaged.
        let stored = CoordinatorConfig {
            final_checkpoint: true,
            ..config()
        };
        let (now, record) = (rig.now, rig.store.clone());
        rig = Rig::with(stored, record);
        (rig.now, rig.damaged) = (now, vec![last]);
        for worker in [A, B] {
            rig.join(worker);
            rig.status(worker, generation + 1, Phase::Running, last);
        }
        rig.wait(300);
        assert_eq!(rig.finished, None);
    }
    again(&mut rig, 4);
    let units = vec![Unit(0), Unit(1)];
    assert_eq!(rig.finished, Some(Outcome::StateLost { units }));
    assert_eq!(told_damaged(&rig), [false]);
}

#[test]
fn old_listing_or_other_history_deletes_no_checkpoint() {
    for (fresh, damaged) in [(false, state(1, 10)), (true, state(9, 10))] {
        let mut rig = at_a_damaged_end_of(fresh, damaged);
        rig.wait(500);
        assert!(rig.discarded.is_empty());
        assert_eq!(rig.plan().generation, Generation(1));
        assert!(!rig.sent.iter().any(|(_, o)| matches!(o, Order::Fence { .. })));
        rig.complete = vec![state(1, 10)];
        rig.listing = Answer::Now;
        rig.wait(500);
        assert!(rig.store.done);
    }
}

#[test]
fn given_up_final_checkpoint_is_not_said_to_be_damaged() {
    let stored = CoordinatorConfig {
        final_checkpoint: true,
        ..config()
    };
    let trained = Rig::training_with(stored.clone(), &[A, B]).store;
    let rollback = Rollback {
        to: StateId::INITIAL,
        generation: Generation(2),
    };
    for (rollbacks, told) in [(vec![], vec![true]), (vec![rollback], vec![])] {
        let mut record = trained.clone();
        record.trust.rollbacks = rollbacks;
        let mut rig = Rig::with(stored.clone(), record);
        // The mark is the same.
        rig.damaged = vec![state(1, 10)];
        rig.list();
        assert_eq!(told_damaged(&rig), told);
    }
}
