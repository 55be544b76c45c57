//! The modelled engine: tensors are hashes, and a step is one forward, one backward and a reduction around the ring of the workers that
//! compute with each unit. If they share its ranges out, each worker begins the step by sending what it owns to the workers that do not
//! hold it.
//!
//! All values carry information (generation, samples) that only the checker reads.

mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
pub(crate) use values::{Contribution, Held, SCALING, UnitState, applied_bits, initial_bits};
use values::{NOT_HELD, norm};
use varuna_plan::state::{UnitNorm, mix};
use varuna_plan::{Decision, Generation, OptimizerProgress, Plan, StateId, Step, Unit, WorkerId};

/// The step under way.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) plan: Arc<Plan>,
    pub(crate) step: Step,
    /// Whether the parameters that others do not hold are on their way to them.
    parameters_sent: bool,
    /// Parameters of the state with which the step began, for workers that lack it.
    lacked: Vec<(WorkerId, Unit, Held)>,
    forwarded: Option<u64>,
    backwarded: bool,
    /// Contributions that were passed on to the next worker of the ring: the unit, and the worker that made the contribution.
    passed_on: BTreeSet<(Unit, WorkerId)>,
    /// Whether Prepared was reported or the step failed: nothing more happens.
    pub(crate) over: bool,
}

/// A step's reduced gradients, and what went into them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reduced {
    pub(crate) units: BTreeMap<Unit, (u64, Vec<Contribution>)>,
    /// For the checker: the generation that ran it, and whether a contribution of another generation went in.
    pub(crate) generation: Generation,
    pub(crate) foreign: bool,
    /// For the checker: whether parameters of several states were computed with.
    pub(crate) mixed: bool,
    /// What the optimizer had counted before.
    before: Option<OptimizerProgress>,
    /// The plan and the step.
    of: Option<(Arc<Plan>, Step)>,
}

type Mail<K> = BTreeMap<(Generation, K), u64>;

/// Identifies a gradient: the unit, the generation that ran the step, and the step that was run.
pub(crate) type GradientOf = (Unit, Generation, Step);

/// The engine of one worker.
#[derive(Default)]
pub(crate) struct Engine {
    pub(crate) held: BTreeMap<Unit, Held>,
    pub(crate) staged: BTreeMap<(Unit, StateId), UnitState>,
    /// Gradients that were forwarded to it.
    pub(crate) gradients: BTreeMap<GradientOf, u64>,
    /// A gradient that has just arrived for a spare copy. It is kept if the member says so at once.
    pub(crate) arrived: Option<(GradientOf, u64)>,
    pub(crate) job: Option<Job>,
    pub(crate) reduced: Reduced,
    pub(crate) applying: Option<(Decision, Vec<Unit>)>,
    /// Takes tensors of any generation (a seeded bug).
    pub(crate) any_generation: bool,
    forwards: Mail<Step>,
    backwards: Mail<Step>,
    parameters: BTreeMap<(Generation, Step, Unit), Held>,
    parts: BTreeMap<(Generation, Step, Unit, WorkerId), Contribution>,
}

/// What a running engine sends, or reports.
pub(crate) enum Output {
    Forward(WorkerId, Step, u64),
    Backward(WorkerId, Step, u64),
    /// Parameters of a unit, to a worker that computes with it and does not hold it.
    Parameters(WorkerId, Step, Unit, Held),
    /// Some worker's contribution, to the next worker of the unit's ring.
    Reduce(WorkerId, Step, Unit, WorkerId, Contribution),
    Prepared(Vec<(Unit, UnitNorm)>),
}

