//! One step as a Gantt chart: a lane for each worker of a pipeline, time from left to right, idle time in grey.

use std::fmt::Write as _;
use varuna_plan::Shape;
use varuna_plan::predict::{Activity, PipelineTrace, Span};
use varuna_plan::schedule::Instruction;

const WIDTH: f64 = 1500.0;
const LEFT: f64 = 120.0;
/// Heights of a lane's compute and of the network below it, pixels.
const COMPUTE: f64 = 26.0;
const NETWORK: f64 = 8.0;
const LANE: f64 = COMPUTE + NETWORK + 8.0;
/// Most kinds of pipelines that are drawn.
const KINDS: usize = 4;
/// Columns of the chart as text.
const COLUMNS: usize = 100;

const FORWARD: &str = "#4c8bd0";
const BACKWARD: &str = "#3f9a62";
const RECOMPUTE: &str = "#e0a030";
const TRANSFER: &str = "#9467bd";
const RING: &str = "#c8503c";
const OPTIMIZER: &str = "#555555";
const IDLE: &str = "#ececec";
/// How much darker the last stage of a worker with several stages is, 0 to 1.
const DARKEST: f64 = 0.45;

fn end_ms(traces: &[PipelineTrace]) -> f64 {
    let ends = traces.iter().flat_map(|t| &t.ends);
    ends.map(|e| e.ms).fold(f64::MIN_POSITIVE, f64::max)
}

/// Colour, micro-batch, and whether it is compute.
fn style_of(what: Activity) -> (&'static str, u32, bool) {
    match what {
        Activity::Compute(Instruction::Forward(m)) => (FORWARD, m, true),
        Activity::Compute(Instruction::Backward(m)) => (BACKWARD, m, true),
        Activity::Compute(Instruction::Recompute(m)) => (RECOMPUTE, m, true),
        Activity::SendActivation(m) | Activity::SendGradient(m) => (TRANSFER, m, false),
    }
}

/// A colour (`#rrggbb`) darkened by a share of its brightness, 0 to 1.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "below 256, and not negative"
)]
fn darker(colour: &str, by: f64) -> String {
    let rgb = u32::from_str_radix(colour.trim_start_matches('#'), 16).unwrap_or(0);
    let part = |shift: u32| (f64::from(rgb >> shift & 0xff) * (1.0 - by)).round() as u32;
    format!("#{:02x}{:02x}{:02x}", part(16), part(8), part(0))
}

struct Picture {
    body: String,
    scale: f64,
}

impl Picture {
    fn bar(&mut self, start_ms: f64, end_ms: f64, y: f64, height: f64, fill: &str) {
        let (x, width) = (LEFT + start_ms * self.scale, (end_ms - start_ms) * self.scale);
        // Bars that are wide enough leave a thin gap.
        let gap = if width > 3.0 { 0.6 } else { 0.0 };
        let _ = writeln!(
            self.body,
            "<rect x=\"{x:.2}\" y=\"{y:.1}\" width=\"{:.2}\" height=\"{height}\" fill=\"{fill}\"/>",
            (width - gap).max(0.05)
        );
    }

    fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let _ = writeln!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{text}</text>"
        );
    }

    /// A worker's name and the end of its step; its compute is drawn above that.
    fn lane(&mut self, trace: &PipelineTrace, w: usize, y: f64, end: f64) {
        self.bar(0.0, end, y, COMPUTE + NETWORK, IDLE);
        self.text(10.0, y + 12.0, "l", &format!("{} {w}", lane_name(trace)));
        let own = trace.stages.iter().skip(w).step_by(trace.workers);
        let ranges: Vec<String> = own.map(ToString::to_string).collect();
        let segments = match ranges.as_slice() {
            [first, rest @ ..] if !rest.is_empty() => format!("{first} and {} more", rest.len()),
            _ => format!("segments {}", ranges.concat()),
        };
        self.text(10.0, y + 25.0, "g", &segments);
        for ends in trace.ends.iter().skip(w).step_by(trace.workers) {
            if ends.rings_to_ms > ends.rings_from_ms {
                self.bar(ends.rings_from_ms, ends.rings_to_ms, y, COMPUTE + NETWORK, RING);
            }
            if ends.ms > ends.optimizer_from_ms {
                self.bar(ends.optimizer_from_ms, ends.ms, y, COMPUTE + NETWORK, OPTIMIZER);
            }
        }
    }

    fn span(&mut self, span: &Span, workers: usize, stages: usize, top: f64) {
        let (fill, micro_batch, compute) = style_of(span.activity);
        let y = top + LANE * stage_as_f64(span.stage % workers);
        if !compute {
            self.bar(span.start_ms, span.end_ms, y + COMPUTE, NETWORK, fill);
            return;
        }
        // Later stages of a worker are darker.
        let share = stage_as_f64(span.stage / workers) / stage_as_f64(((stages - 1) / workers).max(1));
        let fill = darker(fill, DARKEST * share);
        self.bar(span.start_ms, span.end_ms, y, COMPUTE, &fill);
        let width = (span.end_ms - span.start_ms) * self.scale;
        if width >= 9.0 {
            let middle = LEFT + f64::midpoint(span.start_ms, span.end_ms) * self.scale;
            let class = if width >= 14.0 { "n" } else { "n s" };
            self.text(middle, y + COMPUTE / 2.0 + 3.5, class, &micro_batch.to_string());
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "stage counts are small")]
fn stage_as_f64(stage: usize) -> f64 {
    stage as f64
}

