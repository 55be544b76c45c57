//! Commands that talk to the coordinator of a run: `scale`, `status`.

use crate::coordinator::runtime;
use crate::failure::Failure;
use crate::io::{print, print_json, print_line};
use crate::utc::utc;
use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use varuna_coordinator::RunMode;
use varuna_plan::Step;
use varuna_run_folder::{CheckpointStatus, Contact, ReadError, RunFiles, RunStatus, WorkerStatus};
use varuna_wire::v1::{ScaleRequest, StatusRequest};
use varuna_wire::{is_refusal, with_causes};

/// How long a coordinator may take to answer: one that hangs in its file system still keeps its connections. Starting a worker takes
/// milliseconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Set the number of workers of a run on this machine. New workers are started, or running workers are stopped in order.
#[derive(clap::Args)]
pub(crate) struct ScaleArguments {
    /// The run folder.
    run: PathBuf,
    /// New number of workers.
    workers: u32,
}

/// Show what a run is doing: step, loss, plan, and each worker with its process id.
///
/// If no coordinator answers, the command shows the last status that the run has written. The exit code is then 0 if the run has ended.
/// Otherwise it is 1, and the reason and the age of the status are on standard error.
#[derive(clap::Args)]
pub(crate) struct StatusArguments {
    /// The run folder.
    run: PathBuf,
    /// Print the whole status as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn contact(run: &Path) -> Result<Contact, Failure> {
    RunFiles::new(run)
        .contact()
        .map_err(|error| Failure::Input(format!("{} is not a run folder: {error}", run.display())))
}

pub(crate) async fn reach(contact: &Contact) -> Result<varuna_wire::Client, Failure> {
    varuna_wire::connect(&contact.address, contact.certificate.as_deref(), &contact.token)
        .await
        .map_err(|e| {
            // Its own text is but "transport error".
            let why = with_causes(&e.to_string(), e.source());
            Failure::Internal(format!("no coordinator answers at {} ({why})", contact.address))
        })
}

/// The result of a request, unless it takes too long.
pub(crate) async fn in_time<T>(contact: &Contact, request: impl Future<Output = T>) -> Result<T, Failure> {
    within(ANSWER_TIMEOUT, contact, request).await
}

async fn within<T>(
    limit: Duration,
    contact: &Contact,
    request: impl Future<Output = T>,
) -> Result<T, Failure> {
    let answer = tokio::time::timeout(limit, request).await;
    answer.map_err(|_| {
        let (address, limit) = (&contact.address, limit.as_secs());
        Failure::Internal(format!(
            "the coordinator at {address} does not answer within {limit} s"
        ))
    })
}

/// Why a request has changed nothing. `is_refusal`: the coordinator has looked at it and says no.
pub(crate) fn request_failure(contact: &Contact, is_refusal: bool, why: &str) -> Failure {
    match is_refusal {
        true => Failure::Input(why.to_owned()),
        false => Failure::Internal(format!(
            "the coordinator at {} gives no answer ({why})",
            contact.address
        )),
    }
}

/// The run's status, from its coordinator.
pub(crate) async fn status_of(contact: &Contact) -> Result<RunStatus, Failure> {
    let mut client = reach(contact).await?;
    let reply = in_time(contact, client.status(StatusRequest {})).await?;
    let reply = reply.map_err(|status| {
        let why = with_causes(status.message(), status.source());
        Failure::Internal(format!(
            "the coordinator at {} gives no status ({why})",
            contact.address
        ))
    })?;
    varuna_wire::status::from_wire(reply.into_inner()).map_err(|e| Failure::Internal(format!("status: {e}")))
}

pub(crate) fn scale(arguments: &ScaleArguments) -> Result<(), Failure> {
    let contact = contact(&arguments.run)?;
    runtime()?.block_on(async {
        let request = ScaleRequest {
            workers: arguments.workers,
        };
        let client = reach(&contact).await;
        let mut client = client.map_err(|failure| ended_or(&arguments.run, failure))?;
        let reply = in_time(&contact, client.scale(request)).await?;
        let reply = reply.map_err(|s| request_failure(&contact, is_refusal(&s), s.message()))?;
        print_line(&reply.into_inner().message);
        Ok(())
    })
}

pub(crate) fn status(arguments: &StatusArguments) -> Result<(), Failure> {
    let contact = contact(&arguments.run)?;
    let (status, outdated) = match runtime()?.block_on(status_of(&contact)) {
        Ok(status) => (status, None),
        Err(failure) => last_status(&arguments.run, failure)?,
    };
    if arguments.json {
        print_json(&status)?;
    } else {
        print(&text(&status));
    }
    outdated.map_or(Ok(()), Err)
}

