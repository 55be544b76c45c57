//! `varuna-fuzz`: explores targets for some time, replays one input, or writes the seeds.

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use nix::sys::resource::{Resource, setrlimit};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use varuna_fuzz::explore::{Until, explore};
use varuna_fuzz::run::run;
use varuna_fuzz::{ONE_AT_A_TIME, TARGETS, Target, corpus, target};

/// Limit of the address space of the process that runs the inputs, so that a target with unbounded memory use does not take all of the
/// machine's memory.
const MEMORY_MAX: u64 = 8 << 30;
/// An input that runs longer than this counts as endless.
const ENDLESS: Duration = Duration::from_secs(60);

#[derive(Parser)]
#[command(about = "Fuzzes everything that parses what it did not write")]
struct Arguments {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Run mutated inputs on all targets, or on the named ones
    Explore {
        /// Names of the targets
        targets: Vec<String>,
        /// Time for each target, in seconds
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Seed of all mutations [default: the clock]
        #[arg(long)]
        seed: Option<u64>,
        /// Folder for inputs that fail
        #[arg(long, default_value = "runs/fuzz")]
        output: PathBuf,
        /// Only what `explore` itself runs: one target, in this process
        #[arg(long, hide = true)]
        here: bool,
    },
    /// Run one input
    Replay {
        /// Name of the target
        target: String,
        /// File with the input
        file: PathBuf,
    },
    /// Write the seeds into the corpus
    Seeds,
    /// List the targets
    List,
}

fn main() -> Result<ExitCode> {
    match Arguments::parse().command {
        Action::Explore {
            targets,
            seconds,
            seed,
            output,
            here,
        } => {
            let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let seed = seed.unwrap_or(clock.as_secs());
            let targets = named(&targets)?;
            std::fs::create_dir_all(&output).with_context(|| format!("cannot make {}", output.display()))?;
            if here {
                return explore_here(targets[0], seconds, seed, &output);
            }
            explore_all(&targets, seconds, seed, &output)
        }
        Action::Replay { target, file } => replay(named(&[target])?[0], &file),
        Action::Seeds => {
            for target in TARGETS {
                corpus::write_seeds(target).context(target.name)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Action::List => {
            for target in TARGETS {
                println!("{:20} {}", target.name, target.what);
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The targets with these names; all targets if there are no names.
fn named(names: &[String]) -> Result<Vec<&'static Target>> {
    if names.is_empty() {
        return Ok(TARGETS.iter().collect());
    }
    let find =
        |name: &String| target(name).with_context(|| format!("no target {name:?}: see `varuna-fuzz list`"));
    names.iter().map(find).collect()
}

fn present_path(target: &Target, output: &Path) -> PathBuf {
    output.join(format!("{}.present", target.name))
}

/// Explores each target in a separate process, because some failures end the process.
fn explore_all(targets: &[&Target], seconds: u64, seed: u64, output: &Path) -> Result<ExitCode> {
    let program = std::env::current_exe().context("cannot find this program")?;
    println!("{} targets, {seconds} s each, seed {seed}", targets.len());
    let mut failed = 0;
    for target in targets {
        let numbers = [seconds.to_string(), seed.to_string()];
        let status = Command::new(&program)
            .args([
                "explore",
                target.name,
                "--here",
                "--seconds",
                &numbers[0],
                "--seed",
                &numbers[1],
            ])
            .arg("--output")
            .arg(output)
            .status()
            .context("cannot start this program again")?;
        let present = present_path(target, output);
        if status.code().is_none() {
            let input = read_present(&present)?;
            let failure =
                format!("the process ended ({status}): its memory, its stack, or {ENDLESS:?} were over");
            report(target, &input, &failure, output)?;
        }
        failed += usize::from(!status.success());
        std::fs::remove_file(&present).with_context(|| format!("cannot remove {}", present.display()))?;
    }
    if failed > 0 {
        println!("{failed} targets failed");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the last input that was run: its length, then the input.
fn read_present(path: &Path) -> Result<Vec<u8>> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (length, input) = bytes.split_at_checked(8).unwrap_or((&[], &[]));
    let length = length.iter().rev().fold(0, |n, b| n << 8 | usize::from(*b));
    Ok(input.get(..length).unwrap_or(input).to_vec())
}

/// Writes an input that fails, and prints how to run it again.
fn report(target: &Target, input: &[u8], failure: &str, output: &Path) -> Result<()> {
    let digest = Sha256::digest(input);
    let path = output.join(format!(
        "{}-{:02x}{:02x}{:02x}{:02x}",
        target.name, digest[0], digest[1], digest[2], digest[3]
    ));
    std::fs::write(&path, input).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{}: FAILED: {failure}", target.name);
    println!("  the input: {} ({} bytes)", path.display(), input.len());
    println!(
        "  run it again: make fuzz-replay TARGET={} INPUT={}",
        target.name,
        path.display()
    );
    Ok(())
}

fn explore_here(target: &Target, seconds: u64, seed: u64, output: &Path) -> Result<ExitCode> {
    setrlimit(Resource::RLIMIT_AS, MEMORY_MAX, MEMORY_MAX).context("cannot limit the memory")?;
    let path = present_path(target, output);
    let present = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    static EXECUTIONS: AtomicU64 = AtomicU64::new(0);
    std::thread::spawn(|| {
        let mut before = 0;
        loop {
            std::thread::sleep(ENDLESS);
            let now = EXECUTIONS.load(Ordering::Relaxed);
            if now == before {
                std::process::abort();
            }
            before = now;
        }
    });
    let inputs =
        corpus::read(target).with_context(|| format!("cannot read the corpus of {}", target.name))?;
    let began = Instant::now();
    let end = Until::Time(began + Duration::from_secs(seconds));
    let mut frame = Vec::new();
    let found = explore(target, &inputs, seed, end, |input| {
        EXECUTIONS.fetch_add(1, Ordering::Relaxed);
        frame.clear();
        frame.extend((input.len() as u64).to_le_bytes());
        frame.extend(input);
        // If this fails, a failure that ends the process is not known; later ones are.
        let _ = present.write_all_at(&frame, 0);
    });
    match found {
        Ok(stats) => {
            println!(
                "{:20} {:>9} inputs, {:>9} of them accepted, {:>5} different answers, {:>6.0} a second",
                target.name,
                stats.executions,
                stats.accepted,
                stats.answers,
                stats.executions as f64 / began.elapsed().as_secs_f64()
            );
            Ok(ExitCode::SUCCESS)
        }
        Err(found) => {
            report(target, &found.input, &found.to_string(), output)?;
            Ok(ExitCode::FAILURE)
        }
    }
}

fn replay(target: &Target, file: &Path) -> Result<ExitCode> {
    let input = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let Ok(_one) = ONE_AT_A_TIME.lock() else {
        bail!("another input is run");
    };
    match run(target, &input) {
        Ok(answer) => {
            let verdict = if answer.accepted { "accepted" } else { "refused" };
            println!(
                "{}: {verdict}, {} bytes of memory: {}",
                target.name, answer.taken, answer.said
            );
            Ok(ExitCode::SUCCESS)
        }
        Err(failure) => {
            println!("{}: FAILED: {failure}", target.name);
            Ok(ExitCode::FAILURE)
        }
    }
}
