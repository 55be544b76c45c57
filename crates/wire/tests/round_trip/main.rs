//! All messages arrive as they were sent, bit for bit, and invalid ones are refused.

mod strategies;

use flate2::Compression;
use flate2::read::GzEncoder;
use proptest::prelude::*;
use prost::Message as _;
use std::collections::BTreeMap;
use std::io::Read as _;
use std::sync::Arc;
use strategies::{order, run_status, upward};
use varuna_plan::document::{Recompute, ScheduleKind};
use varuna_plan::state::{Chain, UnitNorm};
use varuna_plan::{
    Base, Decision, Generation, Layout, Pipeline, Plan, Prediction, SampleRange, ScheduleSpec, SegmentRange,
    Shape, Stage, StateId, Step, Unit, WorkerId,
};
use varuna_protocol::{
    Following, Inventory, Keeping, MemoryShortage, Order, Phase, Prepared, Report, Status, Suspicion,
    Versions,
};
use varuna_wire::{
    Downward, EncodedPlans, PROTOCOL_VERSION, UPLOADS_FAIL_BYTES_MAX, Upward, VERSIONS, Welcome, WireError,
    v1,
};

/// The smallest possible plan.
fn small_plan() -> Plan {
    Plan {
        generation: Generation(7),
        parent: Generation(0),
        base: Base::AtSwitch { from: Generation(1) },
        layout: Layout::new(1, false),
        shape: Shape {
            pipelines: vec![],
            spares: vec![],
            micro_batch_size: 1,
            schedule: ScheduleSpec {
                kind: ScheduleKind::Gpipe,
                recompute: Recompute::None,
            },
            predicted: Prediction::default(),
        },
        sources: vec![],
        addresses: BTreeMap::new(),
        deadline: varuna_plan::StepDeadline::of_ms(1),
        relay: false,
        tree_fan_out: 2,
        following: false,
        parameters_first: false,
        keepers: Vec::new(),
        evidence: vec![],
        reason: String::new(),
        index: varuna_plan::PlanIndex::default(),
    }
}

/// Encodes and decodes the message, so that not only the generated types are tested.
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
        let (heard_term, heard) = Downward::from_wire(over_the_wire(&given.to_wire(term))).unwrap();
        prop_assert_eq!((heard_term, heard), (term, given));
    }

    #[test]
    fn a_status_arrives_as_it_was_sent(status in run_status()) {
        let reply = v1::StatusReply { status: Some(varuna_wire::status::to_wire(&status)) };
        let heard = varuna_wire::status::from_wire(over_the_wire(&reply)).unwrap();
        prop_assert_eq!(heard, status);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = v1::StatusReply::decode(bytes.as_slice()).map(varuna_wire::status::from_wire);
        let _ = v1::Up::decode(bytes.as_slice()).map(Upward::from_wire);
        let _ = v1::Down::decode(bytes.as_slice()).map(Downward::from_wire);
    }
}

/// Field 12 was `bool keeps`: true and 1 have the same bytes, and a reader of a bool treats 2 as true.
#[test]
fn earlier_keeper_counts_as_able() {
    let said = |bytes: &[u8]| v1::WorkerStatus::decode(bytes).unwrap().keeping();
    assert_eq!(said(&[12 << 3, 1]), v1::Keeping::Able);
    assert_eq!(said(&[]), v1::Keeping::Unable);
    let in_step = v1::WorkerStatus {
        keeping: v1::Keeping::InStep.into(),
        ..v1::WorkerStatus::default()
    };
    assert_eq!(in_step.encode_to_vec(), [12 << 3, 2]);
}

/// A coordinator that does not know the field waits for such a worker.
#[test]
fn worker_with_copies_is_able_to_an_older_coordinator() {
    let said = |following| {
        let status = Status {
            generation: Generation(2),
            fenced: Generation(0),
            phase: Phase::Loading,
            based: false,
            connected: true,
            next: Generation(0),
            next_connected: false,
            at: StateId::INITIAL,
            draining: false,
            last_step: Step(9),
            following,
            keeping: Keeping::Able,
            parameters_first: false,
        };
        Upward::Report(Report::Status(status)).to_wire()
    };
    let mut copied = said(Following::Copied(Step(5)));
    let Some(v1::up::Message::Status(status)) = &mut copied.message else {
        panic!("{copied:?}");
    };
    assert_eq!(status.copied_step.take(), Some(5));
    assert_eq!(copied, said(Following::Able));
}

