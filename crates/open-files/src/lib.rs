//! How many files and connections a process may have open: a coordinator has a stream for each worker, a worker connections with its peers.
//! Systems give few by default (often 1,024), for programs that cannot count further, and let each process take more.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of this process, and of those that it starts, to the most that the system lets it have. To be called first in a program.
/// Where it cannot be raised, the process goes on with what it has.
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
