//! How much of a checkpoint is made at the same time.

use std::num::NonZero;

/// How many uploads run at the same time: one shard is encoded while another is sent.
pub(super) const UPLOADS: usize = 2;
/// Maximum number of threads for what blocks in uploads: digests, writes to a disk, addresses of hosts.
const BLOCKING_MAX: usize = 2 * UPLOADS;
/// Maximum number of units that are copied at the same time. One thread takes a good part of what a processor's memory gives.
const COPIES_MAX: usize = 2;

/// Numbers of what may run at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Parallelism {
    /// Threads that copy units.
    pub(super) copies: usize,
    /// Digests that are computed.
    pub(super) digests: usize,
    /// Threads for what blocks in uploads.
    pub(super) blocking: usize,
}

impl Parallelism {
    /// On this many processors that training leaves idle; `to_folder`: the store is a folder of this machine.
    ///
    /// With other stores the blocking threads compute digests, which have a limit of their own, and look up addresses of hosts: a request must
    /// not wait for the end of a digest. So idle processors do not limit these threads.
    pub(super) fn on(idle: NonZero<usize>, to_folder: bool) -> Parallelism {
        let idle = idle.get();
        Parallelism {
            copies: COPIES_MAX.min(idle),
            digests: UPLOADS.min(idle),
            blocking: match to_folder {
                true => BLOCKING_MAX.min(idle),
                false => BLOCKING_MAX,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_processors_limit_all_but_threads_of_requests() {
        let on = |idle, to_folder| {
            let all = Parallelism::on(NonZero::new(idle).unwrap(), to_folder);
            [all.copies, all.digests, all.blocking]
        };
        assert_eq!(
            [on(1, true), on(3, true), on(64, true)],
            [[1, 1, 1], [2, 2, 3], [2, 2, 4]]
        );
        assert_eq!([on(1, false), on(64, false)], [[1, 1, 4], [2, 2, 4]]);
    }
}
