//! A generation in force: launch, watch, promote.

use super::{Coordinator, CoordinatorEffect, Event, Mode, Worker};
use crate::message::{Order, Phase, Record, Time};
use std::sync::Arc;
use std::time::Duration;
use varuna_plan::{Plan, WorkerId};

impl Coordinator {
    pub(super) fn active(&mut self, now: Time, effects: &mut Vec<CoordinatorEffect>) {
        let Some(plan) = self.record.plan.clone() else {
            return self.fence(now, "no plan yet".into(), effects);
        };
        let next = self.record.next.clone();
        let switched = next.as_ref().is_some_and(|n| self.has_switched(&plan, n));
        let target = next.clone().filter(|_| switched).unwrap_or_else(|| plan.clone());
        if let Some(because) = self.suspected_here().or_else(|| self.broken(now, &target)) {
            return self.fence(now, because, effects);
        }
        self.launch(now, &target, effects);
        if self.mode != Mode::Active {
            return;
        }
        let finished = self.finished(&target);
        let patience = Duration::from_nanos(target.deadline_ns) * 4;
        let running = self.gone == target.generation;
        if !bug!(NoStallDetection) && running && !finished && now > self.progress_at.after(patience) {
            return self.fence(now, "no step was committed for four deadlines".into(), effects);
        }
        if finished {
            return self.end(now, effects);
        }
        if running {
            self.save(now, &target, effects);
        }
        match next {
            Some(n) if switched && running => {
                let record = self.record.clone();
                self.persist(
                    Record {
                        plan: Some(n),
                        next: None,
                        ..record
                    },
                    effects,
                );
            }
            Some(_) if switched => {}
            Some(n) => self.change(now, &plan, &n, effects),
            None if running && now >= self.change_after => {
                self.propose(now, &plan, effects);
                if self.mode == Mode::Active {
                    self.keep_warm(now);
                }
            }
            None => {}
        }
    }

    /// A suspicion that came while the record was being written.
    fn suspected_here(&mut self) -> Option<String> {
        let (generation, because) = self.suspected.take()?;
        let plans = [&self.record.plan, &self.record.next];
        let here = plans.into_iter().flatten().any(|p| p.generation == generation);
        here.then_some(because)
    }

    /// Why the generation cannot go on, where that is seen from here.
    fn broken(&self, now: Time, target: &Plan) -> Option<String> {
        let g = target.generation;
        let members = target.members();
        if let Some(gone) = members
            .iter()
            .find(|w| !bug!(IgnoreSilentMember) && self.away(now, **w))
        {
            return Some(format!("{} is silent", self.name(*gone)));
        }
        let fenced =
            |w: &&WorkerId| !bug!(IgnoreFencedMember) && self.status(**w).is_some_and(|s| s.fenced >= g);
        let fenced = members.iter().find(fenced)?;
        Some(format!("{} was fenced past generation {g}", self.name(*fenced)))
    }

    /// Everyone is at the last step.
    fn end(&mut self, now: Time, effects: &mut Vec<CoordinatorEffect>) {
        if bug!(DoneWithoutFinalCheckpoint) || !self.config.final_checkpoint {
            let record = self.record.clone();
            self.persist(Record { done: true, ..record }, effects);
        } else if now >= self.asked_at {
            self.asked_at = now.after(self.config.timing.ask_again);
            effects.push(CoordinatorEffect::ListCheckpoints);
        }
    }

    /// All members run in the generation and are at the last step. The step alone proves nothing: a member that is still loading
    /// tells the state that it had before.
    fn finished(&self, target: &Plan) -> bool {
        target.members().iter().all(|w| {
            self.status(*w).is_some_and(|s| {
                (s.generation == target.generation || bug!(FinishedInAnyGeneration))
                    && (s.phase == Phase::Running || bug!(FinishedInAnyPhase))
                    && s.at.step >= self.config.last_step
            })
        })
    }

    /// Somebody is based in the next generation: the switch has been decided.
    fn has_switched(&self, plan: &Plan, next: &Plan) -> bool {
        let based = |w: &WorkerId| {
            self.status(*w).is_some_and(|s| {
                s.generation == next.generation
                    && ((s.based && !bug!(SwitchedOnlyWhenRunning)) || s.phase == Phase::Running)
            })
        };
        plan.members().iter().chain(next.members().iter()).any(based)
    }

    /// No stream for too long, and no step committed meanwhile (which would prove that all members live).
    fn away(&self, now: Time, worker: WorkerId) -> bool {
        let known: Option<&Worker> = self.workers.get(&worker);
        let down_since = known.map_or(Time(0), |w| w.down_since);
        self.status(worker).is_none()
            && now > self.progress_at.max(down_since).after(self.config.timing.grace)
    }

    fn launch(&mut self, now: Time, target: &Arc<Plan>, effects: &mut Vec<CoordinatorEffect>) {
        let generation = target.generation;
        let first = self.gone != generation;
        if first {
            for to in self.all_up() {
                let lacks = self
                    .status(to)
                    .is_some_and(|s| s.generation < generation && s.next != generation);
                if target.involves(to) && lacks {
                    self.order(now, to, Order::Prepare(target.clone()), effects);
                }
            }
        }
        let members = target.members();
        let linked = |w: &WorkerId| {
            self.status(*w)
                .is_some_and(|s| s.generation == generation && s.connected)
        };
        if self.connected != generation && members.iter().all(linked) {
            self.connected = generation;
            effects.push(CoordinatorEffect::Event(Event::Connected { generation }));
        }
        let ready = |w: &WorkerId| {
            self.status(*w).is_some_and(|s| {
                (s.generation == generation || bug!(ReadyInAnyGeneration)) && s.phase >= Phase::Ready
            })
        };
        let early = bug!(GoEarly) && members.iter().any(ready);
        if first && !early && !members.iter().all(ready) {
            let deadline = Duration::from_nanos(target.deadline_ns);
            if !bug!(NoLaunchDeadline) && now > self.since.after(self.config.timing.launch + deadline) {
                self.fence(
                    now,
                    format!("generation {generation} did not start in time"),
                    effects,
                );
            }
            return;
        }
        if first {
            self.gone = generation;
            self.progress_at = now;
            self.change_after = now.after(self.config.timing.change_delay);
            self.complained = None;
            self.changes.begin(now);
            self.horizon = self.changes.expected(now, self.config.timing.stay);
            self.warm.forget();
            effects.push(CoordinatorEffect::Event(Event::Running { generation }));
        }
        self.tell_go(now, target, first, early, effects);
    }

    /// Go to all at first, then to those that still wait; drained workers are let go.
    fn tell_go(
        &mut self,
        now: Time,
        target: &Plan,
        first: bool,
        early: bool,
        effects: &mut Vec<CoordinatorEffect>,
    ) {
        let generation = target.generation;
        for to in self.all_up() {
            let Some(status) = self.status(to) else { continue };
            let here = status.generation == generation;
            let waits = here && matches!(status.phase, Phase::Ready | Phase::Source);
            let spare = !target.involves(to) && status.generation < generation;
            if waits || (first && (spare || early)) {
                self.order(now, to, Order::Go { generation }, effects);
            }
            let idle = status.phase == Phase::Idle && status.next != generation;
            if !first && !target.has(to) && status.draining && (idle || bug!(ReleaseBusyWorker)) {
                let before = self.told.contains_key(&(to, super::Kind::Release));
                self.order(now, to, Order::Release, effects);
                if !before {
                    let name = self.name(to);
                    effects.push(CoordinatorEffect::Event(Event::WorkerReleased {
                        worker: to,
                        name,
                    }));
                }
            }
        }
    }
}
