use super::*;
use serde_json::json;

fn job(status: Value) -> JobView {
    JobView {
        name: "demo".into(),
        namespace: "team".into(),
        uid: "u".into(),
        most_workers: Some(8),
        saves: true,
        status: serde_json::from_value(status).unwrap(),
    }
}

fn happened(at: i64, reason: &str, text: &str) -> JobEvent {
    JobEvent {
        at: Timestamp::from_second(at).unwrap(),
        reason: reason.into(),
        text: text.into(),
    }
}

fn trains() -> JobView {
    job(json!({
        "phase": "Training", "step": 176, "steps": 600, "progress": "176/600", "loss": "2.2631",
        "tokensPerSecond": 3732, "eta": "58s", "goodput": "93.0%", "workers": 4, "newestPod": 5, "conditions": [],
        "time": { "until": "2026-11-23T12:00:00Z", "trainingSeconds": 200, "repeatedSeconds": 0, "recoveringSeconds": 5,
            "waitingSeconds": 10, "startingSeconds": 0 },
        "plan": { "generation": 3, "shape": "P4xD2", "rankMap": "0,4;1,5;2,6;3,7;", "workers": 8, "idle": 1,
            "leftOut": [{ "name": "demo-w8", "reason": "noData", "message": "it could not read its data" }],
            "spareCopies": { "units": 2, "kept": 0, "reason": "lossesTooRare", "message": "a loss is expected once in 5 h" },
            "observedStepMs": 270, "predictedStepMs": 293 },
        "recoveryTotals": [{ "cause": "lost", "count": 3, "workersLost": 4, "pauseMs": 2750, "stepsLost": 6 },
            { "cause": "joined", "count": 2 }],
        "checkpoint": { "newestStep": 170, "stepsBehind": 6 },
        "history": [{ "at": "2026-11-23T11:00:00Z", "reason": "Planned", "text": "plan 3: P4xD2 with 8 workers" }],
    }))
}

#[test]
fn status_shows_time_spent_and_recoveries() {
    let at = 1_795_431_600; // 2026-11-23 11:00:00
    let seen = [
        happened(at, "Planned", "plan 3: P4xD2 with 8 workers"),
        happened(at + 1, "Run", "lost worker w3"),
        happened(
            at + 2,
            "Resumed",
            "training goes on 1.32 s after the loss of a worker",
        ),
    ];
    assert_eq!(
        status(&trains(), &seen),
        "team/demo: Training  step 176/600  loss 2.2631  3732 tok/s  ETA 58s\n\
         workers     4 of 8\n\
         goodput     93.0%  (200 s training; 5 s recovering, 10 s waiting for workers)\n            \
         3 losses of workers (4 workers): 2.750 s without training, 6 steps lost\n            \
         2 changes for workers that came: 0.000 s without training, 0 steps lost\n\
         plan        3 (P4xD2) with 8 workers, 1 idle; a step takes 270 ms, predicted 293 ms\n            \
         demo-w8 is left out: it could not read its data\n            \
         spare copies of 0 of 2 units that one worker alone holds: a loss is expected once in 5 h\n\
         checkpoint  of step 170, 6 steps behind\n\
         reported    2026-11-23 12:00:00Z\n\
         recently\n  2026-11-23 11:00:00Z  Planned          plan 3: P4xD2 with 8 workers\n  \
         2026-11-23 11:00:02Z  Resumed          training goes on 1.32 s after the loss of a worker\n"
    );
}

#[test]
fn a_job_that_waits_says_for_what_and_what_is_wrong() {
    let waits = job(json!({
        "phase": "Waiting", "message": "1 workers of at least 2 are there", "workers": 1, "newestPod": 1,
        "conditions": [{ "type": "Degraded", "status": "True", "reason": "PodsRefused", "message": "exceeded quota",
            "lastTransitionTime": "2026-11-23T12:00:00Z" }],
    }));
    let text = status(&waits, &[]);
    for part in [
        "Waiting  step -",
        "1 workers of at least 2 are there",
        "plan        none yet",
        "Degraded: PodsRefused: exceeded quota",
    ] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    assert!(!text.contains("recently"), "{text}");
    assert!(plan(&waits).is_err());
    let empty = job(json!({}));
    assert!(status(&empty, &[]).starts_with("team/demo: -  step -"));
}

#[test]
fn the_plan_shows_the_ranks_of_each_stage() {
    let text = plan(&trains()).unwrap();
    assert!(text.starts_with("plan 3 (P4xD2)"), "{text}");
    assert!(text.contains("rank map 0,4;1,5;2,6;3,7;\n"), "{text}");
    assert!(
        text.contains("  stage 0   ranks 0, 4\n") && text.contains("  stage 3   ranks 3, 7\n"),
        "{text}"
    );
}

#[test]
fn history_and_events_are_merged_in_order_without_duplicates() {
    let at = 1_795_431_600; // the time in the history
    let events = [
        happened(at + 60, "Resumed", "training goes on"),
        happened(at + 3, "Planned", "plan 3: P4xD2 with 8 workers"),
    ];
    let all = merged(&trains().status, events.into_iter());
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(all[0].at < all[1].at);
    let gone = merged(&trains().status, std::iter::empty());
    assert_eq!(
        gone[0].text, "plan 3: P4xD2 with 8 workers",
        "the history outlives Events"
    );
    assert_eq!(
        events_of(&gone),
        "2026-11-23 11:00:00Z  Planned          plan 3: P4xD2 with 8 workers\n"
    );
}

fn events_of(happened: &[JobEvent]) -> String {
    events(happened)
}

#[test]
fn control_characters_of_texts_are_escaped() {
    let mut document = json!({
        "message": "a\u{1b}[2Jb", "steps": 7,
        "history": [{ "text": "one\ntwo: \"Ü\"" }],
    });
    make_printable(&mut document);
    let expected = json!({
        "message": "a\\u{1b}[2Jb", "steps": 7,
        "history": [{ "text": "one\\ntwo: \"Ü\"" }],
    });
    assert_eq!(document, expected);
}
