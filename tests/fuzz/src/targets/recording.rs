//! A recorded exchange of messages, and the targets that start from it: the state machines of the protocol.

use super::conversation::{self, hello};
use super::machines::{
    CoordinatorRun, MemberRun, coordinator_kind, member_kind, run_coordinator, run_member,
};
use super::sequence::{self, Item};
use super::{MORE, Seeds, json};
use crate::{Form, Target};
use prost::Message;
use varuna_frames::StateHeader;
use varuna_plan::{Generation, Unit, WorkerId};
use varuna_protocol::{MemberEffect, Order, Record};
use varuna_wire::{Downward, Upward};

pub(super) const COORDINATOR: Target = Target {
    name: "coordinator",
    what: "a coordinator behind gRPC messages of workers, and records",
    form: Form::Sequence,
    words: &[],
    memory: MORE,
    seeds: coordinator_seeds,
    run: run_coordinator,
};

pub(super) const MEMBER: Target = Target {
    name: "member",
    what: "a member behind gRPC messages of the coordinator and messages of peers",
    form: Form::Sequence,
    words: &[],
    memory: MORE,
    seeds: member_seeds,
    run: run_member,
};

/// Number of rounds of a recorded exchange, from the hellos to the last step.
const ROUNDS: usize = 30;

fn coordinator_seeds() -> Seeds {
    let recorded = recorded();
    let resumed = Item {
        kind: coordinator_kind::RECORD,
        argument: 0,
        payload: json(&recorded.record),
    };
    let tick = Item {
        kind: coordinator_kind::TICK,
        argument: 30,
        payload: Vec::new(),
    };
    vec![
        ("a-run-of-two-workers", sequence::write(&recorded.coordinator)),
        (
            "a-record-is-taken-over",
            sequence::write(&[resumed, tick.clone(), tick]),
        ),
    ]
}

fn member_seeds() -> Seeds {
    let item = |kind, argument, payload| Item {
        kind,
        argument,
        payload,
    };
    let order = |order| Downward::Order(order).to_wire(1).encode_to_vec();
    let prepare = order(Order::Prepare(conversation::plan().into()));
    let fence = order(Order::Fence { upto: Generation(2) });
    let running = [
        item(member_kind::DOWN, 0, prepare),
        item(member_kind::CONNECTED, 2, 2u64.to_le_bytes().to_vec()),
        item(member_kind::TICK, 3, Vec::new()),
        item(
            member_kind::DOWN,
            0,
            order(Order::Go {
                generation: Generation(2),
            }),
        ),
    ];
    let state = StateHeader {
        unit: Unit(1),
        id: super::ID,
        decision: Some(conversation::decision(super::ID)),
        progress: varuna_plan::OptimizerProgress::START,
        elements: 6,
    };
    let state = postcard::to_stdvec(&state).expect("a header can be written");
    let gradient = conversation::prepared(super::ID);
    let gradient = gradient.encode().expect("a header can be written");
    let kept = [
        item(member_kind::FETCHED, 2, state),
        item(member_kind::PREPARED, 2, gradient.clone()),
        item(member_kind::PREPARED, 2, gradient),
    ];
    let fence = [item(member_kind::DOWN, 0, fence)];
    let fenced = [&running[..], &fence[..]].concat();
    let keeping = [&running[..], &kept[..], &fence[..]].concat();
    let recorded = recorded().member;
    vec![
        ("a-run-of-two-workers", sequence::write(&recorded)),
        ("a-plan-and-a-fence", sequence::write(&fenced)),
        ("a-spare-copy-and-a-fence", sequence::write(&keeping)),
    ]
}

/// The inputs of each state machine in a run with two workers.
pub(super) struct Recorded {
    pub(super) coordinator: Vec<Item>,
    pub(super) member: Vec<Item>,
    pub(super) record: Record,
}

/// Runs a coordinator and two members with each other. Messages arrive in the round in which they are sent.
pub(super) fn recorded() -> Recorded {
    let ids = [WorkerId(1), WorkerId(2)];
    let mut coordinator = CoordinatorRun::new(1);
    let mut members = ids.map(MemberRun::new);
    let mut told: Vec<Item> = Vec::new();
    let mut told_member: [Vec<Item>; 2] = Default::default();
    let item = |kind, argument: u64, payload| Item {
        kind,
        argument: u8::try_from(argument).unwrap_or(0),
        payload,
    };
    let mut up: Vec<Item> = ids
        .map(|id| {
            let hello = Upward::Hello(hello(id)).to_wire().encode_to_vec();
            item(coordinator_kind::UP, id.0, hello)
        })
        .into();
    for round in 0..ROUNDS {
        up.insert(0, item(coordinator_kind::TICK, 3, Vec::new()));
        let mut down: [Vec<Item>; 2] = Default::default();
        for next in up.drain(..) {
            for (to, order) in coordinator.take(&next) {
                let bytes = Downward::Order(order).to_wire(coordinator.term()).encode_to_vec();
                if let Some(i) = ids.iter().position(|id| *id == to) {
                    down[i].push(item(member_kind::DOWN, 0, bytes));
                }
            }
            told.push(next);
        }
        // Messages between members may be answered within the round.
        for pass in 0..4 {
            for i in 0..2 {
                let mut inputs = std::mem::take(&mut down[i]);
                if pass == 0 {
                    inputs.insert(0, item(member_kind::TICK, 3, Vec::new()));
                }
                for next in inputs {
                    for effect in members[i].take(&next) {
                        pass_on(effect, ids[i], &mut up, &mut down[1 - i], &item);
                    }
                    told_member[i].push(next);
                }
            }
        }
        if round == ROUNDS / 2 {
            up.push(item(coordinator_kind::DOWN, 2, Vec::new()));
        }
    }
    let [member, _] = told_member;
    Recorded {
        coordinator: told,
        member,
        record: coordinator.record().clone(),
    }
}

fn pass_on(
    effect: MemberEffect,
    from: WorkerId,
    up: &mut Vec<Item>,
    other: &mut Vec<Item>,
    item: &impl Fn(u8, u64, Vec<u8>) -> Item,
) {
    let encode = "a message can be written";
    match effect {
        MemberEffect::Report(report) => {
            let bytes = Upward::Report(report).to_wire().encode_to_vec();
            up.push(item(coordinator_kind::UP, from.0, bytes));
        }
        MemberEffect::Send { message, .. } => {
            let bytes = postcard::to_stdvec(&message).expect(encode);
            other.push(item(member_kind::PEER, from.0, bytes));
        }
        // The other member's connection is accepted at the same time.
        MemberEffect::Connect { generation, .. } => {
            other.push(item(
                member_kind::CONNECTED,
                from.0,
                generation.0.to_le_bytes().to_vec(),
            ));
        }
        MemberEffect::Serve {
            unit, id, decision, ..
        } => {
            let header = StateHeader {
                unit,
                id,
                decision,
                progress: varuna_plan::OptimizerProgress {
                    adam_steps: 1,
                    ..varuna_plan::OptimizerProgress::START
                },
                elements: 1,
            };
            let bytes = postcard::to_stdvec(&header).expect(encode);
            other.push(item(member_kind::FETCHED, from.0, bytes));
        }
        _ => {}
    }
}
