mod otlp;

use super::*;
use crate::metrics::{CAUSES, PHASES};
use crate::table::BOUNDS;
use std::time::Duration;
use varuna_coordinator::{RunMode, View};
use varuna_plan::{Generation, StateId, Step, WorkerId};
use varuna_protocol::coordinator::{Event, RunView, Snapshot, SpareCopiesView};
use varuna_run_folder::{Metric, StepFigures};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A committed step of a generation that is not fenced in these tests.
fn committed(step: u64) -> Event {
    Event::Committed {
        id: StateId::INITIAL,
        generation: Generation(2),
        step: Step(step),
        loss: Some(1.0),
        eval_loss: None,
        gradient_norm: 1.0,
        overflow: false,
        progress: varuna_plan::OptimizerProgress::START,
    }
}

fn planned(change: bool) -> Event {
    Event::Planned {
        generation: Generation(2),
        plan: String::new(),
        workers: 2,
        predicted_ms: 1.0,
        change,
        reason: String::new(),
    }
}

fn fenced() -> Event {
    Event::Fenced {
        upto: Generation(1),
        because: String::new(),
    }
}

fn lost() -> Event {
    Event::WorkerLost {
        worker: WorkerId(1),
        name: String::new(),
    }
}

fn collected() -> Event {
    Event::Collected {
        answered: vec![],
        missing: vec![],
    }
}

fn told(watch: &mut Recoveries, events: &[(u64, Event)]) -> Vec<(&'static str, &'static str, u128)> {
    let heard = events
        .iter()
        .flat_map(|(at, event)| watch.observe(ms(*at), event));
    heard
        .map(|m| (m.phase.label(), m.cause.label(), m.took.as_millis()))
        .collect()
}

#[test]
fn recovery_is_measured_by_phase() {
    let mut watch = Recoveries::default();
    let generation = Generation(2);
    assert!(
        told(
            &mut watch,
            &[(0, fenced()), (5, planned(false)), (9, committed(1))]
        )
        .is_empty(),
        "the start"
    );
    let events = [
        (100, lost()),
        (110, fenced()),
        (120, collected()),
        (150, planned(false)),
        (200, Event::Connected { generation }),
        (500, Event::Running { generation }),
        (600, committed(2)),
        (700, committed(3)),
    ];
    let want = [
        ("collect", "lost", 10),
        ("plan", "lost", 30),
        ("connect", "lost", 50),
        ("transfer", "lost", 300),
        ("step", "lost", 100),
        ("total", "lost", 490),
    ];
    assert_eq!(told(&mut watch, &events), want);
}

#[test]
fn a_recovery_that_another_loss_overtakes_is_one_recovery() {
    let mut watch = Recoveries::default();
    told(&mut watch, &[(0, committed(1))]);
    let events = [
        (10, fenced()),
        (20, lost()),
        (30, fenced()),
        (40, collected()),
        (90, committed(2)),
    ];
    let want = [
        ("collect", "lost", 10),
        ("step", "lost", 50),
        ("total", "lost", 80),
    ];
    assert_eq!(told(&mut watch, &events), want);
}

#[test]
fn planned_change_is_measured_to_its_switch() {
    let mut watch = Recoveries::default();
    let generation = Generation(2);
    let draining = Event::WorkerDraining {
        worker: WorkerId(1),
        name: String::new(),
    };
    told(&mut watch, &[(0, committed(1))]);
    let events = [
        (10, draining),
        (20, planned(true)),
        (30, committed(2)),
        (70, Event::Switched { generation }),
    ];
    assert_eq!(told(&mut watch, &events), [("total", "notice", 50)]);
    let because = String::new();
    let events = [
        (100, planned(true)),
        (110, Event::Cancelled { generation, because }),
        (120, Event::Switched { generation }),
    ];
    assert!(told(&mut watch, &events).is_empty());
}

