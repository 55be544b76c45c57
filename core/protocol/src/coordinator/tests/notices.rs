//! Workers whose end is known in advance: they train as long as possible.

use super::*;

/// How long before the end of a worker the plan without it is made.
const LEAD: Duration = Duration::from_secs(8);

impl Rig {
    /// Two workers train, and there is a notice that the second one ends after this time.
    fn goes_in(time: Duration) -> Rig {
        let mut config = config();
        config.timing.following = LEAD;
        config.last_step = Step(1_000);
        let mut rig = Rig::training_with(config, &[A, B]);
        rig.train_both(Duration::from_millis(200));
        rig.put(CoordinatorInput::Notice {
            worker: B,
            leaves_in: Some(time),
        });
        rig
    }

    /// Lets time pass. Both workers report, and a step is committed from time to time.
    pub(super) fn train_both(&mut self, time: Duration) {
        let next = self
            .machine
            .record()
            .next
            .as_ref()
            .map_or(Generation(0), |p| p.generation);
        for _ in 0..time.as_millis() / 100 {
            self.wait(100);
            for worker in [A, B] {
                let trains = Status {
                    generation: Generation(1),
                    phase: Phase::Running,
                    based: true,
                    connected: true,
                    next,
                    next_connected: next != Generation(0),
                    at: state(1, self.now.0 / 500_000_000),
                    ..idle()
                };
                self.say(worker, Report::Status(trains));
            }
        }
    }

    fn is_changing(&self) -> bool {
        self.machine.record().next.is_some()
    }

    fn is_armed_for_2(&self) -> bool {
        let arm = Order::Arm {
            generation: Generation(2),
        };
        self.sent.contains(&(A, arm))
    }
}

impl Rig {
    /// The time from arming the members for the plan without the worker until the worker's end.
    fn left_when_armed(&mut self, end: Time) -> Duration {
        while self.now < end {
            self.train_both(Duration::from_millis(100));
            if self.is_armed_for_2() {
                return end.since(self.now);
            }
        }
        panic!("nobody is armed before the worker goes: {:?}", self.events);
    }
}

#[test]
fn a_worker_that_goes_at_a_known_time_is_planned_around_when_that_is_near() {
    let mut rig = Rig::goes_in(LEAD * 3);
    assert!(
        rig.events
            .iter()
            .any(|e| matches!(e, Event::WorkerDraining { .. })),
        "people hear of it"
    );
    rig.train_both(LEAD * 2 - Duration::from_millis(200));
    assert!(!rig.is_changing(), "there is time");
    rig.train_both(Duration::from_millis(400));
    assert!(rig.is_changing());
    assert!(!rig.machine.record().next.as_ref().unwrap().has(B));
}

#[test]
fn members_are_armed_no_earlier_than_the_switch_needs() {
    let mut rig = Rig::goes_in(LEAD * 2);
    let end = rig.now.after(LEAD * 2);
    rig.train_both(Duration::from_millis(200));
    let left = rig.left_when_armed(end);
    assert!(left <= Duration::from_secs(6), "{left:?} before the end");
    assert!(left >= Duration::from_millis(900), "{left:?} before the end");
    assert_eq!(rig.fenced_because(), None);
}

#[test]
fn a_short_notice_is_planned_for_at_once_and_used_to_its_end() {
    let mut rig = Rig::goes_in(LEAD / 2);
    let end = rig.now.after(LEAD / 2);
    rig.train_both(Duration::from_millis(200));
    assert!(rig.is_changing());
    let left = rig.left_when_armed(end);
    assert!(left <= Duration::from_secs(3), "{left:?} before the end");
}

#[test]
fn a_shorter_time_that_becomes_known_later_counts() {
    let mut rig = Rig::goes_in(LEAD);
    rig.train_both(Duration::from_millis(200));
    assert!(rig.is_changing(), "it is planned around");
    rig.put(CoordinatorInput::Notice {
        worker: B,
        leaves_in: Some(LEAD / 4),
    });
    rig.train_both(LEAD / 4);
    assert!(rig.is_armed_for_2());
    let mut rig = Rig::goes_in(LEAD / 4);
    rig.put(CoordinatorInput::Notice {
        worker: B,
        leaves_in: Some(LEAD * 4),
    });
    rig.train_both(Duration::from_millis(200));
    rig.train_both(LEAD / 4);
    assert!(rig.is_armed_for_2(), "and no longer one");
}

#[test]
fn a_notice_that_is_shorter_than_a_switch_is_used_at_once() {
    let mut rig = Rig::goes_in(Duration::from_millis(800));
    rig.train_both(Duration::from_millis(200));
    assert!(rig.is_changing());
    rig.train_both(Duration::from_millis(200));
    assert!(rig.is_armed_for_2());
}

impl Rig {
    /// Why a generation was given up.
    fn fenced_because(&self) -> Option<&str> {
        self.events.iter().find_map(|e| match e {
            Event::Fenced { because, .. } => Some(because.as_str()),
            _ => None,
        })
    }
}
