//! What workers say, and whether they can be heard at all.

use super::{Coordinator, CoordinatorEffect, Event, Hello, Mode};
use crate::message::{Phase, Report, Time};
use varuna_plan::{Decision, Generation, WorkerId};

impl Coordinator {
    /// A stream that says nothing is down. After a pause of its own the coordinator listens afresh instead of declaring
    /// everybody dead.
    pub(super) fn listen(&mut self, now: Time, effects: &mut Vec<CoordinatorEffect>) {
        let slept = now > self.ticked_at.after(self.config.timing.heartbeat * 2);
        self.ticked_at = now;
        let mut silent = Vec::new();
        for (id, worker) in self.workers.iter_mut().filter(|(_, w)| w.up) {
            if slept && !bug!(PauseSilencesEverybody) {
                worker.heard_at = now;
            } else if now > worker.heard_at.after(self.config.timing.silent) {
                silent.push(*id);
            }
        }
        for id in silent {
            self.lose_stream(now, id, effects);
        }
    }

    pub(super) fn stream_up(
        &mut self,
        now: Time,
        from: WorkerId,
        hello: Hello,
        effects: &mut Vec<CoordinatorEffect>,
    ) {
        self.told.retain(|(w, _), _| *w != from);
        let worker = self.workers.entry(from).or_default();
        if !worker.up {
            self.changes.observe(now);
            let (name, address) = (hello.name.clone(), hello.address.clone());
            effects.push(CoordinatorEffect::Event(Event::WorkerJoined {
                worker: from,
                name,
                address,
            }));
        }
        worker.up = true;
        worker.heard_at = now;
        worker.hello = Some(hello);
    }

    pub(super) fn stream_down(&mut self, now: Time, from: WorkerId, effects: &mut Vec<CoordinatorEffect>) {
        if !bug!(CountAnswerOfClosedStream) {
            self.answers.remove(&from);
        }
        self.lose_stream(now, from, effects);
    }

    fn lose_stream(&mut self, now: Time, from: WorkerId, effects: &mut Vec<CoordinatorEffect>) {
        let name = self.name(from);
        if let Some(worker) = self.workers.get_mut(&from).filter(|w| w.up) {
            worker.up = false;
            worker.down_since = now;
            self.changes.observe(now);
            effects.push(CoordinatorEffect::Event(Event::WorkerLost { worker: from, name }));
        }
    }

    pub(super) fn notice(&mut self, from: WorkerId, effects: &mut Vec<CoordinatorEffect>) {
        let name = self.name(from);
        let Some(worker) = self.workers.get_mut(&from).filter(|w| w.up && !w.noticed) else {
            return;
        };
        worker.noticed = true;
        if !worker.status.is_some_and(|s| s.draining) {
            self.want_save();
            effects.push(CoordinatorEffect::Event(Event::WorkerDraining {
                worker: from,
                name,
            }));
        }
    }

    pub(super) fn heard(
        &mut self,
        now: Time,
        from: WorkerId,
        report: Report,
        effects: &mut Vec<CoordinatorEffect>,
    ) {
        // without a Hello nobody could plan with it, or send it anything
        let Some(worker) = self.workers.get_mut(&from).filter(|w| w.hello.is_some()) else {
            return;
        };
        worker.heard_at = now;
        match report {
            Report::Status(status) => {
                let known = worker.noticed || worker.status.is_some_and(|s| s.draining);
                let drains = status.draining && !known;
                let back = !worker.up;
                worker.up = true;
                worker.status = Some(status);
                let hello = worker.hello.clone();
                if let Some(Hello { name, address, .. }) = hello {
                    if back {
                        let name = name.clone();
                        let joined = Event::WorkerJoined {
                            worker: from,
                            name,
                            address,
                        };
                        effects.push(CoordinatorEffect::Event(joined));
                    }
                    if drains {
                        self.want_save();
                        effects.push(CoordinatorEffect::Event(Event::WorkerDraining {
                            worker: from,
                            name,
                        }));
                    }
                }
                let counts = matches!(status.phase, Phase::Running | Phase::Loading | Phase::Ready);
                if status.at > self.best && counts {
                    self.best = status.at;
                    self.progress_at = now;
                    if !bug!(NeverResetFailedGenerations) {
                        self.fruitless = 0;
                    }
                }
            }
            Report::Inventory(inventory) => {
                if let Some(status) = &mut worker.status {
                    if !bug!(InventoryProvesNoFence) {
                        status.fenced = status.fenced.max(inventory.upto);
                    }
                    status.generation = Generation(0);
                    status.phase = Phase::Idle;
                }
                if let Some(decision) = inventory.decision {
                    self.publish(now, decision, effects);
                }
                let fresh = bug!(CountStaleInventory) || inventory.upto == self.record.highest;
                if (bug!(CountInventoryOutsideRecovery) || matches!(self.mode, Mode::Collecting { .. }))
                    && fresh
                {
                    self.answers.insert(from, inventory);
                }
            }
            Report::Suspect {
                generation,
                about,
                link,
            } => {
                self.accused(now, from, generation, about, link, effects);
            }
            Report::Committed { decision } => self.publish(now, decision, effects),
        }
    }

    pub(super) fn publish(&mut self, now: Time, decision: Decision, effects: &mut Vec<CoordinatorEffect>) {
        if self.published.first(now, &decision) {
            effects.push(CoordinatorEffect::Event(Event::Committed {
                id: decision.id,
                generation: decision.id.run_gen,
                step: decision.id.step,
                loss: decision.loss,
                eval_loss: decision.eval_loss,
                gradient_norm: decision.norm2.sqrt(),
                overflow: decision.overflow,
            }));
            self.compare(decision.id.run_gen, effects);
        }
    }

    fn accused(
        &mut self,
        now: Time,
        from: WorkerId,
        generation: Generation,
        about: WorkerId,
        link: bool,
        effects: &mut Vec<CoordinatorEffect>,
    ) {
        let plans = [&self.record.plan, &self.record.next];
        if !plans.into_iter().flatten().any(|p| p.generation == generation) {
            return;
        }
        if !matches!(self.mode, Mode::Active | Mode::Persisting) {
            return;
        }
        if link && about != from && !bug!(ForgetBadLinks) {
            self.bad
                .mark(now, from, about, now.after(self.config.timing.bad_link));
        }
        let (who, whom) = (self.name(from), self.name(about));
        let because = match (link, about == from) {
            (true, _) => format!("{who} cannot reach {whom}"),
            (false, false) => format!("{who} lost {whom}"),
            (false, true) => format!("{who} is stuck"),
        };
        if self.mode == Mode::Active {
            self.fence(now, because, effects);
        } else {
            self.suspected = Some((generation, because)); // looked at once the write is done
        }
    }
}
