//! Whether a planned change waits for those who get units by it, and follow the run until then (ADR 26): newcomers, and members that get
//! others. The wait is bounded: following is an optimisation of loading, and what is missing at the switch is copied then.

use super::all_of::AllOf;
use super::event::Event;
use super::shared::Shared;
use super::turn::Turn;
use crate::message::{Following, Time};
use std::time::Duration;
use varuna_plan::spare_copies::without_room_to_follow;
use varuna_plan::{Generation, Infeasible, Plan, Shape, WorkerId};

/// Orders, the agreement and Go, beside steps and transfers: as much as a busy network needs.
const SWITCH: Duration = Duration::from_secs(1);
/// A state is at most so many times as large as its gradient.
const STATE_OF_GRADIENT: u32 = 4;
/// Followers have this many steps at least. Copies are made between two steps, one after the first, two after the second, then four, then eight
/// at a time, and where a step is as long as a gradient takes on the link, a copy takes three. After 16 steps a link that can keep up with the run has done so;
/// one that cannot is given up while what was sent is still worth something.
const STEPS_TO_CATCH_UP: u32 = 16;

/// What is known of a change whose members are connected.
#[derive(Default)]
pub(super) struct CatchingUp {
    /// Since when.
    since: Option<(Generation, Time)>,
    caught_up: AllOf,
    staying: AllOf,
}

impl CatchingUp {
    /// The change has been connected, and waits only for its newcomers.
    pub(super) fn has_begun(&self, generation: Generation) -> bool {
        self.since.is_some_and(|(g, _)| g == generation)
    }

    /// Whether the members may be armed: all that follow have caught up, or there is no more time for that.
    pub(super) fn is_over(
        &mut self,
        shared: &Shared,
        turn: &mut Turn<'_>,
        (plan, next): (&Plan, &Plan),
        connected: bool,
    ) -> bool {
        let generation = next.generation;
        let early = bug!(SwitchLongBeforeNotice) && !next.following;
        if !may_wait(shared, plan, next) || early || bug!(ArmBeforeCaughtUp) {
            return connected;
        }
        let status = |w: WorkerId| shared.roster.status(w);
        let known = |w: WorkerId| shared.roster.leaves_at(w).is_some();
        let staying = |w: WorkerId| status(w).is_some_and(|s| !s.draining || known(w));
        let caught_up = |w: WorkerId| {
            let here = status(w).filter(|s| s.generation == generation || s.next == generation);
            here.is_some_and(|s| s.following == Following::CaughtUp)
        };
        let all = !next.following
            || self
                .caught_up
                .holds(turn.scope, generation, next.members(), caught_up);
        let calm = self
            .staying
            .holds(turn.scope, generation, plan.members(), staying);
        if !connected && !self.has_begun(generation) {
            return false;
        }
        let (_, since) = *match &mut self.since {
            Some(since) if since.0 == generation => since,
            other => other.insert((generation, turn.now)),
        };
        let late = turn.now > since.after(time_to_catch_up(shared)) && !bug!(WaitForFollowersForEver);
        if !connected {
            return false;
        }
        let over = match leaves_first(shared, plan, next) {
            Some(at) => {
                let needed = time_for_switch(shared, next, all);
                late || !calm || turn.now.after(needed) >= at
            }
            None => all || late || !calm,
        };
        if over && next.following {
            let gain = next.members().iter().copied().filter(|w| gains(*w, plan, next));
            let workers = gain.filter(|w| all || !caught_up(*w)).collect();
            turn.event(match all {
                true => Event::FollowersCaughtUp { generation, workers },
                false => Event::FollowersLate { generation, workers },
            });
        }
        over
    }
}

/// Whether the change waits for anything once it is connected: for those who follow, or for the time at which a member goes.
pub(super) fn may_wait(shared: &Shared, plan: &Plan, next: &Plan) -> bool {
    next.following || leaves_first(shared, plan, next).is_some()
}

/// How long a change whose members are connected waits for those who follow: as configured, or several steps where these are long. All that
/// following does waits for steps, so that a time which says nothing of them would give up whoever has much to take over where steps are long.
pub(super) fn time_to_catch_up(shared: &Shared) -> Duration {
    let least = shared.config.timing.following;
    if bug!(LongStepsGiveNoMoreTime) {
        return least;
    }
    let step = shared.progress.commits.mean_step_time().unwrap_or_default();
    least.max(step.saturating_mul(STEPS_TO_CATCH_UP))
}

