//! The modelled engine: tensors are hashes, a step is one forward, one backward and a reduction around the ring of
//! each unit's holders.
//!
//! Everything carries information (generation, samples) that only the checker reads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use varuna_plan::state::{UnitNorm, mix};
use varuna_plan::{
    Decision, Generation, LossScaling, OptimizerProgress, Plan, ScaleFactor, StateId, Step, Unit, WorkerId,
};

/// A worker's share of a unit's gradient.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Contribution {
    /// For the checker: the generation that computed it.
    pub(crate) run_gen: Generation,
    /// Samples covered.
    pub(crate) samples: (u64, u64),
    /// For a tied unit: 1 = as the first segment's, 2 = as the last segment's.
    pub(crate) roles: u8,
    pub(crate) bits: u64,
}

/// A unit's state on one worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    pub(crate) id: StateId,
    pub(crate) state: UnitState,
}

/// What a worker, a checkpoint or a message holds of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UnitState {
    pub(crate) bits: u64,
    pub(crate) progress: OptimizerProgress,
}

impl UnitState {
    /// The state that the job's seed gives.
    pub(crate) fn initial(unit: Unit) -> UnitState {
        UnitState {
            bits: initial_bits(unit),
            progress: OptimizerProgress::initial(&SCALING),
        }
    }
}

/// How all jobs scale their loss: within a few steps it falls to its minimum and rises again.
pub(crate) const SCALING: LossScaling = LossScaling::Dynamic {
    initial: ScaleFactor::two_to(3),
    minimum: ScaleFactor::ONE,
    window: 2,
};

/// The step in hand.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) plan: Arc<Plan>,
    pub(crate) step: Step,
    forwarded: Option<u64>,
    backwarded: bool,
    /// Contributions that went on to the next of the ring: by unit, and whose they are.
    passed_on: BTreeSet<(Unit, WorkerId)>,
    /// Prepared was reported, or the step failed: nothing more happens.
    pub(crate) over: bool,
}

/// A step's reduced gradients, and what went into them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reduced {
    pub(crate) units: BTreeMap<Unit, (u64, Vec<Contribution>)>,
    /// For the checker: the generation that ran it, and whether something of another generation went in.
    pub(crate) generation: Generation,
    pub(crate) foreign: bool,
}

type Mail<K> = BTreeMap<(Generation, K), u64>;

/// Whose gradient: the unit, the generation that ran the step, and the step that was run.
pub(crate) type GradientOf = (Unit, Generation, Step);

/// The engine of one worker.
#[derive(Default)]
pub(crate) struct Engine {
    pub(crate) held: BTreeMap<Unit, Held>,
    pub(crate) staged: BTreeMap<(Unit, StateId), UnitState>,
    /// Gradients that were forwarded to it.
    pub(crate) gradients: BTreeMap<GradientOf, u64>,
    /// One that has just come for a spare copy: it is kept where its member says so at once.
    pub(crate) arrived: Option<(GradientOf, u64)>,
    pub(crate) job: Option<Job>,
    pub(crate) reduced: Reduced,
    pub(crate) applying: Option<(Decision, Vec<Unit>)>,
    /// Takes tensors of any generation (a seeded bug).
    pub(crate) any_generation: bool,
    forwards: Mail<Step>,
    backwards: Mail<Step>,
    parts: BTreeMap<(Generation, Step, Unit, WorkerId), Contribution>,
}

/// What a running engine sends, or reports.
pub(crate) enum Output {
    Forward(WorkerId, Step, u64),
    Backward(WorkerId, Step, u64),
    /// To the next of the unit's ring: somebody's contribution.
    Reduce(WorkerId, Step, Unit, WorkerId, Contribution),
    Prepared(Vec<(Unit, UnitNorm)>),
}

pub(crate) fn initial_bits(unit: Unit) -> u64 {
    mix(42, u64::from(unit.0))
}

pub(crate) fn applied_bits(bits: u64, reduced: u64, decision: &Decision) -> u64 {
    if decision.overflow {
        return bits; // the step counts, and changes nothing
    }
    mix(mix(bits, reduced), decision.norm2.to_bits())
}

/// `overflow_percent`: of a hundred gradients, so many are not finite; which ones, follows from their bits.
fn norm(reduced: u64, last: bool, overflow_percent: u64, before: OptimizerProgress) -> UnitNorm {
    if mix(reduced, 5) % 100 < overflow_percent {
        let norm2 = if reduced.is_multiple_of(2) {
            f64::INFINITY
        } else {
            f64::NAN
        };
        return UnitNorm::new(norm2, if last { norm2 } else { 0.0 }, None, before);
    }
    // 52 bits are exact in a f64
    let part = |bits: u64| f64::from(u32::try_from(bits & 0xffff_ffff).unwrap_or(0));
    let norm2 = part(reduced >> 32) * 4_294_967_296.0 + part(reduced);
    UnitNorm::new(norm2, if last { part(reduced) / 1e9 } else { 0.0 }, None, before)
}

