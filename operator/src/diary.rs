//! A job's diary as Kubernetes Events: each sentence an Event of its own.
//!
//! kube's own recorder (like client-go's) folds Events of one reason into one and keeps the first text only: a diary would lose its
//! lines. Here only the same sentence said again is counted in the Event that is there. A job that says too much is cut short.

use crate::context::lock;
use crate::decide::{JobSeen, Note};
use crate::metrics::Metrics;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use varuna_api::manifest::{API_VERSION, KIND};

/// An Event's note may have so many bytes.
const NOTE_MAX: usize = 1000;
/// So many Events of a job at once: a plan's story is ten lines, and a node takes eight workers with it.
const BURST: u32 = 100;
/// Then one in this time: 12 a minute keep the API server's hour of Events below a thousand for each job.
const REFILL: Duration = Duration::from_secs(5);
/// The same sentence within this is the same Event.
const SAME: Duration = Duration::from_secs(600);
/// Sentences that are remembered for a job.
const REMEMBERED: usize = 32;

/// What is to be done with a sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Verdict {
    /// A new Event.
    Write,
    /// It was said before, in the Event of this name: so many times in all.
    Repeat(String, i32),
    /// It is news no more.
    Known,
    /// Too many.
    Drop,
}

#[derive(Debug)]
struct Said {
    name: String,
    times: i32,
    at: Instant,
}

/// What one job has said lately.
#[derive(Debug)]
struct Voice {
    tokens: u32,
    refilled: Instant,
    said: BTreeMap<(&'static str, String), Said>,
}

impl Voice {
    fn new(now: Instant) -> Voice {
        Voice {
            tokens: BURST,
            refilled: now,
            said: BTreeMap::new(),
        }
    }

    fn judge(&mut self, now: Instant, note: &Note) -> Verdict {
        let gained = now.duration_since(self.refilled).as_secs() / REFILL.as_secs();
        let gained = u32::try_from(gained).unwrap_or(BURST);
        self.tokens = self.tokens.saturating_add(gained).min(BURST);
        self.refilled += REFILL * gained;
        self.said.retain(|_, s| now.duration_since(s.at) < SAME);
        let said = self.said.get_mut(&(note.reason, note.text.clone()));
        if let Some(said) = said.filter(|_| note.once) {
            said.at = now;
            return Verdict::Known;
        }
        if self.tokens == 0 {
            return Verdict::Drop;
        }
        self.tokens -= 1;
        match self.said.get_mut(&(note.reason, note.text.clone())) {
            Some(said) => {
                said.times += 1;
                said.at = now;
                Verdict::Repeat(said.name.clone(), said.times)
            }
            None => Verdict::Write,
        }
    }

    fn remember(&mut self, now: Instant, note: &Note, name: String) {
        if self.said.len() >= REMEMBERED {
            let oldest = self.said.iter().min_by_key(|(_, s)| s.at).map(|(k, _)| k.clone());
            self.said.retain(|k, _| Some(k) != oldest.as_ref());
        }
        let said = Said {
            name,
            times: 1,
            at: now,
        };
        self.said.insert((note.reason, note.text.clone()), said);
    }
}

/// Writes the diaries of all jobs.
pub struct Diary {
    client: Client,
    instance: String,
    metrics: Arc<Metrics>,
    /// By the job's identity.
    voices: Mutex<BTreeMap<String, Voice>>,
}

impl Diary {
    /// A diary whose Events say that they come from the process of this name.
    #[must_use]
    pub fn new(client: Client, instance: String, metrics: Arc<Metrics>) -> Diary {
        Diary {
            client,
            instance,
            metrics,
            voices: Mutex::default(),
        }
    }

    /// Forgets jobs that are no more.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        lock(&self.voices).retain(|uid, _| exists(uid));
    }

    /// Writes one sentence; whether it was news. What cannot be written is logged and counted.
    pub async fn write(&self, job: &JobSeen, note: &Note) -> bool {
        let now = Instant::now();
        let verdict = lock(&self.voices)
            .entry(job.uid.clone())
            .or_insert_with(|| Voice::new(now))
            .judge(now, note);
        let done = match verdict {
            Verdict::Known => return false,
            Verdict::Drop => Ok("dropped"),
            Verdict::Repeat(name, times) => self.repeat(job, &name, times).await.map(|()| "repeated"),
            Verdict::Write => self.create(job, note).await.map(|name| {
                if let Some(voice) = lock(&self.voices).get_mut(&job.uid) {
                    voice.remember(now, note, name);
                }
                "written"
            }),
        };
        let kind = done.unwrap_or_else(|error| {
            tracing::warn!(%error, job = job.name, namespace = job.namespace, "an Event is lost");
            "failed"
        });
        self.metrics.event(kind);
        true
    }

    async fn repeat(&self, job: &JobSeen, name: &str, times: i32) -> kube::Result<()> {
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

    async fn create(&self, job: &JobSeen, note: &Note) -> kube::Result<String> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &job.namespace);
        // As Kubernetes names them: the object, a dot, a number that is nobody else's. A name has at most 253 bytes.
        let stem: String = job.name.chars().take(200).collect();
        let name = format!("{stem}.{:016x}", rand::random::<u64>());
        let event = event(job, note, name.clone(), &self.instance);
        events.create(&PostParams::default(), &event).await?;
        Ok(name)
    }
}

fn event(job: &JobSeen, note: &Note, name: String, instance: &str) -> Event {
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
        action: Some(note.reason.into()),
        reason: Some(note.reason.into()),
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

    fn note(text: &str) -> Note {
        Note {
            warning: false,
            once: false,
            reason: "Run",
            text: text.into(),
        }
    }

    #[test]
    fn each_sentence_is_an_event_and_a_repeated_one_is_counted() {
        let now = Instant::now();
        let mut voice = Voice::new(now);
        assert_eq!(voice.judge(now, &note("a")), Verdict::Write);
        voice.remember(now, &note("a"), "e1".into());
        assert_eq!(voice.judge(now, &note("b")), Verdict::Write);
        assert_eq!(voice.judge(now, &note("a")), Verdict::Repeat("e1".into(), 2));
        assert_eq!(
            voice.judge(now + SAME, &note("a")),
            Verdict::Write,
            "after a while it is news again"
        );
    }

    #[test]
    fn what_is_seen_for_a_while_is_news_once() {
        let now = Instant::now();
        let mut voice = Voice::new(now);
        let lasting = Note {
            once: true,
            ..note("a")
        };
        assert_eq!(voice.judge(now, &lasting), Verdict::Write);
        voice.remember(now, &lasting, "e1".into());
        assert_eq!(voice.judge(now + SAME / 2, &lasting), Verdict::Known);
        assert_eq!(
            voice.judge(now + SAME, &lasting),
            Verdict::Known,
            "seen in between"
        );
    }

    #[test]
    fn a_job_that_says_too_much_is_cut_short_and_heard_again_later() {
        let now = Instant::now();
        let mut voice = Voice::new(now);
        for i in 0..BURST {
            assert_eq!(voice.judge(now, &note(&i.to_string())), Verdict::Write);
        }
        assert_eq!(voice.judge(now, &note("more")), Verdict::Drop);
        assert_eq!(voice.judge(now + REFILL, &note("more")), Verdict::Write);
        assert_eq!(voice.judge(now + REFILL, &note("more")), Verdict::Drop);
        for i in 0..BURST {
            voice.remember(now, &note(&i.to_string()), String::new());
        }
        assert_eq!(voice.said.len(), REMEMBERED, "what is remembered is bounded");
    }
}
