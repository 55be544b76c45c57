//! A coordinator with its store.

use super::{ANSWERS_MAX, ITEMS_MAX, LAST, word};
use crate::targets::conversation::LAYOUT;
use crate::targets::sequence::{self, Item};
use prost::Message;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;
use varuna_checkpoint::parse_folder;
use varuna_plan::{Step, WorkerId};
use varuna_protocol::coordinator::Observed;
use varuna_protocol::{
    Coordinator, CoordinatorConfig, CoordinatorEffect, CoordinatorInput, Hello, Listing, Order, Record,
    Report, Time, Timing,
};
use varuna_sim::RandomPlanner;
use varuna_wire::{Downward, Upward, v1};

/// Samples in a step.
const BATCH: u64 = 8;

/// The kinds of items for a coordinator.
pub(in crate::targets) mod coordinator_kind {
    /// 10 ms pass, this number of times.
    pub(in crate::targets) const TICK: u8 = 0;
    /// A message of a worker.
    pub(in crate::targets) const UP: u8 = 1;
    /// A worker's stream ends.
    pub(in crate::targets) const DOWN: u8 = 2;
    /// A record that replaces the one that was written.
    pub(in crate::targets) const RECORD: u8 = 3;
    /// Names of checkpoints, one in each line.
    pub(in crate::targets) const CHECKPOINTS: u8 = 4;
    /// The next write is refused.
    pub(in crate::targets) const REFUSE: u8 = 5;
}

/// A coordinator with its store.
pub(in crate::targets) struct CoordinatorRun {
    machine: Coordinator,
    store: Record,
    now_ms: u64,
    refuse: bool,
    said: BTreeSet<String>,
}

impl CoordinatorRun {
    pub(in crate::targets) fn new(seed: u64) -> CoordinatorRun {
        let config = CoordinatorConfig {
            expected_workers: Some(2),
            timing: Timing {
                prepare_plans_every: Duration::from_millis(50),
                ..Timing::model()
            },
            save_every: Some(Duration::from_millis(100)),
            tree_fan_out: 2,
            ..CoordinatorConfig::new(LAYOUT, BATCH, LAST)
        };
        CoordinatorRun {
            machine: Coordinator::new(config, Box::new(RandomPlanner::new(seed, 2))).may_begin_anew(),
            store: Record::default(),
            now_ms: 1,
            refuse: false,
            said: BTreeSet::new(),
        }
    }

    pub(in crate::targets) fn term(&self) -> u64 {
        self.machine.term()
    }

    pub(in crate::targets) fn record(&self) -> &Record {
        self.machine.record()
    }

    /// All words that it has sent so far.
    pub(in crate::targets) fn said(&self) -> String {
        self.said.iter().map(String::as_str).collect::<Vec<_>>().join(" ")
    }

    fn input(&mut self, item: &Item) -> Option<CoordinatorInput> {
        let from = WorkerId(u64::from(item.argument));
        Some(match item.kind % 10 {
            coordinator_kind::UP => {
                let message = v1::Up::decode(item.payload.as_slice()).ok()?;
                match Upward::from_wire(message).ok()? {
                    Upward::Hello(hello) => CoordinatorInput::StreamUp {
                        from: hello.worker,
                        hello: Hello {
                            address: hello.address,
                            name: hello.name,
                            node: hello.node,
                            hardware: hello.hardware,
                            memory_bytes: hello.memory_bytes,
                            copies_bytes: hello.copies_bytes,
                            scores: hello.scores,
                            speed: hello.speed,
                        },
                    },
                    Upward::Report(report) => CoordinatorInput::Report { from, report },
                    Upward::UploadsFail { status, .. } => CoordinatorInput::Report {
                        from,
                        report: Report::Status(status),
                    },
                    Upward::Metrics(m) => CoordinatorInput::Observed {
                        from,
                        observed: Observed {
                            generation: m.generation,
                            step: m.step,
                            micro_batch_size: m.micro_batch_size,
                            busy_ms: m.forward_ms + m.backward_ms,
                            segments: m
                                .segments
                                .iter()
                                .map(|s| (s.segment, s.forward_ms + s.backward_ms))
                                .collect(),
                        },
                    },
                }
            }
            coordinator_kind::DOWN => CoordinatorInput::StreamDown { from },
            coordinator_kind::RECORD => {
                self.store = serde_json::from_slice(&item.payload).ok()?;
                CoordinatorInput::Record(self.store.clone())
            }
            coordinator_kind::CHECKPOINTS => {
                let names = String::from_utf8_lossy(&item.payload);
                CoordinatorInput::Checkpoints(Listing::fresh(
                    names.lines().filter_map(parse_folder).collect(),
                ))
            }
            coordinator_kind::REFUSE => {
                self.refuse = true;
                CoordinatorInput::Tick
            }
            6 => CoordinatorInput::Notice {
                worker: from,
                leaves_in: None,
            },
            7 => CoordinatorInput::Save,
            8 => CoordinatorInput::MaxWorkers(Some(usize::from(item.argument))),
            9 => CoordinatorInput::ProcessEnded { worker: from },
            10 => CoordinatorInput::LastStep(Step(u64::from(item.argument))),
            _ => {
                self.now_ms += 10 * u64::from(item.argument);
                CoordinatorInput::Tick
            }
        })
    }

    /// Applies one item. Returns the orders for workers.
    pub(in crate::targets) fn take(&mut self, item: &Item) -> Vec<(WorkerId, Order)> {
        let mut inputs: VecDeque<CoordinatorInput> = self.input(item).into_iter().collect();
        let (mut orders, mut answers) = (Vec::new(), 0);
        while let Some(input) = inputs.pop_front() {
            answers += 1;
            assert!(answers < ANSWERS_MAX, "the coordinator asks without end");
            let mut effects = Vec::new();
            self.machine
                .handle(Time(self.now_ms * 1_000_000), input, &mut effects);
            for effect in effects {
                self.said.insert(word(&effect));
                match effect {
                    CoordinatorEffect::Write { expect, record } => {
                        let ok = expect == self.store.version && !std::mem::take(&mut self.refuse);
                        if ok {
                            self.store = record.clone();
                        }
                        inputs.push_back(CoordinatorInput::Written { ok, record });
                    }
                    CoordinatorEffect::ReadRecord => {
                        inputs.push_back(CoordinatorInput::Record(self.store.clone()));
                    }
                    CoordinatorEffect::ListCheckpoints => {
                        inputs.push_back(CoordinatorInput::Checkpoints(Listing::fresh(Vec::new())));
                    }
                    CoordinatorEffect::Event(event) => drop(self.said.insert(word(&event))),
                    CoordinatorEffect::Send { to, order } => orders.push((to, order)),
                    CoordinatorEffect::DiscardCheckpoint { .. } | CoordinatorEffect::Finish(_) => {}
                }
            }
            self.said
                .insert(format!("{:?}", self.machine.snapshot().run.mode));
        }
        for (_, order) in &orders {
            let wire = Downward::Order(order.clone()).to_wire(self.term());
            let read = Downward::from_wire(wire);
            assert!(read.is_ok(), "workers cannot read {order:?}: {read:?}");
        }
        orders
    }
}

/// Applies a sequence of items. Returns the words that the coordinator has sent.
pub(in crate::targets) fn run_coordinator(input: &[u8]) -> Result<String, String> {
    let mut run = CoordinatorRun::new(7);
    for item in sequence::read(input).iter().take(ITEMS_MAX) {
        run.take(item);
    }
    Ok(run.said())
}