#[test]
fn goodput_is_training_time_without_lost_steps() {
    let mut goodput = Goodput::default();
    goodput.observe(ms(0), false);
    assert_eq!(goodput.ratio(), None);
    goodput.observe(ms(1_000), true);
    goodput.observe(ms(9_000), false);
    goodput.observe(ms(11_000), true);
    assert_eq!(goodput.ratio(), Some(0.8));
    goodput.lost(ms(3_000));
    assert_eq!(goodput.ratio(), Some(0.5));
    goodput.lost(ms(60_000));
    assert_eq!(goodput.ratio(), Some(0.0));
}

/// A run that trains, but has committed no step since its coordinator started.
fn view(spare_copies: Option<SpareCopiesView>) -> View {
    let run = RunView {
        mode: RunMode::Training,
        term: 2,
        generation: Generation(3),
        next: None,
        step: Step(86),
        last_step: Step(100),
        plan: None,
        predicted_ms: None,
        observed_ms: None,
        compute_factor: None,
        members: 4,
        min_workers: 1,
        max_workers: None,
        spare_copies,
    };
    let snapshot = Snapshot { run, workers: vec![] };
    View {
        snapshot: Some(snapshot),
        ..View::default()
    }
}

#[test]
fn single_holder_units_are_counted_by_keeper_state() {
    let metrics = Metrics::new("ns", "j");
    metrics.figures.observe(&view(None), ms(1));
    assert!(
        !metrics.render().contains("varuna_job_spare_copy_keepers{"),
        "none are wanted"
    );
    let copies = SpareCopiesView {
        units: 7,
        kept: 5,
        in_step: 3,
        verdict: None,
    };
    metrics.figures.observe(&view(Some(copies)), ms(2));
    let text = metrics.render();
    for (state, n) in [("in_step", 3), ("behind", 2), ("none", 2)] {
        let line =
            format!(r#"varuna_job_spare_copy_keepers{{namespace="ns",job_name="j",state="{state}"}} {n}.0"#);
        assert!(text.contains(&line), "{line} is missing:\n{text}");
    }
}

#[test]
fn a_loss_is_never_shown_beside_another_steps_number() {
    let metrics = Metrics::new("ns", "j");
    // This coordinator has taken over: workers have reported their step, and no step has been committed since.
    metrics.figures.observe(&view(None), ms(1));
    let text = metrics.render();
    assert!(
        text.contains(r#"varuna_job_step{namespace="ns",job_name="j"} 86.0"#),
        "{text}"
    );
    assert!(!text.contains("varuna_job_loss{"), "{text}");
}

/// A committed step whose figures are all known, or none of them.
fn metric(is_known: bool) -> Metric {
    let known = StepFigures {
        consumed_samples: Some(700),
        consumed_tokens: Some(90_000),
        learning_rate: Some(0.25),
        nan_steps: Some(2),
        tokens_per_second: Some(995.5),
        model_flops_per_second: Some(3.5e9),
        mfu: Some(0.125),
        peak_memory_bytes: Some(1024),
    };
    Metric {
        step: Step(86),
        loss: 2.5,
        no_targets: false,
        eval_loss: None,
        gradient_norm: 0.75,
        overflow: false,
        skipped_steps: 1,
        loss_scale: is_known.then_some(512),
        generation: Generation(3),
        workers: 4,
        plan: String::new(),
        tokens: 1000,
        step_ms: 1.0,
        time_ms: 0,
        state: StateId::INITIAL,
        figures: if is_known { known } else { StepFigures::default() },
    }
}

#[test]
fn figures_of_the_last_step_are_published_where_they_are_known() {
    let metrics = Metrics::new("ns", "j");
    let mut view = view(None);
    let always = [
        ("loss", "2.5"),
        ("gradient_norm", "0.75"),
        ("skipped_steps", "1.0"),
    ];
    let where_known = [
        ("learning_rate", "0.25"),
        ("tokens_per_second", "995.5"),
        ("model_flops_per_second", "3500000000.0"),
        ("mfu_ratio", "0.125"),
        ("consumed_samples", "700.0"),
        ("consumed_tokens", "90000.0"),
        ("nan_steps", "2.0"),
        ("loss_scale", "512.0"),
        ("peak_memory_bytes", "1024.0"),
    ];
    for is_known in [true, false] {
        view.metric = Some(metric(is_known));
        metrics.figures.observe(&view, ms(1));
        let text = metrics.render();
        let shown = |(name, value): &(&str, &str)| {
            let line = format!(r#"varuna_job_{name}{{namespace="ns",job_name="j"}} {value}"#);
            text.lines().any(|l| l == line)
        };
        for figure in &always {
            assert!(shown(figure), "{figure:?} in:\n{text}");
        }
        for figure in &where_known {
            assert_eq!(shown(figure), is_known, "{figure:?} in:\n{text}");
        }
    }
    // A mean over no targets is no number.
    view.metric = Some(Metric {
        no_targets: true,
        ..metric(true)
    });
    metrics.figures.observe(&view, ms(2));
    let text = metrics.render();
    assert!(!text.contains("varuna_job_loss{"), "{text}");
}

#[test]
fn a_recovery_reads_as_a_sentence_and_its_parts_do_not() {
    let mut watch = Recoveries::default();
    let timeline = [
        (0, committed(4)),
        (10, lost()),
        (12, fenced()),
        (20, collected()),
        (30, planned(false)),
        (430, committed(5)),
    ];
    let mut said = vec![];
    for (at, event) in &timeline {
        let measured = watch.observe(ms(*at), event);
        said.extend(measured.iter().filter_map(|m| m.sentence(event, 0)));
    }
    assert_eq!(
        said,
        ["training goes on 0.42 s after the loss of a worker, with step 5; 0 steps lost"]
    );
    let change = Measured {
        phase: Phase::Total,
        cause: Cause::Joined,
        took: ms(90),
        workers: 0,
    };
    let switched = Event::Switched {
        generation: Generation(7),
    };
    assert_eq!(
        change.sentence(&switched, 0).as_deref(),
        Some("plan 7 has taken over after workers had come; training did not stop")
    );
}

#[test]
fn initial_and_taken_over_workers_cause_no_later_plan() {
    let joined = || Event::WorkerJoined {
        worker: WorkerId(1),
        name: String::new(),
        address: String::new(),
    };
    let switched = || Event::Switched {
        generation: Generation(2),
    };
    let mut watch = Recoveries::default();
    let start = [
        (0, Event::TookOver { term: 1 }),
        (1, joined()),
        (2, committed(1)),
        (5, planned(true)),
        (7, switched()),
    ];
    assert_eq!(told(&mut watch, &start), [("total", "other", 2)]);
    let again = [
        (10, Event::TookOver { term: 2 }),
        (11, joined()),
        (12, committed(2)),
        (15, planned(true)),
        (17, switched()),
        (20, joined()),
        (21, committed(3)),
        (22, planned(true)),
        (23, switched()),
    ];
    assert_eq!(
        told(&mut watch, &again),
        [("total", "other", 2), ("total", "joined", 1)]
    );
}

#[test]
fn finished_recovery_reports_workers_and_pause() {
    let of = |worker: u64| (WorkerId(worker), String::new());
    let gone = |worker: u64| {
        let (worker, name) = of(worker);
        Event::WorkerLost { worker, name }
    };
    let draining = |worker: u64| {
        let (worker, name) = of(worker);
        Event::WorkerDraining { worker, name }
    };
    let joined = |worker: u64| {
        let (worker, name) = of(worker);
        let address = String::new();
        Event::WorkerJoined {
            worker,
            name,
            address,
        }
    };
    let switched = |generation| Event::Switched {
        generation: Generation(generation),
    };
    let timeline = [
        (0, committed(4)),
        // Two workers are lost, one of them after a notice.
        (5, draining(2)),
        (10, gone(1)),
        (12, fenced()),
        (13, gone(2)),
        (20, collected()),
        (30, planned(false)),
        (430, committed(5)),
        // A worker ends after its notice, which does not count as a loss.
        (500, draining(3)),
        (510, planned(true)),
        (540, switched(3)),
        (550, gone(3)),
        // Another worker joins instead.
        (900, joined(4)),
        (910, planned(true)),
        (940, switched(4)),
    ];
    let mut watch = Recoveries::default();
    let mut over = vec![];
    for (at, event) in &timeline {
        let measured = watch.observe(ms(*at), event);
        over.extend(measured.iter().filter_map(|m| m.completed(event, 7)));
    }
    let found: Vec<_> = over
        .iter()
        .map(|o| (o.cause, o.workers, o.pause.as_millis(), o.lost))
        .collect();
    assert_eq!(
        found,
        [
            (Cause::Lost, 2, 418, 7),
            (Cause::Notice, 1, 0, 7),
            (Cause::Joined, 0, 0, 7)
        ]
    );
}

#[test]
fn each_cause_has_its_sentence() {
    let switched = Event::Switched {
        generation: Generation(2),
    };
    let said = |cause, event: &Event, lost| {
        let measured = Measured {
            phase: Phase::Total,
            cause,
            took: ms(1_230),
            workers: 1,
        };
        measured.sentence(event, lost).unwrap()
    };
    for (cause, after) in [
        (Cause::Lost, "the loss of a worker"),
        (Cause::Notice, "notice to a worker"),
        (Cause::Takeover, "a change of the coordinator"),
        (Cause::Joined, "workers had come"),
        (Cause::Other, "a change of plan"),
    ] {
        assert_eq!(
            said(cause, &committed(12), 3),
            format!("training goes on 1.23 s after {after}, with step 12; 3 steps lost")
        );
        assert_eq!(
            said(cause, &switched, 0),
            format!("plan 2 has taken over after {after}; training did not stop")
        );
    }
}

#[test]
fn a_recovery_of_each_phase_and_cause_is_counted_from_zero() {
    // A new phase or cause does not compile here until it is added to the list.
    let place_of_phase = |phase| match phase {
        Phase::Collect => 0,
        Phase::Plan => 1,
        Phase::Connect => 2,
        Phase::Transfer => 3,
        Phase::Step => 4,
        Phase::Total => 5,
    };
    let place_of_cause = |cause| match cause {
        Cause::Lost => 0,
        Cause::Notice => 1,
        Cause::Takeover => 2,
        Cause::Joined => 3,
        Cause::Other => 4,
    };
    assert_eq!(PHASES.map(place_of_phase), [0, 1, 2, 3, 4, 5]);
    assert_eq!(CAUSES.map(place_of_cause), [0, 1, 2, 3, 4]);
    let metrics = Metrics::new("ns", "j");
    let text = metrics.render();
    let count = |phase: Phase, cause: Cause, n: u64| {
        let (phase, cause) = (phase.label(), cause.label());
        format!(
            r#"varuna_recovery_duration_seconds_count{{namespace="ns",job_name="j",phase="{phase}",cause="{cause}"}} {n}"#
        )
    };
    for phase in PHASES {
        for cause in CAUSES {
            let line = count(phase, cause, 0);
            assert!(text.lines().any(|l| l == line), "no {line} in:\n{text}");
        }
    }
    let line = r#"varuna_plan_duration_seconds_count{namespace="ns",job_name="j"} 0"#;
    assert!(text.lines().any(|l| l == line), "no {line} in:\n{text}");
    metrics.recovered(&Measured {
        phase: Phase::Total,
        cause: Cause::Lost,
        took: ms(17_000),
        workers: 1,
    });
    let (text, line) = (metrics.render(), count(Phase::Total, Cause::Lost, 1));
    assert!(text.lines().any(|l| l == line), "no {line} in:\n{text}");
}

#[test]
fn alert_threshold_is_a_bucket_bound() {
    const RULES: &str = include_str!("../../../charts/varuna/rules.yaml");
    let compared: Vec<f64> = RULES
        .lines()
        .filter(|l| l.contains("histogram_quantile") && l.contains("varuna_recovery_duration"))
        .filter_map(|l| l.rsplit_once("> ")?.1.trim().parse().ok())
        .collect();
    assert!(!compared.is_empty(), "no such alert");
    for bound in compared {
        assert!(
            BOUNDS.contains(&bound),
            "within a bucket of {BOUNDS:?} a quantile is a guess: {bound}"
        );
    }
}
