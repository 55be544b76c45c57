//! Loss and workers over time as one SVG chart.

use crate::summary::{ActKind, DemoRun};
use anyhow::{Result, anyhow};
use plotters::prelude::*;

const SIZE: (u32, u32) = (900, 520);
const LOSS_HEIGHT: u32 = 330;
const LOSS: RGBColor = RGBColor(0x1f, 0x5f, 0xa8);
const WORKERS: RGBColor = RGBColor(0x2e, 0x7d, 0x32);
const KILL: RGBColor = RGBColor(0xc6, 0x28, 0x28);

/// The whole chart. A dashed line marks what the chaos driver did.
pub(crate) fn draw(run: &DemoRun) -> Result<String> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    panels(&area, run).map_err(|e| anyhow!("cannot draw the chart: {e}"))?;
    drop(area);
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

#[expect(clippy::cast_precision_loss, reason = "a chart's precision")]
fn panels(area: &Area, run: &DemoRun) -> Drawn {
    area.fill(&WHITE)?;
    let (upper, lower) = area
        .titled("Training loss and workers over time", ("sans-serif", 16))?
        .split_vertically(LOSS_HEIGHT);
    let start_ms = run.metrics[0].time_ms;
    let seconds = |time_ms: u64| time_ms.saturating_sub(start_ms) as f64 / 1e3;
    let end = run.metrics.last().map_or(1.0, |m| seconds(m.time_ms)).max(1e-3);

    let loss: Vec<(f64, f64)> = run.metrics.iter().map(|m| (seconds(m.time_ms), m.loss)).collect();
    let low = loss.iter().map(|p| p.1).fold(f64::MAX, f64::min);
    let high = loss.iter().map(|p| p.1).fold(f64::MIN, f64::max);
    // Room for the labels of the acts above the curve.
    let top = high + 0.12 * (high - low).max(1e-9);
    let mut chart = axes(&upper, (end, low..top), "loss")?;
    for act in &run.acts {
        let color = if act.kind == ActKind::Kill { KILL } else { WORKERS };
        let x = seconds(act.time_ms).min(end);
        let line = [(x, low), (x, top)];
        chart.draw_series(DashedLineSeries::new(line, 4, 3, color.into()))?;
        chart.draw_series([Text::new(
            format!(" {}", act.what),
            (x, top),
            ("sans-serif", 12).into_font().color(&color),
        )])?;
    }
    chart.draw_series(LineSeries::new(loss, LOSS.stroke_width(2)))?;

    // A number of workers holds until the next step.
    let mut workers: Vec<(f64, f64)> = Vec::new();
    for m in &run.metrics {
        let x = seconds(m.time_ms);
        workers.extend(workers.last().map(|last| (x, last.1)));
        workers.push((x, m.workers as f64));
    }
    let most = workers.iter().map(|p| p.1).fold(1.0, f64::max);
    let mut chart = axes(&lower, (end, 0.0..most * 1.1), "workers")?;
    chart.draw_series(LineSeries::new(workers, WORKERS.stroke_width(2)))?;
    area.present()
}

type Axes = Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>;

/// A panel from 0 s to `end` seconds.
fn axes<'a, 'b>(
    area: &'a Area<'b>,
    (end, y): (f64, std::ops::Range<f64>),
    label: &str,
) -> Result<ChartContext<'a, SVGBackend<'b>, Axes>, DrawingAreaErrorKind<std::io::Error>> {
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .margin_right(24)
        .x_label_area_size(36)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..end, y)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .y_labels(6)
        .x_desc("time, s")
        .y_desc(label)
        .draw()?;
    Ok(chart)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::Act;
    use varuna_plan::{Generation, StateId, Step};
    use varuna_run_folder::{Metric, StepFigures};

    #[test]
    fn the_chart_shows_loss_workers_and_what_was_done_to_them() {
        let metric = |step: u32| Metric {
            step: Step(u64::from(step)),
            loss: 5.5 / f64::from(step).sqrt(),
            no_targets: false,
            eval_loss: None,
            gradient_norm: 1.0,
            overflow: false,
            skipped_steps: 0,
            loss_scale: None,
            generation: Generation(1),
            workers: if (100..200).contains(&step) { 3 } else { 4 },
            plan: "P2xD2".into(),
            tokens: 2048,
            step_ms: 90.0,
            time_ms: 1_000_000 + 90 * u64::from(step),
            state: StateId::INITIAL,
            figures: StepFigures::default(),
        };
        let act = |kind, what: &str, step: u64| Act {
            kind,
            what: what.into(),
            time_ms: 1_000_000 + 90 * step,
        };
        let run = DemoRun {
            metrics: (1..=300).map(metric).collect(),
            acts: vec![
                act(ActKind::Kill, "kill -9 w2", 100),
                act(ActKind::Join, "a worker joins", 200),
            ],
        };
        let svg = draw(&run).unwrap();
        for part in ["loss", "workers", "time, s", "kill -9 w2", "a worker joins"] {
            assert!(svg.contains(part), "{part} is missing");
        }
        assert!(
            svg.matches("<polyline").count() >= 4,
            "two curves and two dashed lines"
        );
    }
}
