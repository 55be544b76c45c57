//! The share of its time in which a job trains. Pure: fed with what its coordinator publishes and when.

use std::time::Duration;

/// The goodput of one job, since this process leads.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Goodput {
    /// When it first trained, and when it was last observed.
    span: Option<(Duration, Duration)>,
    training: bool,
    productive: Duration,
    lost: Duration,
}

impl Goodput {
    /// At time `now` the job is training, or not; time before the first training does not count.
    pub fn observe(&mut self, now: Duration, training: bool) {
        match &mut self.span {
            None if training => self.span = Some((now, now)),
            None => {}
            Some((_, last)) => {
                if self.training {
                    self.productive += now.saturating_sub(*last);
                }
                *last = now.max(*last);
            }
        }
        self.training = training;
    }

    /// Steps that took `time` in all have to be trained again.
    pub fn lost(&mut self, time: Duration) {
        self.lost += time;
    }

    /// The time of steps that were not rolled back, divided by all time since the first training: 0 to 1. None before that.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        let (first, last) = self.span?;
        let all = last.saturating_sub(first).as_secs_f64();
        let good = self.productive.saturating_sub(self.lost).as_secs_f64();
        (all > 0.0).then(|| (good / all).clamp(0.0, 1.0))
    }
}
