//! Records what happens to a job as Kubernetes Events: each sentence is an Event of its own.
//!
//! kube's own recorder (like client-go's) merges Events of one reason into one and keeps the first text only, so that sentences
//! would be lost. Here only a repeated sentence is counted in the Event that is there. The rate of each job is limited.

use crate::decide::EventNote;
use crate::metrics::{EventOutcome, Metrics};
use crate::resource::JobIdentity;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use varuna_api::Reason;
use varuna_api::manifest::{API_VERSION, KIND};

/// Bytes of an Event's text, which the API server limits to 1024.
pub(super) const NOTE_MAX: usize = 1000;
/// Events of a job in a burst: a plan makes ten, and a node that is lost takes eight workers with it.
const BURST: u32 = 100;
/// After a burst, time for another Event: 12 a minute keep the API server's hour of Events below a thousand for each job.
const REFILL: Duration = Duration::from_secs(5);
/// The same sentence within this time is counted in the same Event.
const SAME: Duration = Duration::from_secs(600);
/// Sentences remembered for each job.
const REMEMBERED: usize = 32;

/// What is done with a sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Action {
    /// Create an Event.
    Create,
    /// Count it in the Event of this name: how often it was recorded in all.
    Count(String, i32),
    /// Nothing: it is known already.
    Known,
    /// Drop it: too many Events.
    Drop,
}

#[derive(Debug)]
struct Recorded {
    /// Of the Event.
    name: String,
    times: i32,
    at: Instant,
}

/// The recent sentences of one job, and its token bucket.
#[derive(Debug)]
struct JobHistory {
    tokens: u32,
    refilled: Instant,
    recorded: BTreeMap<(Reason, String), Recorded>,
}

impl JobHistory {
    fn new(now: Instant) -> JobHistory {
        JobHistory {
            tokens: BURST,
            refilled: now,
            recorded: BTreeMap::new(),
        }
    }

    fn record(&mut self, now: Instant, note: &EventNote) -> Action {
        let gained = now.duration_since(self.refilled).as_secs() / REFILL.as_secs();
        let gained = u32::try_from(gained).unwrap_or(BURST);
        self.tokens = self.tokens.saturating_add(gained).min(BURST);
        self.refilled += REFILL * gained;
        self.recorded.retain(|_, s| now.duration_since(s.at) < SAME);
        let same = self.recorded.get_mut(&(note.reason, note.text.clone()));
        if let Some(same) = same.filter(|_| note.lasting) {
            same.at = now;
            return Action::Known;
        }
        if self.tokens == 0 {
            return Action::Drop;
        }
        self.tokens -= 1;
        match self.recorded.get_mut(&(note.reason, note.text.clone())) {
            Some(same) => {
                same.times += 1;
                same.at = now;
                Action::Count(same.name.clone(), same.times)
            }
            None => Action::Create,
        }
    }

    /// Whether a sentence was recorded lately; it is as if it were recorded now.
    fn knows(&mut self, now: Instant, note: &EventNote) -> bool {
        let same = self.recorded.get_mut(&(note.reason, note.text.clone()));
        let same = same.filter(|same| now.duration_since(same.at) < SAME);
        same.is_some_and(|same| {
            same.at = now;
            true
        })
    }

    fn remember(&mut self, now: Instant, note: &EventNote, name: String) {
        if self.recorded.len() >= REMEMBERED {
            let oldest = self
                .recorded
                .iter()
                .min_by_key(|(_, s)| s.at)
                .map(|(k, _)| k.clone());
            self.recorded.retain(|k, _| Some(k) != oldest.as_ref());
        }
        let recorded = Recorded {
            name,
            times: 1,
            at: now,
        };
        self.recorded.insert((note.reason, note.text.clone()), recorded);
    }
}

/// Records Events of all jobs.
pub struct EventRecorder {
    client: Client,
    instance: String,
    metrics: Arc<Metrics>,
    /// By the job's identity.
    histories: Mutex<BTreeMap<String, JobHistory>>,
}

impl EventRecorder {
    /// A recorder whose Events name this process as their source.
    #[must_use]
    pub fn new(client: Client, instance: String, metrics: Arc<Metrics>) -> EventRecorder {
        EventRecorder {
            client,
            instance,
            metrics,
            histories: Mutex::default(),
        }
    }

