mod adaptive_checkpoints;
mod ahead;
mod checkpoints;
mod comparing;
mod data_errors;
mod divergence;
mod domains;
mod estimates;
mod exhausted;
mod following;
mod guards;
mod joining;
mod last_step;
mod launching;
mod left_out;
mod notices;
mod parameters_first;
mod promotion;
mod resuming;
mod reviewed;
mod spare_copies;
mod stopped;
mod unanswered;
mod unreported_commits;
mod waiting;

use super::*;
use crate::message::{Inventory, Order, Phase, Prepared, Ran, Report, Status, Suspicion};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use varuna_plan::state::{Chain, UnitNorm};
use varuna_plan::{
    Base, Decision, Infeasible, Layout, Pipeline, PlanRequest, Prediction, Recompute, SampleRange,
};
use varuna_plan::{Generation, OptimizerProgress, Plan, Planner, StateId, Unit, WorkerId};
use varuna_plan::{ScheduleKind, ScheduleSpec, SegmentRange, Shape, Stage, Step};

thread_local! {
    /// Number of plans that were made in this test.
    static MADE: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    /// The cost that plans report for moving state.
    static MOVE_MS: std::cell::Cell<f64> = const { std::cell::Cell::new(0.0) };
}

/// A planner that makes one pipeline for each worker. With more workers the step is faster.
struct DataParallelPlanner;

impl Planner for DataParallelPlanner {
    fn plan(&self, request: &PlanRequest) -> Result<Shape, Infeasible> {
        MADE.set(MADE.get() + 1);
        let n = request.workers.len() as u64;
        let all = request.layout.whole();
        let pipelines = (0..).zip(&request.workers).map(|(i, w)| Pipeline {
            stages: vec![Stage {
                recompute: None,
                worker: w.id,
                segments: all,
            }],
            samples: SampleRange {
                start: 8 * i / n,
                end: 8 * (i + 1) / n,
            },
        });
        Ok(Shape {
            pipelines: pipelines.collect(),
            spares: vec![],
            micro_batch_size: 1,
            schedule: ScheduleSpec {
                kind: ScheduleKind::Gpipe,
                recompute: Recompute::None,
            },
            predicted: Prediction {
                step_ms: 100.0 / n as f64,
                move_ms: MOVE_MS.get(),
                ..Prediction::default()
            },
        })
    }
}

/// How the store answers a request for its checkpoints.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Now,
    /// The store does not answer, and an earlier listing is returned.
    FromMemory,
    Never,
}

/// A coordinator, its store, and workers whose messages the test sends.
struct Rig {
    machine: Coordinator,
    now: Time,
    store: Record,
    /// Whether the test answers writes itself.
    manual: bool,
    /// Number of next reads of the record that fail without an answer.
    failing_reads: usize,
    /// The last record that was written.
    written: Option<Record>,
    sent: Vec<(WorkerId, Order)>,
    /// The complete checkpoints in the store.
    complete: Vec<StateId>,
    damaged: Vec<StateId>,
    listing: Answer,
    /// Damaged checkpoints that were deleted.
    discarded: Vec<StateId>,
    events: Vec<Event>,
    finished: Option<Outcome>,
}

const A: WorkerId = WorkerId(1);
const B: WorkerId = WorkerId(2);
const C: WorkerId = WorkerId(3);

fn config() -> CoordinatorConfig {
    let layout = Layout::new(2, false);
    CoordinatorConfig {
        timing: Timing::model(),
        tree_fan_out: 2,
        ..CoordinatorConfig::new(layout, 8, Step(10))
    }
}

impl Rig {
    fn with(config: CoordinatorConfig, store: Record) -> Self {
        let machine = Coordinator::new(config, Box::new(DataParallelPlanner));
        let mut rig = Rig {
            machine,
            now: Time(1),
            store,
            manual: false,
            failing_reads: 0,
            written: None,
            sent: vec![],
            discarded: vec![],
            complete: vec![StateId::INITIAL],
            damaged: vec![],
            listing: Answer::Now,
            events: vec![],
            finished: None,
        };
        rig.put(CoordinatorInput::Tick);
        rig
    }

