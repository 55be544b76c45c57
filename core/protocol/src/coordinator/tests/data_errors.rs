//! If only one worker cannot read its data, the next plan is made without it. If the store is unavailable for all workers, no worker is
//! left out.

use super::*;

pub(super) const ALL: [WorkerId; 3] = [A, B, C];

fn lacks_data(generation: Generation, about: WorkerId) -> Report {
    Report::Suspect {
        generation,
        about,
        why: Suspicion::NoData,
    }
}

/// All workers answer the fence with this state, and the next plan starts.
pub(super) fn resume(rig: &mut Rig, there: &[WorkerId], at: StateId) {
    let before = rig.plan();
    // The plan is made as soon as all members have answered.
    let (members, others): (Vec<WorkerId>, Vec<WorkerId>) =
        there.iter().copied().partition(|w| before.has(*w));
    for worker in others.into_iter().chain(members) {
        rig.answer(worker, &[(Unit(0), at), (Unit(1), at)]);
    }
    let plan = rig.plan();
    assert!(plan.generation > before.generation, "no plan was made");
    for phase in [Phase::Ready, Phase::Running] {
        for worker in plan.members() {
            rig.status(*worker, plan.generation.0, phase, at);
        }
    }
}

/// These workers cannot read the data of the step that runs.
fn cannot_read(rig: &mut Rig, lacking: &[WorkerId], there: &[WorkerId], at: StateId) {
    let generation = rig.plan().generation;
    for worker in lacking {
        rig.say(*worker, lacks_data(generation, *worker));
    }
    resume(rig, there, at);
}

/// Three workers train, and have done four steps.
pub(super) fn three() -> (Rig, StateId) {
    let (mut rig, at) = (Rig::training(&ALL), state(1, 4));
    for worker in ALL {
        rig.status(worker, 1, Phase::Running, at);
    }
    (rig, at)
}

#[test]
fn worker_that_cannot_read_is_left_out_and_tried_again() {
    let (mut rig, at) = three();
    for _ in 0..2 {
        cannot_read(&mut rig, &[B], &ALL, at);
        assert_eq!(rig.plan().members(), ALL, "its store may be slow for a moment");
    }
    cannot_read(&mut rig, &[B], &ALL, at);
    assert_eq!(rig.plan().members(), [A, C]);
    let because = "w2 cannot read its data or its model's code";
    let said = |e: &Event| matches!(e, Event::Fenced { because: b, .. } if b == because);
    assert!(rig.events.iter().any(said), "{:?}", rig.events);
    let reason = rig.plan().reason.clone();
    assert!(reason.contains(because), "{reason}");
    let left_out = ALL.map(|worker| rig.left_out(worker).map(|left_out| left_out.reason));
    assert_eq!(left_out, [None, Some(LeftOutReason::NoData), None]);
    // Another recovery, once it is allowed.
    rig.now = rig.now.after(Duration::from_secs(6));
    let generation = rig.plan().generation;
    rig.say(A, suspect(generation.0, C));
    resume(&mut rig, &ALL, at);
    assert_eq!(rig.plan().members(), ALL);
    cannot_read(&mut rig, &[B], &ALL, at);
    assert_eq!(rig.plan().members(), [A, C], "nothing was committed with it");
}

#[test]
fn unavailable_store_leaves_nobody_out() {
    for lacking in [&ALL[..], &[A, B][..]] {
        let (mut rig, at) = three();
        for _ in 0..6 {
            cannot_read(&mut rig, lacking, &ALL, at);
            assert_eq!(rig.plan().members(), ALL);
        }
    }
}

#[test]
fn left_out_readers_return_if_the_others_cannot_read() {
    let (mut rig, at) = three();
    for _ in 0..3 {
        cannot_read(&mut rig, &[B], &ALL, at);
    }
    assert_eq!(rig.plan().members(), [A, C]);
    cannot_read(&mut rig, &[A, C], &ALL, at);
    assert_eq!(rig.plan().members(), ALL);
}

#[test]
fn commit_clears_earlier_read_failures() {
    let (mut rig, mut at) = three();
    for _ in 0..2 {
        cannot_read(&mut rig, &[B], &ALL, at);
    }
    let generation = rig.plan().generation.0;
    at = state(generation, 5);
    for worker in ALL {
        rig.status(worker, generation, Phase::Running, at);
    }
    for _ in 0..2 {
        cannot_read(&mut rig, &[B], &ALL, at);
        assert_eq!(rig.plan().members(), ALL);
    }
    cannot_read(&mut rig, &[B], &ALL, at);
    assert_eq!(rig.plan().members(), [A, C]);
}

/// The first report comes from a worker that waits for the one that cannot read.
#[test]
fn reports_during_a_stop_count_and_stuck_workers_do_not() {
    let (mut rig, at) = three();
    for _ in 0..3 {
        let generation = rig.plan().generation;
        rig.say(A, suspect(generation.0, A));
        cannot_read(&mut rig, &[B], &ALL, at);
    }
    assert_eq!(rig.plan().members(), [A, C]);
}

#[test]
fn nobody_can_say_of_another_that_its_data_cannot_be_read() {
    let (mut rig, at) = three();
    for _ in 0..4 {
        let generation = rig.plan().generation;
        rig.say(A, lacks_data(generation, B));
        resume(&mut rig, &ALL, at);
        assert_eq!(rig.plan().members(), ALL);
    }
}

/// A planner for which one worker alone cannot hold the model.
pub(super) struct TwoWorkerPlanner;

impl Planner for TwoWorkerPlanner {
    fn plan(&self, request: &PlanRequest) -> Result<Shape, Infeasible> {
        match request.workers.len() {
            0 | 1 => Err(Infeasible("two workers are needed".to_owned())),
            _ => DataParallelPlanner.plan(request),
        }
    }
}

#[test]
fn indispensable_worker_stays_until_another_joins() {
    let (mut rig, at) = (Rig::training(&[A, B]), state(1, 4));
    rig.machine.shared.planner = Box::new(TwoWorkerPlanner);
    for worker in [A, B] {
        rig.status(worker, 1, Phase::Running, at);
    }
    for _ in 0..5 {
        cannot_read(&mut rig, &[B], &[A, B], at);
        assert_eq!(rig.plan().members(), [A, B]);
        assert!(!rig.plan().reason.contains("left out"));
    }
    rig.join(C);
    cannot_read(&mut rig, &[B], &ALL, at);
    assert_eq!(rig.plan().members(), [A, C]);
}
