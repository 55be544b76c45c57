//! A planned change: the next plan is prepared before the present one is left. It is proposed, connected and armed; the switch itself
//! happens at a commit.

use super::active::Active;
use super::catching_up::{follows, may_wait, notes, shape_for_change, time_to_catch_up};
use super::considered::{Considered, Refused};
use super::event::Event;
use super::roster::Worker;
use super::shared::Shared;
use super::speeds::slow_gain;
use super::turn::{Next, Scope, Turn};
use crate::message::{Order, Status, Time};
use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;
use varuna_plan::{Base, Generation, Infeasible, Plan, WorkerId};

/// Maximum number of times that the time for connecting is doubled.
const SLOW_CHANGES: u32 = 4;

/// The condition of the workers that take part in a planned change.
struct Readiness {
    /// Whether a member of the next plan is gone or will leave.
    lost: bool,
    /// Whether a worker was fenced past the next plan, which then can never come into force.
    dead: bool,
}

impl Active {
    /// Proposes a planned change if a member drains, or if the set of workers has changed since the last time and the planner can use it
    /// better; or if an earlier proposal that would not have repaid its cost may do so now.
    pub(super) fn propose(&mut self, shared: &mut Shared, turn: &mut Turn<'_>, plan: &Plan) -> Option<Plan> {
        let members = plan.members();
        if self
            .considered
            .as_ref()
            .is_some_and(|c| c.holds(shared, turn.now, plan))
        {
            return None;
        }
        let silent = |w: &WorkerId| shared.roster.status(*w).is_none();
        if !bug!(ChangeWhileMemberIsSilent) && members.iter().any(silent) {
            return None; // not now
        }
        let pool = shared.pool(turn.now, &shared.roster.staying());
        let drains = |w: &&WorkerId| shared.roster.status(**w).is_some_and(|s| s.draining);
        let draining: Vec<WorkerId> = members.iter().filter(drains).copied().collect();
        let speeds_changed = shared.update_speeds(members);
        let spares: Vec<WorkerId> = plan.shape.spares.iter().map(|s| s.worker).collect();
        let trial_started = shared.speeds.start_slow_worker_trials(turn.now, &spares);
        let considered = Considered::now(pool.clone(), shared, turn.now);
        let before = self.considered.replace(considered);
        let again = self.refused.is_some_and(|r| r.is_due(shared, turn.now, plan));
        let others = trial_started || again || before.is_none_or(|c| c.workers != pool);
        if !others && !speeds_changed {
            return None;
        }
        if again {
            let stay = shared.config.timing.stay;
            shared.roster.churn.expect_anew(turn.now, stay);
        }
        let found = match shape_for_change(shared, plan, &pool, turn.now) {
            Ok(found) => found,
            Err(Infeasible(reason)) => {
                self.refused = None;
                shared.report_problem(Event::NoPlan { reason }, turn);
                return None;
            }
        };
        let after = found.shape.members();
        let fewer = after.len() < members.len();
        let surplus = fewer && shared.max_workers.is_some_and(|most| members.len() > most);
        let present_ms = shared.predicted_ms(plan, members);
        let better =
            shared.repays(&found.shape, present_ms) && (others || slow_gain(&found.shape, present_ms));
        if !(better || surplus || !draining.is_empty()) {
            let idle = pool.iter().any(|w| !plan.has(*w));
            let of_them = others || self.refused.is_some_and(|r| r.is_of(plan));
            self.refused = (idle && of_them).then(|| Refused::now(shared, plan, &found.shape, present_ms));
            return None;
        }
        let reason = match (draining.first(), after.len().cmp(&members.len())) {
            (Some(w), _) => format!("{} will go", shared.roster.name(*w)),
            (None, _) if !others => shared.slowest(members),
            (None, Ordering::Less) => "fewer workers are wanted".to_owned(),
            (None, _) => format!("{} workers in place of {}", after.len(), members.len()),
        } + &notes(shared, &found);
        let sources = plan
            .layout
            .all_units()
            .map(|u| plan.holders(u).to_vec())
            .collect();
        let from = plan.generation;
        let mut next = shared.document(Base::AtSwitch { from }, found.shape, sources, reason);
        next.following = found.without_room.is_empty() && follows(shared, plan, &next);
        next.keepers = shared.keepers(next.generation, &next.shape, turn);
        self.proposed = next.generation;
        self.refused = None;
        // Of a plan in haste: a better one is looked for once it runs.
        self.considered.take_if(|_| !found.haste.is_empty());
        Some(next)
    }

