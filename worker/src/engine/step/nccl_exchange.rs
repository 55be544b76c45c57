//! Boundaries, sums and parameters from device to device, over the communicators of the generation. Data without a communicator goes over
//! the link.

mod actions;
mod collectives;

use super::super::EngineError;
use super::evaluation::evaluated;
use super::exchange::{ENDING, Exchange, LinkExchange, Summed, sizes};
use crate::state::GatheredUnit;
use crate::transport::nccl::{Communicators, Lane};
use crate::transport::{EVALUATION, ElementFormat, LinkError, Tag};
use collectives::{Collectives, issue_together};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use tch::{Kind, Tensor};
use varuna_cuda::{Action, Element, NcclError, Pending};
use varuna_plan::communicators::{Direction, Edge, Message, Pass, Wire, wires};
use varuna_plan::{Pipeline, Unit, WorkerId};
use varuna_torch::{FlatBuffer, OnDevice, TorchError};

/// How many receives are posted before they are needed: one arrives while another one is used.
const AHEAD: usize = 1;

/// How many boundaries of an evaluation may be on their way. Its forwards wait for no backward. Without this limit a stage could run ahead
/// of the next one, and would need memory for all that it sends. Two would be enough if each micro-batch took the same time. The limit
/// cannot make two workers wait for each other: evaluation goes one way, and workers with several stages are at most a group of
/// micro-batches ahead.
const EVALUATED_AHEAD: usize = 4;

/// What comes over one edge.
struct Incoming {
    wire: Wire,
    /// How many are posted when each is needed.
    due: Vec<usize>,
    posted: usize,
    needed: usize,
}

/// Operations over communicators.
pub(super) struct NcclExchange<'a> {
    link_exchange: LinkExchange<'a>,
    own: Arc<Communicators>,
    pipeline: &'a Pipeline,
    incoming: BTreeMap<Edge, Incoming>,
    inbox: BTreeMap<(Edge, Message), Pending<OnDevice>>,
    collectives: Collectives<'a>,
}

/// A failure of the link is one of NCCL too: a broken device must end the process.
pub(super) fn of_link(error: LinkError) -> EngineError {
    match error {
        LinkError::Nccl(error) => of_nccl(error, LinkError::Aborted),
        other => other.into(),
    }
}

/// What a failed operation means; `late` is what a missed deadline does.
fn of_nccl(error: NcclError, late: LinkError) -> EngineError {
    match error {
        NcclError::Revoked => LinkError::Aborted.into(),
        NcclError::Deadline { .. } => late.into(),
        NcclError::Device(error) => EngineError::Device(error.to_string()),
        NcclError::Call { .. } | NcclError::Argument { .. } | NcclError::Absent(_) => {
            LinkError::Nccl(error).into()
        }
    }
}

fn element(format: ElementFormat) -> (Element, Kind) {
    match format {
        ElementFormat::Float32 => (Element::Float32, Kind::Float),
        ElementFormat::BFloat16 => (Element::BFloat16, Kind::BFloat16),
        ElementFormat::Float16 => (Element::Float16, Kind::Half),
    }
}

/// The message of a boundary's tag, and which way it goes.
fn message(tag: Tag) -> Option<(Direction, Message)> {
    let (direction, stage, number) = match tag {
        Tag::Activation {
            stage, micro_batch, ..
        } => (Direction::Activation, stage, micro_batch),
        Tag::Gradient {
            stage, micro_batch, ..
        } => (Direction::Gradient, stage, micro_batch),
        Tag::Ring { .. } | Tag::Parameters { .. } | Tag::CommunicatorId { .. } => return None,
    };
    let (pass, micro_batch) = match number.checked_sub(EVALUATION) {
        Some(evaluation) => (Pass::Evaluation, evaluation),
        None => (Pass::Training, number),
    };
    let message = Message {
        pass,
        stage: stage as usize,
        micro_batch,
    };
    Some((direction, message))
}

