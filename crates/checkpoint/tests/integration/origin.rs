//! A job that begins with another job's checkpoint.

use std::path::Path;
use varuna_api::{Job, parse_job};
use varuna_checkpoint::{CheckpointError, RateLimit, Shard, ShardTensor, Store, unit_name};
use varuna_plan::state::Chain;
use varuna_plan::{Generation, StateId, Step};

/// A job of 100 steps with this text for `from`, if there is any.
fn job(folder: &Path, name: &str, from: &str) -> Job {
    of_width(16, folder, name, from)
}

fn of_width(width: u32, folder: &Path, name: &str, from: &str) -> Job {
    let uri = folder.display();
    parse_job(&format!(
        "apiVersion: varuna.dev/v1alpha1
kind: VarunaJob
metadata: {{name: {name}}}
spec:
  model: {{layers: 2, hiddenSize: {width}, heads: 2, sequenceLength: 8, vocabularySize: 64}}
  data: {{path: nowhere}}
  training: {{globalBatchSize: 8, steps: 100, optimizer: {{learningRate: 0.001}}}}
  checkpoint: {{uri: {uri}, intervalSteps: 5{from}}}
"
    ))
    .unwrap()
}

fn store(job: &Job) -> Store {
    Store::of_job(job, "").unwrap().unwrap()
}

fn state(step: u64) -> StateId {
    StateId {
        run_gen: Generation(3),
        step: Step(step),
        chain: Chain(step + 7),
    }
}

/// A shard whose parameters are ones, first moments twos, and second moments threes.
fn shard(store: &Store, id: StateId, unit: varuna_plan::Unit) -> Shard {
    Shard {
        id,
        unit: unit_name(store.layout(), unit),
        adam_steps: id.step.0,
        loss_scale: None,
        failed_in_a_row: 2,
        moments: varuna_plan::Moments::Adam,
        tensors: vec![ShardTensor {
            name: "w".into(),
            shape: vec![2],
            whole: None,
        }],
        data: vec![1.0, 1.0, 2.0, 2.0, 3.0, 3.0],
    }
}

async fn save(store: &Store, step: u64) {
    let id = state(step);
    for unit in store.layout().all_units() {
        let file = shard(store, id, unit).encode().unwrap();
        let limit = RateLimit::default();
        store.put_shard(id, unit, file, &limit).await.unwrap();
    }
    assert!(store.complete(id).await.unwrap());
}

#[tokio::test]
async fn origin_stays_fixed_while_the_other_job_continues() {
    let folder = tempfile::tempdir().unwrap();
    let base = store(&job(folder.path(), "base", ""));
    save(&base, 10).await;
    save(&base, 20).await;
    let own = store(&job(folder.path(), "tuned", ", from: {job: base}"));
    let origin = own.origin().await.unwrap().unwrap();
    assert_eq!((origin.state, origin.begins_with()), (state(20), state(20)));
    save(&base, 30).await;
    let newest = own.origin().await.unwrap().unwrap();
    assert_eq!(newest.state, state(30), "nothing is settled yet");
    assert_eq!(own.settle_origin().await.unwrap(), Some(newest.clone()));
    save(&base, 40).await;
    for found in [own.origin().await, own.settle_origin().await] {
        assert_eq!(found.unwrap(), Some(newest.clone()));
    }
    assert!(
        own.location().list().await.unwrap().is_empty(),
        "nothing is copied"
    );
    // From the checkpoint of a given step.
    let of_ten = store(&job(folder.path(), "ten", ", from: {job: base, step: 10}"));
    assert_eq!(of_ten.origin().await.unwrap().unwrap().state, state(10));
    assert_eq!(base.settle_origin().await.unwrap(), None);
}

#[tokio::test]
async fn shards_are_read_where_they_lie_whole_or_the_parameters_alone() {
    let folder = tempfile::tempdir().unwrap();
    let base = store(&job(folder.path(), "base", ""));
    save(&base, 10).await;
    let whole = store(&job(folder.path(), "whole", ", from: {job: base}"));
    let weights = store(&job(
        folder.path(),
        "weights",
        ", from: {job: base, weightsOnly: true}",
    ));
    let unit = whole.layout().all_units().next().unwrap();
    let id = whole.settle_origin().await.unwrap().unwrap().begins_with();
    let expected = shard(&whole, state(10), unit);
    assert_eq!(whole.load(id, unit, || {}).await.unwrap(), expected);
    let id = weights.settle_origin().await.unwrap().unwrap().begins_with();
    assert_eq!((id.step, id.run_gen), (Step(0), Generation(0)));
    assert_ne!(id, StateId::INITIAL, "that is made from the seed");
    let expected = Shard {
        id,
        adam_steps: 0,
        failed_in_a_row: 0,
        data: vec![1.0, 1.0, 0.0, 0.0, 0.0, 0.0],
        ..expected
    };
    assert_eq!(weights.load(id, unit, || {}).await.unwrap(), expected);
    // Neither job has this state. Then the job has a checkpoint of its own, which is used.
    assert!(weights.load(state(10), unit, || {}).await.is_err());
    save(&weights, 5).await;
    let own = weights.load(state(5), unit, || {}).await.unwrap();
    assert_eq!(own, shard(&weights, state(5), unit));
}