    /// Connects the workers of the next plan, waits until its newcomers have caught up, and then arms the members of the present plan.
    pub(super) fn change(
        &mut self,
        shared: &mut Shared,
        turn: &mut Turn<'_>,
        plan: &Arc<Plan>,
        next: &Arc<Plan>,
    ) -> Next {
        let generation = next.generation;
        let Readiness { lost, dead } = connect(shared, turn, plan, next);
        let armed = self.armed == generation;
        let connected = armed || bug!(ArmUnconnected) || self.is_connected(shared, turn.scope, plan, next);
        // A plan that cannot come into force is cancelled below, which costs nothing; once members are armed, it takes a recovery.
        let is_called_off = lost && self.may_cancel(generation) && !bug!(ArmWhatIsLost);
        let over = armed || !is_called_off && self.catching_up.is_over(shared, turn, (plan, next), connected);
        if over {
            self.armed = generation;
            self.slow_changes = 0;
            let scope = if armed { turn.scope } else { Scope::Everyone };
            for to in scope.among(plan.members()) {
                shared.outbox.order(turn, *to, Order::Arm { generation });
            }
        }
        let timing = &shared.config.timing;
        let hasty = bug!(CancelAfterArm);
        // once a member may be armed, also by an earlier coordinator, only a fence ends the change
        let may_cancel = self.may_cancel(generation) || hasty;
        let patience = if hasty {
            Duration::from_millis(60)
        } else {
            timing.connect_next * (1 << self.slow_changes.min(SLOW_CHANGES))
        };
        let waits = self.catching_up.has_begun(generation) && !hasty;
        let late = !waits && turn.now > self.planned_at.after(patience);
        let step = shared.progress.step_deadline(plan); // the switch waits for a commit
        let cannot = self.cancel_because.take_if(|(g, _)| *g == generation);
        let cannot = cannot.map(|(_, because)| because);
        if may_cancel && (lost || late || cannot.is_some()) {
            self.change_after = turn.now.after(timing.change_delay * 3);
            self.considered = None;
            if !lost && cannot.is_none() {
                self.slow_changes += 1;
            }
            let because = cannot.unwrap_or_else(|| {
                let why = if lost {
                    "a member of it is gone or will go"
                } else {
                    "connecting took too long"
                };
                why.to_owned()
            });
            turn.event(Event::Cancelled { generation, because });
            return Next::Write(shared.record.with_next(None));
        }
        let waiting = time_to_catch_up(shared) * u32::from(may_wait(shared, plan, next));
        let expired = turn.now > self.planned_at.after(timing.launch + waiting + step);
        if dead || expired || (lost && self.armed == generation) {
            return Next::Recover(format!("the change to generation {generation} failed"));
        }
        Next::Stay
    }

    /// Whether all members of both plans are connected to their peers of the next plan.
    fn is_connected(&mut self, shared: &Shared, scope: Scope, plan: &Plan, next: &Plan) -> bool {
        let g = next.generation;
        let connected = |w| {
            shared
                .roster
                .status(w)
                .is_some_and(|s| connection(&s, g) == Some(true))
        };
        let joining = self.next_ready.holds(scope, g, next.members(), connected);
        self.present_ready.holds(scope, g, plan.members(), connected) && joining
    }
}

/// Whether all of a worker's peers in this generation are connected; none if it does not know the plan yet.
fn connection(status: &Status, generation: Generation) -> Option<bool> {
    match status {
        Status { next, .. } if *next == generation => Some(status.next_connected),
        s if s.generation == generation => Some(s.connected),
        _ => None,
    }
}

/// Sends the next plan to the workers that do not have it.
fn connect(shared: &mut Shared, turn: &mut Turn<'_>, plan: &Plan, next: &Arc<Plan>) -> Readiness {
    let g = next.generation;
    let mut found = Readiness {
        lost: false,
        dead: false,
    };
    let present = turn.scope.among(plan.members()).iter();
    let joining = turn.scope.among(next.members()).iter().filter(|w| !plan.has(**w));
    for w in present.chain(joining).copied() {
        let Some(s) = shared.roster.status(w) else {
            found.lost |= !plan.has(w) && is_gone(shared, turn.now, w);
            continue;
        };
        found.lost |= !bug!(IgnoreDrainingNextMember) && s.draining && next.has(w);
        found.dead |= !bug!(IgnoreFencedNextMember) && s.fenced >= g;
        if connection(&s, g).is_none() {
            shared.outbox.order(turn, w, Order::Prepare(next.clone()));
        }
    }
    found
}

/// Whether a joining worker's stream has been down for too long.
fn is_gone(shared: &Shared, now: Time, worker: WorkerId) -> bool {
    let grace = shared.config.timing.cancel_grace;
    let gone = |w: &Worker| now > w.disconnected_at.after(grace);
    shared.roster.get(worker).is_none_or(gone)
}
