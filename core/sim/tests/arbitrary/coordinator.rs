//! Arbitrary inputs to a coordinator.

use crate::draw::{Draw, INPUTS, LAYOUT};
use std::collections::BTreeMap;
use std::time::Duration;
use varuna_plan::{Generation, StateId, Step};
use varuna_protocol::Listing;
use varuna_protocol::coordinator::{Observed, Timing};
use varuna_protocol::{
    Coordinator, CoordinatorConfig, CoordinatorEffect, CoordinatorInput, Hello, Inventory, Phase, Prepared,
    Ran, Record, Report, Status, Suspicion, Time,
};
use varuna_sim::{EffectsDigest, RandomPlanner, Rng};

/// Digest of a coordinator's effects for the inputs of a seed.
#[must_use]
pub(crate) fn coordinator_with_arbitrary_inputs(seed: u64) -> u64 {
    let mut draw = Draw { rng: Rng(seed) };
    let last_step = Step(5 + draw.below(100));
    let config = CoordinatorConfig {
        min_workers: 1 + usize::from(draw.chance(50)),
        expected_workers: draw.chance(30).then_some(2),
        timing: Timing {
            prepare_plans_every: Duration::from_millis(50 * draw.below(2)),
            ..Timing::model()
        },
        final_checkpoint: draw.chance(50),
        save_every: draw.chance(50).then(|| Duration::from_millis(100)),
        published: draw.chance(20).then(|| draw.state()),
        tree_fan_out: 2,
        ..CoordinatorConfig::new(LAYOUT, 8, last_step)
    };
    let mut machine = Coordinator::new(config, Box::new(RandomPlanner::new(seed, 2)));
    if draw.chance(50) {
        machine = machine.may_begin_anew();
    }
    let mut digest = EffectsDigest::default();
    let (mut now, mut store) = (1, Record::default());
    let mut answers = vec![CoordinatorInput::Tick];
    for _ in 0..INPUTS {
        let next = answers.pop().filter(|_| !draw.chance(3));
        let input = next.unwrap_or_else(|| draw.coordinator_input(&mut now, &store));
        let mut effects = Vec::new();
        machine.handle(Time(now * 1_000_000), input, &mut effects);
        for effect in effects {
            digest.coordinator(now, 0, &effect);
            match effect {
                CoordinatorEffect::Write { expect, record } => {
                    let ok = expect == store.version && !draw.chance(10);
                    // a refusal may be wrong
                    if ok || (expect == store.version && draw.chance(50)) {
                        store = record.clone();
                    }
                    answers.push(CoordinatorInput::Written { ok, record });
                }
                CoordinatorEffect::ReadRecord => answers.push(CoordinatorInput::Record(store.clone())),
                CoordinatorEffect::ListCheckpoints if draw.chance(80) => {
                    let listing = Listing::fresh(vec![StateId::INITIAL]);
                    answers.push(CoordinatorInput::Checkpoints(listing));
                }
                _ => {}
            }
        }
        digest.mode(machine.snapshot().run.mode.as_str());
        if machine.ended() {
            break;
        }
    }
    digest.0
}

impl Draw {
    fn coordinator_input(&mut self, now: &mut u64, store: &Record) -> CoordinatorInput {
        match self.below(14) {
            0..=4 => {
                *now += self.below(80);
                CoordinatorInput::Tick
            }
            5 => CoordinatorInput::StreamUp {
                from: self.worker(),
                hello: Hello {
                    address: "a:1".into(),
                    name: "w".into(),
                    node: "n".into(),
                    hardware: None,
                    memory_bytes: None,
                    copies_bytes: None,
                    scores: None,
                    speed: 1.0,
                },
            },
            6 if self.chance(30) => CoordinatorInput::StreamDown { from: self.worker() },
            6 | 7 => self.rare_input(),
            _ => {
                let from = self.worker();
                let report = self.report(store);
                CoordinatorInput::Report { from, report }
            }
        }
    }

