//! The interface of a step to the network: boundaries to and from neighbouring stages, and sums of gradients over the holders of each unit.

use super::super::{EngineConfig, EngineError};
use super::boundary::{brought, fetched, kind_of, packet_of};
use crate::state::{GatheredUnit, TAIL};
use crate::transport::ring::{Reducer, RingOf};
use crate::transport::{Link, LinkError, Tag};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tch::Tensor;
use varuna_plan::{Plan, Step, Unit, WorkerId};
use varuna_torch::{Fetch, FlatBuffer, Lease};

/// How long the device may take to end what it was told to stop. It is milliseconds; more means that it hangs.
pub(super) const ENDING: Duration = Duration::from_secs(5);

/// A unit whose gradient is completely summed.
pub(super) struct Summed {
    pub(super) unit: Unit,
    /// Ends the exchange's hold on the gradient.
    pub(super) lease: Lease,
    /// The sum is in the host's memory. If the device has its own memory, the sum has to be loaded from there; else it is where it was.
    pub(super) on_host: bool,
}

/// The network of one worker within one step. Every wait ends by the step's deadline or by a fence.
pub(super) trait Exchange {
    /// Sends a boundary tensor, samples first, which nobody changes any more.
    fn send(&mut self, to: WorkerId, tag: Tag, tensor: &Tensor) -> Result<(), EngineError>;

    /// Waits for a boundary tensor of this shape, samples first, in the format that boundaries have; it is on the engine's device.
    fn receive(&mut self, from: WorkerId, tag: Tag, shape: &[usize]) -> Result<Tensor, EngineError>;

    /// Begins to bring the parameters of a unit of the undivided layout from those that hold them to all that compute with them, from device to device;
    /// false where they have to be sent and received in pieces.
    fn gather(&mut self, _whole: Unit, _here: &GatheredUnit) -> Result<bool, EngineError> {
        Ok(false)
    }

    /// What is computed from here on may use the parameters of a segment: it comes after those that [`Exchange::gather`] brings.
    fn use_parameters(&mut self, _segment: u32) -> Result<(), EngineError> {
        Ok(())
    }

    /// Begins the sum of a unit's gradient over those that compute with it, beside what is still computed. Nobody touches the gradient until
    /// [`Exchange::next`] or [`Exchange::stop`] returns it.
    fn begin(&mut self, unit: Unit, gradient: &FlatBuffer) -> Result<(), EngineError>;

    /// Waits for the next unit that is completely summed.
    fn next(&mut self) -> Result<Summed, EngineError>;

    /// Continues operations that waited for the device, as far as the device has come. Never waits. Fails if the generation was fenced: a
    /// step that waits for nobody would not notice that before its end.
    fn poll_pending(&mut self) -> Result<(), EngineError>;

    /// Ends all sums; returns the units that were completely summed and not returned yet. An error means that the process must end.
    fn stop(&mut self) -> Result<Vec<Summed>, EngineError>;
}

/// What goes on its way as soon as it has reached the host.
enum PendingDeviceCopy {
    Boundary { fetch: Fetch, to: WorkerId, tag: Tag },
    Gradient { fetch: Fetch, unit: Unit, lease: Lease },
}

impl PendingDeviceCopy {
    fn has_ended(&self) -> bool {
        let (PendingDeviceCopy::Boundary { fetch, .. } | PendingDeviceCopy::Gradient { fetch, .. }) = self;
        fetch.has_ended()
    }
}

/// Packets over a [`Link`] through the host's memory, and rings of them.
pub(super) struct LinkExchange<'a> {
    pub(super) config: &'a EngineConfig,
    pub(super) plan: &'a Plan,
    pub(super) step: Step,
    link: &'a Arc<dyn Link>,
    reducer: Reducer<Lease>,
    /// Units that no other worker holds: their gradients are sums already, and never leave the device.
    alone: VecDeque<Summed>,
    /// What the device is still bringing to the host, in the order in which it was begun.
    leaving: VecDeque<PendingDeviceCopy>,
    pub(super) deadline: Instant,
}

impl<'a> LinkExchange<'a> {
    /// # Errors
    /// The reduction's thread does not start.
    pub(super) fn start(
        config: &'a EngineConfig,
        plan: &'a Plan,
        step: Step,
        link: &'a Arc<dyn Link>,
        deadline: Instant,
    ) -> Result<Self, EngineError> {
        let reducer = Reducer::start(Arc::clone(link), config.me)
            .map_err(|e| EngineError::Thread("that sums gradients", e.to_string()))?;
        Ok(LinkExchange {
            config,
            plan,
            step,
            link,
            reducer,
            alone: VecDeque::new(),
            leaving: VecDeque::new(),
            deadline,
        })
    }

