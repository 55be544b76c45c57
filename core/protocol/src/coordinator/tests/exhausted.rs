//! A worker that runs out of memory under the same plan again gets less to hold; if there is no such plan, all that it has counts.

use super::data_errors::{ALL, resume, three};
use super::*;
use crate::coordinator::LeftOutReason;
use crate::message::MemoryShortage;
use varuna_plan::WorkerInfo;

/// What a pipeline of one worker takes, bytes.
const TAKES: u64 = 800 << 20;

/// Like [`DataParallelPlanner`], where each worker needs memory for the whole model.
struct Needy;

impl Planner for Needy {
    fn plan(&self, request: &PlanRequest) -> Result<Shape, Infeasible> {
        let mut fits = request.clone();
        fits.workers
            .retain(|w| w.memory_bytes.is_none_or(|has| has >= TAKES));
        match fits.workers.len() {
            0 => Err(Infeasible("no worker has room for the model".to_owned())),
            _ => DataParallelPlanner.plan(&fits),
        }
    }

    fn needed_bytes(&self, shape: &Shape, _: &Layout, _: &[WorkerInfo]) -> BTreeMap<WorkerId, u64> {
        shape.members().into_iter().map(|w| (w, TAKES)).collect()
    }
}

fn no_memory(generation: Generation, about: WorkerId) -> Report {
    let shortage = MemoryShortage {
        needed_bytes: Some(3 << 20),
        free_bytes: Some(1 << 20),
    };
    Report::Suspect {
        generation,
        about,
        why: Suspicion::NoMemory(shortage),
    }
}

/// Worker B has no memory for the step that runs, and says so of this worker.
fn runs_out(rig: &mut Rig, about: WorkerId, there: &[WorkerId], at: StateId) {
    let generation = rig.plan().generation;
    rig.say(B, no_memory(generation, about));
    resume(rig, there, at);
}

#[test]
fn running_out_of_memory_twice_in_a_row_changes_the_plan() {
    let (mut rig, at) = three();
    rig.machine.shared.planner = Box::new(Needy);
    runs_out(&mut rig, B, &ALL, at);
    assert_eq!(rig.plan().members(), ALL, "once may be chance");
    let because = "w2 ran out of memory (asked for at once: 3 MiB, free: 1 MiB)";
    let said = |e: &Event| matches!(e, Event::Fenced { because: b, .. } if b == because);
    assert!(rig.events.iter().any(said), "{:?}", rig.events);
    runs_out(&mut rig, B, &ALL, at);
    assert_eq!(rig.plan().members(), [A, C]);
    let left_out = rig.left_out(B).unwrap();
    assert_eq!(left_out.reason, LeftOutReason::NoMemory);
    assert!(left_out.why.contains("planned with 700 MiB"), "{}", left_out.why);
    let reason = rig.plan().reason.clone();
    assert!(
        reason.contains("; w2 ran out of memory and is planned with 700 MiB"),
        "{reason}"
    );
    // It stays so.
    let generation = rig.plan().generation.0;
    let later = state(generation, 5);
    for worker in [A, C] {
        rig.status(worker, generation, Phase::Running, later);
    }
    rig.say(A, suspect(generation, C));
    resume(&mut rig, &ALL, later);
    assert_eq!(rig.plan().members(), [A, C]);
}

#[test]
fn a_committed_step_absolves_who_ran_out_of_memory() {
    let (mut rig, mut at) = three();
    rig.machine.shared.planner = Box::new(Needy);
    for step in 5..8 {
        runs_out(&mut rig, B, &ALL, at);
        assert_eq!(rig.plan().members(), ALL);
        let generation = rig.plan().generation.0;
        at = state(generation, step);
        for worker in ALL {
            rig.status(worker, generation, Phase::Running, at);
        }
    }
}

#[test]
fn nobody_can_say_of_another_that_it_ran_out_of_memory() {
    let (mut rig, at) = three();
    rig.machine.shared.planner = Box::new(Needy);
    for _ in 0..4 {
        runs_out(&mut rig, C, &ALL, at);
        assert_eq!(rig.plan().members(), ALL);
    }
}

#[test]
fn a_worker_that_every_plan_needs_is_planned_with_all_it_has() {
    let (mut rig, at) = (Rig::training(&[B]), state(1, 4));
    rig.machine.shared.planner = Box::new(Needy);
    rig.status(B, 1, Phase::Running, at);
    for again in [false, true, true] {
        runs_out(&mut rig, B, &[B], at);
        assert_eq!(rig.plan().members(), [B]);
        let reason = rig.plan().reason.clone();
        let none = "; w2 ran out of memory, and there is no plan that takes less of it";
        assert_eq!(reason.contains(none), again, "{reason}");
    }
}

#[test]
fn a_restarted_worker_is_planned_with_no_more_than_before() {
    let (mut rig, at) = three();
    rig.machine.shared.planner = Box::new(Needy);
    for _ in 0..2 {
        runs_out(&mut rig, B, &ALL, at);
    }
    assert_eq!(rig.plan().members(), [A, C]);
    let [beside, again, other, once_more] = [4, 5, 6, 7].map(WorkerId);
    let limit = |rig: &Rig, worker| rig.machine.shared.quarantine.exhausted.limit(worker);
    // Several workers of a pod have its name.
    rig.join_as(beside, "w2");
    assert_eq!(limit(&rig, beside), None, "the one before is still here");
    rig.put(CoordinatorInput::StreamDown { from: B });
    rig.join_as(again, "w2");
    assert_eq!(limit(&rig, again), Some(700 << 20));
    assert_eq!(rig.left_out(again).unwrap().reason, LeftOutReason::NoMemory);
    rig.join_as(other, "w6");
    assert_eq!(limit(&rig, other), None);
    // A worker that comes back is the same, and has what it had.
    rig.put(CoordinatorInput::StreamDown { from: beside });
    rig.join_as(beside, "w2");
    assert_eq!(limit(&rig, beside), None);
    rig.put(CoordinatorInput::StreamDown { from: again });
    rig.join_as(once_more, "w2");
    assert_eq!(limit(&rig, once_more), Some(700 << 20));
}

#[test]
fn a_worker_of_the_same_name_on_another_node_has_another_device() {
    let (mut rig, at) = three();
    rig.machine.shared.planner = Box::new(Needy);
    for _ in 0..2 {
        runs_out(&mut rig, B, &ALL, at);
    }
    rig.put(CoordinatorInput::StreamDown { from: B });
    let hello = Hello {
        address: "d:1".to_owned(),
        name: "w2".to_owned(),
        node: "another".to_owned(),
        hardware: None,
        memory_bytes: None,
        copies_bytes: None,
        scores: None,
        speed: 1.0,
    };
    let from = WorkerId(4);
    rig.put(CoordinatorInput::StreamUp { from, hello });
    assert_eq!(rig.machine.shared.quarantine.exhausted.limit(from), None);
}
