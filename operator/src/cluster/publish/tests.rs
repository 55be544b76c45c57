use super::*;
use k8s_openapi::jiff::Timestamp;
use varuna_api::crd::{CheckpointStatus, PlanStatus, Time, TimeSpent};
use varuna_api::{JobPhase, Reason};

fn note(reason: Reason, text: &str) -> EventNote {
    EventNote {
        warning: false,
        lasting: false,
        reason,
        text: text.into(),
    }
}

fn job() -> JobIdentity {
    JobIdentity {
        name: "j".into(),
        namespace: "n".into(),
        uid: "u".into(),
    }
}

fn status(step: i64) -> Status {
    Status {
        step: Some(step),
        ..Status::default()
    }
}

/// As `Publisher::report` does.
fn reported(all: &mut Publications, now: Instant, step: i64) {
    let entry = all.jobs.entry("u".into());
    let publication = &mut entry.or_insert_with(|| (job(), Publication::default())).1;
    publication.status = Some(status(step));
    publication.is_dirty = true;
    all.schedule("u", now + DEBOUNCE);
}

#[test]
fn the_latest_status_wins_and_one_is_written_a_second() {
    let (mut all, start) = (Publications::default(), Instant::now());
    for step in 1..=5 {
        reported(&mut all, start, step);
    }
    assert_eq!(all.take_due(start).err(), Some(Some(start + DEBOUNCE)), "not yet");
    let due = start + DEBOUNCE;
    let work = all.take_due(due).ok().unwrap();
    assert_eq!(work.status, Some(status(5)));
    assert_eq!(all.take_due(due).err(), Some(None), "one write for all");
    // What comes while it is written waits for its turn.
    reported(&mut all, due, 6);
    assert_eq!(all.take_due(due + DEBOUNCE).err(), Some(None));
    let written = due + DEBOUNCE / 2;
    all.finish(written, &work, &Ok(Some(7)));
    assert_eq!(all.take_due(written).err(), Some(Some(written + DEBOUNCE)));
    let work = all.take_due(written + DEBOUNCE).ok().unwrap();
    assert_eq!(work.status, Some(status(6)));
    all.finish(written + DEBOUNCE, &work, &Ok(Some(8)));
    assert_eq!(
        all.take_due(written + 10 * DEBOUNCE).err(),
        Some(None),
        "all is written"
    );
}

#[test]
fn sentences_wait_for_what_follows_and_no_status_waits_for_them() {
    let (mut all, start) = (Publications::default(), Instant::now());
    reported(&mut all, start, 1);
    {
        let publication = &mut all.jobs.get_mut("u").unwrap().1;
        publication.events.push(note(Reason::Run, "a"));
        publication.events_due = Some(start + EVENTS_DEBOUNCE);
    }
    all.schedule("u", start + EVENTS_DEBOUNCE);
    let work = all.take_due(start + DEBOUNCE).ok().unwrap();
    assert_eq!((work.status.as_ref(), work.events.len()), (Some(&status(1)), 0));
    all.finish(start + DEBOUNCE, &work, &Ok(Some(1)));
    let due = start + EVENTS_DEBOUNCE;
    assert_eq!(all.take_due(start + DEBOUNCE).err(), Some(Some(due)));
    let work = all.take_due(due).ok().unwrap();
    assert_eq!((work.status.as_ref(), work.events.len()), (None, 1));
    all.finish(due, &work, &Ok(None));
    assert_eq!(all.take_due(due).err(), Some(None));
}

#[test]
fn a_write_that_fails_is_tried_again_less_and_less_often() {
    let (mut all, mut now) = (Publications::default(), Instant::now());
    reported(&mut all, now, 1);
    let mut waits = vec![];
    for _ in 0..6 {
        let due = all.take_due(now).err().flatten().unwrap();
        waits.push((due - now).as_secs());
        now = due;
        let work = all.take_due(now).ok().unwrap();
        assert_eq!(work.status, Some(status(1)));
        let late = kube::Error::Service("late".into());
        all.finish(now, &work, &Err(late));
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 30]);
}

#[test]
fn time_that_passes_is_no_news_and_everything_else_is() {
    let at = |until: i64, phase| {
        let until = Timestamp::from_second(until).unwrap();
        Status {
            time: Some(TimeSpent::since(Time(until))),
            goodput: Some(format!("{until}")),
            phase: Some(phase),
            ..Status::default()
        }
    };
    let before = at(1, JobPhase::Training);
    assert_eq!(news(&before, &at(2, JobPhase::Training)), News::Nothing);
    assert_eq!(news(&before, &at(2, JobPhase::Waiting)), News::Facts);
    let counted = Status {
        time: before.time.clone(),
        ..Status::default()
    };
    assert_eq!(news(&Status::default(), &counted), News::Facts);
}

/// A job that trains, at this step.
fn trains(step: i64) -> Status {
    let plan = PlanStatus {
        generation: 3,
        observed_step_ms: Some(100 + step),
        ..PlanStatus::default()
    };
    let stale = Condition {
        type_: ConditionType::CheckpointStale.to_string(),
        status: "False".into(),
        reason: Reason::Fresh.to_string(),
        message: format!("the newest checkpoint is of step {step}"),
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
        observed_generation: Some(1),
    };
    let checkpoint = CheckpointStatus {
        newest_step: Some(step),
        ..CheckpointStatus::default()
    };
    Status {
        phase: Some(JobPhase::Training),
        conditions: vec![stale],
        plan: Some(plan),
        progress: Some(format!("{step}/100")),
        progressed_at: Some(Time(Timestamp::from_second(step).unwrap())),
        tokens_per_second: Some(step),
        eta: Some(format!("{step}s")),
        loss: Some(format!("{step}")),
        skipped_steps: Some(step),
        loss_scale: Some(step),
        checkpoint: Some(checkpoint),
        ..status(step)
    }
}

#[test]
fn steps_are_figures_and_what_a_decision_looks_at_is_more() {
    let before = trains(1);
    assert_eq!(news(&before, &trains(2)), News::Figures);
    let changes: [fn(&mut Status); 6] = [
        |s| s.newest_pod += 1,
        |s| s.steps = Some(7),
        |s| s.workers += 1,
        |s| s.save_ordered = Some("now".into()),
        |s| s.plan.as_mut().unwrap().generation += 1,
        |s| s.conditions[0].type_ = ConditionType::Complete.to_string(),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut after = trains(2);
        change(&mut after);
        assert_eq!(news(&before, &after), News::Facts, "change {number}");
    }
}

#[test]
fn another_phase_is_written_before_figures() {
    let in_phase = |phase, step| Status {
        phase: Some(phase),
        ..status(step)
    };
    let before = in_phase(JobPhase::Training, 1);
    assert!(!is_awaited(&before, &in_phase(JobPhase::Training, 2)));
    assert!(is_awaited(&before, &in_phase(JobPhase::Complete, 1)));
    let recovers = in_phase(JobPhase::Recovering, 1);
    assert!(!is_awaited(&before, &recovers), "it may train again in a moment");
    assert!(is_awaited(&recovers, &in_phase(JobPhase::Waiting, 1)));
}
