//! When the members are armed for a change whose new workers follow the run.

use super::*;
use crate::message::Following;
use varuna_plan::deadline::RecentSteps;
use varuna_plan::{SpareCosts, WorkerInfo};

const ARM: Order = Order::Arm {
    generation: Generation(2),
};

fn able() -> Status {
    Status {
        following: Following::Able,
        ..idle()
    }
}

/// A member that trains in generation 1. All of the next plan are connected, and the plan gives the member no new units.
fn present() -> Status {
    Status {
        following: Following::CaughtUp,
        generation: Generation(1),
        phase: Phase::Running,
        based: true,
        connected: true,
        next: Generation(2),
        next_connected: true,
        ..able()
    }
}

/// A worker that has joined generation 2 and is connected.
fn newcomer(following: Following) -> Report {
    Report::Status(Status {
        generation: Generation(2),
        phase: Phase::Loading,
        connected: true,
        following,
        ..idle()
    })
}

/// A planner: two workers have one segment each, and three workers have all segments. A segment takes 10 bytes while it is followed.
struct GrowingPlanner {
    /// Free memory of each worker, beside its stages.
    room_bytes: u64,
}

impl Planner for GrowingPlanner {
    fn plan(&self, request: &PlanRequest) -> Result<Shape, Infeasible> {
        let mut shape = DataParallelPlanner.plan(request)?;
        if let [first, second] = &request.workers[..] {
            let stage = |worker: WorkerId, start: u32| Stage {
                recompute: None,
                worker,
                segments: SegmentRange {
                    start,
                    end: start + 1,
                },
            };
            shape.pipelines = vec![Pipeline {
                stages: vec![stage(first.id, 0), stage(second.id, 1)],
                samples: SampleRange { start: 0, end: 8 },
            }];
        }
        shape.predicted.move_ms = if request.following { 1.0 } else { 3.0 };
        Ok(shape)
    }

    fn spare_costs(&self, _: &Shape, _: &Layout, workers: &[WorkerInfo]) -> SpareCosts {
        SpareCosts {
            copy_bytes: vec![10; 2],
            room_bytes: workers.iter().map(|w| (w.id, self.room_bytes)).collect(),
            ..SpareCosts::default()
        }
    }
}

/// Two workers train with one segment each. A third one joins, so that all of them will hold both segments. All are connected in the next
/// plan.
fn widening(room_bytes: u64) -> Rig {
    let mut rig = Rig::with(config(), Record::default());
    rig.machine.shared.planner = Box::new(GrowingPlanner { room_bytes });
    for worker in [A, B] {
        rig.join(worker);
        rig.answer(worker, &[]);
    }
    rig.wait(60);
    for phase in [Phase::Ready, Phase::Running] {
        for worker in [A, B] {
            rig.status(worker, 1, phase, StateId::INITIAL);
        }
    }
    assert_eq!(rig.plan().units(A), [Unit(0)]);
    for worker in [A, B] {
        rig.say(worker, Report::Status(present()));
    }
    rig.wait(100);
    rig.join_with(C, able());
    for worker in [A, B] {
        rig.say(worker, Report::Status(present()));
    }
    rig.say(C, newcomer(Following::Able));
    rig
}

impl Rig {
    fn growing(both: bool) -> Rig {
        Rig::growing_with(config(), both)
    }

    /// One worker trains and another one joins. Both of them can follow, or only one. Both are connected in the next plan.
    fn growing_with(config: CoordinatorConfig, both: bool) -> Rig {
        let mut rig = Rig::training_with(config, &[A]);
        rig.say(A, Report::Status(present()));
        rig.wait(100);
        rig.join_with(B, if both { able() } else { idle() });
        assert!(rig.machine.record().next.is_some());
        rig.say(A, Report::Status(present()));
        rig.say(B, newcomer(Following::Able));
        rig
    }

    /// A worker joins and sends this status first.
    fn join_with(&mut self, from: WorkerId, status: Status) {
        let hello = Hello {
            address: format!("{from}:1"),
            name: from.to_string(),
            node: String::new(),
            hardware: None,
            memory_bytes: None,
            copies_bytes: None,
            scores: None,
            speed: 1.0,
        };
        self.put(CoordinatorInput::StreamUp { from, hello });
        self.say(from, Report::Status(status));
    }

    fn is_armed(&self) -> bool {
        self.sent.contains(&(A, ARM))
    }

