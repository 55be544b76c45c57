//! Decides whether a planned change waits for the workers that gain units by it, and that follow the run until then (ADR 26): newcomers,
//! and members that get other units. The wait is bounded: following is an optimisation of loading, and what is missing at the switch is
//! copied then.

use super::all_of::AllOf;
use super::event::Event;
use super::shared::Shared;
use super::turn::Turn;
use crate::message::{Following, Time};
use std::time::Duration;
use varuna_plan::spare_copies::without_room_to_follow;
use varuna_plan::{Generation, Infeasible, Plan, Prediction, Shape, WorkerId};

/// Time for orders, the agreement and Go, besides steps and transfers: as much as a busy network needs.
pub(super) const SWITCH: Duration = Duration::from_secs(1);
/// Maximum size of a unit's state, as a multiple of its gradient's.
const STATE_OF_GRADIENT: u32 = 4;
/// Minimum number of steps that followers get. Copies are made between two steps, at most eight at a time for each source, and fewer where
/// they take longer than a step. If a step takes as long as a gradient takes on the link, a copy takes three steps. After 16 steps a link
/// that can keep up with the run has caught up; a link that cannot is given up while what was sent is still of use.
const STEPS_TO_CATCH_UP: u32 = 16;

/// What is known about a change whose members are connected.
#[derive(Default)]
pub(super) struct CatchingUp {
    /// The change, and since when its members have been connected.
    since: Option<(Generation, Time)>,
    caught_up: AllOf,
    staying: AllOf,
}

impl CatchingUp {
    /// Whether the change has been connected and waits only for its newcomers.
    pub(super) fn has_begun(&self, generation: Generation) -> bool {
        self.since.is_some_and(|(g, _)| g == generation)
    }

