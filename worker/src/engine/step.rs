//! One step on one worker: the interpreter of the schedule's list of tasks.

mod ahead;
mod boundary;
mod device;
mod evaluation;
mod exchange;
mod gather;
mod loss;
mod nccl_exchange;
mod parameters_first;
mod place;
mod reduction;
mod segments;
mod timeline;
mod tokens;

use super::panics::caught;
use super::{EngineConfig, EngineError, SegmentTiming, Split, StepTimings, Work};
use crate::model::Tables;
use crate::state::Computing;
use crate::transport::{Link, Tag};
use ahead::RunAhead;
pub(super) use device::Device;
use exchange::{Exchange, LinkExchange};
use loss::LossSum;
use nccl_exchange::{NcclExchange, of_link};
use place::{Place, small};
use segments::Marked;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use tch::Tensor;
use timeline::TaskMarks;
pub use timeline::Timeline;
use tokens::Tokens;
use varuna_plan::schedule::{self, Instruction, Task, is_recomputed};
use varuna_plan::state::UnitNorm;
use varuna_plan::{OptimizerProgress, Pipeline, Plan, Recompute, ScheduleSpec, Step, Unit};
use varuna_torch::backward;

/// What a forward leaves for its backward.
enum Stash {
    /// Only the stage's input; the forward will be run again.
    Input(Tensor),
    /// Of each segment, cut from each other, so that segments finish their backward one by one.
    Segments(Vec<Kept>),
}

/// What a segment's forward leaves.
enum Kept {
    /// Only the segment's input; its forward will be run again.
    Input(Tensor),
    /// The segment's input, and its output with what autograd saved.
    Graph(Tensor, Tensor),
}

struct Run<'a> {
    config: &'a EngineConfig,
    tables: &'a Tables,
    plan: &'a Plan,
    step: Step,
    /// What the optimizer has counted: the loss scale of this step.
    before: OptimizerProgress,
    deadline: Instant,
    exchange: Box<dyn Exchange + 'a>,
    tokens: Tokens<'a>,
    /// This worker's stages, in the pipeline's order.
    places: Vec<Place>,
    /// The pipeline of this worker.
    pipeline: &'a Pipeline,
    /// Kept activations, by stage and micro-batch.
    stash: BTreeMap<(usize, u32), Stash>,
    /// Mean loss of the batch's tokens, as far as they are this pipeline's; and of the evaluated ones, where the step evaluates
    /// and they have targets.
    loss: LossSum,
    eval_loss: Option<LossSum>,
    timings: StepTimings,
    marked: Vec<Marked>,
    /// Whether this step's tasks are timed one by one, and since when.
    is_measured: bool,
    task_marks: Option<TaskMarks>,
    ahead: RunAhead,
}

/// The step that is to be run.
pub(super) struct Ordered<'a> {
    pub(super) plan: &'a Plan,
    pub(super) step: Step,
    pub(super) link: &'a Arc<dyn Link>,
    pub(super) deadline: Instant,
    /// Whether the step's tasks are timed one by one.
    pub(super) is_measured: bool,
}

/// Durations and results of a step.
pub(super) struct Done {
    pub(super) timings: StepTimings,
    pub(super) segment_timings: Vec<SegmentTiming>,
    pub(super) timeline: Option<Timeline>,
    pub(super) tasks_ahead: usize,
}

