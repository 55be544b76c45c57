//! Workers: carries out what members request from engines and the store, with the engines' times.

use super::network::Data;
use super::outages::CrashLoop;
use super::uploads::Upload;
use super::{BATCH, Result, Schedule, Timer, Worker};
use crate::check::Origin;
use crate::engine::{Engine, Held, Output, UnitState};
use crate::host::{Event, Host, Link, Process};
use std::time::Duration;
use varuna_plan::{Decision, StateId, Unit, WorkerId};
use varuna_protocol::{Digests, MemberConfig, MemberEffect, MemberInput, MemberTiming, Mutant, Phase};

/// A peer that is not connected after this time is reported.
pub(super) const CONNECT_DEADLINE: Duration = Duration::from_millis(400);

impl Host<Schedule> {
    pub(super) fn add_worker(&mut self) {
        self.start_worker(None);
    }

    pub(super) fn start_worker(&mut self, crash_loop: Option<CrashLoop>) {
        let id = self.members.next_id();
        let ms = Duration::from_millis;
        let config = MemberConfig {
            follows: self.env.job.following,
            parameters_first: self.env.job.parameters_first,
            id,
            layout: self.env.job.layout,
            last_step: self.env.job.last_step,
            checkpoint_every: self
                .env
                .job
                .final_checkpoint
                .then_some(self.env.job.checkpoint_every),
            compare_every: self.env.job.compare_every,
            timing: MemberTiming {
                heartbeat: ms(100),
                connect_deadline: CONNECT_DEADLINE,
                fetch_retry: ms(60),
                spare_wait: ms(60),
                ..MemberTiming::default()
            },
        };
        let mut engine = Engine::default();
        engine.any_generation = self.env.has(Mutant::SkipFenceCheck);
        let worker = Worker {
            engine,
            runs: 0,
            crash_loop,
            announced: false,
            slow_until: 0,
            uploads: 0,
            follow: super::following::Order::default(),
        };
        self.members.start(config, worker);
        self.after_random(1, 30, Event::OpenStream(id));
        self.after_random(1, 25, Event::Tick(Process::Worker(id)));
    }

    pub(super) fn carry_out_for_member(&mut self, w: WorkerId, effect: MemberEffect) -> Result {
        let worker = &mut self.members[w];
        let engine = &mut worker.local.engine;
        match effect {
            MemberEffect::Accepted(plan) => {
                self.env.checker.accepted(w, &plan)?;
                self.maybe_crash(w, false);
            }
            MemberEffect::Connect { generation, peer, .. } => self.send_data(w, peer, generation, Data::Dial),
            MemberEffect::Disconnect { generation } => self.disconnect(w, generation),
            MemberEffect::Serve {
                generation,
                to,
                unit,
                id,
                decision,
            } => self.serve((w, to, generation), (unit, id), decision),
            MemberEffect::Copy { .. }
            | MemberEffect::Forward { .. }
            | MemberEffect::ForwardPrepared { .. } => {
                self.send_for_followers(w, effect);
            }
            MemberEffect::SaveUnit { id, unit } => {
                if let Some(Held { state, .. }) = engine.held.get(&unit).copied() {
                    let from = w;
                    self.upload(Upload {
                        from,
                        id,
                        unit,
                        state,
                    });
                }
            }
            MemberEffect::Digest { id, saved, units } => {
                let bits = |unit: &Unit| Some((*unit, engine.held.get(unit)?.state.bits));
                let units = units.iter().filter_map(bits).collect();
                let digests = Digests { id, saved, units };
                self.after_random(1, 15, Timer::Digested(w, digests));
            }
            MemberEffect::Exit(reason) => {
                self.env.stats.reach(format!("worker exits: {reason:?}"));
                self.crash(w);
                // An order to leave may arrive late. The platform starts replacements, as it does for every job that continues.
                if !self.env.store.record.done {
                    self.start_missing_workers();
                }
            }
            engine => self.command(w, engine),
        }
        Ok(())
    }