impl Engine {
    pub(crate) fn forward(&mut self, generation: Generation, step: Step, bits: u64) {
        self.forwards.insert((generation, step), bits);
    }
    pub(crate) fn backward(&mut self, generation: Generation, step: Step, bits: u64) {
        self.backwards.insert((generation, step), bits);
    }
    pub(crate) fn parameters(&mut self, generation: Generation, step: Step, unit: Unit, held: Held) {
        self.parameters.insert((generation, step, unit), held);
    }
    pub(crate) fn part(
        &mut self,
        generation: Generation,
        step: Step,
        unit: Unit,
        of: WorkerId,
        part: Contribution,
    ) {
        self.parts.insert((generation, step, unit, of), part);
    }
    pub(crate) fn close(&mut self, generation: Generation) {
        if !self.any_generation {
            self.forwards.retain(|(g, _), _| *g != generation);
            self.backwards.retain(|(g, _), _| *g != generation);
            self.parameters.retain(|(g, _, _), _| *g != generation);
            self.parts.retain(|(g, _, _, _), _| *g != generation);
        }
    }

    pub(crate) fn start(&mut self, me: WorkerId, plan: Arc<Plan>, step: Step) {
        let generation = plan.generation;
        self.reduced = Reduced {
            generation,
            of: Some((plan.clone(), step)),
            ..Reduced::default()
        };
        let sent = plan.parameters_sent_by(me, step).iter();
        let lacked = sent.filter_map(|(unit, to)| Some((*to, *unit, *self.held.get(unit)?)));
        self.job = Some(Job {
            lacked: lacked.collect(),
            plan,
            step,
            parameters_sent: false,
            forwarded: None,
            backwarded: false,
            passed_on: BTreeSet::new(),
            over: false,
        });
    }

    /// The units that are completely reduced.
    pub(crate) fn prepared(&self, last: Unit, overflow_percent: u64) -> Vec<(Unit, UnitNorm)> {
        let part = |(unit, (bits, _)): (&Unit, &(u64, _))| {
            let before = self.reduced.before.unwrap_or(OptimizerProgress::START);
            (*unit, norm(*bits, *unit == last, overflow_percent, before))
        };
        self.reduced.units.iter().map(part).collect()
    }

    fn take(&mut self, forward: bool, generation: Generation, step: Step) -> Option<u64> {
        let any = self.any_generation;
        let mail = if forward {
            &mut self.forwards
        } else {
            &mut self.backwards
        };
        let fits = |(g, s): &(Generation, Step)| *s == step && (*g == generation || any);
        // such an engine takes the first tensor, which is of the older generation
        let key = mail.keys().copied().find(fits)?;
        let bits = mail.remove(&key)?;
        self.reduced.foreign |= key.0 != generation;
        Some(bits)
    }

    /// Continues as far as the received messages allow.
    pub(crate) fn pump(&mut self, me: WorkerId, overflow_percent: u64, outputs: &mut Vec<Output>) {
        let Some(mut job) = self.job.take() else { return };
        if !job.over {
            self.advance(me, &mut job, overflow_percent, outputs);
        }
        self.job = Some(job);
    }

