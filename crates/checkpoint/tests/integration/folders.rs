//! A deleted checkpoint leaves nothing on a disk.

use crate::facts;
use std::path::Path;
use varuna_checkpoint::{Location, RateLimit, Retention, Shard, Store, folder_name, unit_name};
use varuna_plan::state::Chain;
use varuna_plan::{Generation, Layout, StateId, Step, Unit};

const LAYOUT: Layout = Layout::new(2, false);

fn id(step: u64) -> StateId {
    StateId {
        run_gen: Generation(1),
        step: Step(step),
        chain: Chain(step),
    }
}

fn store(folder: &Path) -> Store {
    let location = Location::open(folder.to_str().unwrap()).unwrap();
    Store::new(location, LAYOUT, facts())
}

async fn put(store: &Store, id: StateId, unit: Unit) {
    let shard = Shard {
        id,
        unit: unit_name(LAYOUT, unit),
        adam_steps: 1,
        loss_scale: None,
        failed_in_a_row: 0,
        moments: varuna_plan::Moments::Adam,
        tensors: Vec::new(),
        data: Vec::new(),
    };
    let file = shard.encode().unwrap();
    store
        .put_shard(id, unit, file, &RateLimit::default())
        .await
        .unwrap();
}

async fn save(store: &Store, id: StateId) {
    for unit in LAYOUT.all_units() {
        put(store, id, unit).await;
    }
    assert!(store.complete(id).await.unwrap());
}

/// The steps that have a folder, in order.
fn steps(folder: &Path) -> Vec<u64> {
    let entries = std::fs::read_dir(folder.join("demo")).unwrap();
    let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
    let ids = names.filter_map(|n| varuna_checkpoint::parse_folder(&n));
    let mut steps: Vec<u64> = ids.map(|id| id.step.0).collect();
    steps.sort_unstable();
    steps
}

#[tokio::test]
async fn the_folders_of_deleted_checkpoints_go_with_them() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path();
    let store = store(folder);
    for step in [2, 3, 4] {
        save(&store, id(step)).await;
    }
    let of = |step| folder.join("demo").join(folder_name(id(step)));
    // Files of an interrupted upload, both in a folder with finished files and in one without.
    std::fs::write(of(2).join("segment-001.safetensors#1"), "half").unwrap();
    std::fs::create_dir(of(1)).unwrap();
    std::fs::write(of(1).join("segment-000.safetensors#1"), "half").unwrap();
    // A worker is about to write to this folder.
    std::fs::create_dir(of(5)).unwrap();
    // A folder that does not belong to Varuna.
    std::fs::create_dir(folder.join("demo/mine")).unwrap();
    let pruned = store.location().prune(&Retention::newest(1)).await.unwrap();
    assert_eq!(pruned.checkpoints, [id(2), id(3)]);
    assert_eq!(
        steps(folder),
        [4, 5],
        "all that a listing shows of a checkpoint goes"
    );
    assert!(folder.join("demo/mine").is_dir());
    let left = store.location().list().await.unwrap();
    assert!(left.len() == 1 && left[0].is_usable());
}

#[tokio::test]
async fn empty_folder_of_an_older_build_is_removed() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path();
    let store = store(folder);
    let of = |step| folder.join("demo").join(folder_name(id(step)));
    std::fs::create_dir_all(of(1)).unwrap();
    put(&store, id(2), Unit(0)).await;
    store.location().prune(&Retention::newest(1)).await.unwrap();
    assert_eq!(steps(folder), [1, 2], "nothing is complete yet");
    save(&store, id(3)).await;
    store.location().prune(&Retention::newest(1)).await.unwrap();
    assert_eq!(steps(folder), [3]);
}

#[tokio::test]
async fn folder_of_a_discarded_checkpoint_is_removed() {
    let scratch = tempfile::tempdir().unwrap();
    let store = store(scratch.path());
    save(&store, id(7)).await;
    store
        .location()
        .mark_damaged(id(7), "for the test")
        .await
        .unwrap();
    assert!(store.location().discard(id(7)).await.unwrap());
    assert!(steps(scratch.path()).is_empty());
    save(&store, id(7)).await;
    assert_eq!(steps(scratch.path()), [7]);
}