    fn serve(&mut self, link: Link, (unit, id): (Unit, StateId), decision: Option<Decision>) {
        let engine = &self.members[link.0].local.engine;
        let Some(Held { state, .. }) = engine.held.get(&unit).copied() else {
            return;
        };
        let state = Data::State {
            unit,
            id,
            state,
            decision,
        };
        let slow = self.env.rng.chance(self.env.unreliable.transfers);
        let parts = if slow { self.env.rng.range(2, 12) } else { 1 };
        self.send_part(link, state, parts);
    }

    /// Sends a part of a state, and the rest later.
    pub(super) fn send_part(&mut self, link: Link, state: Data, parts: u64) {
        let (w, to, generation) = link;
        let Data::State { unit, .. } = state else { return };
        if !self.members[w].alive || !self.members[w].open.contains(&generation) {
            return;
        }
        self.send_data(w, to, generation, Data::StateBegins { unit });
        if parts > 1 {
            self.after_random(40, 60, Timer::Part(link, state, parts - 1));
        } else {
            let damaged = self.env.rng.chance(self.env.unreliable.damaged_transfers);
            let sent = if damaged { Data::Damaged { unit } } else { state };
            self.send_data(w, to, generation, sent);
            self.after_random(1, 8, Timer::Served(w, generation, to, unit));
        }
    }

    /// Engines answer after some time, and in order.
    fn command(&mut self, w: WorkerId, effect: MemberEffect) {
        let worker = &mut self.members[w];
        let engine = &mut worker.local.engine;
        match effect {
            MemberEffect::Run { plan, step, .. } => {
                let phase = worker.machine.status().phase;
                if phase != Phase::Running {
                    self.env.stats.reach("parameters first: a step begins before Go");
                }
                engine.start(w, plan, step);
                worker.local.runs += 1;
                let run = worker.local.runs;
                let evaluation = self.env.job.evaluation.filter(|e| e.has(step));
                // Nearly as long as the deadline allows.
                let longest = evaluation.map_or(0, |e| u64::from(e.batches) * 350);
                let evaluated = self.env.rng.range(0, longest) + self.slowness(w);
                self.after_random(evaluated, evaluated + 3, Timer::Compute(w, run));
                self.crash_again(w);
            }
            MemberEffect::Abort => {
                engine.corrupt_state();
                if engine.job.is_some() {
                    self.after_random(0, 10, Timer::Stop(w));
                }
            }
            MemberEffect::Apply { decision, units } => {
                engine.applying = Some((decision, units));
                self.after_random(1, 12, Timer::Applied(w, decision.id));
            }
            MemberEffect::Load {
                id: id @ StateId::INITIAL,
                unit,
                ..
            } => {
                engine.staged.insert((unit, id), UnitState::initial(unit));
                self.after_random(1, 6, Timer::Adopted(w, unit, id));
            }
            MemberEffect::Load { generation, id, unit } => {
                let late = self.store_delay();
                self.after_random(1 + late, 40 + late, Timer::GetShard(w, generation, id, unit));
            }
            MemberEffect::Adopt { unit, id } => {
                let at = self.engine_time(w, unit, 6);
                self.at(at, Timer::Adopted(w, unit, id));
            }
            MemberEffect::ApplyForwarded { unit, decision } => {
                let at = self.engine_time(w, unit, 12);
                self.at(at, Timer::AppliedForwarded(w, unit, decision));
            }
            MemberEffect::KeepGradient { .. } => {
                engine.gradients.extend(engine.arrived.take());
            }
            MemberEffect::Free { keep } => {
                engine.held.retain(|u, _| keep.contains(u));
                engine.staged.clear();
                engine.gradients.clear();
                let phase = worker.machine.status().phase;
                let allowed = matches!(phase, Phase::Running | Phase::Idle);
                if allowed || !self.env.has(Mutant::FreeBeforeGo) {
                    self.env.checker.freed(w, &keep);
                }
                self.maybe_crash(w, false);
            }
            _ => {}
        }
    }

