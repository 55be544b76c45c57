//! Arbitrary inputs to one coordinator or one member: what the simulated world never does, such as drains, refused writes,
//! failed fetches, a Stop in the middle of a write, and reports that contradict each other.
//!
//! The machines must take all of it without a panic, and their effects are compared with a golden file. Nothing here checks that
//! what they do is right.

use crate::effects_digest::EffectsDigest;
use crate::planner::RandomPlanner;
use crate::rng::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use varuna_plan::state::{Chain, UnitNorm};
use varuna_plan::{
    Base, Decision, Generation, Layout, Pipeline, Plan, Prediction, Recompute, SampleRange, ScheduleKind,
    ScheduleSpec, SegmentRange, Shape, Stage, StateId, Step, Unit, WorkerId,
};
use varuna_protocol::coordinator::{Observed, Timing};
use varuna_protocol::{
    Coordinator, CoordinatorConfig, CoordinatorEffect, CoordinatorInput, Hello, Inventory, Member,
    MemberConfig, MemberEffect, MemberInput, MemberTiming, Norms, Order, PeerMessage, Phase, Prepared, Ran,
    Record, Report, Status, Time,
};

const LAYOUT: Layout = Layout {
    segments: 2,
    tied: false,
};
const INPUTS: usize = 400;
const ME: WorkerId = WorkerId(1);

/// Draws values that are small, so that they often agree with each other.
struct Draw {
    rng: Rng,
}

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.rng.below(n)
    }
    fn chance(&mut self, percent: u64) -> bool {
        self.rng.chance(percent)
    }
    fn number(&mut self) -> u64 {
        self.below(8)
    }
    fn generation(&mut self, likely: Generation) -> Generation {
        if self.chance(75) {
            likely
        } else {
            Generation(self.number())
        }
    }
    fn worker(&mut self) -> WorkerId {
        WorkerId(self.below(4) + 1)
    }
    fn unit(&mut self) -> Unit {
        Unit(self.rng.pick(&[0, 0, 1, 1, 2]).unwrap_or(0))
    }
    fn value(&mut self) -> f64 {
        self.rng
            .pick(&[0.0, 1.0, 2.5, f64::INFINITY, 1e-308])
            .unwrap_or(0.0)
    }
    fn state(&mut self) -> StateId {
        let step = self.below(5);
        if step == 0 {
            return StateId::INITIAL;
        }
        let run_gen = Generation(1 + self.below(3));
        StateId {
            run_gen,
            step: Step(step),
            chain: Chain(run_gen.0 * 100 + step),
        }
    }
    fn norm(&mut self) -> UnitNorm {
        UnitNorm {
            norm2: self.value(),
            overflow: self.chance(10),
            loss: self.value(),
            eval_loss: None,
        }
    }
    fn decision(&mut self) -> Decision {
        let (parent, mut id) = (self.state(), self.state());
        id.step = parent.step.next();
        Decision {
            parent,
            id,
            norm2: self.value(),
            overflow: self.chance(10),
            loss: self.value(),
            eval_loss: None,
            switch: None,
        }
    }
    fn maybe_decision(&mut self) -> Option<Decision> {
        self.chance(40).then(|| self.decision())
    }
}

/// Digest of the effects of a coordinator with the seed's inputs.
#[must_use]
pub fn coordinator_with_arbitrary_inputs(seed: u64) -> u64 {
    let mut draw = Draw { rng: Rng(seed) };
    let config = CoordinatorConfig {
        layout: LAYOUT,
        global_batch_size: 8,
        last_step: Step(5 + draw.below(100)),
        min_workers: 1 + usize::from(draw.chance(50)),
        expected_workers: draw.chance(30).then_some(2),
        timing: Timing {
            prepare_plans_every: Duration::from_millis(50 * draw.below(2)),
            ..Timing::model()
        },
        final_checkpoint: draw.chance(50),
        save_every: draw.chance(50).then(|| Duration::from_millis(100)),
        published: draw.chance(20).then(|| draw.state()),
        secret_seed: [1; 16],
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
                    answers.push(CoordinatorInput::Checkpoints(vec![StateId::INITIAL]));
                }
                _ => {}
            }
        }
        digest.mode(machine.snapshot().mode.as_str());
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
                    memory_bytes: None,
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
            },
            7..=9 => CoordinatorInput::Save,
            10..=12 => CoordinatorInput::MaxWorkers(Some(self.below(4) as usize)),
            13 => CoordinatorInput::MaxWorkers(None),
            14..=18 => {
                let list = (0..self.below(3)).map(|_| self.state()).collect();
                CoordinatorInput::Checkpoints(list)
            }
            19 => CoordinatorInput::TimeSkipped(Duration::from_secs(self.below(100))),
            20 if self.chance(30) => CoordinatorInput::Stop,
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
                    at: self.state(),
                    draining: self.chance(3),
                })
            }
            7 => Report::Suspect {
                generation: self.generation(plan),
                about: self.worker(),
                link: self.chance(50),
            },
            8..=10 => self.inventory(store.highest),
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

/// Digest of the effects of a member with the seed's inputs.
#[must_use]
pub fn member_with_arbitrary_inputs(seed: u64) -> u64 {
    let mut draw = Draw { rng: Rng(seed) };
    let ms = Duration::from_millis;
    let mut member = Member::new(MemberConfig {
        id: ME,
        layout: LAYOUT,
        last_step: Step(5 + draw.below(20)),
        checkpoint_every: draw.chance(70).then_some(2),
        timing: MemberTiming {
            heartbeat: ms(10),
            connect_deadline: ms(40),
            fetch_retry: ms(6),
        },
    });
    let mut digest = EffectsDigest::default();
    let mut now = 1;
    let mut answers: Vec<MemberInput> = Vec::new();
    for _ in 0..INPUTS {
        let next = answers.pop().filter(|_| !draw.chance(3));
        let input = next.unwrap_or_else(|| draw.member_input(&mut now, &member));
        let mut effects = Vec::new();
        member.handle(Time(now * 1_000_000), input, &mut effects);
        for effect in effects {
            digest.member(now, ME, &effect);
            answers.extend(draw.answer(effect));
        }
    }
    digest.0
}

