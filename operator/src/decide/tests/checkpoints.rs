//! Jobs with checkpoints: suspended, refused, reported.

use super::*;
use k8s_openapi::jiff::Timestamp;
use varuna_api::crd::{CheckpointStatus, PlanStatus, Time};

#[test]
fn suspension_waits_for_a_checkpoint() {
    let mut observed = observed(2);
    let text = "  suspend: true\n  checkpoint: {uri: s3://b, intervalSteps: 10}\n";
    observed.job.spec = Ok(spec(2, text));
    let at = |step, newest, failing: Option<&str>| ObservedRun {
        checkpoints: Some(RunCheckpoints {
            newest_step: Some(newest),
            newest_at: None,
            failing: failing.map(str::to_owned),
            stale: false,
        }),
        ..training(step)
    };
    observed.run = Some(at(15, 10, None));
    let desired = decide(&observed);
    assert_eq!(desired.coordinator, CoordinatorGoal::RunAndSave);
    assert_eq!(condition(&desired, ConditionType::Suspended).reason, "Saving");
    observed.job.status = desired.status;
    let mut later = observed.clone();
    // Steps after the requested checkpoint do not count, because otherwise the run would never end.
    later.run = Some(at(22, 20, None));
    assert_eq!(decide(&later).coordinator, CoordinatorGoal::Stop);
    later.run = Some(at(18, 10, Some("403")));
    assert_eq!(
        decide(&later).coordinator,
        CoordinatorGoal::Stop,
        "none will come"
    );
    later.run = Some(at(18, 10, None));
    assert_eq!(decide(&later).coordinator, CoordinatorGoal::RunAndSave);
    later.now += suspend::WAIT_MAX_SECONDS;
    assert_eq!(decide(&later).coordinator, CoordinatorGoal::Stop, "none has come");
    later.job.spec = Ok(spec(2, &text.replace("true", "false")));
    let resumed = decide(&later);
    assert_eq!(
        (resumed.coordinator, resumed.status.suspending),
        (CoordinatorGoal::Run, None)
    );
}

/// A job that is to be suspended and has trained 15 steps; its newest checkpoint has 10.
fn suspended_at_15(run: ObservedRun) -> Observed {
    let mut observed = observed(2);
    observed.job.spec = Ok(spec(2, &format!("  suspend: true\n{SAVES}")));
    let status = &mut observed.job.status;
    status.step = Some(15);
    status.plan = Some(PlanStatus {
        generation: 1,
        ..PlanStatus::default()
    });
    status.checkpoint = Some(CheckpointStatus {
        newest_step: Some(10),
        ..CheckpointStatus::default()
    });
    observed.run = Some(run);
    observed
}

#[test]
fn suspension_in_a_pause_waits_for_a_checkpoint() {
    let modes = [
        RunMode::Starting,
        RunMode::Settling,
        RunMode::Launching,
        RunMode::Recovering,
        RunMode::Persisting,
    ];
    let pauses = modes.map(|mode| run(mode, 1, 0));
    // Another coordinator has just taken over, and has not reported yet.
    for pause in pauses.into_iter().chain([ObservedRun::default()]) {
        let observed = suspended_at_15(pause);
        let saving = decide(&observed);
        assert_eq!(saving.coordinator, CoordinatorGoal::RunAndSave, "{observed:?}");
        assert_eq!(saving.status.suspending.as_ref().unwrap().step, 15);
        let mut late = carried_out(&observed, &saving);
        late.now += suspend::WAIT_MAX_SECONDS;
        assert_eq!(
            decide(&late).coordinator,
            CoordinatorGoal::Stop,
            "none has come: {late:?}"
        );
        let mut enough = observed;
        enough.job.status.checkpoint.as_mut().unwrap().newest_step = Some(15);
        assert_eq!(decide(&enough).coordinator, CoordinatorGoal::Stop, "{enough:?}");
    }
}

#[test]
fn suspension_does_not_wait_in_vain() {
    let waiting = suspended_at_15(run(RunMode::Waiting, 1, 15));
    let failing = suspended_at_15(ObservedRun {
        checkpoints: Some(RunCheckpoints {
            failing: Some("403".into()),
            ..RunCheckpoints::default()
        }),
        ..run(RunMode::Recovering, 1, 15)
    });
    let mut untrained = suspended_at_15(run(RunMode::Launching, 1, 0));
    untrained.job.status = Status::default();
    for observed in [waiting, failing, untrained] {
        let desired = decide(&observed);
        assert_eq!(desired.coordinator, CoordinatorGoal::Stop, "{observed:?}");
    }
}

