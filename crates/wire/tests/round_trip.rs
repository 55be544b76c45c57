//! Everything that is said on the wire arrives as it was sent, bit for bit, and what must not be said is refused.

use proptest::prelude::*;
use prost::Message as _;
use std::collections::BTreeMap;
use std::sync::Arc;
use varuna_plan::document::{Recompute, ScheduleKind};
use varuna_plan::state::{Chain, UnitNorm};
use varuna_plan::{
    Base, Decision, Generation, Layout, Pipeline, Plan, Prediction, SampleRange, ScheduleSpec, SegmentRange,
    Shape, Spare, Stage, StateId, Step, Unit, WorkerId,
};
use varuna_protocol::{Inventory, Order, Phase, Prepared, Ran, Report, Status};
use varuna_wire::{
    Downward, Hello, PROTOCOL_VERSION, SegmentTimes, StepMetrics, Upward, Welcome, WireError, v1,
};

/// Any double but NaN (which is not equal to itself; it has a test of its own).
fn real() -> impl Strategy<Value = f64> {
    any::<u64>()
        .prop_map(f64::from_bits)
        .prop_filter("not NaN", |f| !f.is_nan())
}

fn generation() -> impl Strategy<Value = Generation> {
    (1..u64::MAX).prop_map(Generation)
}

fn state_id() -> impl Strategy<Value = StateId> {
    (any::<u64>(), 0..u64::MAX - 1, any::<u64>()).prop_map(|(g, s, c)| StateId {
        run_gen: Generation(g),
        step: Step(s),
        chain: Chain(c),
    })
}

fn decision() -> impl Strategy<Value = Decision> {
    let switch = proptest::option::of(generation());
    (
        state_id(),
        state_id(),
        real(),
        any::<bool>(),
        real(),
        proptest::option::of(real()),
        switch,
    )
        .prop_map(
            |(parent, id, norm2, overflow, loss, eval_loss, switch)| Decision {
                parent,
                id: StateId {
                    step: parent.step.next(),
                    ..id
                },
                norm2,
                overflow,
                loss,
                eval_loss,
                switch,
            },
        )
}

fn status() -> impl Strategy<Value = Status> {
    let phase = prop_oneof![
        Just(Phase::Idle),
        Just(Phase::Source),
        Just(Phase::Loading),
        Just(Phase::Ready),
        Just(Phase::Running)
    ];
    (
        any::<(u64, u64, u64)>(),
        phase,
        any::<(bool, bool, bool, bool)>(),
        state_id(),
    )
        .prop_map(
            |((generation, fenced, next), phase, (based, connected, next_connected, draining), at)| Status {
                generation: Generation(generation),
                fenced: Generation(fenced),
                phase,
                based,
                connected,
                next: Generation(next),
                next_connected,
                at,
                draining,
            },
        )
}

fn prepared() -> impl Strategy<Value = Prepared> {
    let norm = (real(), any::<bool>(), real(), proptest::option::of(real()));
    (any::<u64>(), any::<u64>(), norm).prop_map(|(g, s, (norm2, overflow, loss, eval_loss))| Prepared {
        run_gen: Generation(g),
        step: Step(s),
        norm: UnitNorm {
            norm2,
            overflow,
            loss,
            eval_loss,
        },
    })
}

fn inventory() -> impl Strategy<Value = Inventory> {
    let units = proptest::collection::btree_map(any::<u32>().prop_map(Unit), state_id(), 0..8);
    let prepared = proptest::collection::btree_map(any::<u32>().prop_map(Unit), prepared(), 0..8);
    let ran = proptest::option::of(any::<(u64, u64, bool)>());
    (
        any::<u64>(),
        units,
        prepared,
        ran,
        proptest::option::of(decision()),
    )
        .prop_map(|(upto, units, prepared, ran, decision)| Inventory {
            upto: Generation(upto),
            units,
            prepared,
            ran: ran.map(|(g, s, norm_put_in)| Ran {
                generation: Generation(g),
                step: Step(s),
                norm_put_in,
            }),
            decision,
        })
}

