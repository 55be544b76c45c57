//! Whether a process offers NCCL to its peers. This depends on how earlier attempts to make communicators ended. It must never ask the
//! clock or NCCL.

use varuna_cuda::NcclError;

/// Generations in a row that may fail for want of communicators.
const FAILURES_MAX: u32 = 2;
/// The same if NCCL says that a peer was lost. Peers may end at any moment, which says nothing about this process. But a network that
/// closes connections looks the same, and must not keep a job from training for ever.
const PEERS_LOST_MAX: u32 = 8;
/// Generations without NCCL after that. The cause of the failure may be gone by then. A failed attempt costs its generation the first step.
const PAUSE: u32 = 16;
/// `ncclInvalidArgument` and `ncclInvalidUsage`: what NCCL refuses once (two workers on one GPU) it refuses again.
const REFUSED: [i32; 2] = [4, 5];
/// `ncclRemoteError`: a peer's process has ended, or the network has failed.
const PEER_LOST: i32 = 6;

/// What the last generations say.
#[derive(Default)]
pub(super) struct Offer {
    /// NCCL does not work here.
    refused: bool,
    /// Generations in a row whose communicators were not made although all their ranks have NCCL.
    failures: u32,
    /// Those of these generations that a lost peer explains, since communicators were last made.
    peers_lost: u32,
    /// Generations that still go without.
    pause: u32,
}

impl Offer {
    /// Whether this process takes part in communicators.
    pub(super) fn is_enabled(&self) -> bool {
        !self.refused && self.pause == 0
    }

    /// Another generation begins; whether it has this process's NCCL.
    pub(super) fn begin(&mut self) -> bool {
        let enabled = self.is_enabled();
        self.pause = self.pause.saturating_sub(1);
        enabled
    }

    /// Notes how the making of a generation's communicators ended.
    pub(super) fn note(&mut self, error: Option<&NcclError>) {
        match error {
            None => *self = Offer::default(),
            // The fence is about the generation.
            Some(NcclError::Revoked) => {}
            Some(NcclError::Call { code, .. }) if *code == PEER_LOST => self.peers_lost += 1,
            Some(NcclError::Call { code, .. }) if REFUSED.contains(code) => self.refused = true,
            Some(NcclError::Absent(_)) => self.refused = true,
            Some(_) => self.failures += 1,
        }
        if self.failures >= FAILURES_MAX || self.peers_lost >= PEERS_LOST_MAX {
            // One try after it, and no more.
            *self = Offer {
                refused: self.refused,
                failures: FAILURES_MAX - 1,
                peers_lost: PEERS_LOST_MAX - 1,
                pause: PAUSE,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(code: i32) -> NcclError {
        let (what, detail) = (String::new(), String::new());
        NcclError::Call {
            call: "ncclCommInitRankConfig",
            code,
            what,
            detail,
        }
    }

    const LATE: NcclError = NcclError::Deadline { what: "a test" };

    fn after(ends: &[Option<NcclError>]) -> Offer {
        let mut offer = Offer::default();
        ends.iter().for_each(|end| offer.note(end.as_ref()));
        offer
    }

    #[test]
    fn the_end_of_a_peer_or_a_fence_says_nothing_of_this_process() {
        assert!(after(&[Some(failed(6)), Some(failed(6)), Some(failed(6))]).is_enabled());
        let fenced = || Some(NcclError::Revoked);
        assert!(after(&[fenced(), fenced(), fenced(), Some(LATE)]).is_enabled());
        // Both kinds of errors may come from a network on which NCCL never works.
        let lost: Vec<_> = (0..PEERS_LOST_MAX).map(|_| Some(failed(6))).collect();
        assert!(!after(&lost).is_enabled());
    }

    #[test]
    fn what_nccl_refuses_it_refuses_again() {
        for code in REFUSED {
            let mut offer = after(&[Some(failed(code))]);
            assert!((0..100).all(|_| !offer.begin()), "{code}");
        }
    }

    #[test]
    fn twice_failed_nccl_is_retried_later() {
        for error in [failed(1), failed(2), failed(3), LATE] {
            let end = || Some(error.clone());
            assert!(
                after(&[end(), None, end()]).is_enabled(),
                "what succeeded between counts"
            );
            let mut offer = after(&[end(), end()]);
            let without = (0..100).take_while(|_| !offer.begin()).count();
            assert_eq!(without, PAUSE as usize, "{error}");
            offer.note(end().as_ref());
            assert!(!offer.is_enabled(), "one try, and no more");
            offer.note(None);
            assert!(offer.is_enabled());
        }
    }
}
