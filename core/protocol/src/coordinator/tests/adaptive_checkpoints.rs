//! Checkpoints that are ordered only because workers are lost often.

use super::*;

fn with_store(adaptive: bool) -> CoordinatorConfig {
    CoordinatorConfig {
        final_checkpoint: true,
        save_every_steps: Some(1_000),
        adaptive_checkpoints: adaptive,
        last_step: Step(100_000),
        ..config()
    }
}

impl Rig {
    /// The worker is gone. The others have this state, and train under the next plan.
    fn lose(&mut self, lost: WorkerId, others: &[WorkerId], at: StateId) {
        let generation = self.plan().generation.0;
        self.say(others[0], suspect(generation, lost));
        self.put(CoordinatorInput::StreamDown { from: lost });
        for worker in others {
            self.answer(*worker, &[(Unit(0), at), (Unit(1), at)]);
        }
        self.wait(200);
        assert_eq!(self.plan().members(), others);
        for phase in [Phase::Ready, Phase::Running] {
            for worker in others {
                self.status(*worker, self.plan().generation.0, phase, at);
            }
        }
    }

    /// The step after which a checkpoint is ordered now, if one is.
    fn ordered(&mut self) -> Option<u64> {
        let sent = std::mem::take(&mut self.sent);
        sent.into_iter().rev().find_map(|(_, order)| match order {
            Order::Save { after } => Some(after.0),
            _ => None,
        })
    }

    /// Trains alone, a step in each 100 ms, until a checkpoint is ordered. The time that this takes, and the step after which it is ordered.
    fn until_ordered(&mut self, worker: WorkerId, step: &mut u64, most: Duration) -> Option<(Duration, u64)> {
        let since = self.now;
        while self.now.since(since) < most {
            self.wait(100);
            *step += 1;
            let at = state(self.plan().generation.0, *step);
            self.status(worker, self.plan().generation.0, Phase::Running, at);
            if let Some(after) = self.ordered() {
                return Some((self.now.since(since), after));
            }
        }
        None
    }

    fn intervals(&self) -> Vec<Option<f64>> {
        let reported = self.events.iter().filter_map(|e| match e {
            Event::CheckpointInterval { seconds } => Some(*seconds),
            _ => None,
        });
        reported.collect()
    }
}

/// A alone holds everything, after two losses.
fn alone(adaptive: bool) -> Rig {
    let mut rig = Rig::training_with(with_store(adaptive), &[A, B, C]);
    rig.lose(C, &[A, B], state(1, 3));
    rig.wait(500);
    assert_eq!(rig.ordered(), None, "two workers hold each unit");
    rig.lose(B, &[A], state(1, 4));
    rig
}

/// The same, after the first of the added checkpoints, which shows what one takes.
fn with_a_first_one() -> Rig {
    let mut rig = alone(true);
    let mut step = 4;
    rig.until_ordered(A, &mut step, Duration::from_secs(60))
        .expect("a first one");
    rig.wait(100);
    rig.complete.push(state(rig.plan().generation.0, step + 1));
    rig.wait(200);
    rig.sent.clear();
    rig
}

#[test]
fn losses_of_state_make_checkpoints_more_frequent() {
    let mut rig = alone(true);
    let (mut step, long) = (4, Duration::from_secs(60));
    let (waited, after) = rig
        .until_ordered(A, &mut step, long)
        .expect("a first one, to learn what it takes");
    assert!(waited <= Duration::from_millis(200), "{waited:?}");
    // It is complete 100 ms after the order or a little later. Half an hour has passed as far as is assumed, with two losses.
    for _ in 0..5 {
        rig.wait(100);
        let complete = state(rig.plan().generation.0, after.max(step) + 1);
        rig.complete.push(complete);
        rig.wait(100);
        rig.sent.clear();
        rig.wait(100);
        assert_eq!(rig.ordered(), None);
        assert!(!rig.machine.wants_checkpoint());
        assert!(rig.machine.extra_checkpoints().contains(&complete));
        step = complete.step.0;
        let (waited, _) = rig
            .until_ordered(A, &mut step, long)
            .expect("the losses repay it");
        let about = |seconds: f64| waited.as_secs_f64() > seconds && waited.as_secs_f64() < 2.5 * seconds;
        assert!(about(3.0), "{waited:?}");
    }
    let reported = rig.intervals();
    assert!(matches!(reported[..], [Some(_), ..]), "{reported:?}");
}

