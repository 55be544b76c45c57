//! Who takes part in a plan, looked up once: members are asked for with every message, and a plan may name thousands.

use super::{Plan, links};
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
    /// By unit, in pipeline order, then stage order.
    holders: Vec<Vec<WorkerId>>,
    /// The source that a worker asks first for a unit that it lacks.
    first_sources: BTreeMap<(WorkerId, Unit), WorkerId>,
    /// Of the tree.
    fan_out: usize,
    /// The peers of each worker.
    links: BTreeMap<WorkerId, Vec<WorkerId>>,
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
        let mut places = BTreeMap::new();
        let mut holders = vec![Vec::new(); plan.layout.units()];
        for (i, pipeline) in plan.shape.pipelines.iter().enumerate() {
            for (j, stage) in pipeline.stages.iter().enumerate() {
                places.entry(stage.worker).or_insert((i, j));
                for unit in plan.layout.units_of(stage.segments) {
                    if let Some(holders) = holders.get_mut(unit.index()) {
                        holders.push(stage.worker);
                    }
                }
            }
        }
        let members: Vec<WorkerId> = places.keys().copied().collect();
        let first_sources = links::first_sources(plan, &holders);
        Self {
            links: links::links(plan, &members, &holders, &first_sources),
            fan_out: links::fan_out(plan),
            sources: plan.sources.iter().flatten().copied().collect(),
            members,
            places,
            holders,
            first_sources,
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

    pub(crate) fn holders(&self, unit: Unit) -> &[WorkerId] {
        self.holders.get(unit.index()).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn first_source(&self, worker: WorkerId, unit: Unit) -> Option<WorkerId> {
        self.first_sources.get(&(worker, unit)).copied()
    }

    pub(crate) fn links(&self, worker: WorkerId) -> &[WorkerId] {
        self.links.get(&worker).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn parent(&self, worker: WorkerId) -> Option<WorkerId> {
        let place = self.members.binary_search(&worker).ok()?;
        links::parent(&self.members, place, self.fan_out)
    }

    pub(crate) fn children(&self, worker: WorkerId) -> &[WorkerId] {
        let place = self.members.binary_search(&worker);
        place.map_or(&[], |place| links::children(&self.members, place, self.fan_out))
    }
}
