//! Which members become keepers of spare copies.

use super::*;
use crate::message::{Following, Keeping};
use varuna_plan::spare_copies::SpareCopyDecision;
use varuna_plan::{SpareCopies, SpareCosts, WorkerInfo};

/// A planner that makes one pipeline with a segment for each of two workers.
struct TwoStagePlanner;

impl Planner for TwoStagePlanner {
    fn plan(&self, request: &PlanRequest) -> Result<Shape, Infeasible> {
        let mut shape = DataParallelPlanner.plan(request)?;
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
    rig.machine = Coordinator::new(config, Box::new(TwoStagePlanner));
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
            copies_bytes: None,
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
fn status_counts_units_with_keepers_in_step() {
    let mut rig = planned(SpareCopies::One, (Keeping::Able, Keeping::Able));
    let view = |rig: &Rig| rig.machine.run().spare_copies.unwrap();
    let verdict = view(&rig).verdict;
    let copies = |in_step| SpareCopiesView {
        units: 2,
        kept: 2,
        in_step,
        verdict: verdict.clone(),
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
    let nobody = view(&nobody);
    assert_eq!((nobody.units, nobody.kept, nobody.in_step), (2, 0, 0));
    let off = planned(SpareCopies::Off, (Keeping::Able, Keeping::Able));
    assert_eq!(off.machine.run().spare_copies, None);
}

#[test]
fn the_status_says_what_was_decided_under_this_plan_and_why() {
    let said = |rig: &Rig| rig.machine.run().spare_copies.unwrap().verdict.unwrap();
    let able = (Keeping::Able, Keeping::Able);
    let mut rig = planned(SpareCopies::Auto, able);
    let kept = said(&rig);
    assert_eq!(kept.reason, SpareCopyDecision::Kept);
    assert!(kept.why.ends_with("expected once in 30 min"), "{}", kept.why);
    let nobody = said(&planned(SpareCopies::One, (Keeping::Able, Keeping::Unable)));
    assert_eq!(nobody.reason, SpareCopyDecision::NoKeeper);
    assert!(nobody.why.contains("has memory"), "{}", nobody.why);

    // Plans that are made since, and do not come into force, are another matter; and they are not all remembered.
    rig.machine.shared.config.spare_copies = SpareCopies::One;
    let shape = rig.plan().shape.clone();
    for generation in (7..20).map(Generation) {
        let mut effects = Vec::new();
        let mut turn = Turn {
            now: rig.now,
            scope: Scope::Everyone,
            effects: &mut effects,
        };
        rig.machine.shared.keepers(generation, &shape, &mut turn);
        assert_eq!(said(&rig), kept);
        assert_eq!(rig.machine.shared.last_reports.copy_verdicts.len(), 2);
    }
}

/// A planner of whose workers none has memory for a copy beside its stage.
struct Full;

impl Planner for Full {
    fn plan(&self, request: &PlanRequest) -> Result<Shape, Infeasible> {
        TwoStagePlanner.plan(request)
    }

    fn spare_costs(&self, _: &Shape, _: &Layout, workers: &[WorkerInfo]) -> SpareCosts {
        SpareCosts {
            copy_bytes: vec![10; 2],
            room_bytes: workers.iter().map(|w| (w.id, 0)).collect(),
            ..SpareCosts::default()
        }
    }
}

#[test]
fn a_keeper_on_the_host_needs_no_room_beside_its_stage() {
    let mut rig = planned(SpareCopies::One, (Keeping::Able, Keeping::Able));
    rig.machine.shared.planner = Box::new(Full);
    let shape = rig.plan().shape.clone();
    let keepers = |rig: &mut Rig| {
        let mut effects = Vec::new();
        let mut turn = Turn {
            now: rig.now,
            scope: Scope::Everyone,
            effects: &mut effects,
        };
        rig.machine.shared.keepers(Generation(9), &shape, &mut turn)
    };
    assert_eq!(keepers(&mut rig), []);
    let worker = rig.machine.shared.roster.workers.get_mut(&B).unwrap();
    worker.hello.as_mut().unwrap().copies_bytes = Some(10);
    assert_eq!(keepers(&mut rig), [Some(B), None]);
}

/// How many losses were counted: one more divides the time after which the next one is expected.
fn losses(rig: &Rig) -> u128 {
    let prior = Duration::from_secs(1 << 20);
    let expected = rig.machine.shared.roster.losses.expected(rig.now, prior);
    prior.as_nanos() / expected.as_nanos()
}

#[test]
fn only_members_that_nobody_could_plan_around_are_losses() {
    let mut rig = Rig::training(&[A, B]);
    rig.put(CoordinatorInput::MaxWorkers(Some(2)));
    rig.wait(100);
    // A worker that has no part in the plan comes and goes.
    rig.join(C);
    rig.wait(100);
    rig.put(CoordinatorInput::StreamDown { from: C });
    // A member is planned around before it goes.
    let leaving = Status {
        generation: Generation(1),
        phase: Phase::Running,
        draining: true,
        connected: true,
        based: true,
        ..idle()
    };
    rig.say(B, Report::Status(leaving));
    let next = rig.machine.record().next.clone().unwrap();
    assert_eq!(next.members(), [A]);
    let source = Status {
        generation: next.generation,
        phase: Phase::Source,
        ..leaving
    };
    rig.say(B, Report::Status(source));
    rig.status(A, next.generation.0, Phase::Ready, state(1, 1));
    rig.status(A, next.generation.0, Phase::Running, state(1, 1));
    rig.wait(40);
    rig.put(CoordinatorInput::StreamDown { from: B });
    rig.wait(100);
    assert_eq!(losses(&rig), 0, "{:?}", rig.events);

    let mut rig = Rig::training(&[A, B]);
    rig.wait(100);
    rig.say(A, suspect(1, B));
    rig.put(CoordinatorInput::StreamDown { from: B });
    let here = state(1, 4);
    rig.answer(A, &[(Unit(0), here), (Unit(1), here)]);
    assert_eq!(rig.plan().members(), [A]);
    assert_eq!(losses(&rig), 1);
}

#[test]
fn a_recovery_that_is_repeated_counts_its_losses_once() {
    let mut rig = Rig::training(&[A, B]);
    rig.wait(100);
    rig.manual = true;
    rig.say(A, suspect(1, B));
    rig.put(CoordinatorInput::StreamDown { from: B });
    let units = [Unit(0), Unit(1)].map(|unit| (unit, state(1, 4)));
    rig.answer(A, &units);
    let record = rig.written.clone().expect("the plan of the recovery is written");
    assert_eq!(losses(&rig), 1);
    // The store takes longer than losses may take that count as one.
    rig.wait_with(A, 1_500);
    rig.manual = false;
    rig.put(CoordinatorInput::Written { ok: false, record });
    rig.wait_with(A, 100);
    rig.answer(A, &units);
    assert_eq!(rig.plan().members(), [A]);
    let collected = |e: &&Event| matches!(e, Event::Collected { .. });
    assert_eq!(rig.events.iter().filter(collected).count(), 2, "{:?}", rig.events);
    assert_eq!(losses(&rig), 1);
}
