//! Measures recoveries from a coordinator's views.

use crate::metrics::Metrics;
use varuna_coordinator::recoveries::{CompletedRecovery, Recoveries};
use varuna_coordinator::{Event, View};
use varuna_plan::{StateId, Step};
use varuna_run_folder::Metric;

/// Recoveries that were measured.
#[derive(Debug, Default)]
pub struct Measurements {
    recoveries: Recoveries,
    last_event: u64,
    /// Steps that were given up since the last sentence.
    lost: u64,
    /// The last commit before the run went back, and the step to which it went.
    back: Option<(StateId, Step)>,
}

impl Measurements {
    /// Measures the events that are new in a view; returns each recovery that is over, with a sentence about it.
    pub fn observe(&mut self, view: &View, metrics: &Metrics) -> Vec<(String, CompletedRecovery)> {
        let mut all_over = vec![];
        let known = self.last_event;
        for (number, at, event) in view.events.iter().filter(|(number, ..)| *number > known) {
            self.last_event = *number;
            for measured in self.recoveries.observe(*at, event) {
                metrics.recovered(&measured);
                let over = measured.completed(event, self.lost);
                if let Some(over) = measured.sentence(event, self.lost).zip(over) {
                    self.lost = 0;
                    all_over.push(over);
                }
            }
            if matches!(event, Event::Committed { .. }) {
                self.lost = 0;
            }
            if let (
                Event::Resumed {
                    base, restored: true, ..
                },
                Some(last),
            ) = (event, &view.metric)
            {
                let lost = self.given_up(last, base.step);
                self.lost += lost;
                metrics.figures.lost(lost, step_ms(view));
            }
        }
        all_over
    }

    /// The steps that are given up as the run goes back from its last commit to this step. A recovery may fail before it has committed
    /// anything, and the next one goes back from the same commit: what was given up then is not given up again.
    fn given_up(&mut self, last: &Metric, to: Step) -> u64 {
        let from = match self.back {
            Some((state, step)) if state == last.state => step,
            _ => last.step,
        };
        self.back = Some((last.state, from.min(to)));
        from.0.saturating_sub(to.0)
    }
}

/// The time of a step during training, in milliseconds. The time since the last commit may include a pause, so it is used only if nothing
/// else is known.
#[expect(clippy::cast_precision_loss, reason = "tokens of a step are far below 2^52")]
fn step_ms(view: &View) -> f64 {
    let observed = view.snapshot.as_ref().and_then(|s| s.run.observed_ms);
    let Some(last) = &view.metric else {
        return observed.unwrap_or(0.0);
    };
    let rate = last.figures.tokens_per_second.filter(|rate| *rate > 0.0);
    let by_rate = rate.map(|rate| last.tokens as f64 / rate * 1e3);
    observed.or(by_rate).unwrap_or(last.step_ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use varuna_coordinator::RunMode;
    use varuna_plan::Generation;
    use varuna_protocol::coordinator::{RunView, Snapshot};
    use varuna_run_folder::StepFigures;

    /// A run that trains. Its tenth step was committed a minute after the ninth, because training had paused.
    fn view(observed_ms: Option<f64>, tokens_per_second: Option<f64>) -> View {
        let run = RunView {
            mode: RunMode::Training,
            term: 1,
            generation: Generation(2),
            next: None,
            step: Step(10),
            last_step: Step(100),
            plan: None,
            predicted_ms: None,
            observed_ms,
            compute_factor: None,
            members: 2,
            min_workers: 1,
            max_workers: None,
            spare_copies: None,
        };
        let metric = Metric {
            step: Step(10),
            loss: 1.0,
            no_targets: false,
            eval_loss: None,
            gradient_norm: 1.0,
            overflow: false,
            skipped_steps: 0,
            loss_scale: None,
            generation: Generation(2),
            workers: 2,
            plan: String::new(),
            tokens: 1000,
            step_ms: 60_000.0,
            time_ms: 0,
            state: StateId::INITIAL,
            figures: StepFigures {
                tokens_per_second,
                ..StepFigures::default()
            },
        };
        let workers = Vec::new();
        View {
            snapshot: Some(Snapshot { run, workers }),
            metric: Some(metric),
            ..View::default()
        }
    }

    #[test]
    fn step_time_is_observed_or_follows_from_the_rate() {
        assert_eq!(step_ms(&view(Some(100.0), Some(4000.0))), 100.0);
        assert_eq!(step_ms(&view(None, Some(4000.0))), 250.0);
        assert_eq!(step_ms(&view(None, None)), 60_000.0);
        assert_eq!(step_ms(&View::default()), 0.0);
    }

    /// The run goes back to the checkpoint of this step.
    fn resumed(step: u64) -> Event {
        Event::Resumed {
            generation: Generation(3),
            base: StateId {
                step: Step(step),
                ..StateId::INITIAL
            },
            finished: false,
            restored: true,
        }
    }

    #[test]
    fn steps_lost_after_a_pause_cost_their_own_time() {
        let metrics = Metrics::new("ns", "j");
        let mut view = view(Some(100.0), None);
        for seconds in [0, 10] {
            metrics.figures.observe(&view, Duration::from_secs(seconds));
        }
        view.events.push_back((1, Duration::from_secs(10), resumed(5)));
        Measurements::default().observe(&view, &metrics);
        let text = metrics.render();
        // Five steps of 0.1 s each, of ten seconds.
        let line = r#"varuna_job_goodput_ratio{namespace="ns",job_name="j"} 0.95"#;
        assert!(text.contains(line), "{line} is missing:\n{text}");
    }

    #[test]
    fn steps_that_two_recoveries_give_up_are_lost_once() {
        let metrics = Metrics::new("ns", "j");
        let mut view = view(Some(100.0), None);
        for seconds in [0, 10] {
            metrics.figures.observe(&view, Duration::from_secs(seconds));
        }
        let mut measurements = Measurements::default();
        // Nothing is committed in between; the third one goes back further.
        for (number, (step, lost)) in (1..).zip([(5, 5), (5, 5), (3, 7)]) {
            view.events
                .push_back((number, Duration::from_secs(10), resumed(step)));
            measurements.observe(&view, &metrics);
            assert_eq!(measurements.lost, lost, "back to step {step}");
        }
        let text = metrics.render();
        // Seven steps of 0.1 s each, of ten seconds.
        let line = r#"varuna_job_goodput_ratio{namespace="ns",job_name="j"} 0.93"#;
        assert!(text.contains(line), "{line} is missing:\n{text}");
    }
}
