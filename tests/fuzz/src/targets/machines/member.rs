//! A member with an engine that does all its work at once.

use super::{ANSWERS_MAX, ITEMS_MAX, LAST, word};
use crate::targets::conversation::LAYOUT;
use crate::targets::sequence::{self, Item};
use prost::Message;
use std::collections::{BTreeSet, VecDeque};
use varuna_frames::{GradientHeader, PreparedHeader, StateHeader};
use varuna_plan::state::UnitNorm;
use varuna_plan::{Generation, StateId, WorkerId};
use varuna_protocol::{Member, MemberConfig, MemberEffect, MemberInput, MemberTiming, Prepared, Time};
use varuna_wire::{Downward, Upward, v1};

/// The kinds of items for a member.
pub(in crate::targets) mod member_kind {
    /// 10 ms pass, this number of times.
    pub(in crate::targets) const TICK: u8 = 0;
    /// A message of the coordinator.
    pub(in crate::targets) const DOWN: u8 = 1;
    /// A message of a peer.
    pub(in crate::targets) const PEER: u8 = 2;
    /// A peer has accepted a connection; the generation is in eight bytes.
    pub(in crate::targets) const CONNECTED: u8 = 3;
    /// A unit has arrived from a peer.
    pub(in crate::targets) const FETCHED: u8 = 4;
    /// A gradient of a followed unit has arrived from a peer.
    pub(in crate::targets) const GRADIENT: u8 = 9;
    /// A gradient of a unit whose spare copy is kept has arrived from a peer.
    pub(in crate::targets) const PREPARED: u8 = 10;
}

/// A member with an engine that does all its work at once.
pub(in crate::targets) struct MemberRun {
    id: WorkerId,
    machine: Member,
    now_ms: u64,
    said: BTreeSet<String>,
}

impl MemberRun {
    pub(in crate::targets) fn new(id: WorkerId) -> MemberRun {
        MemberRun {
            id,
            machine: Member::new(MemberConfig {
                follows: true,
                parameters_first: false,
                id,
                layout: LAYOUT,
                last_step: LAST,
                checkpoint_every: Some(2),
                compare_every: Some(3),
                timing: MemberTiming::default(),
            }),
            now_ms: 1,
            said: BTreeSet::new(),
        }
    }

    fn input(&mut self, item: &Item) -> Option<MemberInput> {
        let from = WorkerId(u64::from(item.argument));
        let generation = self.machine.generation();
        let said = || {
            let bytes = item.payload.get(..8)?.try_into().ok()?;
            Some(Generation(u64::from_le_bytes(bytes)))
        };
        Some(match item.kind % 11 {
            member_kind::DOWN => {
                let message = v1::Down::decode(item.payload.as_slice()).ok()?;
                match Downward::from_wire(message).ok()? {
                    (term, Downward::Order(order)) => MemberInput::Order { term, order },
                    _ => MemberInput::Stream,
                }
            }
            member_kind::PEER => MemberInput::Peer {
                generation,
                from,
                message: postcard::from_bytes(&item.payload).ok()?,
            },
            member_kind::CONNECTED => MemberInput::Connected {
                generation: said()?,
                peer: from,
            },
            member_kind::FETCHED => {
                let header = StateHeader::decode(&item.payload).ok()?;
                let (unit, id, decision) = (header.unit, header.id, header.decision);
                MemberInput::Fetched {
                    generation,
                    from,
                    unit,
                    id,
                    decision,
                }
            }
            member_kind::GRADIENT => {
                let GradientHeader { unit, decision, .. } = GradientHeader::decode(&item.payload).ok()?;
                MemberInput::Gradient {
                    generation,
                    from,
                    unit,
                    decision,
                }
            }
            member_kind::PREPARED => {
                let header = PreparedHeader::decode(&item.payload).ok()?;
                MemberInput::PreparedGradient {
                    generation,
                    from,
                    unit: header.unit,
                    prepared: prepared(&header),
                }
            }
            5 => MemberInput::Closed {
                generation: said().unwrap_or(generation),
                peer: from,
            },
            6 => MemberInput::StreamDown,
            7 => MemberInput::Drain,
            8 => MemberInput::StepFailed {
                generation,
                about: Some(from),
            },
            _ => {
                self.now_ms += 10 * u64::from(item.argument);
                MemberInput::Tick
            }
        })
    }

