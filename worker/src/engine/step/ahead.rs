//! Limits how far the host is ahead of the device. A fence has to wait for tasks that were handed over. So their number is limited, and
//! nothing is handed over after a fence.

use super::super::EngineError;
use super::Run;
use super::exchange::ENDING;
use crate::ablation::Ablation;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use varuna_torch::Mark;

/// Tasks that the device may still have before it when the next is handed over: one runs, one waits, and it is never idle.
pub(super) const AHEAD: usize = 2;
/// Time between two checks of the device.
const POLL_INTERVAL: Duration = Duration::from_micros(50);
const LATE: &str = "it has not done its part of the step";

/// The tasks that the device may not have done yet.
#[derive(Default)]
pub(super) struct RunAhead {
    /// Behind each of them, in their order.
    marks: VecDeque<Mark>,
    /// The most there were when another was handed over.
    pub(super) most: usize,
}

impl RunAhead {
    /// Number of tasks that the device has not done.
    fn count(&mut self) -> Result<usize, EngineError> {
        while let Some(mark) = self.marks.front() {
            if !mark.is_reached()? {
                break;
            }
            self.marks.pop_front();
        }
        Ok(self.marks.len())
    }
}

impl Run<'_> {
    /// Waits until the device has few enough tasks before it for another, and notes how many it has. Fails where the generation was fenced.
    pub(super) fn before_task(&mut self) -> Result<(), EngineError> {
        let bound = match self.config.backend.without.has(Ablation::Ahead) {
            true => 0,
            false => AHEAD,
        };
        self.exchange.poll_pending()?;
        while self.ahead.count()? > bound {
            // If the device is only slow, a plan without this worker is made; if it hangs, the process ends.
            if Instant::now() >= self.deadline + ENDING {
                return Err(EngineError::Device(LATE.to_owned()));
            }
            std::thread::sleep(POLL_INTERVAL);
            self.exchange.poll_pending()?;
        }
        self.ahead.most = self.ahead.most.max(self.ahead.count()?);
        Ok(())
    }

    /// Notes that a task was handed over.
    pub(super) fn after_task(&mut self) -> Result<(), EngineError> {
        if self.config.backend.streams.are_late() {
            let mark = self.mark()?;
            self.ahead.marks.push_back(mark);
        }
        Ok(())
    }
}
