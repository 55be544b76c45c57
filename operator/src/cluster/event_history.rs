//! Which sentences of a job were recorded lately, and how many Events it may have: whether a sentence becomes an Event, is counted in one,
//! or is dropped. State only: no clock, no I/O.

use crate::decide::EventNote;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use varuna_api::Reason;

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

/// What is done with a sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Action {
    /// Create an Event.
    Create,
    /// Count it in the Event of this name: how often it was recorded in all.
    Count(String, i32),
    /// Drop it: too many Events.
    Drop,
}

/// An Event that was written, for sentences that are repeated.
#[derive(Debug)]
struct Recorded {
    /// Name of the Event.
    name: String,
    times: i32,
    at: Instant,
}

/// The recent sentences of one job, and its token bucket.
#[derive(Debug)]
pub(super) struct JobHistory {
    tokens: u32,
    refilled: Instant,
    recorded: BTreeMap<(Reason, String), Recorded>,
    /// Sentences that stay true for a while, and when they were last seen.
    lasting: BTreeMap<(Reason, String), Instant>,
}

impl JobHistory {
    /// A job of which nothing was recorded yet.
    pub(super) fn new(now: Instant) -> JobHistory {
        JobHistory {
            tokens: BURST,
            refilled: now,
            recorded: BTreeMap::new(),
            lasting: BTreeMap::new(),
        }
    }

    /// What is done with a sentence. An Event that is to be created or counted takes a token.
    pub(super) fn record(&mut self, now: Instant, note: &EventNote) -> Action {
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
    pub(super) fn forget_old(&mut self, now: Instant) {
        self.recorded.retain(|_, s| now.duration_since(s.at) < SAME);
        self.lasting.retain(|_, seen| now.duration_since(*seen) < SAME);
    }

    /// Whether a sentence that stays true was recorded lately; it is as if it were recorded now.
    pub(super) fn knows(&mut self, now: Instant, note: &EventNote) -> bool {
        let seen = self.lasting.get_mut(&(note.reason, note.text.clone()));
        let seen = seen.filter(|seen| now.duration_since(**seen) < SAME);
        seen.is_some_and(|seen| {
            *seen = now;
            true
        })
    }

    /// Remembers the sentences that stay true and that an Event of this reason contains.
    pub(super) fn remember_lasting(&mut self, now: Instant, reason: Reason, texts: &[String]) {
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

    /// Remembers the Event of this name with a sentence, in which repetitions are counted.
    pub(super) fn remember(&mut self, now: Instant, note: &EventNote, name: String) {
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
