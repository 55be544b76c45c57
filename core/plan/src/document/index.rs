//! Look-up tables for the members of a plan, made once: members are looked up for every message, and a plan may name thousands.

use super::{Base, Plan, Shape, links};
use crate::deadline::StepDeadline;
use crate::ids::{Generation, Unit, WorkerId};
use crate::layout::{Layout, SegmentRange};
use crate::state::StateId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

/// Look-up tables of a plan, made when first used. A copy of a plan makes its own tables, so a copy may be changed; a plan whose tables
/// have been used must not be.
#[derive(Debug, Default)]
pub struct PlanIndex(OnceLock<Tables>);

#[derive(Debug)]
pub(crate) struct Tables {
    /// All members, ascending.
    pub(crate) members: Vec<WorkerId>,
    /// Pipeline and first stage of each member.
    places: BTreeMap<WorkerId, (usize, usize)>,
    /// Workers that send state to others, with or without a stage.
    sources: BTreeSet<WorkerId>,
    /// For each unit of the undivided layout, its group; see [`Shape::group`].
    groups: Vec<Vec<WorkerId>>,
    /// By unit: its holders, the owner of its part of the norm first.
    holders: Vec<Vec<WorkerId>>,
    /// The units that each member holds, in order.
    units: BTreeMap<WorkerId, Vec<Unit>>,
    /// The source that a worker asks first for a unit that it is missing.
    first_sources: BTreeMap<(WorkerId, Unit), WorkerId>,
    /// What each source sends to those that ask it first: the unit, and the worker.
    first_receivers: BTreeMap<WorkerId, Vec<(Unit, WorkerId)>>,
    /// Fan-out of the tree.
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
        let layout = plan.layout;
        let mut groups = vec![Vec::new(); layout.undivided().units()];
        for (i, pipeline) in plan.shape.pipelines.iter().enumerate() {
            for (j, stage) in pipeline.stages.iter().enumerate() {
                places.entry(stage.worker).or_insert((i, j));
                for whole in layout.whole_units_of(stage.segments) {
                    if let Some(group) = groups.get_mut(whole.index()) {
                        group.push(stage.worker);
                    }
                }
            }
        }
        if let Some(tied) = layout.tied_unit().filter(|_| layout.ranges > 1) {
            groups[tied.index()] = plan.shape.group(&layout, Unit(tied.0 * layout.ranges));
        }
        let mut units: BTreeMap<WorkerId, Vec<Unit>> = BTreeMap::new();
        let shared_out = |unit: Unit| -> Vec<WorkerId> {
            let group: &Vec<WorkerId> = &groups[layout.whole_of(unit).index()];
            let mut places = layout.places_of(unit, group.len());
            if bug!(OneHolderOfEachRange) && layout.ranges > 1 {
                places.truncate(1);
            }
            places.into_iter().map(|place| group[place]).collect()
        };
        let holders: Vec<Vec<WorkerId>> = layout.all_units().map(shared_out).collect();
        for (unit, holders) in layout.all_units().zip(&holders) {
            for holder in holders {
                let held = units.entry(*holder).or_default();
                // The plan is not checked yet: a worker may be named in several places.
                if held.last() != Some(&unit) {
                    held.push(unit);
                }
            }
        }
        let members: Vec<WorkerId> = places.keys().copied().collect();
        let first_sources = links::first_sources(plan, &holders);
        let mut first_receivers: BTreeMap<WorkerId, Vec<(Unit, WorkerId)>> = BTreeMap::new();
        for ((receiver, unit), source) in &first_sources {
            first_receivers
                .entry(*source)
                .or_default()
                .push((*unit, *receiver));
        }
        first_receivers.values_mut().for_each(|to| to.sort_unstable());
        Self {
            links: links::links(plan, &members, (&groups, &holders), &first_sources),
            fan_out: links::fan_out(plan),
            sources: plan.sources.iter().flatten().copied().collect(),
            members,
            places,
            groups,
            holders,
            units,
            first_sources,
            first_receivers,
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

    pub(crate) fn group(&self, whole: Unit) -> &[WorkerId] {
        self.groups.get(whole.index()).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn holders(&self, unit: Unit) -> &[WorkerId] {
        self.holders.get(unit.index()).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn first_source(&self, worker: WorkerId, unit: Unit) -> Option<WorkerId> {
        self.first_sources.get(&(worker, unit)).copied()
    }

    pub(crate) fn first_receivers(&self, source: WorkerId) -> &[(Unit, WorkerId)] {
        self.first_receivers.get(&source).map_or(&[], Vec::as_slice)
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

impl Plan {
    /// A run's first plan with this shape, starting from the job's seed, without addresses, reason or step deadline. It is for programs
    /// that run an engine without a coordinator; coordinators make their first plan from a record.
    #[must_use]
    pub fn first(layout: Layout, shape: Shape) -> Plan {
        Plan {
            generation: Generation(1),
            parent: Generation(0),
            base: Base::Fixed {
                id: StateId::INITIAL,
                decision: None,
                checkpoint: true,
            },
            layout,
            shape,
            sources: vec![Vec::new(); layout.units()],
            addresses: BTreeMap::new(),
            deadline: StepDeadline::of_ms(0),
            relay: false,
            tree_fan_out: 2,
            following: false,
            parameters_first: false,
            keepers: Vec::new(),
            evidence: Vec::new(),
            reason: String::new(),
            index: PlanIndex::default(),
        }
    }

    /// Whether the worker has a stage.
    #[must_use]
    pub fn has(&self, worker: WorkerId) -> bool {
        self.index.of(self).has(worker)
    }
    /// Whether the worker has a stage or serves state.
    #[must_use]
    pub fn involves(&self, worker: WorkerId) -> bool {
        self.index.of(self).involves(worker)
    }
    /// All members, ascending.
    #[must_use]
    pub fn members(&self) -> &[WorkerId] {
        &self.index.of(self).members
    }
    /// The first holder of a unit, which owns the unit's part of the norm. None for a unit that no stage holds.
    #[must_use]
    pub fn owner(&self, unit: Unit) -> Option<WorkerId> {
        self.index.of(self).holders(unit).first().copied()
    }
    /// The position of a worker: (pipeline index, index of its first stage).
    #[must_use]
    pub fn place(&self, worker: WorkerId) -> Option<(usize, usize)> {
        self.index.of(self).place(worker)
    }
    /// The segments of each of the worker's stages, ascending; none for a worker without a stage.
    #[must_use]
    pub fn segments_of(&self, worker: WorkerId) -> Vec<SegmentRange> {
        let Some((pipeline, _)) = self.place(worker) else {
            return Vec::new();
        };
        let stages = self.shape.pipelines[pipeline].stages.iter();
        stages
            .filter(|s| s.worker == worker)
            .map(|s| s.segments)
            .collect()
    }
    /// The units that a worker holds, in order; none for a worker without a stage.
    #[must_use]
    pub fn units(&self, worker: WorkerId) -> Vec<Unit> {
        self.index
            .of(self)
            .units
            .get(&worker)
            .cloned()
            .unwrap_or_default()
    }
    /// The units of the undivided layout that a worker computes with, in order; none for a worker without a stage.
    #[must_use]
    pub fn whole_units(&self, worker: WorkerId) -> Vec<Unit> {
        let ranges = self.segments_of(worker);
        let whole = self.layout.undivided();
        let needed = |unit: &Unit| ranges.iter().any(|r| whole.stage_needs(*r, *unit));
        whole.all_units().filter(needed).collect()
    }
    /// The workers that compute with a unit of the undivided layout, in the order of [`Shape::group`]: the ring that sums its gradient.
    #[must_use]
    pub fn group(&self, whole: Unit) -> &[WorkerId] {
        self.index.of(self).group(whole)
    }
    /// The units that a worker computes with but does not hold, in order: their owners send it the parameters in each step.
    #[must_use]
    pub fn gathered(&self, worker: WorkerId) -> Vec<Unit> {
        if self.layout.ranges == 1 {
            return Vec::new();
        }
        let units = self.whole_units(worker).into_iter();
        let units = units.flat_map(|whole| self.layout.ranges_of(whole));
        units
            .filter(|unit| self.sender_of(worker, *unit).is_some())
            .collect()
    }
    /// The worker that sends this one the parameters of a unit in each step. None if this worker holds them itself, or does not compute
    /// with them.
    #[must_use]
    pub fn sender_of(&self, worker: WorkerId, unit: Unit) -> Option<WorkerId> {
        let (run, places) = self.run_of(worker, unit)?;
        let is_held = places.iter().any(|place| run[*place] == worker);
        (!is_held).then(|| run[places[0]])
    }
    /// The workers to which this one sends its parameters of a unit in each step, in the order of [`Shape::group`].
    #[must_use]
    pub fn receivers_of(&self, worker: WorkerId, unit: Unit) -> Vec<WorkerId> {
        let Some((run, places)) = self.run_of(worker, unit) else {
            return Vec::new();
        };
        if bug!(KeepParametersToOneself) || places.first().map(|place| run[*place]) != Some(worker) {
            return Vec::new();
        }
        let others = run
            .iter()
            .enumerate()
            .filter(|(place, _)| !places.contains(place));
        others.map(|(_, worker)| *worker).collect()
    }
    /// The sequence of workers that share out a unit among them and that includes this worker, and the positions of the unit's holders in
    /// it.
    fn run_of(&self, worker: WorkerId, unit: Unit) -> Option<(&[WorkerId], Vec<usize>)> {
        let group = self.group(self.layout.whole_of(unit));
        let place = group.iter().position(|w| *w == worker)?;
        let run = self.layout.runs(group.len()).find(|run| run.contains(&place))?;
        let places = self.layout.places_in(unit, run.len());
        Some((&group[run], places))
    }
    /// The holders of a unit. The first owns its part of the norm.
    #[must_use]
    pub fn holders(&self, unit: Unit) -> &[WorkerId] {
        self.index.of(self).holders(unit)
    }
    /// The member that keeps a spare copy of the unit.
    #[must_use]
    pub fn keeper(&self, unit: Unit) -> Option<WorkerId> {
        self.keepers.get(unit.index()).copied().flatten()
    }
    /// The units whose spare copy this worker keeps, in order, each with its holder.
    #[must_use]
    pub fn kept_by(&self, worker: WorkerId) -> Vec<(Unit, WorkerId)> {
        let units = self.layout.all_units().zip(&self.keepers);
        let mine = units.filter(|(_, keeper)| **keeper == Some(worker));
        mine.filter_map(|(unit, _)| Some((unit, self.owner(unit)?)))
            .collect()
    }
    /// The workers with which this one exchanges norms, tensors or state in normal operation, ascending.
    #[must_use]
    pub fn links(&self, worker: WorkerId) -> &[WorkerId] {
        self.index.of(self).links(worker)
    }
    /// The member above this one in the tree along which a step's norms are gathered; none for its root.
    #[must_use]
    pub fn tree_parent(&self, worker: WorkerId) -> Option<WorkerId> {
        self.index.of(self).parent(worker)
    }
    /// The members below this one in the tree along which a step's norms are gathered.
    #[must_use]
    pub fn tree_children(&self, worker: WorkerId) -> &[WorkerId] {
        self.index.of(self).children(worker)
    }
    /// The source that this worker asks first for a unit that the plan gives it and that it lacks at the base.
    pub(super) fn first_source(&self, worker: WorkerId, unit: Unit) -> Option<WorkerId> {
        self.index.of(self).first_source(worker, unit)
    }
    /// The other workers that can send this worker the unit, beginning with the one that it asks first.
    #[must_use]
    pub fn sources_for(&self, worker: WorkerId, unit: Unit) -> Vec<WorkerId> {
        let listed = self.sources.get(unit.index()).map_or(&[][..], Vec::as_slice);
        let mut sources: Vec<WorkerId> = listed.iter().copied().filter(|w| *w != worker).collect();
        let first = self.first_source(worker, unit);
        let first = sources.iter().position(|w| Some(*w) == first);
        sources.rotate_left(first.unwrap_or(0));
        sources
    }
}