/// The name of a lane: a stage, or a worker if workers have several stages.
fn lane_name(trace: &PipelineTrace) -> &'static str {
    match trace.workers < trace.stages.len() {
        true => "worker",
        false => "stage",
    }
}

/// The predicted step of a shape as an SVG document. `bubble`: of the prediction that the traces are of; the shape's own may be by other costs.
pub(crate) fn predicted(traces: &[PipelineTrace], shape: &Shape, bubble: f64) -> String {
    svg(traces, &shape.summary(), bubble)
}

/// A measured step of a shape as an SVG document.
pub(crate) fn measured(traces: &[PipelineTrace], shape: &Shape) -> String {
    svg(traces, &format!("{}, measured", shape.summary()), idle(traces))
}

/// Share of the step, 0 to 1, in which the average worker does not compute, as a prediction counts it: rings and optimizer are part of it.
fn idle(traces: &[PipelineTrace]) -> f64 {
    let workers: usize = traces.iter().map(|t| t.workers).sum();
    let compute = traces
        .iter()
        .flat_map(|t| &t.spans)
        .filter(|s| style_of(s.activity).2);
    let busy: f64 = compute.map(|s| s.end_ms - s.start_ms).sum();
    (1.0 - busy / (stage_as_f64(workers) * end_ms(traces))).clamp(0.0, 1.0)
}

/// `bubble`: share of the time, 0 to 1.
fn svg(traces: &[PipelineTrace], what: &str, bubble: f64) -> String {
    let end = end_ms(traces);
    let mut picture = Picture {
        body: String::new(),
        scale: (WIDTH - LEFT - 20.0) / end,
    };
    let title = format!("{what}: one step, {end:.1} ms, bubble {:.0} %", bubble * 100.0);
    picture.text(10.0, 24.0, "t", &title);
    let mut x = 10.0;
    for (fill, name) in [
        (FORWARD, "forward"),
        (RECOMPUTE, "recompute"),
        (BACKWARD, "backward"),
        (TRANSFER, "transfer (sender)"),
        (RING, "gradient rings"),
        (OPTIMIZER, "optimizer"),
        (IDLE, "idle (bubble)"),
    ] {
        let _ = writeln!(
            picture.body,
            "<rect x=\"{x}\" y=\"38\" width=\"12\" height=\"12\" fill=\"{fill}\" stroke=\"#999\" stroke-width=\"0.4\"/>"
        );
        picture.text(x + 17.0, 48.5, "l", name);
        x += 45.0 + 7.0 * stage_as_f64(name.len());
    }
    let mut top = 78.0;
    for trace in traces.iter().take(KINDS) {
        let alike = if trace.count > 1 {
            format!(" and {} alike", trace.count - 1)
        } else {
            String::new()
        };
        let head = format!(
            "pipeline {}{alike}: {} micro-batches",
            trace.first, trace.micro_batches
        );
        picture.text(10.0, top, "l", &head);
        top += 8.0;
        for w in 0..trace.workers {
            picture.lane(trace, w, top + LANE * stage_as_f64(w), end);
        }
        for span in &trace.spans {
            picture.span(span, trace.workers, trace.stages.len(), top);
        }
        top += LANE * stage_as_f64(trace.workers) + 20.0;
    }
    if traces.len() > KINDS {
        picture.text(
            10.0,
            top,
            "l",
            &format!("{} more kinds of pipelines are not drawn", traces.len() - KINDS),
        );
        top += 20.0;
    }
    axis(&mut picture, end, top);
    page(&picture.body, WIDTH, top + 30.0)
}