impl Engine {
    pub(crate) fn forward(&mut self, generation: Generation, step: Step, bits: u64) {
        self.forwards.insert((generation, step), bits);
    }
    pub(crate) fn backward(&mut self, generation: Generation, step: Step, bits: u64) {
        self.backwards.insert((generation, step), bits);
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
            self.parts.retain(|(g, _, _, _), _| *g != generation);
        }
    }

    pub(crate) fn start(&mut self, plan: Arc<Plan>, step: Step) {
        let generation = plan.generation;
        self.reduced = Reduced {
            generation,
            ..Reduced::default()
        };
        self.job = Some(Job {
            plan,
            step,
            forwarded: None,
            backwarded: false,
            passed_on: BTreeSet::new(),
            over: false,
        });
    }

    /// The units that are completely reduced.
    pub(crate) fn prepared(&self, last: Unit, overflow_percent: u64) -> Vec<(Unit, UnitNorm)> {
        let part = |(unit, (bits, _)): (&Unit, &(u64, _))| {
            let held: Option<&Held> = self.held.get(unit);
            let before = held.map_or(OptimizerProgress::START, |h| h.state.progress);
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
        // such an engine takes what comes first, which is of the older generation
        let key = mail.keys().copied().find(fits)?;
        let bits = mail.remove(&key)?;
        self.reduced.foreign |= key.0 != generation;
        Some(bits)
    }

    /// Goes on as far as the mail allows.
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
        if job.forwarded.is_none() {
            let start = mix(step.0, mix(samples.0, samples.1));
            let input = if j == 0 {
                Some(start)
            } else {
                self.take(true, g, step)
            };
            let Some(input) = input else { return };
            let weight = |u: &Unit| self.held.get(u).map_or(0xDEAD, |h| h.state.bits);
            let bits = units.iter().fold(input, |h, u| mix(h, weight(u)));
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
        self.reduce(&plan, step, &units);
        if units.iter().all(|u| self.reduced.units.contains_key(u)) {
            job.over = true;
            self.parts.retain(|(of, s, _, _), _| *of != g || *s > step);
            let last = Unit(plan.layout.segments - 1);
            outputs.push(Output::Prepared(self.prepared(last, overflow_percent)));
        }
    }

    fn contribute(&mut self, me: WorkerId, plan: &Plan, step: Step, bits: u64, samples: (u64, u64)) {
        let ranges = plan.segments_of(me);
        let first = ranges.iter().any(|r| r.start == 0);
        let last = ranges.iter().any(|r| r.end == plan.layout.segments);
        for unit in plan.units(me) {
            let tied = Some(unit) == plan.layout.tied_unit();
            let ends = u8::from(first) | (u8::from(last) << 1);
            let weight = self.held.get(&unit).map_or(0, |h| h.state.bits);
            let part = Contribution {
                run_gen: plan.generation,
                samples,
                roles: if tied { ends } else { 1 },
                bits: mix(mix(bits, u64::from(unit.0)), weight),
            };
            self.parts.insert((plan.generation, step, unit, me), part);
        }
    }

    /// Each contribution travels along the ring, from holder to holder, until everyone has it.
    fn pass_on(&self, me: WorkerId, job: &mut Job, outputs: &mut Vec<Output>) {
        for ((generation, step, unit, of), part) in &self.parts {
            let ring = job.plan.holders(*unit);
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

    fn reduce(&mut self, plan: &Plan, step: Step, units: &[Unit]) {
        for unit in units {
            if self.reduced.units.contains_key(unit) {
                continue;
            }
            let holders = plan.holders(*unit);
            let here = |w: &WorkerId| {
                let fits = |((g, s, u, of), _): &(&(Generation, Step, Unit, WorkerId), &Contribution)| {
                    *s == step && u == unit && of == w && (*g == plan.generation || self.any_generation)
                };
                self.parts.iter().find(fits).map(|(_, part)| *part)
            };
            let parts: Vec<Contribution> = holders.iter().filter_map(here).collect();
            if parts.len() == holders.len() {
                let sum = parts.iter().fold(0u64, |s, c| s.wrapping_add(c.bits));
                self.reduced.units.insert(*unit, (sum, parts));
            }
        }
    }

    /// A fence that interrupts the optimizer leaves torn state (a seeded bug).
    pub(crate) fn tear(&mut self) {
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

    /// What is forwarded of the step in hand. Once the optimizer has begun, the gradient is scaled.
    pub(crate) fn gradient(&self, unit: Unit) -> Option<u64> {
        let (bits, _) = self.reduced.units.get(&unit)?;
        let scaled = self.applying.is_some();
        Some(if scaled { mix(*bits, 0x5CA1E) } else { *bits })
    }

    /// The optimizer's step with a gradient that was forwarded; whether there was one.
    pub(crate) fn apply_forwarded(&mut self, unit: Unit, decision: &Decision) -> bool {
        let of = (unit, decision.id.run_gen, decision.parent.step);
        let gradient = self.gradients.remove(&of);
        if let Some(reduced) = gradient {
            self.apply_to(unit, reduced, decision);
        }
        gradient.is_some()
    }
}
