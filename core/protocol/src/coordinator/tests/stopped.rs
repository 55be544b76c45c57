//! Runs that are stopped in order, and coordinators that continue them.

use super::*;

/// A and B train, and the run is stopped.
fn stopping() -> Rig {
    let mut rig = Rig::training(&[A, B]);
    rig.put(CoordinatorInput::Stop);
    rig
}

fn close(rig: &mut Rig, from: WorkerId) {
    rig.put(CoordinatorInput::StreamDown { from });
    rig.wait(10);
}

/// Another coordinator takes over with the record in the store. There is a checkpoint of step 4.
fn successor(record: Record, listing: Answer) -> Rig {
    let mut rig = Rig::with(config(), Record::default());
    rig.machine = Coordinator::new(config(), Box::new(DataParallelPlanner));
    (rig.store, rig.listing) = (record, listing);
    rig.complete.push(state(1, 4));
    rig.put(CoordinatorInput::Tick);
    rig.join(C);
    rig.answer(C, &[]);
    rig
}

#[test]
fn what_all_have_promised_is_in_the_record_once_they_are_gone() {
    let mut rig = stopping();
    for worker in [A, B] {
        rig.answer(worker, &[]);
        assert!(rig.sent.contains(&(worker, Order::Release)));
    }
    close(&mut rig, A);
    assert_eq!((rig.store.stopped, &rig.finished), (Generation(0), &None));
    close(&mut rig, B);
    assert_eq!(rig.store.stopped, Generation(1));
    assert!(rig.store.is_stopped());
    assert_eq!(rig.finished, Some(Outcome::Stopped));
}

#[test]
fn a_worker_that_was_lost_before_it_promised_may_still_train() {
    for ended in [false, true] {
        let mut rig = stopping();
        rig.answer(A, &[]);
        close(&mut rig, A);
        let gone = match ended {
            true => CoordinatorInput::ProcessEnded { worker: B },
            false => CoordinatorInput::StreamDown { from: B },
        };
        rig.put(gone);
        rig.wait(10);
        assert_eq!(rig.finished, Some(Outcome::Stopped));
        assert_eq!(rig.store.is_stopped(), ended, "the end of a process is proof too");
    }
}

#[test]
fn idle_source_promises_before_its_release() {
    let mut rig = Rig::training(&[A, B]);
    rig.status(B, 1, Phase::Source, StateId::INITIAL);
    rig.sent.clear();
    rig.put(CoordinatorInput::Stop);
    let upto = Generation(1);
    assert!(rig.sent.contains(&(B, Order::Fence { upto })));
    assert!(!rig.sent.contains(&(B, Order::Release)));
}

#[test]
fn a_stop_that_cannot_be_noted_ends_all_the_same() {
    let mut rig = stopping();
    rig.answer(A, &[]);
    rig.answer(B, &[]);
    rig.store.version += 1; // another coordinator has written
    close(&mut rig, A);
    close(&mut rig, B);
    rig.wait(10);
    assert_eq!(rig.finished, Some(Outcome::Stopped));
    assert!(!rig.store.is_stopped());
}

#[test]
fn a_second_stop_does_not_begin_the_end_anew() {
    let mut rig = stopping();
    let silent = u64::try_from(Timing::model().silent.as_millis()).unwrap();
    rig.wait_with(A, silent / 2);
    rig.put(CoordinatorInput::Stop);
    rig.wait_with(A, silent / 2 + 100);
    assert_eq!(rig.finished, Some(Outcome::Stopped), "A never promises anything");
}

#[test]
fn nobody_is_waited_for_where_the_run_was_stopped_in_order() {
    let mut rig = stopping();
    rig.answer(A, &[]);
    rig.answer(B, &[]);
    close(&mut rig, A);
    close(&mut rig, B);
    let stopped = rig.store.clone();

    let mut rig = successor(stopped.clone(), Answer::Now);
    let gather = u64::try_from(Timing::model().gather.as_millis()).unwrap();
    rig.wait(gather / 2);
    assert_eq!(
        rig.plan().generation,
        Generation(1),
        "others may come, as at the start"
    );
    rig.wait(gather);
    let plan = rig.plan();
    assert_eq!((plan.generation, plan.members()), (Generation(2), &[C][..]));
    assert!(matches!(plan.base, Base::Fixed { id, checkpoint: true, .. } if id == state(1, 4)));
    assert!(!rig.store.is_stopped(), "it goes on");

    // A later generation was persisted since, so the coordinator waits for its members.
    let went_on = Record {
        highest: Generation(2),
        ..stopped
    };
    let mut rig = successor(went_on, Answer::Now);
    rig.wait(2 * gather);
    assert_eq!(rig.plan().generation, Generation(1));
}

/// C joins a run that was stopped in order during a changed plan. So no plan names the state that the run began with, and there is no
/// checkpoint.
fn nothing_is_left(may_begin_anew: bool) -> Rig {
    let mut record = stopping().store;
    record.stopped = record.highest;
    let changed = Plan {
        base: Base::AtSwitch { from: Generation(0) },
        ..record.plan.as_deref().unwrap().clone()
    };
    record.plan = Some(Arc::new(changed));
    let mut rig = Rig::with(config(), record);
    rig.put(CoordinatorInput::MayBeginAnew(may_begin_anew));
    rig.join(C);
    rig.answer(C, &[]);
    rig
}

#[test]
fn stopped_run_without_state_begins_anew_if_allowed() {
    let mut rig = nothing_is_left(true);
    rig.wait_with(C, 200);
    let plan = rig.plan();
    let seed = Base::Fixed {
        id: StateId::INITIAL,
        decision: None,
        checkpoint: true,
    };
    assert_eq!((plan.generation, &plan.base), (Generation(2), &seed));
    assert_eq!(plan.members(), [C]);

    let mut rig = nothing_is_left(false);
    rig.wait_with(C, 200);
    assert_eq!(rig.plan().generation, Generation(1));
    // It may be allowed while the coordinator is still waiting for other workers.
    rig.put(CoordinatorInput::MayBeginAnew(true));
    rig.wait_with(C, 200);
    assert_eq!(rig.plan().base, seed);

    let mut rig = nothing_is_left(false);
    rig.wait_with(C, 6_000);
    assert!(
        matches!(rig.finished, Some(Outcome::StateLost { .. })),
        "{:?}",
        rig.events
    );
}

#[test]
fn unconfirmed_checkpoint_is_not_resumed_after_a_stop() {
    let mut record = stopping().store;
    record.stopped = record.highest;
    let mut rig = successor(record, Answer::FromMemory);
    rig.wait(300);
    assert_eq!(rig.plan().generation, Generation(1));
}
