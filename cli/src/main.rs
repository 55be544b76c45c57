//! `varuna`: runs jobs on this machine, and looks at runs, plans and datasets.

mod checkpoint;
mod children;
mod coordinator;
mod data;
mod failure;
mod job;
mod plan;
mod profile;
mod progress;
mod remote;
mod replay;
mod run;
mod signals;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Elastic pipeline-parallel training that carries on in place when workers come and go.
///
/// Exit codes: 0 done; 1 internal error; 2 bad input (arguments, job file, data); 3 run folder or port in use;
/// 4 the last holder of some segments is gone; 130 stopped by the user.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train a job on this machine: a coordinator and N worker processes.
    Run(run::Arguments),
    /// Start or stop workers of a run on this machine until there are N.
    Scale(remote::ScaleArguments),
    /// Say what a run is doing.
    Status(remote::StatusArguments),
    /// Coordinate workers that are started elsewhere (`varuna-worker --coordinator ADDRESS`).
    Coordinator(coordinator::Arguments),
    /// Print the plan for a number of workers, and its schedule.
    Plan(plan::Arguments),
    /// Measure what a job's model costs on this machine.
    Profile(profile::Arguments),
    /// Replay an availability trace on simulated time: goodput, and what is lost to what.
    Replay(replay::Arguments),
    /// Build and inspect datasets.
    Data(data::Arguments),
    /// List, check, delete, export and import checkpoints.
    Checkpoint(checkpoint::Arguments),
    #[command(hide = true)]
    WithParent(children::WithParent),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("VARUNA_LOG").unwrap_or_else(|_| "warn".into()),
        )
        .init();
    let result = match arguments.command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Scale(arguments) => remote::scale(&arguments),
        Command::Status(arguments) => remote::status(&arguments),
        Command::Coordinator(arguments) => coordinator::run(&arguments),
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Profile(arguments) => profile::run(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Data(arguments) => data::run(&arguments),
        Command::Checkpoint(arguments) => checkpoint::run(&arguments),
        Command::WithParent(arguments) => children::with_parent(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("varuna: {failure}");
            failure.exit_code()
        }
    }
}
