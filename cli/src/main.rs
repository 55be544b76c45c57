//! `varuna`: runs jobs on this machine, and shows runs, plans, datasets and checkpoints.

// `print!` and `eprintln!` panic where nobody reads any more (`| head`) or a disk is full; the functions of `io` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod access;
mod bar;
mod chart;
mod checkpoint;
mod children;
mod coordinator;
mod costs;
mod data;
mod exports;
mod failure;
mod inference;
mod io;
mod job;
#[cfg(feature = "kubernetes")]
mod kubectl;
mod plan;
mod profile;
mod progress;
mod remote;
mod replay;
mod restarts;
mod run;
mod run_report;
mod signals;
mod utc;

use clap::{Parser, Subcommand};
use failure::Failure;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// The name under which kubectl finds a plugin that is called by `kubectl varuna`.
const PLUGIN: &str = "kubectl-varuna";

/// Elastic pipeline-parallel training that continues when workers come and go.
///
/// Exit codes: 0 success; 1 internal error; 2 bad input (arguments, job file, data); 3 a run folder, a port, a checkpoint
/// location or the folder of an export is in use; 4 the training state is lost (no worker and no checkpoint holds it); 5 the gradients are
/// not finite any more (training.skipLimit); 130 stopped by the user.
///
/// VARUNA_LOG sets the log level on stderr, for example debug [default: warn].
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
    RunReport(run_report::Arguments),
    Status(remote::StatusArguments),
    Coordinator(coordinator::Arguments),
    Plan(plan::Arguments),
    Profile(profile::Arguments),
    Replay(replay::Arguments),
    Data(data::Arguments),
    Checkpoint(checkpoint::Arguments),
    Generate(inference::GenerateArguments),
    Evaluate(inference::EvaluateArguments),
    #[command(hide = true)]
    WithParent(children::WithParent),
}

fn main() -> ExitCode {
    log();
    if is_plugin(std::env::args_os().next()) {
        return report("kubectl varuna", plugin());
    }
    report("varuna", run(Arguments::parse()))
}

/// Whether this process was called as kubectl's plugin, by the name of its program.
fn is_plugin(program: Option<OsString>) -> bool {
    program.is_some_and(|path| Path::new(&path).file_stem().is_some_and(|name| name == PLUGIN))
}

#[cfg(feature = "kubernetes")]
use kubectl::run as plugin;

#[cfg(not(feature = "kubernetes"))]
fn plugin() -> Result<(), Failure> {
    let how = "this build of varuna is no plugin of kubectl: make build-release builds one that is (cargo feature kubernetes)";
    Err(Failure::Input(how.to_owned()))
}

fn log() {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let has_colours = wanted && std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt()
        // By default a log line that cannot be written is reported with eprintln!, which panics if standard error is closed or its disk full.
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .with_ansi(has_colours)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("VARUNA_LOG").unwrap_or_else(|_| "warn".into()),
        )
        .init();
}

fn run(arguments: Arguments) -> Result<(), Failure> {
    match arguments.command {
        Command::Run(arguments) => run::run(&arguments),
        Command::RunReport(arguments) => run_report::run(&arguments),
        Command::Scale(arguments) => remote::scale(&arguments),
        Command::Status(arguments) => remote::status(&arguments),
        Command::Coordinator(arguments) => coordinator::run(&arguments),
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Profile(arguments) => profile::run(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Data(arguments) => data::run(&arguments),
        Command::Checkpoint(arguments) => checkpoint::run(&arguments),
        Command::Generate(arguments) => inference::generate(&arguments),
        Command::Evaluate(arguments) => inference::evaluate(&arguments),
        Command::WithParent(arguments) => children::with_parent(&arguments),
    }
}

fn report(program: &str, result: Result<(), Failure>) -> ExitCode {
    match result.and_then(|()| io::check_printed()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !matches!(failure, Failure::Reported) {
                io::warn(&format!("{program}: {failure}"));
            }
            failure.exit_code()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_plugin;

    #[test]
    fn the_plugin_is_told_by_the_name_of_its_program() {
        for (program, is) in [
            ("kubectl-varuna", true),
            ("/usr/local/bin/kubectl-varuna", true),
            ("varuna", false),
            ("/opt/kubectl-varuna/varuna", false),
        ] {
            assert_eq!(is_plugin(Some(program.into())), is, "{program}");
        }
        assert!(!is_plugin(None));
    }
}
