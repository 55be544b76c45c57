//! Runs a job under one schedule from its beginning to its end.

use super::fault_list::{Faults, InjectedFault};
use super::job::Job;
use super::lone_loss::LoneLoss;
use super::network::{Ms, Network};
use super::stats::Stats;
use super::store::Store;
use super::unreliable::Unreliable;
use super::uploads::Outage;
use super::{Result, Schedule};
use crate::check::{Checker, broken};
use crate::effects_digest::EffectsDigest;
use crate::host::Host;
use crate::rng::Rng;
use crate::timeline::{Kind, Timeline};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use varuna_plan::state::mix;
use varuna_plan::{StateId, Step};
use varuna_protocol::{Mutant, Record};

/// The job must end within this many milliseconds of the world after the faults stop.
const PATIENCE: Ms = 40_000;
/// Factor for time limits and numbers of events if the faults only become rarer.
const RARER: Ms = 3;
/// Additional milliseconds for each step: a step with an evaluation, over a slow network.
const STEP_MAX: Ms = 2_000;
/// Maximum number of events.
const EVENTS: u64 = 1_000_000;

/// A job under one schedule, and a checker that runs after every event.
pub struct World {
    host: Host<Schedule>,
}

impl Schedule {
    /// How long the job may take from the end of the faults, or from the time at which they became rarer.
    fn patience(&self) -> Ms {
        let times = if self.faults.become_rarer { RARER } else { 1 };
        times * (PATIENCE + self.last_step().0 * STEP_MAX)
    }

    /// The last step of the run, as the record has it.
    pub(super) fn last_step(&self) -> Step {
        self.job.last_step.max(self.store.record.last_step)
    }

    /// The user raises the number of steps of a job that has ended, once: other coordinators and workers resume it.
    fn resume_with_more_steps(&mut self) -> bool {
        let last = self.last_step();
        if self.job.goes_on_after_end && self.job.final_checkpoint && !self.faults.only_joins {
            self.job.goes_on_after_end = false;
            self.job.ordered_last_step = Step(last.0 + 3);
            self.stats.reach("end: goes on with more steps");
        }
        self.job.ordered_last_step > last && self.job.final_checkpoint
    }

    fn events_max(&self) -> u64 {
        EVENTS * if self.faults.become_rarer { RARER } else { 1 }
    }
}