    fn advance(&mut self, me: WorkerId, job: &mut Job, overflow_percent: u64, outputs: &mut Vec<Output>) {
        let plan = job.plan.clone();
        let Some((i, j)) = plan.place(me) else {
            return;
        };
        let pipeline = &plan.shape.pipelines[i];
        let (g, step) = (plan.generation, job.step);
        let samples = (pipeline.samples.start, pipeline.samples.end);
        // Workers with several stages run all of them in their first stage's turn.
        let round = plan.shape.schedule.kind.workers(pipeline.stages.len());
        let next = pipeline.stages[..round].get(j + 1).map(|s| s.worker);
        let units = plan.units(me);
        if !job.parameters_sent {
            job.parameters_sent = true;
            self.send_parameters(me, &plan, step, outputs);
            let lacked = std::mem::take(&mut job.lacked).into_iter();
            outputs.extend(lacked.map(|(to, unit, held)| Output::Parameters(to, step, unit, held)));
        }
        if job.forwarded.is_none() {
            let Some(weights) = self.weights(me, &plan, step) else {
                return;
            };
            let start = mix(step.0, mix(samples.0, samples.1));
            let input = if j == 0 {
                Some(start)
            } else {
                self.take(true, g, step)
            };
            let Some(input) = input else { return };
            self.reduced.before = weights.values().next().map(|held| held.state.progress);
            self.reduced.mixed |= weights.values().any(|a| weights.values().any(|b| a.id != b.id));
            let bits = weights.values().fold(input, |h, held| mix(h, held.state.bits));
            job.forwarded = Some(bits);
            outputs.extend(next.map(|to| Output::Forward(to, step, bits)));
        }
        if !job.backwarded {
            let input = if next.is_none() {
                job.forwarded
            } else {
                self.take(false, g, step)
            };
            let Some(bits) = input else { return };
            job.backwarded = true;
            if j > 0 {
                outputs.push(Output::Backward(pipeline.stages[j - 1].worker, step, bits));
            }
            self.contribute(me, &plan, step, bits, samples);
        }
        self.pass_on(me, job, outputs);
        // A worker passes on all contributions of the units that it computes with, whichever workers hold the sum.
        let is_passed_on = |unit: Unit| self.contributions(&plan, step, unit).is_some();
        let needed = plan.whole_units(me).into_iter();
        let mut needed = needed.flat_map(|whole| plan.layout.ranges_of(whole));
        let all_passed_on = needed.all(is_passed_on);
        self.reduce(&plan, step, &units);
        if all_passed_on && units.iter().all(|u| self.reduced.units.contains_key(u)) {
            job.over = true;
            self.parts.retain(|(of, s, _, _), _| *of != g || *s > step);
            self.parameters.retain(|(of, s, _), _| *of != g || *s > step);
            let last = plan.layout.ranges_of(Unit(plan.layout.segments - 1));
            let last = last.last().unwrap_or(Unit(0));
            outputs.push(Output::Prepared(self.prepared(last, overflow_percent)));
        }
    }

    /// Sends the parameters that this worker owns to the workers that compute with them and do not hold them.
    fn send_parameters(&self, me: WorkerId, plan: &Plan, step: Step, outputs: &mut Vec<Output>) {
        for unit in plan.units(me) {
            let Some(held) = self.held.get(&unit) else {
                continue;
            };
            let send = |to| Output::Parameters(to, step, unit, *held);
            outputs.extend(plan.receivers_of(me, unit).into_iter().map(send));
        }
    }

    /// The parameters of all units that this worker computes with, once those that it does not hold have arrived.
    fn weights(&self, me: WorkerId, plan: &Plan, step: Step) -> Option<BTreeMap<Unit, Held>> {
        let gathered = plan.gathered(me);
        let is_sent =
            |unit: Unit| gathered.contains(&unit) || plan.parameters_sender(me, unit, step).is_some();
        let of = |unit: Unit| {
            if !is_sent(unit) {
                let held = self.held.get(&unit).copied();
                return Some((unit, held.unwrap_or(NOT_HELD)));
            }
            let fits = |((g, s, u), _): &(&(Generation, Step, Unit), &Held)| {
                (*s, *u) == (step, unit) && (*g == plan.generation || self.any_generation)
            };
            let found = self.parameters.iter().find(fits);
            found.map(|(_, held)| (unit, *held))
        };
        let needed = plan.whole_units(me).into_iter();
        needed
            .flat_map(|whole| plan.layout.ranges_of(whole))
            .map(of)
            .collect()
    }

    fn contribute(&mut self, me: WorkerId, plan: &Plan, step: Step, bits: u64, samples: (u64, u64)) {
        let ranges = plan.segments_of(me);
        let first = ranges.iter().any(|r| r.start == 0);
        let last = ranges.iter().any(|r| r.end == plan.layout.segments);
        for (unit, held) in self.weights(me, plan, step).unwrap_or_default() {
            let tied = Some(plan.layout.whole_of(unit)) == plan.layout.tied_unit();
            let ends = u8::from(first) | (u8::from(last) << 1);
            let part = Contribution {
                run_gen: plan.generation,
                samples,
                roles: if tied { ends } else { 1 },
                bits: mix(mix(bits, u64::from(unit.0)), held.state.bits),
            };
            self.parts.insert((plan.generation, step, unit, me), part);
        }
    }

