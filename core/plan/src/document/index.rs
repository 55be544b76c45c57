//! Who takes part in a plan, looked up once: members are asked for with every message, and a plan may name thousands.

use super::Plan;
use crate::ids::{Unit, WorkerId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

/// Look-up tables of a plan, made when first used. A copy of a plan makes its own, so that a copy can be changed; a plan whose
/// tables were used must not be.
#[derive(Debug, Default)]
pub struct PlanIndex(OnceLock<Tables>);

#[derive(Debug)]
pub(crate) struct Tables {
    /// Ascending.
    pub(crate) members: Vec<WorkerId>,
    /// Pipeline and first stage of each member.
    places: BTreeMap<WorkerId, (usize, usize)>,
    /// Workers that serve state, with a stage or without.
    sources: BTreeSet<WorkerId>,
    /// The first holder of each unit.
    owners: BTreeMap<Unit, WorkerId>,
}

impl Clone for PlanIndex {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// The tables follow from the rest of the plan.
impl PartialEq for PlanIndex {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl PlanIndex {
    pub(crate) fn of(&self, plan: &Plan) -> &Tables {
        self.0.get_or_init(|| Tables::of(plan))
    }
}

impl Tables {
    fn of(plan: &Plan) -> Self {
        let mut owners = BTreeMap::new();
        let mut places = BTreeMap::new();
        for (i, pipeline) in plan.shape.pipelines.iter().enumerate() {
            for (j, stage) in pipeline.stages.iter().enumerate() {
                places.entry(stage.worker).or_insert((i, j));
            }
        }
        for stage in plan.shape.pipelines.iter().flat_map(|p| &p.stages) {
            let holds = |unit: &Unit| plan.layout.stage_holds(stage.segments, *unit);
            if owners.len() == plan.layout.units() {
                break;
            }
            for unit in plan.layout.all_units().filter(holds) {
                owners.entry(unit).or_insert(stage.worker);
            }
        }
        Self {
            members: places.keys().copied().collect(),
            places,
            sources: plan.sources.iter().flatten().copied().collect(),
            owners,
        }
    }

    pub(crate) fn has(&self, worker: WorkerId) -> bool {
        self.places.contains_key(&worker)
    }

    pub(crate) fn place(&self, worker: WorkerId) -> Option<(usize, usize)> {
        self.places.get(&worker).copied()
    }

    pub(crate) fn involves(&self, worker: WorkerId) -> bool {
        self.has(worker) || self.sources.contains(&worker)
    }

    pub(crate) fn owner(&self, unit: Unit) -> Option<WorkerId> {
        self.owners.get(&unit).copied()
    }
}
