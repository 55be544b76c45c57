//! Requests for another number of workers: passed on to whoever starts and stops them, or refused.

use super::Driver;
use crate::options::ScaleRequest;
use tokio::sync::oneshot;

/// Why a run that is ending gets no other number of workers.
const IS_ENDING: &str = "the run is ending: no more workers are started or told to end";
/// Why a coordinator alone cannot change the number of workers.
const BY_HAND: &str = "workers of this run are started by hand: start or stop them where they run";

impl Driver {
    /// Passes a request on, or answers why it cannot be met.
    pub(super) fn scale(&self, workers: u32, answer: oneshot::Sender<Result<String, String>>) {
        let request = ScaleRequest { workers, answer };
        let (request, why) = match &self.scale {
            // Who starts the workers sees it only in the next view, which may be seconds away.
            Some(_) if self.is_ending() => (request, IS_ENDING.to_owned()),
            Some(scale) => match above_limit(workers, self.job.elasticity.max_workers) {
                Some(why) => (request, why),
                None => match scale.try_send(request) {
                    Ok(()) => return,
                    Err(error) => (error.into_inner(), "another change is under way".to_owned()),
                },
            },
            None => (request, BY_HAND.to_owned()),
        };
        drop(request.answer.send(Err(why)));
    }
}

/// Why a job cannot have so many workers; none if it can.
fn above_limit(workers: u32, most: Option<u32>) -> Option<String> {
    let most = most.filter(|most| workers > *most)?;
    Some(format!(
        "{workers} workers: this job allows 1 to {most} (spec.elasticity.maxWorkers)"
    ))
}