fn metrics() -> impl Strategy<Value = StepMetrics> {
    (any::<(u64, u64, u64)>(), proptest::array::uniform7(0.0..1e9)).prop_map(|((g, s, tokens), ms)| {
        StepMetrics {
            generation: Generation(g),
            step: Step(s),
            step_ms: ms[0],
            forward_ms: ms[1],
            backward_ms: ms[2],
            recompute_ms: ms[3],
            wait_ms: ms[4],
            reduce_ms: ms[5],
            apply_ms: ms[6],
            tokens,
            segments: vec![
                SegmentTimes {
                    segment: 3,
                    forward_ms: ms[0],
                    backward_ms: ms[1],
                    recompute_ms: ms[2],
                };
                usize::from(tokens.is_multiple_of(2))
            ],
            micro_batch_size: 7,
        }
    })
}

fn hello() -> impl Strategy<Value = Hello> {
    let who = (
        1..u64::MAX,
        "[a-z]{1,8}",
        "[a-z.]{1,20}:[1-9][0-9]{0,3}",
        any::<u32>(),
    );
    let texts = (
        "[a-z0-9-]{0,9}",
        "[a-z0-9-]{0,9}",
        "[a-z0-9: ]{0,9}",
        "[0-9a-f]{0,64}",
        "[0-9a-f]{0,64}",
    );
    (who, texts, proptest::option::of(any::<u64>()), 0.001..1000.0).prop_map(
        |((worker, name, address, pid), (node, host, device, token, job_hash), memory_bytes, speed)| Hello {
            worker: WorkerId(worker),
            name,
            address,
            node,
            host,
            pid,
            memory_bytes,
            device,
            token,
            speed,
            job_hash,
        },
    )
}

fn upward() -> impl Strategy<Value = Upward> {
    let suspect = (any::<u64>(), any::<u64>(), any::<bool>()).prop_map(|(g, about, link)| Report::Suspect {
        generation: Generation(g),
        about: WorkerId(about),
        link,
    });
    prop_oneof![
        hello().prop_map(Upward::Hello),
        status().prop_map(|s| Upward::Report(Report::Status(s))),
        suspect.prop_map(Upward::Report),
        inventory().prop_map(|i| Upward::Report(Report::Inventory(i))),
        decision().prop_map(|decision| Upward::Report(Report::Committed { decision })),
        metrics().prop_map(Upward::Metrics),
    ]
}

fn plan(base: Base) -> Plan {
    let (a, b, c) = (WorkerId(u64::MAX), WorkerId(1 << 60), WorkerId(3));
    let stage = |worker, start, end| Stage {
        recompute: (start == 0).then_some(Recompute::Selective),
        worker,
        segments: SegmentRange { start, end },
    };
    Plan {
        generation: Generation(7),
        parent: Generation(5),
        base,
        layout: Layout {
            segments: 3,
            tied: true,
        },
        shape: Shape {
            pipelines: vec![Pipeline {
                stages: vec![stage(a, 0, 1), stage(b, 1, 3)],
                samples: SampleRange { start: 0, end: 16 },
            }],
            spares: vec![Spare {
                worker: c,
                reason: "it would slow a step".into(),
            }],
            micro_batch_size: 4,
            schedule: ScheduleSpec {
                kind: ScheduleKind::OneForwardOneBackward { warmup_factor: 1.5 },
                recompute: Recompute::Full,
            },
            predicted: Prediction {
                step_ms: 812.25,
                bubble: 0.125,
                move_ms: 0.0,
                calibrated: false,
            },
        },
        sources: vec![vec![a], vec![b, a], vec![], vec![a]],
        addresses: BTreeMap::from([(a, "host:1".into()), (b, "host:2".into())]),
        deadline_ns: 123,
        relay: false,
        secret: "00ff".repeat(8),
        evidence: vec![a, b],
        reason: "a worker was lost".into(),
    }
}

