//! The limit on the files and connections that a process may have open: a coordinator has a stream for each worker, a worker has
//! connections to its peers. Systems have a low default (often 1,024), for programs that cannot handle higher file descriptors, and let
//! each process raise it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of this process, and of processes that it starts, to the maximum that the system allows. Must be called first in a
/// program. If the limit cannot be raised, the process continues with the present one.
pub fn raise() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        let Rlimit { current, maximum } = limit;
        tracing::warn!(%error, ?current, ?maximum, "the limit of open files (RLIMIT_NOFILE) is not raised");
    }
}
