//! What a coordinator checks before it relies on it, and the limits of its waits.

use super::*;

/// Both units at this state.
fn all_at(id: StateId) -> [(Unit, StateId); 2] {
    [(Unit(0), id), (Unit(1), id)]
}

/// The inventory of a worker that holds both units, and that may be prepared for the next step.
fn inventory(upto: u64, held: StateId, prepared: bool) -> Inventory {
    let (run_gen, step) = (held.run_gen, held.step);
    let part = Prepared {
        run_gen,
        step,
        norm: norm(1.0),
    };
    let ran = Ran {
        generation: run_gen,
        step,
        norm_put_in: true,
    };
    Inventory {
        upto: Generation(upto),
        units: all_at(held).into(),
        prepared: prepared
            .then_some([(Unit(0), part), (Unit(1), part)])
            .into_iter()
            .flatten()
            .collect(),
        ran: prepared.then_some(ran),
        decision: None,
    }
}

fn base(plan: &Plan) -> (StateId, Option<Decision>) {
    match plan.base {
        Base::Fixed { id, decision, .. } => (id, decision),
        Base::AtSwitch { .. } => panic!("not a recovery's plan"),
    }
}

impl Rig {
    fn is_fenced(&self) -> bool {
        self.sent.iter().any(|(_, o)| matches!(o, Order::Fence { .. }))
    }

    /// The workers continue in this generation at this state.
    fn running(&mut self, workers: &[WorkerId], generation: u64, at: StateId, ms: u64) {
        for _ in 0..ms.div_ceil(50) {
            self.wait(50);
            for worker in workers {
                self.status(*worker, generation, Phase::Running, at);
            }
        }
    }

    /// The coordinator fences, and these workers answer.
    fn recovered(&mut self, workers: &[WorkerId], held: StateId) {
        self.say(A, suspect(self.store.highest.0, B));
        for worker in workers {
            self.answer(*worker, &all_at(held));
        }
    }

    /// A trains alone, and B is about to join: generation 2 is written.
    fn changing() -> Self {
        let mut rig = Rig::training(&[A]);
        rig.wait(100);
        rig.join(B);
        assert_eq!(rig.store.next.as_ref().map(|n| n.generation), Some(Generation(2)));
        rig
    }

    /// A trains alone, and the record with a change is being written.
    fn writing() -> (Self, Record) {
        let mut rig = Rig::training(&[A]);
        rig.wait(100);
        rig.manual = true;
        rig.join(B);
        let record = rig.written.clone().expect("a change is written");
        (rig, record)
    }
}

#[test]
fn committed_step_is_not_finished_again() {
    let mut rig = Rig::training(&[A, B]);
    let parent = state(1, 5);
    let committed = Decision::conclude(parent, Generation(1), &[norm(1.0), norm(1.0)], None).id;
    rig.say(A, suspect(1, B));
    rig.say(A, Report::Inventory(inventory(1, committed, false)));
    rig.say(B, Report::Inventory(inventory(1, parent, true)));
    assert_eq!(base(&rig.plan()), (committed, None));
    assert_eq!(rig.plan().sources, [[A], [A]]);
}

#[test]
fn gradient_requires_the_state_before_its_decision() {
    let mut rig = Rig::training(&[A, B]);
    let decision = Decision::conclude(state(1, 5), Generation(1), &[norm(1.0), norm(1.0)], None);
    let other = StateId {
        chain: Chain(9),
        ..state(1, 5)
    };
    rig.say(A, suspect(1, B));
    let half = Inventory {
        units: [(Unit(0), decision.id)].into(),
        decision: Some(decision),
        ..inventory(1, decision.id, false)
    };
    rig.say(A, Report::Inventory(half));
    rig.say(B, Report::Inventory(inventory(1, other, true)));
    assert_eq!(base(&rig.plan()).0, other, "unit 1 of step 6 is lost");
}

#[test]
fn answer_to_an_earlier_fence_is_ignored() {
    let mut rig = Rig::training(&[A, B]);
    rig.recovered(&[A, B], state(1, 4));
    for worker in [A, B] {
        rig.status(worker, 2, Phase::Running, state(2, 6));
    }
    rig.say(A, suspect(2, B));
    rig.say(A, Report::Inventory(inventory(1, state(1, 4), false)));
    rig.answer(B, &all_at(state(2, 6)));
    assert_eq!(rig.store.highest, Generation(2), "A has not answered");
    rig.answer(A, &all_at(state(2, 6)));
    assert_eq!(rig.plan().sources, [[A, B], [A, B]]);
}