#[test]
fn job_without_checkpoint_is_not_suspended() {
    let mut observed = observed(2);
    let text = "  suspend: true\n  checkpoint: {uri: s3://b, intervalSteps: 10}\n";
    observed.job.spec = Ok(spec(2, text));
    let at = |newest, failing: Option<&str>| ObservedRun {
        checkpoints: Some(RunCheckpoints {
            newest_step: newest,
            newest_at: None,
            failing: failing.map(str::to_owned),
            stale: false,
        }),
        ..training(15)
    };
    observed.run = Some(at(None, None));
    let saving = decide(&observed);
    assert_eq!(saving.coordinator, CoordinatorGoal::RunAndSave);
    let mut next = carried_out(&observed, &saving);
    let continues = |observed: &Observed, why: &str| {
        let decided = decide(observed);
        assert_eq!(decided.coordinator, CoordinatorGoal::Run, "{why}");
        let suspended = condition(&decided, ConditionType::Suspended);
        assert_eq!(suspended.reason, "WouldLoseState", "{why}");
        decided
    };
    next.run = Some(at(None, Some("403")));
    continues(&next, "the store fails");
    next.run = Some(at(None, None));
    next.now += suspend::WAIT_MAX_SECONDS;
    let late = continues(&next, "none has come in time");
    let mut next = carried_out(&next, &late);
    next.run = Some(at(None, None));
    let still = continues(&next, "the wait does not begin anew");
    let mut next = carried_out(&next, &still);
    next.run = Some(ObservedRun::default());
    continues(&next, "another coordinator has not reported yet");
    next.run = Some(at(Some(20), None));
    assert_eq!(decide(&next).coordinator, CoordinatorGoal::Stop);
    next.run = Some(at(None, Some("403")));
    next.job.spec = Ok(spec(2, &format!("{text}  allowStateLoss: true\n")));
    assert_eq!(decide(&next).coordinator, CoordinatorGoal::Stop);
}

#[test]
fn job_with_a_foreign_location_is_refused_and_retried() {
    let mut observed = observed(2);
    observed.job.spec = Ok(spec(2, "  checkpoint: {uri: s3://b, intervalSteps: 10}\n"));
    observed.run = Some(ObservedRun {
        ended: Some(RunEnd::CheckpointsTaken("default/other".into())),
        ..training(5)
    });
    let desired = decide(&observed);
    let accepted = condition(&desired, ConditionType::Accepted);
    assert_eq!(
        (accepted.status.as_str(), accepted.reason.as_str()),
        ("False", "CheckpointsTaken")
    );
    assert!(
        accepted.message.contains("spec.checkpoint.uri s3://b") && accepted.message.contains("default/other"),
        "{}",
        accepted.message
    );
    assert_eq!(
        (desired.coordinator, desired.create.len()),
        (CoordinatorGoal::Absent, 0)
    );
    let mut later = observed.clone();
    (later.job.status, later.run) = (desired.status, None);
    later.now += 299;
    assert_eq!(decide(&later).coordinator, CoordinatorGoal::Absent);
    later.now += 1;
    assert_eq!(decide(&later).coordinator, CoordinatorGoal::Run);
}

#[test]
fn failing_store_or_old_checkpoint_is_only_reported() {
    let mut observed = observed(2);
    observed.job.spec = Ok(spec(2, "  checkpoint: {uri: s3://b, intervalSteps: 10}\n"));
    let saved = |stale, failing: Option<&str>| {
        Some(RunCheckpoints {
            newest_step: Some(10),
            newest_at: None,
            failing: failing.map(str::to_owned),
            stale,
        })
    };
    for (step, saved, want) in [
        (20, saved(false, None), ("False", "Fresh")),
        (50, saved(true, None), ("True", "NoneForLong")),
        (20, saved(false, Some("403")), ("True", "StoreFails")),
    ] {
        observed.run = Some(ObservedRun {
            checkpoints: saved,
            ..training(step)
        });
        let desired = decide(&observed);
        let stale = condition(&desired, ConditionType::CheckpointStale);
        assert_eq!((stale.status.as_str(), stale.reason.as_str()), want, "{stale:?}");
        assert_eq!(
            (desired.coordinator, desired.status.phase),
            (CoordinatorGoal::Run, Some(JobPhase::Training))
        );
        assert_eq!(desired.status.checkpoint.as_ref().unwrap().newest_step, Some(10));
    }
}

