//! Schedules that an external review found. Each of them ended a run, stopped it, or delayed it without a reason.

use super::*;

/// Both units at this state.
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
    // C is disconnected: its fence is lost with its stream.
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
    assert!(stopped);
}

#[test]
fn pending_change_does_not_end_a_run_without_commits() {
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
    assert!(rig.finished.is_none());
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
    assert!(rig.finished.is_none());
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
            rig.wait(300); // longer than the coordinator waits before it uses the store again
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
        rig.plan().deadline
    };
    assert_eq!(deadline(5), deadline(0));
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
        deadlines.push(rig.plan().deadline);
    }
    assert_eq!(rig.plan().members(), &ids[6..]);
    assert_eq!(deadlines.first(), deadlines.last());
}

#[test]
fn workers_that_have_ended_are_forgotten_some_day() {
    let mut rig = Rig::training(&[A, B]);
    for worker in (1_000..1_600).map(WorkerId) {
        rig.join(worker);
        rig.put(CoordinatorInput::ProcessEnded { worker });
    }
    rig.wait(10);
    assert!(rig.machine.snapshot().workers.len() < 300);
}

#[test]
fn extreme_numbers_do_no_harm() {
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
    assert!(ran.is_ok());
    let stored = std::panic::catch_unwind(|| {
        let mut rig = Rig::training(&[A, B]);
        rig.complete = vec![state(u64::MAX, 3)];
        rig.say(A, suspect(1, B));
        rig.put(CoordinatorInput::StreamDown { from: B });
        rig.answer(A, &all_at(state(1, 4)));
        rig.wait(1_000);
    });
    assert!(stored.is_ok());
}

#[test]
fn suspicion_while_settling_is_kept() {
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
    assert!(rig.sent.iter().any(|(_, order)| is_fence(order)));
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
    // A has sent its norm, so B may have committed step 5.
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
        rig.wait_with(A, 10);
    }
    assert!(rig.store.highest > Generation(1));
    assert!(rig.now.since(start) >= Timing::model().restore);
}

#[test]
fn recovery_from_memory_does_not_wait_for_the_store() {
    let store = Rig::training(&[A, B]).store;
    let recovered = |holders: &[WorkerId]| {
        let mut rig = Rig::with(config(), store.clone());
        rig.listing = Answer::Never;
        for w in [A, B] {
            rig.join(w);
            rig.status(w, 1, Phase::Running, state(1, 4));
        }
        rig.say(A, suspect(1, B));
        for w in [A, B] {
            let held = if holders.contains(&w) {
                &all_at(state(1, 4))[..]
            } else {
                &[]
            };
            rig.answer(w, held);
        }
        rig.wait(500);
        assert_eq!(rig.finished, None);
        rig.store.highest > Generation(1)
    };
    assert!(recovered(&[A, B]));
    assert!(!recovered(&[]), "nothing is known of what the store has");
}

#[test]
fn rollback_uses_the_present_listing() {
    let stored = CoordinatorConfig {
        final_checkpoint: true,
        ..config()
    };
    let mut rig = Rig::training_with(stored, &[A, B]);
    for w in [A, B] {
        rig.status(w, 1, Phase::Running, state(1, 4));
    }
    rig.complete = vec![state(1, 2)];
    rig.listing = Answer::FromMemory;
    rig.say(A, suspect(1, B));
    rig.put(CoordinatorInput::ProcessEnded { worker: B });
    rig.answer(A, &[(Unit(0), state(1, 4))]);
    rig.wait(400);
    assert_eq!(rig.store.highest, Generation(1));
    // Meanwhile the workers have put a newer one.
    rig.complete = vec![state(1, 2), state(1, 3)];
    rig.listing = Answer::Now;
    rig.wait(100);
    let Base::Fixed { id, .. } = rig.plan().base else {
        panic!("a recovery")
    };
    assert_eq!(id, state(1, 3));
}

