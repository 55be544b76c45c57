//! Turns events of the engine, the peers, the store and the coordinator into inputs of the member.

use super::arrivals::Staged;
use super::engine_thread::{Event, FailedStep, GradientOf, Reader, Recipient};
use super::follower_sender::Sending;
use super::store_reads::ReadStep;
use super::uplink::UplinkEvent;
use super::{Agent, AgentError, StoreEvent};
use crate::checkpoints::Checkpoints;
use crate::state::{UnitSnapshot, UnitState};
use crate::transport::tcp::PeerEvent;
use varuna_frames::{GradientHeader, PreparedHeader, StateHeader, TransferHeader};
use varuna_plan::{Generation, WorkerId};
use varuna_protocol::{Lack, MemberInput, Phase, Prepared};
use varuna_wire::Upward;

/// What the member is told of a step that did not finish. A lack of data or memory is reported rather than a failure of peers: they may be
/// waiting because of that lack.
fn failed(step: FailedStep) -> MemberInput {
    let FailedStep {
        generation,
        about,
        lacks,
        why,
    } = step;
    match lacks {
        Some(Lack::Memory(_)) => tracing::warn!(%generation, why, "a step failed"),
        Some(Lack::Data) | None => tracing::info!(%generation, why, ?lacks, "a step failed"),
    }
    match lacks {
        Some(what) => MemberInput::StepLacks(generation, what),
        None => MemberInput::StepFailed { generation, about },
    }
}

/// Whether no state should be saved now, after a step was run.
fn is_busy_after_step(checkpoints: &Checkpoints) -> bool {
    checkpoints.step_ended(true);
    checkpoints.is_busy()
}

impl Agent {
    pub(super) fn on_engine_event(&mut self, event: Event) -> Result<(), AgentError> {
        self.first_step.note(&event);
        let input = match event {
            Event::Loaded { unit, id } => MemberInput::Loaded { unit, id },
            Event::Prepared {
                generation,
                step,
                units,
                timings,
                segment_timings,
                timeline,
            } => {
                self.step_reports
                    .ran((generation, step), timings, segment_timings, timeline);
                MemberInput::Prepared {
                    generation,
                    step,
                    units,
                    store_busy: self.checkpoints.as_ref().is_some_and(is_busy_after_step),
                }
            }
            Event::StepFailed(step) => {
                if let Some(checkpoints) = &self.checkpoints {
                    checkpoints.step_ended(false);
                }
                failed(step)
            }
            Event::Stopped { prepared } => MemberInput::Stopped { prepared },
            Event::Applied { decision, took } => {
                if let Some(metrics) = self.step_reports.applied(took) {
                    self.send(Upward::Metrics(metrics));
                }
                self.feed(MemberInput::Applied { id: decision.id })?;
                self.step_reports
                    .spare_copies(self.member.spare_units_in_step().len());
                return Ok(());
            }
            Event::Exported {
                recipient,
                id,
                decision,
                reader,
                snapshot,
            } => {
                let header = StateHeader {
                    unit: recipient.unit,
                    id,
                    decision,
                    progress: snapshot.progress(),
                    elements: snapshot.elements() as u64,
                };
                return self.send_state(recipient, header, reader, snapshot);
            }
            Event::Gradient {
                recipient,
                of,
                gradient,
            } => return self.send_gradient(recipient, of, gradient),
            Event::Snapshot { unit, id, snapshot } => {
                if let Some(checkpoints) = &self.checkpoints {
                    checkpoints.save(unit, id, snapshot);
                }
                return Ok(());
            }
            Event::Compared { id, saved, snapshots } => {
                self.digest(id, saved, snapshots);
                return Ok(());
            }
            Event::Fatal(error) => return Err(error.into()),
        };
        self.feed(input)
    }

