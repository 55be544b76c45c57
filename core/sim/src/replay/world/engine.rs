//! Engines, modelled: a step takes the time that was predicted for it, state takes its links' time, all else none.

use super::members::nanoseconds;
use super::{Ev, World};
use varuna_plan::state::UnitNorm;
use varuna_plan::{Generation, StateId, Step, Unit, WorkerId};
use varuna_protocol::{MemberEffect, MemberInput, Phase};

impl World<'_> {
    /// What the engine does.
    pub(super) fn command(&mut self, w: WorkerId, effect: MemberEffect) {
        match effect {
            MemberEffect::Run { plan, step } => {
                let generation = plan.generation;
                if let Some(worker) = self.worker(w) {
                    worker.job = Some((generation, step));
                    worker.prepared.clear();
                }
                let all = plan.members().into_iter();
                let mut jobs = all.map(|m| self.worker(m).and_then(|x| x.job));
                if jobs.all(|job| job == Some((generation, step))) {
                    let first = self.tip.run_gen != generation;
                    let extra = if first {
                        self.setup.parts.first_step_extra_ms
                    } else {
                        0.0
                    };
                    let took = nanoseconds(plan.shape.predicted.step_ms + extra);
                    self.after(took, Ev::StepEnds(generation, step));
                }
            }
            MemberEffect::Abort => {
                let Some(worker) = self.worker(w) else { return };
                worker.job = None;
                let prepared = worker.prepared.clone();
                self.after(0, Ev::Member(w, MemberInput::Stopped { prepared }));
            }
            MemberEffect::Apply { decision, .. } => {
                let id = decision.id;
                let Some(worker) = self.worker(w) else { return };
                worker.job = None;
                worker.prepared.clear();
                let runs = worker.member.status().phase == Phase::Running;
                if runs && id > self.tip {
                    self.committed(&decision);
                }
                self.after(0, Ev::Member(w, MemberInput::Applied { id }));
            }
            MemberEffect::Load { id, unit } if id == StateId::INITIAL => {
                self.after(0, Ev::Member(w, MemberInput::Loaded { unit, id }));
            }
            MemberEffect::Load { id, unit } => {
                let Some(generation) = self.worker(w).map(|x| x.member.generation()) else {
                    return;
                };
                let route = (generation, None, w);
                // the store's client asks for a shard once
                if self.saved.contains_key(&id) && !self.net.carries(&route, unit) {
                    let parcel = self.parcel(unit, id, None);
                    self.net.send(self.now, route, parcel);
                    self.wake();
                }
            }
            MemberEffect::Adopt { unit, id } => {
                if let Some(worker) = self.worker(w) {
                    worker.prepared.retain(|(u, _)| *u != unit);
                }
                self.after(0, Ev::Member(w, MemberInput::Loaded { unit, id }));
            }
            _ => {}
        }
    }

    /// A step needs all its members to the end.
    pub(super) fn step_ends(&mut self, generation: Generation, step: Step) {
        let Some(plan) = self.plans.get(&generation).cloned() else {
            return;
        };
        let members = plan.members();
        let mut runs = |w: &WorkerId| self.worker(*w).is_some_and(|x| x.job == Some((generation, step)));
        if !members.iter().all(&mut runs) {
            return;
        }
        for w in members {
            let norm = |unit: Unit| {
                let norm = UnitNorm {
                    norm2: 1.0,
                    overflow: false,
                    loss: 0.0,
                    eval_loss: None,
                };
                (unit, norm)
            };
            let units: Vec<(Unit, UnitNorm)> = plan.units(w).into_iter().map(norm).collect();
            if let Some(worker) = self.worker(w) {
                worker.prepared.clone_from(&units);
            }
            self.member(
                w,
                MemberInput::Prepared {
                    generation,
                    step,
                    units,
                },
            );
        }
    }

    /// Looks at the network again when something arrives.
    pub(super) fn wake(&mut self) {
        if let Some(at) = self.net.next() {
            let version = self.net.version;
            self.after(at.saturating_sub(self.now), Ev::Net(version));
        }
    }

    pub(super) fn arrivals(&mut self, version: u64) {
        if version != self.net.version {
            return;
        }
        self.busy();
        let (whole, parts) = self.net.arrivals(self.now);
        for ((generation, from, to), unit) in parts {
            let from = from.unwrap_or(to);
            self.member(
                to,
                MemberInput::FetchProgress {
                    generation,
                    from,
                    unit,
                },
            );
        }
        for ((generation, from, to), parcel) in whole {
            let from = from.unwrap_or(to);
            if let Some(entry) = self.report.reconfigurations.last_mut() {
                entry.moved_bytes += self.bytes.get(parcel.unit.index()).copied().unwrap_or(0.0);
            }
            self.member(
                to,
                MemberInput::Fetched {
                    generation,
                    from,
                    unit: parcel.unit,
                    id: parcel.id,
                    decision: parcel.decision,
                },
            );
        }
        self.wake();
    }
}