    fn put(&mut self, input: CoordinatorInput) {
        let mut effects = vec![];
        self.machine.handle(self.now, input, &mut effects);
        for effect in effects {
            match effect {
                CoordinatorEffect::Send { to, order } => self.sent.push((to, order)),
                CoordinatorEffect::Write { expect, record } if !self.manual => {
                    let ok = expect == self.store.version;
                    if ok {
                        self.store = record.clone();
                    }
                    self.put(CoordinatorInput::Written { ok, record });
                }
                CoordinatorEffect::Write { record, .. } => self.written = Some(record),
                CoordinatorEffect::ReadRecord if self.failing_reads > 0 => self.failing_reads -= 1,
                CoordinatorEffect::ReadRecord => {
                    let record = self.store.clone();
                    self.put(CoordinatorInput::Record(record));
                }
                CoordinatorEffect::ListCheckpoints => {
                    // the initial state does not count once a step was committed, even if it is in the list
                    self.list();
                }
                CoordinatorEffect::DiscardCheckpoint { id } => {
                    self.damaged.retain(|damaged| *damaged != id);
                    self.discarded.push(id);
                    self.list();
                }
                CoordinatorEffect::Event(event) => self.events.push(event),
                CoordinatorEffect::Finish(outcome) => self.finished = Some(outcome),
            }
        }
    }

    fn wait(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(10) {
            self.now = self.now.after(Duration::from_millis(10));
            self.put(CoordinatorInput::Tick);
        }
    }

    /// The worker keeps reporting, but does not train.
    fn wait_with(&mut self, from: WorkerId, ms: u64) {
        for _ in 0..ms.div_ceil(100) {
            self.wait(100);
            self.say(from, Report::Status(idle()));
        }
    }

    /// Sends a report, and then the clock's next tick.
    fn say(&mut self, from: WorkerId, report: Report) {
        self.put(CoordinatorInput::Report { from, report });
        self.put(CoordinatorInput::Tick);
    }

    fn join(&mut self, from: WorkerId) {
        self.join_as(from, &format!("w{}", from.0));
    }

    fn join_as(&mut self, from: WorkerId, name: &str) {
        let hello = Hello {
            address: format!("{from}:1"),
            name: name.to_owned(),
            node: String::new(),
            hardware: None,
            memory_bytes: None,
            copies_bytes: None,
            scores: None,
            speed: 1.0,
        };
        self.put(CoordinatorInput::StreamUp { from, hello });
        self.say(from, Report::Status(idle()));
    }

    fn answer(&mut self, from: WorkerId, units: &[(Unit, StateId)]) {
        let inventory = Inventory {
            upto: self.machine.record().highest,
            units: units.iter().copied().collect(),
            prepared: BTreeMap::new(),
            ran: None,
            decision: None,
        };
        self.say(from, Report::Inventory(inventory));
    }

    fn status(&mut self, from: WorkerId, generation: u64, phase: Phase, at: StateId) {
        let generation = Generation(generation);
        let status = Status {
            generation,
            phase,
            at,
            based: true,
            connected: true,
            ..idle()
        };
        self.say(from, Report::Status(status));
    }

    fn plan(&self) -> Arc<Plan> {
        self.machine.record().plan.clone().unwrap()
    }

    /// A coordinator whose workers train in generation 1.
    fn training(workers: &[WorkerId]) -> Self {
        Rig::training_with(config(), workers)
    }

    fn training_with(config: CoordinatorConfig, workers: &[WorkerId]) -> Self {
        let mut rig = Rig::with(config, Record::default());
        for worker in workers {
            rig.join(*worker);
            rig.answer(*worker, &[]);
        }
        rig.wait(60);
        assert_eq!(rig.plan().members(), workers);
        for phase in [Phase::Ready, Phase::Running] {
            for worker in workers {
                rig.status(*worker, 1, phase, StateId::INITIAL);
            }
        }
        rig.sent.clear();
        rig.events.clear();
        rig
    }
}

fn idle() -> Status {
    Status {
        generation: Generation(0),
        fenced: Generation(0),
        phase: Phase::Idle,
        based: false,
        connected: false,
        next: Generation(0),
        next_connected: false,
        at: StateId::INITIAL,
        draining: false,
        last_step: config().last_step,
        following: crate::message::Following::Unable,
        keeping: crate::message::Keeping::Unable,
        parameters_first: false,
    }
}

