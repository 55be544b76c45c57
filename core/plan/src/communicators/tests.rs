use super::queues::{Failure, Step, Work};
use super::*;
use crate::document::{PlanIndex, Prediction, Recompute, SampleRange, ScheduleKind, Shape, Stage};
use crate::layout::SegmentRange;
use proptest::prelude::*;
use proptest::sample::Index;

/// How the operations of a step are issued: correctly, or with one mistake.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Issued {
    AsPlanned,
    OneCommunicatorForBothDirections,
    ReceivesAsNeeded,
    TiedWhenFinished,
}

/// What a property test draws for one pipeline.
#[derive(Clone, Debug)]
struct Drawn {
    workers: usize,
    cuts: Vec<u32>,
    samples: u64,
    recompute: Vec<Option<Recompute>>,
}

const SEGMENTS: u32 = 12;

fn any_recompute() -> impl Strategy<Value = Recompute> {
    prop_oneof![
        Just(Recompute::None),
        Just(Recompute::Selective),
        Just(Recompute::Full)
    ]
}

fn any_kind() -> impl Strategy<Value = ScheduleKind> {
    prop_oneof![
        Just(ScheduleKind::Gpipe),
        (1.0..4.0f64).prop_map(|w| ScheduleKind::OneForwardOneBackward { warmup_factor: w }),
        (2u32..4).prop_map(|chunks| ScheduleKind::Interleaved { chunks }),
    ]
}

fn any_pipeline() -> impl Strategy<Value = Drawn> {
    let cuts = prop::collection::vec(any::<u32>(), SEGMENTS as usize);
    let recompute = prop::collection::vec(prop::option::of(any_recompute()), SEGMENTS as usize);
    (1usize..5, cuts, 1u64..20, recompute).prop_map(|(workers, cuts, samples, recompute)| Drawn {
        workers,
        cuts,
        samples,
        recompute,
    })
}

/// The drawn pipeline, with workers from `first` on and samples from `start` on.
fn pipeline(drawn: &Drawn, kind: ScheduleKind, micro_batch_size: u32, first: u64, start: u64) -> Pipeline {
    let (workers, samples) = match kind.chunks() {
        1 => (drawn.workers, drawn.samples),
        // An interleaved pipeline has at least two workers with several rounds, and whole groups of micro-batches, of which the last one
        // may be short.
        _ => {
            let workers = drawn.workers.max(2);
            let whole = drawn
                .samples
                .div_ceil(u64::from(micro_batch_size))
                .next_multiple_of(workers as u64);
            let short = drawn.samples % u64::from(micro_batch_size);
            (workers, whole * u64::from(micro_batch_size) - short)
        }
    };
    let stages = workers * kind.chunks();
    let mut cuts: Vec<u32> = (1..SEGMENTS).collect();
    cuts.sort_by_key(|c| drawn.cuts[*c as usize]);
    cuts.truncate(stages - 1);
    cuts.extend([0, SEGMENTS]);
    cuts.sort_unstable();
    let stage = |(s, ends): (usize, &[u32])| Stage {
        worker: WorkerId(first + (s % workers) as u64),
        segments: SegmentRange {
            start: ends[0],
            end: ends[1],
        },
        recompute: drawn.recompute[s],
    };
    Pipeline {
        stages: cuts.windows(2).enumerate().map(stage).collect(),
        samples: SampleRange {
            start,
            end: start + samples,
        },
    }
}

fn plan_of(
    drawn: &[Drawn],
    kind: ScheduleKind,
    recompute: Recompute,
    micro_batch_size: u32,
    tied: bool,
) -> Plan {
    let mut pipelines: Vec<Pipeline> = Vec::new();
    for drawn in drawn {
        let start = pipelines.last().map_or(0, |p| p.samples.end);
        // The numbers of workers must not matter, so later pipelines have smaller ones.
        let first = 100 - 10 * pipelines.len() as u64;
        pipelines.push(pipeline(drawn, kind, micro_batch_size, first, start));
    }
    let layout = Layout::new(SEGMENTS, tied);
    let shape = Shape {
        pipelines,
        spares: Vec::new(),
        micro_batch_size,
        schedule: ScheduleSpec { kind, recompute },
        predicted: Prediction::default(),
    };
    Plan::first(layout, shape)
}

