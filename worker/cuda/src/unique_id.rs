//! What the ranks of a communicator find each other by.

use crate::libraries::Libraries;
use crate::nccl::NcclError;
use cudarc::nccl::sys::ncclUniqueId;
use std::ffi::c_char;

/// What the ranks of a communicator find each other by. One of them draws it and tells the others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId([u8; UniqueId::BYTES]);

impl std::fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // It opens a communicator, so it is in no log.
        f.write_str("UniqueId(..)")
    }
}

#[expect(unsafe_code, reason = "calls of NCCL's functions with places of their types")]
impl UniqueId {
    /// Length of an id.
    pub const BYTES: usize = 128;

    /// Draws one. The process that draws it must live until all ranks have joined.
    ///
    /// # Errors
    /// NCCL is absent, or finds no interface to listen on.
    pub fn draw(libraries: &Libraries) -> Result<UniqueId, NcclError> {
        let mut id = ncclUniqueId {
            internal: [0; UniqueId::BYTES],
        };
        let nccl = libraries.nccl()?;
        // SAFETY: a place for an id.
        let drawn = unsafe { (nccl.unique_id)(&raw mut id) };
        nccl.checked("ncclGetUniqueId", drawn, std::ptr::null_mut())?;
        Ok(UniqueId(id.internal.map(c_char::cast_unsigned)))
    }

    /// An id that another worker drew.
    #[must_use]
    pub fn of_bytes(bytes: [u8; UniqueId::BYTES]) -> UniqueId {
        UniqueId(bytes)
    }

    /// The id as bytes, to be sent to the other ranks.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; UniqueId::BYTES] {
        &self.0
    }

    pub(crate) fn raw(&self) -> ncclUniqueId {
        ncclUniqueId {
            internal: self.0.map(u8::cast_signed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_told_as_bytes_and_kept_out_of_logs() {
        let mut bytes = [0; UniqueId::BYTES];
        bytes[0] = 200;
        let id = UniqueId::of_bytes(bytes);
        assert_eq!(id.as_bytes(), &bytes);
        assert_eq!(id.raw().internal[0].cast_unsigned(), 200);
        assert_eq!(format!("{id:?}"), "UniqueId(..)");
    }
}