#[test]
fn no_loss_or_no_wish_leaves_the_interval_of_the_job() {
    let mut rig = alone(false);
    assert_eq!(rig.until_ordered(A, &mut 4, Duration::from_secs(60)), None);
    assert_eq!(rig.intervals(), []);
    let mut rig = Rig::training_with(with_store(true), &[A]);
    assert_eq!(
        rig.until_ordered(A, &mut 0, Duration::from_secs(60)),
        None,
        "nothing was lost"
    );
}

#[test]
fn checkpoint_in_place_of_a_regular_one_is_none_too_many() {
    let mut rig = alone(true);
    let generation = rig.plan().generation.0;
    rig.complete = vec![state(1, 2)];
    rig.list();
    for (complete, is_extra) in [
        (400, true),
        (800, true),
        (1_100, false),
        (1_500, true),
        (2_000, false),
        (2_990, true),
    ] {
        let mut step = complete - 100;
        rig.until_ordered(A, &mut step, Duration::from_secs(9))
            .expect("the losses repay it");
        let made = state(generation, complete);
        rig.complete.push(made);
        rig.wait(200);
        rig.sent.clear();
        assert_eq!(
            rig.machine.extra_checkpoints().contains(&made),
            is_extra,
            "step {complete}: one in 1,000 steps is regular"
        );
    }
    // What is deleted is forgotten.
    rig.complete = vec![state(generation, 4_000)];
    rig.list();
    assert_eq!(rig.machine.extra_checkpoints(), []);
}

#[test]
fn more_holders_end_the_more_frequent_checkpoints() {
    let mut rig = with_a_first_one();
    let shared = &mut rig.machine.shared;
    assert!(shared.adaptive_interval(rig.now).is_some());
    let (mut effects, now) = (Vec::new(), rig.now);
    let before = Rig::training(&[A, B]).plan();
    shared.weigh_losses(&before);
    assert_eq!(shared.adaptive_interval(now), None);
    let mut turn = Turn {
        now,
        scope: Scope::Everyone,
        effects: &mut effects,
    };
    shared.report_interval(None, &mut turn);
    shared.report_interval(None, &mut turn);
    let told = CoordinatorEffect::Event(Event::CheckpointInterval { seconds: None });
    assert_eq!(effects, [told]);
}

#[test]
fn job_that_saves_more_often_itself_needs_no_more() {
    let mut rig = with_a_first_one();
    for (regular, is_adaptive) in [(60, true), (1, false)] {
        rig.machine.shared.config.save_every = Some(Duration::from_secs(regular));
        let interval = rig.machine.shared.adaptive_interval(rig.now);
        assert_eq!(interval.is_some(), is_adaptive, "{regular} s: {interval:?}");
    }
}

#[test]
fn intervals_near_the_jobs_own_are_not_reported_in_turns() {
    let mut rig = with_a_first_one();
    let now = rig.now;
    let shared = &mut rig.machine.shared;
    let interval = shared.adaptive_interval(now).expect("the losses repay one");
    shared.config.save_every = Some(interval + interval / 4);
    let mut effects = Vec::new();
    let mut turn = Turn {
        now,
        scope: Scope::Everyone,
        effects: &mut effects,
    };
    let short = Some(interval / 4);
    for interval in [None, Some(interval), None, short, None, Some(interval)] {
        shared.report_interval(interval, &mut turn);
    }
    let told = [short, None].map(|interval| {
        CoordinatorEffect::Event(Event::CheckpointInterval {
            seconds: interval.map(|time| time.as_secs_f64()),
        })
    });
    assert_eq!(effects, told);
}

#[test]
fn spare_copies_are_weighed_against_more_frequent_checkpoints() {
    let redo_ms = |adaptive| {
        let mut rig = alone(adaptive);
        rig.put(CoordinatorInput::Save);
        rig.wait(100);
        rig.complete.push(state(rig.plan().generation.0, 40));
        rig.wait(200);
        let expected = rig.machine.shared.expected(&rig.plan().shape, rig.now);
        expected.redo_ms.expect("checkpoints are made")
    };
    // A step takes 100 ms, so that the job's interval is 100 s.
    assert_eq!(redo_ms(false), 50_000.0);
    let adaptive = redo_ms(true);
    assert!(adaptive > 1_000.0 && adaptive < 5_000.0, "{adaptive}");
}

#[test]
fn skipped_time_makes_the_next_checkpoint_due() {
    let mut rig = with_a_first_one();
    let due = rig
        .machine
        .time_to_extra_checkpoint(rig.now)
        .expect("the losses repay one");
    assert!(due > Duration::from_secs(1), "{due:?}");
    rig.put(CoordinatorInput::TimeSkipped(due));
    let (waited, _) = rig
        .until_ordered(A, &mut 6, Duration::from_secs(60))
        .expect("it is due");
    assert!(waited <= Duration::from_millis(100), "{waited:?}");
}
