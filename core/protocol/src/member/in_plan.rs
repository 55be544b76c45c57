//! The plan in force on a worker, and the planned change that is prepared meanwhile.

use super::connections::Connections;
use super::followed::{Followed, Followers};
use super::holdings::Holdings;
use super::kept::Kept;
use super::norm_exchange::NormExchange;
use super::serving::Serving;
use super::transfers::Transfers;
use crate::message::{Phase, Time};
use std::sync::Arc;
use varuna_plan::deadline::RecentSteps;
use varuna_plan::{Generation, Plan, StateId, Unit, WorkerId};

/// How far a worker has come in its plan.
pub(super) enum Stage {
    /// The worker sends state to others and has no stage.
    Source,
    /// The worker connects, rolls forward and fetches state.
    Loading(Transfers),
    /// The worker is at the base and connected to all peers; it waits for Go.
    Ready,
    Running,
}

/// How far the first step has come that began before Go.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum FirstStep {
    /// It has not begun before Go.
    #[default]
    NotBegun,
    /// The engine runs it; or it has run it, and Go has come.
    Begun,
    /// The engine has run it, and Go has not come.
    Prepared { store_busy: bool },
}

impl FirstStep {
    pub(super) fn has_begun(&self) -> bool {
        !matches!(self, FirstStep::NotBegun)
    }
}

/// The plan in force on this worker, and everything that belongs only to this plan.
pub(super) struct InPlan {
    pub(super) plan: Arc<Plan>,
    pub(super) stage: Stage,
    /// The state that the plan begins with; a joiner of a switch learns it from its first source.
    pub(super) base: Option<StateId>,
    pub(super) connections: Connections,
    /// How far the first step has come, if it began before Go.
    pub(super) first_step: FirstStep,
    /// State that peers asked for.
    pub(super) serving: Serving,
    /// Peers that followed this worker to the switch.
    pub(super) followers: Followers,
    /// The units that this worker follows, or followed to the switch.
    pub(super) followed: Followed,
    /// The keepers to which this worker sends spare copies of units that only it holds.
    pub(super) keepers: Followers,
    /// The units whose spare copy it keeps.
    pub(super) kept: Kept,
    pub(super) norms: NormExchange,
    /// The times of its last steps.
    pub(super) recent: RecentSteps,
    /// When there last was some progress.
    pub(super) progress_at: Time,
    /// When the running step began. Work beside it, such as making copies for keepers and followers, says nothing about how long the step
    /// takes.
    pub(super) step_began_at: Time,
    /// The generation that a planned change left; its connections stay open until Go.
    pub(super) left: Option<Generation>,
}

impl InPlan {
    /// A plan that is being entered.
    pub(super) fn enter(
        now: Time,
        me: WorkerId,
        plan: Arc<Plan>,
        base: Option<StateId>,
        connections: Connections,
    ) -> Self {
        let stage = if plan.has(me) {
            Stage::Loading(Transfers::default())
        } else {
            Stage::Source
        };
        Self {
            plan,
            stage,
            base,
            connections,
            first_step: FirstStep::default(),
            serving: Serving::default(),
            followers: Followers::default(),
            followed: Followed::default(),
            keepers: Followers::default(),
            kept: Kept::default(),
            norms: NormExchange::default(),
            recent: RecentSteps::default(),
            progress_at: now,
            step_began_at: now,
            left: None,
        }
    }

    pub(super) fn generation(&self) -> Generation {
        self.plan.generation
    }

    /// Whether this member has a stage that does not train yet.
    pub(super) fn waits_for_go(&self) -> bool {
        matches!(self.stage, Stage::Loading(_) | Stage::Ready)
    }

    /// Whether the first step begins before Go and has not been run here. Until then parameters travel before state does, also while this
    /// member waits to begin.
    pub(super) fn awaits_parameters(&self) -> bool {
        let has_run = matches!(self.first_step, FirstStep::Prepared { .. });
        self.begins_with_parameters().is_some() && !has_run && self.waits_for_go()
    }

    /// The state from which the first step begins before Go; none if it does not.
    pub(super) fn begins_with_parameters(&self) -> Option<StateId> {
        self.base.filter(|base| self.plan.sends_parameters_in(base.step))
    }

    pub(super) fn phase(&self) -> Phase {
        match self.stage {
            Stage::Source => Phase::Source,
            Stage::Loading(_) => Phase::Loading,
            Stage::Ready => Phase::Ready,
            Stage::Running => Phase::Running,
        }
    }

