//! Coordinators, the record and the store.

use super::{BATCH, Ev, Leader, World};
use crate::check::{Violation, broken};
use crate::net::{Channel, Load, Ms, Node};
use crate::planner::RandomPlanner;
use std::collections::BTreeMap;
use std::sync::Arc;
use varuna_plan::state::Chain;
use varuna_plan::{Base, Generation, Plan, StateId, Unit};
use varuna_protocol::{
    Coordinator, CoordinatorConfig, CoordinatorEffect, CoordinatorInput, MemberInput, Mutant, Outcome,
    Record, Timing,
};

use super::{index, with_mutant};

impl World {
    pub(super) fn add_leader(&mut self) {
        let seed = self.rng.draw();
        let mut secret_seed = [0; 16];
        secret_seed[..8].copy_from_slice(&seed.to_le_bytes());
        let config = CoordinatorConfig {
            layout: self.layout,
            global_batch_size: BATCH,
            last_step: self.last_step,
            min_workers: self.min_workers(),
            timing: Timing::model(),
            expected_workers: None,
            final_checkpoint: self.final_checkpoint,
            save_every: self.save_every,
            published: None,
            secret_seed,
        };
        let planner = Box::new(RandomPlanner::new(seed, self.cap));
        let machine = Coordinator::new(config, planner).may_begin_anew();
        self.leaders.push(Leader {
            machine,
            alive: true,
            paused: 0,
            streams: BTreeMap::new(),
        });
        let c = self.leaders.len() - 1;
        self.after(1, 5, Ev::TickCoordinator(c));
    }

    pub(super) fn newest_leader(&self) -> Option<usize> {
        (0..self.leaders.len()).rev().find(|c| self.leaders[*c].alive)
    }

    pub(super) fn tick_leader(&mut self, c: usize) -> Result<(), Violation> {
        if !self.leaders[c].alive {
            return Ok(());
        }
        if self.leaders[c].paused > self.now {
            let until = self.leaders[c].paused;
            self.at(until + 1, Ev::TickCoordinator(c));
            return Ok(());
        }
        self.after(15, 25, Ev::TickCoordinator(c));
        self.leader(c, CoordinatorInput::Tick)
    }

    /// Gives a coordinator an input and carries out what follows.
    pub(super) fn leader(&mut self, c: usize, input: CoordinatorInput) -> Result<(), Violation> {
        if !self.leaders[c].alive {
            return Ok(());
        }
        let now = self.time();
        let mut effects = Vec::new();
        let machine = &mut self.leaders[c].machine;
        with_mutant(self.mutant, || machine.handle(now, input, &mut effects));
        let term = self.leaders[c].machine.term();
        for effect in effects {
            self.effects.coordinator(self.now, c, &effect);
            match effect {
                CoordinatorEffect::Send { to, order } => {
                    let number = self.leaders[c].streams.get(&to).copied().unwrap_or(0);
                    self.send(Channel::Down(c, to, number), Load::Order(term, order));
                }
                CoordinatorEffect::Write { expect, record } => {
                    self.after(1, 15, Ev::Cas(c, expect, Box::new(record)));
                }
                CoordinatorEffect::ReadRecord => self.after(1, 10, Ev::Read(c)),
                CoordinatorEffect::ListCheckpoints => self.after(1, 15, Ev::List(c)),
                CoordinatorEffect::Event(event) => {
                    if self.trace {
                        println!("{:6} coordinator {c}: {event:?}", self.now);
                    }
                }
                CoordinatorEffect::Finish(Outcome::StateLost { units }) => {
                    return broken(
                        'f',
                        format!("state of {units:?} given up, with a checkpoint in the store"),
                    );
                }
                // its process ends: workers see the stream close and look for the leader
                CoordinatorEffect::Finish(_) => self.stop_leader(c),
            }
        }
        Ok(())
    }

    /// Later, if the coordinator sleeps.
    pub(super) fn tell_leader(
        &mut self,
        c: usize,
        event: Ev,
        input: CoordinatorInput,
    ) -> Result<(), Violation> {
        if self.leaders[c].alive && self.leaders[c].paused > self.now {
            let until = self.leaders[c].paused;
            self.at(until + 1, event);
            return Ok(());
        }
        self.leader(c, input)
    }

