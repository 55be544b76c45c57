use super::*;
use crate::test_job::job;
use varuna_plan::Generation;
use varuna_plan::state::Chain;

/// The checkpoints of a job that saves every ten steps, or at this interval in seconds.
fn checkpoints(interval: &str) -> Checkpoints {
    let job = job(Some(&format!("uri: nowhere, {interval}")));
    let (inbound, _) = tokio::sync::mpsc::channel(1);
    Checkpoints::start(job.checkpoint, None, &inbound)
}

fn listed(steps: &[u64], failing: Option<&str>) -> CheckpointListing {
    let state = |step: &u64| StateId {
        run_gen: Generation(1),
        step: Step(*step),
        chain: Chain(*step),
    };
    CheckpointListing {
        answered: true,
        usable: steps.iter().map(state).collect(),
        damaged: vec![],
        newest_generation: Generation(1),
        failing: failing.map(str::to_owned),
        ..CheckpointListing::default()
    }
}

fn said(events: &[CheckpointEvent]) -> Vec<String> {
    let word = |event: &CheckpointEvent| match event {
        CheckpointEvent::Checkpointed { step, .. } => format!("checkpoint of {step}"),
        CheckpointEvent::CheckpointsFail { why, .. } => format!("fails: {why}"),
        CheckpointEvent::CheckpointsWork { .. } => "works".to_owned(),
        CheckpointEvent::LastCheckpointAwaited { step, why } => format!("awaits {step}: {why:?}"),
        CheckpointEvent::CheckpointStale { steps_behind, .. } => format!("{steps_behind} behind"),
        CheckpointEvent::ShardMisread { unit, by, .. } => format!("{unit} misread by {by}"),
        CheckpointEvent::CheckpointsTaken { by } => format!("taken by {by}"),
    };
    events.iter().map(word).collect()
}

#[test]
fn each_change_of_the_store_is_said_once() {
    let mut own = checkpoints("intervalSteps: 10");
    assert!(own.usable().is_none(), "nothing is known yet");
    let mut update = |steps: &[u64], failing, at| said(&own.update(listed(steps, failing), Step(at)));
    assert_eq!(update(&[0, 10], None, 12), ["checkpoint of 10"]);
    assert!(update(&[0, 10], None, 40).is_empty(), "three intervals behind");
    assert_eq!(update(&[0, 10], None, 41), ["31 behind"]);
    assert!(update(&[0, 10], None, 60).is_empty(), "said once");
    assert_eq!(update(&[10], Some("full"), 61), ["fails: full"]);
    assert!(update(&[10], Some("full"), 62).is_empty());
    assert_eq!(update(&[10, 60], None, 63), ["checkpoint of 60", "works"]);
    assert_eq!(update(&[10, 60], None, 91), ["31 behind"], "stale anew");
    assert!(own.usable().is_some_and(|listing| listing.fresh));
    assert_eq!(
        own.taken("other".into()).map(|e| said(&[e])),
        Some(vec!["taken by other".into()])
    );
    assert!(own.taken("third".into()).is_none());
}

#[test]
fn failing_uploads_are_said_once_with_worker_and_place() {
    let mut own = checkpoints("intervalSteps: 10");
    own.update(listed(&[10], None), Step(12));
    let full = Some("checkpoint store: No space left on device");
    let (first, second) = (WorkerId(1), WorkerId(2));
    let why = "w1 cannot upload to nowhere: checkpoint store: No space left on device";
    let failed = own.note_uploads(first, "w1", full);
    assert_eq!(said(failed.as_slice()), [format!("fails: {why}")]);
    assert_eq!(own.note_uploads(first, "w1", full), None, "each heartbeat has it");
    assert_eq!(own.note_uploads(second, "w2", full), None);
    let shown = own.status(Step(12)).and_then(|status| status.failing);
    assert_eq!(shown, Some(format!("{why} (and another worker)")));
    assert!(!own.store_fails(), "it answers");
    assert!(
        own.update(listed(&[10], None), Step(13)).is_empty(),
        "a full disk can be listed"
    );
    assert_eq!(
        own.note_uploads(first, "w1", None),
        None,
        "the other one still fails"
    );
    let works = own.note_uploads(second, "w2", None);
    assert_eq!(said(works.as_slice()), ["works"]);
    assert_eq!(own.health().and_then(|health| health.failing), None);
}