#[test]
fn who_has_gone_since_its_answer_is_no_source_of_the_next_plan() {
    let mut rig = Rig::training(&[A, B]);
    rig.say(A, suspect(1, B));
    rig.answer(A, &all_at(state(1, 4)));
    rig.put(CoordinatorInput::StreamDown { from: A });
    rig.answer(B, &all_at(state(1, 4)));
    assert_eq!(rig.plan().sources, [[B], [B]]);
}

#[test]
fn each_write_has_the_coordinators_term() {
    let (mut rig, record) = Rig::writing();
    let term = record.term;
    rig.store.term = 0;
    rig.put(CoordinatorInput::Written { ok: false, record });
    rig.written = None;
    rig.running(&[A], 1, state(1, 1), 300);
    assert_eq!(rig.written.map(|r| r.term), Some(term));
}

#[test]
fn generations_continue_after_those_of_the_store() {
    let mut rig = Rig::with(config(), Record::default());
    rig.complete = vec![state(7, 3)];
    rig.wait(100);
    rig.join(A);
    rig.answer(A, &[]);
    rig.wait(60);
    assert_eq!(rig.plan().generation, Generation(8));
    assert_eq!(base(&rig.plan()).0, state(7, 3));
}

#[test]
fn run_is_done_only_in_the_generation_in_force() {
    let mut rig = Rig::training(&[A, B]);
    rig.recovered(&[A, B], state(1, 8));
    let mut done = |generation, phase, at| {
        for worker in [A, B] {
            rig.status(worker, generation, phase, at);
        }
        rig.wait(250);
        rig.store.done
    };
    let before = state(1, 10); // the state that they had before steps were given up
    assert!(!done(1, Phase::Running, before));
    assert!(!done(2, Phase::Loading, before));
    assert!(done(2, Phase::Running, state(2, 10)));
}

#[test]
fn silent_member_without_commits_starts_a_recovery() {
    let mut rig = Rig::training(&[A, B]);
    rig.put(CoordinatorInput::StreamDown { from: B });
    rig.running(&[A], 1, StateId::INITIAL, 200);
    assert!(!rig.is_fenced(), "it may come back");
    rig.running(&[A], 1, StateId::INITIAL, 100);
    assert!(rig.is_fenced());
}

#[test]
fn possibly_armed_change_is_ended_by_a_fence() {
    let mut rig = Rig::with(config(), Rig::changing().store);
    rig.join(A);
    while !rig.is_fenced() {
        assert!(
            rig.now < Time(0).after(Duration::from_secs(4)),
            "it is waited for as long as a launch and a first step"
        );
        assert!(rig.store.next.is_some(), "cancelled");
        rig.running(&[A], 1, StateId::INITIAL, 50);
    }
    assert!(rig.sent.contains(&(A, Order::Fence { upto: Generation(2) })));
}

#[test]
fn new_coordinator_waits_for_members_of_the_plan() {
    let timing = Timing::default();
    let store = Rig::training(&[A, B]).store;
    let mut rig = Rig::with(CoordinatorConfig { timing, ..config() }, store);
    rig.join(A);
    assert!(timing.grace < timing.settle);
    rig.running(&[A], 1, state(1, 4), 2_900);
    rig.join(B);
    rig.running(&[A, B], 1, state(1, 4), 200);
    assert!(!rig.is_fenced());
}

#[test]
fn a_planned_change_does_not_postpone_that_a_death_is_noticed() {
    let mut rig = Rig::training(&[A, B]);
    rig.wait(100);
    rig.join(C);
    rig.put(CoordinatorInput::StreamDown { from: B });
    rig.running(&[A], 1, StateId::INITIAL, 100);
    rig.put(CoordinatorInput::StreamDown { from: C });
    rig.running(&[A], 1, StateId::INITIAL, 100);
    assert!(rig.store.next.is_none(), "the change is cancelled");
    rig.running(&[A], 1, StateId::INITIAL, 100);
    assert!(rig.is_fenced());
}

#[test]
fn a_drained_worker_is_not_released_before_it_is_idle() {
    let mut rig = Rig::training(&[A, B]);
    rig.wait(100);
    rig.put(CoordinatorInput::Notice {
        worker: B,
        leaves_in: None,
    });
    rig.status(B, 2, Phase::Source, state(1, 1));
    for phase in [Phase::Ready, Phase::Running] {
        rig.status(A, 2, phase, state(1, 1));
    }
    rig.wait(50);
    assert!(!rig.sent.contains(&(B, Order::Release)));
    rig.say(B, Report::Status(idle()));
    assert!(rig.sent.contains(&(B, Order::Release)));
}

#[test]
fn change_is_cancelled_if_a_joiner_has_notice() {
    let mut rig = Rig::changing();
    rig.put(CoordinatorInput::Notice {
        worker: B,
        leaves_in: None,
    });
    rig.wait(20);
    assert!(rig.store.next.is_none());
    assert!(!rig.is_fenced(), "training goes on");
}