    /// Each contribution travels along the ring, from holder to holder, until all have it.
    fn pass_on(&self, me: WorkerId, job: &mut Job, outputs: &mut Vec<Output>) {
        for ((generation, step, unit, of), part) in &self.parts {
            let ring = job.plan.group(job.plan.layout.whole_of(*unit));
            let fits = *step == job.step && (*generation == job.plan.generation || self.any_generation);
            let Some(place) = ring.iter().position(|w| *w == me).filter(|_| fits) else {
                continue;
            };
            let next = ring[(place + 1) % ring.len()];
            if next != *of && job.passed_on.insert((*unit, *of)) {
                outputs.push(Output::Reduce(next, *step, *unit, *of, *part));
            }
        }
    }

    /// The contributions of all workers of a unit's ring, in its order; none before all have arrived.
    fn contributions(&self, plan: &Plan, step: Step, unit: Unit) -> Option<Vec<Contribution>> {
        let here = |w: &WorkerId| {
            let fits = |((g, s, u, of), _): &(&(Generation, Step, Unit, WorkerId), &Contribution)| {
                *s == step && *u == unit && of == w && (*g == plan.generation || self.any_generation)
            };
            self.parts.iter().find(fits).map(|(_, part)| *part)
        };
        let group = plan.group(plan.layout.whole_of(unit)).iter();
        group.map(here).collect()
    }

    fn reduce(&mut self, plan: &Plan, step: Step, units: &[Unit]) {
        for unit in units {
            if self.reduced.units.contains_key(unit) {
                continue;
            }
            if let Some(parts) = self.contributions(plan, step, *unit) {
                let sum = parts.iter().fold(0u64, |s, c| s.wrapping_add(c.bits));
                self.reduced.units.insert(*unit, (sum, parts));
            }
        }
    }

    /// A unit's state has come. The gradient of a step that was computed with another worker's parameters of that state stays.
    pub(crate) fn adopt(&mut self, me: WorkerId, unit: Unit, id: StateId, state: UnitState) {
        self.held.insert(unit, Held { id, state });
        self.gradients
            .retain(|(u, _, step), _| *u != unit || *step >= id.step);
        let of_this_state = |(plan, step): &(Arc<Plan>, Step)| {
            *step == id.step && plan.parameters_sender(me, unit, *step).is_some()
        };
        if !self.reduced.of.as_ref().is_some_and(of_this_state) {
            self.reduced.units.remove(&unit);
        }
    }

    /// A fence that interrupts the optimizer leaves torn state (a seeded bug).
    pub(crate) fn corrupt_state(&mut self) {
        if self.applying.take().is_some() {
            for held in self.held.values_mut() {
                held.state.bits = mix(held.state.bits, 0xBAD);
            }
        }
    }

    /// The optimizer's step, all units at once.
    pub(crate) fn apply(&mut self, decision: &Decision, units: &[Unit]) {
        for unit in units {
            let reduced = self.reduced.units.get(unit).map_or(0, |(bits, _)| *bits);
            self.apply_to(*unit, reduced, decision);
        }
    }

    fn apply_to(&mut self, unit: Unit, reduced: u64, decision: &Decision) {
        if let Some(held) = self.held.get_mut(&unit) {
            *held = Held {
                id: decision.id,
                state: UnitState {
                    bits: applied_bits(held.state.bits, reduced, decision),
                    progress: held.state.progress.after(decision.overflow, &SCALING),
                },
            };
        }
    }

    /// The gradient of the step under way, to be forwarded. Once the optimizer has begun, the gradient is scaled.
    pub(crate) fn gradient(&self, unit: Unit) -> Option<u64> {
        let (bits, _) = self.reduced.units.get(&unit)?;
        let scaled = self.applying.is_some();
        Some(if scaled { mix(*bits, 0x5CA1E) } else { *bits })
    }

    /// Applies the optimizer with a forwarded gradient. Returns whether there was one.
    pub(crate) fn apply_forwarded(&mut self, unit: Unit, decision: &Decision) -> bool {
        let of = (unit, decision.id.run_gen, decision.parent.step);
        let gradient = self.gradients.remove(&of);
        if let Some(reduced) = gradient {
            self.apply_to(unit, reduced, decision);
        }
        gradient.is_some()
    }
}