impl Draw {
    /// What the engine answers, unless it never does.
    fn answer(&mut self, effect: MemberEffect) -> Option<MemberInput> {
        match effect {
            MemberEffect::Load {
                id: id @ StateId::INITIAL,
                unit,
            }
            | MemberEffect::Adopt { unit, id } => Some(MemberInput::Loaded { unit, id }),
            MemberEffect::Abort => {
                let units = LAYOUT.all_units().filter(|_| self.chance(70));
                let units: Vec<Unit> = units.collect();
                let prepared = units.into_iter().map(|unit| (unit, self.norm())).collect();
                Some(MemberInput::Stopped { prepared })
            }
            MemberEffect::Apply { decision, .. } => Some(MemberInput::Applied { id: decision.id }),
            MemberEffect::Run { plan, step } if self.chance(90) => {
                let units = plan.units(ME).into_iter().map(|u| (u, self.norm())).collect();
                Some(MemberInput::Prepared {
                    generation: plan.generation,
                    step,
                    units,
                })
            }
            _ => None,
        }
    }

    fn member_input(&mut self, now: &mut u64, member: &Member) -> MemberInput {
        let generation = {
            let (present, next) = (member.generation(), member.status().next);
            if next > Generation(0) && self.chance(30) {
                next
            } else {
                self.generation(present)
            }
        };
        let (from, unit) = (self.worker(), self.unit());
        match self.below(20) {
            0..=2 => {
                *now += self.below(20);
                MemberInput::Tick
            }
            3 if self.chance(20) => MemberInput::Stream,
            3..=7 => MemberInput::Order {
                term: 1 + self.below(2),
                order: self.order(generation, member),
            },
            8 | 9 => MemberInput::Connected {
                generation,
                peer: from,
            },
            10 if self.chance(40) => MemberInput::Closed {
                generation,
                peer: from,
            },
            10..=13 => MemberInput::Peer {
                generation,
                from,
                message: self.peer_message(member),
            },
            14..=16 => MemberInput::Fetched {
                generation,
                from,
                unit,
                id: self.state(),
                decision: self.maybe_decision(),
            },
            17 => MemberInput::FetchFailed {
                generation,
                from,
                unit,
            },
            18 => MemberInput::FetchProgress {
                generation,
                from,
                unit,
            },
            _ if self.chance(10) => MemberInput::Drain,
            _ => MemberInput::StepFailed {
                generation,
                about: self.chance(50).then_some(from),
            },
        }
    }

    fn order(&mut self, generation: Generation, member: &Member) -> Order {
        match self.below(16) {
            0 => Order::Fence { upto: generation },
            1..=3 => Order::Arm { generation },
            4 => Order::Save {
                after: Step(self.number()),
            },
            5..=9 => Order::Go { generation },
            10 if self.chance(5) => Order::Release,
            _ => Order::Prepare(Arc::new(self.plan(member))),
        }
    }

    fn peer_message(&mut self, member: &Member) -> PeerMessage {
        if self.chance(40) {
            return PeerMessage::Fetch { unit: self.unit() };
        }
        let status = member.status();
        let unit = self.unit();
        PeerMessage::Norm(Norms {
            step: if self.chance(80) {
                status.at.step
            } else {
                Step(self.number())
            },
            owned: vec![(unit, self.norm())],
            armed: if self.chance(70) {
                status.next
            } else {
                Generation(0)
            },
            save: self.chance(20),
        })
    }

    fn plan(&mut self, member: &Member) -> Plan {
        let present = member.generation();
        let half = |i: u32| SegmentRange { start: i, end: i + 1 };
        let whole = SegmentRange { start: 0, end: 2 };
        let ranges = if self.chance(50) {
            vec![half(0), half(1)]
        } else {
            vec![whole]
        };
        let first = if self.chance(80) { ME } else { self.worker() };
        let stages = ranges.into_iter().zip([first, WorkerId(2)]);
        let stages = stages.map(|(segments, worker)| Stage {
            worker,
            segments,
            recompute: None,
        });
        let base = if self.chance(50) {
            Base::Fixed {
                id: self.state(),
                decision: self.maybe_decision(),
                checkpoint: self.chance(50),
            }
        } else {
            Base::AtSwitch {
                from: self.generation(present),
            }
        };
        let sources = (0..2)
            .map(|_| (0..self.below(3)).map(|_| self.worker()).collect())
            .collect();
        Plan {
            generation: if self.chance(80) {
                present.max(member.status().fenced).next()
            } else {
                Generation(self.number())
            },
            parent: Generation(0),
            base,
            layout: LAYOUT,
            sources,
            shape: Shape {
                pipelines: vec![Pipeline {
                    stages: stages.collect(),
                    samples: SampleRange { start: 0, end: 8 },
                }],
                spares: Vec::new(),
                micro_batch_size: 1,
                schedule: ScheduleSpec {
                    kind: ScheduleKind::Gpipe,
                    recompute: Recompute::None,
                },
                predicted: Prediction::default(),
            },
            addresses: (1..5).map(|w| (WorkerId(w), "a:1".to_owned())).collect(),
            deadline_ns: 50_000_000,
            relay: self.chance(30),
            secret: String::new(),
            evidence: Vec::new(),
            reason: String::new(),
        }
    }
}