#[test]
fn fenced_member_of_a_change_starts_a_recovery() {
    let mut rig = Rig::changing();
    let fenced = Generation(2);
    rig.say(B, Report::Status(Status { fenced, ..idle() }));
    assert!(rig.is_fenced());
}

#[test]
fn four_deadlines_without_commit_start_a_recovery() {
    let mut rig = Rig::training(&[A, B]);
    // Nothing was observed yet, so each of the four deadlines is doubled twice.
    let four = Timing::model().deadline_floor * 4 * 4;
    rig.running(&[A, B], 1, StateId::INITIAL, four.as_millis() as u64 - 100);
    assert!(!rig.is_fenced());
    rig.running(&[A, B], 1, StateId::INITIAL, 200);
    assert!(rig.is_fenced());
}

#[test]
fn workers_that_will_go_are_used_where_too_few_others_are_left() {
    let few = CoordinatorConfig {
        min_workers: 2,
        ..config()
    };
    let mut rig = Rig::training_with(few, &[A, B, C]);
    lose_one_and_notify_another(&mut rig);
    assert_eq!(rig.plan().members(), [A, B]);
}

/// Of three workers one is lost, and another one has a notice.
fn lose_one_and_notify_another(rig: &mut Rig) {
    rig.say(A, suspect(1, C));
    rig.put(CoordinatorInput::StreamDown { from: C });
    rig.put(CoordinatorInput::Notice {
        worker: B,
        leaves_in: None,
    });
    for worker in [A, B] {
        rig.answer(worker, &all_at(state(1, 4)));
    }
}

/// Like [`DataParallelPlanner`], but one worker alone has too little memory for the model.
struct MemoryLimitedPlanner;

impl Planner for MemoryLimitedPlanner {
    fn plan(&self, request: &PlanRequest) -> Result<Shape, Infeasible> {
        match request.workers.len() {
            1 => Err(Infeasible("one worker has no room for the model".into())),
            _ => DataParallelPlanner.plan(request),
        }
    }
}

#[test]
fn leaving_workers_are_used_if_indispensable() {
    let mut rig = Rig::training(&[A, B, C]);
    rig.machine.shared.planner = Box::new(MemoryLimitedPlanner);
    lose_one_and_notify_another(&mut rig);
    assert_eq!(rig.plan().members(), [A, B]);
    let without = |e: &Event| matches!(e, Event::NoPlan { .. });
    assert!(!rig.events.iter().any(without), "{:?}", rig.events);
}

#[test]
fn stop_during_a_write_fences_that_plan_too() {
    let (mut rig, record) = Rig::writing();
    rig.put(CoordinatorInput::Stop);
    rig.put(CoordinatorInput::Written { ok: true, record });
    rig.wait(50);
    assert!(rig.sent.contains(&(A, Order::Fence { upto: Generation(2) })));
}

#[test]
fn answer_to_an_earlier_write_is_ignored() {
    let (mut rig, record) = Rig::writing();
    for ok in [false, true] {
        let earlier = rig.store.clone();
        rig.put(CoordinatorInput::Written { ok, record: earlier });
        assert_eq!(rig.machine.snapshot().run.mode, RunMode::Persisting);
    }
    rig.put(CoordinatorInput::Written { ok: true, record });
    assert!(rig.machine.record().next.is_some());
}

#[test]
fn refused_writes_are_retried_with_growing_pauses() {
    let mut rig = Rig::training(&[A, B]);
    rig.manual = true;
    rig.say(A, suspect(1, B));
    rig.put(CoordinatorInput::StreamDown { from: B });
    let mut refused_at = vec![];
    for _ in 0..500 {
        rig.sent.retain(|(_, order)| matches!(order, Order::Fence { .. }));
        if rig.sent.pop().is_some() {
            rig.answer(A, &all_at(state(1, 4)));
        }
        rig.wait(10);
        if let Some(record) = rig.written.take() {
            refused_at.push(rig.now.since(Time(0)).as_millis() as u64);
            rig.put(CoordinatorInput::Written { ok: false, record });
        }
    }
    let pauses: Vec<u64> = refused_at.windows(2).map(|w| w[1] - w[0]).collect();
    assert!(pauses[0] <= 20, "{pauses:?}");
    let repeat = Timing::model().repeat.as_millis() as u64;
    assert!(
        pauses[1..]
            .iter()
            .all(|p| (repeat..=repeat * 8 + 100).contains(p)),
        "{pauses:?}"
    );
    assert!(pauses[4..].iter().all(|p| *p >= repeat * 8), "{pauses:?}");
    rig.manual = false;
    rig.wait(300);
    rig.answer(A, &all_at(state(1, 4)));
    assert_eq!(rig.plan().members(), [A]);
}