/// When the first member goes that the next plan does without, where that is known: it is used as long as can be. Asked with each message, so that the work must
/// not grow with the members.
fn leaves_first(shared: &Shared, plan: &Plan, next: &Plan) -> Option<Time> {
    let goes = |w: WorkerId| plan.has(w) && (bug!(WaitForLeaverOfNextPlan) || !next.has(w));
    shared.roster.first_leaves_at(goes)
}

/// How long before a member goes its plan has to be left: the switch waits for a commit, and training stands until what is lacking has come.
/// `all`: that is no more than the planner expects, else it may be whole states where it expects gradients.
fn time_for_switch(shared: &Shared, next: &Plan, all: bool) -> Duration {
    let predicted = next.shape.predicted;
    let known = shared.progress.commits.mean_step_time();
    let step = known.unwrap_or(of_ms(predicted.step_ms));
    let moves = if all {
        of_ms(predicted.move_ms)
    } else {
        longest_move(next)
    };
    step * 2 + moves + SWITCH
}

/// How long a plan's state is predicted to take to where it is lacking. Where it is followed gradients alone are expected, and whole states may
/// have to move.
pub(super) fn longest_move(plan: &Plan) -> Duration {
    let expected = of_ms(plan.shape.predicted.move_ms);
    if plan.following {
        expected * STATE_OF_GRADIENT
    } else {
        expected
    }
}

/// The planner's numbers are estimates: a day at most.
fn of_ms(ms: f64) -> Duration {
    Duration::from_secs_f64((ms / 1e3).clamp(0.0, 86_400.0))
}

/// The change gives the worker units that it does not have.
fn gains(worker: WorkerId, plan: &Plan, next: &Plan) -> bool {
    let here = plan.units(worker);
    next.units(worker).iter().any(|unit| !here.contains(unit))
}

/// Whether all these workers know how to follow, and none of them goes at a time that is not known: a switch that waits could come too late
/// for it.
pub(super) fn can_follow(shared: &Shared, workers: &[WorkerId]) -> bool {
    let known = |w: &WorkerId| shared.roster.leaves_at(*w).is_some();
    let able = |w: &WorkerId| {
        let status = shared.roster.status(*w);
        status.is_some_and(|s| s.following != Following::Unable && (!s.draining || known(w)))
    };
    workers.iter().all(able)
}

/// The shape to change to, and the members that have no room to follow what they gain. Where there are any, nobody follows, and
/// the shape is chosen at the price of that: all state moves while training stands.
pub(super) fn shape_for_change(
    shared: &Shared,
    plan: &Plan,
    pool: &[WorkerId],
) -> Result<(Shape, Vec<WorkerId>), Infeasible> {
    let members = plan.members();
    let held = members.iter().map(|w| (*w, plan.units(*w))).collect();
    let mut request = shared.request_for_change(pool, held);
    let mut shape = shared.planner.plan(&request)?;
    let without_room = without_room(shared, plan, &shape);
    if request.following && !without_room.is_empty() {
        request.following = false;
        shape = shared.planner.plan(&request)?;
    }
    Ok((shape, without_room))
}

/// Of those that could follow, the members whose memory does not hold that beside what they train with and keep: one that runs out of it
/// ends, and a planned change would cost a recovery.
fn without_room(shared: &Shared, plan: &Plan, next: &Shape) -> Vec<WorkerId> {
    let members = plan.members();
    let can = can_follow(shared, members) && can_follow(shared, &next.members());
    if !can || bug!(FollowWithoutRoom) {
        return Vec::new();
    }
    let workers = shared.infos(members);
    let costs = shared.planner.spare_costs(&plan.shape, &plan.layout, &workers);
    without_room_to_follow(plan, next, &costs)
}

/// Why a change is not followed that would be but for this, for people: to be put behind the reason of the change.
pub(super) fn no_room(shared: &Shared, without_room: &[WorkerId]) -> String {
    let sentence = |worker: &WorkerId| {
        let name = shared.roster.name(*worker);
        format!("; it is not followed, since {name} has no room for what it gets")
    };
    without_room.first().map(sentence).unwrap_or_default()
}

/// Whether those who get units by a change follow the run until then: all who take part can.
pub(super) fn follows(shared: &Shared, plan: &Plan, next: &Plan) -> bool {
    let gain = next.members().iter().any(|w| gains(*w, plan, next));
    gain && can_follow(shared, plan.members()) && can_follow(shared, next.members())
}
