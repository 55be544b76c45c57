//! Carries out the coordinators' effects, with the record and the store.

use super::{Result, Schedule, Timer};
use crate::check::Violation;
use crate::engine::UnitState;
use crate::host::{Event, Host, Process};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use varuna_plan::state::Chain;
use varuna_plan::{Generation, StateId, Unit, WorkerId};
use varuna_protocol::Listing;
use varuna_protocol::{CoordinatorEffect, CoordinatorInput, MemberInput, Mutant, Outcome, Record};

/// Maximum number of times that the checkpoint of the last step is damaged; a run gives up after one more.
const DAMAGED_ENDS_MAX: u32 = 3;

/// Maximum age of an outdated answer, in records.
const OLDER_RECORDS: usize = 4;

pub(super) struct Store {
    pub(super) record: Record,
    /// The replaced records, newest last.
    pub(super) older_records: VecDeque<Record>,
    pub(super) shards: BTreeMap<(StateId, Unit), UnitState>,
    /// Complete checkpoints.
    pub(super) manifests: BTreeSet<StateId>,
    pub(super) completed_at: BTreeMap<StateId, u64>,
    /// The content of a listing that is not fresh.
    pub(super) listed: Vec<StateId>,
    /// Checkpoints that were found damaged.
    pub(super) damaged: BTreeSet<StateId>,
    /// How often the checkpoint of the last step was damaged.
    pub(super) damaged_ends: u32,
}

impl Host<Schedule> {
    pub(super) fn carry_out_for_coordinator(&mut self, c: usize, effect: CoordinatorEffect) -> Result {
        match effect {
            CoordinatorEffect::Write { expect, record } => {
                self.check_restore(c, &record)?;
                self.check_waits(c, &record)?;
                let late = self.store_delay();
                self.after_random(1 + late, 15 + late, Timer::Write(c, expect, Box::new(record)));
            }
            CoordinatorEffect::ReadRecord => {
                let late = self.store_delay();
                self.after_random(1 + late, 10 + late, Timer::Read(c));
            }
            CoordinatorEffect::ListCheckpoints => {
                let late = self.store_delay();
                self.after_random(1 + late, 15 + late, Timer::List(c));
            }
            CoordinatorEffect::DiscardCheckpoint { id } => {
                let late = self.store_delay();
                self.after_random(1 + late, 15 + late, Timer::Discard(c, id));
            }
            CoordinatorEffect::Event(event) => {
                self.note_event(c, &event);
                match event {
                    varuna_protocol::Event::Cancelled { .. } => return self.count_cancelled(),
                    varuna_protocol::Event::Switched { .. } => self.count_switched(),
                    _ => {}
                }
            }
            CoordinatorEffect::Finish(Outcome::StateLost { units }) => {
                self.check_given_up(c, &units)?;
                self.env.lost = true;
            }
            // A stopped run is resumed by other workers.
            CoordinatorEffect::Finish(Outcome::Stopped) => {
                self.stop_coordinator(c);
                for _ in 0..self.env.job.min_workers() {
                    self.add_worker();
                }
            }
            // its process ends: workers see the stream close and look for the newest coordinator
            CoordinatorEffect::Finish(_) => self.stop_coordinator(c),
            CoordinatorEffect::Send { .. } => {} // the host's
        }
        Ok(())
    }