    /// Whether this is the plan of a newcomer, which follows the units that it will need.
    pub(super) fn follows(&self) -> bool {
        self.takes_gradients() && self.left.is_none()
    }

    /// Whether the state that it loads may arrive as gradients. This is so also after the switch, since those of the step that switched may
    /// still be on their way.
    pub(super) fn takes_gradients(&self) -> bool {
        self.plan.following && matches!(self.stage, Stage::Loading(_))
    }

    /// Transfers of state, while it loads.
    pub(super) fn transfers(&mut self) -> Option<&mut Transfers> {
        match &mut self.stage {
            Stage::Loading(transfers) => Some(transfers),
            _ => None,
        }
    }

    pub(super) fn is_connected(&self, me: WorkerId) -> bool {
        self.unmet(me).is_none()
    }

    /// The worker that this one waits for while it loads: a member that is not connected, or the source of the first missing unit.
    pub(super) fn awaited_peer(&self, me: WorkerId, holdings: &Holdings) -> Option<WorkerId> {
        if let Some(unmet) = self.unmet(me) {
            return Some(unmet);
        }
        let unit = self.lacking(me, holdings).first().copied()?;
        let asked = match &self.stage {
            Stage::Loading(transfers) => transfers.asked_peer(unit),
            _ => None,
        };
        asked.or_else(|| self.plan.sources_for(me, unit).first().copied())
    }

    /// Whether everything that is missing was requested from the store, and no peer is waited for.
    pub(super) fn waits_only_for_store(&self, me: WorkerId, holdings: &Holdings) -> bool {
        let Stage::Loading(transfers) = &self.stage else {
            return false;
        };
        let from_store = |u: &Unit| transfers.asked_store(*u) && transfers.asked_peer(*u).is_none();
        let lacking = self.lacking(me, holdings);
        self.unmet(me).is_none() && !lacking.is_empty() && lacking.iter().all(from_store)
    }

    /// A peer that the plan links this worker to and that is not connected.
    pub(super) fn unmet(&self, me: WorkerId) -> Option<WorkerId> {
        self.connections.missing(me, &self.plan)
    }

    /// The units of this worker that are not at the base.
    pub(super) fn lacking(&self, me: WorkerId, holdings: &Holdings) -> Vec<Unit> {
        let mut units = self.plan.units(me);
        let followed = |u: Unit| bug!(ReadyBeforeBase) && self.follows() && holdings.units.contains_key(&u);
        units.retain(|u| !holdings.is_at(*u, self.base) && !followed(*u));
        units
    }
}

/// A planned change that is being prepared.
pub(super) struct PlannedChange {
    pub(super) plan: Arc<Plan>,
    pub(super) connections: Connections,
    pub(super) serving: Serving,
    /// Workers that follow units which this one holds.
    pub(super) followers: Followers,
    /// The units that this worker gains, which it does not have in the present plan.
    pub(super) gained: Vec<Unit>,
    /// Which of them it follows, and whom it asked.
    pub(super) followed: Followed,
    pub(super) asked: Transfers,
    /// Whether its number goes into the norm exchange.
    pub(super) armed: bool,
    /// Since when peers are being connected. None once all were connected, or a suspicion was reported.
    pub(super) suspect_at: Option<Time>,
}

impl PlannedChange {
    /// A change from the `present` plan of this worker.
    pub(super) fn to(
        now: Time,
        me: WorkerId,
        present: Option<&Plan>,
        plan: Arc<Plan>,
        connections: Connections,
    ) -> Self {
        let here = present.map(|p| p.units(me)).unwrap_or_default();
        let mut gained = plan.units(me);
        gained.retain(|unit| !here.contains(unit));
        Self {
            plan,
            connections,
            serving: Serving::default(),
            followers: Followers::default(),
            gained,
            followed: Followed::default(),
            asked: Transfers::default(),
            armed: false,
            suspect_at: Some(now),
        }
    }

    pub(super) fn is_connected(&self, me: WorkerId) -> bool {
        self.unmet(me).is_none()
    }

    /// The followed units from this peer have to be requested again: the peer is gone, or what it sent was damaged.
    pub(super) fn lose_followed(&mut self, from: WorkerId) {
        for unit in &self.gained {
            if self.asked.asked_peer(*unit) == Some(from) {
                self.followed.lose(*unit);
            }
        }
    }

    /// A peer of the next plan that is not connected.
    pub(super) fn unmet(&self, me: WorkerId) -> Option<WorkerId> {
        self.connections.missing(me, &self.plan)
    }
}
