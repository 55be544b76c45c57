//! Commands that talk to the coordinator of a run: `scale`, `status`.

use crate::coordinator::runtime;
use crate::failure::Failure;
use crate::io::{print, print_json, print_line};
use std::path::{Path, PathBuf};
use varuna_run_folder::{Contact, ReadError, RunFiles, RunStatus, WorkerStatus};
use varuna_wire::v1::{ScaleRequest, StatusRequest};

/// Set the number of workers of a run on this machine: more are started, or some are stopped in order.
#[derive(clap::Args)]
pub(crate) struct ScaleArguments {
    /// The run folder.
    run: PathBuf,
    /// Number of workers to have.
    workers: u32,
}

/// Show what a run is doing: step, loss, plan, and each worker with its process id.
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
        .map_err(|e| Failure::Internal(format!("no coordinator answers at {}: {e}", contact.address)))
}

/// The run's status, from its coordinator.
pub(crate) async fn status_of(contact: &Contact) -> Result<RunStatus, Failure> {
    let reply = reach(contact).await?.status(StatusRequest {}).await;
    let reply = reply.map_err(|status| Failure::Internal(status.message().to_owned()))?;
    varuna_wire::status::from_wire(reply.into_inner()).map_err(|e| Failure::Internal(format!("status: {e}")))
}

pub(crate) fn scale(arguments: &ScaleArguments) -> Result<(), Failure> {
    let contact = contact(&arguments.run)?;
    runtime()?.block_on(async {
        let request = ScaleRequest {
            workers: arguments.workers,
        };
        let reply = reach(&contact).await?.scale(request).await;
        let reply = reply.map_err(|status| Failure::Input(status.message().to_owned()))?;
        print_line(&reply.into_inner().message);
        Ok(())
    })
}

pub(crate) fn status(arguments: &StatusArguments) -> Result<(), Failure> {
    let contact = contact(&arguments.run)?;
    let status = match runtime()?.block_on(status_of(&contact)) {
        Ok(status) => status,
        // A run that has ended left its last status.
        Err(failure) => match RunFiles::new(&arguments.run).status() {
            Ok(last) => last,
            Err(ReadError::Io { .. }) => return Err(failure),
            Err(error) => return Err(Failure::Internal(error.to_string())),
        },
    };
    if arguments.json {
        print_json(&status)?;
    } else {
        print(&text(&status));
    }
    Ok(())
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
    let copies = status.run.spare_copies;
    text.extend(copies.map(|c| spare_copies(c.units, c.kept, c.in_step)));
    text.extend(status.workers.iter().map(worker));
    text
}

/// In units.
fn spare_copies(units: usize, kept: usize, in_step: usize) -> String {
    match (units, kept) {
        (0, _) => "spare copies: none are needed, each unit has several holders\n".into(),
        (_, 0) => {
            format!("spare copies: nobody keeps one of the {units} units that one worker alone holds\n")
        }
        _ => format!(
            "spare copies: of {units} units that one worker alone holds, {kept} are kept by another, {in_step} in step with the run\n"
        ),
    }
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
        if worker.view.draining { "  (leaving)" } else { "" },
    )
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_how_many_spare_copies_are_of_use() {
        assert_eq!(
            spare_copies(5, 4, 3),
            "spare copies: of 5 units that one worker alone holds, 4 are kept by another, 3 in step with the run\n"
        );
        assert!(spare_copies(5, 0, 0).contains("nobody keeps one of the 5 units"));
        assert!(spare_copies(0, 0, 0).contains("none are needed"));
    }
}
