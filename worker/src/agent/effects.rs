//! Carries out the effects of the member.

use super::engine_thread::{Command, Event, GradientOf, Reader, Recipient};
use super::{Agent, AgentError, AgentEvent, StoreEvent};
use crate::checkpoints::Checkpoints;
use crate::state::{ReadError, UnitSnapshot, UnitState};
use std::sync::Arc;
use std::time::Duration;
use varuna_checkpoint::CheckpointError;
use varuna_plan::{Decision, Generation, Plan, StateId, Step, Unit, WorkerId};
use varuna_protocol::member::{MemberEffect, MemberInput};
use varuna_protocol::{Digests, Phase, Report};
use varuna_wire::Upward;

impl Agent {
    pub(super) fn carry_out(&mut self, effect: MemberEffect) -> Result<Option<MemberInput>, AgentError> {
        match effect {
            MemberEffect::Accepted(plan) => self.accept(&plan),
            MemberEffect::Connect {
                generation,
                peer,
                address,
            } => self.mesh.dial(generation, peer, &address),
            MemberEffect::Disconnect { generation } => {
                self.followers.close(generation);
                self.running.close(generation);
                self.mesh.close(generation);
            }
            MemberEffect::Send {
                generation,
                to,
                message,
            } => self.mesh.send_message(generation, to, &message),
            MemberEffect::Serve { .. }
            | MemberEffect::Copy { .. }
            | MemberEffect::Forward { .. }
            | MemberEffect::ForwardPrepared { .. }
            | MemberEffect::KeepGradient { .. }
            | MemberEffect::Adopt { .. }
            | MemberEffect::ApplyForwarded { .. } => self.transfer(effect)?,
            MemberEffect::Report(report) => self.report(report),
            MemberEffect::Load { id, unit, .. } if id == StateId::INITIAL => {
                self.command(Command::Initialise { unit })?;
            }
            MemberEffect::Load { generation, id, unit } => self.read(generation, id, unit),
            MemberEffect::SaveUnit { id, unit } => self.put(id, unit)?,
            MemberEffect::Digest { id, saved, units } => {
                self.command(Command::Compare { id, saved, units })?
            }
            MemberEffect::Run { plan, step, deadline } => return self.run_step(plan, step, deadline),
            MemberEffect::Abort => self.abort()?,
            MemberEffect::Apply { decision, units } => {
                tracing::debug!(step = %decision.id.step, loss = decision.mean_loss(), "committed");
                self.command(Command::Apply { decision, units })?;
            }
            MemberEffect::Free { keep } => self.free(keep)?,
            MemberEffect::StopServing { generation } => {
                self.serving.stop(generation);
                self.mesh.stop_states(generation);
            }
            MemberEffect::Exit(reason) => self.exit = Some(reason),
        }
        Ok(None)
    }

    /// State and gradients, given to peers and taken from them.
    fn transfer(&mut self, effect: MemberEffect) -> Result<(), AgentError> {
        match effect {
            MemberEffect::Serve {
                generation,
                to,
                unit,
                id,
                decision,
            } => {
                let recipient = Recipient { generation, to, unit };
                self.export(recipient, id, decision, Reader::Connection)?;
            }
            MemberEffect::Copy {
                generation,
                to,
                unit,
                id,
                decision,
            } => {
                let recipient = Recipient { generation, to, unit };
                self.export(recipient, id, decision, Reader::Copy)?;
            }
            MemberEffect::Forward {
                generation,
                to,
                unit,
                decision,
            } => {
                let recipient = Recipient { generation, to, unit };
                self.give_gradient(recipient, GradientOf::Decided(decision))?;
            }
            MemberEffect::ForwardPrepared {
                generation,
                to,
                unit,
                prepared,
            } => {
                let recipient = Recipient { generation, to, unit };
                self.give_gradient(recipient, GradientOf::Prepared(prepared))?;
            }
            MemberEffect::KeepGradient { unit, step } => self.keep_gradient(unit, step),
            MemberEffect::Adopt { unit, id } => self.adopt(unit, id)?,
            MemberEffect::ApplyForwarded { unit, decision } => self.apply_forwarded(unit, decision)?,
            _ => {}
        }
        Ok(())
    }

    fn accept(&mut self, plan: &Plan) {
        let secret = self.run.secret(plan.generation);
        self.mesh.open(plan.generation, &secret);
        self.loading.accept(self.me, plan);
        if let Some(checkpoints) = &self.checkpoints {
            checkpoints.give_memory_back();
        }
    }

    fn abort(&mut self) -> Result<(), AgentError> {
        self.running.abort();
        self.command(Command::Quiesce)
    }

    /// Has the engine give a unit's state to a peer.
    fn export(
        &mut self,
        recipient: Recipient,
        id: StateId,
        decision: Option<Decision>,
        reader: Reader,
    ) -> Result<(), AgentError> {
        self.command(Command::Export {
            recipient,
            id,
            decision,
            reader,
        })
    }