/// Runs the step; units that are completely reduced are pushed to `prepared` as they finish.
pub(super) fn run(
    config: &EngineConfig,
    mut device: Device<'_>,
    prepared: &mut Vec<(Unit, UnitNorm)>,
    &Ordered {
        plan,
        step,
        link,
        deadline,
        is_measured,
    }: &Ordered<'_>,
) -> Result<Done, EngineError> {
    // Made once in a generation: no part of what a step takes.
    let communicators = link.communicators(plan, deadline).map_err(of_link)?;
    let start = Instant::now();
    let (i, stages) = plan
        .shape
        .stages_of(config.me)
        .ok_or(EngineError::NoStage(config.me))?;
    let pipeline = &plan.shape.pipelines[i];
    let before = device.begin(config, (plan, step))?;
    let Device {
        units,
        gathered,
        reader,
        tables,
    } = device;
    let units = Computing::of(plan, units, gathered);
    let (samples, model) = (config.training.global_batch_size, &config.model);
    let loss = LossSum::new(config.backend.device, samples, model)?;
    let link_exchange = LinkExchange::start(config, plan, step, link, deadline)?;
    let exchange: Box<dyn Exchange> = match communicators {
        Some(communicators) => Box::new(NcclExchange::start(link_exchange, communicators)),
        None => Box::new(link_exchange),
    };
    let mut run = Run {
        config,
        tables,
        plan,
        step,
        before,
        deadline,
        exchange,
        tokens: Tokens::new(reader),
        places: stages.iter().map(|j| Place::of(plan, pipeline, *j)).collect(),
        pipeline,
        stash: BTreeMap::new(),
        loss,
        eval_loss: None,
        timings: StepTimings::default(),
        marked: Vec::new(),
        is_measured,
        task_marks: None,
        ahead: RunAhead::default(),
    };
    let micro_batches =
        u32::try_from(pipeline.micro_batches(plan.shape.micro_batch_size)).unwrap_or(u32::MAX);
    let specs = pipeline.stages.iter().map(|s| plan.shape.schedule_of(s));
    let specs: Vec<ScheduleSpec> = specs.collect();
    let list = schedule::list(&specs, stages[0], micro_batches);
    let reads = run.reads(step, &list);
    run.tokens.reader.expect(reads)?;
    let result = caught(|| {
        run.gather(units).and_then(|()| run.evaluate(units))?;
        run.interpret(units, &list)?;
        run.collect(units, prepared)
    });
    if let Err(error) = result {
        // A recovery may still finish the step if these and the other workers' cover the model.
        caught(|| run.collect_finished(units, prepared))?;
        return Err(error);
    }
    let ended = Instant::now();
    run.timings.total = ended - start;
    let timeline = run.timeline(ended)?;
    let segment_timings = run.segment_timings()?;
    Ok(Done {
        timings: run.timings,
        segment_timings,
        timeline,
        tasks_ahead: run.ahead.most,
    })
}

