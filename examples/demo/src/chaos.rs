//! The chaos driver: a kill, a join and another kill, each at a step that depends on the seed.

use crate::summary::{Act, ActKind};
use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use varuna_plan::Step;
use varuna_protocol::Phase;
use varuna_run_folder::{RunFiles, RunStatus, now_ms};

/// Each act and the share of the run after which it happens; the seed moves it by up to 5 %.
const ACTS: [(f64, ActKind); 3] = [(0.25, ActKind::Kill), (0.5, ActKind::Join), (0.75, ActKind::Kill)];
/// A run without a new step for this long is stuck: a step of the demo takes less than a second.
const STUCK_AFTER: Duration = Duration::from_secs(120);

/// Carries out all acts while the job trains.
pub(crate) fn drive(
    run: &mut Child,
    varuna: &Path,
    folder: &Path,
    workers: usize,
    seed: u64,
) -> Result<Vec<Act>> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut acts = Vec::new();
    let mut count = workers;
    for (share, kind) in ACTS {
        let share = share + rng.random_range(-0.05..0.05);
        let step = wait_for(run, folder, |status| {
            let all_run = status
                .workers
                .iter()
                .filter(|w| w.view.phase == Some(Phase::Running))
                .count()
                == count;
            #[expect(clippy::cast_precision_loss, reason = "a step count")]
            let due = status.run.step.0 as f64 >= share * status.run.last_step.0 as f64;
            all_run && due
        })?;
        let status = RunFiles::new(folder).status()?;
        let what = match kind {
            ActKind::Kill => {
                let victim = &status.workers[rng.random_range(0..status.workers.len())];
                kill(Pid::from_raw(i32::try_from(victim.pid)?), Signal::SIGKILL)
                    .with_context(|| format!("cannot kill {} (process {})", victim.view.name, victim.pid))?;
                count -= 1;
                format!("kill -9 {}", victim.view.name)
            }
            ActKind::Join => {
                count += 1;
                scale(varuna, folder, count)?;
                "a worker joins".to_owned()
            }
        };
        println!("chaos: {what} at step {step}");
        acts.push(Act {
            kind,
            what,
            time_ms: now_ms(),
        });
    }
    Ok(acts)
}

fn scale(varuna: &Path, folder: &Path, workers: usize) -> Result<()> {
    let status = Command::new(varuna)
        .arg("scale")
        .arg(folder)
        .arg(workers.to_string())
        .status();
    let status = status.context("cannot start varuna scale")?;
    ensure!(status.success(), "varuna scale ended with {status}");
    Ok(())
}

fn wait_for(run: &mut Child, folder: &Path, mut due: impl FnMut(&RunStatus) -> bool) -> Result<Step> {
    let mut moved = Instant::now();
    let mut last = None;
    loop {
        if let Some(end) = run.try_wait()? {
            bail!("the run ended ({end}) before the chaos driver had finished");
        }
        // There is no status before the run has published one.
        if let Ok(status) = RunFiles::new(folder).status() {
            if due(&status) {
                return Ok(status.run.step);
            }
            if last != Some(status.run.step) {
                last = Some(status.run.step);
                moved = Instant::now();
            }
        }
        ensure!(
            moved.elapsed() < STUCK_AFTER,
            "no progress for {} s",
            STUCK_AFTER.as_secs()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}