#[test]
fn worker_that_keeps_ending_early_is_quarantined() {
    let mut rig = Rig::training(&[A]);
    rig.machine.shared.config.last_step = Step(1_000);
    let mut step = 3;
    let planned = |rig: &mut Rig, worker: WorkerId, step: u64| {
        rig.join_as(worker, "unsound");
        for _ in 0..20 {
            let g = rig.store.plan.as_ref().unwrap().generation.0;
            rig.status(A, g, Phase::Running, state(g, step));
            rig.wait(20);
        }
        rig.store.next.as_ref().is_some_and(|n| n.has(worker))
    };
    for end in 0..3 {
        let worker = WorkerId(10 + end);
        assert_eq!(planned(&mut rig, worker, step), end < 2, "end {end}");
        rig.put(CoordinatorInput::ProcessEnded { worker });
        rig.wait(300);
        assert!(rig.store.next.is_none(), "the change is cancelled");
        step += 1;
    }
    for _ in 0..60 {
        step += 1;
        let g = rig.store.plan.as_ref().unwrap().generation.0;
        rig.status(A, g, Phase::Running, state(g, step));
        rig.wait(100);
    }
    assert!(planned(&mut rig, WorkerId(20), step), "the time is over");
}

#[test]
fn unreported_commits_are_requested_in_order() {
    let decision = |step: u64| {
        let (parent, id) = (state(1, step - 1), state(1, step));
        Decision {
            parent,
            id,
            norm2: 1.0,
            overflow: false,
            before: OptimizerProgress::START,
            loss: 1.0,
            eval_loss: None,
            switch: None,
        }
    };
    let published = |rig: &Rig| -> Vec<u64> {
        let step = |e: &Event| match e {
            Event::Committed { step, .. } => Some(step.0),
            _ => None,
        };
        rig.events.iter().filter_map(step).collect()
    };
    let asked = |rig: &Rig| -> Vec<(WorkerId, u64)> {
        let ask = |(to, order): &(WorkerId, Order)| match order {
            Order::Tell { after } => Some((*to, after.0)),
            _ => None,
        };
        rig.sent.iter().filter_map(ask).collect()
    };
    let mut rig = Rig::training(&[A, B]);
    // The reports of steps 1 to 4 were lost.
    rig.say(
        A,
        Report::Committed {
            decision: decision(5),
        },
    );
    for w in [A, B] {
        rig.status(w, 1, Phase::Running, state(1, 5));
    }
    assert!(published(&rig).is_empty());
    rig.wait(50);
    assert_eq!(asked(&rig).first(), Some(&(A, 0)));
    let answer = |rig: &mut Rig, from, after: u64, steps: std::ops::RangeInclusive<u64>| {
        let decisions = steps.map(decision).collect();
        let after = Step(after);
        rig.say(from, Report::Commits { after, decisions });
    };
    answer(&mut rig, A, 0, 3..=5);
    assert!(published(&rig).is_empty(), "another may know the first ones");
    rig.wait(50);
    assert!(asked(&rig).contains(&(B, 0)));
    answer(&mut rig, B, 0, 1..=4);
    answer(&mut rig, A, 0, 1..=5);
    assert_eq!(
        published(&rig),
        [1, 2, 3, 4, 5],
        "an answer to an earlier order counts where it goes on from what was published"
    );
    rig.wait(50);
    answer(&mut rig, A, 4, 5..=5);
    assert_eq!(published(&rig), [1, 2, 3, 4, 5]);
    // No worker knows steps 6 to 8, so they are left out.
    for w in [A, B] {
        rig.status(w, 1, Phase::Running, state(1, 9));
    }
    for _ in 0..3 {
        answer(&mut rig, A, 5, 9..=9);
    }
    assert_eq!(published(&rig).last(), Some(&9));
}

/// Found by killing real workers: new workers answered first, and the worker that had run the steps was not asked.
#[test]
fn commit_is_requested_from_all_who_may_know_it() {
    let decision = |step: u64| Decision {
        parent: state(1, step - 1),
        id: state(1, step),
        norm2: 1.0,
        overflow: false,
        before: OptimizerProgress::START,
        loss: 1.0,
        eval_loss: None,
        switch: None,
    };
    let workers: Vec<WorkerId> = (1..=6).map(WorkerId).collect();
    let mut rig = Rig::training(&workers);
    for w in &workers {
        rig.status(*w, 1, Phase::Running, state(1, 2));
    }
    let mut asked = BTreeSet::new();
    for _ in 0..200 {
        rig.wait(50);
        let tell = |(to, order): &(WorkerId, Order)| matches!(order, Order::Tell { .. }).then_some(*to);
        let Some(to) = rig.sent.iter().rev().find_map(tell) else {
            continue;
        };
        asked.insert(to);
        if asked.len() == workers.len() {
            break;
        }
        let nothing = Report::Commits {
            after: Step(0),
            decisions: vec![],
        };
        rig.say(to, nothing);
    }
    assert_eq!(asked.len(), workers.len(), "{asked:?}");
    let knowing = rig
        .sent
        .iter()
        .rev()
        .find_map(|(to, order)| matches!(order, Order::Tell { .. }).then_some(*to));
    let decisions = vec![decision(1), decision(2)];
    rig.say(
        knowing.unwrap(),
        Report::Commits {
            after: Step(0),
            decisions,
        },
    );
    let published = |e: &&Event| matches!(e, Event::Committed { .. });
    assert_eq!(rig.events.iter().filter(published).count(), 2);
}