fn order() -> impl Strategy<Value = Order> {
    let bases = prop_oneof![
        generation().prop_map(|from| Base::AtSwitch { from }),
        (state_id(), proptest::option::of(decision()), any::<bool>()).prop_map(
            |(id, decision, checkpoint)| {
                Base::Fixed {
                    id,
                    decision,
                    checkpoint,
                }
            }
        ),
    ];
    prop_oneof![
        any::<u64>().prop_map(|g| Order::Fence { upto: Generation(g) }),
        bases.prop_map(|base| Order::Prepare(Arc::new(plan(base)))),
        generation().prop_map(|generation| Order::Arm { generation }),
        generation().prop_map(|generation| Order::Go { generation }),
        any::<u64>().prop_map(|after| Order::Save { after: Step(after) }),
        Just(Order::Release),
    ]
}

/// Through the bytes, not only through the generated types.
fn over_the_wire<M: prost::Message + Default>(message: &M) -> M {
    M::decode(message.encode_to_vec().as_slice()).expect("own bytes are readable")
}

proptest! {
    #[test]
    fn what_a_worker_says_arrives_as_it_was_said(said in upward()) {
        let heard = Upward::from_wire(over_the_wire(&said.to_wire())).unwrap();
        prop_assert_eq!(heard, said);
    }

    #[test]
    fn orders_arrive_as_they_were_given(order in order(), term in any::<u64>()) {
        let given = Downward::Order(order);
        let (heard_term, heard) = Downward::from_wire(over_the_wire(&given.to_wire(term).unwrap())).unwrap();
        prop_assert_eq!((heard_term, heard), (term, given));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = v1::Up::decode(bytes.as_slice()).map(Upward::from_wire);
        let _ = v1::Down::decode(bytes.as_slice()).map(Downward::from_wire);
    }
}

#[test]
fn answers_to_a_hello_arrive_as_they_were_given() {
    let welcome = Welcome {
        job: "a: b\n".into(),
        job_hash: "ab".into(),
        data_fingerprint: "cd".into(),
    };
    let refused = Downward::Refused {
        reason: "no".into(),
        is_final: true,
    };
    for given in [Downward::Welcome(welcome), refused] {
        let heard = Downward::from_wire(over_the_wire(&given.to_wire(3).unwrap())).unwrap();
        assert_eq!(heard, (3, given));
    }
}

#[test]
fn a_diverged_steps_decision_survives_the_plan_document_that_carries_it() {
    let id = StateId {
        run_gen: Generation(2),
        step: Step(9),
        chain: Chain(u64::MAX),
    };
    let parent = StateId { step: Step(8), ..id };
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let decision = Decision {
            parent,
            id,
            norm2: value,
            overflow: true,
            loss: value,
            eval_loss: Some(value),
            switch: None,
        };
        let base = Base::Fixed {
            id,
            decision: Some(decision),
            checkpoint: false,
        };
        let given = Downward::Order(Order::Prepare(Arc::new(plan(base))));
        let (_, heard) = Downward::from_wire(given.to_wire(1).unwrap()).unwrap();
        let Downward::Order(Order::Prepare(plan)) = heard else {
            panic!("not a plan: {heard:?}")
        };
        let Base::Fixed {
            decision: Some(heard),
            ..
        } = &plan.base
        else {
            panic!("no decision")
        };
        for number in [heard.norm2, heard.loss, heard.eval_loss.unwrap()] {
            assert!(
                number == value || number.is_nan() && value.is_nan(),
                "{value} became {number}"
            );
        }
    }
}

fn good_hello() -> v1::Hello {
    v1::Hello {
        protocol_version: PROTOCOL_VERSION,
        worker_id: 5,
        name: "w0".into(),
        address: "host:4000".into(),
        speed: 1.0,
        ..Default::default()
    }
}

fn refused(change: impl FnOnce(&mut v1::Hello)) -> String {
    let mut hello = good_hello();
    change(&mut hello);
    let up = v1::Up {
        message: Some(v1::up::Message::Hello(hello)),
    };
    Upward::from_wire(up).expect_err("must be refused").to_string()
}

