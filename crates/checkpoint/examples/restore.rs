//! Part of `make bench-checkpoint`: reads the shards of a location's checkpoints as workers do, against plain reads of the same files.
//!
//! Prints one line for each round: seconds of a restore (digests checked, the state in memory), of the plain reads, and the processor
//! seconds of each.

#![expect(clippy::expect_used, reason = "a benchmark that cannot be set up has failed")]

use futures::{StreamExt, TryStreamExt};
use std::path::Path;
use std::time::Instant;
use varuna_checkpoint::{Location, folder_name};

/// Units that are read at a time, as in a worker.
const LOADS: usize = 4;

/// Processor seconds of this process's threads.
fn processor_s() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("the threads of this process");
    let of = |path: std::path::PathBuf| std::fs::read_to_string(path.join("schedstat")).ok();
    let texts = tasks.filter_map(|task| of(task.ok()?.path()));
    let ns = texts.filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    std::time::Duration::from_nanos(ns.sum()).as_secs_f64()
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().expect("a folder of one job's checkpoints");
    let rounds: u32 = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(10);
    let location = Location::open_existing(&folder).expect("a location");
    let listed = location.list().await.expect("a list");
    let newest = listed.iter().rfind(|l| l.is_usable()).expect("a checkpoint");
    let manifest = location.manifest(newest.id).await.expect("a manifest");
    let place = Path::new(&folder).join(folder_name(newest.id));
    for _ in 0..rounds {
        let (start, before) = (Instant::now(), processor_s());
        let files = manifest.shards.iter().map(|s| std::fs::read(place.join(&s.file)));
        let files: Vec<_> = files.collect::<Result<_, _>>().expect("the files");
        let (plain, plain_cpu) = (start.elapsed().as_secs_f64(), processor_s() - before);
        drop(files);
        let (start, before) = (Instant::now(), processor_s());
        let loads = manifest
            .shards
            .iter()
            .map(|s| location.load(&manifest, &s.unit, || {}));
        let shards = futures::stream::iter(loads).buffer_unordered(LOADS);
        let shards: Vec<_> = shards.try_collect().await.expect("sound shards");
        let (restore, restore_cpu) = (start.elapsed().as_secs_f64(), processor_s() - before);
        drop(shards);
        println!("RESTORE {restore:.6} {plain:.6} {restore_cpu:.6} {plain_cpu:.6}");
    }
}
