//! Shards are read in the same way from a disk and from an object store, and damage is found in both.

use crate::facts;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, PutPayload};
use std::sync::Arc;
use varuna_checkpoint::{
    CheckpointError, Location, Manifest, RateLimit, Shard, ShardTensor, Store, folder_name, unit_name,
};
use varuna_plan::state::Chain;
use varuna_plan::{Generation, Layout, StateId, Step, Unit};

const LAYOUT: Layout = Layout::new(2, false);
const ID: StateId = StateId {
    run_gen: Generation(1),
    step: Step(9),
    chain: Chain(7),
};
/// More elements than are requested or read at a time, and no multiple of that number.
const LARGE: usize = 1_000_003;

fn shard(unit: Unit) -> Shard {
    let elements = if unit == Unit(0) { LARGE } else { 5 };
    let values = 0..3 * u32::try_from(elements).unwrap();
    Shard {
        id: ID,
        unit: unit_name(LAYOUT, unit),
        adam_steps: 9,
        loss_scale: None,
        failed_in_a_row: 0,
        moments: varuna_plan::Moments::Adam,
        tensors: vec![ShardTensor {
            name: "w".into(),
            shape: vec![elements],
            whole: None,
        }],
        data: values.map(|i| f32::from_bits(i | 0x3f80_0000)).collect(),
    }
}

async fn save(location: Location) -> (Store, Manifest) {
    save_as(location, LAYOUT, shard).await
}

async fn save_as(location: Location, layout: Layout, shard: impl Fn(Unit) -> Shard) -> (Store, Manifest) {
    let store = Store::new(location, layout, facts());
    for unit in layout.all_units() {
        let file = shard(unit).into_file().unwrap();
        let limit = RateLimit::default();
        store.put_shard(ID, unit, file, &limit).await.unwrap();
    }
    assert!(store.complete(ID).await.unwrap());
    let manifest = store.location().manifest(ID).await.unwrap();
    (store, manifest)
}

/// A change of a shard's bytes; none deletes the shard.
type Change = fn(Vec<u8>) -> Option<Vec<u8>>;
const CHANGES: [(Change, &str); 4] = [
    (
        |mut file| {
            *file.last_mut()? ^= 1;
            Some(file)
        },
        "do not match its digest",
    ),
    (|file| Some([file, vec![0]].concat()), "bytes, the manifest says"),
    (
        |file| Some(file[..file.len() - 1].to_vec()),
        "bytes, the manifest says",
    ),
    (|_| None, "it is missing"),
];

async fn reads(store: &Store, manifest: &Manifest) {
    for unit in LAYOUT.all_units() {
        let (name, mut parts) = (unit_name(LAYOUT, unit), 0);
        let read = store.location().load(manifest, &name, || parts += 1).await;
        assert_eq!(read.unwrap(), shard(unit));
        assert_eq!(parts, if unit == Unit(0) { 2 } else { 1 }, "as it arrives");
        store.location().verify(manifest, &name, || {}).await.unwrap();
    }
}

