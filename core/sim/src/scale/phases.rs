//! The phases, one after the other, on one host.

use super::{COORDINATOR, Cost, Costs, Meter, Scale, Setup, Unfinished};
use crate::host::{Event, Host, Process};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;
use varuna_plan::{Generation, Step, WorkerId};
use varuna_protocol::{Coordinator, CoordinatorConfig, MemberConfig, MemberTiming, Record, Timing};

/// Number of steps over which a step's cost is averaged.
const STEPS: u32 = 20;
/// Longest time of a phase, on the simulated clock.
const WITHIN: Duration = Duration::from_secs(600);

pub(super) fn measure(setup: &Setup, meter: &dyn Meter) -> Result<Costs, Unfinished> {
    let mut host = Host::new(Scale {
        meter,
        spent: Cell::new(Duration::ZERO),
        count: Cost::default(),
        record: Record::default(),
        record_bytes: 0,
        plans: BTreeMap::new(),
        planned: Generation(0),
        running: Generation(0),
        switched: Generation(0),
        steps: 0,
    });
    host.add_coordinator(coordinator(setup));
    let tick = Event::Tick(Process::Coordinator(COORDINATOR));
    host.queue.after(0, tick);
    host.join(setup, setup.workers);

    let launch = host.until(setup, "the launch", |env| env.running > Generation(0))?;
    host.until(setup, "the first step", |env| env.steps > 0)?;
    let last = host.env.steps + u64::from(STEPS);
    let steps = host.until(setup, "training", |env| env.steps >= last)?;

    let victim = WorkerId(setup.workers / 2);
    let before = host.env.running;
    host.kill(victim);
    let decision = host.until(setup, "the decision", |env| env.planned > before)?;
    let resumed = host.until(setup, "the recovery", |env| env.running > before)?;
    let trained = host.env.steps + 3;
    host.until(setup, "training after the recovery", |env| env.steps >= trained)?;

    let before = host.env.running;
    host.join(setup, (setup.workers / 10).max(1));
    let growth = host.until(setup, "the growth", |env| env.switched > before)?;
    Ok(Costs {
        launch,
        step: steps.part(STEPS),
        decision,
        recovery: decision.and(resumed),
        growth,
        record_bytes: host.env.record_bytes,
        coordinator_bytes: coordinator_bytes(host, meter),
    })
}

fn coordinator(setup: &Setup) -> Coordinator {
    let layout = setup.planner.costs.layout();
    let config = CoordinatorConfig {
        expected_workers: usize::try_from(setup.workers).ok(),
        // Preparing plans for possible losses would take the planner's time while training continues. Here that time counts for the
        // recovery.
        timing: Timing {
            prepare_plans_every: Duration::ZERO,
            ..Timing::default()
        },
        ..CoordinatorConfig::new(layout, setup.global_batch_size, Step(1_000_000))
    };
    Coordinator::new(config, Box::new(setup.planner.clone()))
}

/// Memory of the only coordinator's machine. Everything else is dropped first, so that nothing shares its plans.
fn coordinator_bytes(host: Host<Scale<'_>>, meter: &dyn Meter) -> u64 {
    let Host {
        queue,
        members,
        mut coordinators,
        env,
    } = host;
    drop((queue, members, env));
    let Some(only) = coordinators.pop() else {
        return 0;
    };
    let before = meter.allocated_bytes();
    drop(only.machine);
    before.saturating_sub(meter.allocated_bytes())
}

impl Host<Scale<'_>> {
    fn join(&mut self, setup: &Setup, workers: u64) {
        for _ in 0..workers {
            let config = MemberConfig {
                follows: false,
                parameters_first: false,
                id: self.members.next_id(),
                layout: setup.planner.costs.layout(),
                last_step: Step(1_000_000),
                checkpoint_every: None,
                compare_every: None,
                timing: MemberTiming::default(),
            };
            self.start_worker(config);
        }
    }

    /// Runs until the condition is met. Returns the cost.
    fn until(
        &mut self,
        setup: &Setup,
        phase: &'static str,
        is_over: impl Fn(&Scale<'_>) -> bool,
    ) -> Result<Cost, Unfinished> {
        let since = self.env.so_far(self.now());
        let end = self.now() + u64::try_from(WITHIN.as_nanos()).unwrap_or(u64::MAX);
        while !is_over(&self.env) {
            let next = self.queue.pop().filter(|_| self.now() <= end);
            let Some((_, event)) = next else {
                return Err(Unfinished {
                    workers: setup.workers,
                    phase,
                    within: WITHIN,
                });
            };
            let Ok(()) = self.step(event);
        }
        Ok(self.env.so_far(self.now()).since(since))
    }
}
