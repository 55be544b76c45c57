//! A checkpoint that a build of format version 2 wrote is verified and restored by this one, with its SHA-256 digests.
//!
//! `testdata/format-2` is what `varuna run` of commit 68ab548 left of a job of three steps.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic as the tests do")]

use object_store::memory::InMemory;
use std::path::PathBuf;
use std::sync::Arc;
use varuna_checkpoint::{
    CheckpointError, DataDigest, FORMAT_VERSION, Location, Manifest, RateLimit, Shard, Store, unit_name,
};
use varuna_plan::StateId;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/format-2")
}

fn old() -> Location {
    Location::open(folder().to_str().unwrap()).unwrap()
}

async fn manifest(location: &Location) -> Manifest {
    let listed = location.list().await.unwrap();
    assert_eq!(listed.len(), 1);
    location.manifest(listed[0].id).await.unwrap()
}

async fn shards(location: &Location, manifest: &Manifest) -> Vec<Shard> {
    let mut shards = Vec::new();
    for entry in &manifest.shards {
        shards.push(location.load(manifest, &entry.unit, || {}).await.unwrap());
    }
    shards
}

/// A store in memory with these files of the state.
async fn store_of(manifest: &Manifest, files: impl Iterator<Item = Vec<u8>>) -> Store {
    let location = Location::over(Arc::new(InMemory::new()));
    let store = Store::new(location, manifest.layout, manifest.facts.clone());
    let limit = RateLimit::new(None);
    for (unit, file) in manifest.layout.all_units().zip(files) {
        let put = store.put_shard(manifest.state, unit, file.into(), &limit);
        put.await.unwrap();
    }
    store
}

fn old_file(id: StateId, unit: &str) -> Vec<u8> {
    let state = varuna_checkpoint::folder_name(id);
    std::fs::read(folder().join(state).join(format!("{unit}.safetensors"))).unwrap()
}

#[tokio::test]
async fn a_checkpoint_of_format_2_is_restored_and_saved_again_with_the_new_digest() {
    let old = old();
    let before = manifest(&old).await;
    assert_eq!(before.format_version, 2);
    assert!(
        before
            .shards
            .iter()
            .all(|s| matches!(s.digest, DataDigest::Sha256(_)))
    );
    let restored = shards(&old, &before).await;
    assert!(restored.iter().all(|s| s.adam_steps == 3));
    let elements = |s: &Shard| s.tensors.iter().map(|t| t.parts[0].len()).sum::<usize>();
    // 257 rows and 8 positions of width 4, a block, and the last norm.
    assert_eq!(restored.iter().map(elements).sum::<usize>(), 1312);

    let files = restored.iter().map(|shard| shard.encode().unwrap().to_vec());
    let store = store_of(&before, files).await;
    assert!(store.complete(before.state).await.unwrap());
    let after = manifest(store.location()).await;
    assert_eq!(after.format_version, FORMAT_VERSION);
    assert!(
        after
            .shards
            .iter()
            .all(|s| matches!(s.digest, DataDigest::Blake3(_)))
    );
    assert_eq!(shards(store.location(), &after).await, restored);
}

#[tokio::test]
async fn shards_of_both_digests_make_one_checkpoint() {
    // A run that was taken over by this build in the middle of a save.
    let old = old();
    let before = manifest(&old).await;
    let restored = shards(&old, &before).await;
    let files = restored.iter().enumerate().map(|(i, shard)| {
        if i % 2 == 0 {
            old_file(before.state, &shard.unit)
        } else {
            shard.encode().unwrap().to_vec()
        }
    });
    let store = store_of(&before, files).await;
    assert!(store.complete(before.state).await.unwrap());
    let after = manifest(store.location()).await;
    assert!(matches!(after.shards[0].digest, DataDigest::Sha256(_)));
    assert!(matches!(after.shards[1].digest, DataDigest::Blake3(_)));
    assert_eq!(shards(store.location(), &after).await, restored);
}

#[tokio::test]
async fn damage_of_an_old_shard_is_still_found() {
    let before = manifest(&old()).await;
    let unit = unit_name(before.layout, before.layout.all_units().next().unwrap());
    let mut file = old_file(before.state, &unit);
    assert!(Shard::decode(before.state, &unit, &file).is_ok());
    *file.last_mut().unwrap() ^= 1;
    let error = Shard::decode(before.state, &unit, &file).unwrap_err();
    assert!(matches!(error, CheckpointError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("do not match its digest"), "{error}");
}
