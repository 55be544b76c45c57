//! Planned change: make before break. Proposed, connected, armed; the switch itself rides on a commit.

use super::speeds::slow_gain;
use super::{Coordinator, CoordinatorEffect, Event};
use crate::message::{Order, Record, Time};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use varuna_plan::{Base, Generation, Infeasible, Plan, PlanRequest, Shape, Unit, WorkerId, WorkerInfo};

/// What a planned change costs beside the transfer of state, milliseconds: orders, agreement, the first step.
const SWITCH_MS: f64 = 100.0;
/// Predictions are not better than that: a smaller gain is none.
const SURE: f64 = 0.002;

impl Coordinator {
    /// Workers that may be planned with: those behind bad links left out, no more than the job may use, present members first.
    pub(super) fn pool(&self, now: Time, from: &[WorkerId]) -> Vec<WorkerId> {
        let mut pool = self.bad.eligible(now, from, self.config.min_workers);
        if let Some(most) = self.max_workers {
            let plan = self.record.plan.as_ref();
            pool.sort_by_key(|w| (!plan.is_some_and(|p| p.has(*w)), *w));
            pool.truncate(most.max(self.config.min_workers));
            pool.sort_unstable();
        }
        pool
    }

    /// Up, and not about to go.
    pub(super) fn firm(&self) -> Vec<WorkerId> {
        let firm = |w: &WorkerId| self.status(*w).is_some_and(|s| !s.draining);
        self.all_up().into_iter().filter(firm).collect()
    }

    /// Workers as the planner sees them.
    fn infos(&self, pool: &[WorkerId]) -> Vec<WorkerInfo> {
        let info = |id: &WorkerId| {
            let hello = self.workers.get(id).and_then(|w| w.hello.as_ref());
            WorkerInfo {
                id: *id,
                memory_bytes: hello.and_then(|h| h.memory_bytes),
                speed: self.speed(*id),
                node: hello.map_or_else(String::new, |h| h.node.clone()),
            }
        };
        pool.iter().map(info).collect()
    }

    /// The question to the planner.
    pub(super) fn request(&self, pool: &[WorkerId], held: BTreeMap<WorkerId, Vec<Unit>>) -> PlanRequest {
        PlanRequest {
            workers: self.infos(pool),
            layout: self.config.layout,
            global_batch_size: self.config.global_batch_size,
            parent: self.record.plan.as_ref().map(|p| p.shape.clone()),
            held,
            horizon_ms: Some(self.horizon.as_secs_f64() * 1e3),
        }
    }

    /// Whether a plan repays the way there before the next change is expected: it trains more until then, the time included in
    /// which its state travels and training stands, than the present one with steps of `present_ms`.
    fn repays(&self, shape: &Shape, present_ms: f64) -> bool {
        let horizon_ms = self.horizon.as_secs_f64() * 1e3;
        let left_ms = horizon_ms - shape.predicted.move_ms - SWITCH_MS;
        shape.predicted.step_ms * horizon_ms < present_ms * left_ms * (1.0 - SURE)
    }

    /// The document around a shape.
    pub(super) fn document(
        &self,
        base: Base,
        shape: Shape,
        sources: Vec<Vec<WorkerId>>,
        reason: String,
    ) -> Plan {
        let generation = self.next_generation();
        let involved: BTreeSet<WorkerId> = shape
            .members()
            .into_iter()
            .chain(sources.iter().flatten().copied())
            .collect();
        let address = |w: &WorkerId| {
            let hello = self.workers.get(w).and_then(|x| x.hello.as_ref());
            hello.map(|h| (*w, h.address.clone()))
        };
        Plan {
            generation,
            parent: self.record.plan.as_ref().map_or(Generation(0), |p| p.generation),
            base,
            layout: self.config.layout,
            deadline_ns: self.deadline_ns(&shape),
            sources,
            addresses: involved.iter().filter_map(address).collect(),
            relay: false,
            secret: self.secret(generation),
            evidence: Vec::new(),
            reason,
            shape,
        }
    }

