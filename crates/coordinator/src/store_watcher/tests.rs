use super::deletion::tests::all_known;
use super::unfinished::tests::put;
use super::*;
use crate::test_job::job;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use tempfile::TempDir;
use tokio::sync::mpsc::{Receiver, channel};
use varuna_checkpoint::{Claim, Facts, Location, RateLimit, Store, folder_name};
use varuna_plan::state::Chain;
use varuna_plan::{Generation, Step, Unit};
use varuna_run_folder::CheckpointEvent;

const LAST: StateId = StateId {
    run_gen: Generation(1),
    step: Step(9),
    chain: Chain(7),
};

/// The empty location of a job.
pub(super) fn empty(folder: &TempDir) -> Checkpointing {
    let uri = format!("uri: {}, intervalSteps: 9", folder.path().display());
    Checkpointing {
        store: Store::of_job(&job(Some(&uri)), "").unwrap().unwrap(),
        keep: 3,
        claim: claim("mine"),
        ownership: None,
        event_files: false,
    }
}

fn claim(run: &str) -> Claim {
    Claim {
        run: run.into(),
        machine: String::new(),
        process: 0,
        started: 0,
    }
}

/// A store whose checkpoint of the last step was found damaged.
async fn damaged(folder: &TempDir) -> Checkpointing {
    let given = empty(folder);
    let (store, limit, file) = (&given.store, RateLimit::new(None), b"no shard".to_vec());
    store.put_shard(LAST, Unit(0), file, &limit).await.unwrap();
    store
        .location()
        .mark_damaged(LAST, "it is no shard")
        .await
        .unwrap();
    given
}

pub(super) async fn in_store(store: &Store) -> Vec<StateId> {
    let listed = store.location().list().await.unwrap();
    listed.iter().map(|l| l.id).collect()
}

async fn next_damaged(inbox: &mut Receiver<Inbound>) -> Vec<StateId> {
    loop {
        match inbox.recv().await {
            Some(Inbound::Checkpoints(listing)) if listing.answered => return listing.damaged,
            Some(_) => {}
            None => panic!("the watcher has ended"),
        }
    }
}

#[tokio::test]
async fn a_damaged_checkpoint_is_deleted_only_when_asked_for() {
    let folder = TempDir::new().unwrap();
    let given = damaged(&folder).await;
    let store = given.store.clone();
    let (inbound, mut inbox) = channel(4);
    let watcher = StoreWatcher::start(given, inbound);
    watcher.list_now();
    assert_eq!(next_damaged(&mut inbox).await, [LAST]);
    assert_eq!(in_store(&store).await, [LAST]);
    watcher.discard(LAST);
    // One listing may have been in progress.
    let first = next_damaged(&mut inbox).await;
    assert!(first.is_empty() || next_damaged(&mut inbox).await.is_empty());
    assert!(
        in_store(&store).await.is_empty(),
        "its shard and its mark are gone"
    );
    watcher.end().await;
}

/// The task's state, and the channel that orders deletions.
fn task(given: Checkpointing) -> (Task, watch::Sender<Option<StateId>>) {
    let (_, needed) = watch::channel(Some(all_known()));
    let (discarded, discards) = watch::channel(None);
    (Task::new(given, needed, discards), discarded)
}

#[tokio::test]
async fn another_run_is_waited_for_until_its_lease_would_have_expired() {
    let folder = TempDir::new().unwrap();
    let given = damaged(&folder).await;
    let other = Claim {
        run: "other".into(),
        ..given.claim.clone()
    };
    let location = given.store.location().clone();
    let lease = location.claim(other, |_| false).await.unwrap();
    let (mut task, _discarded) = task(given);
    assert_eq!(task.own().await, None);
    assert_eq!(task.other_owner(), Some("other"));
    // The other run has renewed its lease, so it is alive.
    let since = Instant::now().checked_sub(varuna_checkpoint::LEASE + 2 * INTERVAL);
    task.refused = Some((since.unwrap(), "other".into()));
    assert_eq!(task.own().await, Some(LeaseState::Taken("other".into())));
    lease.release().await.unwrap();
    assert_eq!(task.own().await, Some(LeaseState::Owner));
    assert_eq!(task.other_owner(), None);
}

