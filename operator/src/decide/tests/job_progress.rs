//! Speed, remaining time, goodput, history, rank map.

use super::super::job_progress::stage_to_rank_map;
use super::*;
use k8s_openapi::jiff::Timestamp;
use varuna_api::crd::{HISTORY_MAX, LEFT_OUT_MAX, RECOVERIES_MAX, Recovery, Time};
use varuna_plan::spare_copies::SpareCopyDecision;
use varuna_protocol::coordinator::{LeftOut, LeftOutReason, SpareCopiesVerdict, SpareCopiesView};

/// The job `seconds` after its last report, when its coordinator reports this.
fn later(mut before: Observed, seconds: i64, run: ObservedRun) -> Observed {
    before.job.status = decide(&before).status;
    before.now += seconds;
    before.run = Some(run);
    before
}

fn at(mode: RunMode, generation: u64, step: u64, step_ms: f64) -> ObservedRun {
    let mut run = run(mode, generation, step);
    if let Some(snapshot) = &mut run.snapshot {
        snapshot.run.observed_ms = Some(step_ms);
        snapshot.run.last_step = Step(1_000);
    }
    run
}

fn long() -> Observed {
    let mut observed = observed(2);
    if let Ok(job) = &mut observed.job.spec {
        job.training.steps = 1_000;
    }
    observed
}

#[test]
fn speed_and_time_left_follow_the_step_also_back() {
    let trains = later(long(), 5, at(RunMode::Training, 1, 900, 2_000.0));
    let status = decide(&trains).status;
    assert_eq!(status.progress.as_deref(), Some("900/1000"));
    let job = spec(2, "");
    let tokens = i64::from(job.model.sample_length()) * 8;
    assert_eq!(status.tokens_per_second, Some(tokens / 2));
    assert_eq!(status.eta.as_deref(), Some("3m20s"));
    let back = later(trains, 60, at(RunMode::Training, 2, 500, 4_000.0));
    let status = decide(&back).status;
    assert_eq!(status.progress.as_deref(), Some("500/1000"));
    assert_eq!(status.tokens_per_second, Some(tokens / 4));
    assert_eq!(status.eta.as_deref(), Some("33m20s"));
    let stands = later(back, 1, at(RunMode::Waiting, 2, 500, 4_000.0));
    let status = decide(&stands).status;
    assert_eq!(
        (status.tokens_per_second, status.eta),
        (None, None),
        "nothing is trained"
    );
    assert_eq!(status.progress.as_deref(), Some("500/1000"));
}

#[test]
fn time_is_counted_by_what_it_was_spent_on() {
    let starts = later(long(), 100, at(RunMode::Launching, 1, 0, 1_000.0));
    assert_eq!(decide(&starts).status.time, None, "it has not trained yet");
    let trains = later(starts, 0, at(RunMode::Training, 1, 1, 1_000.0));
    let recovers = later(trains, 80, at(RunMode::Recovering, 1, 81, 1_000.0));
    let waits = later(recovers, 4, at(RunMode::Waiting, 1, 81, 1_000.0));
    let again = later(waits, 16, at(RunMode::Training, 2, 71, 1_000.0));
    let last = later(again, 60, at(RunMode::Training, 2, 131, 1_000.0));
    let status = decide(&last).status;
    let time = status.time.unwrap();
    let spent = (
        time.training_seconds,
        time.recovering_seconds,
        time.waiting_seconds,
        time.starting_seconds,
        time.repeated_seconds,
    );
    assert_eq!(spent, (140, 4, 16, 0, 10));
    assert_eq!(status.goodput.as_deref(), Some("81.2%"), "130 of 160 seconds");
}

#[test]
fn a_suspension_is_not_counted_and_another_leader_counts_on() {
    let trains = later(long(), 0, at(RunMode::Training, 1, 1, 1_000.0));
    let mut suspended = later(trains, 10, at(RunMode::Training, 1, 11, 1_000.0));
    suspended.job.spec = Ok(spec(2, "  suspend: true\n  allowStateLoss: true\n"));
    suspended.run = None;
    let mut later_on = suspended.clone();
    later_on.job.status = decide(&suspended).status;
    later_on.now += 5_000;
    later_on.job.spec = long().job.spec;
    later_on.job.status = decide(&later_on).status;
    let time = later_on.job.status.time.clone().unwrap();
    assert_eq!((time.training_seconds, time.starting_seconds), (10, 0));
    assert_eq!(later_on.job.status.goodput.as_deref(), Some("100.0%"));
}

