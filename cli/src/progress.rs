//! What `varuna run` shows: a live line on a terminal, plain lines otherwise.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};
use varuna_coordinator::View;

/// Without a terminal, a line at most so often.
const PLAIN: Duration = Duration::from_secs(2);

/// Draws views.
pub(crate) struct Progress {
    live: bool,
    shown_at: Option<Instant>,
    shown_step: u64,
    shown_diary: u64,
    last_step: u64,
    /// Exponentially weighted mean of the step time, milliseconds.
    step_ms: Option<f64>,
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
            step_ms: None,
        }
    }

    pub(crate) fn show(&mut self, view: &View) {
        let shown = self.shown_diary;
        for (number, text) in view.diary.iter().filter(|(n, _)| *n > shown) {
            self.shown_diary = *number;
            self.say(text);
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
    fn line(&mut self, view: &View) -> Option<String> {
        let metric = view.metric.as_ref()?;
        let mean = self
            .step_ms
            .map_or(metric.step_ms, |old| 0.8 * old + 0.2 * metric.step_ms);
        self.step_ms = Some(mean);
        let left = self.last_step.saturating_sub(metric.step.0) as f64 * mean / 1e3;
        let eval = metric
            .eval_loss
            .map_or(String::new(), |l| format!("  eval {l:.4}"));
        Some(format!(
            "step {}/{}  loss {:.4}{eval}  {:.0} tok/s  {} workers {} g{}  ETA {}",
            metric.step,
            self.last_step,
            metric.loss,
            metric.tokens as f64 / mean * 1e3,
            metric.workers,
            metric.plan,
            metric.generation,
            clock(left)
        ))
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