    fn has_said_caught_up(&self) -> bool {
        let caught_up = Event::FollowersCaughtUp {
            generation: Generation(2),
            workers: vec![B],
        };
        self.events.iter().filter(|e| **e == caught_up).count() == 1
    }

    fn is_late(&self) -> bool {
        let late = Event::FollowersLate {
            generation: Generation(2),
            workers: vec![B],
        };
        self.events.contains(&late)
    }

    /// Lets time pass. Both workers report, and a step is committed from time to time.
    fn train_on(&mut self, time: Duration, following: Following) {
        for _ in 0..time.as_millis() / 100 {
            self.wait(100);
            let at = state(1, self.now.0 / 500_000_000);
            self.say(A, Report::Status(Status { at, ..present() }));
            self.say(B, newcomer(following));
        }
    }

    /// Commits steps one by one, at this interval, while the new worker follows; until this time is over, or the members are armed.
    fn commit_slowly(&mut self, mut at: StateId, step: Duration, time: Duration) -> StateId {
        let part = UnitNorm {
            norm2: 1.0,
            overflow: false,
            before: OptimizerProgress::START,
            loss: 1.0,
            eval_loss: None,
        };
        let end = self.now.after(time);
        while self.now < end && !self.is_armed() {
            for _ in 0..step.as_millis() / 100 {
                self.wait(100);
                self.say(A, Report::Status(Status { at, ..present() }));
                self.say(B, newcomer(Following::Able));
            }
            let decision = Decision::conclude(at, Generation(1), &[part], None);
            self.say(A, Report::Committed { decision });
            at = decision.id;
        }
        at
    }

    /// Both workers have switched to the next plan, and load what they lack.
    fn load_for(&mut self, time: Duration) {
        let loading = Status {
            generation: Generation(2),
            phase: Phase::Loading,
            connected: true,
            based: true,
            ..able()
        };
        for _ in 0..time.as_millis() / 100 {
            self.wait(100);
            self.say(A, Report::Status(loading));
            self.say(B, Report::Status(loading));
        }
    }

    /// Why the generation was given up.
    fn fenced(&self) -> Option<&str> {
        self.events.iter().find_map(|e| match e {
            Event::Fenced { because, .. } => Some(because.as_str()),
            _ => None,
        })
    }
}

#[test]
fn a_change_waits_until_its_newcomers_have_caught_up() {
    let mut rig = Rig::growing(true);
    assert!(rig.machine.record().next.as_ref().unwrap().following);
    rig.train_on(Duration::from_millis(400), Following::Able);
    assert!(!rig.is_armed() && !rig.has_said_caught_up());
    rig.say(B, newcomer(Following::CaughtUp));
    assert!(rig.is_armed());
    assert!(!rig.is_late());
    rig.say(B, newcomer(Following::CaughtUp));
    assert!(rig.has_said_caught_up(), "once: {:?}", rig.events);
}

/// What a newcomer lacks then is only the gradient of the step that runs, which it would lack after any later step, too.
#[test]
fn newcomer_with_copies_of_the_present_state_has_caught_up() {
    let mut rig = Rig::growing(true);
    rig.train_on(Duration::from_millis(400), Following::Able);
    let run = rig.machine.shared.progress.best.step;
    assert!(run > Step(0));
    rig.say(B, newcomer(Following::Copied(Step(run.0 - 1))));
    assert!(!rig.is_armed(), "a gradient is on its way to it");
    rig.say(B, newcomer(Following::Copied(run)));
    assert!(rig.is_armed() && !rig.is_late());
}

#[test]
fn slow_followers_are_awaited_for_a_limited_time() {
    let mut rig = Rig::growing(true);
    let allowed = config().timing.following;
    rig.train_on(allowed, Following::Able);
    assert!(!rig.is_armed());
    rig.train_on(Duration::from_millis(200), Following::Able);
    assert!(rig.is_armed());
    assert!(rig.is_late(), "it is said");
    let broken = |e: &Event| matches!(e, Event::Cancelled { .. } | Event::Fenced { .. });
    assert!(!rig.events.iter().any(broken), "{:?}", rig.events);
}

