//! Records what happens to a job as Kubernetes Events: each sentence is an Event of its own.
//!
//! kube's own recorder (like client-go's) merges Events with the same reason and keeps only the first text, so sentences would be lost.
//! Here only a repeated sentence is counted in the existing Event. The rate of each job is limited.

use super::connection::within;
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
/// Sentences that stay true leave this many of them for other sentences: with one for each pod of a large job they would use up all of
/// them.
const KEPT_FOR_OTHERS: u32 = BURST / 2;
/// The same sentence within this time is counted in the same Event.
const SAME: Duration = Duration::from_secs(600);
/// Sentences remembered for each job.
const REMEMBERED: usize = 32;
/// How many sentences that stay true are remembered. Each reconciliation finds all of them again, perhaps one for each pod, and a forgotten
/// one would become another Event. As many as pods that go at once in a large job; they take 0.6 MB.
const LASTING_REMEMBERED: usize = 4096;
/// An Event that takes longer to write is lost: others wait for it.
const DEADLINE: Duration = Duration::from_secs(10);
/// If the API server is too busy, it is asked again after this time, or after the time that it says.
const RETRY: Duration = Duration::from_secs(1);

/// What is done with a sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Action {
    /// Create an Event.
    Create,
    /// Count it in the Event of this name: how often it was recorded in all.
    Count(String, i32),
    /// Drop it: too many Events.
    Drop,
}

#[derive(Debug)]
struct Recorded {
    /// Name of the Event.
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
    /// Sentences that stay true for a while, and when they were last seen.
    lasting: BTreeMap<(Reason, String), Instant>,
}

impl JobHistory {
    fn new(now: Instant) -> JobHistory {
        JobHistory {
            tokens: BURST,
            refilled: now,
            recorded: BTreeMap::new(),
            lasting: BTreeMap::new(),
        }
    }

    fn record(&mut self, now: Instant, note: &EventNote) -> Action {
        let gained = now.duration_since(self.refilled).as_secs() / REFILL.as_secs();
        let gained = u32::try_from(gained).unwrap_or(BURST);
        self.tokens = self.tokens.saturating_add(gained).min(BURST);
        self.refilled += REFILL * gained;
        self.forget_old(now);
        let kept = if note.lasting { KEPT_FOR_OTHERS } else { 0 };
        if self.tokens <= kept {
            return Action::Drop;
        }
        self.tokens -= 1;
        match self.recorded.get_mut(&(note.reason, note.text.clone())) {
            Some(same) if !note.lasting => {
                same.times += 1;
                same.at = now;
                Action::Count(same.name.clone(), same.times)
            }
            _ => Action::Create,
        }
    }

    /// Forgets sentences that would be Events of their own by now.
    fn forget_old(&mut self, now: Instant) {
        self.recorded.retain(|_, s| now.duration_since(s.at) < SAME);
        self.lasting.retain(|_, seen| now.duration_since(*seen) < SAME);
    }

    /// Whether a sentence that stays true was recorded lately; it is as if it were recorded now.
    fn knows(&mut self, now: Instant, note: &EventNote) -> bool {
        let seen = self.lasting.get_mut(&(note.reason, note.text.clone()));
        let seen = seen.filter(|seen| now.duration_since(**seen) < SAME);
        seen.is_some_and(|seen| {
            *seen = now;
            true
        })
    }

    /// Remembers the sentences that stay true and that an Event of this reason contains.
    fn remember_lasting(&mut self, now: Instant, reason: Reason, texts: &[String]) {
        for text in texts {
            if self.lasting.len() >= LASTING_REMEMBERED {
                let oldest = self.lasting.iter().min_by_key(|(_, seen)| **seen);
                if let Some(oldest) = oldest.map(|(sentence, _)| sentence.clone()) {
                    self.lasting.remove(&oldest);
                }
            }
            self.lasting.insert((reason, text.clone()), now);
        }
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
                let counted = within(self.deadline, self.count(job, &name, times)).await;
                counted.map(|()| EventOutcome::Repeated)
            }
            Action::Create => {
                let created = within(self.deadline, self.create(job, note)).await;
                created.map(|name| {
                    if let Some(history) = self.histories.lock().get_mut(&job.uid) {
                        if note.lasting {
                            history.remember_lasting(now, note.reason, lasting);
                        } else {
                            history.remember(now, note, name);
                        }
                    }
                    EventOutcome::Written
                })
            }
        };
        let outcome = done.unwrap_or_else(|error| {
            tracing::warn!(%error, job = job.name, namespace = job.namespace, "an Event is lost");
            EventOutcome::Failed
        });
        self.metrics.event(outcome);
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
    use crate::cluster::fake_server::server;

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
    fn what_is_old_is_forgotten_also_where_nothing_happens() {
        let now = Instant::now();
        let mut history = JobHistory::new(now);
        history.remember(now, &note("a"), "e1".into());
        history.remember_lasting(now, Reason::Run, &["b".into()]);
        history.forget_old(now + SAME / 2);
        assert_eq!((history.recorded.len(), history.lasting.len()), (1, 1));
        history.forget_old(now + SAME);
        assert_eq!((history.recorded.len(), history.lasting.len()), (0, 0));
    }

    fn lasting(text: &str) -> EventNote {
        EventNote {
            lasting: true,
            ..note(text)
        }
    }

    #[test]
    fn a_lasting_note_is_recorded_once() {
        let now = Instant::now();
        let mut history = JobHistory::new(now);
        assert!(!history.knows(now, &lasting("a")));
        assert_eq!(history.record(now, &lasting("a")), Action::Create);
        history.remember_lasting(now, Reason::Run, &["a".into()]);
        assert!(history.knows(now + SAME / 2, &lasting("a")));
        assert!(history.knows(now + SAME, &lasting("a")), "seen in between");
        assert!(
            !history.knows(now + 2 * SAME, &lasting("a")),
            "after a while it is news"
        );
        assert!(!history.knows(now, &lasting("b")));
    }

    #[test]
    fn lasting_facts_leave_room_for_other_events() {
        let now = Instant::now();
        let mut history = JobHistory::new(now);
        let pods: Vec<String> = (0..1000).map(|i| format!("pod j-w{i} is taken away")).collect();
        history.remember_lasting(now, Reason::Run, &pods);
        for text in &pods {
            assert!(
                history.knows(now, &lasting(text)),
                "{text}: it would be an Event again"
            );
        }
        let mut written = 0_u32;
        while history.record(now, &lasting(&written.to_string())) == Action::Create {
            written += 1;
        }
        assert_eq!(written, BURST - KEPT_FOR_OTHERS);
        assert_eq!(history.record(now, &note("a step was lost")), Action::Create);
        let many: Vec<String> = (0..=LASTING_REMEMBERED).map(|i| i.to_string()).collect();
        history.remember_lasting(now, Reason::Run, &many);
        assert_eq!(history.lasting.len(), LASTING_REMEMBERED, "bounded");
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
