//! The kinds of faults.

use serde::{Deserialize, Serialize};

/// Which worker: a number that is taken modulo the number of workers that could be meant, when the fault begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Victim(pub u32);

/// A part of the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Part {
    /// From one worker to another, and not back.
    OneWay {
        /// The sender.
        from: Victim,
        /// The receiver.
        to: Victim,
    },
    /// Between two workers.
    Between {
        /// The one.
        one: Victim,
        /// The other.
        other: Victim,
    },
    /// From a worker to the coordinator, and not back.
    ToCoordinator(Victim),
    /// From the coordinator to a worker, and not back.
    FromCoordinator(Victim),
    /// Everything from and to a worker.
    Around(Victim),
    /// Everything from and to the coordinator.
    AroundCoordinator,
    /// All links.
    Everything,
}

/// How a part of the network is disturbed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Condition {
    /// Nothing passes and nobody is told: connections stay, new ones are accepted and never answered, ends are not seen. What
    /// is held passes when the fault ends, as TCP would send it again.
    Held,
    /// Connections are reset, and new ones too.
    Reset,
    /// Every piece is late.
    Delayed {
        /// By so much.
        ms: u64,
    },
    /// Packets are lost: a piece waits for its retransmission.
    Lossy {
        /// So many pieces of a hundred.
        percent: u32,
    },
    /// A slow link.
    Slow {
        /// What passes in a second.
        bytes_per_second: u64,
    },
}

/// What goes wrong.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "kind")]
pub enum Fault {
    /// Workers are killed with -9 at the same moment. Others take their place at the end.
    Kill {
        /// Which.
        victims: Vec<Victim>,
        /// The last holders of a unit, too. Otherwise others are killed in their place, or nobody.
        reckless: bool,
    },
    /// The coordinator is killed with -9, and started again at the end.
    KillCoordinator,
    /// A worker is stopped by SIGSTOP, and continued at the end.
    Pause {
        /// Which.
        victim: Victim,
    },
    /// The coordinator is stopped by SIGSTOP, and continued at the end.
    PauseCoordinator,
    /// A worker has notice (SIGTERM). Another takes its place once it has ended.
    Notice {
        /// Which.
        victim: Victim,
    },
    /// One more worker joins; at the end one has notice.
    Join,
    /// A part of the network is disturbed.
    Network {
        /// Which.
        part: Part,
        /// How.
        condition: Condition,
    },
    /// The disk of the run folder, where the record lies, is full.
    DiskFull,
    /// Every fsync of the coordinator fails.
    FsyncFails,
    /// The checkpoint store refuses everything.
    StoreDown,
    /// A worker gets no more memory.
    NoMemory {
        /// Which.
        victim: Victim,
    },
}

impl Fault {
    /// The kind's name, for counts.
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

/// A fault with its time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Planned {
    /// When it begins, milliseconds after the start of the timeline.
    pub at_ms: u64,
    /// How long it lasts, milliseconds.
    pub for_ms: u64,
    /// What it is.
    #[serde(flatten)]
    pub fault: Fault,
}

impl Planned {
    /// When it ends, milliseconds after the start of the timeline.
    #[must_use]
    pub fn end_ms(&self) -> u64 {
        self.at_ms + self.for_ms
    }
}