#[test]
fn run_waits_for_a_connected_holder() {
    let mut rig = Rig::training(&[A, B]);
    for w in [A, B] {
        rig.status(w, 1, Phase::Running, state(1, 4));
    }
    rig.say(A, suspect(1, B));
    rig.answer(A, &[(Unit(0), state(1, 4))]);
    let restore = Timing::model().restore;
    let start = rig.now;
    while rig.finished.is_none() && rig.now.since(start) < restore * 10 {
        rig.wait_with(A, 100);
        rig.status(B, 1, Phase::Running, state(1, 4));
    }
    let waited = rig.now.since(start);
    assert!(waited > restore * 3 && waited < restore * 5, "{waited:?}");
}

#[test]
fn unfinished_checkpoint_of_dead_workers_is_awaited() {
    let stored = CoordinatorConfig {
        final_checkpoint: true,
        ..config()
    };
    let mut rig = Rig::training_with(stored, &[A, B]);
    rig.complete = vec![];
    for w in [A, B] {
        rig.status(w, 1, Phase::Running, state(1, 4));
    }
    rig.say(A, suspect(1, B));
    rig.put(CoordinatorInput::ProcessEnded { worker: B });
    rig.answer(A, &[(Unit(0), state(1, 4))]);
    rig.wait_with(A, 300);
    assert_eq!(rig.finished, None);
    rig.complete = vec![state(1, 3)];
    rig.wait_with(A, 100);
    assert!(matches!(rig.plan().base, Base::Fixed { id, .. } if id == state(1, 3)));
}

#[test]
fn run_is_given_up_only_with_the_own_record() {
    let mut rig = Rig::training(&[A, B]);
    rig.status(A, 1, Phase::Running, state(1, 4));
    rig.say(A, suspect(1, B));
    rig.answer(A, &[(Unit(0), state(1, 4))]);
    // Another coordinator has just taken over.
    rig.store.version += 1;
    rig.store.term += 1;
    rig.put(CoordinatorInput::ProcessEnded { worker: B });
    assert_eq!(rig.finished, Some(Outcome::Deposed));
    assert!(!rig.events.iter().any(|e| matches!(e, Event::Lost { .. })));
}

#[test]
fn dead_link_cancels_a_change_and_is_avoided() {
    let mut rig = Rig::training(&[A, B]);
    for w in [A, B] {
        rig.status(w, 1, Phase::Running, state(1, 4));
    }
    rig.wait(100);
    rig.join(C);
    rig.wait(20);
    let change = rig.store.next.as_ref().unwrap().generation;
    rig.say(
        B,
        Report::Suspect {
            generation: change,
            about: C,
            why: Suspicion::Unreachable,
        },
    );
    rig.wait(20);
    assert!(rig.store.next.is_none());
    assert!(
        !rig.sent.iter().any(|(_, order)| is_fence(order)),
        "training goes on"
    );
    for step in 5..12 {
        for w in [A, B] {
            rig.status(w, 1, Phase::Running, state(1, step));
        }
        rig.wait(100);
        assert!(rig.store.next.is_none(), "the same change would fail again");
    }
}

#[test]
fn while_a_member_is_silent_nothing_is_planned_around_it() {
    let mut rig = Rig::training(&[A, B, C]);
    rig.wait(100);
    rig.put(CoordinatorInput::StreamDown { from: B });
    rig.put(CoordinatorInput::Notice {
        worker: C,
        leaves_in: None,
    });
    rig.wait(100);
    assert_eq!(rig.store.next, None, "it may come back within the time of grace");
}