#[tokio::test]
async fn nothing_begins_on_a_listed_store_before_it_is_claimed() {
    let folder = TempDir::new().unwrap();
    let given = empty(&folder);
    put(&given.store, LAST, None, None).await;
    assert!(given.store.complete(LAST).await.unwrap());
    // No lease can be written or read.
    let leases = folder.path().join("small/owner");
    std::fs::write(&leases, "no folder").unwrap();
    let (mut task, _discarded) = task(given);
    assert_eq!(task.own().await, None);
    let (requests, (inbound, _inbox)) = (Notify::new(), channel(4));
    let listing = task.look(true, &requests, &inbound).await;
    assert!(!listing.answered && listing.usable.is_empty(), "{listing:?}");
    let why = listing.failing.unwrap();
    assert!(why.contains("cannot be claimed"), "{why}");
    std::fs::remove_file(&leases).unwrap();
    assert_eq!(task.own().await, Some(LeaseState::Owner));
    let listing = task.look(true, &requests, &inbound).await;
    assert!(listing.answered && listing.failing.is_none(), "{listing:?}");
    assert_eq!(listing.usable, [LAST]);
}

#[tokio::test]
async fn only_the_owner_completes_what_lacks_its_manifest() {
    let folder = TempDir::new().unwrap();
    let given = damaged(&folder).await;
    let store = given.store.clone();
    let (before, limit) = (
        StateId {
            step: Step(8),
            ..LAST
        },
        RateLimit::new(None),
    );
    for unit in store.layout().all_units() {
        // The content is gone, as if the store had lost it. Any reader would mark the checkpoint as damaged.
        let file = b"no shard".to_vec();
        store.put_shard(before, unit, file, &limit).await.unwrap();
    }
    let (mut task, _discarded) = task(given);
    let found = |listing: CheckpointListing| (listing.usable, listing.damaged);
    for standing in [
        None,
        Some(LeaseState::Succeeded),
        Some(LeaseState::Taken("other".into())),
    ] {
        task.standing = standing;
        assert_eq!(found(task.list(true).await), (vec![], vec![LAST]));
    }
    task.standing = Some(LeaseState::Owner);
    assert_eq!(found(task.list(true).await), (vec![], vec![before, LAST]));
}

#[tokio::test]
async fn only_the_owner_deletes_and_what_is_put_anew_is_judged_anew() {
    let folder = TempDir::new().unwrap();
    let given = damaged(&folder).await;
    let store = given.store.clone();
    let (mut task, discarded) = task(given);
    task.verdicts.insert(LAST, CheckpointCheck::Damaged);
    discarded.send(Some(LAST)).unwrap();
    for standing in [None, Some(LeaseState::Taken("other".into()))] {
        task.standing = standing;
        task.discard().await.unwrap();
        assert_eq!(in_store(&store).await, [LAST], "{:?}", task.standing);
    }
    task.standing = Some(LeaseState::Owner);
    task.discard().await.unwrap();
    assert!(in_store(&store).await.is_empty());
    assert!(task.verdicts.is_empty());
    // The order was carried out. If a later copy is found damaged, it is not deleted by this order.
    store.location().mark_damaged(LAST, "again").await.unwrap();
    task.discard().await.unwrap();
    assert_eq!(in_store(&store).await, [LAST]);
}

pub(super) fn of_generation(generation: u64, step: u64) -> StateId {
    StateId {
        run_gen: Generation(generation),
        step: Step(step),
        chain: Chain(step),
    }
}

/// Complete checkpoints of a job with the same name and a wider model.
async fn of_another_model(folder: &TempDir, ids: &[StateId]) {
    let uri = format!("uri: {}, intervalSteps: 9", folder.path().display());
    let mut other = job(Some(&uri));
    let varuna_model::Model::Transformer(model) = &mut other.model else {
        panic!("the job trains a transformer");
    };
    model.hidden_size *= 2;
    let store = Store::of_job(&other, "").unwrap().unwrap();
    for id in ids {
        put(&store, *id, None, None).await;
        assert!(store.complete(*id).await.unwrap());
    }
}

