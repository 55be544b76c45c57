//! What can be wrong with a message.

/// A message that cannot be understood. The sender is of another version, or broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The peer speaks another version.
    #[error(
        "the worker speaks version {found} of the protocol, this coordinator version {expected}; use builds of one release"
    )]
    Version {
        /// What the peer said.
        found: u32,
        /// What this build speaks.
        expected: u32,
    },
    /// A field that must be there is not.
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
        /// What is allowed.
        allowed: &'static str,
    },
}

impl WireError {
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

/// A message field that must be there.
pub(crate) fn need<T>(value: Option<T>, message: &'static str, field: &'static str) -> Result<T, WireError> {
    value.ok_or(WireError::Missing { message, field })
}
