use super::publications::{DEBOUNCE, EVENTS_DEBOUNCE, LASTING_MAX, Publication, is_awaited};
use super::*;
use crate::cluster::fake_server::{ReceivedRequest, refusal, server};
use std::sync::Arc;
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

/// Does what `Publisher::report` does.
fn reported(all: &mut Publications, now: Instant, step: i64) {
    let entry = all.jobs.entry("u".into());
    let publication = &mut entry.or_insert_with(|| (job(), Publication::default())).1;
    publication.status = Some(Arc::new(status(step)));
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
    assert_eq!(work.status.as_deref(), Some(&status(5)));
    assert_eq!(all.take_due(due).err(), Some(None), "one write for all");
    // A report that comes during the write has to wait.
    reported(&mut all, due, 6);
    assert_eq!(all.take_due(due + DEBOUNCE).err(), Some(None));
    let written = due + DEBOUNCE / 2;
    all.finish(written, &work, &Ok(Some(7)));
    assert_eq!(all.take_due(written).err(), Some(Some(written + DEBOUNCE)));
    let work = all.take_due(written + DEBOUNCE).ok().unwrap();
    assert_eq!(work.status.as_deref(), Some(&status(6)));
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
    assert_eq!((work.status.as_deref(), work.events.len()), (Some(&status(1)), 0));
    all.finish(start + DEBOUNCE, &work, &Ok(Some(1)));
    let due = start + EVENTS_DEBOUNCE;
    assert_eq!(all.take_due(start + DEBOUNCE).err(), Some(Some(due)));
    let work = all.take_due(due).ok().unwrap();
    assert_eq!((work.status.as_deref(), work.events.len()), (None, 1));
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
        assert_eq!(work.status.as_deref(), Some(&status(1)));
        let late = kube::Error::Service("late".into());
        all.finish(now, &work, &Err(late));
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 30]);
}

/// The job's object with this version, as the watch shows it.
fn object(version: u64) -> JobObject {
    let metadata =
        json!({ "name": "j", "namespace": "n", "uid": "u", "resourceVersion": version.to_string() });
    serde_json::from_value(json!({ "apiVersion": API_VERSION, "kind": KIND, "metadata": metadata })).unwrap()
}

/// A publisher that has started to write version 7 of a job's object with this status, and the write.
fn writing(step: i64) -> (Publisher, Work) {
    let (client, _) = server(|_| None);
    let recorder = EventRecorder::new(client.clone(), "i".into(), Arc::default());
    let publisher = Publisher::new(client, recorder);
    let now = Instant::now();
    reported(&mut publisher.publications.lock(), now, step);
    let work = publisher.publications.lock().take_due(now + DEBOUNCE);
    (publisher, work.ok().unwrap())
}

#[tokio::test]
async fn a_status_is_kept_until_the_watch_shows_it_and_no_longer() {
    let (publisher, work) = writing(5);
    let known = |version| publisher.status("u", Some(version));
    publisher.shown(&object(6));
    assert_eq!(known(6).unwrap(), Some(status(5)), "it is being written");
    publisher
        .publications
        .lock()
        .finish(Instant::now(), &work, &Ok(Some(7)));
    assert_eq!(known(6).unwrap(), Some(status(5)), "no watch has shown it");
    publisher.shown(&object(7));
    assert!(publisher.publications.lock().jobs["u"].1.status.is_none());
    assert_eq!(known(7).unwrap(), None, "the object has it");
    // A reconciliation that began with the older object would decide based on the older status.
    assert!(matches!(known(6), Err(Error::Stale)));
}

#[tokio::test]
async fn early_shown_status_is_forgotten_with_the_answer() {
    let (publisher, work) = writing(5);
    publisher.shown(&object(7));
    assert_eq!(publisher.status("u", Some(7)).unwrap(), Some(status(5)));
    publisher
        .publications
        .lock()
        .finish(Instant::now(), &work, &Ok(Some(7)));
    assert!(publisher.publications.lock().jobs["u"].1.status.is_none());
}