/// Lines and labels at round times.
fn axis(picture: &mut Picture, end: f64, y: f64) {
    let magnitude = 10f64.powf((end / 10.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .map(|k| k * magnitude)
        .into_iter()
        .find(|s| end / s <= 12.0);
    let step = step.unwrap_or(end);
    // Enough digits to tell two labels apart.
    let digits = if step >= 1.0 {
        0
    } else {
        1 + usize::from(step < 0.1)
    };
    let mut at = 0.0;
    while at <= end {
        let x = LEFT + at * picture.scale;
        let _ = writeln!(
            picture.body,
            "<line x1=\"{x:.1}\" y1=\"66\" x2=\"{x:.1}\" y2=\"{y:.1}\" stroke=\"#000\" stroke-width=\"0.3\" stroke-dasharray=\"2 4\"/>"
        );
        picture.text(x, y + 12.0, "n d", &format!("{at:.digits$} ms"));
        at += step;
    }
}

/// An SVG document of this size.
fn page(body: &str, width: f64, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height:.0}\" viewBox=\"0 0 {width} {height:.0}\" \
         font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\">\n<style>.t{{font-size:16px;font-weight:bold}} \
         .l{{font-size:12px}} .g{{font-size:10px;fill:#777}} .n{{font-size:10px;text-anchor:middle;fill:#fff}} \
         .s{{font-size:7px}} .d{{fill:#333}} .e{{font-size:11px;text-anchor:end;fill:#333}}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{body}</svg>\n"
    )
}

/// The step as text: for each stage and each column of time, what it does for most of that time.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "columns of text"
)]
pub(super) fn text(traces: &[PipelineTrace]) -> String {
    let end = end_ms(traces);
    let column = end / COLUMNS as f64;
    let mut text = format!(
        "one step, {end:.1} ms: F forward, R recompute, B backward, = gradient rings, O optimizer, . idle; a column is {column:.2} ms\n"
    );
    for trace in traces.iter().take(KINDS) {
        let _ = writeln!(text, "pipeline {} ({} of this kind):", trace.first, trace.count);
        for w in 0..trace.workers {
            // Milliseconds of each letter in each column.
            let mut time = vec![[0.0f64; 5]; COLUMNS];
            let mut add = |letter: usize, from: f64, to: f64| {
                let first = ((from / column) as usize).min(COLUMNS - 1);
                let last = ((to / column) as usize).min(COLUMNS - 1);
                for (c, time) in time.iter_mut().enumerate().take(last + 1).skip(first) {
                    let (start, stop) = (c as f64 * column, (c + 1) as f64 * column);
                    time[letter] += (to.min(stop) - from.max(start)).max(0.0);
                }
            };
            for span in trace.spans.iter().filter(|s| s.stage % trace.workers == w) {
                let letter = match span.activity {
                    Activity::Compute(Instruction::Forward(_)) => 0,
                    Activity::Compute(Instruction::Recompute(_)) => 1,
                    Activity::Compute(Instruction::Backward(_)) => 2,
                    Activity::SendActivation(_) | Activity::SendGradient(_) => continue,
                };
                add(letter, span.start_ms, span.end_ms);
            }
            for ends in trace.ends.iter().skip(w).step_by(trace.workers) {
                add(3, ends.rings_from_ms, ends.rings_to_ms);
                add(4, ends.optimizer_from_ms, ends.ms);
            }
            let letter = |time: &[f64; 5]| {
                let idle = column - time.iter().sum::<f64>();
                let most = time.iter().zip("FRB=O".chars()).max_by(|a, b| a.0.total_cmp(b.0));
                most.filter(|(ms, _)| **ms >= idle)
                    .map_or('.', |(_, letter)| letter)
            };
            let line: String = time.iter().map(letter).collect();
            let _ = writeln!(text, "  {} {w:>2} {line}", lane_name(trace));
        }
    }
    if traces.len() > KINDS {
        let _ = writeln!(
            text,
            "{} more kinds of pipelines are not shown",
            traces.len() - KINDS
        );
    }
    text
}
