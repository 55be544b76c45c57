//! Checks that a store does everything that checkpoints need.

use varuna_checkpoint::{
    CheckpointError, Claim, Facts, LeaseState, Location, Manifest, RateLimit, Refusal, Retention, Shard,
    ShardTensor, Store, unit_name,
};
use varuna_plan::state::Chain;
use varuna_plan::{Generation, Layout, StateId, Step, Unit};

/// The layout of a small model.
pub const LAYOUT: Layout = Layout::new(3, true);
/// Elements of the large shard, which is larger than one part of an upload.
const LARGE: usize = 2 << 20;

/// A state after this many steps.
#[must_use]
pub fn state(step: u64) -> StateId {
    StateId {
        run_gen: Generation(2),
        step: Step(step),
        chain: Chain(step * 17),
    }
}

/// The facts of a job.
#[must_use]
pub fn facts() -> Facts {
    Facts {
        job: "demo".into(),
        model: serde_json::json!({"layers": 1, "dropout": 0.1}),
        training_hash: "t".into(),
        seed: 5,
        global_batch_size: 8,
        data_fingerprint: "d".into(),
        moments: varuna_plan::Moments::Adam,
    }
}

/// A shard with one tensor of this many elements.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "any values do")]
pub fn shard(id: StateId, unit: Unit, elements: usize) -> Shard {
    let part = |k: f32| (0..elements).map(move |i| k + i as f32);
    Shard {
        id,
        unit: unit_name(LAYOUT, unit),
        adam_steps: id.step.0,
        loss_scale: None,
        failed_in_a_row: 0,
        moments: varuna_plan::Moments::Adam,
        tensors: vec![ShardTensor {
            name: "w".into(),
            shape: vec![elements],
            whole: None,
        }],
        data: [0.5, 0.25, 0.125].into_iter().flat_map(part).collect(),
    }
}

/// Saves a whole checkpoint. Its first unit has this many elements.
///
/// # Panics
/// The store fails, or the checkpoint is complete before its last shard.
pub async fn save(store: &Store, id: StateId, elements: usize) {
    for unit in LAYOUT.all_units() {
        let complete = store.complete(id).await.expect("a store that answers");
        assert!(!complete, "complete before its last shard");
        let elements = if unit == Unit(0) {
            elements
        } else {
            elements.min(100)
        };
        let file = shard(id, unit, elements).encode().expect("a shard");
        let put = store.put_shard(id, unit, file, &RateLimit::default()).await;
        put.expect("a store that takes shards");
    }
    assert!(store.complete(id).await.expect("a store that takes a manifest"));
}

/// Tries everything that checkpoints need in an empty location.
///
/// # Panics
/// The store behaves differently.
pub async fn conforms(place: Location) {
    let store = Store::new(place, LAYOUT, facts());
    belongs_to_one_run(&store).await;
    assert_eq!(store.location().list().await.expect("a list"), []);
    save(&store, state(10), 100).await;
    save(&store, state(20), LARGE).await;
    let again = store.complete(state(20)).await.expect("an answer");
    assert!(again, "completing twice is fine");
    let listed = store.location().list().await.expect("a list");
    assert_eq!(
        listed.iter().map(|l| l.id).collect::<Vec<_>>(),
        [state(10), state(20)]
    );
    assert!(listed.iter().all(varuna_checkpoint::Listed::is_usable));
    let manifest: Manifest = store.check(&listed[1]).await.expect("a sound checkpoint");
    assert_eq!(manifest.next_sample, 160);
    for unit in LAYOUT.all_units() {
        let mut pieces = 0;
        let name = unit_name(LAYOUT, unit);
        let read = store.location().load(&manifest, &name, || pieces += 1).await;
        let elements = if unit == Unit(0) { LARGE } else { 100 };
        assert_eq!(read.expect("a sound shard"), shard(state(20), unit, elements));
        assert!(pieces > 0);
    }
    is_usable_while_doubted(&store, state(20)).await;
    deletes_what_is_no_longer_needed(&store).await;
}

/// Doubts about shards lie beside a checkpoint, which stays usable. The first one about a shard is kept until it is dismissed.
async fn is_usable_while_doubted(store: &Store, id: StateId) {
    let place = store.location();
    let damaged = |file: &str| CheckpointError::Damaged {
        id,
        file: file.to_owned(),
        why: "for the test".to_owned(),
    };
    for by in ["w1 on a", "w2 on b"] {
        let unit = place.doubt(id, &damaged("segment-001.safetensors"), by).await;
        assert_eq!(unit.expect("a doubt").as_deref(), Some("segment-001"));
    }
    let none = place.doubt(id, &damaged("manifest.json"), "w1 on a").await;
    assert_eq!(none.expect("an answer"), None);
    let none = place
        .doubt(state(7), &damaged("segment-001.safetensors"), "w1 on a")
        .await;
    assert_eq!(none.expect("an answer"), None, "there is no such checkpoint");
    let listed = place.list().await.expect("a list");
    assert_eq!(listed.len(), 2);
    assert!(listed[0].doubted().next().is_none());
    assert!(listed[1].is_usable() && listed[1].doubted().eq(["segment-001"]));
    let doubt = place.doubt_about(id, "segment-001").await.expect("an answer");
    assert_eq!(doubt.map(|doubt| doubt.by), Some("w1 on a".to_owned()));
    for _ in 0..2 {
        place.dismiss_doubt(id, "segment-001").await.expect("a deletion");
    }
    assert_eq!(
        place.doubt_about(id, "segment-001").await.expect("an answer"),
        None
    );
    // Another one stays, and is deleted with its checkpoint.
    let again = place
        .doubt(id, &damaged("segment-002.safetensors"), "w1 on a")
        .await;
    again.expect("a doubt");
}

