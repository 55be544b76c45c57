//! The history of a run from its run folder, in the order in which it happened. Pure.

use super::order::in_order;
use varuna_coordinator::Event;
use varuna_plan::OptimizerProgress;
use varuna_run_folder::{EventEntry, LoggedEvent, Metric};

/// A run's published steps and events.
pub(super) struct History {
    /// All of them, those that were given up included, in the order of their publication.
    published: Vec<Metric>,
    /// Whether the step of the same index stayed.
    stayed: Vec<bool>,
    /// Events and commits, in the order in which they happened.
    in_order: Vec<(u64, Event)>,
}

impl History {
    pub(super) fn new(mut published: Vec<Metric>, events: Vec<EventEntry>) -> History {
        let protocol = events.into_iter().filter_map(|entry| match entry.event {
            LoggedEvent::Protocol(event) => Some((entry.time_ms, event)),
            LoggedEvent::Checkpoint(_) => None,
        });
        let in_order = in_order(&mut published, protocol.collect(), committed);
        let mut stayed = vec![true; published.len()];
        // From the end: of each step the last line counts, and no later step of an earlier line.
        let mut first = u64::MAX;
        for (metric, stays) in published.iter().zip(&mut stayed).rev() {
            *stays = metric.step.0 < first;
            first = first.min(metric.step.0);
        }
        History {
            published,
            stayed,
            in_order,
        }
    }

    /// The steps that stayed, in order.
    pub(super) fn steps(&self) -> Vec<&Metric> {
        let both = self.published.iter().zip(&self.stayed);
        both.filter_map(|(metric, stayed)| stayed.then_some(metric))
            .collect()
    }

    /// All published steps, each with whether it stayed.
    pub(super) fn published(&self) -> impl Iterator<Item = (&Metric, bool)> {
        self.published.iter().zip(self.stayed.iter().copied())
    }

    /// When the first step was published, and the last: milliseconds since 1970, later by what the clock was set back meanwhile.
    pub(super) fn span_ms(&self) -> (u64, u64) {
        let time = |metric: Option<&Metric>| metric.map_or(0, |m| m.time_ms);
        (time(self.published.first()), time(self.published.last()))
    }

    /// Events of the protocol and commits in the order in which they happened, with their times as those of steps; of the same time events first.
    pub(super) fn by_time(&self) -> &[(u64, Event)] {
        &self.in_order
    }
}

/// What was logged as this line.
fn committed(metric: &Metric) -> Event {
    Event::Committed {
        id: metric.state,
        generation: metric.generation,
        step: metric.step,
        loss: metric.mean_loss(),
        eval_loss: metric.eval_loss,
        gradient_norm: metric.gradient_norm,
        overflow: metric.overflow,
        progress: OptimizerProgress::START,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use varuna_plan::state::Chain;
    use varuna_plan::{Generation, StateId, Step};
    use varuna_run_folder::StepFigures;

    /// A published step with this generation and number.
    pub(in super::super) fn step(generation: u64, number: u64, time_ms: u64) -> Metric {
        Metric {
            step: Step(number),
            loss: 5.0,
            no_targets: false,
            eval_loss: None,
            gradient_norm: 1.0,
            overflow: false,
            skipped_steps: 0,
            loss_scale: None,
            generation: Generation(generation),
            workers: 2,
            plan: "P2xD1".into(),
            tokens: 64,
            step_ms: 100.0,
            time_ms,
            state: StateId {
                run_gen: Generation(generation),
                step: Step(number),
                chain: Chain(number),
            },
            figures: StepFigures {
                tokens_per_second: Some(640.0),
                ..StepFigures::default()
            },
        }
    }

    /// An entry of the event log.
    pub(in super::super) fn event(time_ms: u64, event: Event) -> EventEntry {
        EventEntry {
            event: LoggedEvent::Protocol(event),
            steps_lost: None,
            time_ms,
        }
    }

    #[test]
    fn the_last_line_of_each_step_counts_and_none_given_up() {
        let lines = [(1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (2, 3), (3, 3), (3, 4)];
        let published = lines.map(|(generation, number)| step(generation, number, 1));
        let history = History::new(published.into(), vec![]);
        let stayed: Vec<(u64, u64)> = history
            .steps()
            .iter()
            .map(|m| (m.generation.0, m.step.0))
            .collect();
        assert_eq!(stayed, [(1, 1), (2, 2), (3, 3), (3, 4)]);
    }
}
