//! Bits are really changed in the memory of a training process, and holders that compare their states find the difference.
//!
//! The learning rate is so small that no weight ever changes. So the bytes of a weight are the same in every checkpoint, and the test can
//! find them in the memory of a worker.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use tempfile::TempDir;
use varuna_fixtures::{JobFile, Run, event};

/// Number of bytes of a weight that are searched for.
const PATTERN: usize = 256;

fn job(store: &Path) -> JobFile {
    JobFile {
        // More steps than the run will do: the search takes a while, and the test ends the run.
        steps: 100_000,
        // The batch can be divided equally by one, two or three workers, so that each holds the whole model.
        batch: 6,
        learning_rate: 1e-30,
        checkpoint: Some(format!("uri: {}, intervalSteps: 5", store.display())),
        compare_every: Some(3),
        ..JobFile::default()
    }
}

/// The first bytes of a weight of the first block, from a complete checkpoint.
fn weight(store: &Path) -> Option<Vec<u8>> {
    let folders = std::fs::read_dir(store.join("elastic")).ok()?.flatten();
    let complete = folders
        .map(|f| f.path())
        .find(|f| f.join("manifest.json").exists())?;
    let shard = std::fs::read(complete.join("segment-001.safetensors")).unwrap();
    let header = usize::try_from(u64::from_le_bytes(shard[..8].try_into().unwrap())).unwrap();
    let tensors: serde_json::Value = serde_json::from_slice(&shard[8..8 + header]).unwrap();
    let (_, tensor) = tensors
        .as_object()
        .unwrap()
        .iter()
        .find(|(name, tensor)| {
            name.starts_with("parameter/") && tensor["shape"].as_array().is_some_and(|s| s.len() == 2)
        })
        .unwrap();
    let from = 8 + header + usize::try_from(tensor["data_offsets"][0].as_u64().unwrap()).unwrap();
    Some(shard[from..from + PATTERN].to_vec())
}

/// The memory of another process, and the positions of a weight in it.
struct Damage {
    pid: u32,
    memory: File,
    places: Vec<u64>,
    weight: Vec<u8>,
}

impl Damage {
    fn find(pid: u32, weight: &[u8]) -> Option<Damage> {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let memory = OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"))
            .unwrap();
        let mut places = Vec::new();
        let writable = |line: &&str| line.split(' ').nth(1).is_some_and(|mode| mode.starts_with("rw"));
        for line in maps.lines().filter(writable) {
            let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
            let [from, to] = [from, to].map(|n| u64::from_str_radix(n, 16).unwrap());
            let mut bytes = vec![0; usize::try_from(to - from).unwrap()];
            // Some mappings, such as those of the kernel, cannot be read.
            if memory.read_exact_at(&mut bytes, from).is_err() {
                continue;
            }
            // The address of a weight is a multiple of its size.
            let found = (0..bytes.len().saturating_sub(weight.len())).step_by(4);
            places.extend(
                found
                    .filter(|at| bytes[*at..].starts_with(weight))
                    .map(|at| from + at as u64),
            );
        }
        (!places.is_empty()).then(|| Damage {
            pid,
            memory,
            places,
            weight: weight.to_vec(),
        })
    }

    /// Changes the lowest bit of the weight's fraction at all positions where the weight still is, including copies for uploads. The
    /// process may have ended before.
    fn flip_bits(&self) {
        let pid = Pid::from_raw(i32::try_from(self.pid).unwrap());
        let _ = kill(pid, Signal::SIGSTOP);
        for place in &self.places {
            let mut bytes = [0; PATTERN];
            let read = self.memory.read_exact_at(&mut bytes, *place);
            if read.is_ok() && bytes[..] == self.weight {
                let _ = self.memory.write_all_at(&[bytes[0] ^ 1], *place);
            }
        }
        let _ = kill(pid, Signal::SIGCONT);
    }
}

/// A run in which one worker was damaged, a few steps after the damage was found.
struct Found {
    run: Run,
    /// The event of the comparison that found the difference.
    differ: serde_json::Value,
    /// The event of the first plan after it. Its generation is not known in advance, because a busy machine may have made other plans
    /// before.
    resumed: serde_json::Value,
    /// The damaged worker's id.
    victim: serde_json::Value,
}

/// Trains with this many workers and damages the first one.
fn damage_one_of(workers: usize) -> Found {
    let store = TempDir::new().unwrap();
    let mut run = Run::start(&job(store.path()), workers);
    let weight = run.wait_for("a checkpoint", |_| weight(store.path()));
    let victim = run.wait_for_workers(workers).swap_remove(0);
    let damage = run.wait_for("the weight in its memory", |_| Damage::find(victim.pid, &weight));
    let differ = run.wait_for("the comparison that finds it", |run| {
        let differ = event(run, "statesDiffer");
        if differ.is_none() {
            damage.flip_bits();
        }
        differ
    });
    let resumed = run.wait_for("the plan after it", |run| {
        let mut since = run.events().into_iter().skip_while(|e| *e != differ);
        since.find(|e| e["event"] == "resumed")
    });
    run.wait_for_step(resumed["base"]["step"].as_u64().unwrap() + 20);
    let victim = serde_json::to_value(victim.view.id).unwrap();
    Found {
        run,
        differ,
        resumed,
        victim,
    }
}

#[test]
fn corrupt_worker_of_three_is_replaced() {
    let Found {
        run,
        differ,
        resumed,
        victim,
    } = damage_one_of(3);
    assert_eq!(
        differ["replaced"],
        serde_json::json!([victim]),
        "{}",
        run.report()
    );
    let steps: Vec<u64> = run.metrics().iter().map(|m| m.step.0).collect();
    assert!(steps.is_sorted_by(|a, b| a < b), "no step is run again");
    let plans = run.plans();
    let since = plans.iter().find(|p| resumed["generation"] == p.generation.0);
    assert!(
        since
            .unwrap()
            .members()
            .iter()
            .all(|w| serde_json::to_value(w).unwrap() != victim)
    );
}

#[test]
fn corrupt_worker_of_two_causes_a_rollback() {
    let Found {
        run, differ, resumed, ..
    } = damage_one_of(2);
    assert_eq!(differ["replaced"], serde_json::json!([]), "{}", run.report());
    assert_eq!(resumed["restored"], true, "{}", run.report());
    let base = resumed["base"]["step"].as_u64().unwrap();
    assert!(base >= 5 && base.is_multiple_of(5), "{}", run.report());
}
