//! Part of `make bench-checkpoint`: compares uploads to a MinIO on this machine, as workers make them, with plain puts of the same bytes.
//!
//! Prints one line for each round: the seconds of a checkpoint (with encoding, digests and manifest), and the seconds of the plain puts.

#![expect(clippy::expect_used, reason = "a benchmark that cannot be set up has failed")]

use futures::StreamExt;
use object_store::ObjectStore;
use object_store::path::Path;
use std::time::Instant;
use varuna_checkpoint::{RateLimit, Store};
use varuna_plan::Unit;
use varuna_store_tests::{LAYOUT, facts, minio, shard, state};

/// Elements of a shard of 24 MiB, about the size of a block of GPT-2 large.
const ELEMENTS: usize = 2 << 20;
/// Number of concurrent uploads, as in a worker.
const UPLOADS: usize = 2;
const SHARDS: u64 = 4;

#[tokio::main]
async fn main() {
    let rounds: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(5);
    let server = minio().await;
    let settings = server
        .settings
        .iter()
        .map(|(k, v)| (k.to_ascii_lowercase(), v.clone()));
    let url = server.uri.parse().expect("a URI");
    let (plain, _) = object_store::parse_url_opts(&url, settings).expect("a store");
    let units: Vec<Unit> = LAYOUT.all_units().collect();
    for round in 0..rounds {
        let file = shard(state(1), Unit(0), ELEMENTS).encode().expect("a shard");
        let start = Instant::now();
        let puts = (0..SHARDS).map(|i| {
            let (plain, file) = (&plain, file.clone());
            async move {
                plain
                    .put(&Path::from(format!("plain/{round}/{i}")), file.into())
                    .await
            }
        });
        let puts: Vec<_> = futures::stream::iter(puts)
            .buffer_unordered(UPLOADS)
            .collect()
            .await;
        assert!(puts.iter().all(Result::is_ok), "plain puts");
        let plain_s = start.elapsed().as_secs_f64();
        let store = Store::new(server.place("place"), LAYOUT, facts());
        let id = state(100 + round);
        let shards: Vec<_> = units.iter().map(|u| (*u, shard(id, *u, ELEMENTS))).collect();
        let start = Instant::now();
        let saves = shards.into_iter().map(|(unit, shard)| {
            let store = store.clone();
            async move {
                let file = tokio::task::spawn_blocking(move || shard.into_file()).await;
                let file = file.expect("no panic").expect("a shard");
                store.put_shard(id, unit, file, &RateLimit::default()).await
            }
        });
        let saves: Vec<_> = futures::stream::iter(saves)
            .buffer_unordered(UPLOADS)
            .collect()
            .await;
        assert!(saves.iter().all(Result::is_ok), "shards");
        assert!(store.complete(id).await.expect("a manifest"));
        println!("UPLOAD {:.6} {plain_s:.6}", start.elapsed().as_secs_f64());
    }
}