    /// Puts a unit's state into the store, where the job has one.
    fn put(&mut self, id: StateId, unit: Unit) -> Result<(), AgentError> {
        match self.checkpoints {
            Some(_) => self.command(Command::Snapshot { unit, id }),
            None => Ok(()),
        }
    }

    /// Has the engine give a unit's gradient to a peer.
    fn give_gradient(&mut self, recipient: Recipient, of: GradientOf) -> Result<(), AgentError> {
        self.command(Command::Gradient { recipient, of })
    }

    /// Has the engine take over the unit that has just arrived.
    fn adopt(&mut self, unit: Unit, id: StateId) -> Result<(), AgentError> {
        let Some(state) = self.arrivals.adopt(unit, id) else {
            tracing::error!(%unit, %id, "the member adopts a unit that has not arrived");
            return Ok(());
        };
        let events = self.events.clone();
        let done = move |adopted| {
            let event = match adopted {
                Ok(()) => Event::Loaded { unit, id },
                Err(error) => Event::Fatal(error),
            };
            // An error means that the agent has ended.
            let _ = events.blocking_send(AgentEvent::Engine(event));
        };
        match self.first_step.adopt((unit, id), state, Box::new(done))? {
            Some(state) => self.command(Command::Adopt { unit, id, state }),
            None => Ok(()),
        }
    }

    fn keep_gradient(&mut self, unit: Unit, step: Step) {
        if !self.arrivals.keep(unit, step) {
            tracing::error!(%unit, %step, "the member keeps a gradient that has not arrived");
        }
    }

    /// Has the engine apply a gradient that has arrived, just now or with its step.
    fn apply_forwarded(&mut self, unit: Unit, decision: Decision) -> Result<(), AgentError> {
        match self.arrivals.gradient(unit, &decision) {
            Some(gradient) => self.command(Command::ApplyForwarded {
                unit,
                decision,
                gradient,
            }),
            None => {
                tracing::error!(%unit, id = %decision.id, "the member applies a gradient that has not arrived");
                Ok(())
            }
        }
    }

    fn free(&mut self, keep: Vec<Unit>) -> Result<(), AgentError> {
        self.arrivals.free();
        self.loading.free();
        let copies = copies_of(self.member.plan().map(Arc::as_ref), self.me);
        self.command(Command::Free { keep, copies })
    }

    /// Starts to read a unit from the store, unless that is under way. The member asks again until it has the unit.
    fn read(&mut self, generation: Generation, id: StateId, unit: Unit) {
        let Some(checkpoints) = self.checkpoints.clone() else {
            tracing::error!(%id, %unit, "cannot read a unit from a checkpoint: the job has no spec.checkpoint");
            return;
        };
        if !self.loading.ask(id, unit, generation) {
            return;
        }
        let (events, kept) = (self.events.clone(), self.loading.take_kept(id, unit));
        tokio::spawn(async move {
            // A full queue holds progress enough; a closed one means that the agent has ended.
            let told = events.clone();
            let progress = move || drop(told.try_send(AgentEvent::Store(StoreEvent::Progress(unit, id))));
            let read = async move {
                match kept {
                    Some(state) => Ok(state),
                    None => checkpoints.load(unit, id, progress).await,
                }
            };
            let _ = events.send(outcome(unit, id, read).await).await;
        });
    }

    /// Has the digests computed beside the next step. The optimizer waits for them only where they take longer than the step.
    pub(super) fn digest(&self, id: StateId, saved: bool, snapshots: Vec<(Unit, UnitSnapshot)>) {
        let events = self.events.clone();
        tokio::task::spawn_blocking(move || {
            let digest =
                |(unit, snapshot): (Unit, UnitSnapshot)| snapshot.digest().map(|digest| (unit, digest));
            let units: Result<_, _> = snapshots.into_iter().map(digest).collect();
            let event = match units {
                Ok(units) => AgentEvent::Digested(Digests { id, saved, units }),
                Err(ReadError::LeftOff) => {
                    tracing::warn!(state = %id, "this worker's state is not compared: the optimizer has waited too long for its digest");
                    return;
                }
                Err(ReadError::Torch(error)) => AgentEvent::Engine(Event::Fatal(error.into())),
            };
            // An error means that the agent has ended.
            let _ = events.blocking_send(event);
        });
    }

    fn run_step(
        &mut self,
        plan: Arc<Plan>,
        step: Step,
        deadline: Duration,
    ) -> Result<Option<MemberInput>, AgentError> {
        let generation = plan.generation;
        let Some(link) = self.mesh.link(generation) else {
            return Ok(Some(MemberInput::StepFailed {
                generation,
                about: None,
            }));
        };
        self.step_reports.begin(&plan, step, self.me);
        self.running.begin(generation, &link);
        self.first_step.begin(&plan, step);
        let lacks = self.first_step.lacks(self.member.held());
        if let Some(lacks) = lacks.filter(|_| self.member.status().phase != Phase::Running) {
            tracing::info!(%generation, %step, lacks, "the first step begins before Go");
        }
        if let Some(checkpoints) = &self.checkpoints {
            checkpoints.step_begins();
        }
        self.command(Command::Run {
            plan,
            step,
            deadline,
            link,
        })?;
        Ok(None)
    }