#[test]
fn a_hello_that_cannot_be_right_is_refused_with_the_field_the_value_and_what_is_allowed() {
    for (error, parts) in [
        (refused(|h| h.protocol_version = 9), ["version 9", "version 1"]),
        (
            refused(|h| h.worker_id = 0),
            ["worker_id is 0", "any number but 0"],
        ),
        (
            refused(|h| h.address = "host".into()),
            ["address is \"host\"", "host:port"],
        ),
        (
            refused(|h| h.address = "host:0".into()),
            ["address is \"host:0\"", "host:port"],
        ),
        (refused(|h| h.name = String::new()), ["name is \"\"", "a line"]),
        (
            refused(|h| h.name = "a\nb".into()),
            ["name is \"a\\nb\"", "a line"],
        ),
        (
            refused(|h| h.device = "x".repeat(300)),
            ["device is", "256 bytes"],
        ),
        (refused(|h| h.speed = f64::NAN), ["speed is NaN", "above 0"]),
        (refused(|h| h.speed = 0.0), ["speed is 0", "above 0"]),
    ] {
        for part in parts {
            assert!(error.contains(part), "{error:?} does not say {part:?}");
        }
    }
}

#[test]
fn a_version_mismatch_is_told_before_any_other_fault() {
    let hello = v1::Hello {
        protocol_version: 2,
        ..Default::default()
    };
    let up = v1::Up {
        message: Some(v1::up::Message::Hello(hello)),
    };
    assert_eq!(
        Upward::from_wire(up),
        Err(WireError::Version {
            found: 2,
            expected: 1
        })
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn messages_with_missing_or_impossible_parts_are_refused() {
    use v1::up::Message as M;
    let bad = [
        (None, "Up: field message is missing"),
        (
            Some(M::Status(v1::WorkerStatus {
                at: Some(v1::StateId::default()),
                ..Default::default()
            })),
            "phase",
        ),
        (
            Some(M::Status(v1::WorkerStatus {
                phase: 1,
                ..Default::default()
            })),
            "field at is missing",
        ),
        (
            Some(M::Status(v1::WorkerStatus {
                phase: 77,
                ..Default::default()
            })),
            "phase is 77",
        ),
        (
            Some(M::Committed(v1::Committed { decision: None })),
            "field decision is missing",
        ),
        (
            Some(M::Committed(v1::Committed {
                decision: Some(v1::Decision::default()),
            })),
            "field parent is missing",
        ),
        (
            Some(M::Inventory(v1::Inventory {
                units: vec![
                    v1::HeldUnit {
                        unit: 3,
                        id: Some(v1::StateId::default())
                    };
                    2
                ],
                ..Default::default()
            })),
            "unit 3 twice",
        ),
    ];
    for (message, part) in bad {
        let error = Upward::from_wire(v1::Up { message }).expect_err(part).to_string();
        assert!(error.contains(part), "{error:?} does not say {part:?}");
    }
    let id = |step| {
        Some(v1::StateId {
            run_gen: 1,
            step,
            chain: 1,
        })
    };
    let skips = v1::Decision {
        parent: id(4),
        id: id(6),
        ..Default::default()
    };
    let up = v1::Up {
        message: Some(M::Committed(v1::Committed {
            decision: Some(skips),
        })),
    };
    let error = Upward::from_wire(up).expect_err("two steps at once").to_string();
    assert!(error.contains("the step after parent"), "{error}");
}

#[test]
fn an_order_that_names_no_generation_or_no_plan_is_refused() {
    use v1::down::Order as O;
    let bad = [
        (None, "order is missing"),
        (Some(O::Go(v1::Go { generation: 0 })), "generation is 0"),
        (Some(O::Arm(v1::Arm { generation: 0 })), "generation is 0"),
        (
            Some(O::Prepare(v1::Prepare { plan: "{}".into() })),
            "not a plan document",
        ),
    ];
    for (order, part) in bad {
        let error = Downward::from_wire(v1::Down { term: 1, order })
            .expect_err(part)
            .to_string();
        assert!(error.contains(part), "{error:?} does not say {part:?}");
    }
}
