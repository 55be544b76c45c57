//! Which failed reads of files are tried again.

use std::io::ErrorKind;

/// Whether a read that failed so may succeed later. Not where there is no such file, or it is another one, or a shorter one, than it was.
pub(crate) fn read_may_pass(kind: ErrorKind) -> bool {
    use ErrorKind::{NotFound, PermissionDenied, StaleNetworkFileHandle, UnexpectedEof};
    !matches!(
        kind,
        NotFound | PermissionDenied | StaleNetworkFileHandle | UnexpectedEof
    )
}
