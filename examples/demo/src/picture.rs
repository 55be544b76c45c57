//! Loss and workers over time as one SVG.

use crate::summary::{ActKind, Story};
use std::fmt::Write as _;

const WIDTH: f64 = 900.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 20.0;
/// Top and height of the two panels, in pixels.
const LOSS: (f64, f64) = (40.0, 260.0);
const WORKERS: (f64, f64) = (340.0, 80.0);
const HEIGHT: f64 = 460.0;

/// Maps a run to pixels.
struct Scale {
    from_ms: u64,
    span_ms: f64,
    loss: (f64, f64),
    workers: f64,
}

#[expect(clippy::cast_precision_loss, reason = "a picture's precision")]
impl Scale {
    fn new(story: &Story) -> Scale {
        let m = &story.metrics;
        let (first, last) = (m[0].time_ms, m[m.len() - 1].time_ms);
        let high = m.iter().map(|x| x.loss).fold(f64::MIN, f64::max);
        let low = m.iter().map(|x| x.loss).fold(f64::MAX, f64::min);
        let workers = m.iter().map(|x| x.workers).max().unwrap_or(1) as f64;
        Scale {
            from_ms: first,
            span_ms: (last - first).max(1) as f64,
            loss: (low, (high - low).max(1e-9)),
            workers,
        }
    }
    fn x(&self, time_ms: u64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * (time_ms.saturating_sub(self.from_ms) as f64 / self.span_ms).min(1.0)
    }
    fn loss_y(&self, loss: f64) -> f64 {
        LOSS.0 + LOSS.1 * (1.0 - (loss - self.loss.0) / self.loss.1)
    }
    fn workers_y(&self, workers: u64) -> f64 {
        WORKERS.0 + WORKERS.1 * (1.0 - workers as f64 / self.workers)
    }
}

/// The whole picture.
pub(crate) fn draw(story: &Story) -> String {
    let scale = Scale::new(story);
    let mut loss = String::new();
    let mut workers = String::new();
    let mut before = None;
    for m in &story.metrics {
        let x = scale.x(m.time_ms);
        let _ = write!(loss, "{x:.1},{:.1} ", scale.loss_y(m.loss));
        let y = scale.workers_y(m.workers);
        if let Some(old) = before.filter(|old| *old != y) {
            let _ = write!(workers, "{x:.1},{old:.1} ");
        }
        let _ = write!(workers, "{x:.1},{y:.1} ");
        before = Some(y);
    }
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\">Training loss and workers over time</text>\n"
    );
    axes(&mut svg, &scale);
    acts(&mut svg, story, &scale);
    let _ = writeln!(
        svg,
        "<polyline points=\"{loss}\" fill=\"none\" stroke=\"#1f5fa8\" stroke-width=\"1.5\"/>"
    );
    let _ = writeln!(
        svg,
        "<polyline points=\"{workers}\" fill=\"none\" stroke=\"#2e7d32\" stroke-width=\"2\"/>"
    );
    svg.push_str("</svg>\n");
    svg
}

fn axes(svg: &mut String, scale: &Scale) {
    let right = WIDTH - RIGHT;
    for i in 0..=4 {
        let loss = scale.loss.0 + scale.loss.1 * f64::from(i) / 4.0;
        let y = scale.loss_y(loss);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{loss:.2}</text>",
            LEFT - 6.0,
            y + 4.0
        );
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a small count"
    )]
    for n in 0..=scale.workers as u64 {
        let y = scale.workers_y(n);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#eee\"/>\
             <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{n}</text>",
            LEFT - 6.0,
            y + 4.0
        );
    }
    let bottom = WORKERS.0 + WORKERS.1;
    for i in 0..=6 {
        let share = f64::from(i) / 6.0;
        let x = LEFT + (right - LEFT) * share;
        let seconds = scale.span_ms / 1e3 * share;
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{seconds:.0} s</text>",
            bottom + 20.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{:.0}\">workers</text>",
        WORKERS.0 - 8.0
    );
}

fn acts(svg: &mut String, story: &Story, scale: &Scale) {
    for act in &story.acts {
        let x = scale.x(act.time_ms);
        let colour = if act.kind == ActKind::Kill {
            "#c62828"
        } else {
            "#2e7d32"
        };
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{}\" y2=\"{}\" stroke=\"{colour}\" stroke-dasharray=\"4 3\"/>\
             <text x=\"{:.1}\" y=\"{:.0}\" fill=\"{colour}\">{}</text>",
            LOSS.0,
            WORKERS.0 + WORKERS.1,
            x + 4.0,
            LOSS.0 + 12.0,
            act.what
        );
    }
}