/// The work for one message must not grow with the number of workers.
#[test]
fn what_one_worker_says_causes_orders_to_that_worker_only() {
    let mut rig = Rig::training(&[A, B]);
    rig.wait(100);
    rig.join(C);
    rig.wait(10);
    let change = rig.store.next.clone().expect("a change");
    rig.wait(1_000);
    rig.sent.clear();
    let report = Report::Status(idle());
    rig.put(CoordinatorInput::Report { from: C, report });
    assert!(rig.sent.iter().all(|(to, _)| *to == C), "{:?}", rig.sent);
    assert!(change.has(C));
}

#[test]
fn leaving_worker_is_preferred_to_a_bad_link() {
    let mut config = config();
    config.min_workers = 2;
    let mut rig = Rig::training_with(config, &[A, B]);
    rig.join(C);
    rig.put(CoordinatorInput::Notice {
        worker: C,
        leaves_in: None,
    });
    rig.say(
        A,
        Report::Suspect {
            generation: Generation(1),
            about: B,
            why: Suspicion::Unreachable,
        },
    );
    for worker in [C, A, B] {
        rig.answer(worker, &[]);
    }
    rig.wait(10);
    assert_eq!(rig.plan().members(), [A, C]);
}

#[test]
fn quarantined_worker_is_preferred_to_a_bad_link() {
    let mut config = config();
    config.min_workers = 2;
    let mut rig = Rig::training_with(config, &[A, B]);
    rig.join(C);
    rig.machine.shared.quarantine.note_corruption(rig.now, "w3");
    let why = Suspicion::Unreachable;
    let unreachable = Report::Suspect {
        generation: Generation(1),
        about: B,
        why,
    };
    rig.say(A, unreachable);
    for worker in [C, A, B] {
        rig.answer(worker, &[]);
    }
    rig.wait(10);
    assert_eq!(rig.plan().members(), [A, C]);
}

#[test]
fn a_generation_that_does_not_start_in_time_is_recovered_from() {
    let mut rig = Rig::with(config(), Record::default());
    for worker in [A, B] {
        rig.join(worker);
        rig.answer(worker, &[]);
    }
    rig.wait(60);
    let loading = |rig: &mut Rig, time_ms: u64| {
        for _ in 0..time_ms / 100 {
            rig.wait(100);
            for worker in [A, B] {
                rig.status(worker, 1, Phase::Loading, StateId::INITIAL);
            }
        }
        rig.sent.iter().any(|(_, order)| is_fence(order))
    };
    rig.sent.clear();
    // The time for the launch, and for the first step.
    assert!(!loading(&mut rig, 2_500));
    assert!(loading(&mut rig, 1_500));
}

/// B holds units that A does not hold, and has not answered. Then the coordinator is paused for a minute.
fn paused_while_b_is_waited_for() -> Rig {
    let mut rig = Rig::training(&[A, B]);
    rig.status(A, 1, Phase::Running, state(1, 4));
    rig.say(A, suspect(1, B));
    rig.answer(A, &[(Unit(1), state(1, 4))]);
    rig.now = rig.now.after(Duration::from_secs(60));
    rig
}

#[test]
fn paused_coordinator_gives_holders_their_time() {
    let mut rig = paused_while_b_is_waited_for();
    rig.wait(500);
    assert_eq!(rig.finished, None, "B is connected and may answer");
}

/// Like the test above, but another input comes before the clock's next tick.
#[test]
fn any_first_input_reveals_a_pause() {
    let mut rig = paused_while_b_is_waited_for();
    let listing = Listing::fresh(vec![StateId::INITIAL]);
    rig.put(CoordinatorInput::Checkpoints(listing));
    rig.wait(500);
    assert_eq!(rig.finished, None, "B is connected and may answer");
}

#[test]
fn absent_holders_get_time_after_a_pause() {
    let mut rig = Rig::training(&[A, B]);
    rig.status(A, 1, Phase::Running, state(1, 4));
    rig.say(A, suspect(1, B));
    rig.put(CoordinatorInput::StreamDown { from: B });
    rig.answer(A, &[(Unit(1), state(1, 4))]);
    rig.now = rig.now.after(Duration::from_secs(60));
    rig.wait(500);
    assert_eq!(rig.finished, None, "B may come back");
    rig.wait(2_000);
    assert!(matches!(rig.finished, Some(Outcome::StateLost { .. })));
}

