//! The connections of all generations, with communicators beside each generation's link.

use super::super::Link;
use super::super::data_plane::DataPlane;
use super::super::tcp::StateSource;
use super::{Nccl, NcclLink};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use varuna_frames::{StateHeader, TransferHeader};
use varuna_plan::{Generation, WorkerId};
use varuna_protocol::PeerMessage;

/// Another data plane, whose links it gives communicators.
pub struct NcclPlane<P> {
    inner: P,
    me: WorkerId,
    nccl: Option<Arc<Nccl>>,
    /// Of the generations that were run and are not closed: two at most.
    links: Mutex<BTreeMap<Generation, Arc<NcclLink>>>,
}

impl<P: DataPlane> NcclPlane<P> {
    /// Makes a data plane over these connections. Without NCCL the worker still tells its peers so.
    #[must_use]
    pub fn new(inner: P, me: WorkerId, nccl: Option<Arc<Nccl>>) -> NcclPlane<P> {
        NcclPlane {
            inner,
            me,
            nccl,
            links: Mutex::default(),
        }
    }
}

impl<P: DataPlane> DataPlane for NcclPlane<P> {
    fn open(&self, generation: Generation, secret: &str) {
        self.inner.open(generation, secret);
    }

    fn dial(&self, generation: Generation, peer: WorkerId, address: &str) {
        self.inner.dial(generation, peer, address);
    }

    fn close(&self, generation: Generation) {
        let closed = self.links.lock().remove(&generation);
        self.inner.close(generation);
        if let Some(link) = closed {
            link.abort();
        }
    }

    fn link(&self, generation: Generation) -> Option<Arc<dyn Link>> {
        let inner = self.inner.link(generation)?;
        let mut links = self.links.lock();
        let link = links
            .entry(generation)
            .or_insert_with(|| Arc::new(NcclLink::new(self.me, inner, self.nccl.clone())));
        Some(Arc::clone(link) as Arc<dyn Link>)
    }

    fn send_message(&self, generation: Generation, to: WorkerId, message: &PeerMessage) {
        self.inner.send_message(generation, to, message);
    }

    fn stop_states(&self, generation: Generation) {
        self.inner.stop_states(generation);
    }

    fn send_state(
        &self,
        generation: Generation,
        to: WorkerId,
        header: StateHeader,
        state: Box<dyn StateSource>,
    ) {
        self.inner.send_state(generation, to, header, state);
    }

    fn send_gradient(
        &self,
        generation: Generation,
        to: WorkerId,
        header: TransferHeader,
        gradient: Vec<f32>,
    ) {
        self.inner.send_gradient(generation, to, header, gradient);
    }

    fn is_stuck(&self) -> bool {
        self.nccl.as_ref().is_some_and(|nccl| nccl.is_stuck())
    }
}
