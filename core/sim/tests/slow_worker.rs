//! A coordinator with the real planner, and workers that only report. A slow worker gets less work; noise in the measurements never causes
//! a change.

use std::collections::BTreeMap;
use std::time::Duration;
use varuna_model::{Transformer, gpt2};
use varuna_plan::state::{Chain, mix};
use varuna_plan::{
    Constraints, CostPlanner, Costs, Device, Generation, Plan, Recompute, ScheduleKind, ScheduleSpec,
    SegmentRange, StateId, Step, WorkerId,
};
use varuna_protocol::Listing;
use varuna_protocol::coordinator::{
    CoordinatorConfig, CoordinatorEffect, CoordinatorInput, Event, Hello, Observed, Timing,
};
use varuna_protocol::{Coordinator, Inventory, Phase, Record, Report, Status, Time};

const WORKERS: [WorkerId; 3] = [WorkerId(1), WorkerId(2), WorkerId(3)];

fn costs() -> Costs {
    let gpt = Transformer {
        layers: 10,
        hidden_size: 256,
        sequence_length: 64,
        vocabulary_size: 100,
        tied_head: false,
        ..gpt2::SMALL
    };
    Costs::estimate(&gpt.spec(), Device::CPU_CORE)
}

fn planner(depth: u32) -> CostPlanner {
    CostPlanner {
        costs: costs(),
        constraints: Constraints {
            min_workers: 1,
            max_workers: u32::MAX,
            micro_batch_size: Some(1),
            min_depth: depth,
            max_depth: Some(depth),
            schedules: vec![ScheduleSpec {
                kind: ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 },
                recompute: Recompute::None,
            }],
            device_memory_bytes: None,
        },
    }
}

/// A coordinator, its store, and a clock.
struct Rig {
    machine: Coordinator,
    now: Time,
    store: Record,
    events: Vec<Event>,
    step: u64,
}

fn status(generation: u64, phase: Phase, step: u64) -> Status {
    let running = generation > 0;
    Status {
        generation: Generation(generation),
        fenced: Generation(0),
        phase,
        based: running,
        connected: running,
        next: Generation(0),
        next_connected: false,
        following: varuna_protocol::Following::Unable,
        keeping: varuna_protocol::Keeping::Unable,
        parameters_first: false,
        at: StateId {
            run_gen: Generation(if step > 0 { generation } else { 0 }),
            step: Step(step),
            chain: if step > 0 {
                Chain(step)
            } else {
                StateId::INITIAL.chain
            },
        },
        draining: false,
        last_step: Step(0),
    }
}

impl Rig {
    /// Three workers that run generation 1.
    fn training(depth: u32) -> Rig {
        let config = CoordinatorConfig {
            timing: Timing::model(),
            tree_fan_out: 2,
            ..CoordinatorConfig::new(costs().layout(), 24, Step(1_000_000))
        };
        let mut rig = Rig {
            machine: Coordinator::new(config, Box::new(planner(depth))),
            now: Time(1),
            store: Record::default(),
            events: Vec::new(),
            step: 0,
        };
        rig.put(CoordinatorInput::Tick);
        for from in WORKERS {
            let hello = Hello {
                address: format!("{from}:1"),
                name: format!("w{}", from.0),
                node: String::new(),
                hardware: None,
                memory_bytes: None,
                copies_bytes: None,
                scores: None,
                speed: 1.0,
            };
            rig.put(CoordinatorInput::StreamUp { from, hello });
            rig.say(from, Report::Status(status(0, Phase::Idle, 0)));
        }
        for from in WORKERS {
            let inventory = Inventory {
                upto: rig.store.highest,
                units: BTreeMap::new(),
                prepared: BTreeMap::new(),
                ran: None,
                decision: None,
            };
            rig.say(from, Report::Inventory(inventory));
        }
        rig.wait(60);
        for phase in [Phase::Ready, Phase::Running] {
            for from in WORKERS {
                rig.say(from, Report::Status(status(1, phase, 0)));
            }
        }
        assert_eq!(rig.plan().members(), WORKERS);
        rig
    }

