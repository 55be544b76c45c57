//! The report of a replay as a chart: nodes and throughput over time, and what was lost by cause.

use crate::chart::{Area, Drawn, Series, Style, panel, svg};
use crate::failure::Failure;
use plotters::prelude::*;
use varuna_sim::replay::{Loss, Point, Report};

const SIZE: (u32, u32) = (1200, 760);
/// Height of each of the two panels over time, pixels; the losses take what is left.
const PANEL: u32 = 240;
/// Losses below this are left out, per cent.
const SMALLEST_LOSS: f64 = 0.005;

const BEST: RGBColor = RGBColor(0xc3, 0xcf, 0xdd);
const ACTUAL: RGBColor = RGBColor(0x1f, 0x6f, 0x8b);
const LOST: RGBColor = RGBColor(0xb0, 0x3a, 0x48);

/// An SVG document.
pub(super) fn draw(title: &str, report: &Report) -> Result<String, Failure> {
    let title = format!("{title}: goodput {:.2} %", report.goodput * 100.0);
    svg(SIZE, |area| {
        let area = area.titled(&title, ("sans-serif", 18))?;
        let (over_time, lost) = area.split_vertically(2 * PANEL);
        let (nodes, rate) = over_time.split_vertically(PANEL);
        let end = report.seconds / 3600.0;
        let series = |name, color, style, value: &dyn Fn(&Point) -> f64| Series {
            name,
            color,
            style,
            points: steps(report, value),
            breaks: Vec::new(),
        };
        #[expect(clippy::cast_precision_loss, reason = "counts of nodes")]
        let counts = [
            series("available", BEST, Style::Area, &|p| p.there as f64),
            series("training", ACTUAL, Style::Line, &|p| p.used as f64),
        ];
        panel(&nodes, 0.0..end, ("time, hours", "nodes"), &counts)?;
        let rates = [
            series("best plan, no cost of change", BEST, Style::Area, &|p| {
                p.best_samples_per_s
            }),
            series("trained", ACTUAL, Style::Line, &|p| p.samples_per_s),
        ];
        panel(&rate, 0.0..end, ("time, hours", "samples/s"), &rates)?;
        losses(&lost, report)
    })
}

/// A value over hours that holds until the next point.
fn steps(report: &Report, value: &dyn Fn(&Point) -> f64) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = Vec::new();
    for point in &report.timeline {
        let hours = point.at_s / 3600.0;
        points.extend(points.last().map(|last| (hours, last.1)));
        points.push((hours, value(point)));
    }
    points.extend(points.last().map(|last| (report.seconds / 3600.0, last.1)));
    points
}

/// A bar for each cause, the largest on top.
fn losses(area: &Area, report: &Report) -> Drawn {
    let lost = report.losses.iter().filter(|l| l.percent > SMALLEST_LOSS);
    let mut lost: Vec<&Loss> = lost.collect();
    lost.sort_by(|a, b| a.percent.total_cmp(&b.percent));
    let Some(most) = lost.last() else { return Ok(()) };
    let name = |l: &&Loss| format!("{} {:.2} %", l.cause.label(), l.percent);
    let names: Vec<String> = lost.iter().map(name).collect();
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .margin_right(24)
        .x_label_area_size(36)
        .y_label_area_size(180)
        .build_cartesian_2d(0.0..most.percent * 1.05, (0..lost.len()).into_segmented())?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .light_line_style(TRANSPARENT)
        .y_labels(names.len())
        .y_label_formatter(&|at| match at {
            SegmentValue::CenterOf(i) => names.get(*i).cloned().unwrap_or_default(),
            SegmentValue::Exact(_) | SegmentValue::Last => String::new(),
        })
        .x_desc("lost, % of the samples of the best plan")
        .draw()?;
    chart.draw_series(lost.iter().enumerate().map(|(i, loss)| {
        let corners = [
            (0.0, SegmentValue::Exact(i)),
            (loss.percent, SegmentValue::Exact(i + 1)),
        ];
        let mut bar = Rectangle::new(corners, LOST.filled());
        bar.set_margin(2, 2, 0, 0);
        bar
    }))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_sim::replay::{Cause, CheckpointsMade, ExtraMemory};

    #[test]
    fn the_chart_has_both_panels_and_names_what_was_lost() {
        let point = |at_s, there, used| Point {
            at_s,
            there,
            used,
            samples_per_s: 2.0,
            best_samples_per_s: 3.0,
        };
        let loss = |cause, percent| Loss { cause, percent };
        let report = Report {
            seconds: 7200.0,
            nodes: 4,
            joins: 4,
            leaves: 1,
            notice_s: 0.0,
            calibrated: false,
            steps: 100,
            trained_samples: 900.0,
            ideal_samples: 1000.0,
            goodput: 0.9,
            moved_bytes: 0.0,
            gradient_bytes: 0.0,
            extra_memory: ExtraMemory::default(),
            checkpoints: CheckpointsMade::default(),
            losses: vec![
                loss(Cause::Transfer, 8.0),
                loss(Cause::Plan, 2.0),
                loss(Cause::Start, 0.001),
            ],
            reconfigurations: Vec::new(),
            timeline: vec![point(0.0, 4, 4), point(3600.0, 3, 0)],
            simulated_steps: 10,
        };
        let svg = draw("a <job>", &report).unwrap();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        for text in [
            "a &lt;job&gt;: goodput 90.00 %",
            "nodes",
            "samples/s",
            "time, hours",
            "transfer of state 8.00 %",
            "plan 2.00 %",
        ] {
            assert!(svg.contains(text), "{text} is missing");
        }
        assert!(!svg.contains("start 0.00 %"), "too small to be drawn");
        assert_eq!((svg.matches("<polygon").count(), svg.contains("NaN")), (2, false));
    }

    #[test]
    fn an_empty_replay_can_be_drawn() {
        let report = Report {
            seconds: 0.0,
            nodes: 0,
            joins: 0,
            leaves: 0,
            notice_s: 0.0,
            calibrated: false,
            steps: 0,
            trained_samples: 0.0,
            ideal_samples: 0.0,
            goodput: 0.0,
            moved_bytes: 0.0,
            gradient_bytes: 0.0,
            extra_memory: ExtraMemory::default(),
            checkpoints: CheckpointsMade::default(),
            losses: Vec::new(),
            reconfigurations: Vec::new(),
            timeline: Vec::new(),
            simulated_steps: 0,
        };
        assert!(draw("none", &report).unwrap().contains("goodput 0.00 %"));
    }
}
