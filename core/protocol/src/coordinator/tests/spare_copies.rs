//! Who is made a keeper of spare copies.

use super::*;
use crate::message::Following;
use varuna_plan::SpareCopies;
use varuna_plan::spare_copies::Verdict;

/// One pipeline: a segment for each of two workers.
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

/// The first plan's keepers, and what was said of them.
fn first_plan(wanted: SpareCopies, (of_a, of_b): (bool, bool)) -> (Vec<Option<WorkerId>>, Vec<Verdict>) {
    let config = CoordinatorConfig {
        spare_copies: wanted,
        min_workers: 2,
        ..config()
    };
    let mut rig = Rig::with(config.clone(), Record::default());
    rig.machine = Coordinator::new(config, Box::new(Deep));
    rig.put(CoordinatorInput::Tick);
    // Of an older build: it follows, and knows nothing of spare copies.
    let status = |keeps| Status {
        following: Following::Able,
        keeps,
        ..idle()
    };
    for (worker, keeps) in [(A, of_a), (B, of_b)] {
        let hello = Hello {
            address: format!("{worker}:1"),
            name: worker.to_string(),
            node: String::new(),
            hardware: None,
            memory_bytes: None,
            speed: 1.0,
        };
        rig.put(CoordinatorInput::StreamUp { from: worker, hello });
        rig.say(worker, Report::Status(status(keeps)));
    }
    for _ in 0..30 {
        rig.wait(20);
        for (worker, keeps) in [(A, of_a), (B, of_b)] {
            if rig.machine.record().plan.is_none() {
                let inventory = Inventory {
                    upto: rig.machine.record().highest,
                    units: [].into(),
                    prepared: [].into(),
                    ran: None,
                    decision: None,
                };
                rig.say(worker, Report::Status(status(keeps)));
                rig.say(worker, Report::Inventory(inventory));
            }
        }
    }
    let said = rig.events.iter().filter_map(|e| match e {
        Event::SpareCopies { verdict, .. } => Some(*verdict),
        _ => None,
    });
    let plan = rig.machine.record().plan.clone().unwrap();
    (plan.keepers.clone(), said.collect())
}

#[test]
fn neighbours_keep_each_others_units_where_it_is_wanted() {
    let (keepers, said) = first_plan(SpareCopies::One, (true, true));
    assert_eq!(keepers, [Some(B), Some(A)]);
    assert_eq!(said, [Verdict::Kept], "said once");
    let (keepers, said) = first_plan(SpareCopies::Off, (true, true));
    assert!(keepers.is_empty() && said.is_empty());
}

#[test]
fn a_worker_that_follows_and_cannot_keep_has_no_part_in_it() {
    let (keepers, said) = first_plan(SpareCopies::One, (true, false));
    assert_eq!(keepers, []);
    assert_eq!(said, [Verdict::NoKeeper]);
}