#[tokio::test]
async fn a_job_refuses_checkpoints_of_another_model_and_says_why() {
    let folder = TempDir::new().unwrap();
    of_another_model(&folder, &[of_generation(7, 9)]).await;
    let (mut task, _discarded) = task(empty(&folder));
    task.standing = Some(LeaseState::Owner);
    let listing = task.list(false).await;
    assert!(!listing.answered);
    let why = listing.failing.unwrap();
    assert!(why.contains("hiddenSize"), "{why}");
    assert_eq!(listing.newest_generation, Generation(7));
}

#[tokio::test]
async fn checkpoints_of_another_model_stay_and_take_no_place() {
    let folder = TempDir::new().unwrap();
    let foreign = [5, 6, 7, 8].map(|step| of_generation(7, step));
    let own = [1, 2, 3].map(|step| of_generation(8, step));
    of_another_model(&folder, &foreign).await;
    let given = Checkpointing {
        keep: 1,
        ..empty(&folder)
    };
    let store = given.store.clone();
    for id in own {
        put(&store, id, None, None).await;
        assert!(store.complete(id).await.unwrap());
    }
    let (mut task, _discarded) = task(given);
    task.standing = Some(LeaseState::Owner);
    assert_eq!(task.list(false).await.usable, own);
    task.prune(PRUNE_TIMEOUT).await;
    let mut left = foreign.to_vec();
    left.push(own[2]);
    assert_eq!(in_store(&store).await, left);
}

#[tokio::test]
async fn of_unfinished_checkpoints_the_last_and_the_whole_ones_stay() {
    let folder = TempDir::new().unwrap();
    let given = empty(&folder);
    let store = given.store.clone();
    for step in 1..=6 {
        let missing = (step != 2).then_some(Unit(1));
        put(&store, of_generation(1, step), missing, None).await;
    }
    let (mut task, _discarded) = task(given);
    task.standing = Some(LeaseState::Owner);
    // A living worker has until the next listing to write the manifest of the second one.
    assert!(task.list(false).await.usable.is_empty());
    task.prune(PRUNE_TIMEOUT).await;
    let left = [2, 4, 5, 6].map(|step| of_generation(1, step));
    assert_eq!(in_store(&store).await, left);
    assert_eq!(task.list(false).await.usable, [left[0]]);
}

#[tokio::test]
async fn bytes_on_their_way_are_of_newer_unfinished_checkpoints() {
    let folder = TempDir::new().unwrap();
    let given = empty(&folder);
    let store = given.store.clone();
    for (step, missing) in [(1, Some(Unit(1))), (2, None), (3, Some(Unit(1)))] {
        put(&store, of_generation(1, step), missing, None).await;
    }
    assert!(store.complete(of_generation(1, 2)).await.unwrap());
    let (mut task, _discarded) = task(given);
    task.find(false).await.unwrap();
    let listed = store.location().list().await.unwrap();
    let newer = listed.iter().filter(|l| l.id.step.0 == 3);
    let bytes: u64 = newer.flat_map(|l| l.files.values()).sum();
    assert!(bytes > 0);
    assert_eq!(task.listing.unfinished_bytes, bytes);
}

#[tokio::test]
async fn a_checkpoint_that_only_the_last_listing_has_is_checked() {
    let folder = TempDir::new().unwrap();
    let own = [1, 2].map(|step| of_generation(1, step));
    let given = Checkpointing {
        keep: 1,
        ..empty(&folder)
    };
    let store = given.store.clone();
    for id in own {
        put(&store, id, None, None).await;
        assert!(store.complete(id).await.unwrap());
    }
    let (mut task, _discarded) = task(given);
    task.standing = Some(LeaseState::Owner);
    assert_eq!(task.list(false).await.usable, own);
    let foreign = of_generation(1, 3);
    of_another_model(&folder, &[foreign]).await;
    task.prune_at_end(PRUNE_TIMEOUT).await;
    assert_eq!(in_store(&store).await, [own[1], foreign]);
}

