//! `varuna plan --sweep`: throughput, cost and idle share by number of workers.

use super::Query;
use super::table::rate;
use crate::chart;
use crate::failure::Failure;
use crate::io::{print, print_json, write};
use plotters::prelude::{BLUE, RED, RGBColor};
use serde_json::json;
use std::fmt::Write as _;

/// The plan for one number of workers.
struct Row {
    workers: u64,
    /// The error says why there is no plan.
    plan: Result<Planned, String>,
}

struct Planned {
    summary: String,
    used: usize,
    step_ms: f64,
    samples_per_s: f64,
    /// Worker-seconds, or money with --price, for 1000 samples.
    cost: f64,
    /// Share of all workers' time that is idle, spares included, 0 to 1.
    idle: f64,
}

pub(super) fn run(query: &Query, from: u64, to: u64) -> Result<(), Failure> {
    let priced = query.arguments.price.is_some();
    let mut rows = Vec::new();
    for workers in from..=to {
        let plan = match query.plan(workers) {
            Ok((explained, request)) => Ok(row(query, workers, &explained, request.global_batch_size)),
            Err(Failure::Input(why)) => Err(why),
            Err(other) => return Err(other),
        };
        rows.push(Row { workers, plan });
    }
    if let Some(path) = &query.arguments.svg {
        write(path, svg(&rows, priced)?)?;
    }
    if query.arguments.json {
        print_json(&rows.iter().map(json).collect::<Vec<_>>())?;
    } else {
        print(&text(&rows, priced));
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn row(query: &Query, workers: u64, explained: &varuna_plan::Explained, batch: u64) -> Planned {
    let shape = &explained.shape;
    let used = shape.members().len();
    let samples_per_s = rate(batch, shape.predicted.step_ms);
    let worker_seconds = workers as f64 / samples_per_s * 1e3;
    Planned {
        summary: shape.summary(),
        used,
        step_ms: shape.predicted.step_ms,
        samples_per_s,
        cost: query
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

const WIDTH: u32 = 1000;
/// Heights of the panels, pixels.
const TALL: u32 = 320;
const SHORT: u32 = 170;
const GREY: RGBColor = RGBColor(0x77, 0x77, 0x77);

/// Three panels over the number of workers: throughput, cost, idle share.
#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn svg(rows: &[Row], priced: bool) -> Result<String, Failure> {
    let first = rows.first().map_or(1, |r| r.workers) as f64;
    let last = rows.last().map_or(1, |r| r.workers) as f64;
    // A range of one number has no width.
    let x = first..last.max(first + 1.0);
    let line = |color, value: &dyn Fn(&Planned) -> f64| chart::Series {
        name: "",
        color,
        style: chart::Style::Dots,
        points: rows
            .iter()
            .filter_map(|r| Some((r.workers as f64, value(r.plan.as_ref().ok()?))))
            .collect(),
        breaks: Vec::new(),
    };
    let cost = if priced {
        "cost/1000 samples"
    } else {
        "worker-s/1000 samples"
    };
    chart::svg((WIDTH, TALL + 2 * SHORT), |area| {
        let (rate, area) = area.split_vertically(TALL);
        let (costs, idle) = area.split_vertically(SHORT);
        for (area, label, line) in [
            (rate, "samples/s", line(BLUE, &|p| p.samples_per_s)),
            (costs, cost, line(RED, &|p| p.cost)),
            (idle, "idle, %", line(GREY, &|p| p.idle * 100.0)),
        ] {
            chart::panel(&area, x.clone(), ("workers", label), &[line])?;
        }
        Ok(())
    })
}