    /// Whether the members may be armed: all followers have caught up, or the time for that is over.
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
            here.is_some_and(|s| match s.following {
                Following::CaughtUp => true,
                // All that it lacks is the gradient of the step that runs now.
                Following::Copied(step) => step >= shared.progress.best.step || bug!(OldCopiesHaveCaughtUp),
                Following::Able | Following::Unable => false,
            })
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

/// Whether the change waits for anything once it is connected: for followers, or for the time at which a member leaves.
pub(super) fn may_wait(shared: &Shared, plan: &Plan, next: &Plan) -> bool {
    next.following || leaves_first(shared, plan, next).is_some()
}

/// How long a change whose members are connected waits for followers: as configured, or a number of steps if these are long. Following
/// proceeds only with steps, so a fixed time would give up followers that have much to copy when steps are long.
pub(super) fn time_to_catch_up(shared: &Shared) -> Duration {
    let least = shared.config.timing.following;
    if bug!(LongStepsGiveNoMoreTime) {
        return least;
    }
    let step = shared.progress.commits.mean_step_time().unwrap_or_default();
    least.max(step.saturating_mul(STEPS_TO_CATCH_UP))
}

/// When the first member leaves that the next plan does without, if known: the present plan is used as long as possible. This is called for
/// each message, so its cost must not grow with the number of members.
fn leaves_first(shared: &Shared, plan: &Plan, next: &Plan) -> Option<Time> {
    let goes = |w: WorkerId| plan.has(w) && (bug!(WaitForLeaverOfNextPlan) || !next.has(w));
    shared.roster.first_leaves_at(goes)
}

/// How long before a member leaves its plan has to be left: the switch waits for a commit, and training stops until missing state has
/// arrived. `all`: every follower has caught up, so no more moves than the planner expects; otherwise whole states may move where it
/// expects gradients.
fn time_for_switch(shared: &Shared, next: &Plan, all: bool) -> Duration {
    let predicted = next.shape.predicted;
    let moves = if all {
        of_ms(predicted.move_ms)
    } else {
        longest_move(next)
    };
    time_before_moves(shared, predicted) + moves
}

/// How long it takes from the order to switch until state moves: the switch waits for a commit. `predicted`: what a step takes while none was
/// observed.
fn time_before_moves(shared: &Shared, predicted: Prediction) -> Duration {
    let known = shared.progress.commits.mean_step_time();
    let step = known.unwrap_or(of_ms(predicted.step_ms));
    step * 2 + SWITCH
}

/// The predicted time to move a plan's state to the workers that are missing it. If the plan is followed, the planner expects only
/// gradients to move; this assumes that whole states may have to.
pub(super) fn longest_move(plan: &Plan) -> Duration {
    let expected = of_ms(plan.shape.predicted.move_ms);
    if plan.following {
        expected * STATE_OF_GRADIENT
    } else {
        expected
    }
}

/// Converts milliseconds to a duration of at most a day, since the planner's numbers are estimates.
fn of_ms(ms: f64) -> Duration {
    Duration::from_secs_f64((ms / 1e3).clamp(0.0, 86_400.0))
}

/// Whether the change gives the worker units that it does not have.
fn gains(worker: WorkerId, plan: &Plan, next: &Plan) -> bool {
    let here = plan.units(worker);
    next.units(worker).iter().any(|unit| !here.contains(unit))
}

/// Whether all these workers can follow, and none of them leaves at an unknown time: a switch that waits could come too late for it.
pub(super) fn can_follow(shared: &Shared, workers: &[WorkerId]) -> bool {
    let known = |w: &WorkerId| shared.roster.leaves_at(*w).is_some();
    let able = |w: &WorkerId| {
        let status = shared.roster.status(*w);
        status.is_some_and(|s| s.following != Following::Unable && (!s.draining || known(w)))
    };
    workers.iter().all(able)
}

/// The shape to change to.
pub(super) struct ShapeForChange {
    pub(super) shape: Shape,
    /// Members that have no memory to follow what they gain. If there are any, nobody follows, and the shape is chosen for that cost: all
    /// state moves while training stops.
    pub(super) without_room: Vec<WorkerId>,
    /// What to add to the reason of the plan if a better shape was not taken for lack of time; empty otherwise.
    pub(super) haste: String,
}

/// Chooses the shape to change to. If members leave at a known time, the planner is told how long they can send state.
pub(super) fn shape_for_change(
    shared: &Shared,
    plan: &Plan,
    pool: &[WorkerId],
    now: Time,
) -> Result<ShapeForChange, Infeasible> {
    let members = plan.members();
    let held = members.iter().map(|w| (*w, plan.units(*w))).collect();
    let mut request = shared.request_for_change(pool, held);
    let before_moves = time_before_moves(shared, plan.shape.predicted);
    request.departure = shared.departure(pool, &request.held, now, before_moves);
    let (mut shape, mut haste) = shared.plan_in_time(&request)?;
    let without_room = without_room(shared, plan, &shape);
    if request.following && !without_room.is_empty() {
        request.following = false;
        (shape, haste) = shared.plan_in_time(&request)?;
    }
    Ok(ShapeForChange {
        shape,
        without_room,
        haste,
    })
}

/// Members that could follow, but whose memory cannot hold what they would follow in addition to what they train with and keep. A worker
/// that runs out of memory ends, and the planned change would cost a recovery.
fn without_room(shared: &Shared, plan: &Plan, next: &Shape) -> Vec<WorkerId> {
    let members = plan.members();
    let can = can_follow(shared, members) && can_follow(shared, &next.members());
    if !can || bug!(FollowWithoutRoom) {
        return Vec::new();
    }
    let workers = shared.infos(members);
    let costs = shared.spare_costs(&plan.shape, &workers);
    without_room_to_follow(plan, next, &costs)
}

/// What to add to the reason of a change, as text for people: why it is not followed if that is only for lack of memory, and why a better
/// shape was not taken.
pub(super) fn notes(shared: &Shared, found: &ShapeForChange) -> String {
    let no_room = |worker: &WorkerId| {
        let name = shared.roster.name(*worker);
        format!("; it is not followed, since {name} has no room for what it gets")
    };
    let no_room = found.without_room.first().map(no_room).unwrap_or_default();
    no_room + &found.haste
}

/// Whether the workers that gain units by a change follow the run until then, which requires that all workers involved can follow.
pub(super) fn follows(shared: &Shared, plan: &Plan, next: &Plan) -> bool {
    let gain = next.members().iter().any(|w| gains(*w, plan, next));
    gain && can_follow(shared, plan.members()) && can_follow(shared, next.members())
}
