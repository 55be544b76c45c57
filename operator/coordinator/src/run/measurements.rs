//! Recoveries as they are seen in a coordinator's views.

use crate::metrics::{Metrics, Over, Recoveries};
use varuna_coordinator::{Event, View};

/// Recoveries as they are seen in views.
#[derive(Default)]
pub(super) struct Measurements {
    recoveries: Recoveries,
    last_event: u64,
    /// Steps that were given up since the last sentence.
    lost: u64,
}

impl Measurements {
    /// Measures the events that are new in a view; returns each recovery that is over, with a sentence about it.
    pub(super) fn observe(&mut self, view: &View, metrics: &Metrics) -> Vec<(String, Over)> {
        let mut all_over = vec![];
        let known = self.last_event;
        for (number, at, event) in view.events.iter().filter(|(number, ..)| *number > known) {
            self.last_event = *number;
            for measured in self.recoveries.observe(*at, event) {
                metrics.recovered(&measured);
                let over = measured.over(event, self.lost);
                if let Some(over) = measured.sentence(event, self.lost).zip(over) {
                    self.lost = 0;
                    all_over.push(over);
                }
            }
            if let (
                Event::Resumed {
                    base, restored: true, ..
                },
                Some(last),
            ) = (event, &view.metric)
            {
                self.lost = last.step.0.saturating_sub(base.step.0);
                metrics.figures.lost(self.lost, last.step_ms);
            }
        }
        all_over
    }
}
