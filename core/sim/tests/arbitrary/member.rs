//! Arbitrary inputs to a member.

use crate::draw::{Draw, INPUTS, LAYOUT};
use std::sync::Arc;
use std::time::Duration;
use varuna_plan::{
    Base, Generation, Pipeline, Plan, Prediction, Recompute, SampleRange, ScheduleKind, ScheduleSpec,
    SegmentRange, Shape, Stage, StateId, Step, Unit, WorkerId,
};
use varuna_protocol::{
    Member, MemberConfig, MemberEffect, MemberInput, MemberTiming, Norms, Order, PeerMessage, Time,
};
use varuna_sim::{EffectsDigest, Rng};

const ME: WorkerId = WorkerId(1);

/// Digest of a member's effects for the inputs of a seed.
#[must_use]
pub(crate) fn member_with_arbitrary_inputs(seed: u64) -> u64 {
    let mut draw = Draw { rng: Rng(seed) };
    let ms = Duration::from_millis;
    let mut member = Member::new(MemberConfig {
        follows: false,
        parameters_first: false,
        id: ME,
        layout: LAYOUT,
        last_step: Step(5 + draw.below(20)),
        checkpoint_every: draw.chance(70).then_some(2),
        compare_every: draw.chance(50).then_some(3),
        timing: MemberTiming {
            heartbeat: ms(10),
            connect_deadline: ms(40),
            fetch_retry: ms(6),
            ..MemberTiming::default()
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
    /// The engine's answer; none if it never answers.
    fn answer(&mut self, effect: MemberEffect) -> Option<MemberInput> {
        match effect {
            MemberEffect::Load {
                id: id @ StateId::INITIAL,
                unit,
                ..
            }
            | MemberEffect::Adopt { unit, id } => Some(MemberInput::Loaded { unit, id }),
            MemberEffect::Abort => {
                let units = LAYOUT.all_units().filter(|_| self.chance(70));
                let units: Vec<Unit> = units.collect();
                let prepared = units.into_iter().map(|unit| (unit, self.norm())).collect();
                Some(MemberInput::Stopped { prepared })
            }
            MemberEffect::Apply { decision, .. } => Some(MemberInput::Applied { id: decision.id }),
            MemberEffect::Run { plan, step, .. } if self.chance(90) => {
                let units = plan.units(ME).into_iter().map(|u| (u, self.norm())).collect();
                Some(MemberInput::Prepared {
                    generation: plan.generation,
                    step,
                    units,
                    store_busy: self.chance(10),
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
            _ if self.chance(10) => MemberInput::StreamDown,
            _ if self.chance(40) => MemberInput::Served {
                generation,
                to: from,
                unit,
            },
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
            10 if self.chance(30) => Order::Tell {
                after: Step(self.number()),
            },
            11 if self.chance(20) => Order::LastStep {
                step: Step(self.number()),
            },
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
            units: vec![(unit, self.norm())],
            armed: if self.chance(70) {
                status.next
            } else {
                Generation(0)
            },
            save: self.chance(20),
            store_busy: self.chance(5),
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
            deadline: varuna_plan::StepDeadline::of_ms(50),
            relay: self.chance(30),
            tree_fan_out: 2,
            following: false,
            parameters_first: self.chance(30),
            keepers: Vec::new(),
            evidence: Vec::new(),
            reason: String::new(),
            index: varuna_plan::PlanIndex::default(),
        }
    }
}