#[tokio::test]
async fn newer_status_outlives_the_shown_one() {
    let (publisher, work) = writing(5);
    let now = Instant::now();
    reported(&mut publisher.publications.lock(), now, 6);
    publisher.publications.lock().finish(now, &work, &Ok(Some(7)));
    publisher.shown(&object(7));
    assert_eq!(publisher.status("u", Some(7)).unwrap(), Some(status(6)));
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

#[tokio::test]
async fn shutdown_writes_statuses_first() {
    let document = json!({ "apiVersion": API_VERSION, "kind": KIND, "metadata": { "name": "j", "namespace": "n", "resourceVersion": "7" } });
    let answer = move |asked: &ReceivedRequest| match asked.method.as_str() {
        "PATCH" => Some((200, document.clone())),
        _ => Some((201, asked.body.clone())),
    };
    let (client, asked) = server(answer);
    let recorder = EventRecorder::new(client.clone(), "i".into(), Arc::default());
    let publisher = Publisher::new(client, recorder);
    let later = Instant::now() + Duration::from_secs(3600);
    for uid in ["u", "v"] {
        let mut all = publisher.publications.lock();
        let identity = JobIdentity {
            uid: uid.into(),
            ..job()
        };
        let entry = all.jobs.entry(uid.into());
        let publication = &mut entry.or_insert_with(|| (identity, Publication::default())).1;
        publication.status = Some(Arc::new(status(5)));
        publication.is_dirty = true;
        publication.events = vec![note(Reason::Run, uid)];
        publication.events_due = Some(later);
        all.schedule(uid, later);
    }
    publisher.flush_on_shutdown();
    // It ends, because nothing is left to write.
    publisher.run().await;
    let asked = asked.lock();
    let methods: Vec<&str> = asked.iter().map(|one| one.method.as_str()).collect();
    assert_eq!(methods, ["PATCH", "PATCH", "POST", "POST"]);
    assert!(
        asked[..2].iter().all(|one| one.body["status"]["step"] == 5),
        "{asked:?}"
    );
}

#[tokio::test]
async fn what_stays_true_leaves_room_for_what_happens() {
    let (client, _) = server(|_| None);
    let recorder = EventRecorder::new(client.clone(), "i".into(), Arc::default());
    let publisher = Publisher::new(client, recorder);
    let job = crate::fixtures::job("j", "u");
    for i in 0..1000 {
        let pod = EventNote {
            lasting: true,
            ..note(Reason::WorkerPreempted, &i.to_string())
        };
        publisher.note(&job, &pod);
    }
    publisher.note(&job, &note(Reason::Run, "a step was lost"));
    let all = publisher.publications.lock();
    let events = &all.jobs["u"].1.events;
    assert_eq!(events.len(), LASTING_MAX + 1);
    assert_eq!(events[LASTING_MAX].text, "a step was lost");
}

#[tokio::test]
async fn status_is_patched_and_only_its_version_is_read() {
    let answer = |asked: &ReceivedRequest| {
        if asked.path.contains("/gone/") {
            return refusal(404, "NotFound");
        }
        Some((
            200,
            json!({ "metadata": { "resourceVersion": "7", "managedFields": 5 }, "spec": 5 }),
        ))
    };
    let (client, asked) = server(answer);
    let recorder = EventRecorder::new(client.clone(), "i".into(), Arc::default());
    let publisher = Publisher::new(client, recorder);
    assert_eq!(publisher.write(&job(), &status(5)).await.unwrap(), Some(7));
    let first = asked.lock()[0].clone();
    assert_eq!(first.method, "PATCH");
    let path = "/apis/varuna.dev/v1alpha1/namespaces/n/varunajobs/j/status?";
    assert!(first.path.starts_with(path), "{}", first.path);
    assert_eq!(first.body["metadata"]["uid"], "u");
    assert_eq!(first.body["status"]["step"], 5);
    let gone = JobIdentity {
        namespace: "gone".into(),
        ..job()
    };
    assert_eq!(publisher.write(&gone, &status(5)).await.unwrap(), None);
}

#[tokio::test]
async fn status_that_met_a_conflict_is_written_later() {
    let (client, _) = server(|_| refusal(409, "Conflict"));
    let recorder = EventRecorder::new(client.clone(), "i".into(), Arc::default());
    let publisher = Publisher::new(client, recorder);
    let start = Instant::now();
    reported(&mut publisher.publications.lock(), start, 5);
    let due = start + DEBOUNCE;
    let work = publisher.publications.lock().take_due(due).ok().unwrap();
    publisher.publish(work).await;
    let again = publisher.publications.lock().take_due(due).err().flatten();
    assert!(again.is_some_and(|again| again > due), "{again:?}");
    assert_eq!(publisher.status("u", None).unwrap(), Some(status(5)));
    // Another job has the name, and this one is gone.
    publisher.retain(|_| false);
    let later = again.unwrap() + DEBOUNCE;
    assert_eq!(publisher.publications.lock().take_due(later).err(), Some(None));
}