    fn rare_input(&mut self) -> CoordinatorInput {
        match self.below(24) {
            0..=2 => CoordinatorInput::ProcessEnded {
                worker: self.worker(),
            },
            3..=6 => CoordinatorInput::Notice {
                worker: self.worker(),
                leaves_in: (self.below(2) == 0).then(|| Duration::from_millis(self.below(90_000))),
            },
            7..=9 => CoordinatorInput::Save,
            10..=12 => CoordinatorInput::MaxWorkers(Some(self.below(4) as usize)),
            13 => CoordinatorInput::MaxWorkers(None),
            14..=18 => {
                let complete = (0..self.below(3)).map(|_| self.state()).collect();
                let damaged = (0..self.below(3)).map(|_| self.state()).collect();
                CoordinatorInput::Checkpoints(Listing {
                    damaged,
                    fresh: self.chance(50),
                    ..Listing::fresh(complete)
                })
            }
            19 => CoordinatorInput::TimeSkipped(Duration::from_secs(self.below(100))),
            20 if self.chance(30) => CoordinatorInput::Stop,
            21 => CoordinatorInput::LastStep(Step(self.number())),
            _ => CoordinatorInput::Observed {
                from: self.worker(),
                observed: Observed {
                    generation: Generation(self.number()),
                    step: Step(self.number()),
                    micro_batch_size: 1,
                    busy_ms: 100.0,
                    segments: vec![(0, 50.0), (1, 50.0)],
                },
            },
        }
    }

    fn report(&mut self, store: &Record) -> Report {
        let plan = store.plan.as_ref().map_or(Generation(0), |p| p.generation);
        let next = store.next.as_ref().map_or(Generation(0), |p| p.generation);
        match self.below(12) {
            0..=6 => {
                let phases = [
                    Phase::Idle,
                    Phase::Source,
                    Phase::Loading,
                    Phase::Ready,
                    Phase::Running,
                    Phase::Running,
                ];
                Report::Status(Status {
                    generation: self.generation(plan),
                    fenced: Generation(self.below(plan.0.max(1))),
                    phase: self.rng.pick(&phases).unwrap_or(Phase::Idle),
                    based: self.chance(50),
                    connected: self.chance(80),
                    next: self.generation(next),
                    next_connected: self.chance(80),
                    following: varuna_protocol::Following::Unable,
                    keeping: varuna_protocol::Keeping::Unable,
                    parameters_first: false,
                    at: self.state(),
                    draining: self.chance(3),
                    last_step: Step(self.number()),
                })
            }
            7 => Report::Suspect {
                generation: self.generation(plan),
                about: self.worker(),
                why: self
                    .rng
                    .pick(&[Suspicion::Gone, Suspicion::Unreachable, Suspicion::Damaged])
                    .unwrap_or(Suspicion::Gone),
            },
            8 | 9 => self.inventory(store.highest),
            10 => Report::Commits {
                after: Step(self.number()),
                decisions: (0..self.below(3)).map(|_| self.decision()).collect(),
            },
            _ => Report::Committed {
                decision: self.decision(),
            },
        }
    }

    fn inventory(&mut self, highest: Generation) -> Report {
        let (mut units, mut prepared) = (BTreeMap::new(), BTreeMap::new());
        let (id, ran) = (self.state(), Generation(1 + self.below(3)));
        for unit in LAYOUT.all_units() {
            if self.chance(70) {
                units.insert(unit, if self.chance(80) { id } else { self.state() });
            }
            if self.chance(40) {
                let norm = self.norm();
                prepared.insert(
                    unit,
                    Prepared {
                        run_gen: ran,
                        step: id.step,
                        norm,
                    },
                );
            }
        }
        Report::Inventory(Inventory {
            upto: self.generation(highest),
            units,
            prepared,
            ran: self.chance(70).then(|| Ran {
                generation: ran,
                step: id.step,
                norm_put_in: self.chance(60),
            }),
            decision: self.maybe_decision(),
        })
    }
}
