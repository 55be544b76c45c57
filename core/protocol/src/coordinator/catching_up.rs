//! Whether a planned change waits for its newcomers, which follow the run (ADR 26). The wait is bounded: following is an optimisation of
//! loading, and what is missing at the switch is copied then.

use super::all_of::AllOf;
use super::event::Event;
use super::shared::Shared;
use super::turn::Turn;
use crate::message::{Following, Time};
use varuna_plan::{Generation, Plan, WorkerId};

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
        if !next.following || bug!(ArmBeforeCaughtUp) {
            return connected;
        }
        let status = |w: WorkerId| shared.roster.status(w);
        let staying = |w: WorkerId| status(w).is_some_and(|s| !s.draining);
        let caught_up = |w: WorkerId| {
            let here = status(w).filter(|s| s.generation == generation);
            plan.has(w) || here.is_some_and(|s| s.following == Following::CaughtUp)
        };
        let all = self
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
        let late = turn.now > since.after(shared.config.timing.following) && !bug!(WaitForFollowersForEver);
        if !connected {
            return false;
        }
        let over = all || late || !calm;
        if over {
            let newcomers = next.members().iter().copied().filter(|w| !plan.has(*w));
            let workers = newcomers.filter(|w| all || !caught_up(*w)).collect();
            turn.event(match all {
                true => Event::FollowersCaughtUp { generation, workers },
                false => Event::FollowersLate { generation, workers },
            });
        }
        over
    }
}

/// Whether the newcomers of a change follow: all who take part know how, and nobody of them has notice, since a switch that waits could come
/// too late for who has.
pub(super) fn follows(shared: &Shared, plan: &Plan, next: &Plan) -> bool {
    let able = |w: &WorkerId| {
        let status = shared.roster.status(*w);
        status.is_some_and(|s| s.following != Following::Unable && !s.draining)
    };
    let joins = next.members().iter().any(|w| !plan.has(*w));
    joins && plan.members().iter().chain(next.members()).all(able)
}
