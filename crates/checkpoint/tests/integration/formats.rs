//! This build verifies and restores a checkpoint of each format since version 2, and can save it again in the present format.
//!
//! `testdata/format-N` was written by `varuna run` of a build with that format, for a job of a few steps: 2 by commit 68ab548, 3 by
//! 37cd3d0, 4 to 7 by the commits that introduced them. 5 belongs to a job with SGD, 6 to one with Muon, 7 to one with sharded state.

use object_store::memory::InMemory;
use std::path::PathBuf;
use std::sync::Arc;
use varuna_checkpoint::{
    CheckpointError, DataDigest, FORMAT_VERSION, Location, Manifest, RateLimit, Shard, Store, unit_name,
};
use varuna_plan::{LossScale, Moments, ScaleFactor, StateId};

fn folder(format: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("testdata/format-{format}"))
}

fn saved(format: u32) -> Location {
    Location::open(folder(format).to_str().unwrap()).unwrap()
}

fn old() -> Location {
    saved(2)
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

/// A store in memory with the files of this state.
async fn store_of(manifest: &Manifest, files: impl Iterator<Item = Vec<u8>>) -> Store {
    let location = Location::over(Arc::new(InMemory::new()));
    let store = Store::new(location, manifest.layout, manifest.facts.clone());
    let limit = RateLimit::new(None);
    for (unit, file) in manifest.layout.all_units().zip(files) {
        let put = store.put_shard(manifest.state, unit, file, &limit);
        put.await.unwrap();
    }
    store
}

fn old_file(id: StateId, unit: &str) -> Vec<u8> {
    let state = varuna_checkpoint::folder_name(id);
    std::fs::read(folder(2).join(state).join(format!("{unit}.safetensors"))).unwrap()
}

/// The values in each fixture's shards besides the tensors: applied steps, failed steps and the loss scale.
const HELD: [(u32, u64, Option<LossScale>); 6] = [
    (2, 3, None),
    (3, 3, None),
    (4, APPLIED, Some(SCALE)),
    (5, 3, None),
    (6, 3, None),
    (7, 3, None),
];
const APPLIED: u64 = 2;
const SCALE: LossScale = LossScale {
    factor: ScaleFactor::two_to(18),
    clean_steps: 2,
};

#[tokio::test]
async fn every_checkpoint_format_is_restored_and_upgraded() {
    assert_eq!(
        HELD[HELD.len() - 1].0,
        FORMAT_VERSION,
        "each format has its fixture"
    );
    for (format, applied, scale) in HELD {
        let location = saved(format);
        let before = manifest(&location).await;
        assert_eq!(before.format_version, format);
        let is_sha = |s: &varuna_checkpoint::ShardEntry| matches!(s.digest, DataDigest::Sha256(_));
        assert!(
            before.shards.iter().all(|s| is_sha(s) == (format == 2)),
            "format {format}"
        );
        let restored = shards(&location, &before).await;
        let held = |s: &Shard| (s.adam_steps, s.loss_scale, s.failed_in_a_row) == (applied, scale, 0);
        assert!(restored.iter().all(held), "format {format}");
        let moments = match format {
            5 => Moments::Momentum,
            6 => Moments::Muon,
            _ => Moments::Adam,
        };
        assert!(restored.iter().all(|s| s.moments == moments), "format {format}");
        let elements = |s: &Shard| s.data.len() / (1 + moments.of_parameter());
        // 257 rows and 8 positions of width 4, one block, and the last norm.
        assert_eq!(restored.iter().map(elements).sum::<usize>(), 1312);

        let files = restored.iter().map(|shard| shard.encode().unwrap().to_vec());
        let store = store_of(&before, files).await;
        assert!(store.complete(before.state).await.unwrap());
        let after = manifest(store.location()).await;
        // The oldest version that can express it, so that older builds can read it.
        assert_eq!(after.format_version, format.max(4));
        assert!(!after.shards.iter().any(is_sha));
        assert_eq!(shards(store.location(), &after).await, restored);
        // From any units, ranges of any layout can be loaded, and whole segments too.
        for ranges in [1, 5] {
            let layout = before.layout.in_ranges(ranges);
            let mut elements = 0;
            for unit in layout.all_units() {
                let shard = location.load_unit(&before, (layout, unit), || {}).await.unwrap();
                elements += shard.parameters();
                assert_eq!(shard.tensors.iter().all(|t| t.whole.is_none()), ranges == 1);
            }
            assert_eq!(elements, 1312, "format {format} in {ranges} ranges");
        }
    }
}

#[tokio::test]
async fn present_shard_format_matches_its_fixture() {
    for format in [4, 5, 6, FORMAT_VERSION] {
        let location = saved(format);
        let written = manifest(&location).await;
        for shard in shards(&location, &written).await {
            let state = folder(format).join(varuna_checkpoint::folder_name(written.state));
            let file = std::fs::read(state.join(format!("{}.safetensors", shard.unit))).unwrap();
            assert_eq!(shard.encode().unwrap().to_vec(), file, "{}", shard.unit);
        }
    }
}

#[tokio::test]
async fn shards_of_both_digests_make_one_checkpoint() {
    // This build took a run over in the middle of a save.
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
