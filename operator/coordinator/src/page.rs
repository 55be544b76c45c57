//! The coordinator's own page: its reports on the run, as one self-contained HTML document. Pure. maud escapes all texts, which come from
//! job files, pods and workers.

use maud::{DOCTYPE, Markup, html};
use varuna_api::crd::{RunEnd, RunStatus};
use varuna_protocol::coordinator::{RunView, SpareCopiesView, WorkerView};

/// How many workers are listed: a page with thousands would be useless, and costs time.
const WORKERS_MAX: usize = 500;
/// Messages that are shown, the newest first.
const MESSAGES_SHOWN: usize = 20;
/// Seconds after which a browser loads the page again.
const REFRESH_SECONDS: u32 = 5;
const STYLE: &str = "body{font:14px/1.5 system-ui,sans-serif;margin:2em;max-width:70em;color:#222;background:#fff}\
    table{border-collapse:collapse;margin:.5em 0 1.5em}th,td{text-align:left;padding:.15em 1.2em .15em 0;vertical-align:top}\
    th{color:#666;font-weight:normal}.gone{color:#999}.bad{color:#b00020}";

/// The job and coordinator to which the page belongs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Title {
    /// Namespace of the job.
    pub namespace: String,
    /// Name of the job.
    pub job: String,
    /// Number of the coordinator.
    pub number: i64,
}

/// The page of a coordinator. `report`: what it has reported last; none while another one is in charge.
#[must_use]
pub fn page(title: &Title, report: Option<&RunStatus>) -> String {
    let Title {
        namespace,
        job,
        number,
    } = title;
    let document = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="refresh" content=(REFRESH_SECONDS);
                title { (namespace) "/" (job) }
                style { (STYLE) }
            }
            body {
                h1 { (namespace) "/" (job) }
                p { "Coordinator " (number) }
                @match report {
                    None => p { "It waits for its turn: another coordinator is in charge, or none yet." },
                    Some(report) => (body(report)),
                }
            }
        }
    };
    document.into_string()
}

fn body(report: &RunStatus) -> Markup {
    let Some(state) = &report.state else {
        return html! { p { "It takes over: the record is not read yet." } (end(report)) };
    };
    html! {
        (end(report))
        (run(&state.run, report))
        h2 { "Workers" }
        (workers(&state.workers))
        @if !report.recoveries.is_empty() {
            h2 { "Recent recoveries" }
            (recoveries(report))
        }
        h2 { "What has happened" }
        ul {
            @for message in report.messages.iter().rev().take(MESSAGES_SHOWN) {
                li { (message.text) }
            }
        }
    }
}

fn end(report: &RunStatus) -> Markup {
    let text = match &report.end {
        None => return html! {},
        Some(RunEnd::Done) => "The run is complete.".to_owned(),
        Some(RunEnd::Stopped) => "The run was stopped.".to_owned(),
        Some(RunEnd::StateLost(what)) => format!("The state of {what} is lost."),
        Some(RunEnd::Diverged(why)) => format!("The run has diverged: {why}"),
        Some(RunEnd::CheckpointsTaken(by)) => format!("Run {by} has taken over the checkpoint location."),
        Some(RunEnd::Failed(why)) => format!("This coordinator has failed: {why}"),
    };
    html! { p { strong { (text) } } }
}

fn run(run: &RunView, report: &RunStatus) -> Markup {
    let milliseconds = |ms: Option<f64>| ms.map(|ms| format!("{ms:.0} ms"));
    let checkpoint = report
        .checkpoints
        .as_ref()
        .map(|c| match (c.newest_step, &c.newest_at) {
            (Some(step), Some(at)) => format!("step {step}, seen {}", at.0),
            (Some(step), None) => format!("step {step}"),
            (None, _) => "none yet".to_owned(),
        });
    let failing = report.checkpoints.as_ref().and_then(|c| c.failing.as_ref());
    let rows = [
        ("Phase", Some(run.mode.to_string())),
        ("Step", Some(format!("{} of {}", run.step.0, run.last_step.0))),
        (
            "Loss",
            report.loss.map(|loss| format!("{loss:.4} nats per token")),
        ),
        (
            "Plan",
            run.plan
                .as_ref()
                .map(|plan| format!("{plan} (generation {})", run.generation.0)),
        ),
        ("Workers in it", Some(run.members.to_string())),
        ("Time of a step", milliseconds(run.observed_ms)),
        ("Predicted", milliseconds(run.predicted_ms)),
        ("Spare copies", run.spare_copies.as_ref().map(spare_copies)),
        ("Newest checkpoint", checkpoint),
    ];
    html! {
        table {
            @for (name, value) in rows {
                @if let Some(value) = value { tr { th { (name) } td { (value) } } }
            }
            @if let Some(why) = failing { tr { th { "Store" } td class="bad" { "fails: " (why) } } }
        }
    }
}

fn spare_copies(view: &SpareCopiesView) -> String {
    let (units, kept, in_step) = (view.units, view.kept, view.in_step);
    let why = view.verdict.as_ref();
    let why = why.map_or(String::new(), |verdict| format!(": {}", verdict.why));
    format!("{kept} of {units} units that one worker alone holds, {in_step} in step{why}")
}

fn workers(all: &[WorkerView]) -> Markup {
    html! {
        table {
            tr { th { "name" } th { "node" } th { "place" } th { "step" } th { "speed" } th { "state" } }
            @for worker in all.iter().take(WORKERS_MAX) {
                tr class=[(!worker.up).then_some("gone")] {
                    td { (worker.name) }
                    td { (worker.node) }
                    td { (place(worker)) }
                    td { (worker.step.0) }
                    td { (format!("{:.2}", worker.speed)) }
                    td { (state(worker)) }
                }
            }
        }
        @if all.len() > WORKERS_MAX { p { "and " (all.len() - WORKERS_MAX) " more" } }
    }
}

fn place(worker: &WorkerView) -> String {
    let Some(pipeline) = worker.pipeline else {
        return "none".to_owned();
    };
    let segments = worker.segments.iter().map(|s| format!("{}..{}", s.start, s.end));
    let segments: Vec<String> = segments.collect();
    format!("pipeline {pipeline}, segments {}", segments.join(" and "))
}

fn state(worker: &WorkerView) -> String {
    match (worker.up, worker.draining, &worker.left_out) {
        (false, _, _) => "gone".to_owned(),
        (true, _, Some(left_out)) => format!("left out: {}", left_out.why),
        (true, true, None) => "will go".to_owned(),
        (true, false, None) => "attached".to_owned(),
    }
}

fn recoveries(report: &RunStatus) -> Markup {
    html! {
        table {
            tr { th { "when" } th { "cause" } th { "workers lost" } th { "pause" } th { "steps lost" } }
            @for recovery in report.recoveries.iter().rev() {
                tr {
                    td { (recovery.at.0) }
                    td { (recovery.cause) }
                    td { (recovery.workers_lost) }
                    td { (recovery.pause_ms) " ms" }
                    td { (recovery.steps_lost) }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