    pub(super) fn store_event(&mut self, event: Timer) -> Result {
        if let Timer::Write(c, ..) | Timer::Read(c) | Timer::List(c) | Timer::Discard(c, _) = event
            && let Some(until) = self.store_blocked(c)
        {
            self.at(until, event);
            return Ok(());
        }
        match event {
            Timer::Write(c, expect, record) => {
                let unclear = self.env.rng.chance(self.env.unreliable.writes);
                let late = unclear && self.env.rng.chance(50);
                if late {
                    self.after_random(5, 300, Timer::LateWrite(expect, record.clone()));
                }
                let ok = !late && self.swap_record(expect, &record)?;
                let ok = ok && !unclear;
                let written = CoordinatorInput::Written { ok, record: *record };
                self.after_random(1, 15, Event::Coordinator(c, written));
            }
            Timer::LateWrite(expect, record) => drop(self.swap_record(expect, &record)?),
            Timer::Read(_) if self.env.rng.chance(self.env.unreliable.reads) => {}
            Timer::Read(c) => {
                let record = CoordinatorInput::Record(self.read_record());
                self.after_random(1, 10, Event::Coordinator(c, record));
            }
            Timer::List(c) => {
                if let Some(until) = self.paused_until(Process::Coordinator(c)) {
                    self.at(until + 1, event);
                    return Ok(());
                }
                let fresh = !self.env.rng.chance(self.env.unreliable.listings);
                if fresh {
                    self.env.store.listed = self.env.store.manifests.iter().copied().collect();
                }
                let listing = Listing {
                    damaged: self.env.store.damaged.iter().copied().collect(),
                    fresh,
                    ..Listing::fresh(self.env.store.listed.clone())
                };
                let (now, shown) = (self.now(), fresh.then_some(&listing.complete[..]));
                self.env.checker.listed(c, now, shown, &self.env.store.damaged);
                return self.coordinator(c, CoordinatorInput::Checkpoints(listing));
            }
            Timer::Discard(c, id) => {
                if self.env.store.damaged.remove(&id) {
                    self.env.store.shards.retain(|(of, _), _| *of != id);
                }
                self.after_random(1, 15, Timer::List(c));
            }
            Timer::PutShard(upload) => self.put_or_retry(upload),
            Timer::GetShard(w, generation, id, unit) => return self.get_shard(w, generation, id, unit),
            Timer::ShardStaged(w, generation, unit, id, state) => {
                self.members[w].local.engine.staged.insert((unit, id), state);
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

    /// A worker reads a shard of a checkpoint.
    fn get_shard(&mut self, w: WorkerId, generation: Generation, id: StateId, unit: Unit) -> Result {
        if self.env.outage.is_down(self.now()) {
            return Ok(()); // it is asked again
        }
        let last = id.step >= self.env.last_step();
        let may_be = !last || self.env.store.damaged_ends < DAMAGED_ENDS_MAX;
        if id != StateId::INITIAL && may_be && self.env.rng.chance(self.env.unreliable.shards) {
            self.env.store.damaged_ends += u32::from(last);
            self.env.store.damaged.insert(id);
            self.env.store.manifests.remove(&id);
        }
        if self.env.store.damaged.contains(&id) {
            let failed = MemberInput::FetchFailed {
                generation,
                from: w,
                unit,
            };
            return self.member(w, failed);
        }
        let newest = self.env.has(Mutant::NewestByEach);
        let manifests = self.env.store.manifests.iter();
        let found = manifests.max_by_key(|m| m.step).filter(|_| newest);
        let key = self.shard_key(found.copied().unwrap_or(id));
        if let Some(state) = self.env.store.shards.get(&(key, unit)).copied() {
            self.after_random(1, 60, Timer::ShardStaged(w, generation, unit, id, state));
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

    /// The record, or an earlier one that it has replaced.
    fn read_record(&mut self) -> Record {
        let old = self.env.rng.chance(self.env.unreliable.old_records);
        let before = self.env.store.older_records.len();
        let which = usize::try_from(self.env.rng.below(before as u64)).unwrap_or(0);
        let older = self.env.store.older_records.get(which).filter(|_| old);
        older.unwrap_or(&self.env.store.record).clone()
    }

    pub(super) fn put(&mut self, id: StateId, unit: Unit, state: UnitState) {
        let key = self.shard_key(id);
        self.env.store.shards.entry((key, unit)).or_insert(state);
        let mut units = self.env.job.layout.all_units();
        let whole = units.all(|u| self.env.store.shards.contains_key(&(key, u)));
        if !whole || self.env.store.damaged.contains(&id) {
            return;
        }
        // Most damaged checkpoints are found by their readers; the last one is examined before the run ends.
        let last = id.step >= self.env.last_step() && !self.env.store.manifests.contains(&id);
        let again = self.env.store.damaged_ends < DAMAGED_ENDS_MAX;
        if last && again && self.env.rng.chance(self.env.unreliable.shards) {
            self.env.store.damaged_ends += 1;
            self.env.store.damaged.insert(id);
        } else {
            self.env.store.manifests.insert(id); // conditional, contents follow from the id
            let now = self.now();
            self.env.store.completed_at.entry(id).or_insert(now);
        }
    }

    /// Compare-and-swap.
    fn swap_record(&mut self, expect: u64, record: &Record) -> std::result::Result<bool, Violation> {
        let ok = self.env.store.record.version == expect || self.env.has(Mutant::BlindWrite);
        if ok {
            self.check_persisted(record)?;
            let before = std::mem::replace(&mut self.env.store.record, record.clone());
            if record.term > before.term {
                self.announce_take_over(record);
            }
            if before.done && !record.done {
                self.start_missing_workers();
            }
            self.env.store.older_records.push_back(before);
            if self.env.store.older_records.len() > OLDER_RECORDS {
                self.env.store.older_records.pop_front();
            }
        }
        Ok(ok)
    }
}
