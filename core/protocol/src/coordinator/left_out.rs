//! The reasons why attached workers have no part in the plan in force, as people and programs see them.

use serde::{Deserialize, Serialize};

/// Why a worker that is attached has no part in the plan in force.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeftOut {
    /// In one word, for programs.
    pub reason: LeftOutReason,
    /// In a sentence, for people.
    pub why: String,
}

/// The reasons. The serialized names are part of the control interface.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LeftOutReason {
    /// It will be stopped, and is planned around.
    Leaving,
    /// Its state differed from that of the other holders. This process is never used again.
    WrongBits,
    /// A worker of its name ended within its first steps several times, or had wrong bits. It is used again after a while.
    Unsound,
    /// It could not read its data or its model's code, which other workers can. It is used again after a while.
    NoData,
    /// It ran out of memory several times, and no better plan takes less of it.
    NoMemory,
    /// It and a worker of the plan could not reach one another. It is used again after a while.
    BadLink,
    /// It computes slower than others, and the planner's best plan does without it.
    Slow,
    /// The job may not use more workers now.
    MaxWorkers,
    /// The planner's best plan does without it.
    NotNeeded,
    /// A plan with it would not repay the cost of the change before the next one is expected.
    NotWorthAChange,
    /// The plan was made before it could be used.
    New,
    /// A reason of a coordinator of a later release that this one does not know. A coordinator never gives it itself.
    #[serde(other)]
    Unknown,
}

impl LeftOutReason {
    /// The serialized name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            LeftOutReason::Leaving => "leaving",
            LeftOutReason::WrongBits => "wrongBits",
            LeftOutReason::Unsound => "unsound",
            LeftOutReason::NoData => "noData",
            LeftOutReason::NoMemory => "noMemory",
            LeftOutReason::BadLink => "badLink",
            LeftOutReason::Slow => "slow",
            LeftOutReason::MaxWorkers => "maxWorkers",
            LeftOutReason::NotNeeded => "notNeeded",
            LeftOutReason::NotWorthAChange => "notWorthAChange",
            LeftOutReason::New => "new",
            LeftOutReason::Unknown => "unknown",
        }
    }
}
