//! A generation's link with communicators beside it.

use super::super::{Address, Link, LinkError, Packet, Tag};
use super::id_exchange::IdExchange;
use super::{Communicators, EDGE_BLOCKS, Nccl, PlannedCommunicator, planned_communicators};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use varuna_cuda::{Membership, NcclError, UniqueId};
use varuna_plan::{Plan, WorkerId};

/// Messages go over the link as they would without this; the engine asks for the communicators.
pub struct NcclLink {
    me: WorkerId,
    inner: Arc<dyn Link>,
    /// None: this worker takes part in the meetings, and says that it has none.
    nccl: Option<Arc<Nccl>>,
    /// What the meetings came to: none if this worker has no NCCL.
    made: OnceLock<Option<Arc<Communicators>>>,
    /// Held while they are made, which happens once.
    making: Mutex<()>,
    aborted: AtomicBool,
}

impl NcclLink {
    /// Makes a link over a generation's link.
    #[must_use]
    pub fn new(me: WorkerId, inner: Arc<dyn Link>, nccl: Option<Arc<Nccl>>) -> NcclLink {
        NcclLink {
            me,
            inner,
            nccl,
            made: OnceLock::new(),
            making: Mutex::default(),
            aborted: AtomicBool::new(false),
        }
    }

    /// Agrees with the other ranks of each communicator of this worker whether it is made; returns those that are.
    fn agree_on_communicators(
        &self,
        plan: &Plan,
        deadline: Instant,
    ) -> Result<Vec<(PlannedCommunicator, Membership)>, LinkError> {
        let mut memberships = Vec::new();
        // One answer for all communicators of the generation.
        let nccl = self.nccl.as_ref().filter(|nccl| nccl.offers());
        for (communicator, wanted) in (0u32..).zip(planned_communicators(plan)) {
            let ranks = wanted.ranks();
            let Some(rank) = ranks.iter().position(|w| *w == self.me) else {
                continue;
            };
            let id_exchange = IdExchange {
                link: &*self.inner,
                communicator,
                ranks: &ranks,
                rank,
                deadline,
            };
            let draw = || match nccl {
                Some(nccl) => UniqueId::draw(nccl.context.libraries()),
                None => Err(NcclError::Revoked),
            };
            let Some(id) = id_exchange.agree(nccl.is_some(), draw)? else {
                continue;
            };
            let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
            let membership = Membership {
                id,
                ranks: small(ranks.len()),
                rank: small(rank),
                blocks_max: matches!(wanted, PlannedCommunicator::Edge(_)).then_some(EDGE_BLOCKS),
            };
            memberships.push((wanted, membership));
        }
        Ok(memberships)
    }

    fn make(&self, plan: &Plan, deadline: Instant) -> Result<Option<Arc<Communicators>>, LinkError> {
        let memberships = self.agree_on_communicators(plan, deadline)?;
        let Some(nccl) = &self.nccl else {
            return Ok(self.made.get_or_init(|| None).clone());
        };
        let made = Communicators::make(nccl, memberships, &self.aborted, deadline);
        let made = Arc::new(made.map_err(|error| match error {
            NcclError::Revoked => LinkError::Aborted,
            other => LinkError::Nccl(other),
        })?);
        let made = self.made.get_or_init(|| Some(made)).clone();
        // The fence may have come after the last check of the threads that made them.
        if self.aborted.load(Ordering::SeqCst) {
            made.iter().for_each(|made| made.abort());
            return Err(LinkError::Aborted);
        }
        Ok(made)
    }
}

impl Link for NcclLink {
    fn send(&self, to: WorkerId, tag: Tag, packet: Packet, deadline: Instant) -> Result<(), LinkError> {
        self.inner.send(to, tag, packet, deadline)
    }

    fn recv(&self, from: WorkerId, tag: Tag, deadline: Instant) -> Result<Packet, LinkError> {
        self.inner.recv(from, tag, deadline)
    }

    fn recv_any(
        &self,
        wanted: &BTreeSet<Address>,
        deadline: Instant,
    ) -> Result<Option<(Address, Packet)>, LinkError> {
        self.inner.recv_any(wanted, deadline)
    }

    fn wake(&self) {
        self.inner.wake();
    }

    fn abort(&self) {
        self.aborted.store(true, Ordering::SeqCst);
        self.inner.abort();
        if let Some(Some(made)) = self.made.get() {
            made.abort();
        }
    }

    fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::SeqCst)
    }

    fn communicators(&self, plan: &Plan, deadline: Instant) -> Result<Option<Arc<Communicators>>, LinkError> {
        let _making = self.making.lock();
        match self.made.get() {
            Some(made) => Ok(made.clone()),
            None => self.make(plan, deadline),
        }
    }
}
