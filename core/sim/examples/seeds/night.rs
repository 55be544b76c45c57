//! Many schedules on several cores, and what they reached.

use crate::chosen::Chosen;
use crate::replay::print_shrunk;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use varuna_sim::shrink::shrink;
use varuna_sim::{Stats, World};

/// Seeds that a core takes at once.
const BLOCK: u64 = 100;
/// Violations that are shrunk; of the others, the seed is printed.
const SHRUNK_MAX: usize = 10;

/// The results of some of the seeds.
#[derive(Default)]
struct SeedResults {
    stats: Stats,
    broken: Vec<u64>,
    panicked: Vec<u64>,
}

/// Runs the seeds and prints what happened; true where no invariant was broken.
#[expect(clippy::disallowed_methods, reason = "seeds a second of this machine's clock")]
pub(crate) fn run(from: u64, count: u64, jobs: u64) -> bool {
    let since = Instant::now();
    let next = AtomicU64::new(from);
    let results: Vec<SeedResults> = std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..jobs.max(1))
            .map(|_| scope.spawn(|| run_blocks(&next, from + count)))
            .collect();
        jobs.into_iter()
            .map(|job| job.join().expect("panics are caught"))
            .collect()
    });
    let seconds = since.elapsed().as_secs_f64();
    let mut total = SeedResults::default();
    for part in results {
        total.stats.add(&part.stats);
        total.broken.extend(part.broken);
        total.panicked.extend(part.panicked);
    }
    total.broken.sort_unstable();
    total.panicked.sort_unstable();
    print_reached(&total.stats);
    println!(
        "{count} schedules in {seconds:.1} s: {:.0} a second; {} s of their own time",
        count as f64 / seconds,
        total.stats.simulated_ms / 1_000
    );
    print_violations(&total);
    let violations = total.broken.len() + total.panicked.len();
    println!("RESULT sim.seeds {count}");
    println!("RESULT sim.violations {violations}");
    violations == 0
}

fn run_blocks(next: &AtomicU64, end: u64) -> SeedResults {
    let mut results = SeedResults::default();
    loop {
        let first = next.fetch_add(BLOCK, Ordering::Relaxed);
        if first >= end {
            return results;
        }
        for seed in first..end.min(first + BLOCK) {
            let ran = catch_unwind(|| {
                let mut world = World::new(seed);
                let result = world.run();
                (result, world.stats().clone())
            });
            match ran {
                Ok((result, stats)) => {
                    results.stats.add(&stats);
                    results.broken.extend(result.is_err().then_some(seed));
                }
                Err(_) => results.panicked.push(seed),
            }
        }
    }
}

fn print_reached(stats: &Stats) {
    for (kind, count) in &stats.reached {
        println!("{count:>10}  {kind}");
    }
    let rows = [
        (stats.events, "events"),
        (stats.commits, "commits, one for each worker"),
        (stats.generations, "plans persisted"),
        (stats.faults, "faults"),
        (
            stats.recovery_max,
            "ms from the end of the faults to the end of the job, at most",
        ),
    ];
    for (count, what) in rows {
        println!("{count:>10}  {what}");
    }
}

fn print_violations(total: &SeedResults) {
    for seed in &total.panicked {
        println!("seed {seed} panics; replay: {}", replay(*seed));
    }
    for (i, seed) in total.broken.iter().enumerate() {
        match (i < SHRUNK_MAX).then(|| shrink(*seed, None)).flatten() {
            Some(shrunk) => print_shrunk(&Chosen::all_of(*seed), &shrunk),
            None => println!("seed {seed} breaks an invariant; replay: {}", replay(*seed)),
        }
    }
}

fn replay(seed: u64) -> String {
    format!("cargo run --release -p varuna-sim --example seeds -- replay {seed}")
}