impl Run<'_> {
    /// Carries out the worker's list; a unit goes to the reduction as soon as its last backward has ended.
    fn interpret(&mut self, units: Computing<'_>, list: &[Task]) -> Result<(), EngineError> {
        let places: BTreeMap<usize, Place> = self.places.iter().map(|p| (p.stage, *p)).collect();
        let last_backward = |stage: usize| {
            let of = |t: &Task| t.stage == stage && matches!(t.instruction, Instruction::Backward(_));
            list.iter().rposition(of)
        };
        if self.counts_targets() {
            let count = self.target_count(Split::Train, self.batch_at(self.step))?;
            self.loss.set_targets(count);
        }
        let last: BTreeMap<usize, Option<usize>> = places
            .keys()
            .map(|stage| (*stage, last_backward(*stage)))
            .collect();
        self.task_marks = self.begin_timeline(list.len())?;
        for (position, task) in list.iter().enumerate() {
            let place = places[&task.stage];
            self.before_task()?;
            let segment_timings = self.marked.len();
            match task.instruction {
                Instruction::Forward(m) => self.forward(place, units, m, is_recomputed(list, position))?,
                Instruction::Recompute(m) => self.recompute(place, units, m)?,
                Instruction::Backward(m) => {
                    let last = last[&task.stage] == Some(position);
                    self.backward(place, units, m, |segment, run| {
                        if last { run.reduce(units, segment) } else { Ok(()) }
                    })?;
                }
            }
            self.after_task()?;
            if let Some(marks) = &mut self.task_marks {
                marks.add(*task, segment_timings..self.marked.len());
            }
        }
        self.reduce_tied(units)?;
        // While the gradients are reduced and applied. Another plan's steps may read other samples, which costs no more than a read.
        let reads = self.reads(self.step.next(), list);
        self.tokens.reader.expect(reads)
    }

    /// The stage's input: tokens on the first stage, else the previous stage's activation.
    fn input(&mut self, place: Place, micro_batch: u32) -> Result<Tensor, EngineError> {
        match place.previous {
            None => self.inputs(Split::Train, &self.sample_numbers(micro_batch)),
            Some(worker) => self.receive(
                worker,
                Tag::Activation {
                    stage: small(place.stage),
                    step: self.step,
                    micro_batch,
                },
                (place.segments.start, self.sample_count(micro_batch)),
            ),
        }
    }

    fn forward(
        &mut self,
        place: Place,
        units: Computing<'_>,
        micro_batch: u32,
        recomputed: bool,
    ) -> Result<(), EngineError> {
        let input = self.input(place, micro_batch)?;
        let numbers = self.sample_numbers(micro_batch);
        let policy = if recomputed {
            place.recompute
        } else {
            Recompute::None
        };
        let (output, stash) = match policy {
            Recompute::None => {
                let (output, kept) = self.segments(place, Work::Forward, units, input, &numbers, |_| true)?;
                (output, Stash::Segments(kept))
            }
            Recompute::Selective => {
                let config = self.config;
                let keep = |s| !config.model.is_recomputed_selectively(s);
                let (output, kept) = self.segments(place, Work::Forward, units, input, &numbers, keep)?;
                (output, Stash::Segments(kept))
            }
            Recompute::Full => {
                let (output, _) = self.segments(
                    place,
                    Work::Forward,
                    units,
                    input.shallow_clone(),
                    &numbers,
                    |_| false,
                )?;
                (output, Stash::Input(input))
            }
        };
        self.stash.insert((place.stage, micro_batch), stash);
        if let Some(worker) = place.next {
            self.send(
                worker,
                Tag::Activation {
                    stage: small(place.stage + 1),
                    step: self.step,
                    micro_batch,
                },
                &output,
            )?;
        }
        Ok(())
    }

    fn recompute(&mut self, place: Place, units: Computing<'_>, micro_batch: u32) -> Result<(), EngineError> {
        let numbers = self.sample_numbers(micro_batch);
        let kept = match self.stash.remove(&(place.stage, micro_batch)) {
            Some(Stash::Input(input)) => {
                self.segments(place, Work::Recompute, units, input, &numbers, |_| true)?
                    .1
            }
            Some(Stash::Segments(kept)) => {
                let tables = self.document_tables(place, Split::Train, &numbers)?;
                let samples = (numbers.as_slice(), tables.as_ref());
                let again = (place.segments.start..)
                    .zip(kept)
                    .map(|(segment, kept)| match kept {
                        Kept::Input(input) => {
                            let output = self.segment(Work::Recompute, units, segment, &input, samples)?;
                            Ok(Kept::Graph(input, output))
                        }
                        graph @ Kept::Graph(..) => Ok(graph),
                    });
                again.collect::<Result<_, EngineError>>()?
            }
            None => Vec::new(),
        };
        self.stash
            .insert((place.stage, micro_batch), Stash::Segments(kept));
        Ok(())
    }

    /// Backward of a micro-batch, segment by segment from the last; `finished` is called after each.
    fn backward(
        &mut self,
        place: Place,
        units: Computing<'_>,
        micro_batch: u32,
        mut finished: impl FnMut(u32, &mut Self) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let Some(Stash::Segments(mut kept)) = self.stash.remove(&(place.stage, micro_batch)) else {
            unreachable!("the schedule checker proved a forward or recompute before each backward");
        };
        let mut gradient = match place.next {
            Some(worker) => Some(self.receive(
                worker,
                Tag::Gradient {
                    stage: small(place.stage),
                    step: self.step,
                    micro_batch,
                },
                (place.segments.end, self.sample_count(micro_batch)),
            )?),
            None => None,
        };
        for segment in (place.segments.start..place.segments.end).rev() {
            let start = self.mark()?;
            let Some(Kept::Graph(input, output)) = kept.pop() else {
                unreachable!("the schedule checker proved a forward or recompute before each backward");
            };
            let of_output = match gradient.take() {
                Some(g) => g,
                None => self.loss_backward(units, &output, micro_batch)?,
            };
            // That of a first segment without parameters depends on nothing that is trained.
            if output.requires_grad() {
                backward(&[&output], &[&of_output])?;
            }
            drop(output);
            self.note_timing(segment, Work::Backward, self.sample_count(micro_batch), start)?;
            if segment > 0 {
                let of_input = input.grad();
                // A segment of a user's model may let nothing through.
                let is_there = of_input.defined();
                gradient = Some(if is_there { of_input } else { input.zeros_like() });
            }
            finished(segment, self)?;
        }
        if let (Some(worker), Some(g)) = (place.previous, gradient) {
            self.send(
                worker,
                Tag::Gradient {
                    stage: small(place.stage - 1),
                    step: self.step,
                    micro_batch,
                },
                &g,
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