#[test]
fn older_record_is_no_answer() {
    let mut rig = Rig::training(&[A]);
    rig.wait(100);
    rig.manual = true;
    rig.join(B);
    let written = rig.written.clone().expect("a change");
    rig.store = Record::default();
    rig.put(CoordinatorInput::Written {
        ok: false,
        record: written.clone(),
    });
    assert_eq!(rig.machine.record().version + 1, written.version);
    rig.store = written.clone();
    rig.wait(300);
    assert_eq!(
        rig.machine.record().version,
        written.version,
        "it was written after all"
    );
}

/// Otherwise the deadline for steps of the next plan would be hours.
#[test]
fn pause_does_not_count_as_step_time() {
    let mut rig = Rig::training(&[A, B]);
    let mut at = StateId::INITIAL;
    for _ in 0..6 {
        rig.now = rig.now.after(Duration::from_millis(if at.step == Step(4) {
            7_200_000
        } else {
            40
        }));
        let decision = Decision::conclude(at, Generation(1), &[norm(1.0), norm(2.0)], None);
        rig.say(A, Report::Committed { decision });
        at = decision.id;
    }
    let observed = rig.machine.run().observed_ms.expect("steps were observed");
    assert!(observed < 100.0, "{observed} ms");
}

/// Waits until the coordinator is about to give up the run. The write that confirms it is not answered.
fn write_that_gives_up(rig: &mut Rig) -> Record {
    rig.manual = true;
    for _ in 0..40 {
        rig.wait_with(A, 100);
        let Some(record) = rig.written.take() else {
            continue;
        };
        if record.waited_ms == rig.store.waited_ms {
            return record;
        }
        // This write records how long the recovery has waited.
        rig.store = record.clone();
        rig.put(CoordinatorInput::Written { ok: true, record });
    }
    panic!("the run is not given up");
}

/// Meanwhile the store confirmed only slowly that no other coordinator had taken over.
#[test]
fn returning_holder_prevents_giving_up() {
    let mut rig = Rig::training(&[A, B]);
    rig.status(A, 1, Phase::Running, state(1, 4));
    rig.say(A, suspect(1, B));
    rig.put(CoordinatorInput::StreamDown { from: B });
    rig.answer(A, &[(Unit(1), state(1, 4))]);
    let record = write_that_gives_up(&mut rig);
    rig.join(B);
    rig.manual = false;
    rig.store = record.clone();
    rig.put(CoordinatorInput::Written { ok: true, record });
    assert_eq!(rig.finished, None);
    rig.answer(A, &[(Unit(1), state(1, 4))]);
    rig.answer(B, &all_at(state(1, 4)));
    rig.wait(300);
    let resumed = |e: &Event| matches!(e, Event::Resumed { base, .. } if *base == state(1, 4));
    assert!(rig.events.iter().any(resumed), "{:?}", rig.events);
}

/// The last checkpoint has become complete meanwhile.
#[test]
fn outdated_loss_does_not_end_the_run() {
    let mut rig = Rig::training(&[A, B]);
    rig.status(A, 1, Phase::Running, state(1, 4));
    rig.say(A, suspect(1, B));
    rig.put(CoordinatorInput::StreamDown { from: B });
    rig.answer(A, &[(Unit(1), state(1, 4))]);
    let record = write_that_gives_up(&mut rig);
    rig.wait_with(A, 2_000);
    rig.manual = false;
    rig.store = record.clone();
    rig.complete.push(state(1, 4));
    rig.put(CoordinatorInput::Written { ok: true, record });
    assert_eq!(rig.finished, None);
}

#[test]
fn coordinator_stopped_before_takeover_orders_nothing() {
    let mut rig = Rig {
        manual: true,
        ..Rig::with(config(), Record::default())
    };
    rig.machine = Coordinator::new(config(), Box::new(DataParallelPlanner));
    rig.put(CoordinatorInput::Tick);
    let record = rig.written.clone().expect("its term");
    rig.sent.clear();
    rig.join(A);
    rig.put(CoordinatorInput::Stop);
    assert_eq!(rig.sent, vec![], "another may be in charge");
    rig.put(CoordinatorInput::Written { ok: true, record });
    rig.wait(50);
    assert!(rig.sent.contains(&(A, Order::Release)), "it is in charge now");
}
