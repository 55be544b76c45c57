use super::shards::from_shard;
use super::*;
use crate::backend::Backend;
use crate::numerics::Numerics;
use crate::state::{UnitBuffers, UnitState};
use std::os::unix::fs::DirEntryExt;
use std::sync::mpsc::channel;
use varuna_checkpoint::{Shard, unit_name};
use varuna_model::{Transformer, gpt2};
use varuna_plan::state::Chain;
use varuna_plan::{Generation, Moments, OptimizerProgress, ScaleFactor, Step};

/// Until a test has failed.
const PATIENCE: Duration = Duration::from_secs(60);

fn id(step: u64) -> StateId {
    StateId {
        run_gen: Generation(1),
        step: Step(step),
        chain: Chain(step),
    }
}

const SMALL: Transformer = Transformer {
    layers: 1,
    hidden_size: 8,
    heads: 2,
    sequence_length: 4,
    vocabulary_size: 11,
    tied_head: false,
    ..gpt2::SMALL
};

/// The checkpoints of a model in a folder, without limits, where training leaves one processor idle.
fn of_folder(folder: &tempfile::TempDir) -> Checkpoints {
    within(folder, Box::new(|_, _| None))
}

/// The same with this much room for copies.
fn within(folder: &tempfile::TempDir, room: Room) -> Checkpoints {
    Checkpoints::start(config(folder, room)).unwrap()
}

/// The same without the threads that copy and upload.
fn without_threads(folder: &tempfile::TempDir, room: Room) -> Arc<Inner> {
    Arc::new(Inner::new(config(folder, room)))
}

/// The model is trained on the dataset `data` in the folder.
fn config(folder: &tempfile::TempDir, room: Room) -> CheckpointsConfig {
    let data = varuna_api::Data {
        train: vec![varuna_api::DataSource {
            path: folder.path().join("data").to_str().unwrap().to_owned(),
            weight: 1.0,
        }],
        held_out: varuna_api::HeldOut::Fraction(0.0),
    };
    let facts = varuna_checkpoint::Facts {
        job: "small".into(),
        model: serde_json::Value::Null,
        training_hash: String::new(),
        seed: 1,
        global_batch_size: 1,
        data_fingerprint: String::new(),
        moments: Moments::Adam,
    };
    let location = varuna_checkpoint::Location::open(folder.path().to_str().unwrap()).unwrap();
    CheckpointsConfig {
        store: Store::new(location, SMALL.layout(), facts),
        model: SMALL.into(),
        scaling: LossScaling::OFF,
        rate_limit: RateLimit::new(None),
        tokenizer: DataTokenizer::of(data),
        buffers: Arc::new(Buffers::within(room)),
        reader: "w7 on node-3".into(),
        idle_processors: NonZero::<usize>::MIN,
    }
}

fn whole(unit: Unit) -> UnitState {
    let elements = 3 * usize::try_from(SMALL.unit_parameter_count(unit)).unwrap();
    UnitState {
        progress: OptimizerProgress::START,
        data: vec![0.5; elements],
    }
}

fn copy_of(inner: &Inner, state: UnitState) -> StateCopy {
    inner.config.buffers.hold(state.progress, state.data)
}

/// Uploads a unit that was copied, as the threads do.
async fn upload(
    inner: &Arc<Inner>,
    id: StateId,
    unit: Unit,
) -> Result<Option<JoinHandle<()>>, CheckpointError> {
    let next = {
        let mut backlog = inner.backlog.lock();
        assert!(backlog.admit(id, unit));
        backlog.add(id, unit, copy_of(inner, whole(unit)));
        backlog.next()
    };
    let (id, unit, copy) = next.unwrap();
    Arc::clone(inner).upload_one(id, unit, copy).await
}

/// Puts all units of a state. Returns the results in the order of the units.
async fn put_all(inner: &Arc<Inner>, id: StateId) -> Vec<Result<Option<JoinHandle<()>>, CheckpointError>> {
    let mut results = Vec::new();
    for unit in SMALL.layout().all_units() {
        results.push(upload(inner, id, unit).await);
    }
    results
}

async fn listed(inner: &Inner) -> varuna_checkpoint::Listed {
    let mut all = inner.config.store.location().list().await.unwrap();
    assert_eq!(all.len(), 1);
    all.remove(0)
}

