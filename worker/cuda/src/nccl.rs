//! NCCL: its functions, its results, and how a communicator is configured.

use crate::driver::CudaError;
use crate::library::{LoadError, functions};
use cudarc::driver::sys::CUstream;
use cudarc::nccl::sys::{ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclUniqueId};
use std::ffi::{CStr, c_char, c_int, c_void};

functions! {
    /// NCCL's functions that are called.
    Nccl {
        unique_id = ncclGetUniqueId(*mut ncclUniqueId) -> c_int;
        init = ncclCommInitRankConfig(*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut ncclConfig_t) -> c_int;
        async_error = ncclCommGetAsyncError(ncclComm_t, *mut c_int) -> c_int;
        revoke = ncclCommRevoke(ncclComm_t, c_int) -> c_int;
        abort = ncclCommAbort(ncclComm_t) -> c_int;
        finalize = ncclCommFinalize(ncclComm_t) -> c_int;
        destroy = ncclCommDestroy(ncclComm_t) -> c_int;
        group_start = ncclGroupStart() -> c_int;
        group_end = ncclGroupEnd() -> c_int;
        send = ncclSend(*const c_void, usize, ncclDataType_t, c_int, ncclComm_t, CUstream) -> c_int;
        receive = ncclRecv(*mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, CUstream) -> c_int;
        all_reduce = ncclAllReduce(
            *const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, CUstream
        ) -> c_int;
        reduce = ncclReduce(
            *const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, c_int, ncclComm_t, CUstream
        ) -> c_int;
        broadcast = ncclBroadcast(
            *const c_void, *mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, CUstream
        ) -> c_int;
        error_string = ncclGetErrorString(c_int) -> *const c_char;
        last_error = ncclGetLastError(ncclComm_t) -> *const c_char;
    }
}

/// `ncclSuccess`.
pub(crate) const SUCCESS: c_int = 0;
/// `ncclInProgress`: a communicator without blocking works on it in the background.
pub(crate) const IN_PROGRESS: c_int = 7;
/// `NCCL_CONFIG_UNDEF_INT`: the library chooses.
const UNDEFINED: c_int = c_int::MIN;
/// `NCCL_CONFIG_INITIALIZER`'s: it tells the library which fields the caller's structure has.
const MAGIC: u32 = 0xcafe_beef;
/// `NCCL_VERSION(2, 28, 9)`, whose header the structure is from. Later libraries read older structures by their size.
const HEADER_VERSION: u32 = 22_809;

/// Why an operation was not issued or not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NcclError {
    /// A call failed, or NCCL reports a failure of what it did in the background. The communicator is of no more use.
    #[error("{call}: {what} (error {code} of NCCL); {detail}")]
    Call {
        /// NCCL's function.
        call: &'static str,
        /// Result of the call.
        code: i32,
        /// What NCCL says of the result.
        what: String,
        /// NCCL's last error message.
        detail: String,
    },
    /// What was asked for is none.
    #[error("{field} is {value}; allowed is {allowed}")]
    Argument {
        /// Name of the argument.
        field: &'static str,
        /// Value of the argument.
        value: u64,
        /// Values that are allowed.
        allowed: String,
    },
    /// The call was not done in time: a peer hangs, or is gone.
    #[error("{what} was not done by its deadline")]
    Deadline {
        /// What the call waited for.
        what: &'static str,
    },
    /// The communicator was revoked, or its making was stopped: its generation has ended on this worker.
    #[error("the communicator was revoked")]
    Revoked,
    /// The library cannot be loaded.
    #[error(transparent)]
    Absent(#[from] LoadError),
    /// The driver refuses.
    #[error(transparent)]
    Device(#[from] CudaError),
}

/// How communicators are made: without blocking, with at most so many blocks of a kernel (None: as NCCL likes).
pub(crate) fn config(blocks_max: Option<u32>) -> ncclConfig_t {
    let blocks = blocks_max.and_then(|n| c_int::try_from(n).ok());
    ncclConfig_t {
        size: size_of::<ncclConfig_t>(),
        magic: MAGIC,
        version: HEADER_VERSION,
        blocking: 0,
        cgaClusterSize: UNDEFINED,
        minCTAs: UNDEFINED,
        maxCTAs: blocks.unwrap_or(UNDEFINED),
        netName: std::ptr::null(),
        splitShare: UNDEFINED,
        trafficClass: UNDEFINED,
        commName: std::ptr::null(),
        collnetEnable: UNDEFINED,
        CTAPolicy: UNDEFINED,
        shrinkShare: UNDEFINED,
        nvlsCTAs: UNDEFINED,
        nChannelsPerNetPeer: UNDEFINED,
        nvlinkCentricSched: UNDEFINED,
    }
}

#[expect(unsafe_code, reason = "calls of NCCL's functions with handles that live")]
impl Nccl {
    /// Turns a result into this crate's. What a communicator without blocking does in the background is no failure.
    /// `communicator` is null or lives.
    pub(crate) fn checked(
        &self,
        call: &'static str,
        code: c_int,
        communicator: ncclComm_t,
    ) -> Result<(), NcclError> {
        if code == SUCCESS || code == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: both functions return null or a text that ends with a zero; the second takes null, too.
        let [what, detail] = unsafe {
            [(self.error_string)(code), (self.last_error)(communicator)].map(|text| match text.is_null() {
                true => String::new(),
                false => CStr::from_ptr(text).to_string_lossy().trim().to_owned(),
            })
        };
        Err(NcclError::Call {
            call,
            code,
            what,
            detail,
        })
    }

    /// Whether what a communicator does in the background has ended.
    pub(crate) fn has_settled(&self, communicator: ncclComm_t) -> Result<bool, NcclError> {
        let mut state = SUCCESS;
        // SAFETY: the communicator lives; `state` is a place for a result.
        let asked = unsafe { (self.async_error)(communicator, &raw mut state) };
        self.checked("ncclCommGetAsyncError", asked, communicator)?;
        self.checked("in the background", state, communicator)?;
        Ok(state == SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn communicators_are_nonblocking_and_state_their_version() {
        let own = config(Some(4));
        assert_eq!((own.blocking, own.maxCTAs, own.minCTAs), (0, 4, c_int::MIN));
        assert_eq!((own.magic, own.version), (0xcafe_beef, 22_809));
        // The size of the header's structure in C: a length, 14 numbers, two pointers.
        assert_eq!(own.size, 8 + 14 * 4 + 2 * 8);
        assert_eq!(config(None).maxCTAs, c_int::MIN);
    }
}