#[test]
fn checkpoint_time_is_when_it_was_first_seen() {
    let at = |second| Time(Timestamp::from_second(second).unwrap());
    let mut observed = observed(2);
    let told = |observed: &mut Observed, newest_step, second: i64| {
        observed.run = Some(ObservedRun {
            checkpoints: Some(RunCheckpoints {
                newest_step,
                newest_at: newest_step.map(|_| at(second)),
                ..RunCheckpoints::default()
            }),
            ..training(20)
        });
        observed.job.status = decide(observed).status;
        observed.job.status.checkpoint.clone().unwrap().newest_at
    };
    assert_eq!(told(&mut observed, None, 0), None, "there is none");
    assert_eq!(told(&mut observed, Some(10), 100), Some(at(100)));
    assert_eq!(told(&mut observed, Some(10), 900), Some(at(100)), "seen again");
    assert_eq!(told(&mut observed, None, 0), Some(at(100)), "it is not known yet");
    assert_eq!(told(&mut observed, Some(20), 1_000), Some(at(1_000)));
}

/// A complete job of ten steps whose spec now has `steps`.
fn complete(steps: u64, more: &str) -> Observed {
    let mut observed = observed(2);
    observed.run = Some(ObservedRun {
        ended: Some(RunEnd::Done),
        ..run(RunMode::Done, 1, 10)
    });
    observed.job.spec = Ok(spec(2, more));
    observed.job.status = decide(&observed).status;
    assert_eq!(observed.job.status.steps, Some(10));
    let mut job = spec(2, more);
    job.training.steps = steps;
    observed.job.spec = Ok(job);
    observed
}

const SAVES: &str = "  checkpoint: {uri: s3://b, intervalSteps: 10}\n";

#[test]
fn complete_job_resumes_if_steps_are_raised() {
    // Its coordinator has just ended, or another operator leads now.
    for run in [complete(25, SAVES).run, None] {
        let observed = Observed {
            run,
            ..complete(25, SAVES)
        };
        let desired = decide(&observed);
        assert_eq!(desired.coordinator, CoordinatorGoal::Run);
        assert!(!desired.create.is_empty());
        assert_eq!(condition(&desired, ConditionType::Complete).status, "False");
        assert_eq!(desired.status.completion_time, None);
    }
}

#[test]
fn complete_job_stays_complete_otherwise() {
    for observed in [complete(10, SAVES), complete(25, "")] {
        let desired = decide(&observed);
        assert_eq!(desired.status.phase, Some(JobPhase::Complete));
        assert_eq!(desired.coordinator, CoordinatorGoal::Absent);
    }
    let desired = decide(&complete(25, ""));
    let message = &condition(&desired, ConditionType::Complete).message;
    assert!(message.contains("asks for more"), "{message}");
    // A job that was completed under an earlier release has no number of steps to compare with.
    let mut earlier = complete(25, SAVES);
    earlier.job.status.steps = None;
    earlier.run = None;
    assert_eq!(decide(&earlier).status.phase, Some(JobPhase::Complete));
}

#[test]
fn requested_checkpoint_is_ordered() {
    let mut observed = observed(2);
    observed.job.spec = Ok(spec(2, SAVES));
    observed.run = Some(training(4));
    for at in ["2026-11-23T12:00:00Z", "2026-11-23T13:00:00Z"] {
        observed.job.save_at = Some(at.into());
        let asked = decide(&observed);
        assert_eq!(asked.orders.as_ref().unwrap().save_at.as_deref(), Some(at));
        observed = carried_out(&observed, &asked);
        let after = decide(&observed);
        assert_eq!(after.orders, None, "a coordinator that was away finds it");
        assert_eq!(after.status.save_ordered.as_deref(), Some(at));
    }
    observed.job.spec = Ok(spec(2, ""));
    assert_eq!(
        decide(&observed).orders.unwrap().save_at,
        None,
        "the job saves nothing"
    );
}
