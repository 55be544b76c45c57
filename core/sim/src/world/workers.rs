//! Workers: members' effects, and the engine's time.

use super::{BATCH, Ev, Worker, World, index, with_mutant};
use crate::check::Violation;
use crate::engine::{Engine, Held, Said, initial_bits};
use crate::net::{Channel, Load};
use std::collections::BTreeSet;
use std::time::Duration;
use varuna_plan::{StateId, Unit, WorkerId};
use varuna_protocol::{Member, MemberConfig, MemberEffect, MemberInput, MemberTiming, Mutant, Phase};

impl World {
    pub(super) fn add_worker(&mut self) {
        let id = WorkerId(self.workers.len() as u64);
        let ms = Duration::from_millis;
        let config = MemberConfig {
            id,
            layout: self.layout,
            last_step: self.last_step,
            checkpoint_every: Some(self.checkpoint_every),
            timing: MemberTiming {
                heartbeat: ms(100),
                connect_deadline: ms(400),
                fetch_retry: ms(60),
            },
        };
        let member = Member::new(config);
        let mut engine = Engine::default();
        engine.lax = self.bug(Mutant::SkipFenceCheck);
        self.workers.push(Worker {
            member,
            engine,
            alive: true,
            paused: 0,
            coordinator: None,
            stream: 0,
            open: BTreeSet::new(),
            dials: BTreeSet::new(),
            runs: 0,
        });
        self.after(1, 30, Ev::Stream(id));
        self.after(1, 25, Ev::Tick(id));
    }

    /// Gives the member an input and carries out what follows.
    pub(super) fn member(&mut self, w: WorkerId, input: MemberInput) -> Result<(), Violation> {
        let now = self.time();
        let worker = &mut self.workers[index(w)];
        if !worker.alive || worker.member.exited() {
            return Ok(());
        }
        let mut effects = Vec::new();
        with_mutant(self.mutant, || worker.member.handle(now, input, &mut effects));
        for effect in effects {
            self.effects.member(self.now, w, &effect);
            self.carry_out(w, effect)?;
        }
        Ok(())
    }

    fn carry_out(&mut self, w: WorkerId, effect: MemberEffect) -> Result<(), Violation> {
        let worker = &mut self.workers[index(w)];
        match effect {
            MemberEffect::Report(report) => {
                if let Some(c) = worker.coordinator {
                    let channel = Channel::Up(w, c, worker.stream);
                    self.send(channel, Load::Report(report));
                }
            }
            MemberEffect::Accepted(plan) => {
                worker.open.insert(plan.generation);
                self.ghosts.accepted(w, &plan)?;
                self.shoot(w, false);
            }
            MemberEffect::Connect { generation, peer, .. } => {
                worker.dials.insert((generation, peer));
                self.send_peer(w, peer, generation, Load::Dial);
            }
            MemberEffect::Disconnect { generation } => self.disconnect(w, generation),
            MemberEffect::Send {
                generation,
                to,
                message,
            } => {
                if worker.open.contains(&generation) {
                    self.send_peer(w, to, generation, Load::Message(message));
                }
            }
            MemberEffect::Serve {
                generation,
                to,
                unit,
                id,
                decision,
            } => {
                if let Some(held) = worker.engine.held.get(&unit).copied() {
                    self.send_peer(w, to, generation, Load::StateBegins { unit });
                    let state = Load::State {
                        unit,
                        id,
                        bits: held.bits,
                        decision,
                    };
                    self.send_peer(w, to, generation, state);
                }
            }
            MemberEffect::Put { id, unit } => {
                let far = if self.rng.chance(20) { 900 } else { 60 };
                if let Some(held) = self.workers[index(w)].engine.held.get(&unit).copied() {
                    self.after(5, far, Ev::Put(id, unit, held.bits));
                }
            }
            MemberEffect::Exit => self.crash(w),
            engine => return self.command(w, engine),
        }
        Ok(())
    }

    fn disconnect(&mut self, w: WorkerId, generation: varuna_plan::Generation) {
        let worker = &mut self.workers[index(w)];
        worker.open.remove(&generation);
        worker.dials.retain(|(g, _)| *g != generation);
        worker.engine.close(generation);
        let out: Vec<Channel> = self
            .channels
            .keys()
            .filter(|c| matches!(c, Channel::Peer(a, _, g) if *a == w && *g == generation))
            .copied()
            .collect();
        for channel in out {
            if let Channel::Peer(_, to, _) = channel {
                self.send_peer(w, to, generation, Load::Closed);
            }
        }
    }

