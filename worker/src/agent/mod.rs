//! The agent: drives the protocol's [`Member`] with the coordinator's stream, the peers, the engine and the clock.
//!
//! It decides nothing: inputs go to the machine, effects are carried out in their order. Three threads of work meet here:
//! the coordinator's stream ([`uplink`]), the peers' connections (`transport::tcp`) and the engine ([`engine_thread`]).

pub mod engine_thread;
pub mod uplink;

use crate::engine::UnitState;
use crate::transport::tcp::{Mesh, PeerEvent};
use engine_thread::{Command, Event};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Receiver;
use uplink::{Uplink, UplinkEvent};
use varuna_plan::{Generation, StateId, Unit, WorkerId};
use varuna_protocol::{Member, MemberEffect, MemberInput, Order, Report, Time};

/// How often the machine sees the clock.
const TICK: Duration = Duration::from_millis(20);

/// Why a worker ends before it is released.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The device or libtorch failed; the state here is in doubt.
    #[error("the engine failed: {0}")]
    Engine(#[from] crate::engine::EngineError),
    /// The engine's thread is gone.
    #[error("the engine's thread has ended")]
    EngineGone,
    /// The coordinator does not want this worker.
    #[error("the coordinator refused this worker: {0}")]
    Refused(String),
    /// Nobody coordinates.
    #[error("no coordinator at {address} for {seconds} s; this worker has no task and ends")]
    Orphan {
        /// Where it was looked for.
        address: String,
        /// How long.
        seconds: u64,
    },
}

/// All that may happen to a worker.
pub enum Happening {
    /// From the engine's thread.
    Engine(Event),
    /// From a peer.
    Peer(PeerEvent),
}

/// The parts that the agent joins.
pub struct Agent {
    me: WorkerId,
    member: Member,
    engine: SyncSender<Command>,
    mesh: Arc<Mesh>,
    uplink: Uplink,
    /// Units that arrived from a peer and wait for the member's word.
    staged: BTreeMap<(Unit, StateId), UnitState>,
    start: Instant,
    released: bool,
}
