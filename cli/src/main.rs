//! `varuna`: runs jobs on this machine, and shows runs, plans, datasets and checkpoints.

mod access;
mod chart;
mod checkpoint;
mod children;
mod coordinator;
mod costs;
mod data;
mod failure;
mod io;
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

/// Elastic pipeline-parallel training that continues when workers come and go.
///
/// Exit codes: 0 success; 1 internal error; 2 bad input (arguments, job file, data); 3 a run folder, port or checkpoint location
/// is in use; 4 training state is lost (no worker and no checkpoint holds it); 5 no gradient is finite any more
/// (training.skipLimit); 130 stopped by the user.
///
/// VARUNA_LOG sets what is logged to stderr, for example debug [default: warn].
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

// Each command is described where its arguments are: a comment here would hide the long part of that description.
#[derive(Subcommand)]
enum Command {
    Run(run::Arguments),
    Scale(remote::ScaleArguments),
    Status(remote::StatusArguments),
    Coordinator(coordinator::Arguments),
    Plan(plan::Arguments),
    Profile(profile::Arguments),
    Replay(replay::Arguments),
    Data(data::Arguments),
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