/// The last status that a run has written, and what to report about it. `failure`: why there is no newer one.
fn last_status(run: &Path, failure: Failure) -> Result<(RunStatus, Option<Failure>), Failure> {
    let files = RunFiles::new(run);
    let last = match files.status() {
        Ok(last) => last,
        Err(ReadError::Io { .. }) => return Err(failure),
        Err(error) => return Err(Failure::Internal(error.to_string())),
    };
    let written = std::fs::metadata(files.status_path()).and_then(|m| m.modified());
    let outdated = outdated(last.run.mode, &failure, written.ok());
    Ok((last, outdated))
}

/// Why nobody takes a request to a run: its folder may say that it has ended. Otherwise it is `failure`.
pub(crate) fn ended_or(run: &Path, failure: Failure) -> Failure {
    match RunFiles::new(run).status() {
        Ok(last) if last.run.mode.is_over() => Failure::Input(format!(
            "{}: the run has ended at step {} of {}; allowed is the folder of a run that goes on",
            run.display(),
            last.run.step,
            last.run.last_step
        )),
        _ => failure,
    }
}

/// What is wrong with the last status of a run: nothing where the run has ended.
fn outdated(mode: RunMode, failure: &Failure, written: Option<SystemTime>) -> Option<Failure> {
    if mode.is_over() {
        return None;
    }
    let when = written.map_or(String::new(), |at| format!(", written at {}", utc(at)));
    Some(Failure::Internal(format!(
        "{failure}; this is the run's last status{when}"
    )))
}

fn text(status: &RunStatus) -> String {
    let skipped = status.skipped_steps.filter(|steps| *steps > 0);
    let ms = |ms: Option<f64>| or_dash(ms.map(|ms| format!("{ms:.0} ms")));
    let mut text = format!(
        "{}: {}  step {}/{}  loss {}{}{}\nplan {} (generation {})  step predicted {} observed {}{}\n",
        status.job,
        status.run.mode,
        status.run.step,
        status.run.last_step,
        or_dash(status.loss.map(|loss| format!("{loss:.4}"))),
        status
            .loss_scale
            .map_or(String::new(), |scale| format!("  scale {scale}")),
        skipped.map_or(String::new(), |steps| format!("  {steps} skipped")),
        or_dash(status.run.plan.clone()),
        status.run.generation,
        ms(status.run.predicted_ms),
        ms(status.run.observed_ms),
        status.run.compute_factor.map_or(String::new(), |factor| format!(
            "  (compute counts {factor:.3} times the estimate)"
        )),
    );
    text.extend(status.run.spare_copies.as_ref().map(|copies| {
        let why = copies.verdict.as_ref().map(|verdict| verdict.why.as_str());
        spare_copies([copies.units, copies.kept, copies.in_step], why)
    }));
    let run = &status.run;
    let awaits_checkpoint = run.step >= run.last_step && !run.mode.is_over();
    let last_step = awaits_checkpoint.then_some(run.last_step);
    text.extend(
        status
            .checkpoint
            .as_ref()
            .map(|saved| checkpoint(saved, last_step)),
    );
    text.extend(status.workers.iter().map(worker));
    text
}

/// Describes the checkpoints. `last_step`: the run's last step, if a run that goes on has done it.
fn checkpoint(saved: &CheckpointStatus, last_step: Option<Step>) -> String {
    let newest = saved.newest_step.map_or("there is none yet".to_owned(), |step| {
        format!("the newest is of step {step}")
    });
    let behind = saved.steps_behind.filter(|steps| *steps > 0);
    let behind = behind.map_or(String::new(), |steps| format!(", {steps} steps behind"));
    let awaited = match last_step > saved.newest_step {
        true => {
            "\n  (all steps are done, and the run ends as soon as the checkpoint of the last one is complete)"
        }
        false => "",
    };
    let failing = saved
        .failing
        .as_ref()
        .map_or(String::new(), |why| format!("\n  (failing: {why})"));
    format!("checkpoints: {newest}{behind}{awaited}{failing}\n")
}

/// Describes spare copies, and why they are kept or not. The numbers are those of units.
fn spare_copies([units, kept, in_step]: [usize; 3], why: Option<&str>) -> String {
    let copies = match (units, kept) {
        (0, _) => return "spare copies: none are needed, each unit has several holders\n".into(),
        (_, 0) => format!("nobody keeps one of the {units} units that one worker alone holds"),
        _ => format!(
            "of {units} units that one worker alone holds, {kept} are kept by another, {in_step} in step with the run"
        ),
    };
    let why = why.map_or(String::new(), |why| format!("\n  ({why})"));
    format!("spare copies: {copies}{why}\n")
}

fn worker(worker: &WorkerStatus) -> String {
    let segments: Vec<String> = worker.view.segments.iter().map(ToString::to_string).collect();
    format!(
        "  {:<8} {:<8} pipeline {:<3} segments {:<8} step {:<6} pid {} on {}{}\n",
        worker.view.name,
        or_dash(worker.view.phase.map(|phase| format!("{phase:?}"))),
        or_dash(worker.view.pipeline.map(|index| index.to_string())),
        or_dash((!segments.is_empty()).then(|| segments.join(","))),
        worker.view.step,
        worker.pid,
        worker.host,
        exclusion_text(worker),
    )
}