/// A worker's tasks, with the communicator operations that each needs.
fn works(
    me: WorkerId,
    program: &Program,
    of: &Pipeline,
    wires: &[Wire],
    number: impl Fn(Edge) -> usize,
    (ahead, issued): (usize, Issued),
    layout: &Layout,
) -> Vec<Work> {
    let stages = of.stages.len();
    let tasks: Vec<(Pass, Task)> = program.tasks().collect();
    let mut needed: BTreeMap<Edge, usize> = BTreeMap::new();
    let last_backward = |task: &Task| {
        let same = |t: &Task| t.stage == task.stage && matches!(t.instruction, Instruction::Backward(_));
        program.training.iter().rfind(|t| same(t)) == Some(task)
    };
    let one = |task: &(Pass, Task)| {
        let mut work = Work::default();
        if let Some((direction, message)) = needs(stages, *task) {
            let mine = |w: &&Wire| {
                w.edge.receiver == me && w.edge.direction == direction && w.sent.contains(&message)
            };
            let wire = wires.iter().find(mine).unwrap();
            let (k, id) = (needed.entry(wire.edge).or_default(), number(wire.edge));
            let posted = wire.posted(ahead);
            let from = k.checked_sub(1).map_or(0, |before| posted[before]);
            work.receives = match issued {
                Issued::ReceivesAsNeeded => vec![(id, message)],
                _ => wire.sent[from..posted[*k]].iter().map(|m| (id, *m)).collect(),
            };
            work.needs = vec![(id, message)];
            *k += 1;
        }
        if let Some((direction, message)) = sends(stages, *task) {
            let receiver = of.stages[message.stage].worker;
            let edge = Edge {
                sender: me,
                receiver,
                direction,
            };
            work.sends = vec![(number(edge), message)];
        }
        if task.0 == Pass::Training && last_backward(&task.1) {
            let units = layout.all_units();
            let own = of.stages[task.1.stage].segments;
            work.finishes = units.filter(|u| layout.stage_needs(own, *u)).collect();
        }
        work
    };
    tasks.iter().map(one).collect()
}

/// The units that a worker reduces with others, in the order in which it begins.
fn begins(plan: &Plan, me: WorkerId, issued: Issued) -> Vec<Unit> {
    let groups = groups(plan);
    let shared = |u: &Unit| {
        groups
            .iter()
            .any(|g| g.holders.contains(&me) && g.units.contains(u))
    };
    let mut order: Vec<Unit> = reduction_order(&plan.layout).filter(shared).collect();
    let embeds = plan.segments_of(me).iter().any(|s| s.start == 0);
    if issued == Issued::TiedWhenFinished && !embeds {
        // Workers with the head but without the embedding finish it right after the head.
        order.sort_by_key(|u| (u.0 + 1 < SEGMENTS, std::cmp::Reverse(u.0)));
    }
    order
}

/// Runs a step of the plan, in which each worker runs its program.
fn run(
    plan: &Plan,
    programs: &[BTreeMap<WorkerId, Program>],
    (run_ahead, ahead, issued): (usize, usize, Issued),
) -> Result<usize, Failure> {
    let edges = edges(plan);
    let number = |edge: Edge| match issued {
        Issued::OneCommunicatorForBothDirections => {
            let pair = |e: &Edge| (e.sender.min(e.receiver), e.sender.max(e.receiver));
            edges.iter().position(|e| pair(e) == pair(&edge)).unwrap()
        }
        _ => edges.iter().position(|e| *e == edge).unwrap(),
    };
    let (mut work, mut reductions) = (Vec::new(), Vec::new());
    for (of, programs) in plan.shape.pipelines.iter().zip(programs) {
        let workers: Vec<WorkerId> = of.stages.iter().map(|s| s.worker).collect();
        let wires = wires_of(&workers, programs);
        for (me, program) in programs {
            let how = (ahead, issued);
            work.push(works(*me, program, of, &wires, number, how, &plan.layout));
            reductions.push(begins(plan, *me, issued));
        }
    }
    Step::new(&work, &reductions, run_ahead).run()
}

fn run_plan(plan: &Plan, evaluation: u32, how: (usize, usize, Issued)) -> Result<usize, Failure> {
    let pipelines = plan.shape.pipelines.iter();
    let all: Vec<_> = pipelines.map(|p| programs(plan, p, evaluation)).collect();
    run(plan, &all, how)
}