fn state(run_gen: u64, step: u64) -> StateId {
    StateId {
        run_gen: Generation(run_gen),
        step: Step(step),
        chain: Chain(step + 100),
    }
}

fn norm(x: f64) -> UnitNorm {
    UnitNorm {
        norm2: x,
        overflow: false,
        before: OptimizerProgress::START,
        loss: 0.0,
        eval_loss: None,
    }
}

fn suspect(generation: u64, about: WorkerId) -> Report {
    Report::Suspect {
        generation: Generation(generation),
        about,
        why: Suspicion::Gone,
    }
}

#[test]
fn plan_is_persisted_before_it_is_sent() {
    let mut rig = Rig::with(config(), Record::default());
    assert_eq!(rig.store.term, 1);
    rig.join(A);
    rig.manual = true;
    rig.answer(A, &[]);
    rig.wait(100);
    assert!(!rig.sent.iter().any(|(_, o)| matches!(o, Order::Prepare(_))));
    let record = rig.written.clone().unwrap();
    rig.put(CoordinatorInput::Written { ok: true, record });
    assert!(
        rig.sent
            .iter()
            .any(|(to, o)| *to == A && matches!(o, Order::Prepare(_)))
    );
    let go = (
        A,
        Order::Go {
            generation: Generation(1),
        },
    );
    assert!(!rig.sent.contains(&go));
    rig.status(A, 1, Phase::Ready, StateId::INITIAL);
    assert!(rig.sent.contains(&go));
}

#[test]
fn a_draining_worker_is_planned_around_and_released_after_go() {
    let mut rig = Rig::training(&[A, B]);
    rig.wait(100);
    let draining = Status {
        generation: Generation(1),
        phase: Phase::Running,
        draining: true,
        connected: true,
        based: true,
        ..idle()
    };
    rig.say(B, Report::Status(draining));
    assert_eq!(rig.machine.record().next.as_ref().unwrap().members(), vec![A]);
    rig.say(
        B,
        Report::Status(Status {
            generation: Generation(2),
            phase: Phase::Source,
            ..draining
        }),
    );
    assert!(!rig.sent.contains(&(B, Order::Release)));
    rig.status(A, 2, Phase::Ready, state(1, 1));
    assert!(rig.sent.contains(&(
        B,
        Order::Go {
            generation: Generation(2)
        }
    )));
    rig.say(
        B,
        Report::Status(Status {
            generation: Generation(0),
            phase: Phase::Idle,
            ..draining
        }),
    );
    rig.wait(40);
    assert!(rig.sent.contains(&(B, Order::Release)));
}

#[test]
fn killed_member_starts_a_recovery() {
    let mut rig = Rig::training(&[A, B]);
    rig.say(A, suspect(1, B));
    assert!(rig.sent.contains(&(A, Order::Fence { upto: Generation(1) })));
    rig.put(CoordinatorInput::StreamDown { from: B });
    let here = state(1, 4);
    rig.answer(A, &[(Unit(0), here), (Unit(1), here)]);
    let plan = rig.plan();
    assert_eq!((plan.generation, plan.members()), (Generation(2), [A].as_slice()));
    assert_eq!(
        plan.base,
        Base::Fixed {
            id: here,
            decision: None,
            checkpoint: false
        }
    );
    assert_eq!(plan.evidence, vec![A]);
    assert!(
        rig.events
            .iter()
            .any(|e| matches!(e, Event::Collected { missing, .. } if *missing == [B]))
    );
}

#[test]
fn suspicion_during_a_write_is_kept() {
    let mut rig = Rig::training(&[A, B]);
    rig.wait(100);
    rig.manual = true;
    rig.join(WorkerId(3));
    rig.say(A, suspect(1, B));
    assert!(rig.sent.is_empty());
    let record = rig.written.clone().unwrap();
    rig.put(CoordinatorInput::Written { ok: true, record });
    assert!(rig.sent.contains(&(A, Order::Fence { upto: Generation(2) })));
}