#[test]
fn a_long_wait_for_the_last_checkpoint_is_said() {
    let mut own = checkpoints("intervalSteps: 10");
    own.update(listed(&[10], None), Step(20));
    own.note_uploads(WorkerId(1), "w1", Some("full"));
    let (end, waited) = (Step(20), Instant::now().checked_sub(AWAITED_AFTER));
    assert_eq!(own.note_end(Step(19), end), None);
    assert_eq!(own.note_end(end, end), None, "it has just begun");
    own.last_awaited.as_mut().unwrap().since = waited.expect("the machine has run for so long");
    let awaits = own.note_end(end, end);
    let why = "awaits 20: Some(\"w1 cannot upload to nowhere: full\")";
    assert_eq!(said(awaits.as_slice()), [why]);
    assert_eq!(own.note_end(end, end), None, "said once");
    let done = own.update(listed(&[10, 20], None), end);
    assert_eq!(said(&done), ["checkpoint of 20", "works"]);
    assert!(own.note_end(end, end).is_none() && own.last_awaited.is_none());
}

#[test]
fn another_jobs_checkpoint_is_not_told_as_the_runs_own() {
    let mut own = checkpoints("intervalSteps: 10");
    let origin = CheckpointListing {
        origin: listed(&[20], None).usable.first().copied(),
        ..listed(&[20], None)
    };
    assert!(own.update(origin, Step(20)).is_empty());
    let newest = own.status(Step(20)).and_then(|status| status.newest_step);
    assert_eq!(newest, Some(Step(20)), "the run can resume from it");
    assert_eq!(
        said(&own.update(listed(&[30], None), Step(30))),
        ["checkpoint of 30"]
    );
}

#[test]
fn a_checkpoint_that_was_given_up_is_not_the_newest() {
    let mut own = checkpoints("intervalSteps: 10");
    own.update(listed(&[10, 20], None), Step(20));
    let newest = |own: &Checkpoints| own.status(Step(20)).and_then(|status| status.newest_step);
    assert_eq!(newest(&own), Some(Step(20)));
    own.set_given_up(listed(&[20], None).usable);
    assert_eq!(newest(&own), Some(Step(10)));
    assert_eq!(own.health().and_then(|health| health.newest), Some(Step(10)));
    assert!(own.update(listed(&[10, 20], None), Step(20)).is_empty());
    let behind = own.update(listed(&[10, 20], None), Step(41));
    assert_eq!(said(&behind), ["31 behind"]);
    let known = own.usable().unwrap().complete;
    assert_eq!(known.len(), 2, "retention sees it");
}

#[test]
fn what_is_known_from_before_a_listing_is_stale_not_failed() {
    let mut own = checkpoints("intervalSteps: 10");
    own.update(listed(&[10], None), Step(10));
    let before = CheckpointListing {
        under_way: true,
        ..listed(&[10], None)
    };
    assert!(own.update(before, Step(10)).is_empty());
    let known = own.usable().unwrap();
    assert_eq!((known.fresh, known.complete.len()), (false, 1));
    own.update(listed(&[10], None), Step(10));
    assert!(own.usable().unwrap().fresh);
}

#[test]
fn by_the_clock_a_checkpoint_is_stale_after_three_intervals() {
    let mut own = checkpoints("intervalSeconds: 60");
    own.update(listed(&[10], None), Step(10));
    for (seconds, behind) in [(170, vec![]), (190, vec!["1 behind".to_owned()])] {
        let since = Instant::now().checked_sub(Duration::from_secs(seconds));
        own.newest_since = since.expect("the machine has run for so long");
        assert_eq!(said(&own.update(listed(&[10], None), Step(11))), behind);
    }
}