    pub(super) fn engine_event(&mut self, w: WorkerId, event: Timer) -> Result {
        if let Some(until) = self.paused_until(Process::Worker(w)) {
            self.at(until + 1, event);
            return Ok(());
        }
        let last_unit = Unit(self.env.job.layout.segments - 1);
        let overflow_percent = self.env.job.overflow_percent;
        let worker = &mut self.members[w];
        if !worker.alive {
            return Ok(());
        }
        let engine = &mut worker.local.engine;
        match event {
            Timer::Compute(_, run) if run == worker.local.runs => self.compute(w),
            Timer::Stop(_) => {
                engine.job = None;
                let prepared = engine.prepared(last_unit, overflow_percent);
                self.member(w, MemberInput::Stopped { prepared })
            }
            Timer::Applied(_, id) => self.applied(w, id),
            Timer::Digested(_, digests) => self.member(w, MemberInput::Digested(digests)),
            Timer::Served(_, generation, to, unit) => {
                self.member(w, MemberInput::Served { generation, to, unit })
            }
            Timer::Forwarded(_, generation, to, unit) => {
                self.member(w, MemberInput::Forwarded { generation, to, unit })
            }
            Timer::AppliedForwarded(_, unit, decision) => self.applied_forwarded(w, unit, decision),
            Timer::Adopted(_, unit, id) => {
                if let Some(state) = engine.staged.remove(&(unit, id)) {
                    engine.adopt(w, unit, id, state);
                    self.env.checker.set(w, unit, id, state, Origin::Taken)?;
                    self.maybe_crash(w, true);
                }
                self.member(w, MemberInput::Loaded { unit, id })
            }
            _ => Ok(()),
        }
    }

    fn applied(&mut self, w: WorkerId, id: StateId) -> Result {
        let worker = &mut self.members[w];
        let engine = &mut worker.local.engine;
        let Some((decision, units)) = engine.applying.take_if(|(d, _)| d.id == id) else {
            return Ok(());
        };
        engine.apply(&decision, &units);
        engine.job = None;
        let commit = worker.machine.status().phase == Phase::Running;
        let generation = worker.machine.generation();
        for unit in units {
            if let Some(held) = engine.held.get(&unit) {
                self.env.checker.set(w, unit, held.id, held.state, Origin::Step)?;
            }
        }
        self.maybe_crash(w, !commit);
        if commit {
            let reduced = &self.members[w].local.engine.reduced;
            let layout = self.env.job.layout;
            let checker = &mut self.env.checker;
            checker.committed(w, layout, BATCH, generation, &decision, reduced)?;
            self.env.stats.commits += 1;
            self.maybe_crash(w, false);
        }
        self.env.hash = varuna_plan::state::mix(self.env.hash, id.chain.0);
        self.member(w, MemberInput::Applied { id })
    }

    /// The engine continues as far as it can.
    pub(super) fn compute(&mut self, w: WorkerId) -> Result {
        let overflow_percent = self.env.job.overflow_percent;
        let Worker { engine, uploads, .. } = &mut self.members[w].local;
        let store_busy = *uploads > 0;
        let mut outputs = Vec::new();
        engine.pump(w, overflow_percent, &mut outputs);
        let Some((generation, step)) = engine.job.as_ref().map(|j| (j.plan.generation, j.step)) else {
            return Ok(());
        };
        for output in outputs {
            match output {
                Output::Forward(to, step, bits) => {
                    self.send_data(w, to, generation, Data::Forward { step, bits });
                }
                Output::Backward(to, step, bits) => {
                    self.send_data(w, to, generation, Data::Backward { step, bits });
                }
                Output::Parameters(to, step, unit, held) => {
                    self.send_data(w, to, generation, Data::Parameters { step, unit, held });
                }
                Output::Reduce(to, step, unit, of, part) => {
                    self.send_data(w, to, generation, Data::Reduce { step, unit, of, part });
                }
                Output::Prepared(units) => {
                    let prepared = MemberInput::Prepared {
                        generation,
                        step,
                        units,
                        store_busy,
                    };
                    self.member(w, prepared)?;
                }
            }
        }
        Ok(())
    }
}