#[test]
fn long_steps_give_newcomers_several_steps_to_catch_up() {
    let config = CoordinatorConfig {
        last_step: Step(1_000),
        ..config()
    };
    let timing = config.timing;
    let mut rig = Rig::growing_with(config, true);
    // Longer than a change with short steps may take, including its start.
    let step = timing.following / 2;
    let several = step * 16;
    assert!(several > timing.following + timing.launch + step * 8);
    let began = rig.now;
    let at = rig.commit_slowly(StateId::INITIAL, step, several - step);
    assert_eq!(rig.fenced(), None, "the change is not given up");
    assert!(!rig.is_armed(), "nor is it done without them: {:?}", rig.events);
    rig.commit_slowly(at, step, step * 4);
    assert!(rig.is_armed() && rig.is_late(), "it is bounded: {:?}", rig.events);
    assert!(rig.now.since(began) < several + step * 3);
}

#[test]
fn plan_without_following_is_armed_once_connected() {
    let rig = Rig::growing(false);
    assert!(!rig.machine.record().next.as_ref().unwrap().following);
    assert!(rig.is_armed());
}

/// Each of the two workers gains a segment while it trains with the other one.
#[test]
fn following_requires_room_on_all_gaining_members() {
    let rig = widening(10);
    let next = rig.machine.record().next.clone().unwrap();
    assert!(next.following && !rig.is_armed());
    assert_eq!(next.reason, "3 workers in place of 2");
    let rig = widening(9);
    let next = rig.machine.record().next.clone().unwrap();
    assert!(!next.following, "a member would run out of memory");
    assert!(rig.is_armed(), "nobody is waited for");
    assert!(next.shape.predicted.move_ms > 2.0, "it is priced as what it is");
    let reason = "3 workers in place of 2; it is not followed, since w1 has no room for what it gets";
    assert_eq!(next.reason, reason);
}

#[test]
fn a_change_is_not_held_up_once_a_member_will_go() {
    let mut rig = Rig::growing(true);
    let draining = true;
    rig.say(B, Report::Status(Status { draining, ..able() }));
    assert!(!rig.is_armed(), "it is cancelled instead");
    let cancelled = |e: &Event| matches!(e, Event::Cancelled { .. });
    rig.wait(100);
    assert!(rig.events.iter().any(cancelled), "{:?}", rig.events);
}

#[test]
fn later_notice_waits_for_the_next_plan() {
    let mut rig = Rig::growing(true);
    rig.train_on(Duration::from_millis(400), Following::Able);
    let lead = config().timing.following;
    rig.put(CoordinatorInput::Notice {
        worker: A,
        leaves_in: Some(lead * 3),
    });
    assert!(rig.machine.record().next.as_ref().unwrap().has(A));
    rig.train_on(Duration::from_millis(200), Following::CaughtUp);
    assert!(rig.is_armed(), "the newcomer trains until the other one goes");
}

#[test]
fn change_is_cancelled_if_a_member_will_leave() {
    let mut rig = Rig::growing(true);
    rig.train_on(Duration::from_millis(400), Following::Able);
    let leaving = Status {
        draining: true,
        ..present()
    };
    rig.say(A, Report::Status(leaving));
    assert!(!rig.is_armed());
    let cancelled = |e: &Event| matches!(e, Event::Cancelled { .. });
    assert!(rig.events.iter().any(cancelled), "{:?}", rig.events);
    assert_eq!(rig.fenced(), None, "and nothing is recovered");
}

#[test]
fn start_time_counts_from_the_switch() {
    let mut rig = Rig::growing(true);
    let timing = config().timing;
    let next = rig.machine.record().next.clone().unwrap();
    let allowed = next.deadline.of(Step(0), &RecentSteps::default()) + timing.launch;
    // The change waits for its new workers, and then for a step; together longer than a start may take.
    rig.train_on(timing.following, Following::Able);
    rig.say(B, newcomer(Following::CaughtUp));
    rig.train_on(allowed, Following::CaughtUp);
    rig.load_for(allowed);
    assert_eq!(rig.fenced(), None, "the members have the whole time");
    rig.load_for(Duration::from_millis(200));
    let because = "generation 2 did not start in time";
    assert_eq!(rig.fenced(), Some(because), "and no more than that");
}

/// The decision of a step after `at`.
fn step_after(at: StateId, generation: u64) -> Decision {
    Decision::conclude(at, Generation(generation), &[norm(1.0); 2], None)
}