#[test]
fn long_errors_of_uploads_are_cut() {
    let status = v1::WorkerStatus {
        phase: v1::Phase::Running.into(),
        at: Some(v1::StateId::default()),
        uploads_fail: Some("é".repeat(UPLOADS_FAIL_BYTES_MAX)),
        ..v1::WorkerStatus::default()
    };
    let up = v1::Up {
        message: Some(v1::up::Message::Status(status)),
    };
    let heard = Upward::from_wire(over_the_wire(&up)).unwrap();
    let Upward::UploadsFail { status, why } = heard else {
        panic!("{heard:?}");
    };
    assert!(
        why.len() <= UPLOADS_FAIL_BYTES_MAX && why.ends_with("é..."),
        "{why}"
    );
    let long = why + &"x".repeat(UPLOADS_FAIL_BYTES_MAX);
    let sent = Upward::UploadsFail { status, why: long }.to_wire();
    let Some(v1::up::Message::Status(sent)) = sent.message else {
        panic!("{sent:?}");
    };
    assert!(
        sent.uploads_fail
            .is_some_and(|why| why.len() <= UPLOADS_FAIL_BYTES_MAX)
    );
}

#[test]
fn answers_to_a_hello_arrive_as_they_were_given() {
    let welcome = Welcome {
        job: "a: b\n".into(),
        run: "ab".into(),
        data_fingerprint: "cd".into(),
    };
    let refused = Downward::Refused {
        reason: "no".into(),
        is_final: true,
    };
    for given in [Downward::Welcome(welcome), refused] {
        let heard = Downward::from_wire(over_the_wire(&given.to_wire(3))).unwrap();
        assert_eq!(heard, (3, given));
    }
}

#[test]
fn diverged_decision_round_trips_in_a_plan() {
    let id = StateId {
        run_gen: Generation(2),
        step: Step(9),
        chain: Chain(u64::MAX),
    };
    let parent = StateId { step: Step(8), ..id };
    // A NaN with a payload: its bits are part of the state's identity.
    let odd_nan = f64::from_bits(0xFFF8_0000_0000_1234);
    for value in [f64::NAN, odd_nan, f64::INFINITY, f64::NEG_INFINITY, -0.0] {
        let decision = Decision {
            parent,
            id,
            norm2: value,
            overflow: true,
            before: varuna_plan::OptimizerProgress::START,
            loss: value,
            eval_loss: Some(value),
            switch: None,
        };
        let plan = Plan {
            base: Base::Fixed {
                id,
                decision: Some(decision),
                checkpoint: false,
            },
            ..small_plan()
        };
        let given = Downward::Order(Order::Prepare(Arc::new(plan)));
        let (_, heard) = Downward::from_wire(over_the_wire(&given.to_wire(1))).unwrap();
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
            assert_eq!(number.to_bits(), value.to_bits(), "{value} became {number}");
        }
    }
}