    fn send_gradient(
        &mut self,
        recipient: Recipient,
        of: GradientOf,
        gradient: Vec<f32>,
    ) -> Result<(), AgentError> {
        let (unit, elements) = (recipient.unit, gradient.len() as u64);
        let header = match of {
            GradientOf::Decided(decision) => TransferHeader::Gradient(GradientHeader {
                unit,
                decision,
                elements,
            }),
            GradientOf::Prepared(Prepared { run_gen, step, norm }) => {
                TransferHeader::Prepared(PreparedHeader {
                    unit,
                    run_gen,
                    step,
                    norm,
                    elements,
                })
            }
        };
        self.followers
            .send(recipient, Sending::Gradient(header, gradient))
    }

    fn send_state(
        &mut self,
        recipient: Recipient,
        header: StateHeader,
        reader: Reader,
        snapshot: UnitSnapshot,
    ) -> Result<(), AgentError> {
        match reader {
            // Ordered in time, and given too late.
            Reader::Connection if self.serving.is_over(recipient.generation) => Ok(()),
            Reader::Connection => {
                let Recipient { generation, to, .. } = recipient;
                self.mesh.send_state(generation, to, header, Box::new(snapshot));
                Ok(())
            }
            Reader::Copy => self.followers.send(recipient, Sending::Copy(header, snapshot)),
        }
    }

    /// A copy is no longer being sent, as if it had been sent. Without it the follower cannot use the gradients after it, so it asks for
    /// the copy again.
    pub(super) fn copy_left_off(&mut self, recipient: Recipient) -> Result<(), AgentError> {
        let Recipient { generation, to, unit } = recipient;
        self.feed(MemberInput::Served { generation, to, unit })
    }

    /// There was no room for a copy: it is made anew after a later commit.
    pub(super) fn copy_without_room(&mut self, recipient: Recipient) -> Result<(), AgentError> {
        let Recipient { generation, to, unit } = recipient;
        self.feed(MemberInput::NotCopied(generation, to, unit))
    }

    pub(super) fn on_peer_event(&mut self, event: PeerEvent) -> Result<(), AgentError> {
        let input = match event {
            PeerEvent::Connected { generation, peer } => MemberInput::Connected { generation, peer },
            PeerEvent::Closed { generation, peer } => MemberInput::Closed { generation, peer },
            PeerEvent::Damaged { generation, from } => MemberInput::Damaged { generation, from },
            PeerEvent::Message {
                generation,
                from,
                message,
            } => MemberInput::Peer {
                generation,
                from,
                message,
            },
            PeerEvent::StateProgress {
                generation,
                from,
                unit,
            } => MemberInput::FetchProgress {
                generation,
                from,
                unit,
            },
            PeerEvent::StateSent { generation, to, unit } => MemberInput::Served { generation, to, unit },
            PeerEvent::State {
                generation,
                from,
                header,
                data,
            } => return self.state_arrived(generation, from, &header, data),
            PeerEvent::GradientSent { generation, to, unit } => {
                MemberInput::Forwarded { generation, to, unit }
            }
            PeerEvent::Gradient {
                generation,
                from,
                header,
                data,
            } => return self.gradient_arrived(generation, from, &header, data),
            PeerEvent::PreparedGradient {
                generation,
                from,
                header,
                data,
            } => return self.prepared_arrived(generation, from, header, data),
            PeerEvent::StateFailed {
                generation,
                from,
                unit,
                why,
            } => {
                tracing::warn!(%generation, %from, %why, "a state or a gradient is refused; the unit is asked for again");
                MemberInput::FetchFailed {
                    generation,
                    from,
                    unit,
                }
            }
            PeerEvent::Refused {
                generation,
                peer,
                why,
            } => {
                tracing::warn!(%generation, %peer, %why, "no connection to a peer");
                return Ok(());
            }
        };
        self.feed(input)
    }

    fn state_arrived(
        &mut self,
        generation: Generation,
        from: WorkerId,
        header: &StateHeader,
        data: Vec<f32>,
    ) -> Result<(), AgentError> {
        let StateHeader { unit, id, .. } = *header;
        let progress = header.progress;
        let staged = Staged::State(unit, id, UnitState { progress, data });
        let fetched = MemberInput::Fetched {
            generation,
            from,
            unit,
            id,
            decision: header.decision,
        };
        self.offer(staged, fetched)
    }

