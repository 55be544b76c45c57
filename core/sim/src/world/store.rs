//! Coordinators, the record and the store.

use super::network::Node;
use super::{BATCH, Result, Schedule, Timer};
use crate::check::broken;
use crate::host::{Event, Host, Process};
use crate::planner::RandomPlanner;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use varuna_plan::state::Chain;
use varuna_plan::{Base, Generation, Plan, StateId, Unit};
use varuna_protocol::{
    Coordinator, CoordinatorConfig, CoordinatorEffect, CoordinatorInput, MemberInput, Mutant, Outcome,
    Record, Timing,
};

pub(super) struct Store {
    pub(super) record: Record,
    pub(super) shards: BTreeMap<(StateId, Unit), u64>,
    /// Complete checkpoints.
    pub(super) manifests: BTreeSet<StateId>,
}

impl Host<Schedule> {
    pub(super) fn add_coordinator_process(&mut self) {
        let seed = self.env.rng.draw();
        let mut secret_seed = [0; 16];
        secret_seed[..8].copy_from_slice(&seed.to_le_bytes());
        let config = CoordinatorConfig {
            layout: self.env.job.layout,
            global_batch_size: BATCH,
            last_step: self.env.job.last_step,
            min_workers: self.env.job.min_workers(),
            timing: Timing::model(),
            expected_workers: None,
            final_checkpoint: self.env.job.final_checkpoint,
            save_every: self.env.job.save_every,
            published: None,
            secret_seed,
        };
        let planner = Box::new(RandomPlanner::new(seed, self.env.job.worker_segments));
        let c = self.add_coordinator(Coordinator::new(config, planner).may_begin_anew());
        self.after_random(1, 5, Event::Tick(Process::Coordinator(c)));
    }

    pub(super) fn newest_coordinator(&self) -> Option<usize> {
        self.coordinators.iter().rposition(|c| c.alive)
    }

    pub(super) fn carry_out_for_coordinator(&mut self, c: usize, effect: CoordinatorEffect) -> Result {
        match effect {
            CoordinatorEffect::Write { expect, record } => {
                self.after_random(1, 15, Timer::Write(c, expect, Box::new(record)));
            }
            CoordinatorEffect::ReadRecord => self.after_random(1, 10, Timer::Read(c)),
            CoordinatorEffect::ListCheckpoints => self.after_random(1, 15, Timer::List(c)),
            CoordinatorEffect::Event(event) => {
                if self.env.print {
                    println!("{:6} coordinator {c}: {event:?}", self.now());
                }
            }
            CoordinatorEffect::Finish(Outcome::StateLost { units }) => {
                let seen = format!("state of {units:?} given up, with a checkpoint in the store");
                return broken('f', seen);
            }
            // its process ends: workers see the stream close and look for the newest coordinator
            CoordinatorEffect::Finish(_) => self.stop_coordinator(c),
            CoordinatorEffect::Send { .. } => {} // the host's
        }
        Ok(())
    }

    pub(super) fn store_event(&mut self, event: Timer) -> Result {
        if let Timer::Write(c, ..) | Timer::Read(c) | Timer::List(c) = event
            && let Some(until) = self.blocked_until(Node::Coordinator(c), Node::Store)
        {
            self.at(until, event);
            return Ok(());
        }
        match event {
            Timer::Write(c, expect, record) => {
                let ok = self.env.store.record.version == expect || self.env.has(Mutant::BlindWrite);
                if ok {
                    self.check_persisted(&record)?;
                    self.env.store.record = *record.clone();
                }
                let written = CoordinatorInput::Written { ok, record: *record };
                self.after_random(1, 15, Event::Coordinator(c, written));
            }
            Timer::Read(c) => {
                let record = CoordinatorInput::Record(self.env.store.record.clone());
                self.after_random(1, 10, Event::Coordinator(c, record));
            }
            Timer::List(c) => {
                if let Some(until) = self.paused_until(Process::Coordinator(c)) {
                    self.at(until + 1, event);
                    return Ok(());
                }
                let list = self.env.store.manifests.iter().copied().collect();
                return self.coordinator(c, CoordinatorInput::Checkpoints(list));
            }
            Timer::PutShard(id, unit, bits) => self.put(id, unit, bits),
            Timer::GetShard(w, generation, id, unit) => {
                let newest = self.env.has(Mutant::NewestByEach);
                let manifests = self.env.store.manifests.iter();
                let found = manifests.max_by_key(|m| m.step).filter(|_| newest);
                let key = self.shard_key(found.copied().unwrap_or(id));
                if let Some(bits) = self.env.store.shards.get(&(key, unit)).copied() {
                    self.after_random(1, 60, Timer::ShardStaged(w, generation, unit, id, bits));
                }
            }
            Timer::ShardStaged(w, generation, unit, id, bits) => {
                self.members[w].local.engine.staged.insert((unit, id), bits);
                let fetched = MemberInput::Fetched {
                    generation,
                    from: w,
                    unit,
                    id,
                    decision: None,
                };
                return self.member(w, fetched);
            }
            _ => {}
        }
        Ok(())
    }

    fn shard_key(&self, id: StateId) -> StateId {
        if self.env.has(Mutant::ShardsWithoutGeneration) {
            StateId {
                run_gen: Generation(0),
                chain: Chain(0),
                ..id
            }
        } else {
            id
        }
    }

    /// An upload outlives its worker: harder where an old worker goes on, easier for a restore.
    fn put(&mut self, id: StateId, unit: Unit, bits: u64) {
        let key = self.shard_key(id);
        self.env.store.shards.insert((key, unit), bits);
        let mut units = self.env.job.layout.all_units();
        if units.all(|u| self.env.store.shards.contains_key(&(key, u))) {
            self.env.store.manifests.insert(id); // conditional, contents follow from the id
        }
    }

    fn check_persisted(&mut self, record: &Record) -> Result {
        for plan in [&record.plan, &record.next].into_iter().flatten() {
            if self.env.checker.persisted(plan)? {
                self.env.stats.generations += 1;
                self.check_recovery(plan)?;
            }
        }
        Ok(())
    }

    fn check_recovery(&mut self, plan: &Arc<Plan>) -> Result {
        let Base::Fixed {
            id,
            decision,
            checkpoint,
        } = plan.base
        else {
            self.env.stats.planned += 1;
            return Ok(());
        };
        if self.env.faults.only_joins && plan.generation > Generation(1) {
            return broken('g', format!("recovery {} without a fault", plan.generation));
        }
        self.env.stats.restores += u64::from(checkpoint && id != StateId::INITIAL);
        self.env.stats.rolled += u64::from(decision.is_some());
        let member = |w| self.members.alive(w).map(|m| &m.machine);
        self.env.checker.nothing_lost(plan, id, member)?;
        if let Some(decision) = decision {
            self.env.checker.parent.insert(decision.id, decision.parent);
        }
        Ok(())
    }
}