    fn report(&self, report: Report) {
        if let Report::Suspect {
            generation,
            about,
            why,
        } = &report
        {
            tracing::info!(%generation, %about, ?why, "suspects a peer");
        }
        let failure = self.checkpoints.as_ref().and_then(Checkpoints::upload_failure);
        self.send(match (report, failure) {
            (Report::Status(status), Some(why)) => Upward::UploadsFail { status, why },
            (report, _) => Upward::Report(report),
        });
    }
}

/// Reads a unit from the store, in a task of its own: the agent hears of a panic there as of any other failure. Else it would take the read for one
/// that is under way, and never begin it again.
async fn outcome(
    unit: Unit,
    id: StateId,
    read: impl Future<Output = Result<UnitState, CheckpointError>> + Send + 'static,
) -> AgentEvent {
    AgentEvent::Store(match tokio::spawn(read).await {
        Ok(Ok(state)) => StoreEvent::Loaded(unit, id, state),
        Ok(Err(error @ CheckpointError::Misread { .. })) => return AgentEvent::Misread(error),
        Ok(Err(error @ CheckpointError::OtherData { .. })) => return AgentEvent::OtherData(error),
        Ok(Err(error)) => {
            tracing::warn!(%error, "a unit cannot be read from its checkpoint");
            StoreEvent::Failed(unit, id, error.is_final())
        }
        Err(error) => {
            tracing::error!(%error, %unit, state = %id, "the read of a unit from its checkpoint has panicked");
            StoreEvent::Failed(unit, id, false)
        }
    })
}

/// The units whose spare copies a worker keeps under a plan.
fn copies_of(plan: Option<&Plan>, me: WorkerId) -> Vec<Unit> {
    let kept = plan.map_or_else(Vec::new, |plan| plan.kept_by(me));
    kept.into_iter().map(|(unit, _)| unit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_plan::{
        Layout, Pipeline, Prediction, Recompute, SampleRange, ScheduleKind, ScheduleSpec, SegmentRange,
        Shape, Stage,
    };

    /// Three stages, whose worker is that of their segment's number.
    fn three_stages() -> Plan {
        let stage = |segment: u32| Stage {
            worker: WorkerId(u64::from(segment)),
            segments: SegmentRange {
                start: segment,
                end: segment + 1,
            },
            recompute: None,
        };
        let shape = Shape {
            pipelines: vec![Pipeline {
                stages: (0..3).map(stage).collect(),
                samples: SampleRange { start: 0, end: 1 },
            }],
            spares: Vec::new(),
            micro_batch_size: 1,
            schedule: ScheduleSpec {
                kind: ScheduleKind::Gpipe,
                recompute: Recompute::None,
            },
            predicted: Prediction::default(),
        };
        Plan::first(Layout::new(3, false), shape)
    }

    #[test]
    fn the_engine_is_told_only_the_copies_this_worker_keeps() {
        let mut plan = three_stages();
        let [first, second] = [1, 2].map(WorkerId);
        plan.keepers = vec![Some(second), Some(second), Some(first)];
        assert_eq!(copies_of(Some(&plan), second), [Unit(0), Unit(1)]);
        assert_eq!(copies_of(Some(&plan), first), [Unit(2)]);
        assert!(copies_of(Some(&plan), WorkerId(0)).is_empty());
        assert!(copies_of(None, second).is_empty());
    }

    async fn defect() -> Result<UnitState, CheckpointError> {
        panic!("a defect")
    }

    #[tokio::test]
    async fn panic_in_a_read_is_a_failure_that_may_pass() {
        let (unit, id) = (Unit(1), StateId::INITIAL);
        let ended = outcome(unit, id, defect()).await;
        assert!(matches!(
            ended,
            AgentEvent::Store(StoreEvent::Failed(Unit(1), _, false))
        ));
        let state = UnitState {
            progress: varuna_plan::OptimizerProgress::START,
            data: vec![1.0],
        };
        let ended = outcome(unit, id, async { Ok(state) }).await;
        assert!(matches!(
            ended,
            AgentEvent::Store(StoreEvent::Loaded(Unit(1), _, _))
        ));
    }

    #[tokio::test]
    async fn who_alone_misreads_a_shard_ends_its_worker() {
        let misread = async {
            Err(CheckpointError::Misread {
                id: StateId::INITIAL,
                file: "segment-001.safetensors".into(),
                why: "for the test".into(),
            })
        };
        let ended = outcome(Unit(1), StateId::INITIAL, misread).await;
        assert!(matches!(ended, AgentEvent::Misread(_)));
    }

    #[tokio::test]
    async fn a_checkpoint_of_other_data_ends_the_worker() {
        let other = async {
            Err(CheckpointError::OtherData {
                id: StateId::INITIAL,
                why: "for the test".into(),
            })
        };
        let ended = outcome(Unit(1), StateId::INITIAL, other).await;
        assert!(matches!(ended, AgentEvent::OtherData(_)));
    }
}
