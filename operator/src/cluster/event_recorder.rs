//! Records what happens to a job as Kubernetes Events: each sentence is an Event of its own.
//!
//! kube's own recorder (like client-go's) merges Events with the same reason and keeps only the first text, so sentences would be lost.
//! Here only a repeated sentence is counted in the existing Event. The rate of each job is limited (`event_history.rs`).

use super::connection::within;
use super::event_history::{Action, JobHistory};
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
use varuna_api::manifest::{API_VERSION, KIND};

/// Bytes of an Event's text, which the API server limits to 1024.
pub(super) const NOTE_MAX: usize = 1000;
/// An Event that takes longer to write is lost: others wait for it.
const DEADLINE: Duration = Duration::from_secs(10);
/// If the API server is too busy, it is asked again after this time, or after the time that it says.
const RETRY: Duration = Duration::from_secs(1);

/// Records Events of all jobs.
pub struct EventRecorder {
    client: Client,
    instance: String,
    metrics: Arc<Metrics>,
    deadline: Duration,
    /// The Events of each job, by the job's identity.
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
            deadline: DEADLINE,
            histories: Mutex::default(),
        }
    }

    /// Forgets what no longer counts, also for jobs to which nothing happens: for a thousand jobs that is megabytes.
    pub fn forget_old(&self) {
        let now = Instant::now();
        for history in self.histories.lock().values_mut() {
            history.forget_old(now);
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

    /// Records a sentence. `lasting`: those in it that stay true for a while. What cannot be written is logged and counted.
    pub async fn record(&self, job: &JobIdentity, note: &EventNote, lasting: &[String]) {
        let now = Instant::now();
        let action = self
            .histories
            .lock()
            .entry(job.uid.clone())
            .or_insert_with(|| JobHistory::new(now))
            .record(now, note);
        let done = match action {
            Action::Drop => Ok(EventOutcome::Dropped),
            Action::Count(name, times) => {
                match within(self.deadline, self.count(job, &name, times)).await {
                    // Somebody has deleted it: else what is repeated more often than once in ten minutes would never be recorded again.
                    Err(kube::Error::Api(status)) if status.is_not_found() => {
                        self.record_anew(now, job, note, lasting).await
                    }
                    counted => counted.map(|()| EventOutcome::Repeated),
                }
            }
            Action::Create => self.record_anew(now, job, note, lasting).await,
        };
        let outcome = done.unwrap_or_else(|error| {
            tracing::warn!(%error, job = job.name, namespace = job.namespace, "an Event is lost");
            EventOutcome::Failed
        });
        self.metrics.event(outcome);
    }

    /// Creates an Event, and remembers it.
    async fn record_anew(
        &self,
        now: Instant,
        job: &JobIdentity,
        note: &EventNote,
        lasting: &[String],
    ) -> kube::Result<EventOutcome> {
        let name = within(self.deadline, self.create(job, note)).await?;
        if let Some(history) = self.histories.lock().get_mut(&job.uid) {
            if note.lasting {
                history.remember_lasting(now, note.reason, lasting);
            } else {
                history.remember(now, note, name);
            }
        }
        Ok(EventOutcome::Written)
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
        loop {
            match events.create(&PostParams::default(), &event).await {
                Ok(_) => return Ok(name),
                Err(error) => tokio::time::sleep(again_in(&error).ok_or(error)?).await,
            }
        }
    }
}

/// When to ask an API server again that was too busy; none if it has answered something else.
fn again_in(error: &kube::Error) -> Option<Duration> {
    let kube::Error::Api(status) = error else {
        return None;
    };
    let asked = status.details.as_ref().map_or(0, |d| d.retry_after_seconds);
    (status.code == 429).then(|| RETRY.max(Duration::from_secs(asked.into())))
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
    use crate::cluster::fake_server::{ReceivedRequest, refusal, server};
    use varuna_api::Reason;

    fn note(text: &str) -> EventNote {
        EventNote {
            warning: false,
            lasting: false,
            reason: Reason::Run,
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

    #[tokio::test]
    async fn an_event_that_is_not_answered_holds_up_no_other() {
        let (client, _) = server(|_| None);
        let recorder = EventRecorder {
            deadline: Duration::from_millis(5),
            ..EventRecorder::new(client, "i".into(), Arc::default())
        };
        let (of, said) = (job(), note("a"));
        let recorded = recorder.record(&of, &said, &[]);
        let ended = tokio::time::timeout(Duration::from_secs(30), recorded).await;
        assert!(ended.is_ok(), "it goes on");
        let metrics = recorder.metrics.render();
        assert!(
            metrics.contains(r#"varuna_events_total{kind="failed"} 1"#),
            "{metrics}"
        );
    }

    #[tokio::test]
    async fn repeated_sentence_whose_event_is_gone_is_another_event() {
        let (client, asked) = server(|asked: &ReceivedRequest| match asked.method.as_str() {
            "PATCH" => refusal(404, "NotFound"),
            _ => Some((201, asked.body.clone())),
        });
        let recorder = EventRecorder::new(client, "i".into(), Arc::default());
        for _ in 0..2 {
            recorder.record(&job(), &note("a"), &[]).await;
        }
        let asked = asked.lock();
        let methods: Vec<&str> = asked.iter().map(|one| one.method.as_str()).collect();
        assert_eq!(methods, ["POST", "PATCH", "POST"]);
    }

    #[test]
    fn busy_api_server_is_retried_at_its_time() {
        let refused = |code, seconds: u32| {
            let mut status = kube::core::Status::failure("too many requests", "").with_code(code);
            let details = json!({ "retryAfterSeconds": seconds });
            status.details = serde_json::from_value(details).ok();
            again_in(&kube::Error::Api(Box::new(status)))
        };
        assert_eq!(refused(429, 0), Some(RETRY));
        assert_eq!(refused(429, 3), Some(Duration::from_secs(3)));
        assert_eq!(refused(403, 3), None);
    }
}