impl World {
    /// The schedule of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_faults(seed, None, None)
    }

    /// The schedule of a seed, with a bug.
    #[cfg(feature = "mutants")]
    #[must_use]
    pub fn with_mutant(seed: u64, mutant: Mutant) -> Self {
        Self::with_faults(seed, Some(mutant), None)
    }

    /// The schedule of a seed with the faults that have these numbers, or with all of them; with a bug, if the build has any.
    #[must_use]
    pub fn with_faults(seed: u64, mutant: Option<Mutant>, only: Option<BTreeSet<usize>>) -> Self {
        let mut rng = Rng(mix(seed, 99));
        let job = Job::draw(&mut rng, seed);
        let workers = rng.range(2, 6).max(job.min_workers() as u64);
        let network = Network {
            slow_percent: rng.pick(&[0, 3, 10]).unwrap_or(0),
            ..Network::default()
        };
        let mut host = Host::new(Schedule {
            job,
            mutant,
            rng,
            network,
            store: Store {
                record: Record::default(),
                older_records: VecDeque::new(),
                shards: BTreeMap::new(),
                manifests: BTreeSet::from([StateId::INITIAL]),
                completed_at: BTreeMap::new(),
                listed: vec![StateId::INITIAL],
                damaged: BTreeSet::new(),
                damaged_ends: 0,
            },
            faults: Faults::with_only(only),
            unreliable: Unreliable::default(),
            outage: Outage::default(),
            lone_loss: LoneLoss::default(),
            clocks: BTreeMap::new(),
            checker: Checker::default(),
            hash: seed,
            effects: EffectsDigest::default(),
            lost: false,
            print: false,
            timeline: None,
            stats: Stats::default(),
        });
        if host.env.job.shipped_planner {
            host.env.stats.reach("the shipped planner plans");
        }
        if host.env.job.seldom_reads {
            host.env.stats.reach("the record is read seldom");
        }
        host.add_coordinator_process();
        for _ in 0..workers {
            host.add_worker();
        }
        host.schedule_faults(seed);
        World { host }
    }

    /// Runs to the end of the job.
    ///
    /// # Errors
    /// The invariant that was broken.
    pub fn run(&mut self) -> Result {
        let result = self.run_events();
        if let Err(violation) = &result {
            self.host.watch_violation(violation);
        }
        result
    }

    fn run_events(&mut self) -> Result {
        while let Some((number, event)) = self.host.queue.pop() {
            let now = self.host.now();
            self.host.env.stats.events += 1;
            self.host.env.hash = mix(self.host.env.hash, mix(now, number));
            self.host.env.stats.simulated_ms = now;
            self.host.step(event)?;
            self.host.check_lone_loss()?;
            self.host.record_states();
            let env = &mut self.host.env;
            if env.store.record.done && !env.resume_with_more_steps() {
                env.stats.done = 1;
                return self.finish();
            }
            if env.lost {
                env.stats.lost = 1;
                env.stats.reach("end: state lost");
                return Ok(());
            }
            if let Some(ended) = env.faults.ended_at
                && (now > ended + env.patience() || env.stats.events > env.events_max())
            {
                let stopped = if env.faults.become_rarer {
                    "became rarer"
                } else {
                    "stopped"
                };
                let seen = format!("no end {} ms after the faults {stopped}", now - ended);
                return broken('f', seen);
            }
        }
        broken('f', "nothing left to happen".into())
    }

    /// Only joins happen in this schedule: no faults.
    #[must_use]
    pub fn has_no_faults(&self) -> bool {
        self.host.env.faults.only_joins
    }

    /// Continues after the job's end until the coordinator has ended.
    ///
    /// # Errors
    /// Invariant (f) is broken: a process is left behind.
    pub fn run_until_released(&mut self) -> Result {
        let since = self.host.now();
        while let Some((_, event)) = self.host.queue.pop() {
            self.host.step(event)?;
            if self.host.coordinators.iter().any(|c| c.machine.ended()) {
                let left = self.host.members.ids(|m| m.alive && m.stream > 0).len();
                return if left == 0 {
                    Ok(())
                } else {
                    broken('f', format!("{left} workers were left behind"))
                };
            }
            if self.host.now() > since + PATIENCE {
                break;
            }
        }
        broken('f', "the coordinator did not end".into())
    }

    /// A hash over everything that happened: equal for equal seeds.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.host.env.hash
    }

    /// A digest of all effects of the protocol's machines: who, when, what. It does not depend on names in the code or on text for people.
    #[must_use]
    pub fn effects_digest(&self) -> u64 {
        self.host.env.effects.0
    }

    /// From now on events are recorded for [`World::timeline`].
    pub fn keep_timeline(&mut self) {
        let mut timeline = Timeline::default();
        // Faults that last for the whole schedule have already begun.
        for fault in self.faults() {
            timeline.add(fault.at, Kind::Fault, None, fault.to_string());
        }
        self.host.env.timeline = Some(timeline);
    }

    /// The timeline of the schedule, if it was recorded.
    #[must_use]
    pub fn timeline(&self) -> Option<&Timeline> {
        self.host.env.timeline.as_ref()
    }

    /// The faults that happened so far.
    #[must_use]
    pub fn faults(&self) -> &[InjectedFault] {
        &self.host.env.faults.injected
    }

    /// The numbers of those faults that change bits.
    #[must_use]
    pub fn bit_flips(&self) -> &BTreeSet<usize> {
        &self.host.env.faults.flips
    }

    /// The number of wrong bits that a comparison should have found long before the end, because others hold the same state with the right
    /// bits.
    #[must_use]
    pub fn unnoticed_flips(&self) -> usize {
        let env = &self.host.env;
        let (Some(every), Some(plan)) = (env.job.compare_every, &env.store.record.plan) else {
            return 0;
        };
        let late = |step: u64| step + 2 * every + 2 >= env.last_step().0;
        env.checker.unnoticed(plan, late)
    }

    /// What happened so far, in numbers.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.host.env.stats
    }

    /// Prints every message that is delivered from now on.
    pub fn print_messages(&mut self) {
        self.host.env.print = true;
    }

    fn finish(&mut self) -> Result {
        let now = self.host.now();
        let env = &mut self.host.env;
        let last = env.last_step();
        let saved = env.store.manifests.iter().rev().find(|m| m.step == last).copied();
        let reported = env.checker.newest_at(last).filter(|_| !env.job.final_checkpoint);
        let Some(reached) = saved.or(reported) else {
            return broken('c', "done without the last step".into());
        };
        if last > env.job.last_step {
            env.stats.reach("end: of more steps than the job's text says");
        }
        env.stats.reach(if saved.is_some() {
            "end: checkpoint of the last step"
        } else {
            "end: last step reported"
        });
        if let Some(ended) = env.faults.ended_at {
            env.stats.recovery_max = now - ended;
        }
        env.checker.ancestry(reached)
    }

    /// Prints the present state of all processes.
    pub fn dump(&self) {
        let Host {
            members,
            coordinators,
            env,
            ..
        } = &self.host;
        let r = &env.store.record;
        println!(
            "{:?} cap {} last {} record v{} t{} highest {} done {}",
            env.job.layout, env.job.worker_segments, env.job.last_step, r.version, r.term, r.highest, r.done
        );
        for plan in [&r.plan, &r.next].into_iter().flatten() {
            println!("plan {plan:?}");
        }
        for (i, coordinator) in coordinators.iter().enumerate() {
            println!(
                "coordinator {i} alive {} {}",
                coordinator.alive,
                coordinator.machine.snapshot().run.mode
            );
        }
        println!("blocked {:?}", env.network.blocked);
        for (id, w) in members.iter().filter(|(_, w)| w.alive) {
            println!(
                "worker {id} to {:?}, paused until {}: {:?} {:?}",
                w.coordinator,
                w.paused,
                w.machine.status(),
                w.machine.held()
            );
        }
    }
}
