//! Which changes of a status are written, and that figures do not affect decisions.

use super::properties::{any_healthy, any_job};
use super::*;
use crate::decide::news::set_figures;
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;
use varuna_api::crd::{CheckpointStatus, PlanStatus, Time, TimeSpent};

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

/// The status of a job that trains, at this step.
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
        step: Some(step),
        ..Status::default()
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

proptest! {
    #[test]
    fn the_figures_of_a_report_change_no_decision(observed in prop_oneof![any_healthy(), any_job()], steps in 0_u64..5) {
        let mut observed = observed;
        if let Some(snapshot) = observed.run.as_mut().and_then(|run| run.snapshot.as_mut()) {
            snapshot.run.step.0 += steps;
        }
        let first = decide(&observed);
        set_figures(&mut observed.job.status, &first.status);
        let second = decide(&observed);
        let done = |of: Decided| (of.objects, of.create, of.delete, of.coordinator, of.orders, of.workload, of.reconcile_in);
        prop_assert_eq!(done(first), done(second));
    }
}