/// Why a worker has no part in the plan, or that it will have none.
fn exclusion_text(worker: &WorkerStatus) -> String {
    match &worker.view.left_out {
        Some(left_out) => format!("  (left out: {})", left_out.why),
        None if worker.view.draining => "  (leaving)".to_owned(),
        None => String::new(),
    }
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_coordinator_is_an_error_after_a_deadline() {
        let contact = Contact {
            address: "[::1]:7".into(),
            token: String::new(),
            certificate: None,
            pid: 1,
        };
        let internal = |failure: Failure, says: &str| match failure {
            Failure::Internal(why) => assert!(why.contains(says), "{why}"),
            other => panic!("{other}"),
        };
        let limit = Duration::from_millis(10);
        let never = std::future::pending::<()>();
        let late = runtime().unwrap().block_on(within(limit, &contact, never));
        internal(late.unwrap_err(), "[::1]:7 does not answer within");
        let ending = request_failure(&contact, false, "the run is ending");
        internal(ending, "[::1]:7 gives no answer (the run is ending)");
        match request_failure(&contact, true, "0 workers cannot train") {
            Failure::Input(why) => assert_eq!(why, "0 workers cannot train"),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn outdated_status_is_marked() {
        let failure = Failure::Internal("no coordinator answers at [::1]:7 (refused)".into());
        let said = |mode| outdated(mode, &failure, Some(SystemTime::UNIX_EPOCH)).map(|f| f.to_string());
        assert_eq!(
            said(RunMode::Training).as_deref(),
            Some(
                "no coordinator answers at [::1]:7 (refused); this is the run's last status, written at 1970-01-01 00:00:00Z"
            )
        );
        assert!(said(RunMode::Unknown).is_some());
        for ended in [RunMode::Done, RunMode::Stopped, RunMode::Ended] {
            assert_eq!(said(ended), None);
        }
    }

    #[test]
    fn a_status_says_of_each_worker_that_is_left_out_why() {
        let line = |draining: bool, left_out: serde_json::Value| {
            let status = serde_json::json!({
                "id": "0000000000000001", "name": "w1", "node": "n", "up": true, "phase": null, "generation": 0, "step": 0,
                "draining": draining, "speed": 1.0, "segments": [], "pipeline": null, "leftOut": left_out, "pid": 7, "host": "h",
                "device": "cpu", "timings": null,
            });
            worker(&serde_json::from_value(status).unwrap())
        };
        let why = serde_json::json!({ "reason": "noData", "why": "it could not read its data" });
        assert!(line(false, why).ends_with(" on h  (left out: it could not read its data)\n"));
        assert!(line(true, serde_json::Value::Null).ends_with(" on h  (leaving)\n"));
        assert!(line(false, serde_json::Value::Null).ends_with(" on h\n"));
    }

    #[test]
    fn a_status_says_what_is_waited_for_at_the_end() {
        let saved = |newest_step, failing: Option<&str>| CheckpointStatus {
            newest: None,
            newest_step: Some(Step(newest_step)),
            steps_behind: Some(600 - newest_step),
            failing: failing.map(str::to_owned),
        };
        let why = "w1 cannot upload to /data: No space left on device";
        assert_eq!(
            checkpoint(&saved(550, Some(why)), Some(Step(600))),
            format!(
                "checkpoints: the newest is of step 550, 50 steps behind\n  (all steps are done, and the run ends as soon as the checkpoint of the \
                 last one is complete)\n  (failing: {why})\n"
            )
        );
        assert_eq!(
            checkpoint(&saved(550, None), None),
            "checkpoints: the newest is of step 550, 50 steps behind\n"
        );
        assert_eq!(
            checkpoint(&saved(600, None), Some(Step(600))),
            "checkpoints: the newest is of step 600\n"
        );
        assert_eq!(
            checkpoint(&CheckpointStatus::default(), None),
            "checkpoints: there is none yet\n"
        );
    }

    #[test]
    fn a_status_says_how_many_spare_copies_are_of_use() {
        assert_eq!(
            spare_copies([5, 4, 3], None),
            "spare copies: of 5 units that one worker alone holds, 4 are kept by another, 3 in step with the run\n"
        );
        assert_eq!(
            spare_copies([5, 0, 0], Some("a loss is expected once in 5 h")),
            "spare copies: nobody keeps one of the 5 units that one worker alone holds\n  (a loss is expected once in 5 h)\n"
        );
        assert!(spare_copies([0, 0, 0], Some("several workers hold each")).ends_with("several holders\n"));
    }
}