    fn put(&mut self, input: CoordinatorInput) {
        let mut effects = Vec::new();
        self.machine.handle(self.now, input, &mut effects);
        for effect in effects {
            match effect {
                CoordinatorEffect::Write { expect, record } => {
                    let ok = expect == self.store.version;
                    if ok {
                        self.store = record.clone();
                    }
                    self.put(CoordinatorInput::Written { ok, record });
                }
                CoordinatorEffect::ReadRecord => {
                    let record = self.store.clone();
                    self.put(CoordinatorInput::Record(record));
                }
                CoordinatorEffect::ListCheckpoints => {
                    self.put(CoordinatorInput::Checkpoints(Listing::fresh(vec![
                        StateId::INITIAL,
                    ])));
                }
                CoordinatorEffect::DiscardCheckpoint { .. } => {}
                CoordinatorEffect::Event(event) => self.events.push(event),
                CoordinatorEffect::Send { .. } | CoordinatorEffect::Finish(_) => {}
            }
        }
    }

    fn wait(&mut self, ms: u64) {
        for _ in 0..ms / 10 {
            self.now = self.now.after(Duration::from_millis(10));
            self.put(CoordinatorInput::Tick);
        }
    }

    fn say(&mut self, from: WorkerId, report: Report) {
        self.put(CoordinatorInput::Report { from, report });
    }

    fn plan(&self) -> Plan {
        Plan::clone(self.store.plan.as_ref().expect("a plan"))
    }

    /// Runs one step of generation 1: each worker reports its observed times, which are off by up to `noise`.
    fn run(&mut self, speeds: [f64; 3], noise: f64) {
        let plan = self.plan();
        let costs = costs();
        self.wait(100);
        self.step += 1;
        for (from, speed) in WORKERS.into_iter().zip(speeds) {
            let (i, j) = plan.shape.place(from).expect("a place");
            let range = plan.shape.pipelines[i].stages[j].segments;
            let time = |start: u32| {
                let one = SegmentRange {
                    start,
                    end: start + 1,
                };
                let draw = mix(mix(self.step, from.0), u64::from(start)) % 1000;
                let off = 1.0 + noise * (draw as f64 / 500.0 - 1.0);
                (
                    start,
                    (costs.forward_ms(one, 1) + costs.backward_ms(one, 1)) * off / speed,
                )
            };
            let observed = Observed {
                generation: plan.generation,
                step: Step(self.step),
                micro_batch_size: 1,
                busy_ms: 100.0,
                segments: (range.start..range.end).map(time).collect(),
            };
            self.put(CoordinatorInput::Observed { from, observed });
            self.say(from, Report::Status(status(1, Phase::Running, self.step)));
        }
    }
}

#[test]
fn a_slow_stage_is_given_fewer_segments_after_a_window_of_steps() {
    let mut rig = Rig::training(3);
    for _ in 0..19 {
        rig.run([1.0, 0.5, 1.0], 0.1);
    }
    assert_eq!(rig.store.next, None, "a window is not over");
    rig.run([1.0, 0.5, 1.0], 0.1);
    rig.wait(20);
    let next = rig.store.next.clone().expect("a plan for the slow worker");
    let segments = |plan: &Plan| {
        let (i, j) = plan.shape.place(WORKERS[1]).unwrap();
        let r = plan.shape.pipelines[i].stages[j].segments;
        r.end - r.start
    };
    assert!(segments(&next) < segments(&rig.plan()), "{next:?}");
    assert!(next.reason.starts_with("w2 computes at 0.5"), "{}", next.reason);
    assert!(rig.events.iter().all(|e| !matches!(e, Event::Fenced { .. })));
}

#[test]
fn a_slow_pipeline_is_given_fewer_samples() {
    let mut rig = Rig::training(1);
    for _ in 0..25 {
        rig.run([0.5, 1.0, 1.0], 0.1);
    }
    let next = rig.store.next.clone().expect("a plan for the slow worker");
    let samples = |w| {
        let (i, _) = next.shape.place(w).unwrap();
        next.shape.pipelines[i].samples.len()
    };
    assert!(samples(WORKERS[0]) < samples(WORKERS[1]), "{next:?}");
}

#[test]
fn noise_never_changes_a_plan() {
    for depth in [1, 3] {
        let mut rig = Rig::training(depth);
        for _ in 0..500 {
            rig.run([1.0, 0.97, 1.03], 0.3);
        }
        assert_eq!(rig.store.highest, Generation(1), "{:?}", rig.store.next);
    }
}

#[test]
fn a_worker_that_is_a_little_slow_is_not_worth_a_plan() {
    let mut rig = Rig::training(3);
    for _ in 0..100 {
        rig.run([1.0, 0.92, 1.0], 0.05);
    }
    assert_eq!(rig.store.highest, Generation(1));
}