#[tokio::test]
async fn deletion_waits_for_the_runs_needs_and_counts_no_void_state() {
    let folder = TempDir::new().unwrap();
    let ids = [1, 2, 3].map(|step| of_generation(1, step));
    let given = Checkpointing {
        keep: 1,
        ..empty(&folder)
    };
    let store = given.store.clone();
    for id in ids {
        put(&store, id, None, None).await;
        assert!(store.complete(id).await.unwrap());
    }
    let (needs, needed) = watch::channel(None);
    let (_discarded, discards) = watch::channel(None);
    let mut task = Task::new(given, needed, discards);
    task.standing = Some(LeaseState::Owner);
    assert_eq!(task.list(false).await.usable, ids);
    task.prune(PRUNE_TIMEOUT).await;
    assert_eq!(in_store(&store).await, ids);
    let void = vec![ids[2]];
    needs.send(Some(Needs { void, ..all_known() })).unwrap();
    task.prune(PRUNE_TIMEOUT).await;
    assert_eq!(in_store(&store).await, ids[1..]);
    let refusal = |id| store.location().refusal(id);
    assert!(refusal(ids[2]).await.unwrap().is_some_and(|mark| mark.given_up));
    assert_eq!(refusal(ids[1]).await.unwrap(), None);
    assert_eq!(
        task.list(false).await.usable,
        ids[1..2],
        "for all other readers too"
    );
}

#[tokio::test(start_paused = true)]
async fn a_given_up_checkpoint_is_marked_by_the_owner_once_it_can() {
    let inner = Arc::new(ThrottledStore::new(InMemory::new(), ThrottleConfig::default()));
    let shared: Arc<dyn ObjectStore> = inner.clone();
    let given = checkpointing(Location::over(shared));
    let store = given.store.clone();
    // The first one was imported: no worker has computed it.
    let ids = [(0, 0), (1, 1), (1, 2)].map(|(generation, step)| of_generation(generation, step));
    for id in ids {
        put(&store, id, None, None).await;
        assert!(store.complete(id).await.unwrap());
    }
    let (_needs, needed) = watch::channel(Some(Needs {
        protected: vec![ids[0]],
        void: vec![ids[0], ids[2]],
        ..all_known()
    }));
    let (_discarded, discards) = watch::channel(None);
    let mut task = Task::new(given, needed, discards);
    // Another run may go on from it.
    task.standing = Some(LeaseState::Taken("other".into()));
    task.list(false).await;
    task.prune(PRUNE_TIMEOUT).await;
    assert_eq!(store.location().refusal(ids[2]).await.unwrap(), None);
    // The store takes nothing for a while.
    task.standing = Some(LeaseState::Owner);
    inner.config_mut(|slow| slow.wait_put_per_call = Duration::from_secs(3600));
    task.list(false).await;
    task.prune(PRUNE_TIMEOUT).await;
    assert_eq!(store.location().refusal(ids[2]).await.unwrap(), None);
    inner.config_mut(|slow| slow.wait_put_per_call = Duration::ZERO);
    assert_eq!(task.list(false).await.usable, ids);
    task.prune(PRUNE_TIMEOUT).await;
    assert_eq!(task.list(false).await.usable, ids[..2]);
}

/// The checkpointing of a job whose store is slow.
fn throttled(slow: ThrottleConfig) -> Checkpointing {
    checkpointing(Location::over(Arc::new(ThrottledStore::new(
        InMemory::new(),
        slow,
    ))))
}

/// The checkpointing of a job at this location.
fn checkpointing(location: Location) -> Checkpointing {
    let facts = Facts {
        job: "small".into(),
        model: serde_json::Value::Null,
        training_hash: String::new(),
        seed: 1,
        global_batch_size: 8,
        data_fingerprint: String::new(),
        moments: varuna_plan::Moments::Adam,
    };
    Checkpointing {
        store: Store::new(location, job(None).layout(), facts),
        keep: 1,
        claim: claim("mine"),
        ownership: None,
        event_files: false,
    }
}

