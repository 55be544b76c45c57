//! Engines, modelled: a step takes the time that was predicted for it, state takes its links' time, all else none.

use super::members::{BESIDE_TRAINING, nanoseconds};
use super::{Replay, Result, Timer};
use crate::host::Host;
use crate::replay::net::{Content, Route, UnitTransfer};
use varuna_plan::state::UnitNorm;
use varuna_plan::{Base, Generation, Plan, StateId, Step, Unit, WorkerId};
use varuna_protocol::{MemberEffect, MemberInput, Phase};

impl Host<Replay<'_>> {
    /// What the engine does, and the store for it.
    pub(super) fn command(&mut self, w: WorkerId, effect: MemberEffect) -> Result {
        match effect {
            MemberEffect::Run { plan, step, .. } => {
                if let Some(worker) = self.members.alive_mut(w) {
                    worker.local.job = Some((plan.generation, step));
                    worker.local.prepared.clear();
                }
                self.send_parameters(w, &plan, step);
                self.compute(&plan, step);
            }
            MemberEffect::Abort => {
                let Some(worker) = self.members.alive_mut(w) else {
                    return Ok(());
                };
                worker.local.job = None;
                let prepared = worker.local.prepared.clone();
                self.after(0, Timer::Answer(w, MemberInput::Stopped { prepared }));
            }
            MemberEffect::Apply { decision, .. } => {
                let id = decision.id;
                let Some(worker) = self.members.alive_mut(w) else {
                    return Ok(());
                };
                worker.local.job = None;
                worker.local.prepared.clear();
                let runs = worker.machine.status().phase == Phase::Running;
                if runs && id > self.env.newest {
                    self.committed(&decision)?;
                }
                self.after(0, Timer::Answer(w, MemberInput::Applied { id }));
            }
            MemberEffect::Load { id, unit, .. } if id == StateId::INITIAL => {
                self.after(0, Timer::Answer(w, MemberInput::Loaded { unit, id }));
            }
            MemberEffect::Load { generation, id, unit } => {
                let route = (generation, None, w);
                // the store's client asks for a shard once
                if self.env.saved.contains_key(&id) && !self.env.transfers.carries(&route, unit) {
                    self.send(route, unit, Content::State(id, None), 1.0);
                }
            }
            MemberEffect::Adopt { unit, id } => {
                // A step that began before Go was computed with this state.
                if let Some(worker) = self.members.alive_mut(w).filter(|w| w.local.job.is_none()) {
                    worker.local.prepared.retain(|(u, _)| *u != unit);
                }
                self.note_extra_memory(w);
                self.after(0, Timer::Answer(w, MemberInput::Loaded { unit, id }));
            }
            MemberEffect::SaveUnit { id, .. } => self.ordered_save(id),
            MemberEffect::ApplyForwarded { unit, decision } => {
                let id = decision.id;
                self.after(0, Timer::Answer(w, MemberInput::Loaded { unit, id }));
            }
            _ => {}
        }
        Ok(())
    }

    /// Sends the parameters that others lack for the step.
    fn send_parameters(&mut self, w: WorkerId, plan: &Plan, step: Step) {
        for (unit, to) in plan.parameters_sent_by(w, step) {
            self.send((plan.generation, Some(w), *to), *unit, Content::Parameters, 1.0);
        }
    }

    /// The step ends after the predicted time, once all members have begun it and have the parameters.
    fn compute(&mut self, plan: &Plan, step: Step) {
        let generation = plan.generation;
        let all = plan.members().iter().copied();
        let mut jobs = all.map(|m| self.members.alive(m).and_then(|x| x.local.job));
        let have_begun = jobs.all(|job| job == Some((generation, step)));
        let is_computed = self.env.computed == Some((generation, step));
        if !have_begun || is_computed || self.env.transfers.carries_parameters(generation) {
            return;
        }
        self.env.computed = Some((generation, step));
        if plan.sends_parameters_in(step) {
            self.env
                .transfers
                .begin_beside(self.now(), generation, BESIDE_TRAINING);
            self.wake();
            self.runs(generation);
        }
        let first = self.env.newest.run_gen != generation;
        let extra = if first {
            self.env.setup.parts.first_step_extra_ms
        } else {
            0.0
        };
        let took = nanoseconds(plan.shape.predicted.step_ms + extra);
        self.after(took, Timer::StepEnds(generation, step));
    }

    /// A step needs all its members to the end.
    pub(super) fn step_ends(&mut self, generation: Generation, step: Step) -> Result {
        let Some(plan) = self.env.plans.get(&generation).cloned() else {
            return Ok(());
        };
        let members = plan.members();
        let job = |w: &WorkerId| self.members.alive(*w).and_then(|x| x.local.job);
        if !members.iter().all(|w| job(w) == Some((generation, step))) {
            return Ok(());
        }
        self.env.transfers.end_beside(self.now(), generation);
        self.wake();
        let loads = |w: &WorkerId| {
            let status = self.members.alive(*w).map(|x| x.machine.status());
            status.is_some_and(|s| s.phase == Phase::Loading)
        };
        if members.iter().any(loads) {
            let real = self.real();
            self.env.account.ledger.step_ended(real);
        }
        for w in members.iter().copied() {
            let norm = |unit: Unit| {
                let norm = UnitNorm {
                    norm2: 1.0,
                    overflow: false,
                    before: varuna_plan::OptimizerProgress::START,
                    loss: 0.0,
                    eval_loss: None,
                };
                (unit, norm)
            };
            let units: Vec<(Unit, UnitNorm)> = plan.units(w).into_iter().map(norm).collect();
            if let Some(worker) = self.members.alive_mut(w) {
                worker.local.prepared.clone_from(&units);
            }
            let prepared = MemberInput::Prepared {
                generation,
                step,
                units,
                store_busy: false,
            };
            self.member(w, prepared)?;
        }
        Ok(())
    }

    /// Looks at the network again when something arrives.
    pub(super) fn wake(&mut self) {
        if let Some(at) = self.env.transfers.next() {
            let version = self.env.transfers.version;
            self.after(at.saturating_sub(self.now()), Timer::Transfers(version));
        }
    }

    pub(super) fn arrivals(&mut self, version: u64) -> Result {
        if version != self.env.transfers.version {
            return Ok(());
        }
        self.busy();
        let (whole, parts) = self.env.transfers.arrivals(self.now());
        for ((generation, from, to), unit) in parts {
            let from = from.unwrap_or(to);
            let progress = MemberInput::FetchProgress {
                generation,
                from,
                unit,
            };
            self.member(to, progress)?;
        }
        for (route, parcel) in whole {
            self.arrived(route, parcel)?;
        }
        self.wake();
        Ok(())
    }

    /// Parameters for a first step have arrived: perhaps the last ones.
    fn parameters_arrived(&mut self, generation: Generation, unit: Unit) -> Result {
        let bytes = self.parameter_bytes(unit);
        if let Some(entry) = self.env.account.report.reconfigurations.last_mut() {
            entry.moved_bytes += bytes;
        }
        let plan = self.env.plans.get(&generation).cloned();
        if let Some(plan) = plan
            && let Base::Fixed { id, .. } = plan.base
        {
            self.compute(&plan, id.step);
        }
        Ok(())
    }

    /// Something has arrived as a whole: its sender hears of that, too.
    fn arrived(
        &mut self,
        (generation, from, to): Route,
        UnitTransfer { unit, content, .. }: UnitTransfer,
    ) -> Result {
        if let Some(source) = from {
            let sent = match content {
                Content::State(..) => MemberInput::Served { generation, to, unit },
                Content::Gradient(_) | Content::PreparedGradient(_) => {
                    MemberInput::Forwarded { generation, to, unit }
                }
                Content::Parameters => return self.parameters_arrived(generation, unit),
            };
            self.member(source, sent)?;
        }
        let from = from.unwrap_or(to);
        let input = match content {
            Content::State(id, decision) => {
                let state = self.state_bytes(unit);
                if let Some(entry) = self.env.account.report.reconfigurations.last_mut() {
                    entry.moved_bytes += state;
                }
                MemberInput::Fetched {
                    generation,
                    from,
                    unit,
                    id,
                    decision,
                }
            }
            Content::Parameters => return Ok(()),
            Content::Gradient(decision) => MemberInput::Gradient {
                generation,
                from,
                unit,
                decision,
            },
            Content::PreparedGradient(prepared) => MemberInput::PreparedGradient {
                generation,
                from,
                unit,
                prepared,
            },
        };
        self.member(to, input)
    }
}