    /// Applies one item. Returns the effects.
    pub(in crate::targets) fn take(&mut self, item: &Item) -> Vec<MemberEffect> {
        let mut inputs: VecDeque<MemberInput> = self.input(item).into_iter().collect();
        let (mut all, mut answers) = (Vec::new(), 0);
        while let Some(input) = inputs.pop_front() {
            answers += 1;
            assert!(answers < ANSWERS_MAX, "the member asks without end");
            let mut effects = Vec::new();
            self.machine
                .handle(Time(self.now_ms * 1_000_000), input, &mut effects);
            for effect in effects {
                self.said.insert(word(&effect));
                if let MemberEffect::Report(report) = &effect {
                    let read = Upward::from_wire(Upward::Report(report.clone()).to_wire());
                    assert!(read.is_ok(), "the coordinator cannot read {report:?}: {read:?}");
                }
                inputs.extend(answer(&effect, self.id, self.machine.status().at));
                all.push(effect);
            }
            self.said.insert(format!("{:?}", self.machine.status().phase));
        }
        all
    }
}

/// The part of the header that a keeper's member gets.
fn prepared(header: &PreparedHeader) -> Prepared {
    Prepared {
        run_gen: header.run_gen,
        step: header.step,
        norm: header.norm,
    }
}

/// The answer of the engine.
fn answer(effect: &MemberEffect, me: WorkerId, at: StateId) -> Option<MemberInput> {
    let norm = |unit| {
        let norm = UnitNorm {
            norm2: 1.0,
            overflow: false,
            before: varuna_plan::OptimizerProgress::START,
            loss: 0.5,
            eval_loss: None,
        };
        (unit, norm)
    };
    Some(match effect {
        MemberEffect::Load { id, unit, .. } if *id == StateId::INITIAL => {
            MemberInput::Loaded { unit: *unit, id: *id }
        }
        MemberEffect::Adopt { unit, id } => MemberInput::Loaded { unit: *unit, id: *id },
        MemberEffect::ApplyForwarded { unit, decision } => MemberInput::Loaded {
            unit: *unit,
            id: decision.id,
        },
        MemberEffect::Serve {
            generation, to, unit, ..
        }
        | MemberEffect::Copy {
            generation, to, unit, ..
        } => MemberInput::Served {
            generation: *generation,
            to: *to,
            unit: *unit,
        },
        MemberEffect::Forward {
            generation, to, unit, ..
        }
        | MemberEffect::ForwardPrepared {
            generation, to, unit, ..
        } => MemberInput::Forwarded {
            generation: *generation,
            to: *to,
            unit: *unit,
        },
        MemberEffect::Abort => MemberInput::Stopped { prepared: Vec::new() },
        MemberEffect::Apply { decision, .. } => MemberInput::Applied { id: decision.id },
        // A member that does not stop after the last step would run for ever.
        MemberEffect::Run { plan, step, .. } if at.step < LAST => MemberInput::Prepared {
            generation: plan.generation,
            step: *step,
            units: LAYOUT
                .all_units()
                .filter(|u| plan.holders(*u).contains(&me))
                .map(norm)
                .collect(),
            store_busy: false,
        },
        _ => return None,
    })
}

/// Applies a sequence of items. Returns the words of the member's messages.
pub(in crate::targets) fn run_member(input: &[u8]) -> Result<String, String> {
    let mut run = MemberRun::new(WorkerId(1));
    for item in sequence::read(input).iter().take(ITEMS_MAX) {
        run.take(item);
    }
    Ok(run.said.into_iter().collect::<Vec<_>>().join(" "))
}