#[tokio::test]
async fn completing_worker_marks_a_damaged_shard() {
    let folder = tempfile::tempdir().unwrap();
    let inner = of_folder(&folder).inner;
    // The shard of another worker, whose end is missing in the store. It is checked once all earlier ones are there.
    let (units, limit) = (SMALL.layout(), RateLimit::new(None));
    let mut own: Vec<Unit> = units.all_units().collect();
    let unit = own.pop().unwrap();
    let last = own.pop().unwrap();
    let shard = to_shard(
        &SMALL.into(),
        &inner.config.scaling,
        (units, Moments::Adam),
        (id(3), unit),
        copy_of(&inner, whole(unit)),
    );
    let cut = shard.encode().unwrap();
    let cut = cut.slice(..cut.len() - 4);
    inner
        .config
        .store
        .put_shard(id(3), unit, cut, &limit)
        .await
        .unwrap();
    for unit in own {
        upload(&inner, id(3), unit).await.unwrap();
    }
    assert!(!listed(&inner).await.marked_damaged, "not all shards are there");
    let damaged = upload(&inner, id(3), last).await;
    assert!(
        matches!(&damaged, Err(CheckpointError::Damaged { .. })),
        "{damaged:?}"
    );
    let listed = listed(&inner).await;
    assert!(listed.marked_damaged && !listed.manifest);
}

/// The file of a unit's shard of the state of step 5.
fn shard_path(folder: &tempfile::TempDir, unit: Unit) -> std::path::PathBuf {
    let of_state = varuna_checkpoint::folder_name(id(5));
    let file = format!("{}.safetensors", unit_name(SMALL.layout(), unit));
    folder.path().join("small").join(of_state).join(file)
}

#[tokio::test]
async fn failing_uploads_are_told_until_a_state_is_saved() {
    let folder = tempfile::tempdir().unwrap();
    let inner = without_threads(&folder, Box::new(|_, _| None));
    let told = || inner.upload_failures.lock().why();
    let units: Vec<Unit> = SMALL.layout().all_units().take(2).collect();
    // A file where the folder of all checkpoints has to be; not even root can write below it.
    let blocked = folder.path().join("small");
    std::fs::write(&blocked, "").unwrap();
    for is_told in [false, true] {
        let failed = upload(&inner, id(5), units[0]).await;
        assert!(failed.is_err());
        assert_eq!(told().is_some(), is_told, "{:?}", told());
        inner.backlog.lock().give_up(id(5));
    }
    std::fs::remove_file(&blocked).unwrap();
    for unit in &units {
        assert!(inner.backlog.lock().admit(id(6), *unit));
    }
    for (unit, is_told) in units.iter().zip([true, false]) {
        let copy = copy_of(&inner, whole(*unit));
        let uploaded = Arc::clone(&inner).upload_one(id(6), *unit, copy).await;
        assert!(uploaded.is_ok());
        assert_eq!(told().is_some(), is_told, "one unit proves nothing");
    }
}

/// Changes one bit of a shard in the store, or changes it back.
fn flip_bit(path: &std::path::Path) {
    let mut bytes = std::fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(path, bytes).unwrap();
}

/// A checkpoint of step 5, whose second unit is damaged for this worker.
async fn damaged_for_one(folder: &tempfile::TempDir) -> Checkpoints {
    let checkpoints = of_folder(folder);
    let put = put_all(&checkpoints.inner, id(5)).await;
    assert!(put.iter().all(Result::is_ok));
    let loaded = checkpoints.load(Unit(1), id(5), || {}).await.unwrap();
    assert_eq!(loaded, whole(Unit(1)));
    assert!(listed(&checkpoints.inner).await.is_usable());
    flip_bit(&shard_path(folder, Unit(1)));
    checkpoints
}