    /// Four times the step time that is expected: the observed one, scaled by what the planner thinks of the change.
    fn deadline_ns(&self, shape: &Shape) -> u64 {
        let predicted = shape.predicted.step_ms.max(0.0);
        let before = self
            .record
            .plan
            .as_ref()
            .map_or(0.0, |p| p.shape.predicted.step_ms);
        let expected_ms = match self.published.pace() {
            Some(pace) if before > 0.0 => pace.as_secs_f64() * 1e3 * (predicted / before).max(1.0),
            Some(pace) => pace.as_secs_f64() * 1e3,
            None => predicted,
        };
        // a day at most: the planner's numbers are estimates
        let four = Duration::from_secs_f64((expected_ms * 4.0 / 1e3).clamp(0.0, 86_400.0));
        let deadline = self.config.timing.deadline_floor.max(four);
        u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX)
    }

    /// 128 bits that only those who were given the plan know.
    fn secret(&self, generation: Generation) -> String {
        let mut hash = Sha256::new();
        hash.update(self.config.secret_seed);
        hash.update(self.term.to_le_bytes());
        hash.update(generation.0.to_le_bytes());
        hash.finalize()
            .iter()
            .take(16)
            .map(|b| format!("{b:02x}"))
            .collect()
    }

    /// Proposes a planned change when a member drains, or when other workers are there than at the last look and the planner
    /// makes better use of them.
    pub(super) fn propose(&mut self, now: Time, plan: &Arc<Plan>, effects: &mut Vec<CoordinatorEffect>) {
        let members = plan.members();
        if !bug!(ChangeWhileMemberIsSilent) && members.iter().any(|w| self.status(*w).is_none()) {
            return; // a member is silent: not now
        }
        let pool = self.pool(now, &self.firm());
        let leaves = |w: &&WorkerId| self.status(**w).is_some_and(|s| s.draining);
        let drained: Vec<WorkerId> = members.iter().filter(leaves).copied().collect();
        let considered: BTreeSet<WorkerId> = pool.iter().copied().collect();
        let slow = self.looks_anew(&members);
        let others = self.considered.as_ref() != Some(&considered);
        if !others && !slow {
            return;
        }
        self.considered = Some(considered);
        let held = members.iter().map(|w| (*w, plan.units(*w))).collect();
        let shape = match self.planner.plan(&self.request(&pool, held)) {
            Ok(shape) => shape,
            Err(Infeasible(reason)) => return self.complain(Event::NoPlan { reason }, effects),
        };
        let after = shape.members();
        let surplus = self
            .max_workers
            .is_some_and(|most| members.len() > most && after.len() < members.len());
        let present_ms = self.planner.predicted_ms(&plan.shape, &self.infos(&members));
        let present_ms = present_ms.unwrap_or(plan.shape.predicted.step_ms);
        let better = self.repays(&shape, present_ms) && (others || slow_gain(&shape, present_ms));
        let same = after == members && !slow;
        if same || !(better || surplus || !drained.is_empty()) {
            return;
        }
        let reason = match (drained.first(), after.len().cmp(&members.len())) {
            (Some(w), _) => format!("{} will go", self.name(*w)),
            (None, _) if !others => self.slowest(&members),
            (None, std::cmp::Ordering::Less) => "fewer workers are wanted".to_owned(),
            (None, _) => format!("{} workers in place of {}", after.len(), members.len()),
        };
        let sources = plan.layout.all_units().map(|u| plan.holders(u)).collect();
        let base = Base::AtSwitch {
            from: plan.generation,
        };
        let next = self.document(base, shape, sources, reason);
        self.proposed = next.generation;
        let highest = next.generation.max(self.record.highest);
        self.persist(
            Record {
                highest,
                next: Some(Arc::new(next)),
                ..self.record.clone()
            },
            effects,
        );
    }

    /// Connects everyone of the next plan, then arms the members of the present one.
    pub(super) fn change(
        &mut self,
        now: Time,
        plan: &Arc<Plan>,
        next: &Arc<Plan>,
        effects: &mut Vec<CoordinatorEffect>,
    ) {
        let g = next.generation;
        let (mut ready, mut lost, mut dead) = (true, false, false);
        let mut all = plan.members();
        all.extend(next.members().into_iter().filter(|w| !plan.has(*w)));
        for w in all {
            let Some(s) = self.status(w) else {
                ready = false;
                let gone = |x: &super::Worker| now > x.down_since.after(self.config.timing.cancel_grace);
                lost |= !plan.has(w) && self.workers.get(&w).is_none_or(gone);
                continue;
            };
            lost |= !bug!(IgnoreDrainingNextMember) && s.draining && next.has(w);
            dead |= !bug!(IgnoreFencedNextMember) && s.fenced >= g;
            if s.generation != g && s.next != g {
                self.order(now, w, Order::Prepare(next.clone()), effects);
                ready = false;
            } else if s.next == g {
                ready &= s.next_connected;
            } else {
                ready &= s.connected;
            }
        }
        if bug!(ArmUnconnected) || ready || self.armed == g {
            self.armed = g;
            for to in plan.members() {
                self.order(now, to, Order::Arm { generation: g }, effects);
            }
        }
        let timing = &self.config.timing;
        let hasty = bug!(CancelAfterArm);
        // once somebody may be armed, or where an earlier coordinator may have armed, only a fence ends it
        let may_cancel = (self.armed != g && (bug!(CancelUnknownChange) || self.proposed == g)) || hasty;
        let patience = if hasty {
            Duration::from_millis(60)
        } else {
            timing.connect_next
        };
        let late = now > self.since.after(patience);
        let step = Duration::from_nanos(plan.deadline_ns); // the switch waits for a commit
        if may_cancel && (lost || late) {
            self.change_after = now.after(timing.change_delay * 3);
            self.considered = None;
            let because = if lost {
                "a member of it is gone or will go"
            } else {
                "connecting took too long"
            };
            let because = because.to_owned();
            effects.push(CoordinatorEffect::Event(Event::Cancelled {
                generation: g,
                because,
            }));
            self.persist(
                Record {
                    next: None,
                    ..self.record.clone()
                },
                effects,
            );
        } else if dead || now > self.since.after(timing.launch + step) || (lost && self.armed == g) {
            self.fence(now, format!("the change to generation {g} failed"), effects);
        }
    }
}
