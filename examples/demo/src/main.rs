//! `make demo`: four workers train on real text while a seeded chaos driver kills two of them with -9 and adds one.
//!
//! This program only does what a user could do: it starts `varuna run`, reads the run folder and sends signals. It must not
//! reach into the run in any other way.

mod chaos;
mod picture;
mod summary;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Train a job while workers are killed and added, and print and draw what happened.
#[derive(Parser)]
struct Arguments {
    /// The job file.
    #[arg(default_value = "examples/demo.yaml")]
    job: PathBuf,
    /// Number of workers at the start.
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// Random seed. It determines at which steps the chaos driver acts, and which workers it kills.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder of the run. It must not exist.
    #[arg(long, default_value = "runs/demo")]
    run_dir: PathBuf,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    ensure!(
        !arguments.run_dir.exists(),
        "the run folder {} already exists",
        arguments.run_dir.display()
    );
    let varuna = sibling("varuna")?;
    let mut run = start(&varuna, &arguments)?;
    let acts = chaos::drive(
        &mut run,
        &varuna,
        &arguments.run_dir,
        arguments.workers,
        arguments.seed,
    )?;
    let status = wait(&mut run, Duration::from_secs(600))?;
    ensure!(status.success(), "the run ended with {status}");
    let summary = summary::DemoRun::read(&arguments.run_dir, acts)?;
    let svg = arguments.run_dir.join("demo.svg");
    std::fs::write(&svg, picture::draw(&summary)?)
        .with_context(|| format!("cannot write {}", svg.display()))?;
    print!("{}", summary.report(&svg));
    ensure!(
        summary.steps_lost() == 0,
        "{} committed steps were lost",
        summary.steps_lost()
    );
    Ok(())
}

/// A program of this workspace, in the folder of this program.
fn sibling(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program's own path")?;
    let path = own.parent().unwrap_or(Path::new(".")).join(name);
    ensure!(
        path.exists(),
        "{} is missing: build the workspace first",
        path.display()
    );
    Ok(path)
}

fn start(varuna: &Path, arguments: &Arguments) -> Result<Child> {
    Command::new(varuna)
        .arg("run")
        .arg(&arguments.job)
        .args(["--workers", &arguments.workers.to_string()])
        .arg("--run-dir")
        .arg(&arguments.run_dir)
        .spawn()
        .with_context(|| format!("cannot start {}", varuna.display()))
}

fn wait(run: &mut Child, timeout: Duration) -> Result<std::process::ExitStatus> {
    let start = Instant::now();
    loop {
        if let Some(status) = run.try_wait()? {
            return Ok(status);
        }
        if start.elapsed() > timeout {
            run.kill()?;
            anyhow::bail!("the run did not end within {} s", timeout.as_secs());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
