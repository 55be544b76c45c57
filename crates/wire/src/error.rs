//! What can be wrong with a message.

use crate::version::VERSIONS;
use varuna_protocol::Versions;

/// Why a message cannot be understood. The sender has another version, or is faulty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The peer speaks other versions.
    #[error(
        "the other side speaks {found} of the protocol, this build {expected}; use builds of one release or of neighbouring ones"
    )]
    Version {
        /// The versions that the peer speaks.
        found: Versions,
        /// The versions that this build speaks.
        expected: Versions,
    },
    /// A required field is missing.
    #[error("message {message}: field {field} is missing")]
    Missing {
        /// Message type.
        message: &'static str,
        /// Field name.
        field: &'static str,
    },
    /// A field has a value that is not allowed.
    #[error("message {message}: field {field} is {value}, allowed is {allowed}")]
    Value {
        /// Message type.
        message: &'static str,
        /// Field name.
        field: &'static str,
        /// The value found.
        value: String,
        /// Values that are allowed.
        allowed: &'static str,
    },
}

impl WireError {
    /// Refuses a sender that speaks these versions if this build speaks none of them.
    pub(crate) fn unless_common(found: Versions) -> Result<(), WireError> {
        match VERSIONS.common(found) {
            Some(_) => Ok(()),
            None => Err(WireError::Version {
                found,
                expected: VERSIONS,
            }),
        }
    }

    pub(crate) fn value(
        message: &'static str,
        field: &'static str,
        value: impl ToString,
        allowed: &'static str,
    ) -> Self {
        WireError::Value {
            message,
            field,
            value: value.to_string(),
            allowed,
        }
    }
}

/// The value of a required field.
pub(crate) fn need<T>(value: Option<T>, message: &'static str, field: &'static str) -> Result<T, WireError> {
    value.ok_or(WireError::Missing { message, field })
}
