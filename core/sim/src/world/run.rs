//! A job under one schedule, from its beginning to its end.

use super::faults::Faults;
use super::job::Job;
use super::network::{Ms, Network};
use super::stats::Stats;
use super::store::Store;
use super::unreliable::Unreliable;
use super::{Result, Schedule};
use crate::check::{Checker, broken};
use crate::effects_digest::EffectsDigest;
use crate::host::Host;
use crate::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use varuna_plan::StateId;
use varuna_plan::state::mix;
use varuna_protocol::{Mutant, Record};

/// After the faults stop the job must end within so many milliseconds of the world.
const PATIENCE: Ms = 40_000;
/// ... and so many for each step: one that is evaluated, over a slow network.
const STEP_MAX: Ms = 2_000;
/// ... and events.
const EVENTS: u64 = 1_000_000;

/// A job under one schedule, and a checker that looks after every event.
pub struct World {
    host: Host<Schedule>,
}

impl World {
    /// The schedule of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::build(seed, None)
    }

    /// The schedule of a seed, with a bug.
    #[cfg(feature = "mutants")]
    #[must_use]
    pub fn with_mutant(seed: u64, mutant: Mutant) -> Self {
        Self::build(seed, Some(mutant))
    }

    fn build(seed: u64, mutant: Option<Mutant>) -> Self {
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
                shards: BTreeMap::new(),
                manifests: BTreeSet::from([StateId::INITIAL]),
                completed_at: BTreeMap::new(),
                listed: vec![StateId::INITIAL],
                damaged: BTreeSet::new(),
            },
            faults: Faults::default(),
            unreliable: Unreliable::default(),
            checker: Checker::default(),
            hash: seed,
            effects: EffectsDigest::default(),
            lost: false,
            print: false,
            stats: Stats::default(),
        });
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
        while let Some((number, event)) = self.host.queue.pop() {
            let now = self.host.now();
            self.host.env.stats.events += 1;
            self.host.env.hash = mix(self.host.env.hash, mix(now, number));
            self.host.step(event)?;
            let env = &mut self.host.env;
            if env.store.record.done {
                env.stats.done = 1;
                return self.finish();
            }
            if env.lost {
                env.stats.lost = 1;
                return Ok(());
            }
            if let Some(ended) = env.faults.ended_at
                && (now > ended + PATIENCE + env.job.last_step.0 * STEP_MAX || env.stats.events > EVENTS)
            {
                let seen = format!("no end {} ms after the faults stopped", now - ended);
                return broken('f', seen);
            }
        }
        broken('f', "nothing left to happen".into())
    }

    /// Only joins happen in this schedule: no faults.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        self.host.env.faults.only_joins
    }

    /// Goes on, after the job's end, until the coordinator has ended.
    ///
    /// # Errors
    /// (f) where somebody is left behind.
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

    /// A hash over all that happened: equal for equal seeds.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.host.env.hash
    }

    /// A number over all effects of the protocol's machines: who, when, what. It does not depend on names in the code, nor on
    /// sentences for people.
    #[must_use]
    pub fn effects_digest(&self) -> u64 {
        self.host.env.effects.0
    }

    /// What happened so far.
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
        let last = env.job.last_step;
        let saved = env.store.manifests.iter().rev().find(|m| m.step == last).copied();
        let reported = env.checker.newest_at(last).filter(|_| !env.job.final_checkpoint);
        let Some(reached) = saved.or(reported) else {
            return broken('c', "done without the last step".into());
        };
        if let Some(ended) = env.faults.ended_at {
            env.stats.recovery_max = now - ended;
        }
        env.checker.ancestry(reached)
    }

    /// Prints where everybody stands.
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
