//! Event files as TensorBoard reads them: scalars by step, as bytes.
//!
//! An event file is a sequence of records, each an `Event` message of TensorFlow's protobuf files. This crate makes those bytes and
//! does no I/O. Why it is our own: `docs/adr/0030-event-files.md`.

mod event;
mod record;

pub use event::{Scalar, file_name, scalars, start, version};
pub use record::record;
