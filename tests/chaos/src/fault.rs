//! The kinds of faults.

use serde::{Deserialize, Serialize};

/// A worker: the number is taken modulo the number of workers that are eligible when the fault begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Victim(pub u32);

/// A part of the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Part {
    /// From one worker to another, in one direction only.
    OneWay {
        /// The sender.
        from: Victim,
        /// The receiver.
        to: Victim,
    },
    /// Between two workers, in both directions.
    Between {
        /// The first worker.
        one: Victim,
        /// The second worker.
        other: Victim,
    },
    /// From a worker to the coordinator, in this direction only.
    ToCoordinator(Victim),
    /// From the coordinator to a worker, in this direction only.
    FromCoordinator(Victim),
    /// All connections of a worker.
    Around(Victim),
    /// All connections of the coordinator.
    AroundCoordinator,
    /// All links.
    Everything,
}

/// How a part of the network is disturbed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Condition {
    /// Nothing passes, and neither end notices: connections stay open, new ones are accepted and never answered, and the end of a
    /// connection is not passed on. Data that was held passes when the fault ends, as if TCP had sent it again.
    Held,
    /// Existing and new connections are reset.
    Reset,
    /// All data is delayed.
    Delayed {
        /// The delay, in milliseconds.
        ms: u64,
    },
    /// Packets are lost: a piece waits for its retransmission.
    Lossy {
        /// Percentage of pieces that are lost.
        percent: u32,
    },
    /// A slow link.
    Slow {
        /// Bytes that pass in a second.
        bytes_per_second: u64,
    },
}

/// A fault.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "kind")]
pub enum Fault {
    /// Workers are killed with SIGKILL at the same moment. Others replace them at the end of the fault.
    Kill {
        /// The workers to kill.
        victims: Vec<Victim>,
        /// Whether the last holders of a unit may be killed too. Otherwise other workers are killed instead, or none.
        reckless: bool,
    },
    /// The coordinator is killed with SIGKILL, and started again at the end of the fault.
    KillCoordinator,
    /// A worker is stopped by SIGSTOP, and continued at the end of the fault.
    Pause {
        /// The worker.
        victim: Victim,
    },
    /// The coordinator is stopped by SIGSTOP, and continued at the end of the fault.
    PauseCoordinator,
    /// A worker gets a notice (SIGTERM). Another one replaces it once it has ended.
    Notice {
        /// The worker.
        victim: Victim,
    },
    /// One more worker joins. At the end of the fault one worker gets a notice.
    Join,
    /// A part of the network is disturbed.
    Network {
        /// The part of the network.
        part: Part,
        /// The disturbance.
        condition: Condition,
    },
    /// The disk of the run folder, which contains the record, is full.
    DiskFull,
    /// Every fsync of the coordinator fails.
    FsyncFails,
    /// The checkpoint store refuses all requests.
    StoreDown,
    /// A worker cannot allocate more memory.
    NoMemory {
        /// The worker.
        victim: Victim,
    },
}

impl Fault {
    /// The name of the kind, for statistics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Fault::Kill { victims, .. } if victims.len() > 1 => "killTogether",
            Fault::Kill { .. } => "kill",
            Fault::KillCoordinator => "killCoordinator",
            Fault::Pause { .. } => "pause",
            Fault::PauseCoordinator => "pauseCoordinator",
            Fault::Notice { .. } => "notice",
            Fault::Join => "join",
            Fault::Network { part, condition } => match (condition, part) {
                (
                    Condition::Held,
                    Part::OneWay { .. } | Part::ToCoordinator(_) | Part::FromCoordinator(_),
                ) => "cutOneWay",
                (Condition::Held, _) => "cut",
                (Condition::Reset, _) => "reset",
                (Condition::Delayed { .. }, _) => "delay",
                (Condition::Lossy { .. }, _) => "loss",
                (Condition::Slow { .. }, _) => "slowLink",
            },
            Fault::DiskFull => "diskFull",
            Fault::FsyncFails => "fsyncFails",
            Fault::StoreDown => "storeDown",
            Fault::NoMemory { .. } => "noMemory",
        }
    }
}

/// A fault with the time at which it happens.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Planned {
    /// Begin of the fault, in milliseconds after the start of the timeline.
    pub at_ms: u64,
    /// Duration of the fault, in milliseconds.
    pub for_ms: u64,
    /// The fault.
    #[serde(flatten)]
    pub fault: Fault,
}

impl Planned {
    /// End of the fault, in milliseconds after the start of the timeline.
    #[must_use]
    pub fn end_ms(&self) -> u64 {
        self.at_ms + self.for_ms
    }
}