impl<'a> NcclExchange<'a> {
    /// Starts a step over these communicators.
    pub(super) fn start(link_exchange: LinkExchange<'a>, own: Arc<Communicators>) -> NcclExchange<'a> {
        let (plan, me) = (link_exchange.plan, link_exchange.config.me);
        let place = plan.place(me).map_or(0, |(pipeline, _)| pipeline);
        let pipeline = &plan.shape.pipelines[place];
        let size = u64::from(plan.shape.micro_batch_size.max(1));
        let evaluation = samples(&link_exchange, pipeline, Pass::Evaluation).div_ceil(size);
        let evaluation = u32::try_from(evaluation).unwrap_or(u32::MAX);
        let here = |wire: &Wire| wire.edge.receiver == me && own.edge(wire.edge).is_some();
        let wires = wires(plan, place, evaluation).into_iter().filter(here);
        let incoming = wires.map(|wire| {
            let incoming = Incoming {
                due: wire.posted(AHEAD),
                posted: 0,
                needed: 0,
                wire,
            };
            (incoming.wire.edge, incoming)
        });
        let of = (link_exchange.config, plan, link_exchange.step);
        NcclExchange {
            incoming: incoming.collect(),
            inbox: BTreeMap::new(),
            collectives: Collectives::new(of, Arc::clone(&own), link_exchange.deadline),
            pipeline,
            own,
            link_exchange,
        }
    }

    /// Issues one operation after what was computed so far.
    fn issue(
        &self,
        lane: &Lane,
        action: Action,
        element: Element,
        memory: OnDevice,
    ) -> Result<Pending<OnDevice>, NcclError> {
        let operation = vec![(action, element, memory)];
        let issued = issue_together(&self.own, lane, operation, self.link_exchange.deadline)?;
        issued.into_iter().next().ok_or(NcclError::Revoked)
    }

    /// Samples of a message's micro-batch: the last of a pass may be short.
    fn samples_of(&self, message: Message) -> u64 {
        let size = u64::from(self.link_exchange.plan.shape.micro_batch_size.max(1));
        let all = samples(&self.link_exchange, self.pipeline, message.pass);
        size.min(all.saturating_sub(u64::from(message.micro_batch) * size))
    }

    /// Shape of the boundary that a message carries, samples first.
    fn shape_of(&self, edge: Edge, message: Message) -> Vec<usize> {
        let samples = usize::try_from(self.samples_of(message)).unwrap_or(usize::MAX);
        let stage = self.pipeline.stages.get(message.stage);
        let segment = stage.map_or(0, |stage| match edge.direction {
            Direction::Activation => stage.segments.start,
            Direction::Gradient => stage.segments.end,
        });
        self.link_exchange.config.model.input_shape(segment, samples)
    }

    /// Posts the receives that are due when the next message of an edge is needed; `late` is what it means that the sender did not come in time.
    fn post(&mut self, edge: Edge, late: &LinkError) -> Result<(), EngineError> {
        let Some(incoming) = self.incoming.get_mut(&edge) else {
            return Ok(());
        };
        let upto = incoming
            .due
            .get(incoming.needed)
            .copied()
            .unwrap_or(incoming.posted);
        let from = incoming.posted;
        incoming.posted = upto.max(from);
        incoming.needed += 1;
        let next = incoming.wire.sent[from..incoming.posted].to_vec();
        let config = self.link_exchange.config;
        let (element, kind) = element(config.backend.numerics.boundary());
        for message in next {
            let shape = sizes(&self.shape_of(edge, message));
            let tensor = Tensor::f_empty(shape.as_slice(), (kind, config.backend.device.tensors()));
            let memory = OnDevice::over(&tensor.map_err(|e| TorchError(e.to_string()))?)?;
            let Some(lane) = self.own.edge(edge) else {
                continue;
            };
            let received = self.issue(lane, Action::Receive { from: 0 }, element, memory);
            let received = received.map_err(|e| of_nccl(e, LinkError::Aborted))?;
            let lost = received.is_done().err();
            self.inbox.insert((edge, message), received);
            if let Some(error) = lost {
                return Err(of_nccl(error, late.clone()));
            }
        }
        Ok(())
    }
}

/// Samples of a pipeline in one pass of the step.
fn samples(of: &LinkExchange<'_>, pipeline: &Pipeline, pass: Pass) -> u64 {
    match pass {
        Pass::Training => pipeline.samples.len(),
        Pass::Evaluation => {
            let total = evaluated(of.config, of.step);
            let share = pipeline.evaluation_samples(total, of.config.training.global_batch_size);
            share.end - share.start
        }
    }
}

fn stuck() -> EngineError {
    EngineError::Device(format!(
        "what was stopped on it has not ended within {} s",
        ENDING.as_secs()
    ))
}

impl Exchange for NcclExchange<'_> {
    fn send(&mut self, to: WorkerId, tag: Tag, tensor: &Tensor) -> Result<(), EngineError> {
        let config = self.link_exchange.config;
        let known = message(tag).and_then(|(direction, message)| {
            let lane = self.own.edge(Edge {
                sender: config.me,
                receiver: to,
                direction,
            });
            Some((lane?, message.pass))
        });
        let Some((lane, pass)) = known else {
            return self.link_exchange.send(to, tag, tensor);
        };
        let late = |error| of_nccl(error, LinkError::Deadline { from: to, tag });
        if pass == Pass::Evaluation {
            self.link_exchange.flush_fetched(true)?;
            let room = self
                .own
                .wait_for_room(EVALUATED_AHEAD, self.link_exchange.deadline);
            room.map_err(late)?;
        }
        let (element, kind) = element(config.backend.numerics.boundary());
        let memory = OnDevice::over(&tensor.detach().to_kind(kind).contiguous())?;
        let sent = self.issue(lane, Action::Send { to: 1 }, element, memory);
        let sent = sent.map_err(late)?;
        let lost = sent.is_done().err();
        self.own.keep(sent);
        lost.map_or(Ok(()), |error| Err(late(error)))
    }

