use super::*;
use varuna_api::crd::{PlanStatus, Status};

#[test]
fn a_jobs_series_come_with_it_and_go_with_it() {
    let metrics = Metrics::default();
    let status = Status {
        phase: Some(varuna_api::JobPhase::Training),
        step: Some(12),
        steps_lost: Some(3),
        reconfigurations: Some(2),
        plan: Some(PlanStatus {
            generation: 5,
            ..PlanStatus::default()
        }),
        ..Status::default()
    };
    let key = ("ns".to_owned(), "j".to_owned());
    metrics
        .jobs
        .reconciled(&key, &status, 100, [("running", 4)].into());
    let text = metrics.render();
    for line in [
        r#"varuna_job_steps{namespace="ns",job_name="j"} 100.0"#,
        r#"varuna_job_steps_lost_total{namespace="ns",job_name="j"} 3"#,
        r#"varuna_job_phase{namespace="ns",job_name="j",phase="Training"} 1.0"#,
        r#"varuna_job_phase{namespace="ns",job_name="j",phase="Failed"} 0.0"#,
        r#"varuna_job_pods{namespace="ns",job_name="j",state="running"} 4.0"#,
        r#"varuna_job_generation{namespace="ns",job_name="j"} 5.0"#,
        r#"varuna_job_reconfigurations_total{namespace="ns",job_name="j"} 2"#,
    ] {
        assert!(text.contains(line), "no {line} in:\n{text}");
    }
    metrics.jobs.retain(|_, _| false);
    assert!(!metrics.render().contains("job_name="), "{}", metrics.render());
}

#[test]
fn reconciliations_and_errors_are_told_apart_by_bounded_labels() {
    let metrics = Metrics::default();
    // The metrics before any event.
    let text = metrics.render();
    for error in [Error::Stale, Error::Timeout] {
        let line = format!(r#"varuna_reconcile_errors_total{{kind="{}"}} 0"#, error.kind());
        assert!(text.contains(&line), "no {line} in:\n{text}");
    }
    let watched = DecidedOn::ALL.map(DecidedOn::kind);
    let watched = watched.into_iter().chain(["NetworkPolicy"]);
    let watches = watched.map(|kind| format!(r#"varuna_watch_errors_total{{kind="{kind}"}} 0"#));
    let outcomes = ["written", "repeated", "dropped", "failed"];
    let events = outcomes.map(|kind| format!(r#"varuna_events_total{{kind="{kind}"}} 0"#));
    for line in watches.chain(events) {
        assert!(text.contains(&line), "no {line} in:\n{text}");
    }
    metrics.event(EventOutcome::Repeated);
    assert!(
        metrics
            .render()
            .contains(r#"varuna_events_total{kind="repeated"} 1"#)
    );
    metrics.reconciled(Duration::from_millis(3), None);
    metrics.reconciled(Duration::from_millis(40), Some("api"));
    let text = metrics.render();
    for line in [
        "varuna_reconcile_duration_seconds_count 2",
        r#"varuna_reconcile_errors_total{kind="api"} 1"#,
    ] {
        assert!(text.contains(line), "no {line} in:\n{text}");
    }
}
