//! Workers whose end is known in advance: they train as long as possible.

use super::*;
use std::cell::RefCell;
use varuna_plan::Departure;

thread_local! {
    /// What the planner was last told of workers that leave.
    static DEPARTURE: RefCell<Option<Departure>> = const { RefCell::new(None) };
}

/// Like [`DataParallelPlanner`], but whenever workers leave at a known time, a better shape would be too late.
struct InHaste;

impl Planner for InHaste {
    fn plan(&self, request: &PlanRequest) -> Result<Shape, Infeasible> {
        DataParallelPlanner.plan(request)
    }

    fn plan_in_time(&self, request: &PlanRequest) -> Result<(Shape, Option<String>), Infeasible> {
        DEPARTURE.set(request.departure.clone());
        let haste = request.departure.as_ref().map(|_| "there is no time".to_owned());
        Ok((self.plan(request)?, haste))
    }
}

/// How long before the end of a worker the plan without it is made.
const LEAD: Duration = Duration::from_secs(8);

impl Rig {
    /// Two workers train, and there is a notice that the second one ends after this time.
    fn goes_in(time: Duration) -> Rig {
        Rig::goes_by(Box::new(DataParallelPlanner), Some(time))
    }

    /// The same with this planner, and perhaps without a known time.
    fn goes_by(planner: Box<dyn Planner + Send>, time: Option<Duration>) -> Rig {
        let mut config = config();
        config.timing.following = LEAD;
        config.last_step = Step(1_000);
        let mut rig = Rig::training_with(config, &[A, B]);
        rig.machine.shared.planner = planner;
        rig.train_both(Duration::from_millis(200));
        rig.put(CoordinatorInput::Notice {
            worker: B,
            leaves_in: time,
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
fn known_end_is_planned_around_when_it_is_near() {
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

#[test]
fn the_planner_is_told_who_leaves_and_how_long_it_can_send() {
    let mut rig = Rig::goes_by(Box::new(InHaste), Some(LEAD / 2));
    rig.train_both(Duration::from_millis(200));
    let departure = DEPARTURE.take().unwrap();
    // Of four seconds, one and two steps pass before state moves.
    let left: Vec<_> = departure.sends_for_ms.into_iter().collect();
    assert!(
        matches!(left[..], [(B, ms)] if (1_500.0..3_000.0).contains(&ms)),
        "{left:?}"
    );
    let next = rig.machine.record().next.clone().unwrap();
    assert_eq!(next.reason, "w2 will go; there is no time");

    let mut rig = Rig::goes_by(Box::new(InHaste), None);
    rig.train_both(Duration::from_millis(200));
    assert_eq!(DEPARTURE.take(), None, "nobody knows when it goes");
    let next = rig.machine.record().next.clone().unwrap();
    assert_eq!(next.reason, "w2 will go");
}

#[test]
fn after_a_change_in_haste_a_better_plan_is_looked_for() {
    let made_after_the_change = |planner: Box<dyn Planner + Send>| {
        let mut rig = Rig::goes_by(planner, Some(LEAD / 2));
        rig.train_both(Duration::from_millis(200));
        assert!(rig.is_changing());
        let made = MADE.get();
        for phase in [Phase::Loading, Phase::Ready, Phase::Running] {
            rig.status(A, 2, phase, state(1, 3));
        }
        assert_eq!(rig.plan().generation, Generation(2));
        rig.wait(100);
        MADE.get() - made
    };
    assert_eq!(made_after_the_change(Box::new(DataParallelPlanner)), 0);
    assert_eq!(made_after_the_change(Box::new(InHaste)), 1);
}

#[test]
fn a_recovery_tells_the_planner_of_holders_that_leave() {
    let mut rig = Rig::training(&[A, B, C]);
    rig.machine.shared.planner = Box::new(InHaste);
    rig.say(A, suspect(1, C));
    rig.put(CoordinatorInput::StreamDown { from: C });
    rig.put(CoordinatorInput::Notice {
        worker: B,
        leaves_in: Some(config().timing.following / 2),
    });
    for worker in [A, B] {
        let units = [(Unit(0), state(1, 4)), (Unit(1), state(1, 4))];
        rig.answer(worker, &units);
    }
    assert_eq!(rig.plan().members(), [A]);
    let leaving: Vec<_> = DEPARTURE.take().unwrap().sends_for_ms.into_keys().collect();
    assert_eq!(leaving, [B]);
    assert!(
        rig.plan().reason.ends_with("; there is no time"),
        "{}",
        rig.plan().reason
    );
}

#[test]
fn workers_are_found_by_their_name_attached_or_not() {
    let mut rig = Rig::with(config(), Record::default());
    rig.join_as(A, "pod-1");
    rig.join_as(B, "pod-2");
    rig.join_as(C, "pod-1");
    rig.put(CoordinatorInput::StreamDown { from: A });
    assert_eq!(rig.machine.workers_of_name("pod-1"), [(A, false), (C, true)]);
    assert_eq!(rig.machine.workers_of_name("pod-2"), [(B, true)]);
    assert!(rig.machine.workers_of_name("pod-3").is_empty());
}
