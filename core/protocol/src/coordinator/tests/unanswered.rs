//! Reads of the record that fail without an answer.

use super::*;

/// The same value as in a cluster: far longer than a recovery may take.
const WATCH: Duration = Duration::from_secs(300);

fn config_with_rare_reads() -> CoordinatorConfig {
    let mut config = config();
    config.timing.watch = WATCH;
    config
}

#[test]
fn record_is_read_until_a_refused_write_is_clear() {
    let mut rig = Rig::training_with(config_with_rare_reads(), &[A]);
    rig.wait(100);
    rig.manual = true;
    rig.join(B);
    let record = rig.written.take().expect("a change is written");
    rig.failing_reads = 3;
    rig.put(CoordinatorInput::Written { ok: false, record });
    assert_eq!(rig.machine.run().mode, RunMode::Persisting);
    rig.manual = false;
    let began = rig.now;
    while rig.machine.record().next.is_none() {
        assert!(
            rig.now.since(began) < Duration::from_secs(1),
            "nothing can be written"
        );
        rig.wait(50);
        rig.status(A, 1, Phase::Running, state(1, 1));
        rig.say(B, Report::Status(idle()));
    }
    assert_eq!(rig.failing_reads, 0);
}

#[test]
fn record_is_read_until_a_refused_takeover_is_clear() {
    let mut rig = Rig {
        manual: true,
        ..Rig::with(config_with_rare_reads(), Record::default())
    };
    rig.machine = Coordinator::new(config_with_rare_reads(), Box::new(DataParallelPlanner));
    rig.put(CoordinatorInput::Tick);
    let record = rig.written.take().expect("its term");
    rig.failing_reads = 2;
    rig.put(CoordinatorInput::Written { ok: false, record });
    rig.manual = false;
    rig.wait(500);
    assert_eq!((rig.store.term, rig.machine.term()), (2, 2));
}

#[test]
fn a_store_that_answers_no_reads_is_asked_less_and_less_often() {
    let mut rig = Rig::training_with(config_with_rare_reads(), &[A]);
    rig.wait(100);
    rig.manual = true;
    rig.join(B);
    let record = rig.written.take().expect("a change is written");
    let many = 1_000;
    rig.failing_reads = many;
    rig.put(CoordinatorInput::Written { ok: false, record });
    rig.wait(10_000);
    let asked = many - rig.failing_reads;
    let ask_again = Timing::model().ask_again.as_millis();
    let longest = usize::try_from(10_000 / (ask_again * 8)).unwrap();
    assert!((longest..=longest + 5).contains(&asked), "{asked} times in 10 s");
}