async fn is_found_damaged(store: &Store, manifest: &Manifest, expected: &str) {
    let unit = unit_name(LAYOUT, Unit(0));
    let load = store.location().load(manifest, &unit, || {}).await.map(|_| ());
    let verify = store.location().verify(manifest, &unit, || {}).await;
    for error in [load, verify].map(Result::unwrap_err) {
        assert!(matches!(error, CheckpointError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[tokio::test]
async fn on_a_disk() {
    let scratch = tempfile::tempdir().unwrap();
    let (store, manifest) = save(Location::open(scratch.path().to_str().unwrap()).unwrap()).await;
    reads(&store, &manifest).await;
    let file = format!(
        "demo/{}/{}.safetensors",
        folder_name(ID),
        unit_name(LAYOUT, Unit(0))
    );
    let file = scratch.path().join(file);
    let whole = std::fs::read(&file).unwrap();
    for (change, expected) in CHANGES {
        match change(whole.clone()) {
            Some(bytes) => std::fs::write(&file, bytes).unwrap(),
            None => std::fs::remove_file(&file).unwrap(),
        }
        is_found_damaged(&store, &manifest, expected).await;
    }
}

#[tokio::test]
async fn in_a_store_of_objects() {
    let inner = Arc::new(InMemory::new());
    let (store, manifest) = save(Location::over(inner.clone())).await;
    reads(&store, &manifest).await;
    let file = format!(
        "demo/{}/{}.safetensors",
        folder_name(ID),
        unit_name(LAYOUT, Unit(0))
    );
    let file = Path::from(file);
    let whole = inner.get(&file).await.unwrap().bytes().await.unwrap();
    for (change, expected) in CHANGES {
        match change(whole.to_vec()) {
            Some(bytes) => drop(inner.put(&file, PutPayload::from(bytes)).await.unwrap()),
            None => inner.delete(&file).await.unwrap(),
        }
        is_found_damaged(&store, &manifest, expected).await;
    }
}

#[tokio::test]
async fn a_shard_that_another_manifest_names_is_refused() {
    let (store, mut manifest) = save(Location::over(Arc::new(InMemory::new()))).await;
    manifest.shards[0].digest = manifest.shards[1].digest.clone();
    let expected = "its digest differs from the one in the manifest";
    is_found_damaged(&store, &manifest, expected).await;
}

/// Elements of the segment below.
const SEGMENT: usize = 180;

fn tensor(name: &str) -> ShardTensor {
    let elements = if name == "w" { 120 } else { 60 };
    ShardTensor::new(name, vec![elements])
}

/// A segment of two parameters, in the order of the first export of its model.
fn segment() -> Shard {
    Shard {
        unit: unit_name(LAYOUT, Unit(0)),
        tensors: ["a", "w"].map(tensor).to_vec(),
        data: (0..540u16).map(f32::from).collect(),
        ..shard(Unit(1))
    }
}

#[tokio::test]
async fn reordered_ranges_have_the_right_parameters() {
    let undivided = Layout::new(1, false);
    let layout = undivided.in_ranges(12);
    for of_checkpoint in [layout, undivided] {
        let saved = |unit: Unit| match of_checkpoint.ranges {
            1 => segment(),
            _ => segment()
                .range(unit_name(layout, unit), layout.elements_of(unit, SEGMENT))
                .unwrap(),
        };
        let memory = Location::over(Arc::new(InMemory::new()));
        let (store, manifest) = save_as(memory, of_checkpoint, saved).await;
        let location = store.location();
        for order in [["a", "w"], ["w", "a"]] {
            let wanted = order.map(tensor);
            let whole = segment().in_order(&wanted).unwrap();
            for unit in layout.all_units() {
                let elements = layout.elements_of(unit, SEGMENT);
                let expected = whole.range(unit_name(layout, unit), elements).unwrap();
                let mut parts = 0;
                let (unit, arrived) = ((layout, unit), || parts += 1);
                let read = location.load_unit_in_order(&manifest, unit, Some(&wanted), arrived);
                assert_eq!(read.await.unwrap(), expected, "{order:?}");
                // A range is one of the checkpoint's if the order is the same. By their headers alone, those in the middle of `w` look
                // alike in both orders.
                let all = of_checkpoint.ranges > 1 && order == ["w", "a"];
                assert_eq!(parts, if all { 12 } else { 1 }, "{order:?}");
            }
            let unit = (undivided, Unit(0));
            let read = location.load_unit_in_order(&manifest, unit, Some(&wanted), || {});
            assert_eq!(read.await.unwrap(), whole, "{order:?}");
        }
        let others = ["b", "w"].map(tensor);
        let unit = (layout, Unit(5));
        let read = location.load_unit_in_order(&manifest, unit, Some(&others), || {});
        let error = read.await.unwrap_err();
        assert!(matches!(error, CheckpointError::Unsuitable { .. }), "{error}");
        assert!(error.to_string().contains("it has no parameter b"), "{error}");
    }
}

/// So no worker needs memory for a whole segment, nor reads what it does not need.
#[tokio::test]
async fn a_unit_is_read_from_the_ranges_that_have_a_part_of_it() {
    let undivided = Layout::new(1, false);
    for ranges in [1, 2, 5, 7] {
        let own = undivided.in_ranges(ranges);
        let saved = |unit: Unit| match ranges {
            1 => segment(),
            _ => segment()
                .range(unit_name(own, unit), own.elements_of(unit, SEGMENT))
                .unwrap(),
        };
        let memory = Location::over(Arc::new(InMemory::new()));
        let (store, manifest) = save_as(memory, own, saved).await;
        for layout in [1, 2, 3, 5, 8].map(|ranges| undivided.in_ranges(ranges)) {
            for unit in layout.all_units() {
                let elements = layout.elements_of(unit, SEGMENT);
                let expected = match layout.ranges {
                    1 => segment(),
                    _ => segment()
                        .range(unit_name(layout, unit), elements.clone())
                        .unwrap(),
                };
                let needed = own.all_units().filter(|range| {
                    let of_range = own.elements_of(*range, SEGMENT);
                    of_range.start < elements.end && elements.start < of_range.end
                });
                let mut parts = 0;
                let read = store
                    .location()
                    .load_unit(&manifest, (layout, unit), || parts += 1);
                assert_eq!(read.await.unwrap(), expected, "{ranges} {}", layout.ranges);
                assert_eq!(parts, needed.count(), "{ranges} {}", layout.ranges);
            }
        }
    }
}

#[tokio::test]
async fn late_listing_does_not_make_a_checkpoint_damaged() {
    let inner = Arc::new(InMemory::new());
    let (store, _) = save(Location::over(inner.clone())).await;
    let mut listed = store.location().list().await.unwrap().remove(0);
    let file = "segment-001.safetensors";
    listed.files.insert(file.to_owned(), 1);
    assert!(
        store.check(&listed).await.is_ok(),
        "it is as long as it should be"
    );
    listed.files.remove(file);
    assert!(store.check(&listed).await.is_ok(), "it is there");
    let path = Path::from(format!("demo/{}/{file}", folder_name(ID)));
    inner.delete(&path).await.unwrap();
    let error = store.check(&listed).await.unwrap_err();
    assert!(matches!(error, CheckpointError::Damaged { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("segment-001.safetensors: it is missing"),
        "{error}"
    );
}
