//! Which members become keepers of spare copies.

use super::*;
use crate::message::{Following, Keeping};
use varuna_plan::SpareCopies;
use varuna_plan::spare_copies::SpareCopyDecision;

/// A planner that makes one pipeline with a segment for each of two workers.
struct Deep;

impl Planner for Deep {
    fn plan(&self, request: &PlanRequest) -> Result<Shape, Infeasible> {
        let mut shape = Wide.plan(request)?;
        let stage = |(worker, start): (WorkerId, u32)| Stage {
            recompute: None,
            worker,
            segments: SegmentRange {
                start,
                end: start + 1,
            },
        };
        let workers = request.workers.iter().map(|w| w.id);
        shape.pipelines = vec![Pipeline {
            stages: workers.zip(0..).map(stage).collect(),
            samples: SampleRange { start: 0, end: 8 },
        }];
        Ok(shape)
    }
}

/// The keepers of the first plan, and the event about spare copies.
fn first_plan(
    wanted: SpareCopies,
    workers: (Keeping, Keeping),
) -> (Vec<Option<WorkerId>>, Vec<SpareCopyDecision>) {
    let rig = planned(wanted, workers);
    let said = rig.events.iter().filter_map(|e| match e {
        Event::SpareCopies { verdict, .. } => Some(*verdict),
        _ => None,
    });
    (rig.plan().keepers.clone(), said.collect())
}

/// Two workers for which the first plan was made.
fn planned(wanted: SpareCopies, (of_a, of_b): (Keeping, Keeping)) -> Rig {
    let config = CoordinatorConfig {
        spare_copies: wanted,
        min_workers: 2,
        ..config()
    };
    let mut rig = Rig::with(config.clone(), Record::default());
    rig.machine = Coordinator::new(config, Box::new(Deep));
    rig.put(CoordinatorInput::Tick);
    // A worker of an older build: it can follow, but does not know spare copies.
    let status = |keeping| Status {
        following: Following::Able,
        keeping,
        ..idle()
    };
    for (worker, keeping) in [(A, of_a), (B, of_b)] {
        let hello = Hello {
            address: format!("{worker}:1"),
            name: worker.to_string(),
            node: String::new(),
            hardware: None,
            memory_bytes: None,
            scores: None,
            speed: 1.0,
        };
        rig.put(CoordinatorInput::StreamUp { from: worker, hello });
        rig.say(worker, Report::Status(status(keeping)));
    }
    for _ in 0..30 {
        rig.wait(20);
        for (worker, keeping) in [(A, of_a), (B, of_b)] {
            if rig.machine.record().plan.is_none() {
                let inventory = Inventory {
                    upto: rig.machine.record().highest,
                    units: [].into(),
                    prepared: [].into(),
                    ran: None,
                    decision: None,
                };
                rig.say(worker, Report::Status(status(keeping)));
                rig.say(worker, Report::Inventory(inventory));
            }
        }
    }
    rig
}

#[test]
fn neighbours_keep_each_others_units_where_it_is_wanted() {
    let (keepers, said) = first_plan(SpareCopies::One, (Keeping::Able, Keeping::Able));
    assert_eq!(keepers, [Some(B), Some(A)]);
    assert_eq!(said, [SpareCopyDecision::Kept], "said once");
    let (keepers, said) = first_plan(SpareCopies::Off, (Keeping::Able, Keeping::Able));
    assert!(keepers.is_empty() && said.is_empty());
}

#[test]
fn a_worker_that_follows_and_cannot_keep_has_no_part_in_it() {
    let (keepers, said) = first_plan(SpareCopies::One, (Keeping::Able, Keeping::Unable));
    assert_eq!(keepers, []);
    assert_eq!(said, [SpareCopyDecision::NoKeeper]);
}

#[test]
fn the_status_counts_the_units_whose_keeper_says_that_it_is_in_step_under_this_plan() {
    let mut rig = planned(SpareCopies::One, (Keeping::Able, Keeping::Able));
    let view = |rig: &Rig| rig.machine.run().spare_copies.unwrap();
    let copies = |in_step| SpareCopiesView {
        units: 2,
        kept: 2,
        in_step,
    };
    assert_eq!(view(&rig), copies(0));
    let says = |generation, keeping| {
        Report::Status(Status {
            generation: Generation(generation),
            phase: Phase::Running,
            based: true,
            connected: true,
            following: Following::Able,
            keeping,
            ..idle()
        })
    };
    rig.say(A, says(1, Keeping::InStep));
    assert_eq!(view(&rig), copies(1));
    rig.say(B, says(0, Keeping::InStep));
    assert_eq!(view(&rig), copies(1), "that was under another plan");
    rig.say(B, says(1, Keeping::InStep));
    assert_eq!(view(&rig), copies(2));
    rig.say(A, says(1, Keeping::Able));
    assert_eq!(view(&rig), copies(1));
    let nobody = planned(SpareCopies::One, (Keeping::Able, Keeping::Unable));
    let without = SpareCopiesView { kept: 0, ..copies(0) };
    assert_eq!(view(&nobody), without);
    let off = planned(SpareCopies::Off, (Keeping::Able, Keeping::Able));
    assert_eq!(off.machine.run().spare_copies, None);
}