    fn store_blocked(&self, c: usize) -> Option<Ms> {
        self.blocked_until(Node::Coordinator(c), Node::Store)
    }

    pub(super) fn store_event(&mut self, event: Ev) -> Result<(), Violation> {
        if let Ev::Cas(c, ..) | Ev::Read(c) | Ev::List(c) = event
            && let Some(until) = self.store_blocked(c)
        {
            self.at(until, event);
            return Ok(());
        }
        match event {
            Ev::Cas(c, expect, record) => {
                let ok = self.record.version == expect || self.bug(Mutant::BlindWrite);
                if ok {
                    self.on_persist(&record)?;
                    self.record = *record.clone();
                }
                self.after(1, 15, Ev::CasReply(c, ok, record));
            }
            Ev::CasReply(c, ok, record) => {
                let again = Ev::CasReply(c, ok, record.clone());
                return self.tell_leader(c, again, CoordinatorInput::Written { ok, record: *record });
            }
            Ev::Read(c) => {
                let record = Box::new(self.record.clone());
                self.after(1, 10, Ev::ReadReply(c, record));
            }
            Ev::ReadReply(c, record) => {
                let again = Ev::ReadReply(c, record.clone());
                return self.tell_leader(c, again, CoordinatorInput::Record(*record));
            }
            Ev::List(c) => {
                let list: Vec<StateId> = self.manifests.iter().copied().collect();
                return self.tell_leader(c, Ev::List(c), CoordinatorInput::Checkpoints(list));
            }
            Ev::Put(id, unit, bits) => self.put(id, unit, bits),
            Ev::Get(w, generation, id, unit) => {
                let newest = self.bug(Mutant::NewestByEach);
                let found = self.manifests.iter().max_by_key(|m| m.step).filter(|_| newest);
                let key = self.shard_key(found.copied().unwrap_or(id));
                if let Some(bits) = self.shards.get(&(key, unit)).copied() {
                    self.after(1, 60, Ev::GotShard(w, generation, unit, id, bits));
                }
            }
            Ev::GotShard(w, generation, unit, id, bits) => {
                self.workers[index(w)].engine.staged.insert((unit, id), bits);
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
        if self.bug(Mutant::ShardsWithoutGeneration) {
            StateId {
                run_gen: Generation(0),
                chain: Chain(0),
                ..id
            }
        } else {
            id
        }
    }

    /// An upload outlives its worker: harsher for zombies, kinder to restores.
    fn put(&mut self, id: StateId, unit: Unit, bits: u64) {
        let key = self.shard_key(id);
        self.shards.insert((key, unit), bits);
        if self
            .layout
            .all_units()
            .all(|u| self.shards.contains_key(&(key, u)))
        {
            self.manifests.insert(id); // conditional, contents follow from the id
        }
    }

    fn on_persist(&mut self, record: &Record) -> Result<(), Violation> {
        for plan in [&record.plan, &record.next].into_iter().flatten() {
            if self.ghosts.persisted(plan)? {
                self.stats.generations += 1;
                self.judge(plan)?;
            }
        }
        Ok(())
    }

    fn judge(&mut self, plan: &Arc<Plan>) -> Result<(), Violation> {
        let Base::Fixed {
            id,
            decision,
            checkpoint,
        } = plan.base
        else {
            self.stats.planned += 1;
            return Ok(());
        };
        if self.calm && plan.generation > Generation(1) {
            return broken('g', format!("recovery {} without a fault", plan.generation));
        }
        self.stats.restores += u64::from(checkpoint && id != StateId::INITIAL);
        self.stats.rolled += u64::from(decision.is_some());
        let member = |w| self.workers.get(index(w)).filter(|x| x.alive).map(|x| &x.member);
        self.ghosts.nothing_lost(plan, id, member)?;
        if let Some(decision) = decision {
            self.ghosts.parent.insert(decision.id, decision.parent);
        }
        Ok(())
    }
}