#[test]
fn lost_state_ends_the_run_once_all_holders_are_gone() {
    let mut rig = Rig::training(&[A, B]);
    rig.status(A, 1, Phase::Running, state(1, 4));
    rig.say(A, suspect(1, B));
    rig.put(CoordinatorInput::StreamDown { from: B });
    rig.answer(A, &[(Unit(1), state(1, 4))]);
    rig.wait_with(A, 600);
    assert_eq!(rig.finished, None);
    rig.wait_with(A, 200);
    assert_eq!(rig.finished, Some(Outcome::StateLost { units: vec![Unit(0)] }));
    assert!(rig.events.contains(&Event::Lost { units: vec![Unit(0)] }));
    assert_eq!(rig.store.highest, Generation(1), "no plan was made of it");
}

#[test]
fn absent_holders_are_awaited_for_a_limited_time() {
    let patient = || {
        let mut rig = Rig::training(&[A, B]);
        rig.machine.shared.config.timing.lost = Duration::from_secs(5);
        rig.status(A, 1, Phase::Running, state(1, 4));
        rig.say(A, suspect(1, B));
        rig.put(CoordinatorInput::StreamDown { from: B });
        rig.answer(A, &[(Unit(1), state(1, 4))]);
        rig.wait(4_000);
        assert_eq!(rig.finished, None);
        rig
    };
    let mut rig = patient();
    rig.wait(2_000);
    assert!(rig.finished.is_some());
    let mut rig = patient();
    rig.put(CoordinatorInput::ProcessEnded { worker: B });
    rig.put(CoordinatorInput::Tick);
    assert!(rig.finished.is_some());
}

#[test]
fn external_notice_counts_like_the_workers_own() {
    let mut rig = Rig::training(&[A, B]);
    rig.put(CoordinatorInput::Notice {
        worker: B,
        leaves_in: None,
    });
    rig.put(CoordinatorInput::Notice {
        worker: B,
        leaves_in: None,
    });
    rig.wait(100);
    let said = |e: &&Event| matches!(e, Event::WorkerDraining { .. });
    assert_eq!(rig.events.iter().filter(said).count(), 1);
    let shown = rig.machine.snapshot().workers.into_iter();
    let draining: Vec<WorkerId> = shown.filter(|w| w.draining).map(|w| w.id).collect();
    assert_eq!(draining, [B], "people see it as well");
    assert_eq!(rig.store.next.map(|plan| plan.members().to_vec()), Some(vec![A]));
}

#[test]
fn before_the_first_commit_the_seed_replaces_whoever_is_lost() {
    let mut rig = Rig::training(&[A, B]);
    rig.say(A, suspect(1, B));
    rig.put(CoordinatorInput::StreamDown { from: B });
    rig.answer(A, &[(Unit(0), StateId::INITIAL)]);
    assert_eq!(
        rig.plan().base,
        Base::Fixed {
            id: StateId::INITIAL,
            decision: None,
            checkpoint: true
        }
    );
}

#[test]
fn too_few_workers_wait_for_another_one() {
    let mut rig = Rig::training(&[A, B]);
    rig.machine.shared.config.min_workers = 2;
    rig.say(A, suspect(1, B));
    rig.put(CoordinatorInput::StreamDown { from: B });
    let here = state(1, 4);
    rig.answer(A, &[(Unit(0), here), (Unit(1), here)]);
    rig.wait(5_000);
    rig.answer(A, &[(Unit(0), here), (Unit(1), here)]);
    assert!(rig.events.contains(&Event::BelowMinimum { have: 1, need: 2 }));
    assert_eq!(rig.machine.snapshot().run.mode, RunMode::Waiting);
    assert_eq!(rig.store.highest, Generation(1));
    assert_eq!(rig.finished, None);
    rig.status(A, 0, Phase::Idle, here);
    let late = WorkerId(3);
    rig.join(late);
    rig.wait(60);
    assert!(rig.sent.contains(&(late, Order::Fence { upto: Generation(1) })));
    rig.answer(late, &[]);
    assert_eq!(rig.plan().members(), vec![A, late]);
}

#[test]
fn a_newer_term_ends_this_coordinator() {
    let mut rig = Rig::training(&[A]);
    rig.store.term = 2;
    rig.wait(210);
    assert_eq!(rig.finished, Some(Outcome::Deposed));
}