fn good_hello() -> v1::Hello {
    v1::Hello {
        protocol_version: PROTOCOL_VERSION,
        oldest_protocol_version: 0,
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
fn impossible_hello_is_refused_with_the_field() {
    for (error, parts) in [
        (
            refused(|h| (h.protocol_version, h.oldest_protocol_version) = (9, 9)),
            ["version 9", "version 6"],
        ),
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
        (
            refused(|h| h.name = String::new()),
            ["name is \"\"", "a line of 1 to 256 bytes"],
        ),
        (
            refused(|h| h.address = String::new()),
            ["address is \"\"", "host:port"],
        ),
        (
            refused(|h| h.name = "a\nb".into()),
            ["name is \"a\\nb\"", "a line"],
        ),
        (
            refused(|h| h.device = "x".repeat(300)),
            ["device is", "256 bytes"],
        ),
        (refused(|h| h.speed = f64::NAN), ["speed is NaN", "above 0"]),
        (
            refused(|h| h.hardware = Some(v1::Hardware { kind: None })),
            ["Hardware", "kind"],
        ),
        (
            refused(|h| {
                let gpu = v1::Gpu {
                    name: "a\nb".into(),
                    memory_bytes: 1,
                };
                let kind = Some(v1::hardware::Kind::Gpu(gpu));
                h.hardware = Some(v1::Hardware { kind });
            }),
            ["name is \"a\\nb\"", "a line"],
        ),
        (refused(|h| h.speed = 0.0), ["speed is 0", "above 0"]),
        (
            refused(|h| h.scores.get_or_insert_default().saved_bytes = (1 << 40) + 1),
            ["saved_bytes is 1099511627777", "at most 2^40"],
        ),
        (
            refused(|h| h.scores.get_or_insert_default().forward_bytes = u64::MAX),
            ["forward_bytes is 18446744073709551615", "at most 2^40"],
        ),
        (
            refused(|h| h.scores.get_or_insert_default().backward_bytes = 1 << 41),
            ["backward_bytes is 2199023255552", "at most 2^40"],
        ),
    ] {
        for part in parts {
            assert!(error.contains(part), "{error:?} does not say {part:?}");
        }
    }
}

#[test]
fn a_version_mismatch_is_told_before_any_other_fault() {
    let hello = v1::Hello {
        protocol_version: 1,
        ..Default::default()
    };
    let up = v1::Up {
        message: Some(v1::up::Message::Hello(hello)),
    };
    assert_eq!(
        Upward::from_wire(up),
        Err(WireError::Version {
            found: Versions { oldest: 1, newest: 1 },
            expected: VERSIONS
        })
    );
}

/// An older coordinator refuses reasons that it does not know, and ignores unknown fields.
#[test]
fn shortage_is_sent_as_stuck_to_an_older_coordinator() {
    let suspects = |why| {
        Upward::Report(Report::Suspect {
            generation: Generation(3),
            about: WorkerId(7),
            why,
        })
    };
    for lacks in [Suspicion::NoData, Suspicion::NoMemory(MemoryShortage::default())] {
        let mut said = suspects(lacks).to_wire();
        let Some(v1::up::Message::Suspect(suspect)) = &mut said.message else {
            panic!("{said:?}");
        };
        (suspect.no_data, suspect.no_memory) = (false, None);
        assert_eq!(said, suspects(Suspicion::Gone).to_wire());
    }
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
fn a_plan_is_encoded_once_for_all_workers_that_it_is_sent_to() {
    let bytes = |down: &v1::Down| match &down.order {
        Some(v1::down::Order::Prepare(v1::Prepare { plan })) => plan.clone(),
        other => panic!("{other:?}"),
    };
    let mut plans = EncodedPlans::default();
    let (present, next) = (Arc::new(small_plan()), Arc::new(small_plan()));
    let (first, is_new) = plans.prepare(&present, 7);
    assert!(is_new);
    assert_eq!(first, Downward::Order(Order::Prepare(present.clone())).to_wire(7));
    assert!(plans.prepare(&next, 7).1, "another plan");
    let (second, is_new) = plans.prepare(&present, 8);
    assert!(!is_new);
    assert_eq!(second.term, 8);
    assert_eq!(bytes(&first).as_ptr(), bytes(&second).as_ptr(), "the same bytes");
}

/// A plan with this many workers in pipelines of eight, with random ids and with addresses like those of pods.
fn plan_of(workers: u64) -> Plan {
    let id = |i: u64| WorkerId((i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (i << 40));
    let mut plan = small_plan();
    let stage = |i: u64, segment: u32| Stage {
        worker: id(i),
        segments: SegmentRange {
            start: segment,
            end: segment + 1,
        },
        recompute: None,
    };
    let pipeline = |p: u64| Pipeline {
        stages: (0..8).map(|s| stage(p * 8 + u64::from(s), s)).collect(),
        samples: SampleRange {
            start: p * 16,
            end: p * 16 + 16,
        },
    };
    plan.shape.pipelines = (0..workers / 8).map(pipeline).collect();
    plan.evidence = (0..workers).map(id).collect();
    let address = |i: u64| format!("10.{}.{}.{}:7070", i % 7, i / 250, i % 250);
    plan.addresses = (0..workers).map(|i| (id(i), address(i))).collect();
    plan
}

fn prepared(plan: Vec<u8>) -> v1::Down {
    let prepare = v1::Prepare { plan: plan.into() };
    v1::Down {
        term: 1,
        order: Some(v1::down::Order::Prepare(prepare)),
    }
}

#[test]
fn long_plan_is_compressed_and_bombs_are_refused() {
    let bytes = |plan: &Plan| {
        let down = Downward::Order(Order::Prepare(Arc::new(plan.clone()))).to_wire(1);
        match down.order {
            Some(v1::down::Order::Prepare(v1::Prepare { plan })) => plan,
            other => panic!("{other:?}"),
        }
    };
    let long = plan_of(1_000);
    let packed = bytes(&long);
    assert!(packed.starts_with(&[0x1f, 0x8b]) && packed.len() < 24_000);
    assert!(!bytes(&small_plan()).starts_with(&[0x1f, 0x8b]));
    let (_, read) = Downward::from_wire(prepared(packed.to_vec())).unwrap();
    assert_eq!(read, Downward::Order(Order::Prepare(Arc::new(long))));
    // Zeros are compressed to a thousandth.
    let mut bomb = Vec::new();
    let zeros = std::io::repeat(0).take(1 << 20);
    GzEncoder::new(zeros, Compression::best())
        .read_to_end(&mut bomb)
        .unwrap();
    let expected = format!("compressed from more than {} bytes", bomb.len() * 64);
    let refused = Downward::from_wire(prepared(bomb)).unwrap_err().to_string();
    assert!(refused.contains(&expected), "{refused}");
    let cut = packed[..packed.len() / 2].to_vec();
    let refused = Downward::from_wire(prepared(cut)).unwrap_err().to_string();
    assert!(refused.contains("Prepare: field plan is"), "{refused}");
}

#[test]
fn an_order_that_names_no_generation_or_no_plan_is_refused() {
    use v1::down::Order as O;
    let bad = [
        (None, "order is missing"),
        (Some(O::Go(v1::Go { generation: 0 })), "generation is 0"),
        (Some(O::Arm(v1::Arm { generation: 0 })), "generation is 0"),
        (
            Some(O::Prepare(v1::Prepare {
                plan: Vec::new().into(),
            })),
            "Prepare: field plan is missing",
        ),
        (
            Some(O::Prepare(v1::Prepare {
                plan: vec![0xff; 3].into(),
            })),
            "Prepare: field plan is 3 bytes",
        ),
    ];
    for (order, part) in bad {
        let error = Downward::from_wire(v1::Down { term: 1, order })
            .expect_err(part)
            .to_string();
        assert!(error.contains(part), "{error:?} does not say {part:?}");
    }
}

/// The error of a plan with this change.
fn refused_plan(change: fn(&mut v1::Plan)) -> String {
    let down = Downward::Order(Order::Prepare(Arc::new(small_plan()))).to_wire(1);
    let Some(v1::down::Order::Prepare(v1::Prepare { plan })) = down.order else {
        panic!("no plan in {down:?}")
    };
    let mut plan = v1::Plan::decode(plan).expect("what was just written");
    change(&mut plan);
    let plan = plan.encode_to_vec().into();
    let order = v1::down::Order::Prepare(v1::Prepare { plan });
    let down = v1::Down {
        term: 1,
        order: Some(order),
    };
    Downward::from_wire(down)
        .expect_err("must be refused")
        .to_string()
}

#[test]
fn ranges_need_a_version_that_knows_them() {
    let refused = refused_plan(|p| {
        p.layout = Some(v1::Layout {
            segments: u32::MAX,
            tied: true,
            ranges: 65,
            divided_segments: 4,
        });
    });
    let expected = "Layout: field ranges is 65, allowed is at most 64, with 1048577 units in all";
    assert!(refused.contains(expected), "{refused}");
    let unknown = refused_plan(|p| {
        p.layout = Some(v1::Layout {
            segments: u32::MAX,
            tied: true,
            // The value that a build sees that does not know this field.
            ranges: 0,
            divided_segments: 0,
        });
    });
    assert!(
        unknown.contains("Layout: field segments is 4294967295"),
        "{unknown}"
    );
}

#[test]
fn invalid_plan_is_refused_with_the_field() {
    for (error, part) in [
        (refused_plan(|p| p.generation = 0), "Plan: field generation is 0"),
        (refused_plan(|p| p.base = None), "Plan: field base is missing"),
        (refused_plan(|p| p.layout = None), "Plan: field layout is missing"),
        (
            refused_plan(|p| {
                let row = |units| v1::Keeper { worker: None, units };
                p.keepers = vec![row(1), row(u32::MAX)];
            }),
            "Plan: field keepers is 4294967295 units after 1",
        ),
        (
            refused_plan(|p| p.keepers = vec![v1::Keeper::default()]),
            "Plan: field keepers is 0 units after 0",
        ),
        (
            refused_plan(|p| p.schedule = None),
            "Plan: field schedule is missing",
        ),
        (
            refused_plan(|p| p.predicted = None),
            "Plan: field predicted is missing",
        ),
        (
            refused_plan(|p| p.schedule.as_mut().unwrap().kind = None),
            "Schedule: field kind is missing",
        ),
        (
            refused_plan(|p| p.schedule.as_mut().unwrap().recompute = 0),
            "Schedule: field recompute is 0, allowed is 1 to 3",
        ),
        (
            refused_plan(|p| p.base = Some(v1::plan::Base::Fixed(v1::FixedBase::default()))),
            "FixedBase: field id is missing",
        ),
        (
            refused_plan(|p| {
                p.pipelines = vec![v1::Pipeline {
                    stages: vec![v1::Stage {
                        recompute: 9,
                        ..Default::default()
                    }],
                    ..Default::default()
                }];
            }),
            "Stage: field recompute is 9, allowed is 0 to 3",
        ),
        (
            refused_plan(|p| {
                p.layout = Some(v1::Layout {
                    segments: u32::MAX,
                    tied: true,
                    ranges: 1,
                    divided_segments: 0,
                });
            }),
            "Layout: field segments is 4294967295, allowed is at most 1048576",
        ),
        (
            refused_plan(|p| p.addresses = vec![v1::PeerAddress::default(); 2]),
            "Plan: field addresses is worker 0000000000000000 twice",
        ),
    ] {
        assert!(error.contains(part), "{error:?} does not say {part:?}");
    }
}

#[test]
fn a_status_without_a_mode_is_refused() {
    let from = varuna_wire::status::from_wire;
    let error = from(v1::StatusReply { status: None }).unwrap_err().to_string();
    assert!(error.contains("field status is missing"), "{error}");
    let status = Some(v1::RunStatus::default());
    let error = from(v1::StatusReply { status }).unwrap_err().to_string();
    assert!(error.contains("RunStatus: field mode is 0"), "{error}");
}

#[test]
fn a_mode_that_only_a_later_release_knows_hides_nothing_else() {
    let status = v1::RunStatus {
        mode: 1_000,
        step: 7,
        ..v1::RunStatus::default()
    };
    let read = varuna_wire::status::from_wire(v1::StatusReply { status: Some(status) }).unwrap();
    assert_eq!(
        (read.run.mode, read.run.step),
        (varuna_protocol::coordinator::RunMode::Unknown, Step(7))
    );
}

#[test]
fn the_parts_of_a_norm_exchange_keep_their_bits() {
    for value in [-0.0, f64::from_bits(0xFFF8_0000_0000_1234), f64::NEG_INFINITY] {
        let prepared = Prepared {
            run_gen: Generation(1),
            step: Step(1),
            norm: UnitNorm {
                norm2: value,
                overflow: false,
                before: varuna_plan::OptimizerProgress::START,
                loss: value,
                eval_loss: Some(value),
            },
        };
        let inventory = Inventory {
            upto: Generation(1),
            units: BTreeMap::new(),
            prepared: BTreeMap::from([(Unit(0), prepared)]),
            ran: None,
            decision: None,
        };
        let up = Upward::Report(Report::Inventory(inventory)).to_wire();
        let Upward::Report(Report::Inventory(heard)) = Upward::from_wire(over_the_wire(&up)).unwrap() else {
            panic!("not an inventory")
        };
        let norm = heard.prepared[&Unit(0)].norm;
        for number in [norm.norm2, norm.loss, norm.eval_loss.unwrap()] {
            assert_eq!(number.to_bits(), value.to_bits(), "{value} became {number}");
        }
    }
}