    /// Sends on what has reached the host; waits for the rest, too, if told so: before this worker waits for others, who may wait for it.
    pub(super) fn flush_fetched(&mut self, waits: bool) -> Result<(), EngineError> {
        // A device that is merely slow is planned around.
        let end = self.deadline + ENDING;
        while self
            .leaving
            .front()
            .is_some_and(|first| waits || first.has_ended())
        {
            match self.leaving.pop_front() {
                Some(PendingDeviceCopy::Boundary { fetch, to, tag }) => {
                    let packet = fetched(fetch, self.config.backend.numerics.boundary(), end)?;
                    self.link.send(to, tag, packet, self.deadline)?;
                }
                Some(PendingDeviceCopy::Gradient {
                    fetch,
                    unit,
                    mut lease,
                }) => {
                    fetch.finish(end, |elements: &[f32]| lease.set(0, elements))?;
                    let ring = ring_of(self.plan, unit, lease.len());
                    self.reducer.begin(self.step, unit, ring, lease, self.deadline);
                }
                None => {}
            }
        }
        Ok(())
    }
}

impl Exchange for LinkExchange<'_> {
    fn send(&mut self, to: WorkerId, tag: Tag, tensor: &Tensor) -> Result<(), EngineError> {
        let format = self.config.backend.numerics.boundary();
        let narrow = tensor.detach().to_kind(kind_of(format));
        match self.config.backend.streams.fetch(&narrow)? {
            Some(fetch) => {
                self.leaving
                    .push_back(PendingDeviceCopy::Boundary { fetch, to, tag });
                self.flush_fetched(false)
            }
            None => Ok(self
                .link
                .send(to, tag, packet_of(&narrow, format)?, self.deadline)?),
        }
    }

    fn receive(&mut self, from: WorkerId, tag: Tag, shape: &[usize]) -> Result<Tensor, EngineError> {
        self.flush_fetched(true)?;
        let packet = self.link.recv(from, tag, self.deadline)?;
        let own = (shape.iter().product(), self.config.backend.numerics.boundary());
        if (packet.elements(), packet.format()) != own {
            return Err(LinkError::unfit(&packet, (from, tag), own).into());
        }
        brought(packet, &sizes(shape), &self.config.backend)
    }

    fn begin(&mut self, unit: Unit, gradient: &FlatBuffer) -> Result<(), EngineError> {
        let refused = |e| EngineError::of_buffer(unit, e);
        if self.plan.group(unit).len() <= 1 {
            self.alone.push_back(Summed {
                unit,
                lease: gradient.lease_unread().map_err(refused)?,
                on_host: false,
            });
            return Ok(());
        }
        if let Some(fetch) = self.config.backend.streams.fetch(&gradient.tensor()?)? {
            let lease = gradient.lease_unread().map_err(refused)?;
            self.leaving
                .push_back(PendingDeviceCopy::Gradient { fetch, unit, lease });
            return self.flush_fetched(false);
        }
        let lease = gradient.lease().map_err(refused)?;
        let ring = ring_of(self.plan, unit, lease.len());
        self.reducer.begin(self.step, unit, ring, lease, self.deadline);
        Ok(())
    }

    fn next(&mut self) -> Result<Summed, EngineError> {
        // Also where no unit is shared: the last boundary may still be on its way to the host, and no later call would send it.
        self.flush_fetched(true)?;
        match self.alone.pop_front() {
            Some(alone) => Ok(alone),
            None => Ok(over_ring(self.reducer.wait()?)),
        }
    }

    fn poll_pending(&mut self) -> Result<(), EngineError> {
        if self.link.is_aborted() {
            return Err(LinkError::Aborted.into());
        }
        self.flush_fetched(false)
    }

    fn stop(&mut self) -> Result<Vec<Summed>, EngineError> {
        // Data that is not waited for would lose its memory.
        let end = Instant::now() + ENDING;
        for leaving in self.leaving.drain(..) {
            let (PendingDeviceCopy::Boundary { fetch, .. } | PendingDeviceCopy::Gradient { fetch, .. }) =
                leaving;
            fetch.finish(end, |_: &[u8]| ())?;
        }
        let summed = self.reducer.stop().into_iter().map(over_ring);
        Ok(self.alone.drain(..).chain(summed).collect())
    }
}

/// The ring of a unit of the undivided layout whose gradient has this many elements, with its tail.
fn ring_of(plan: &Plan, whole: Unit, elements: usize) -> RingOf {
    let members = plan.group(whole).to_vec();
    let layout = plan.layout;
    let is_shared = layout.is_shared_out(members.len());
    let (all, places) = (elements - TAIL, members.len());
    let mut slices: Vec<usize> = match is_shared {
        true => {
            let starts = layout.slices(places).into_iter();
            starts
                .map(|range| range as usize * all / layout.ranges as usize)
                .collect()
        }
        false => (0..=places).map(|slice| slice * all / places).collect(),
    };
    // The tail always goes with the last slice. So slices are the same with and without sharding, and their sums have the same bits, if
    // ranges can be divided evenly.
    if let Some(end) = slices.last_mut() {
        *end = elements;
    }
    RingOf {
        members,
        slices: Some(slices),
        is_shared,
    }
}

/// A shape as libtorch counts.
pub(super) fn sizes(shape: &[usize]) -> Vec<i64> {
    let sizes = shape.iter().map(|n| i64::try_from(*n).unwrap_or(i64::MAX));
    sizes.collect()
}

/// Rings sum in the host's memory.
fn over_ring((unit, lease): (Unit, Lease)) -> Summed {
    Summed {
        unit,
        lease,
        on_host: true,
    }
}