    fn gradient_arrived(
        &mut self,
        generation: Generation,
        from: WorkerId,
        header: &GradientHeader,
        data: Vec<f32>,
    ) -> Result<(), AgentError> {
        let GradientHeader { unit, decision, .. } = *header;
        let gradient = MemberInput::Gradient {
            generation,
            from,
            unit,
            decision,
        };
        self.offer(Staged::Gradient(unit, decision.id, data), gradient)
    }

    fn prepared_arrived(
        &mut self,
        generation: Generation,
        from: WorkerId,
        header: PreparedHeader,
        data: Vec<f32>,
    ) -> Result<(), AgentError> {
        let PreparedHeader {
            unit,
            run_gen,
            step,
            norm,
            ..
        } = header;
        let gradient = MemberInput::PreparedGradient {
            generation,
            from,
            unit,
            prepared: Prepared { run_gen, step, norm },
        };
        self.offer(Staged::Prepared(header, data), gradient)
    }

    pub(super) fn on_store_event(&mut self, event: StoreEvent) -> Result<(), AgentError> {
        let (unit, id, step) = match &event {
            StoreEvent::Progress(unit, id) => (*unit, *id, ReadStep::Progress),
            StoreEvent::Loaded(unit, id, _) => (*unit, *id, ReadStep::Loaded),
            StoreEvent::Failed(unit, id, false) => (*unit, *id, ReadStep::Failed),
            StoreEvent::Failed(unit, id, true) => (*unit, *id, ReadStep::Refused),
        };
        let Some(generation) = self.loading.step(id, unit, step) else {
            return Ok(());
        };
        let from = self.me;
        match event {
            StoreEvent::Progress(..) => self.feed(MemberInput::FetchProgress {
                generation,
                from,
                unit,
            }),
            StoreEvent::Failed(..) => self.feed(MemberInput::FetchFailed {
                generation,
                from,
                unit,
            }),
            StoreEvent::Loaded(_, _, state) => {
                let fetched = MemberInput::Fetched {
                    generation,
                    from,
                    unit,
                    id,
                    decision: None,
                };
                let left = self.offer_staged(Staged::State(unit, id, state), fetched)?;
                // While a fence is answered nobody takes it, and a member that trains does not need it.
                let loads = matches!(self.member.status().phase, Phase::Idle | Phase::Loading);
                if let Some(Staged::State(unit, id, state)) = left
                    && loads
                    && self.member.held().get(&unit) != Some(&id)
                {
                    self.loading.keep(id, unit, state);
                }
                Ok(())
            }
        }
    }

    /// Offers what has arrived to the member, which takes it at once or never.
    fn offer(&mut self, staged: Staged, arrived: MemberInput) -> Result<(), AgentError> {
        self.offer_staged(staged, arrived).map(drop)
    }

    /// The same; returns what the member did not take.
    fn offer_staged(&mut self, staged: Staged, arrived: MemberInput) -> Result<Option<Staged>, AgentError> {
        self.arrivals.stage(staged);
        let fed = self.feed(arrived);
        let left = self.arrivals.unstage();
        fed.map(|()| left)
    }

    pub(super) fn tick(&mut self) -> Result<(), AgentError> {
        if self.mesh.is_stuck() {
            return Err(AgentError::DeviceStuck);
        }
        self.feed(MemberInput::Tick)
    }

    pub(super) fn on_coordinator_event(&mut self, event: UplinkEvent) -> Result<(), AgentError> {
        match event {
            UplinkEvent::Up(welcome) if welcome.run != self.run.run => Err(AgentError::OtherRun {
                before: self.run.run.clone(),
                now: welcome.run,
            }),
            UplinkEvent::Up(_) => {
                self.attached = true;
                self.feed(MemberInput::Stream)
            }
            UplinkEvent::Down => {
                self.attached = false;
                self.feed(MemberInput::StreamDown)
            }
            UplinkEvent::Order { term, order } => self.feed(MemberInput::Order { term, order }),
            UplinkEvent::Refused(reason) => Err(AgentError::Refused(reason)),
        }
    }
}
