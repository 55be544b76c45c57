//! Identifiers: different quantities are different types.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
pub use varuna_model::Unit;

/// One worker process for its whole life. Drawn anew at every process start (a nonce, or the hash of a pod's uid), never
/// reused. Serialized as 16 hex digits, because JSON readers lose bits of large integers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u64);

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "w{:x}", self.0)
    }
}

/// The text is not 16 hex digits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("worker id {0:?} is not 16 hexadecimal digits")]
pub struct ParseWorkerIdError(String);

impl FromStr for WorkerId {
    type Err = ParseWorkerIdError;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let ok = s.len() == 16 && s.bytes().all(|b| b.is_ascii_hexdigit());
        match u64::from_str_radix(s, 16) {
            Ok(n) if ok => Ok(WorkerId(n)),
            _ => Err(ParseWorkerIdError(s.to_owned())),
        }
    }
}

impl Serialize for WorkerId {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WorkerId {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
        impl $name {
            /// The following number; the greatest one has none.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0.saturating_add(1))
            }
        }
    };
}

number! {
    /// Number of a plan; grows by one with every persisted plan, is never reused, and fences everything. 0 = before the first.
    Generation
}
number! {
    /// Optimizer steps done. A state "at step k" has applied k steps; the step run from it consumes samples [kM, (k+1)M).
    Step
}
