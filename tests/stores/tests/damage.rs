//! Shards that are damaged, belong to another model or have a newer format are refused, and the error names them.

use object_store::ObjectStore;
use object_store::memory::InMemory;
use std::sync::Arc;
use varuna_checkpoint::{CheckpointError, Location, RateLimit, Store, folder_name};
use varuna_plan::Unit;
use varuna_store_tests::{LAYOUT, facts, save, shard, state as id};

/// A store with one complete checkpoint, and the memory in which it is stored.
async fn one() -> (Store, Arc<InMemory>) {
    let inner = Arc::new(InMemory::new());
    let store = Store::new(Location::over(inner.clone()), LAYOUT, facts());
    save(&store, id(10), 50).await;
    (store, inner)
}

fn path(file: &str) -> object_store::path::Path {
    object_store::path::Path::from(format!("demo/{}/{file}", folder_name(id(10))))
}

#[tokio::test]
async fn a_flipped_bit_anywhere_in_a_shard_is_found() {
    let (store, inner) = one().await;
    let manifest = store.location().manifest(id(10)).await.unwrap();
    let file = path("segment-001.safetensors");
    let whole = inner.get(&file).await.unwrap().bytes().await.unwrap();
    for at in (0..whole.len()).step_by(7) {
        let mut bad = whole.to_vec();
        bad[at] ^= 1 << (at % 8);
        inner.put(&file, bad.into()).await.unwrap();
        let read = store.location().load(&manifest, "segment-001", || {}).await;
        match read {
            Err(CheckpointError::Damaged { .. }) => {}
            Err(other) => panic!("byte {at}: {other}"),
            Ok(read) => assert_eq!(
                read,
                shard(id(10), Unit(1), 50),
                "byte {at} changed what was read"
            ),
        }
    }
}

#[tokio::test]
async fn damaged_missing_or_foreign_shard_is_found() {
    let (store, inner) = one().await;
    let file = path("segment-001.safetensors");
    let whole = inner.get(&file).await.unwrap().bytes().await.unwrap();
    let manifest = store.location().manifest(id(10)).await.unwrap();
    inner
        .put(&file, whole.slice(..whole.len() - 4).into())
        .await
        .unwrap();
    let listed = store.location().list().await.unwrap();
    let error = store.check(&listed[0]).await.unwrap_err().to_string();
    assert!(error.contains("segment-001.safetensors: it has"), "{error}");
    inner.delete(&file).await.unwrap();
    let listed = store.location().list().await.unwrap();
    let error = store.check(&listed[0]).await.unwrap_err().to_string();
    assert!(
        error.contains("segment-001.safetensors: it is missing"),
        "{error}"
    );
    // A file of the same length, but of another unit.
    inner
        .put(&file, shard(id(10), Unit(2), 50).encode().unwrap().into())
        .await
        .unwrap();
    let error = store
        .location()
        .load(&manifest, "segment-001", || {})
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("it holds segment-002"), "{error}");
}

#[tokio::test]
async fn newer_format_or_other_model_is_refused() {
    let (store, inner) = one().await;
    let listed = store.location().list().await.unwrap();
    let mut other = facts();
    other.model = serde_json::json!({"layers": 1, "dropout": 0.0});
    let same = Store::new(Location::over(inner.clone()), LAYOUT, other.clone());
    assert!(same.check(&listed[0]).await.is_ok(), "dropout has no state");
    other.model = serde_json::json!({"layers": 2, "dropout": 0.1});
    let other_model = Store::new(Location::over(inner.clone()), LAYOUT, other);
    let error = other_model.check(&listed[0]).await.unwrap_err();
    assert!(matches!(error, CheckpointError::Unsuitable { .. }), "{error}");
    let mut manifest = serde_json::to_value(store.location().manifest(id(10)).await.unwrap()).unwrap();
    manifest["formatVersion"] = 1.into();
    inner
        .put(&path("manifest.json"), manifest.to_string().into_bytes().into())
        .await
        .unwrap();
    let error = store.check(&listed[0]).await.unwrap_err().to_string();
    assert!(error.contains("format version 1, this build reads 2"), "{error}");
}

#[tokio::test]
async fn equal_states_give_equal_bytes_whoever_writes_them() {
    let once = shard(id(3), Unit(1), 33).encode().unwrap();
    for _ in 0..10 {
        assert_eq!(shard(id(3), Unit(1), 33).encode().unwrap(), once);
    }
}

#[test]
fn a_place_that_cannot_be_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let missing = folder.path().join("missing");
    let places = [
        file.to_str().unwrap(),
        missing.to_str().unwrap(),
        "ftp://host/x",
        "s3://",
    ];
    for uri in places {
        let error = Location::open_existing(uri).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("checkpoint location {uri}: ")),
            "{error}"
        );
    }
    assert!(!missing.exists(), "who reads makes no folder");
}

#[tokio::test]
async fn a_folder_that_is_away_is_used_again_when_it_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("checkpoints");
    std::fs::write(&path, "").unwrap();
    let store = Store::new(Location::open(path.to_str().unwrap()).unwrap(), LAYOUT, facts());
    let put = || async {
        let limit = RateLimit::new(None);
        let file = shard(id(3), Unit(0), 33).encode().unwrap();
        store.put_shard(id(3), Unit(0), file, &limit).await
    };
    put().await.unwrap_err();
    std::fs::remove_file(&path).unwrap();
    put().await.unwrap();
    assert_eq!(store.location().list().await.unwrap().len(), 1);
}