    /// The engine's commands; it answers in its own time, and in order.
    fn command(&mut self, w: WorkerId, effect: MemberEffect) -> Result<(), Violation> {
        let worker = &mut self.workers[index(w)];
        match effect {
            MemberEffect::Run { plan, step } => {
                worker.engine.start(plan, step);
                worker.runs += 1;
                let run = worker.runs;
                self.after(0, 3, Ev::Pump(w, run));
            }
            MemberEffect::Abort => {
                worker.engine.tear();
                if worker.engine.job.is_some() {
                    self.after(0, 10, Ev::Stop(w));
                }
            }
            MemberEffect::Apply { decision, units } => {
                worker.engine.applying = Some((decision, units));
                self.after(1, 12, Ev::Applied(w, decision.id));
            }
            MemberEffect::Load {
                id: StateId::INITIAL,
                unit,
            } => {
                worker
                    .engine
                    .staged
                    .insert((unit, StateId::INITIAL), initial_bits(unit));
                self.after(1, 6, Ev::Adopted(w, unit, StateId::INITIAL));
            }
            MemberEffect::Load { id, unit } => {
                let generation = worker.member.generation();
                self.after(1, 40, Ev::Get(w, generation, id, unit));
            }
            MemberEffect::Adopt { unit, id } => self.after(1, 6, Ev::Adopted(w, unit, id)),
            MemberEffect::Free { keep } => {
                worker.engine.held.retain(|u, _| keep.contains(u));
                worker.engine.staged.clear();
                let phase = worker.member.status().phase;
                let by_the_rules = matches!(phase, Phase::Running | Phase::Idle);
                if by_the_rules || !self.bug(Mutant::FreeBeforeGo) {
                    self.ghosts.freed(w, &keep);
                }
                self.shoot(w, false);
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn engine_event(&mut self, event: Ev) -> Result<(), Violation> {
        let (Ev::Pump(w, _) | Ev::Stop(w) | Ev::Applied(w, _) | Ev::Adopted(w, ..)) = event else {
            return Ok(());
        };
        if let Some(until) = self.asleep(w) {
            self.at(until + 1, event);
            return Ok(());
        }
        let last_unit = Unit(self.layout.segments - 1);
        let worker = &mut self.workers[index(w)];
        if !worker.alive {
            return Ok(());
        }
        match event {
            Ev::Pump(_, run) if run == worker.runs => self.pump(w),
            Ev::Stop(_) => {
                worker.engine.job = None;
                let prepared = worker.engine.prepared(last_unit);
                self.member(w, MemberInput::Stopped { prepared })
            }
            Ev::Applied(_, id) => self.applied(w, id),
            Ev::Adopted(_, unit, id) => {
                if let Some(bits) = worker.engine.staged.remove(&(unit, id)) {
                    worker.engine.held.insert(unit, Held { id, bits });
                    worker.engine.reduced.units.remove(&unit);
                    self.ghosts.set(w, unit, id, bits)?;
                    self.shoot(w, true);
                }
                self.member(w, MemberInput::Loaded { unit, id })
            }
            _ => Ok(()),
        }
    }

    fn applied(&mut self, w: WorkerId, id: StateId) -> Result<(), Violation> {
        let worker = &mut self.workers[index(w)];
        let Some((decision, units)) = worker.engine.applying.take_if(|(d, _)| d.id == id) else {
            return Ok(());
        };
        worker.engine.apply(&decision, &units);
        worker.engine.job = None;
        let commit = worker.member.status().phase == Phase::Running;
        let generation = worker.member.generation();
        let set: Vec<(Unit, Held)> = units
            .iter()
            .filter_map(|u| worker.engine.held.get(u).map(|h| (*u, *h)))
            .collect();
        for (unit, held) in set {
            self.ghosts.set(w, unit, held.id, held.bits)?;
        }
        self.shoot(w, !commit);
        if commit {
            let reduced = &self.workers[index(w)].engine.reduced;
            self.ghosts
                .committed(w, self.layout, BATCH, generation, &decision, reduced)?;
            self.stats.commits += 1;
            self.shoot(w, false);
        }
        self.hash = varuna_plan::state::mix(self.hash, id.chain.0);
        self.member(w, MemberInput::Applied { id })
    }

    pub(super) fn pump(&mut self, w: WorkerId) -> Result<(), Violation> {
        let worker = &mut self.workers[index(w)];
        let mut said = Vec::new();
        worker.engine.pump(w, &mut said);
        let Some(generation) = worker.engine.job.as_ref().map(|j| j.plan.generation) else {
            return Ok(());
        };
        for word in said {
            match word {
                Said::Forward(to, step, bits) => {
                    self.send_peer(w, to, generation, Load::Forward { step, bits });
                }
                Said::Backward(to, step, bits) => {
                    self.send_peer(w, to, generation, Load::Backward { step, bits });
                }
                Said::Reduce(to, step, unit, part) => {
                    self.send_peer(w, to, generation, Load::Reduce { step, unit, part });
                }
                Said::Prepared(units) => {
                    let step = self.workers[index(w)].engine.job.as_ref().map(|j| j.step);
                    if let Some(step) = step {
                        self.member(
                            w,
                            MemberInput::Prepared {
                                generation,
                                step,
                                units,
                            },
                        )?;
                    }
                }
            }
        }
        Ok(())
    }
}