#[tokio::test]
async fn what_a_job_cannot_begin_with_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let base = store(&job(path, "base", ""));
    let refused = async |job: &Job| store(job).origin().await.unwrap_err().to_string();
    let of = |from: &str| job(path, "own", &format!(", from: {{{from}}}"));
    let none = refused(&of("job: base")).await;
    assert!(
        none.contains("there is no complete checkpoint: it has none at all"),
        "{none}"
    );
    for step in [10, 100] {
        save(&base, step).await;
    }
    let missing = refused(&of("job: base, step: 20")).await;
    let expected = "no complete checkpoint of step 20: it has those of steps 10, 100";
    assert!(missing.contains(expected), "{missing}");
    assert!(missing.contains("the checkpoint of job base in "), "{missing}");
    let late = refused(&of("job: base")).await;
    let expected =
        "is of step 100, and this job ends with step 100: raise training.steps, or set weightsOnly";
    assert!(late.contains(expected), "{late}");
    assert!(
        store(&of("job: base, weightsOnly: true")).origin().await.is_ok(),
        "begins at step 0"
    );
    let wider = refused(&of_width(32, path, "own", ", from: {job: base}")).await;
    let expected = "it is of job base, and this job's model is another one: hiddenSize 32, needed 16";
    assert!(wider.ends_with(expected), "{wider}");
}

#[tokio::test]
async fn with_another_optimizer_a_job_takes_the_parameters_alone() {
    let folder = tempfile::tempdir().unwrap();
    let base = store(&job(folder.path(), "base", ""));
    save(&base, 10).await;
    let with_sgd = |from: &str| {
        let mut job = job(folder.path(), "own", from);
        job.training.optimizer.rule = varuna_api::UpdateRule::Sgd { momentum: 0.9 };
        store(&job)
    };
    let refused = with_sgd(", from: {job: base}")
        .origin()
        .await
        .unwrap_err()
        .to_string();
    let expected = "it is of job base with the optimizer adamw, this job's is sgd: spec.training.optimizer.kind adamw is needed, or";
    assert!(refused.contains(expected), "{refused}");
    let mut same = job(folder.path(), "base", "");
    same.training.optimizer.rule = varuna_api::UpdateRule::Sgd { momentum: 0.9 };
    let same = store(&same);
    let listed = same.location().list().await.unwrap();
    let refused = same.check(&listed[0]).await.unwrap_err().to_string();
    assert!(refused.contains(expected), "{refused}");
    let own = with_sgd(", from: {job: base, weightsOnly: true}");
    let id = own.settle_origin().await.unwrap().unwrap().begins_with();
    let unit = own.layout().all_units().next().unwrap();
    let taken = own.load(id, unit, || {}).await.unwrap();
    assert_eq!(
        (taken.moments, taken.data),
        (own.moments(), vec![1.0, 1.0, 0.0, 0.0])
    );
}

#[tokio::test]
async fn a_job_that_began_elsewhere_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let base = store(&job(folder.path(), "base", ""));
    save(&base, 10).await;
    let begun = store(&job(folder.path(), "own", ", from: {job: base}"));
    begun.settle_origin().await.unwrap();
    let other = store(&job(
        folder.path(),
        "own",
        ", from: {job: base, weightsOnly: true}",
    ));
    let said = other.origin().await.unwrap_err().to_string();
    assert!(
        said.contains("this job began with step-00000010-g3-") && said.contains("own/origin.json"),
        "{said}"
    );
}

#[tokio::test]
async fn only_a_jobs_own_checkpoints_must_be_of_its_data() {
    let folder = tempfile::tempdir().unwrap();
    let on = |data: &str, job: &Job| Store::of_job(job, data).unwrap().unwrap();
    let base = job(folder.path(), "base", "");
    save(&on("old", &base), 10).await;
    let unit = on("old", &base).layout().all_units().next().unwrap();
    let listed = on("old", &base).location().list().await.unwrap();
    for same in [on("old", &base), on("", &base)] {
        assert!(same.check(&listed[0]).await.is_ok());
        assert!(same.load(state(10), unit, || {}).await.is_ok());
    }
    let other = on("new", &base);
    let checked = other.check(&listed[0]).await.map(drop);
    let loaded = other.load(state(10), unit, || {}).await.map(drop);
    for refused in [checked, loaded] {
        assert!(
            matches!(&refused, Err(CheckpointError::OtherData { why, .. }) if why.contains("spec.data")),
            "{refused:?}"
        );
    }
    // A job that begins with another job's checkpoint has its own data.
    for from in [", from: {job: base}", ", from: {job: base, weightsOnly: true}"] {
        let name = if from.contains("weightsOnly") {
            "weights"
        } else {
            "whole"
        };
        let tuned = on("new", &job(folder.path(), name, from));
        let id = tuned.settle_origin().await.unwrap().unwrap().begins_with();
        assert!(tuned.load(id, unit, || {}).await.is_ok(), "{from}");
    }
}

#[tokio::test]
async fn own_checkpoints_say_which_settings_have_changed() {
    let folder = tempfile::tempdir().unwrap();
    let before = job(folder.path(), "base", "");
    save(&Store::of_job(&before, "data").unwrap().unwrap(), 10).await;
    assert_eq!(store(&before).other_settings(state(10)).await.unwrap(), None);
    let mut after = before.clone();
    after.training.seed += 1;
    let said = store(&after).other_settings(state(10)).await.unwrap();
    assert!(said.is_some_and(|said| said.starts_with("spec.training.seed was ")));
}
