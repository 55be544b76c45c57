//! The report as a picture: nodes there and used, throughput against the best, losses.

use crate::report::{Point, Report};
use std::fmt::Write;

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 16.0;
const PANEL: f64 = 190.0;
/// Tops of the two panels.
const TOPS: [f64; 2] = [58.0, 296.0];
const HEIGHT: f64 = 596.0;
const BEST: &str = "#c3cfdd";
const OURS: &str = "#1f6f8b";
const GONE: &str = "#b03a48";

/// An SVG 1.1 document, without scripts or outside references.
#[must_use]
pub fn svg(title: &str, report: &Report) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"24\" font-size=\"16\" font-weight=\"bold\">{}: goodput {:.2} %</text>",
        escaped(title),
        report.goodput * 100.0
    );
    let nodes = |p: &Point| number(p.there);
    let used = |p: &Point| number(p.used);
    panel(&mut out, report, 0, "nodes", "there", "training", (nodes, used));
    let best = |p: &Point| p.best_samples_per_s;
    let ours = |p: &Point| p.samples_per_s;
    panel(
        &mut out,
        report,
        1,
        "samples/s",
        "best plan at no cost",
        "trained",
        (best, ours),
    );
    hours(&mut out, report);
    losses(&mut out, report);
    out.push_str("</svg>\n");
    out
}

#[expect(clippy::cast_precision_loss, reason = "counts of nodes")]
fn number(n: usize) -> f64 {
    n as f64
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn x(report: &Report, at_s: f64) -> f64 {
    LEFT + at_s / report.seconds.max(1e-9) * (WIDTH - LEFT - RIGHT)
}

type Values = (fn(&Point) -> f64, fn(&Point) -> f64);

fn panel(
    out: &mut String,
    report: &Report,
    index: usize,
    unit: &str,
    back: &str,
    front: &str,
    values: Values,
) {
    let top = TOPS[index];
    let floor = top + PANEL;
    let most = report.timeline.iter().map(values.0).fold(1.0, f64::max);
    let step = nice(most / 4.0);
    let scale = PANEL / (step * (most / step).ceil());
    let mut at = 0.0;
    while at * scale <= PANEL + 0.5 {
        let y = floor - at * scale;
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{}\" y2=\"{y:.1}\" stroke=\"#e6e6e6\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{at}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            y + 4.0
        );
        at += step;
    }
    let under = steps(report, floor, scale, values.0);
    let _ = writeln!(
        out,
        "<path d=\"M{LEFT:.1},{floor:.1}{under}V{floor:.1}Z\" fill=\"{BEST}\"/>"
    );
    let over = steps(report, floor, scale, values.1);
    let _ = writeln!(
        out,
        "<path d=\"M{LEFT:.1},{floor:.1}{over}V{floor:.1}\" fill=\"none\" stroke=\"{OURS}\" stroke-width=\"1.3\"/>"
    );
    let y = top - 10.0;
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"{y}\" font-weight=\"bold\">{unit}</text>\
         <rect x=\"{0}\" y=\"{1}\" width=\"14\" height=\"10\" fill=\"{BEST}\"/><text x=\"{2}\" y=\"{y}\">{back}</text>\
         <rect x=\"{3}\" y=\"{4}\" width=\"14\" height=\"2\" fill=\"{OURS}\"/><text x=\"{5}\" y=\"{y}\">{front}</text>",
        LEFT + 90.0,
        y - 9.0,
        LEFT + 110.0,
        LEFT + 250.0,
        y - 5.0,
        LEFT + 270.0
    );
}

/// The line of a value that changes at once.
fn steps(report: &Report, floor: f64, scale: f64, value: fn(&Point) -> f64) -> String {
    let mut path = String::new();
    for point in &report.timeline {
        let (x, y) = (x(report, point.at_s), floor - value(point) * scale);
        let _ = write!(path, "H{x:.2}V{y:.2}");
    }
    let _ = write!(path, "H{:.2}", WIDTH - RIGHT);
    path
}

/// 1, 2 or 5 times a power of ten, at least `least`.
fn nice(least: f64) -> f64 {
    let power = 10f64.powf(least.max(1e-9).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|s| s * power);
    steps.into_iter().find(|s| *s >= least * 0.999).unwrap_or(power)
}

fn hours(out: &mut String, report: &Report) {
    let whole = report.seconds / 3600.0;
    let step = nice(whole / 12.0);
    let floor = TOPS[1] + PANEL;
    let mut at = 0.0;
    while at <= whole {
        let x = x(report, at * 3600.0);
        let _ = writeln!(
            out,
            "<line x1=\"{x:.1}\" y1=\"{floor}\" x2=\"{x:.1}\" y2=\"{}\" stroke=\"#999\"/>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">{} h</text>",
            floor + 5.0,
            floor + 18.0,
            (at * 100.0).round() / 100.0
        );
        at += step;
    }
}

/// A bar of what was lost, by cause.
fn losses(out: &mut String, report: &Report) {
    let mut all: Vec<_> = report.losses.iter().filter(|l| l.percent > 0.0005).collect();
    all.sort_by(|a, b| b.percent.total_cmp(&a.percent));
    let sum: f64 = all.iter().map(|l| l.percent).sum();
    let y = HEIGHT - 66.0;
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"{:.1}\" font-weight=\"bold\">lost: {:.2} % of the best</text>",
        y - 8.0,
        100.0 - report.goodput * 100.0
    );
    let mut at = LEFT;
    for (i, loss) in all.iter().enumerate() {
        let width = loss.percent / sum.max(1e-9) * (WIDTH - LEFT - RIGHT);
        let shade = 1.0 - 0.8 * number(i) / number(all.len().max(1));
        let _ = writeln!(
            out,
            "<rect x=\"{at:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"20\" fill=\"{GONE}\" fill-opacity=\"{shade:.2}\"/>"
        );
        at += width;
    }
    let words: Vec<String> = all
        .iter()
        .map(|l| format!("{} {:.2} %", l.cause.words(), l.percent))
        .collect();
    for (row, words) in words.chunks(6).enumerate() {
        let _ = writeln!(
            out,
            "<text x=\"{LEFT}\" y=\"{:.1}\">{}</text>",
            y + 36.0 + 16.0 * number(row),
            words.join("  ·  ")
        );
    }
}