#[test]
fn unclear_takeover_is_repeated_with_a_greater_term() {
    let mut rig = Rig {
        manual: true,
        ..Rig::with(config(), Record::default())
    };
    rig.machine = Coordinator::new(config(), Box::new(DataParallelPlanner));
    rig.store = Record {
        version: 5,
        term: 3,
        ..Record::default()
    };
    rig.put(CoordinatorInput::Tick);
    let mine = rig.written.clone().unwrap();
    // the record of another coordinator with the same numbers
    rig.store = mine.clone();
    rig.manual = false;
    rig.put(CoordinatorInput::Written {
        ok: false,
        record: mine,
    });
    rig.wait(50);
    assert_eq!((rig.machine.term(), rig.store.term), (5, 5));
}

#[test]
fn a_write_that_fails_changes_nothing_and_is_tried_again() {
    let mut rig = Rig::training(&[A]);
    rig.wait(100);
    rig.manual = true;
    rig.join(B);
    let record = rig.written.clone().unwrap();
    rig.put(CoordinatorInput::Written { ok: false, record });
    assert_eq!(rig.machine.record().next, None);
    assert!(rig.events.iter().any(|e| matches!(e, Event::WriteFailed { .. })));
    rig.manual = false;
    rig.wait(300);
    rig.status(A, 1, Phase::Running, state(1, 1));
    assert!(rig.machine.record().next.is_some());
}

#[test]
fn a_diverged_decision_in_a_plan_does_not_stop_the_coordinator() {
    let mut rig = Rig::training(&[A, B]);
    rig.say(A, suspect(1, B));
    rig.put(CoordinatorInput::StreamDown { from: B });
    let parts = [norm(f64::NAN), norm(1.0)];
    let decision = Decision::conclude(state(1, 3), Generation(1), &parts, None);
    let units = [Unit(0), Unit(1)].map(|u| (u, decision.id));
    rig.say(
        A,
        Report::Inventory(Inventory {
            upto: Generation(1),
            units: BTreeMap::from(units),
            prepared: BTreeMap::new(),
            ran: None,
            decision: Some(decision),
        }),
    );
    assert_eq!(rig.plan().generation, Generation(2));
    assert!(rig.sent.iter().any(|(_, o)| matches!(o, Order::Prepare(_))));
}

#[test]
fn each_committed_state_is_published_once_also_after_a_restart() {
    let decision = |run_gen, step| {
        let (parent, id) = (state(run_gen, step - 1), state(run_gen, step));
        let (norm2, loss) = (4.0, 1.0);
        Decision {
            parent,
            id,
            norm2,
            overflow: false,
            before: OptimizerProgress::START,
            loss,
            eval_loss: None,
            switch: None,
        }
    };
    let published = Some(state(1, 4));
    let mut rig = Rig::with(
        CoordinatorConfig {
            published,
            ..config()
        },
        Record::default(),
    );
    rig.join(A);
    // in order from one worker, repeated by another, and a late one of a history that was given up
    for (run_gen, step) in [(1, 4), (1, 5), (1, 6), (1, 5), (3, 6), (3, 7), (1, 7), (1, 6)] {
        rig.say(
            A,
            Report::Committed {
                decision: decision(run_gen, step),
            },
        );
    }
    let told = |e: &Event| match e {
        Event::Committed {
            id, gradient_norm, ..
        } => {
            assert_eq!(*gradient_norm, 2.0);
            Some((id.run_gen.0, id.step.0))
        }
        _ => None,
    };
    let told: Vec<(u64, u64)> = rig.events.iter().filter_map(told).collect();
    assert_eq!(told, vec![(1, 5), (1, 6), (3, 6), (3, 7)]);
}

#[test]
fn run_ends_after_all_members_ran_the_last_step() {
    let mut rig = Rig::training(&[A, B]);
    rig.status(A, 1, Phase::Running, state(1, 10));
    assert!(!rig.store.done);
    rig.status(B, 1, Phase::Running, state(1, 10));
    assert!(!rig.store.done, "the last steps are asked for");
    rig.wait(250);
    assert!(rig.store.done, "but not for ever");
    rig.wait(10);
    assert!(rig.sent.contains(&(A, Order::Release)) && rig.sent.contains(&(B, Order::Release)));
    rig.put(CoordinatorInput::StreamDown { from: A });
    assert_eq!(rig.finished, None);
    rig.put(CoordinatorInput::StreamDown { from: B });
    assert_eq!(rig.finished, Some(Outcome::Done));
}

