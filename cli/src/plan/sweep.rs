//! Plans by number of workers: what each more brings.

use super::gantt::page;
use super::table::rate;
use super::{Asked, print, write};
use crate::failure::Failure;
use serde_json::json;
use std::fmt::Write as _;

/// One number of workers.
struct Row {
    workers: u64,
    /// None: no plan, and why.
    plan: Result<Planned, String>,
}

struct Planned {
    summary: String,
    used: usize,
    step_ms: f64,
    samples_per_s: f64,
    /// Worker seconds, or money, for a thousand samples.
    cost: f64,
    /// Share of the workers' time in which they wait, spares included.
    idle: f64,
}

pub(super) fn run(asked: &Asked, from: u64, to: u64) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for workers in from..=to {
        let plan = match asked.plan(workers) {
            Ok((explained, request)) => Ok(row(asked, workers, &explained, request.global_batch_size)),
            Err(Failure::Input(why)) => Err(why),
            Err(other) => return Err(other),
        };
        rows.push(Row { workers, plan });
    }
    if let Some(path) = &asked.arguments.svg {
        write(path, &svg(&rows))?;
    }
    if asked.arguments.json {
        let text = serde_json::to_string_pretty(&rows.iter().map(json).collect::<Vec<_>>());
        print(&text.map_err(|e| Failure::Internal(e.to_string()))?);
        print("\n");
    } else {
        print(&text(&rows, asked.arguments.price.is_some()));
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn row(asked: &Asked, workers: u64, explained: &varuna_plan::Explained, batch: u64) -> Planned {
    let shape = &explained.shape;
    let used = shape.members().len();
    let samples_per_s = rate(batch, shape.predicted.step_ms);
    let worker_seconds = workers as f64 / samples_per_s * 1e3;
    Planned {
        summary: shape.summary(),
        used,
        step_ms: shape.predicted.step_ms,
        samples_per_s,
        cost: asked
            .arguments
            .price
            .map_or(worker_seconds, |hour| worker_seconds / 3600.0 * hour),
        idle: 1.0 - used as f64 / workers as f64 * (1.0 - shape.predicted.bubble),
    }
}

fn text(rows: &[Row], priced: bool) -> String {
    let unit = if priced { "cost/1000" } else { "worker-s/1000" };
    let mut text = format!(
        "{:>7}  {:<16} {:>5} {:>12} {:>11} {:>14} {:>7}\n",
        "workers", "plan", "used", "step, ms", "samples/s", unit, "idle, %"
    );
    for Row { workers, plan } in rows {
        let _ = match plan {
            Ok(p) => writeln!(
                text,
                "{workers:>7}  {:<16} {:>5} {:>12.1} {:>11.2} {:>14.3} {:>7.1}",
                p.summary,
                p.used,
                p.step_ms,
                p.samples_per_s,
                p.cost,
                p.idle * 100.0
            ),
            Err(why) => writeln!(text, "{workers:>7}  {why}"),
        };
    }
    text
}

fn json(row: &Row) -> serde_json::Value {
    match &row.plan {
        Ok(p) => json!({
            "workers": row.workers, "summary": p.summary, "used": p.used, "stepMs": p.step_ms,
            "samplesPerS": p.samples_per_s, "costPerThousandSamples": p.cost, "idle": p.idle,
        }),
        Err(why) => json!({"workers": row.workers, "infeasible": why}),
    }
}

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 80.0;
const PLOT: f64 = 880.0;
const TALL: f64 = 260.0;
const SHORT: f64 = 110.0;

/// Name, height, colour and value of a plot.
type Plot<'a> = (&'a str, f64, &'a str, &'a dyn Fn(&Planned) -> f64);

/// Decimals that show three digits of the highest value of a scale.
fn digits(high: f64) -> usize {
    (0..6).find(|d| high * 10f64.powi(*d) >= 100.0).unwrap_or(6) as usize
}

/// Three plots over the number of workers: throughput, cost, idle share.
#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn svg(rows: &[Row]) -> String {
    let least = rows.first().map_or(1, |r| r.workers) as f64;
    let most = rows.last().map_or(1, |r| r.workers) as f64;
    let x = |workers: u64| LEFT + PLOT * (workers as f64 - least) / (most - least).max(1.0);
    let planned = || {
        rows.iter()
            .filter_map(|r| Some((r.workers, r.plan.as_ref().ok()?)))
    };
    let mut body = String::new();
    let mut top = 40.0;
    let plots: [Plot; 3] = [
        ("samples a second", TALL, "#4c8bd0", &|p| p.samples_per_s),
        ("cost of 1000 samples", SHORT, "#c8503c", &|p| p.cost),
        ("idle share, %", SHORT, "#777777", &|p| p.idle * 100.0),
    ];
    for (name, height, colour, of) in plots {
        let high = planned().map(|(_, p)| of(p)).fold(f64::MIN_POSITIVE, f64::max);
        let digits = digits(high);
        let _ = writeln!(
            body,
            "<text x=\"{LEFT}\" y=\"{:.1}\" class=\"l\">{name}</text>",
            top - 8.0
        );
        for quarter in 0..=4 {
            let part = f64::from(quarter) / 4.0;
            let y = top + height * (1.0 - part);
            let _ = writeln!(
                body,
                "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" class=\"e\">{:.digits$}</text>",
                LEFT + PLOT,
                LEFT - 8.0,
                y + 4.0,
                high * part
            );
        }
        let points: Vec<String> = planned()
            .map(|(n, p)| format!("{:.1},{:.1}", x(n), top + height * (1.0 - of(p) / high)))
            .collect();
        let _ = writeln!(
            body,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            points.join(" ")
        );
        for point in &points {
            let (x, y) = point.split_once(',').unwrap_or_default();
            let _ = writeln!(body, "<circle cx=\"{x}\" cy=\"{y}\" r=\"2\" fill=\"{colour}\"/>");
        }
        top += height + 45.0;
    }
    let marks = rows.len().div_ceil(16).max(1);
    for row in rows.iter().step_by(marks) {
        let _ = writeln!(
            body,
            "<text x=\"{:.1}\" y=\"{:.1}\" class=\"n d\">{}</text>",
            x(row.workers),
            top - 25.0,
            row.workers
        );
    }
    let _ = writeln!(
        body,
        "<text x=\"{LEFT}\" y=\"{top:.1}\" class=\"l\">workers</text>"
    );
    page(&body, WIDTH, top + 15.0)
}
