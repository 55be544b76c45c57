//! A run that gets more steps than its job's text says.

use super::*;

const MORE: Step = Step(15);

fn told(rig: &Rig) -> BTreeSet<WorkerId> {
    let order = Order::LastStep { step: MORE };
    let told = rig.sent.iter().filter(|(_, o)| *o == order);
    told.map(|(to, _)| *to).collect()
}

fn knows(rig: &mut Rig, worker: WorkerId, step: u64) {
    let status = Status {
        generation: Generation(1),
        phase: Phase::Running,
        based: true,
        connected: true,
        at: state(1, step),
        last_step: MORE,
        ..idle()
    };
    rig.say(worker, Report::Status(status));
}

#[test]
fn last_step_is_written_before_it_is_sent() {
    let mut rig = Rig::training(&[A, B]);
    rig.sent.clear();
    rig.manual = true;
    rig.put(CoordinatorInput::LastStep(MORE));
    let record = rig.written.clone().unwrap();
    assert_eq!(record.last_step, MORE);
    rig.wait(100);
    assert_eq!(told(&rig), BTreeSet::new(), "it is not in the record yet");
    rig.manual = false;
    rig.store = record.clone();
    rig.put(CoordinatorInput::Written { ok: true, record });
    rig.wait(50);
    assert_eq!(told(&rig), BTreeSet::from([A, B]));
    knows(&mut rig, A, 4);
    rig.sent.clear();
    rig.wait(100);
    assert_eq!(told(&rig), BTreeSet::from([B]));
    knows(&mut rig, B, 4);
    rig.sent.clear();
    rig.wait(100);
    assert_eq!(told(&rig), BTreeSet::new());
    assert_eq!(rig.machine.run().last_step, MORE);
}

#[test]
fn a_run_ends_with_the_last_step_that_was_ordered_and_no_sooner() {
    let mut rig = Rig::training(&[A, B]);
    rig.status(A, 1, Phase::Running, state(1, 10));
    rig.put(CoordinatorInput::LastStep(MORE));
    rig.status(B, 1, Phase::Running, state(1, 10));
    rig.wait(300);
    assert!(!rig.store.done && rig.finished.is_none());
    for worker in [A, B] {
        knows(&mut rig, worker, 15);
    }
    rig.wait(300);
    assert!(rig.store.done);
}

#[test]
fn a_record_is_not_done_while_more_steps_wait_to_be_written() {
    let mut rig = Rig::training(&[A]);
    rig.manual = true;
    rig.put(CoordinatorInput::LastStep(MORE));
    rig.status(A, 1, Phase::Running, state(1, 10));
    rig.wait(300);
    assert!(rig.written.as_ref().is_some_and(|r| !r.done), "{:?}", rig.written);
}

#[test]
fn late_end_keeps_additional_steps() {
    let mut rig = Rig::training(&[A]);
    rig.manual = true;
    rig.status(A, 1, Phase::Running, state(1, 10));
    rig.wait(300);
    let end = rig.written.take().unwrap();
    assert!(end.done);
    let failed = |record: &Record| CoordinatorInput::Written {
        ok: false,
        record: record.clone(),
    };
    rig.put(failed(&end));
    rig.put(CoordinatorInput::LastStep(MORE));
    rig.wait(300);
    let more = rig.written.take().unwrap();
    assert_eq!((more.last_step, more.done), (MORE, false));
    // The earlier write, which ends the run, takes effect only now, and prevents the later one.
    rig.store = end;
    rig.put(failed(&more));
    rig.wait(300);
    let again = rig.written.take().unwrap();
    assert_eq!((again.last_step, again.done), (MORE, false));
}

#[test]
fn fewer_steps_change_nothing() {
    let mut rig = Rig::training(&[A]);
    let version = rig.store.version;
    for step in [0, 4, 10] {
        rig.put(CoordinatorInput::LastStep(Step(step)));
        rig.wait(50);
    }
    assert_eq!((rig.store.version, rig.store.last_step), (version, Step(0)));
    rig.put(CoordinatorInput::LastStep(MORE));
    rig.put(CoordinatorInput::LastStep(Step(12)));
    assert_eq!(rig.store.last_step, MORE);
    assert_eq!(rig.machine.run().last_step, MORE);
}

#[test]
fn a_coordinator_that_follows_has_the_steps_from_the_record() {
    let mut rig = Rig::training(&[A, B]);
    rig.put(CoordinatorInput::LastStep(MORE));
    let mut next = Rig::with(config(), rig.store.clone());
    assert_eq!(next.machine.run().last_step, MORE);
    for worker in [A, B] {
        next.join(worker);
        next.status(worker, 1, Phase::Running, state(1, 10));
    }
    next.wait(600);
    assert!(!next.store.done);
    assert_eq!(told(&next), BTreeSet::from([A, B]));
}

/// The record of a run of ten steps that has ended.
fn ended() -> Record {
    let mut rig = Rig::training(&[A]);
    rig.status(A, 1, Phase::Running, state(1, 10));
    rig.wait(300);
    assert!(rig.store.done);
    rig.store
}

fn with_store() -> CoordinatorConfig {
    CoordinatorConfig {
        final_checkpoint: true,
        ..config()
    }
}

/// A coordinator of a run that has ended. It gets the number of steps before it reads the record.
fn again(config: CoordinatorConfig, step: Step) -> Rig {
    let mut rig = Rig::with(config.clone(), Record::default());
    rig.machine = Coordinator::new(config, Box::new(DataParallelPlanner));
    rig.store = ended();
    rig.complete = vec![state(1, 10)];
    rig.put(CoordinatorInput::LastStep(step));
    rig.put(CoordinatorInput::Tick);
    rig
}

#[test]
fn ended_run_resumes_if_more_steps_are_ordered() {
    let mut rig = again(with_store(), MORE);
    assert!(!rig.store.done, "it goes on");
    assert_eq!(rig.store.last_step, MORE);
    let highest = rig.store.highest;
    rig.join(B);
    rig.wait(3_000);
    rig.answer(B, &[]);
    rig.wait(1_000);
    let plan = rig.plan();
    assert!(plan.generation > highest);
    assert!(matches!(plan.base, Base::Fixed { id, checkpoint: true, .. } if id == state(1, 10)));
    let shown = rig.machine.snapshot().run.step;
    assert_eq!(shown, Step(10), "before anybody has reported it");
    assert_eq!(told(&rig), BTreeSet::from([B]));
}

#[test]
fn ended_run_stays_ended_without_steps_or_store() {
    assert!(again(with_store(), Step(10)).store.done);
    assert!(again(config(), MORE).store.done, "nothing has its state");
}

#[test]
fn old_final_checkpoint_does_not_end_an_extended_run() {
    let mut rig = Rig::training_with(with_store(), &[A]);
    rig.status(A, 1, Phase::Running, state(1, 10));
    rig.manual = true;
    rig.put(CoordinatorInput::LastStep(MORE));
    for _ in 0..2 {
        let record = rig.written.take().unwrap();
        rig.put(CoordinatorInput::Written { ok: false, record });
        rig.wait(10);
    }
    assert!(rig.written.is_none(), "writes are delayed");
    rig.put(CoordinatorInput::Checkpoints(Listing::fresh(vec![state(1, 10)])));
    assert!(rig.written.is_none(), "{:?}", rig.written);
    assert!(rig.machine.run().mode != RunMode::Done);
}