#[test]
fn stopped_run_fences_and_can_be_resumed() {
    let mut rig = Rig::training(&[A]);
    rig.put(CoordinatorInput::Stop);
    assert_eq!(rig.sent, vec![(A, Order::Fence { upto: Generation(1) })]);
    rig.answer(A, &[]);
    assert!(rig.sent.contains(&(A, Order::Release)));
    rig.put(CoordinatorInput::StreamDown { from: A });
    rig.wait(10);
    assert_eq!(rig.finished, Some(Outcome::Stopped));
    assert!(!rig.store.done);
}

#[test]
fn deadline_follows_observed_steps_and_doubles_on_failure() {
    let mut rig = Rig::training(&[A, B]);
    rig.machine.shared.config.last_step = Step(100);
    assert_eq!(rig.plan().deadline.step_ns, 400_000_000, "the floor");
    for step in 1..30 {
        rig.wait(300);
        let (parent, id, norm2, loss) = (state(1, step - 1), state(1, step), 1.0, 1.0);
        let decision = Decision {
            parent,
            id,
            norm2,
            overflow: false,
            before: OptimizerProgress::START,
            loss,
            eval_loss: None,
            switch: None,
        };
        rig.say(A, Report::Committed { decision });
        rig.status(A, 1, Phase::Running, state(1, step));
        rig.status(B, 1, Phase::Running, state(1, step));
    }
    let mut deadlines = vec![];
    for generation in 1..4 {
        rig.say(A, suspect(generation, B));
        for w in [A, B] {
            rig.answer(w, &[(Unit(0), state(1, 29)), (Unit(1), state(1, 29))]);
        }
        let deadline = rig.plan().deadline;
        deadlines.push((deadline.step_ns / 1_000_000, deadline.doublings));
        for phase in [Phase::Ready, Phase::Running] {
            for w in [A, B] {
                rig.status(w, generation + 1, phase, state(1, 29));
            }
        }
    }
    assert_eq!(deadlines, vec![(1_200, 0), (1_200, 1), (1_200, 2)]);
    rig.status(A, 4, Phase::Running, state(4, 30));
    rig.say(A, suspect(4, B));
    for w in [A, B] {
        rig.answer(w, &[(Unit(0), state(4, 30)), (Unit(1), state(4, 30))]);
    }
    assert_eq!(rig.plan().deadline.doublings, 0, "a commit begins anew");
}

#[test]
fn a_failed_link_is_planned_around_and_relayed() {
    let mut rig = Rig::training(&[A, B]);
    rig.say(
        A,
        Report::Suspect {
            generation: Generation(1),
            about: B,
            why: Suspicion::Unreachable,
        },
    );
    let here = [(Unit(0), state(1, 1)), (Unit(1), state(1, 1))];
    rig.answer(A, &here);
    rig.answer(B, &here);
    let plan = rig.plan();
    assert!(plan.relay);
    assert_eq!(plan.members().len(), 1);
}

#[test]
fn silent_stream_is_lost_unless_the_coordinator_slept() {
    let mut rig = Rig::training(&[A]);
    let lost = |rig: &Rig| rig.events.iter().any(|e| matches!(e, Event::WorkerLost { .. }));
    rig.now = rig.now.after(Duration::from_secs(60));
    rig.put(CoordinatorInput::Tick);
    assert!(!lost(&rig));
    rig.wait(590);
    assert!(!lost(&rig));
    rig.wait(30);
    assert!(lost(&rig));
    let range = SegmentRange { start: 0, end: 2 };
    assert_eq!(rig.machine.snapshot().workers[0].segments, [range]);
}

#[test]
fn member_ready_in_another_generation_gets_no_go() {
    let mut rig = Rig::training(&[A, B]);
    rig.say(A, suspect(1, B));
    for w in [A, B] {
        rig.answer(w, &[(Unit(0), state(1, 4)), (Unit(1), state(1, 4))]);
    }
    assert_eq!(rig.plan().generation, Generation(2));
    let goes = |rig: &Rig| rig.sent.iter().any(|(_, o)| matches!(o, Order::Go { .. }));
    rig.sent.clear();
    rig.status(A, 1, Phase::Ready, state(1, 4));
    rig.status(B, 2, Phase::Ready, state(1, 4));
    assert!(!goes(&rig));
    rig.status(A, 2, Phase::Ready, state(1, 4));
    assert!(goes(&rig));
}