#[tokio::test(start_paused = true)]
async fn long_deletions_leave_time_to_renew_or_release_the_lease() {
    let given = throttled(ThrottleConfig {
        wait_delete_per_call: Duration::from_secs(3600),
        ..ThrottleConfig::default()
    });
    let store = given.store.clone();
    let ids = [1, 2].map(|step| of_generation(1, step));
    for id in ids {
        put(&store, id, None, None).await;
        assert!(store.complete(id).await.unwrap());
    }
    let (mut task, _discarded) = task(given);
    assert_eq!(task.own().await, Some(LeaseState::Owner));
    task.standing = Some(LeaseState::Owner);
    assert_eq!(task.list(false).await.usable, ids);
    let began = tokio::time::Instant::now();
    task.prune(PRUNE_TIMEOUT).await;
    assert!(began.elapsed() >= PRUNE_TIMEOUT, "there is something to delete");
    assert!(began.elapsed() < varuna_checkpoint::LEASE / 2);
    let began = tokio::time::Instant::now();
    task.give_up().await;
    assert!(began.elapsed() < RELEASE_TIMEOUT);
    assert_eq!(in_store(&store).await, ids, "the store has deleted nothing");
    let next = store.location().claim(claim("next"), |_| false).await;
    assert!(next.is_ok(), "the location is free");
}

#[tokio::test(start_paused = true)]
async fn deletions_end_when_the_location_gets_another_owner() {
    let inner = Arc::new(ThrottledStore::new(InMemory::new(), ThrottleConfig::default()));
    let given = checkpointing(Location::over(inner.clone()));
    let store = given.store.clone();
    let ids = [1, 2].map(|step| of_generation(1, step));
    for id in ids {
        put(&store, id, None, None).await;
        assert!(store.complete(id).await.unwrap());
    }
    let (mut task, _discarded) = task(given);
    assert_eq!(task.own().await, Some(LeaseState::Owner));
    task.standing = Some(LeaseState::Owner);
    assert_eq!(task.list(false).await.usable, ids);
    let next = store.location().claim(claim("next"), |_| true).await;
    assert!(next.is_ok());
    inner.config_mut(|config| config.wait_delete_per_call = Duration::from_secs(3600));
    let began = tokio::time::Instant::now();
    task.prune(PRUNE_TIMEOUT).await;
    // The next renewal finds it.
    assert!(began.elapsed() < PRUNE_TIMEOUT, "it took {:?}", began.elapsed());
    assert_eq!(in_store(&store).await, ids);
}

/// With this wait for each file, all files take ten seconds and more.
const HALF_A_SECOND: Duration = Duration::from_millis(500);

/// Of a job with four checkpoints, which take this long to list for each of their two dozen files and more.
pub(super) async fn slow_to_list(wait_list_per_entry: Duration) -> Checkpointing {
    let given = throttled(ThrottleConfig {
        wait_list_per_entry,
        ..ThrottleConfig::default()
    });
    for step in 1..=4 {
        let id = of_generation(1, step);
        put(&given.store, id, None, None).await;
        assert!(given.store.complete(id).await.unwrap());
    }
    given
}