/// A manifest is created only once, even if several processes try. Damaged, late and old files are deleted in time.
async fn deletes_what_is_no_longer_needed(store: &Store) {
    store
        .location()
        .mark_damaged(state(20), "for the test")
        .await
        .expect("a mark");
    let listed = store.location().list().await.expect("a list");
    assert!(listed[1].marked_damaged && !listed[1].is_usable());
    // A late upload, by a worker that is thought dead, of a state that was never completed.
    let late = shard(state(5), Unit(0), 10).encode().expect("a shard");
    let put = store
        .put_shard(state(5), Unit(0), late, &RateLimit::default())
        .await;
    put.expect("a store that takes shards");
    save(store, state(30), 10).await;
    let retention = Retention {
        protected: &[state(10)],
        ..Retention::newest(1)
    };
    let pruned = store.location().prune(&retention).await.expect("deletions");
    assert_eq!(
        (pruned.checkpoints, pruned.orphans),
        (vec![state(20)], vec![state(5)])
    );
    let left = store.location().list().await.expect("a list");
    assert_eq!(
        left.iter().map(|l| l.id).collect::<Vec<_>>(),
        [state(10), state(30)]
    );
    is_marked_as_given_up(store, state(30), state(10)).await;
    is_put_again(store, state(30), state(10)).await;
}

/// A run marks what it has given up, and the mark says so. Another mark changes nothing.
async fn is_marked_as_given_up(store: &Store, given_up: StateId, sound: StateId) {
    let place = store.location();
    let mut all = place.list().await.expect("a list");
    let listed = all.iter_mut().find(|l| l.id == given_up).expect("a checkpoint");
    place.mark_given_up(listed, "for the test").await.expect("a mark");
    assert!(listed.manifest && !listed.is_usable());
    place.mark_damaged(given_up, "too late").await.expect("an answer");
    let refusal = place.refusal(given_up).await.expect("an answer");
    let expected = Refusal {
        why: "for the test".to_owned(),
        given_up: true,
    };
    assert_eq!(refusal, Some(expected));
    assert_eq!(place.refusal(sound).await.expect("an answer"), None);
    assert_eq!(
        place.list().await.expect("a list"),
        all,
        "as the run knows it from the mark"
    );
}

/// A shard that was found damaged can be deleted and put again. A valid one cannot be deleted.
async fn is_put_again(store: &Store, damaged: StateId, sound: StateId) {
    let place = store.location();
    place.mark_damaged(damaged, "for the test").await.expect("a mark");
    assert!(place.discard(damaged).await.expect("deletions"));
    assert!(!place.discard(damaged).await.expect("an answer"));
    assert!(!place.discard(sound).await.expect("an answer"));
    save(store, damaged, 10).await;
    let listed = place.list().await.expect("a list");
    assert_eq!(listed.iter().map(|l| l.id).collect::<Vec<_>>(), [sound, damaged]);
    assert!(listed.iter().all(varuna_checkpoint::Listed::is_usable));
}

fn claim(run: &str) -> Claim {
    Claim {
        run: run.to_owned(),
        machine: "m".to_owned(),
        process: 1,
        started: 1,
    }
}

async fn belongs_to_one_run(store: &Store) {
    let place = store.location();
    let alive = |_: &Claim| false;
    // If several runs claim the location at the same time, one of them gets it.
    let many = ["a", "b", "c"].map(|run| place.claim(claim(run), alive));
    let many = futures::future::join_all(many).await;
    let mut owners: Vec<_> = many.into_iter().filter_map(Result::ok).collect();
    assert_eq!(owners.len(), 1, "one of those that came at once");
    let first = owners.pop().expect("just counted");
    let refused = place.claim(claim("late"), alive).await;
    assert!(
        matches!(refused, Err(CheckpointError::Owned { .. })),
        "{refused:?}"
    );
    assert_eq!(first.renew().await.expect("an answer"), LeaseState::Owner);
    // Its process has certainly ended.
    let second = place
        .claim(claim("second"), |_| true)
        .await
        .expect("a free place");
    let standing = first.renew().await.expect("an answer");
    assert_eq!(standing, LeaseState::Taken("second".to_owned()));
    // The same run claims it again after a restart.
    let restarted = place.claim(claim("second"), alive).await.expect("its own place");
    assert_eq!(second.renew().await.expect("an answer"), LeaseState::Succeeded);
    restarted.release().await.expect("an answer");
    let third = place
        .claim(claim("third"), alive)
        .await
        .expect("a place that was given up");
    third.release().await.expect("an answer");
    // At present no run owns the location, but one did before.
    let standing = first.renew().await.expect("an answer");
    assert_eq!(standing, LeaseState::Taken("third".to_owned()));
    // A run that was suspended all this time finds that the location belongs to another one.
    let fourth = place.claim(claim("fourth"), alive).await.expect("a free place");
    for slept in [&first, &restarted, &third] {
        let standing = slept.renew().await.expect("an answer");
        assert_eq!(standing, LeaseState::Taken("fourth".to_owned()));
        slept.release().await.expect("an answer");
    }
    assert_eq!(fourth.renew().await.expect("an answer"), LeaseState::Owner);
    fourth.release().await.expect("an answer");
}