#[test]
fn the_history_keeps_the_newest_of_what_happened() {
    let mut job = later(long(), 5, at(RunMode::Training, 1, 900, 1_000.0));
    for generation in 2..40 {
        job = later(
            job,
            5,
            at(RunMode::Training, generation, 900 - generation, 1_000.0),
        );
    }
    let history = decide(&job).status.history;
    assert_eq!(history.len(), HISTORY_MAX);
    let last: Vec<(&str, &str)> = history
        .iter()
        .rev()
        .take(2)
        .map(|e| (e.reason.as_str(), e.text.as_str()))
        .collect();
    assert_eq!(
        last,
        [
            (
                "Resumed",
                "1 steps are trained again: no worker held their state any more"
            ),
            ("Planned", "plan 39: P2xD1 with 2 workers"),
        ]
    );
    assert_eq!(history.last().unwrap().at.0.as_second(), job.now);
    job.job.status = decide(&job).status;
    assert_eq!(
        decide(&job).status.history,
        job.job.status.history,
        "nothing new happened"
    );
}

#[test]
fn deletion_that_is_tried_again_is_in_the_history_once() {
    let mut job = observed(2);
    job.run = Some(training(5));
    job.pods = vec![running_on("gone", 1)];
    job.failures = vec![Failure {
        part: JobPart::Server,
        message: "connection refused".into(),
        retry_in: 4,
    }];
    for tries in 1..=3 {
        let desired = decide(&job);
        assert_eq!(desired.delete.len(), 1, "it is still to be carried out");
        let history = &desired.status.history;
        let lost = history.iter().filter(|entry| entry.reason == "WorkerLost");
        assert_eq!(lost.count(), 1, "after {tries}");
        job.job.status = desired.status;
        job.now += 4;
    }
}

#[test]
fn recoveries_of_all_coordinators_are_kept_once() {
    let recovery = |second: i64| Recovery {
        at: Time(Timestamp::from_second(second).unwrap()),
        cause: "lost".into(),
        workers_lost: 1,
        pause_ms: 420,
        steps_lost: 3,
    };
    let reports = |seconds: std::ops::Range<i64>| ObservedRun {
        recoveries: seconds.map(recovery).collect(),
        ..at(RunMode::Training, 1, 5, 1.0)
    };
    let seconds = |observed: &Observed| -> Vec<i64> {
        let recoveries = decide(observed).status.recent_recoveries;
        recoveries.iter().map(|r| r.at.0.as_second()).collect()
    };
    let first = later(long(), 5, reports(100..103));
    assert_eq!(seconds(&first), [100, 101, 102]);
    let again = later(first, 5, reports(100..104));
    assert_eq!(seconds(&again), [100, 101, 102, 103], "each once");
    let another = later(again, 5, reports(200..201));
    assert_eq!(seconds(&another), [100, 101, 102, 103, 200]);
    assert_eq!(decide(&another).status.recent_recoveries[4], recovery(200));
    let many = later(another, 5, reports(200..220));
    let newest: Vec<i64> = (0..).take(RECOVERIES_MAX).map(|i| 210 + i).collect();
    assert_eq!(seconds(&many), newest);
}

/// Workers of pipelines with these depths. Each worker has one stage with one segment.
fn pipelines(depths: &[u32]) -> Snapshot {
    let mut snapshot = at(RunMode::Training, 1, 1, 1.0).snapshot.unwrap();
    let template = worker("a", true);
    snapshot.workers = vec![];
    for (pipeline, depth) in depths.iter().enumerate() {
        // The order does not matter: a snapshot lists workers by their ids.
        for stage in (0..*depth).rev() {
            snapshot.workers.push(WorkerView {
                pipeline: Some(pipeline),
                segments: vec![varuna_plan::SegmentRange {
                    start: stage,
                    end: stage + 1,
                }],
                ..template.clone()
            });
        }
    }
    snapshot.workers.push(WorkerView {
        pipeline: None,
        segments: vec![],
        ..template
    });
    snapshot
}

