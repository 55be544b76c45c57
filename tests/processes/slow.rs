//! A slow worker among real processes. This is in a file of its own, because other tests that run at the same time would slow down all
//! workers.

use varuna_fixtures::{JobFile, Run, SlowedProcess, assert_same_curve};
use varuna_plan::{Base, Generation, Plan, WorkerId};

/// Number of segments that a worker computes in a step of a plan; a segment counts once for each sample.
fn work(plan: &Plan, worker: WorkerId) -> u64 {
    plan.shape.place(worker).map_or(0, |(i, j)| {
        let pipeline = &plan.shape.pipelines[i];
        pipeline.samples.len() * u64::from(pipeline.stages[j].segments.len())
    })
}

/// The change that was made because of this worker, and that gave it less work.
fn made_for(plans: &[Plan], name: &str, worker: WorkerId) -> Option<Generation> {
    let found = plans.iter().find(|plan| {
        let parent = plans.iter().find(|p| p.generation == plan.parent);
        let less = |parent: &Plan| parent.has(worker) && work(plan, worker) < work(parent, worker);
        matches!(plan.base, Base::AtSwitch { .. })
            && plan.reason.starts_with(&format!("{name} computes at 0."))
            && parent.is_some_and(less)
    });
    found.map(|p| p.generation)
}

#[test]
fn slow_worker_is_found_and_gets_less_work() {
    let job = JobFile {
        // Enough for two checks: speeds are checked every 20 steps.
        steps: 50,
        // A worker that computes for less than 20 ms in a step is not judged. A third of this batch takes that long on a slow core.
        batch: 18,
        layers: 1,
        hidden: 256,
        ..JobFile::default()
    };
    let mut quiet = Run::start(&job, 3);
    assert_eq!(quiet.exit_code(), 0, "{}", quiet.report());
    let mut run = Run::start(&job, 3);
    let workers = run.wait_for_workers(3);
    let slow = &workers[1].view;
    let load = SlowedProcess::start(workers[1].pid);
    let generation = run.wait_for("a plan for the slow worker", |run| {
        let workers = run.status()?.workers;
        let speed = workers.iter().find(|w| w.view.id == slow.id)?.view.speed;
        made_for(&run.plans(), &slow.name, slow.id).filter(|_| speed < 0.75)
    });
    run.wait_for("a step under it", |run| {
        run.metrics()
            .iter()
            .any(|m| m.generation == generation)
            .then_some(())
    });
    drop(load);
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    assert_same_curve(&quiet.metrics(), &run.metrics(), job.steps);
    let fences = run.events().iter().filter(|e| e["event"] == "fenced").count();
    assert_eq!(fences, 0, "it is a planned change\n{}", run.report());
}