/// An arbitrary order that a valid schedule could have: at each point one of the tasks that can run, on any worker.
fn any_order(plan: &Plan, picks: &[Index]) -> BTreeMap<WorkerId, Program> {
    let of = &plan.shape.pipelines[0];
    let stages = of.stages.len();
    let all = u32::try_from(of.micro_batches(plan.shape.micro_batch_size)).unwrap();
    let (mut forwards, mut backwards) = (vec![0u32; stages], vec![0u32; stages]);
    let workers = of.stages.iter().map(|s| (s.worker, Program::default()));
    let mut programs: BTreeMap<WorkerId, Program> = workers.collect();
    for pick in picks.iter().cycle() {
        let (f, b) = (&forwards, &backwards);
        let forward = |s: &usize| f[*s] < all && (*s == 0 || f[s - 1] > f[*s]);
        let backward = |s: &usize| b[*s] < f[*s] && (s + 1 == stages || b[s + 1] > b[*s]);
        let can: Vec<Task> = (0..stages)
            .flat_map(|stage| {
                let task = |instruction| Task { stage, instruction };
                let forward = forward(&stage).then(|| task(Instruction::Forward(f[stage])));
                let backward = backward(&stage).then(|| task(Instruction::Backward(b[stage])));
                forward.into_iter().chain(backward)
            })
            .collect();
        if can.is_empty() {
            break;
        }
        let task = can[pick.index(can.len())];
        match task.instruction {
            Instruction::Forward(_) => forwards[task.stage] += 1,
            _ => backwards[task.stage] += 1,
        }
        let program = programs.get_mut(&of.stages[task.stage].worker).unwrap();
        program.training.push(task);
    }
    programs
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(160))]
    #[test]
    fn no_step_of_any_plan_stands_still(
        drawn in prop::collection::vec(any_pipeline(), 1..4), kind in any_kind(), recompute in any_recompute(),
        micro_batch_size in 1u32..4, tied: bool, evaluation in 0u32..6, run_ahead in 1usize..4, ahead in 0usize..3
    ) {
        let plan = plan_of(&drawn, kind, recompute, micro_batch_size, tied);
        let posted = run_plan(&plan, evaluation, (run_ahead, ahead, Issued::AsPlanned));
        // In the existing schedules, receivers need messages in the order in which they are sent, so no receive waits longer than it
        // should. A worker receives on at most four edges.
        prop_assert!(posted.is_ok_and(|most| most <= 4 * ahead), "{posted:?}");
    }

    #[test]
    fn every_message_is_sent_and_received_once(
        drawn in prop::collection::vec(any_pipeline(), 1..4), kind in any_kind(), evaluation in 0u32..6
    ) {
        let plan = plan_of(&drawn, kind, Recompute::Full, 2, true);
        let edges = edges(&plan);
        for (i, of) in plan.shape.pipelines.iter().enumerate() {
            let mut count = 0;
            for wire in wires(&plan, i, evaluation) {
                prop_assert!(edges.contains(&wire.edge));
                let (mut sent, mut needed) = (wire.sent, wire.needed);
                sent.sort_unstable();
                needed.sort_unstable();
                prop_assert_eq!(&sent, &needed);
                sent.dedup();
                prop_assert_eq!(sent.len(), needed.len());
                count += sent.len() as u64;
            }
            let boundaries = of.stages.len() as u64 - 1;
            prop_assert_eq!(count, boundaries * (2 * of.micro_batches(2) + u64::from(evaluation)));
        }
    }

    #[test]
    fn receives_must_be_in_the_senders_order(
        drawn in any_pipeline(), picks in prop::collection::vec(any::<Index>(), 64), run_ahead in 1usize..4,
        ahead in 0usize..3
    ) {
        let plan = plan_of(&[drawn], ScheduleKind::Interleaved { chunks: 3 }, Recompute::None, 2, true);
        let programs = any_order(&plan, &picks);
        let stages = &plan.shape.pipelines[0].stages;
        let workers: Vec<WorkerId> = stages.iter().map(|s| s.worker).collect();
        let same = wires_of(&workers, &programs).iter().all(|w| w.sent == w.needed);
        let programs = [programs];
        prop_assert!(run(&plan, &programs, (run_ahead, ahead, Issued::AsPlanned)).is_ok());
        let as_needed = run(&plan, &programs, (run_ahead, ahead, Issued::ReceivesAsNeeded));
        prop_assert_eq!(as_needed.is_ok(), same, "{:?}", as_needed);
    }

    #[test]
    fn one_communicator_for_both_directions_stops_1f1b(
        mut drawn in any_pipeline(), warmup_factor in 1.0..4.0f64, run_ahead in 1usize..4
    ) {
        drawn.workers = drawn.workers.max(2);
        drawn.samples += 2;
        let kind = ScheduleKind::OneForwardOneBackward { warmup_factor };
        let plan = plan_of(&[drawn], kind, Recompute::None, 1, false);
        let shared = run_plan(&plan, 0, (run_ahead, 0, Issued::OneCommunicatorForBothDirections));
        prop_assert!(matches!(shared, Err(Failure::Stuck(_))), "{shared:?}");
    }
}

