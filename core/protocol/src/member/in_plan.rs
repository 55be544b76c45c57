//! The plan in force on a worker, and the planned change that is being prepared meanwhile.

use super::holdings::Holdings;
use super::norm_exchange::NormExchange;
use super::serving::Serving;
use super::transfers::Transfers;
use crate::message::{Phase, Time};
use std::collections::BTreeSet;
use std::sync::Arc;
use varuna_plan::deadline::RecentSteps;
use varuna_plan::{Generation, Plan, StateId, Unit, WorkerId};

/// How far a worker is in its plan.
pub(super) enum Stage {
    /// It serves state, has no stage.
    Source,
    /// It connects, rolls forward, fetches.
    Loading(Transfers),
    /// At the base with all peers connected; waits for Go.
    Ready,
    Running,
}

/// The plan in force here, and all that belongs to it alone.
pub(super) struct InPlan {
    pub(super) plan: Arc<Plan>,
    pub(super) stage: Stage,
    /// The state that the plan begins with; a joiner of a switch learns it from its first source.
    pub(super) base: Option<StateId>,
    /// Workers that accepted this worker's connection.
    pub(super) peers: BTreeSet<WorkerId>,
    /// State for peers.
    pub(super) serving: Serving,
    pub(super) norms: NormExchange,
    /// What its last steps took.
    pub(super) recent: RecentSteps,
    /// When something last moved.
    pub(super) progress_at: Time,
    /// The generation that a planned change left; its connections stay open until Go.
    pub(super) left: Option<Generation>,
}

impl InPlan {
    /// A plan that is being entered.
    pub(super) fn enter(now: Time, me: WorkerId, plan: Arc<Plan>, base: Option<StateId>) -> Self {
        let place = plan.members().iter().position(|w| *w == me);
        let stage = if plan.has(me) {
            // targets of the same unit begin with different sources
            Stage::Loading(Transfers::beginning_with(place.unwrap_or(0)))
        } else {
            Stage::Source
        };
        Self {
            plan,
            stage,
            base,
            peers: BTreeSet::new(),
            serving: Serving::default(),
            norms: NormExchange::default(),
            recent: RecentSteps::default(),
            progress_at: now,
            left: None,
        }
    }

    pub(super) fn generation(&self) -> Generation {
        self.plan.generation
    }

    pub(super) fn phase(&self) -> Phase {
        match self.stage {
            Stage::Source => Phase::Source,
            Stage::Loading(_) => Phase::Loading,
            Stage::Ready => Phase::Ready,
            Stage::Running => Phase::Running,
        }
    }

    /// Transfers of state, while it loads.
    pub(super) fn transfers(&mut self) -> Option<&mut Transfers> {
        match &mut self.stage {
            Stage::Loading(transfers) => Some(transfers),
            _ => None,
        }
    }

    pub(super) fn is_connected(&self, me: WorkerId) -> bool {
        all_connected(me, &self.plan, &self.peers)
    }

    /// Who this worker waits for while it loads: a member that is not connected, or the source of the first unit that is lacking.
    pub(super) fn hanging_on(&self, me: WorkerId, holdings: &Holdings) -> Option<WorkerId> {
        if let Some(unmet) = self.unmet(me) {
            return Some(unmet);
        }
        let unit = self.lacking(me, holdings).first().copied()?;
        let asked = match &self.stage {
            Stage::Loading(transfers) => transfers.asked_peer(unit),
            _ => None,
        };
        asked.or_else(|| sources(me, &self.plan, unit).first().copied())
    }

    /// A member of the plan that is not connected.
    pub(super) fn unmet(&self, me: WorkerId) -> Option<WorkerId> {
        unmet(me, &self.plan, &self.peers)
    }

    /// The units of this worker that are not at the base.
    pub(super) fn lacking(&self, me: WorkerId, holdings: &Holdings) -> Vec<Unit> {
        let mut units = self.plan.units(me);
        units.retain(|u| !holdings.is_at(*u, self.base));
        units
    }
}

/// A planned change that is being prepared.
pub(super) struct PlannedChange {
    pub(super) plan: Arc<Plan>,
    pub(super) peers: BTreeSet<WorkerId>,
    pub(super) serving: Serving,
    /// Its number goes into the norm exchange.
    pub(super) armed: bool,
    /// Since when peers are being connected; none once all were, or somebody was suspected.
    pub(super) suspect_at: Option<Time>,
}

impl PlannedChange {
    pub(super) fn to(now: Time, plan: Arc<Plan>) -> Self {
        Self {
            plan,
            peers: BTreeSet::new(),
            serving: Serving::default(),
            armed: false,
            suspect_at: Some(now),
        }
    }

    pub(super) fn is_connected(&self, me: WorkerId) -> bool {
        all_connected(me, &self.plan, &self.peers)
    }

    /// A member of it that is not connected.
    pub(super) fn unmet(&self, me: WorkerId) -> Option<WorkerId> {
        unmet(me, &self.plan, &self.peers)
    }
}

/// All members of the plan are connected.
fn all_connected(me: WorkerId, plan: &Plan, peers: &BTreeSet<WorkerId>) -> bool {
    unmet(me, plan, peers).is_none()
}

/// A member of the plan that is not connected to this one.
fn unmet(me: WorkerId, plan: &Plan, peers: &BTreeSet<WorkerId>) -> Option<WorkerId> {
    let unmet = |w: &WorkerId| *w != me && !peers.contains(w);
    let mut members = plan.members().iter().copied();
    members.find(unmet).filter(|_| plan.has(me))
}

/// Who else can give the unit, best first.
pub(super) fn sources(me: WorkerId, plan: &Plan, unit: Unit) -> Vec<WorkerId> {
    let listed = plan.sources.get(unit.index()).map_or(&[][..], Vec::as_slice);
    listed.iter().copied().filter(|w| *w != me).collect()
}
