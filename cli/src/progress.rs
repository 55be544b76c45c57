//! What `varuna run` prints: a live line on a terminal, plain lines otherwise.

use crate::io::show_line;
use indicatif::{BinaryBytes, HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::{Duration, Instant};
use varuna_coordinator::View;
use varuna_run_folder::{Metric, StepFigures};

/// The shortest time between two lines without a terminal.
const PLAIN_INTERVAL: Duration = Duration::from_secs(2);
/// Speed is the mean over this many milliseconds.
const SPEED_WINDOW_MS: u64 = 10_000;

/// Prints what a run is doing.
pub(crate) struct Progress {
    /// The live line; none where standard output is no terminal.
    live: Option<ProgressBar>,
    printed_at: Option<Instant>,
    printed_step: u64,
    printed_message: u64,
    last_step: u64,
    /// Steps of the last seconds: when (milliseconds since 1970) and which.
    recent: VecDeque<(u64, u64)>,
}

impl Progress {
    pub(crate) fn new(last_step: u64) -> Progress {
        Progress {
            live: std::io::stdout().is_terminal().then(live_line),
            printed_at: None,
            printed_step: 0,
            printed_message: 0,
            last_step,
            recent: VecDeque::new(),
        }
    }

    pub(crate) fn show(&mut self, view: &View) {
        let printed = self.printed_message;
        for (number, text) in view.messages.iter().filter(|(n, _)| *n > printed) {
            self.printed_message = *number;
            self.print(text);
        }
        if let Some(snapshot) = &view.snapshot {
            self.last_step = snapshot.run.last_step.0;
        }
        let Some(metric) = &view.metric else { return };
        self.remember(metric.time_ms, metric.step.0);
        let step = metric.step.0;
        let due = self.live.is_some()
            || self.printed_at.is_none_or(|t| t.elapsed() >= PLAIN_INTERVAL)
            || step == self.last_step;
        if !due || step == self.printed_step {
            return;
        }
        self.printed_at = Some(Instant::now());
        self.printed_step = step;
        let line = self.line(metric);
        match &self.live {
            Some(live) => live.set_message(line),
            None => show_line(&line),
        }
    }

    /// Prints a line, above the live one.
    pub(crate) fn print(&self, text: &str) {
        match &self.live {
            Some(live) => live.println(text),
            None => show_line(text),
        }
    }

    /// Leaves the live line as it is.
    pub(crate) fn end(&self) {
        if let Some(live) = &self.live {
            live.abandon();
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a display's precision")]
    fn line(&self, metric: &Metric) -> String {
        let eval = metric
            .eval_loss
            .map_or(String::new(), |l| format!("  eval {l:.4}"));
        let rate = metric
            .figures
            .learning_rate
            .map_or(String::new(), |rate| format!("  lr {rate:.2e}"));
        let loss = metric
            .mean_loss()
            .map_or("no loss".to_owned(), |loss| format!("loss {loss:.4}"));
        let figures = figures_of(&metric.figures);
        let (consumed, norm) = (consumed(&metric.figures), metric.gradient_norm);
        let scale = metric
            .loss_scale
            .map_or(String::new(), |s| format!("  scale {s}"));
        let skipped = counted(metric.skipped_steps, "skipped");
        let nan = counted(metric.figures.nan_steps.unwrap_or(0), "NaN");
        // The start of the first step is not known, nor is that of the first one after a restart of the coordinator.
        let took = match self.recent.len() {
            0 | 1 => String::new(),
            _ => format!("  {:.0} ms", metric.step_ms),
        };
        let mean = self.step_ms();
        let speed = mean.map_or(String::new(), |ms| {
            format!("  {:.0} tok/s", metric.tokens as f64 / ms * 1e3)
        });
        let left = self.last_step.saturating_sub(metric.step.0) as f64;
        let eta = mean.map_or(String::new(), |ms| format!("  ETA {}", clock(left * ms / 1e3)));
        format!(
            "step {}/{}  {loss}{eval}{rate}  grad {norm:.3}{scale}{skipped}{nan}{consumed}{took}{speed}{figures}  {} workers {} g{}{eta}",
            metric.step, self.last_step, metric.workers, metric.plan, metric.generation,
        )
    }

    fn remember(&mut self, time_ms: u64, step: u64) {
        if self.recent.back() == Some(&(time_ms, step)) {
            return;
        }
        // What was lost and is run again was no progress.
        self.recent.retain(|(_, earlier)| *earlier < step);
        self.recent.push_back((time_ms, step));
        while self.recent.len() > 2 && self.recent[1].0 + SPEED_WINDOW_MS < time_ms {
            self.recent.pop_front();
        }
    }

    /// Mean step time of the last seconds, in milliseconds; none after only the first step, whose start is not known.
    #[expect(clippy::cast_precision_loss, reason = "a display's precision")]
    fn step_ms(&self) -> Option<f64> {
        let ((first_ms, first), (last_ms, last)) = (self.recent.front()?, self.recent.back()?);
        (last > first && last_ms > first_ms).then(|| (last_ms - first_ms) as f64 / (last - first) as f64)
    }
}

/// How many steps were so; nothing where none was.
fn counted(steps: u64, what: &str) -> String {
    match steps {
        0 => String::new(),
        steps => format!("  {steps} {what}"),
    }
}

/// What was trained on so far.
fn consumed(figures: &StepFigures) -> String {
    let both = figures.consumed_samples.zip(figures.consumed_tokens);
    both.map_or(String::new(), |(samples, tokens)| {
        format!("  {samples} samples, {} tokens", HumanCount(tokens))
    })
}

/// What the hardware did; only what is known.
fn figures_of(figures: &StepFigures) -> String {
    let flops = figures.model_flops_per_second.map(|flops| match flops {
        flops if flops < 1e12 => format!("{:.1} GFLOP/s", flops / 1e9),
        flops => format!("{:.1} TFLOP/s", flops / 1e12),
    });
    let mfu = figures.mfu.map(|share| format!("MFU {:.1} %", share * 100.0));
    let memory = figures.peak_memory_bytes;
    let memory = memory.map(|bytes| format!("peak {}", BinaryBytes(bytes)));
    let known = [flops, mfu, memory].into_iter().flatten();
    known.map(|text| format!("  {text}")).collect()
}

fn live_line() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout());
    match ProgressStyle::with_template("{msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a display's precision"
)]
fn clock(seconds: f64) -> String {
    let s = seconds.max(0.0) as u64;
    if s >= 3600 {
        format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
    } else {
        format!("{}:{:02}", s / 60, s % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_plan::{Generation, StateId, Step};

    fn metric(figures: StepFigures) -> Metric {
        Metric {
            step: Step(40),
            loss: 2.5,
            no_targets: false,
            eval_loss: None,
            gradient_norm: 0.75,
            overflow: false,
            skipped_steps: 0,
            loss_scale: None,
            generation: Generation(3),
            workers: 4,
            plan: "P2xD2".into(),
            tokens: 2048,
            step_ms: 100.0,
            time_ms: 1,
            state: StateId::INITIAL,
            figures,
        }
    }

    #[test]
    fn a_line_has_what_is_known_of_the_step_and_nothing_else() {
        let progress = Progress::new(100);
        assert_eq!(
            progress.line(&metric(StepFigures::default())),
            "step 40/100  loss 2.5000  grad 0.750  4 workers P2xD2 g3"
        );
        let without = Metric {
            no_targets: true,
            ..metric(StepFigures::default())
        };
        assert_eq!(
            progress.line(&without),
            "step 40/100  no loss  grad 0.750  4 workers P2xD2 g3"
        );
        let known = Metric {
            skipped_steps: 2,
            loss_scale: Some(65_536),
            ..metric(StepFigures {
                consumed_samples: Some(640),
                consumed_tokens: Some(81_920),
                learning_rate: Some(3e-4),
                nan_steps: Some(1),
                tokens_per_second: Some(20_480.0),
                model_flops_per_second: Some(1.5e14),
                mfu: Some(0.412),
                peak_memory_bytes: Some(3 << 29),
            })
        };
        assert_eq!(
            progress.line(&known),
            "step 40/100  loss 2.5000  lr 3.00e-4  grad 0.750  scale 65536  2 skipped  1 NaN  640 samples, 81,920 tokens  \
             150.0 TFLOP/s  MFU 41.2 %  peak 1.50 GiB  4 workers P2xD2 g3"
        );
    }

    /// Step 39 was published a second after step 35, and step 40 a second after that.
    #[test]
    fn a_line_has_its_steps_time_and_later_the_mean_speed() {
        let mut progress = Progress::new(100);
        let last = Metric {
            step_ms: 1_000.4,
            ..metric(StepFigures::default())
        };
        progress.remember(0, 35);
        let first = progress.line(&last);
        assert!(!first.contains(" ms") && !first.contains("tok/s"), "{first}");
        progress.remember(1_000, 39);
        progress.remember(2_000, 40);
        progress.remember(2_000, 40);
        assert_eq!(
            progress.line(&last),
            "step 40/100  loss 2.5000  grad 0.750  1000 ms  5120 tok/s  4 workers P2xD2 g3  ETA 0:24"
        );
    }

    /// Steps 38 to 40 were lost: step 38 was committed once more after four seconds.
    #[test]
    fn speed_after_lost_steps_is_that_of_the_steps_that_count() {
        let mut progress = Progress::new(100);
        for (time_ms, step) in [(0, 36), (500, 37), (1_000, 38), (1_500, 39), (2_000, 40)] {
            progress.remember(time_ms, step);
        }
        assert_eq!(progress.step_ms(), Some(500.0));
        progress.remember(6_000, 38);
        assert_eq!(progress.step_ms(), Some(3_000.0), "from step 36 on");
        progress.remember(6_500, 39);
        assert_eq!(progress.recent, [(0, 36), (500, 37), (6_000, 38), (6_500, 39)]);
        // All that is remembered was lost.
        progress.remember(9_000, 5);
        assert_eq!(progress.step_ms(), None);
    }
}