    /// Forgets deleted jobs.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.histories.lock().retain(|uid, _| exists(uid));
    }

    /// Whether a sentence that stays true for a while is recorded already; then nothing more is done with it.
    #[must_use]
    pub fn knows(&self, uid: &str, note: &EventNote) -> bool {
        let mut histories = self.histories.lock();
        let known = histories.get_mut(uid);
        note.lasting && known.is_some_and(|history| history.knows(Instant::now(), note))
    }

    /// Records one sentence; false if it was known already. What cannot be written is logged and counted.
    pub async fn record(&self, job: &JobIdentity, note: &EventNote) -> bool {
        let now = Instant::now();
        let action = self
            .histories
            .lock()
            .entry(job.uid.clone())
            .or_insert_with(|| JobHistory::new(now))
            .record(now, note);
        let done = match action {
            Action::Known => return false,
            Action::Drop => Ok(EventOutcome::Dropped),
            Action::Count(name, times) => {
                let counted = self.count(job, &name, times).await;
                counted.map(|()| EventOutcome::Repeated)
            }
            Action::Create => self.create(job, note).await.map(|name| {
                if let Some(history) = self.histories.lock().get_mut(&job.uid) {
                    history.remember(now, note, name);
                }
                EventOutcome::Written
            }),
        };
        let outcome = done.unwrap_or_else(|error| {
            tracing::warn!(%error, job = job.name, namespace = job.namespace, "an Event is lost");
            EventOutcome::Failed
        });
        self.metrics.event(outcome);
        true
    }

    async fn count(&self, job: &JobIdentity, name: &str, times: i32) -> kube::Result<()> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &job.namespace);
        let series = EventSeries {
            count: times,
            last_observed_time: MicroTime(Timestamp::now()),
        };
        let patch = json!({ "series": series });
        events
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        Ok(())
    }

    async fn create(&self, job: &JobIdentity, note: &EventNote) -> kube::Result<String> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &job.namespace);
        // As Kubernetes names them: the object, a dot, a random number. A name has at most 253 bytes.
        let stem: String = job.name.chars().take(200).collect();
        let name = format!("{stem}.{:016x}", rand::random::<u64>());
        let event = event(job, note, name.clone(), &self.instance);
        events.create(&PostParams::default(), &event).await?;
        Ok(name)
    }
}

fn event(job: &JobIdentity, note: &EventNote, name: String, instance: &str) -> Event {
    let end = (0..=NOTE_MAX.min(note.text.len()))
        .rev()
        .find(|i| note.text.is_char_boundary(*i))
        .unwrap_or(0);
    Event {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(job.namespace.clone()),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(Timestamp::now())),
        reporting_controller: Some("varuna.dev/operator".into()),
        reporting_instance: Some(instance.to_owned()),
        action: Some(note.reason.to_string()),
        reason: Some(note.reason.to_string()),
        type_: Some(if note.warning { "Warning" } else { "Normal" }.into()),
        note: Some(note.text[..end].to_owned()),
        regarding: Some(ObjectReference {
            api_version: Some(API_VERSION.into()),
            kind: Some(KIND.into()),
            name: Some(job.name.clone()),
            namespace: Some(job.namespace.clone()),
            uid: Some(job.uid.clone()),
            ..ObjectReference::default()
        }),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(text: &str) -> EventNote {
        EventNote {
            warning: false,
            lasting: false,
            reason: Reason::Run,
            text: text.into(),
        }
    }

    #[test]
    fn each_sentence_is_an_event_and_a_repeated_one_is_counted() {
        let now = Instant::now();
        let mut history = JobHistory::new(now);
        assert_eq!(history.record(now, &note("a")), Action::Create);
        history.remember(now, &note("a"), "e1".into());
        assert_eq!(history.record(now, &note("b")), Action::Create);
        assert_eq!(history.record(now, &note("a")), Action::Count("e1".into(), 2));
        assert_eq!(
            history.record(now + SAME, &note("a")),
            Action::Create,
            "after a while it is an Event of its own again"
        );
    }

    #[test]
    fn a_lasting_note_is_recorded_once() {
        let now = Instant::now();
        let mut history = JobHistory::new(now);
        let lasting = EventNote {
            lasting: true,
            ..note("a")
        };
        assert_eq!(history.record(now, &lasting), Action::Create);
        history.remember(now, &lasting, "e1".into());
        assert_eq!(history.record(now + SAME / 2, &lasting), Action::Known);
        assert_eq!(
            history.record(now + SAME, &lasting),
            Action::Known,
            "seen in between"
        );
    }

    #[test]
    fn the_rate_of_events_of_a_job_is_limited() {
        let now = Instant::now();
        let mut history = JobHistory::new(now);
        for i in 0..BURST {
            assert_eq!(history.record(now, &note(&i.to_string())), Action::Create);
        }
        assert_eq!(history.record(now, &note("more")), Action::Drop);
        assert_eq!(history.record(now + REFILL, &note("more")), Action::Create);
        assert_eq!(history.record(now + REFILL, &note("more")), Action::Drop);
        for i in 0..BURST {
            history.remember(now, &note(&i.to_string()), String::new());
        }
        assert_eq!(
            history.recorded.len(),
            REMEMBERED,
            "what is remembered is bounded"
        );
    }
}