#[tokio::test(start_paused = true)]
async fn a_store_listed_longer_than_deletions_may_take_is_pruned() {
    let given = slow_to_list(4 * HALF_A_SECOND).await;
    let store = given.store.clone();
    let (mut task, _discarded) = task(given);
    assert_eq!(task.own().await, Some(LeaseState::Owner));
    task.standing = Some(LeaseState::Owner);
    let began = tokio::time::Instant::now();
    assert_eq!(task.list(false).await.failing, None);
    let listed = began.elapsed();
    assert!(listed > PRUNE_TIMEOUT.max(LIST_SILENCE), "only {listed:?}");
    assert_eq!(task.standing, Some(LeaseState::Owner), "as the last renewal says");
    task.prune(PRUNE_TIMEOUT).await;
    assert_eq!(in_store(&store).await, [of_generation(1, 4)]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_is_pruned_at_the_end_by_the_last_listing() {
    for (wait, left) in [(HALF_A_SECOND, vec![1, 3, 4]), (Duration::ZERO, vec![4])] {
        let given = slow_to_list(wait).await;
        let store = given.store.clone();
        let (mut task, _discarded) = task(given);
        task.standing = Some(LeaseState::Owner);
        task.listed = Some(store.location().list().await.unwrap());
        // Only step 2 is older than the newest one, as the last listing had it.
        task.listed
            .as_mut()
            .unwrap()
            .retain(|l| [2, 3].contains(&l.id.step.0));
        task.prune_at_end(RELEASE_TIMEOUT / 2).await;
        let steps: Vec<u64> = in_store(&store).await.iter().map(|id| id.step.0).collect();
        assert_eq!(steps, left, "{wait:?} for each file");
    }
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_renewed_while_the_store_is_listed() {
    let given = slow_to_list(HALF_A_SECOND).await;
    let store = given.store.clone();
    let (mut task, _discarded) = task(given);
    assert_eq!(task.own().await, Some(LeaseState::Owner));
    task.standing = Some(LeaseState::Owner);
    // Whoever renews the lease finds that it is another run's by now.
    let next = store.location().claim(claim("next"), |_| true).await;
    assert!(next.is_ok());
    let began = tokio::time::Instant::now();
    let listing = task.list(false).await;
    assert!(began.elapsed() > 2 * INTERVAL, "it took {:?}", began.elapsed());
    assert_eq!((listing.failing, listing.usable.len()), (None, 4));
    assert_eq!(task.standing, Some(LeaseState::Taken("next".into())));
}

#[tokio::test(start_paused = true)]
async fn requests_without_pause_do_not_cut_a_renewal_short() {
    // A renewal lists and reads, so it takes longer than a request waits.
    let given = throttled(ThrottleConfig {
        wait_list_per_call: 2 * REQUEST_TIMEOUT,
        wait_get_per_call: 2 * REQUEST_TIMEOUT,
        ..ThrottleConfig::default()
    });
    let store = given.store.clone();
    let (mut task, _discarded) = task(given);
    assert_eq!(task.own().await, Some(LeaseState::Owner));
    // A renewal finds that it is another run's by now.
    let next = store.location().claim(claim("next"), |_| true).await;
    assert!(next.is_ok());
    let requests = Notify::new();
    let began = tokio::time::Instant::now();
    while began.elapsed() < varuna_checkpoint::LEASE {
        requests.notify_one();
        task.renew(&requests).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(task.standing, Some(LeaseState::Taken("next".into())));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_may_take_as_long_as_the_lease_lasts() {
    let inner = Arc::new(ThrottledStore::new(InMemory::new(), ThrottleConfig::default()));
    let (mut task, _discarded) = task(checkpointing(Location::over(inner.clone())));
    assert_eq!(task.own().await, Some(LeaseState::Owner));
    inner.config_mut(|config| config.wait_list_per_call = Duration::from_secs(3600));
    let second = Duration::from_secs(1);
    for (wait, standing) in [
        (varuna_checkpoint::LEASE - second, Some(LeaseState::Owner)),
        (2 * second, None),
    ] {
        tokio::time::sleep(wait).await;
        task.note_renewals();
        assert_eq!(task.standing, standing);
    }
}

/// Claims the location, makes the store slow, and looks each second for 150 seconds. Returns when the lease was seen to be written, and
/// whether the run took itself for the owner all the time.
async fn renewed_in_a_store(slow: impl Fn(&mut ThrottleConfig)) -> (Vec<u64>, bool) {
    let inner = Arc::new(ThrottledStore::new(InMemory::new(), ThrottleConfig::default()));
    let (mut task, _discarded) = task(checkpointing(Location::over(inner.clone())));
    assert_eq!(task.own().await, Some(LeaseState::Owner));
    inner.config_mut(slow);
    let lease = Path::from("small/owner/00000001.json");
    let (mut version, mut written, mut always) = (None, Vec::new(), true);
    for second in 1..=150 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        task.note_renewals();
        always &= task.standing == Some(LeaseState::Owner);
        let now = inner.head(&lease).await.unwrap().e_tag;
        if now != version {
            written.push(second);
            version = now;
        }
    }
    (written, always)
}

#[tokio::test(start_paused = true)]
async fn a_renewal_of_most_of_a_lease_is_finished() {
    const LONG: Duration = Duration::from_secs(20);
    let (listed, always_owner) = renewed_in_a_store(|store| store.wait_list_per_call = LONG).await;
    assert!(always_owner, "each new lease lasts longer than the next renewal");
    let (put, always_owner) = renewed_in_a_store(|store| store.wait_put_per_call = LONG).await;
    // It may have been written at once, so it is counted from there.
    assert!(!always_owner);
    for written in [listed, put] {
        let often = written.windows(2).all(|pair| pair[1] - pair[0] <= 25);
        assert!(often && written.len() >= 7, "written at {written:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn renewals_that_have_ended_begin_again() {
    let (mut task, _discarded) = task(throttled(ThrottleConfig::default()));
    assert_eq!(task.own().await, Some(LeaseState::Owner));
    task.note_renewals();
    assert_eq!(task.standing, Some(LeaseState::Owner));
    let renewals = task.renewals.as_ref().unwrap();
    renewals.task.abort();
    while !renewals.task.is_finished() {
        tokio::task::yield_now().await;
    }
    task.note_renewals();
    assert_eq!(task.standing, None, "what was found last may not hold any more");
    task.renew(&Notify::new()).await;
    assert_eq!(task.standing, Some(LeaseState::Owner));
}

/// Asks for listings, as a recovery does.
pub(super) async fn ask_without_pause(watcher: &StoreWatcher) {
    loop {
        watcher.list_now();
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The next listing that is complete, and how many answers came before it.
pub(super) async fn next_complete(inbox: &mut Receiver<Inbound>) -> (CheckpointListing, usize) {
    let mut before = 0;
    loop {
        match inbox.recv().await {
            Some(Inbound::Checkpoints(listing)) if listing.under_way => before += 1,
            Some(Inbound::Checkpoints(listing)) => return (listing, before),
            Some(_) => {}
            None => panic!("the watcher has ended"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_is_listed_while_a_recovery_keeps_asking() {
    let given = slow_to_list(HALF_A_SECOND).await;
    let store = given.store.clone();
    let (inbound, mut inbox) = channel(64);
    let watcher = StoreWatcher::start(given, inbound);
    let listings = async {
        let (first, before) = next_complete(&mut inbox).await;
        assert_eq!((first.failing, first.usable.len()), (None, 4));
        assert_eq!(before, 0, "nothing was known");
        put(&store, of_generation(1, 5), None, None).await;
        assert!(store.complete(of_generation(1, 5)).await.unwrap());
        // The next listing may have begun before.
        next_complete(&mut inbox).await;
        let (last, before) = next_complete(&mut inbox).await;
        assert_eq!((last.failing, last.usable.len()), (None, 5));
        assert!(before > 5, "only {before} requests were answered meanwhile");
    };
    tokio::select! {
        () = listings => {}
        () = ask_without_pause(&watcher) => {}
    }
    watcher.end().await;
}

/// Another run can claim the location as soon as the watcher has ended.
async fn assert_end_releases(watcher: StoreWatcher, store: &Store) {
    watcher.end().await;
    let next = store.location().claim(claim("next"), |_| false).await;
    assert!(next.is_ok(), "the location is free: {next:?}");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_during_a_listing_gives_its_location_up() {
    let given = slow_to_list(HALF_A_SECOND).await;
    let store = given.store.clone();
    let (inbound, _inbox) = channel(4);
    let watcher = StoreWatcher::start(given, inbound);
    watcher.list_now();
    // It has claimed the location by then, and lists the store.
    tokio::time::sleep(INTERVAL).await;
    assert_end_releases(watcher, &store).await;
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_messages_nobody_reads_gives_its_location_up() {
    let given = throttled(ThrottleConfig::default());
    let store = given.store.clone();
    let (inbound, _inbox) = channel(1);
    assert!(inbound.try_send(Inbound::Stop).is_ok(), "now it is full");
    let watcher = StoreWatcher::start(given, inbound);
    watcher.list_now();
    // It waits for room for its first answer by then.
    tokio::time::sleep(INTERVAL).await;
    assert_end_releases(watcher, &store).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_in_a_claim_or_renewal_is_said_to_fail() {
    let hang = |config: &mut ThrottleConfig| config.wait_list_per_call = Duration::from_secs(3600);
    for claimed in [false, true] {
        let inner = Arc::new(ThrottledStore::new(InMemory::new(), ThrottleConfig::default()));
        let mut given = checkpointing(Location::over(inner.clone()));
        if claimed {
            let ownership = given.store.location().claim(claim("mine"), |_| false);
            given.ownership = Some(ownership.await.unwrap());
        }
        inner.config_mut(hang);
        let (inbound, mut inbox) = channel(4);
        let watcher = StoreWatcher::start(given, inbound);
        let said = next_complete(&mut inbox);
        let said = tokio::time::timeout(3 * varuna_checkpoint::LEASE, said).await;
        let (listing, _) = said.expect("a message about the store");
        let why = listing.failing.unwrap();
        assert!(why.contains("no answer within"), "{why}");
        assert_eq!(why.contains("cannot be claimed"), !claimed, "{why}");
        watcher.end().await;
    }
}

/// A worker doubts a shard of a checkpoint, and a task of this standing has listed it. Returns the task and its messages, once what it has begun
/// is done.
async fn doubted(standing: LeaseState, is_damaged: bool) -> (Task, Receiver<Inbound>) {
    let inner = Arc::new(InMemory::new());
    let given = checkpointing(Location::over(inner.clone()));
    let store = given.store.clone();
    put(&store, LAST, None, None).await;
    assert!(store.complete(LAST).await.unwrap());
    let file = "segment-001.safetensors";
    if is_damaged {
        let path = Path::from(format!("small/{}/{file}", folder_name(LAST)));
        let mut bytes = inner.get(&path).await.unwrap().bytes().await.unwrap().to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        inner.put(&path, bytes.into()).await.unwrap();
    }
    let found = CheckpointError::Damaged {
        id: LAST,
        file: file.into(),
        why: "for the test".into(),
    };
    let unit = store.location().doubt(LAST, &found, "w7 on node-3").await;
    assert_eq!(unit.unwrap().as_deref(), Some("segment-001"));
    let (mut task, _discarded) = task(given);
    let (inbound, inbox) = channel(4);
    task.standing = Some(standing);
    assert_eq!(task.list(false).await.usable, [LAST], "until it was read again");
    task.read_doubted(&inbound);
    if let Some(reading) = task.second_reading.task.take() {
        reading.await.unwrap();
    }
    (task, inbox)
}

#[tokio::test]
async fn what_is_doubted_is_decided_by_a_reading_of_the_owner() {
    let taken = LeaseState::Taken("other".into());
    for (standing, is_damaged, is_open, event) in [
        (taken, true, true, false),
        (LeaseState::Owner, true, true, false),
        (LeaseState::Owner, false, false, true),
    ] {
        let (mut task, mut inbox) = doubted(standing, is_damaged).await;
        let is_owner = task.standing == Some(LeaseState::Owner);
        let location = task.given.store.location().clone();
        let doubt = location.doubt_about(LAST, "segment-001").await.unwrap();
        assert_eq!(doubt.is_some(), is_open, "one that was right is evidence");
        let refusal = location.refusal(LAST).await.unwrap();
        assert_eq!(refusal.is_some(), is_owner && is_damaged, "{refusal:?}");
        let usable = task.list(false).await.usable;
        assert_eq!(usable.is_empty(), is_owner && is_damaged);
        let said = matches!(
            inbox.try_recv(),
            Ok(Inbound::CheckpointEvent(CheckpointEvent::ShardMisread { by, .. })) if by == "w7 on node-3"
        );
        assert_eq!(said, event);
    }
}