/// One pipeline with one worker, and one with two. The worker that holds both ends shares the tied weight with the holders of both ends.
fn uneven() -> Plan {
    let drawn = |workers| Drawn {
        workers,
        cuts: (0..SEGMENTS).map(|c| c.abs_diff(6)).collect(),
        samples: 2,
        recompute: vec![None; SEGMENTS as usize],
    };
    plan_of(
        &[drawn(1), drawn(2)],
        ScheduleKind::Gpipe,
        Recompute::None,
        1,
        true,
    )
}

#[test]
fn late_reduction_of_a_tied_weight_deadlocks() {
    let plan = uneven();
    let of = |issued| run_plan(&plan, 0, (2, 0, issued));
    assert_eq!(of(Issued::AsPlanned), Ok(0));
    assert!(matches!(of(Issued::TiedWhenFinished), Err(Failure::Stuck(_))));
}

#[test]
fn each_set_of_holders_has_one_group() {
    let plan = uneven();
    let [a, b, c] = [100, 90, 91].map(WorkerId);
    let units = |of: std::ops::Range<u32>| of.rev().map(Unit).collect::<Vec<_>>();
    let group = |holders: &[WorkerId], units| Group {
        holders: holders.to_vec(),
        units,
    };
    let expected = [
        group(&[a, c], units(6..12)),
        group(&[a, b], units(0..6)),
        group(&[a, b, c], vec![Unit(12)]),
    ];
    assert_eq!(groups(&plan), expected);
    let alone = Plan {
        shape: Shape {
            pipelines: plan.shape.pipelines[1..].to_vec(),
            ..plan.shape.clone()
        },
        index: PlanIndex::default(),
        ..plan
    };
    assert_eq!(groups(&alone), [group(&[b, c], vec![Unit(12)])]);
}

#[test]
fn two_workers_have_an_edge_per_direction_and_kind() {
    let drawn = Drawn {
        workers: 2,
        cuts: vec![0; SEGMENTS as usize],
        samples: 2,
        recompute: vec![None; SEGMENTS as usize],
    };
    let of = |kind| {
        let plan = plan_of(std::slice::from_ref(&drawn), kind, Recompute::None, 1, false);
        let edges = edges(&plan).into_iter();
        edges
            .map(|e| (e.sender.0, e.receiver.0, e.direction))
            .collect::<Vec<_>>()
    };
    use Direction::{Activation, Gradient};
    assert_eq!(
        of(ScheduleKind::Gpipe),
        [(100, 101, Activation), (101, 100, Gradient)]
    );
    let all = [
        (100, 101, Activation),
        (100, 101, Gradient),
        (101, 100, Activation),
        (101, 100, Gradient),
    ];
    assert_eq!(of(ScheduleKind::Interleaved { chunks: 2 }), all);
}

#[test]
fn a_receiver_posts_up_to_what_it_needs_and_so_many_more_ahead() {
    let message = |micro_batch| Message {
        pass: Pass::Training,
        stage: 1,
        micro_batch,
    };
    let wire = Wire {
        edge: Edge {
            sender: WorkerId(1),
            receiver: WorkerId(2),
            direction: Direction::Activation,
        },
        sent: [0, 1, 2, 3].map(message).to_vec(),
        needed: [1, 0, 3, 2].map(message).to_vec(),
    };
    assert_eq!(wire.posted(0), [2, 2, 4, 4]);
    assert_eq!(wire.posted(1), [3, 3, 4, 4]);
    assert_eq!(wire.posted(9), [4, 4, 4, 4]);
}