/// One worker has trained four steps. Another one has followed both units and is about to train with it. There is a checkpoint of the
/// second step. Returns the decisions of the steps.
fn with_follower() -> (Rig, Vec<Decision>) {
    let mut rig = Rig::growing(true);
    let (mut at, mut decisions) = (StateId::INITIAL, vec![]);
    for _ in 0..4 {
        let decision = step_after(at, 1);
        at = decision.id;
        decisions.push(decision);
        rig.wait(50);
        rig.say(A, Report::Committed { decision });
        rig.say(A, Report::Status(Status { at, ..present() }));
        rig.say(B, newcomer(Following::Able));
    }
    rig.complete.push(decisions[1].id);
    rig.say(B, newcomer(Following::CaughtUp));
    assert!(rig.is_armed());
    (rig, decisions)
}

/// The source is gone. The follower says so, is fenced, and reports that it holds both units at the state of this decision.
fn source_dies(rig: &mut Rig, held: Decision) {
    rig.say(B, suspect(2, A));
    rig.put(CoordinatorInput::StreamDown { from: A });
    let upto = Generation(2);
    assert!(rig.sent.contains(&(B, Order::Fence { upto })), "{:?}", rig.events);
    let inventory = Inventory {
        upto,
        units: [Unit(0), Unit(1)].map(|unit| (unit, held.id)).into(),
        prepared: BTreeMap::new(),
        ran: None,
        decision: Some(held),
    };
    rig.say(B, Report::Inventory(inventory));
}

/// Asserts that the plan in force has the follower as its only worker and its only source, at the state of this decision.
fn assert_resumed_by_follower(rig: &Rig, held: Decision) {
    let plan = rig.plan();
    assert_eq!((plan.generation, plan.members()), (Generation(3), [B].as_slice()));
    assert_eq!(plan.sources, [[B], [B]], "each unit has one source");
    let base = Base::Fixed {
        id: held.id,
        decision: Some(held),
        checkpoint: false,
    };
    assert_eq!(plan.base, base);
    let resumed = Event::Resumed {
        generation: Generation(3),
        base: held.id,
        finished: true,
        restored: false,
    };
    assert!(rig.events.contains(&resumed), "{:?}", rig.events);
}

/// The steps whose commits were published, in order.
fn published(rig: &Rig) -> Vec<u64> {
    let step = |event: &Event| match event {
        Event::Committed { step, .. } => Some(step.0),
        _ => None,
    };
    rig.events.iter().filter_map(step).collect()
}

/// A store that does not answer holds nothing up, which shows that no checkpoint is needed.
#[test]
fn the_run_resumes_from_an_only_follower_and_loses_no_step() {
    for listing in [Answer::Now, Answer::Never] {
        let (mut rig, decisions) = with_follower();
        rig.listing = listing;
        let newest = decisions[3];
        source_dies(&mut rig, newest);
        assert_resumed_by_follower(&rig, newest);
        let prepare = |(to, order): &(WorkerId, Order)| match order {
            Order::Prepare(plan) => *to == B && plan.generation == Generation(3),
            _ => false,
        };
        assert!(rig.sent.iter().any(prepare), "it is told");
        for phase in [Phase::Ready, Phase::Running] {
            rig.status(B, 3, phase, newest.id);
        }
        let generation = Generation(3);
        assert!(rig.sent.contains(&(B, Order::Go { generation })));
        let decision = step_after(newest.id, 3);
        rig.say(B, Report::Committed { decision });
        assert_eq!(published(&rig), [1, 2, 3, 4, 5], "each step once");
    }
}

/// The source died after it had sent the gradient and the decision of a step, and before it reported the commit.
#[test]
fn a_step_only_the_follower_knows_survives_its_source() {
    let (mut rig, decisions) = with_follower();
    let unreported = step_after(decisions[3].id, 1);
    source_dies(&mut rig, unreported);
    assert_resumed_by_follower(&rig, unreported);
    assert_eq!(published(&rig), [1, 2, 3, 4, 5]);
}

/// The last gradient had not arrived when the source was lost.
#[test]
fn a_step_the_follower_lacks_is_given_up_once_its_source_ends() {
    let (mut rig, decisions) = with_follower();
    source_dies(&mut rig, decisions[2]);
    rig.wait(100);
    assert_eq!(rig.plan().generation, Generation(1), "the source may come back");
    rig.put(CoordinatorInput::ProcessEnded { worker: A });
    rig.put(CoordinatorInput::Tick);
    assert_resumed_by_follower(&rig, decisions[2]);
}