#[test]
fn status_names_the_first_left_out_workers() {
    let mut trains = at(RunMode::Training, 1, 1, 1.0);
    let idle = WorkerView {
        left_out: Some(LeftOut {
            reason: LeftOutReason::NoData,
            why: "it could not read its data".into(),
        }),
        ..worker("j-w9", true)
    };
    let workers = &mut trains.snapshot.as_mut().unwrap().workers;
    workers.extend(vec![idle; LEFT_OUT_MAX + 2]);
    let plan = decide(&later(long(), 5, trains)).status.plan.unwrap();
    assert_eq!(plan.left_out.len(), LEFT_OUT_MAX);
    let first = &plan.left_out[0];
    assert_eq!((first.name.as_str(), first.reason.as_str()), ("j-w9", "noData"));
    assert_eq!(first.message, "it could not read its data");
}

#[test]
fn the_status_says_what_was_decided_about_spare_copies() {
    let mut trains = at(RunMode::Training, 1, 1, 1.0);
    let decided = |trains: &ObservedRun| {
        let decision = decide(&later(long(), 5, trains.clone()));
        decision.status.plan.unwrap().spare_copies
    };
    assert_eq!(decided(&trains), None, "the job wants none");
    let view = SpareCopiesView {
        units: 4,
        verdict: Some(SpareCopiesVerdict {
            reason: SpareCopyDecision::LossesTooRare,
            why: "a loss is expected once in 5 h".into(),
        }),
        ..SpareCopiesView::default()
    };
    trains.snapshot.as_mut().unwrap().run.spare_copies = Some(view);
    let said = decided(&trains).unwrap();
    assert_eq!((said.units, said.kept), (4, 0));
    assert_eq!(said.reason, "lossesTooRare");
    assert_eq!(said.message, "a loss is expected once in 5 h");
}

#[test]
fn the_rank_map_has_varunas_form() {
    let map = |depths: &[u32]| stage_to_rank_map(&pipelines(depths));
    assert_eq!(map(&[4, 4]).as_deref(), Some("0,4;1,5;2,6;3,7;"));
    assert_eq!(map(&[3, 2, 2]).as_deref(), Some("0,3,5;1,4,6;2;"));
    assert_eq!(map(&[1]).as_deref(), Some("0;"));
    assert_eq!(map(&[]), None, "nobody trains");
    assert_eq!(map(&[2_000]), None, "too long for a status");
}

#[test]
fn recovery_costs_are_summed_by_cause() {
    let recovery = |second: i64, cause: &str| Recovery {
        at: Time(Timestamp::from_second(second).unwrap()),
        cause: cause.into(),
        workers_lost: 2,
        pause_ms: 400,
        steps_lost: i64::from(cause == "lost"),
    };
    let mut all: Vec<Recovery> = Vec::new();
    let mut job = long();
    for second in 0..40 {
        all.push(recovery(
            100 + second,
            if second % 4 == 0 { "joined" } else { "lost" },
        ));
        // A coordinator reports its newest ten recoveries each time. After the twentieth, another coordinator begins with an empty list.
        let own = if second < 20 { 0 } else { 20 };
        let newest = all[own..].len().saturating_sub(RECOVERIES_MAX);
        let report = ObservedRun {
            recoveries: all[own + newest..].to_vec(),
            ..at(RunMode::Training, 1, 5, 1.0)
        };
        job = later(later(job, 5, report.clone()), 5, report);
    }
    let totals = decide(&job).status.recovery_totals;
    let of = |cause: &str| {
        let found = totals.iter().find(|t| t.cause == cause).unwrap();
        (found.count, found.workers_lost, found.pause_ms, found.steps_lost)
    };
    assert_eq!(totals.len(), 2);
    assert_eq!(
        (of("joined"), of("lost")),
        ((10, 20, 4_000, 0), (30, 60, 12_000, 30))
    );
    // The number of causes that are kept is limited, but every recovery is counted.
    let many = ObservedRun {
        recoveries: (0..10).map(|i| recovery(200 + i, &format!("new-{i}"))).collect(),
        ..at(RunMode::Training, 1, 5, 1.0)
    };
    let totals = decide(&later(job, 5, many)).status.recovery_totals;
    assert!(totals.len() <= 9, "{totals:?}");
    assert_eq!(totals.iter().map(|t| t.count).sum::<i64>(), 50);
}
