//! What `varuna run` shows: a live line on a terminal, plain lines otherwise.

use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};
use varuna_coordinator::View;

/// Without a terminal, a line at most so often.
const PLAIN: Duration = Duration::from_secs(2);
/// Speed is shown as the mean over so many milliseconds.
const PACE_MS: u64 = 10_000;

/// Draws views.
pub(crate) struct Progress {
    live: bool,
    shown_at: Option<Instant>,
    shown_step: u64,
    shown_diary: u64,
    last_step: u64,
    /// Steps of the last seconds: when (milliseconds) and which.
    pace: VecDeque<(u64, u64)>,
}

impl Progress {
    pub(crate) fn new(last_step: u64) -> Progress {
        let live = std::io::stdout().is_terminal();
        Progress {
            live,
            shown_at: None,
            shown_step: 0,
            shown_diary: 0,
            last_step,
            pace: VecDeque::new(),
        }
    }

    pub(crate) fn show(&mut self, view: &View) {
        let shown = self.shown_diary;
        for (number, text) in view.diary.iter().filter(|(n, _)| *n > shown) {
            self.shown_diary = *number;
            self.say(text);
        }
        if let Some(metric) = &view.metric {
            self.note(metric.time_ms, metric.step.0);
        }
        let step = view.metric.as_ref().map_or(0, |m| m.step.0);
        let due = self.live || self.shown_at.is_none_or(|t| t.elapsed() >= PLAIN) || step == self.last_step;
        if !due || step == self.shown_step {
            return;
        }
        if let Some(line) = self.line(view) {
            self.shown_at = Some(Instant::now());
            self.shown_step = step;
            if self.live {
                print!("\r\x1b[2K{line}");
                let _ = std::io::stdout().flush();
            } else {
                println!("{line}");
            }
        }
    }

    /// A line of its own, above the live one.
    pub(crate) fn say(&self, text: &str) {
        if self.live {
            println!("\r\x1b[2K{text}");
        } else {
            println!("{text}");
        }
    }

    /// The live line is left standing.
    pub(crate) fn end(&self) {
        if self.live {
            println!();
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a display's precision")]
    fn line(&self, view: &View) -> Option<String> {
        let metric = view.metric.as_ref()?;
        let eval = metric
            .eval_loss
            .map_or(String::new(), |l| format!("  eval {l:.4}"));
        let mean = self.step_ms();
        let speed = mean.map_or(String::new(), |ms| {
            format!("  {:.0} tok/s", metric.tokens as f64 / ms * 1e3)
        });
        let left = self.last_step.saturating_sub(metric.step.0) as f64;
        let eta = mean.map_or(String::new(), |ms| format!("  ETA {}", clock(left * ms / 1e3)));
        Some(format!(
            "step {}/{}  loss {:.4}{eval}{speed}  {} workers {} g{}{eta}",
            metric.step, self.last_step, metric.loss, metric.workers, metric.plan, metric.generation,
        ))
    }

    fn note(&mut self, time_ms: u64, step: u64) {
        if self.pace.back().is_some_and(|(_, last)| *last >= step) {
            return;
        }
        self.pace.push_back((time_ms, step));
        while self.pace.len() > 2 && self.pace[1].0 + PACE_MS < time_ms {
            self.pace.pop_front();
        }
    }

    /// Mean step time of the last seconds, in milliseconds; none after the first step alone, which has no start.
    #[expect(clippy::cast_precision_loss, reason = "a display's precision")]
    fn step_ms(&self) -> Option<f64> {
        let ((first_ms, first), (last_ms, last)) = (self.pace.front()?, self.pace.back()?);
        (last > first && last_ms > first_ms).then(|| (last_ms - first_ms) as f64 / (last - first) as f64)
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