    fn receive(&mut self, from: WorkerId, tag: Tag, shape: &[usize]) -> Result<Tensor, EngineError> {
        let known = message(tag).map(|(direction, message)| {
            let edge = Edge {
                sender: from,
                receiver: self.link_exchange.config.me,
                direction,
            };
            (edge, message)
        });
        let Some((edge, message)) = known.filter(|(edge, _)| self.incoming.contains_key(edge)) else {
            return self.link_exchange.receive(from, tag, shape);
        };
        let late = LinkError::Deadline { from, tag };
        self.post(edge, &late)?;
        self.link_exchange.flush_fetched(true)?;
        let (deadline, at) = (self.link_exchange.deadline, (edge, message));
        // It stays in the inbox until it has come: what does not come is waited for when the step is stopped, and its memory would be given up
        // otherwise.
        let coming = self.inbox.get(&at).ok_or(LinkError::Unknown(from))?;
        coming.wait(deadline).map_err(|e| of_nccl(e, late))?;
        let come = self.inbox.remove(&at).ok_or(LinkError::Unknown(from))?;
        let memory = come.release(Instant::now() + ENDING).ok_or_else(stuck)?;
        Ok(memory.into_tensor())
    }

    fn gather(&mut self, whole: Unit, here: &GatheredUnit) -> Result<bool, EngineError> {
        self.collectives.gather(whole, here)
    }

    fn use_parameters(&mut self, segment: u32) -> Result<(), EngineError> {
        self.collectives.use_parameters(segment)
    }

    fn begin(&mut self, unit: Unit, gradient: &FlatBuffer) -> Result<(), EngineError> {
        match self.collectives.begin(unit, gradient)? {
            true => Ok(()),
            false => self.link_exchange.begin(unit, gradient),
        }
    }

    fn next(&mut self) -> Result<Summed, EngineError> {
        self.link_exchange.flush_fetched(true)?;
        self.collectives.parameters_came()?;
        match self.collectives.next()? {
            Some(sum) => Ok(sum),
            None => self.link_exchange.next(),
        }
    }

    fn poll_pending(&mut self) -> Result<(), EngineError> {
        self.link_exchange.poll_pending()?;
        self.collectives.poll_pending()
    }

    fn stop(&mut self) -> Result<Vec<Summed>, EngineError> {
        // A failed step is never continued. What is done is noted before the rest is revoked.
        self.own.abort();
        let mut summed = self.link_exchange.stop()?;
        self.collectives.stop(&mut summed)?;
        for (_, pending) in std::mem::take(&mut self.inbox) {
            pending.release(Instant::now() + ENDING).ok_or_else(stuck)?;
        }
        match self.own.release_boundaries(Instant::now() + ENDING) {
            true => Ok(summed),
            false => Err(stuck()),
        }
    }
}