/// Waits until the unit is doubted. The checkpoint must be usable then.
async fn until_doubted(inner: &Inner) {
    loop {
        let listed = listed(inner).await;
        assert!(listed.is_usable());
        if listed.doubted().eq(["segment-001"]) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn assert_damaged(loaded: &Result<UnitState, CheckpointError>) {
    assert!(
        matches!(loaded, Err(CheckpointError::Damaged { .. })),
        "{loaded:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn damage_that_nobody_reads_again_is_marked_in_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = damaged_for_one(&folder).await;
    let began = tokio::time::Instant::now();
    let mut told = 0;
    assert_damaged(&checkpoints.load(Unit(1), id(5), || told += 1).await);
    let waited = began.elapsed().as_secs();
    assert!((600..660).contains(&waited) && told > 500, "{waited} s, {told}");
    assert!(listed(&checkpoints.inner).await.marked_damaged);
    // If all marks name one machine, that may be at fault.
    let location = checkpoints.inner.config.store.location();
    let refusal = location.refusal(id(5)).await.unwrap();
    assert!(refusal.is_some_and(|mark| mark.why.ends_with("(found by w7 on node-3)")));
}

#[tokio::test(start_paused = true)]
async fn missing_or_cut_shard_is_marked_at_once() {
    for cut in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = damaged_for_one(&folder).await;
        let path = shard_path(&folder, Unit(1));
        match cut {
            true => std::fs::write(path, "cut").unwrap(),
            false => std::fs::remove_file(path).unwrap(),
        }
        let began = tokio::time::Instant::now();
        assert_damaged(&checkpoints.load(Unit(1), id(5), || {}).await);
        assert!(began.elapsed() < Duration::from_secs(1));
        let listed = listed(&checkpoints.inner).await;
        assert!(listed.marked_damaged && listed.doubted().next().is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_reader_that_finds_damage_too_ends_the_wait() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = damaged_for_one(&folder).await;
    let began = tokio::time::Instant::now();
    let decide = async {
        until_doubted(&checkpoints.inner).await;
        let location = checkpoints.inner.config.store.location();
        location.mark_damaged(id(5), "by the second one").await.unwrap();
    };
    let (loaded, ()) = tokio::join!(checkpoints.load(Unit(1), id(5), || {}), decide);
    assert_damaged(&loaded);
    assert!(began.elapsed() < Duration::from_secs(5));
    let location = checkpoints.inner.config.store.location();
    let refusal = location.refusal(id(5)).await.unwrap();
    assert_eq!(refusal.unwrap().why, "by the second one");
}

#[tokio::test(start_paused = true)]
async fn who_doubts_a_sound_shard_twice_is_at_fault() {
    for is_lasting in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = damaged_for_one(&folder).await;
        let decide = async {
            until_doubted(&checkpoints.inner).await;
            if !is_lasting {
                flip_bit(&shard_path(&folder, Unit(1)));
            }
            let location = checkpoints.inner.config.store.location();
            location.dismiss_doubt(id(5), "segment-001").await.unwrap();
        };
        let (loaded, ()) = tokio::join!(checkpoints.load(Unit(1), id(5), || {}), decide);
        match loaded {
            Ok(state) if !is_lasting => assert_eq!(state, whole(Unit(1))),
            Err(CheckpointError::Misread { .. }) if is_lasting => {}
            other => panic!("{is_lasting}: {other:?}"),
        }
        let listed = listed(&checkpoints.inner).await;
        assert!(listed.is_usable() && listed.doubted().next().is_none());
    }
}

#[tokio::test]
async fn tokenizer_is_kept_with_the_first_complete_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let inner = of_folder(&folder).inner;
    let description = folder.path().join("data.json");
    // It cannot be read now. Training continues without it, and it is tried again later.
    std::fs::write(&description, "{").unwrap();
    let keep = || {
        inner
            .config
            .tokenizer
            .keep(inner.config.store.location(), &inner.config.rate_limit)
    };
    keep().await;
    let kept = folder.path().join("small/published");
    assert!(!kept.exists());
    let place = folder.path().join("data.tokenizer");
    std::fs::create_dir(&place).unwrap();
    for (name, content) in varuna_dataset::Tokenizer::Byte.published(16).unwrap() {
        std::fs::write(place.join(name), content).unwrap();
    }
    let sidecar = serde_json::json!({
        "tokenizer": "tokenizer.json", "tokenizerFiles": "data.tokenizer", "vocabulary": 257, "endOfDocument": 255,
        "tokens": 1, "documents": 1, "sha256": "",
    });
    std::fs::write(&description, sidecar.to_string()).unwrap();
    let beside = put_all(&inner, id(1))
        .await
        .into_iter()
        .filter_map(Result::unwrap);
    for keeps in beside {
        keeps.await.unwrap();
    }
    assert!(kept.join("tokenizer.json").exists());
    let config = std::fs::read_to_string(kept.join("config.json")).unwrap();
    assert!(config.contains(r#""eos_token_id":255"#), "{config}");
}

#[test]
fn a_units_state_survives_its_shard_bit_for_bit() {
    for (tied_head, moments) in [
        (true, Moments::Adam),
        (false, Moments::Adam),
        (true, Moments::Momentum),
    ] {
        let model = Transformer {
            layers: 2,
            tied_head,
            ..SMALL
        };
        for unit in model.layout().all_units() {
            let n = (1 + moments.of_parameter()) * usize::try_from(model.unit_parameter_count(unit)).unwrap();
            let scaling = LossScaling::Dynamic {
                initial: ScaleFactor::two_to(10),
                minimum: ScaleFactor::ONE,
                window: 9,
            };
            let counted = [false, false, true, false];
            let progress = counted
                .iter()
                .fold(OptimizerProgress::initial(&scaling), |p, o| p.after(*o, &scaling));
            let whole = UnitState {
                progress,
                data: (0..n).map(|i| (i as f32).sin() * 1e-3).collect(),
            };
            let copy = Arc::<Buffers>::default().hold(whole.progress, whole.data.clone());
            let module = Module::from(model.clone());
            let shard = to_shard(&module, &scaling, (model.layout(), moments), (id(9), unit), copy);
            let file = shard.encode().unwrap();
            let back = Shard::decode(id(9), &unit_name(model.layout(), unit), &file).unwrap();
            assert_eq!(
                from_shard(&module, &scaling, (model.layout(), unit), back).unwrap(),
                whole
            );
        }
    }
}

#[tokio::test]
async fn stored_state_is_not_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = of_folder(&folder);
    let inner = Arc::clone(&checkpoints.inner);
    let files = || {
        let place = folder
            .path()
            .join("small")
            .join(varuna_checkpoint::folder_name(id(5)));
        let files = std::fs::read_dir(place).unwrap();
        // If a file is written again, the new file has the same name and another inode.
        let files = files.map(|f| f.unwrap()).map(|f| (f.file_name(), f.ino()));
        files.collect::<std::collections::BTreeMap<_, _>>()
    };
    assert!(put_all(&inner, id(5)).await.iter().all(Result::is_ok));
    let first = files();
    assert_eq!(first.len(), SMALL.layout().units() + 1);
    assert!(put_all(&inner, id(5)).await.iter().all(Result::is_ok));
    assert_eq!(files(), first);
    // A checkpoint that was deleted because of damage is written again, although this worker has written it before.
    inner
        .config
        .store
        .location()
        .mark_damaged(id(5), "for the test")
        .await
        .unwrap();
    assert!(inner.config.store.location().discard(id(5)).await.unwrap());
    assert!(put_all(&inner, id(5)).await.iter().all(Result::is_ok));
    assert!(files().keys().eq(first.keys()));
    assert!(listed(&inner).await.is_usable());
}

/// A unit's state, as the engine holds it.
fn held(unit: Unit) -> UnitBuffers {
    let backend = Backend::of_processor(Numerics::FP32);
    UnitBuffers::new(&Module::from(SMALL).unit(unit), backend, Moments::Adam).unwrap()
}

/// Copies a unit's state as the threads do. `is_slow`: the optimizer has already waited too long for the copy.
fn copy(inner: &Inner, id: StateId, unit: Unit, is_slow: bool) {
    let mut state = held(unit);
    let read = state.snapshot().unwrap();
    if is_slow {
        state.ask_readers();
    }
    assert!(inner.admit(id, unit, read.elements()));
    inner.copy(id, unit, read);
}

/// Uploads the copies.
async fn upload_copied(inner: &Arc<Inner>) {
    loop {
        let next = inner.backlog.lock().next();
        let Some((id, unit, copy)) = next else {
            return;
        };
        Arc::clone(inner).upload_one(id, unit, copy).await.unwrap();
    }
}

#[tokio::test]
async fn slow_checkpoint_is_given_up_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let inner = without_threads(&folder, Box::new(|_, _| None));
    let given_up = || inner.given_up.load(Ordering::Relaxed);
    copy(&inner, id(3), Unit(1), true);
    assert_eq!(given_up(), 1);
    assert!(inner.backlog.lock().is_empty());
    for unit in [Unit(1), Unit(2)] {
        copy(&inner, id(4), unit, false);
    }
    upload_copied(&inner).await;
    assert!(inner.backlog.lock().is_empty());
    let saved = folder
        .path()
        .join("small")
        .join(varuna_checkpoint::folder_name(id(4)));
    assert_eq!(std::fs::read_dir(saved).unwrap().count(), 2);
    assert_eq!(given_up(), 1);
}

#[test]
fn worker_without_memory_is_busy_until_another_plan() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = within(&folder, Box::new(|_, _| Some(0)));
    let inner = &checkpoints.inner;
    assert!(!checkpoints.is_busy());
    for given_up in 1..=2 {
        // The same state may be ordered again, by a recovery or for the last step.
        copy(inner, id(3), Unit(1), true);
        assert_eq!(inner.given_up.load(Ordering::Relaxed), given_up);
        assert!(checkpoints.is_busy() && inner.backlog.lock().is_empty());
        checkpoints.give_memory_back();
        assert!(!checkpoints.is_busy());
    }
}

/// It would keep its copy on the device until the next checkpoint, beside what the next plan needs of the device's memory.
#[test]
fn waiting_unit_is_dropped_when_another_plan_comes() {
    let folder = tempfile::tempdir().unwrap();
    let ((ask, asked), (end, ended)) = (channel(), channel());
    let no_room = move |_: u64, _: u64| {
        // The test may have heard enough.
        let _ = ask.send(());
        Some(0_u64)
    };
    let checkpoints = within(&folder, Box::new(no_room));
    let inner = Arc::clone(&checkpoints.inner);
    std::thread::spawn(move || {
        copy(&inner, id(3), Unit(1), false);
        end.send(()).unwrap();
    });
    asked.recv_timeout(PATIENCE).unwrap();
    checkpoints.give_memory_back();
    ended.recv_timeout(PATIENCE).unwrap();
    let inner = &checkpoints.inner;
    assert_eq!(inner.given_up.load(Ordering::Relaxed), 1);
    assert!(inner.backlog.lock().is_empty() && !checkpoints.is_busy());
    // The same state is ordered again under that plan: it is one of its own.
    copy(inner, id(3), Unit(1), true);
    assert!(checkpoints.is_busy(), "it had no memory");
}

#[test]
fn a_state_of_an_earlier_plan_is_saved_where_it_has_room() {
    let folder = tempfile::tempdir().unwrap();
    let inner = without_threads(&folder, Box::new(|_, _| None));
    let state = held(Unit(1));
    let read = state.snapshot().unwrap();
    assert!(inner.admit(id(3), Unit(1), read.elements()));
    inner.config.buffers.begin_anew();
    inner.copy(id(3), Unit(1), read);
    assert_eq!(inner.given_up.load(Ordering::Relaxed), 0);
    assert!(inner.backlog.lock().next().is_some());
}

async fn defect() {
    panic!("a defect");
}

#[tokio::test]
async fn panic_in_an_upload_gives_its_checkpoint_up() {
    let folder = tempfile::tempdir().unwrap();
    let inner = without_threads(&folder, Box::new(|_, _| None));
    assert!(inner.admit(id(3), Unit(1), 1));
    let panicked = tokio::spawn(defect()).await.unwrap_err();
    inner.upload_broke_off(id(3), Unit(1), &panicked);
    assert_eq!(inner.given_up.load(Ordering::Relaxed), 1);
    assert!(inner.backlog.lock().is_empty());
}

#[tokio::test]
async fn an_upload_that_is_cancelled_has_not_panicked() {
    let folder = tempfile::tempdir().unwrap();
    let inner = without_threads(&folder, Box::new(|_, _| None));
    assert!(inner.admit(id(3), Unit(1), 1));
    let upload = tokio::spawn(std::future::pending::<()>());
    upload.abort();
    inner.upload_broke_off(id(3), Unit(1), &upload.await.unwrap_err());
    assert_eq!(inner.given_up.load(Ordering::Relaxed), 0);
    assert!(!inner.backlog.lock().is_empty());
}

#[test]
fn checkpoints_are_made_after_panics_in_uploads() {
    let folder = tempfile::tempdir().unwrap();
    let ((end, ended), calls) = (channel(), AtomicU64::new(0));
    // Asked at the end of each upload, when the copy's memory is given back. As many panics as there are tasks that upload.
    let room = move |_: u64, _: u64| {
        // The test may have ended.
        let _ = end.send(());
        let is_sound = calls.fetch_add(1, Ordering::Relaxed) >= UPLOADS as u64;
        assert!(is_sound, "a defect");
        None
    };
    let checkpoints = within(&folder, Box::new(room));
    let inner = &checkpoints.inner;
    for step in 1..=1 + UPLOADS as u64 {
        let copy = copy_of(inner, whole(Unit(0)));
        {
            let mut backlog = inner.backlog.lock();
            assert!(backlog.admit(id(step), Unit(0)) && backlog.admit(id(step), Unit(1)));
            backlog.add(id(step), Unit(0), copy);
        }
        inner.added.notify_one();
        ended.recv_timeout(PATIENCE).unwrap();
    }
}
