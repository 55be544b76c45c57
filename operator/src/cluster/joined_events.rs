//! Which sentences that came together become one Event. Pure.

use super::event_recorder::NOTE_MAX;
use crate::decide::EventNote;
use varuna_api::Reason;

/// The reasons of sentences about one change of plan, from its beginning to its end. The last of these reasons that occurs becomes the
/// reason of the joined Event.
const OF_A_CHANGE: [Reason; 3] = [Reason::Run, Reason::Planned, Reason::Resumed];

/// Place of a reason in [`OF_A_CHANGE`].
fn place(reason: Reason) -> Option<usize> {
    OF_A_CHANGE.iter().position(|of_a_change| *of_a_change == reason)
}

/// An Event that joins several messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct JoinedNote {
    /// Content of the Event.
    pub(super) note: EventNote,
    /// The sentences in it, if they stay true for a while: whether it was recorded is checked for each of them separately.
    pub(super) lasting: Vec<String>,
}

/// Sentences that become one Event.
struct Joined {
    warning: bool,
    lasting: bool,
    /// Texts by reason, in the order in which the reasons came.
    texts: Vec<(Reason, String)>,
    /// One by one, if they stay true for a while.
    sentences: Vec<String>,
}

impl Joined {
    fn new(note: &EventNote) -> Joined {
        let mut joined = Joined {
            warning: note.warning,
            lasting: note.lasting,
            texts: vec![],
            sentences: vec![],
        };
        joined.add(note);
        joined
    }

    /// Bytes of the text, each reason counted.
    fn len(&self) -> usize {
        let lens = self
            .texts
            .iter()
            .map(|(reason, text)| reason.as_str().len() + text.len() + 4);
        lens.sum()
    }

    fn takes(&self, note: &EventNote) -> bool {
        let of_a_change = |reason| place(reason).is_some();
        let first = self.texts.first().map(|(reason, _)| *reason);
        let fits_reason = first
            .is_some_and(|first| first == note.reason || (of_a_change(first) && of_a_change(note.reason)));
        let added = note.reason.as_str().len() + note.text.len() + 4;
        let same = self.lasting == note.lasting && self.warning == note.warning;
        same && fits_reason && self.len() + added <= NOTE_MAX
    }

    fn add(&mut self, note: &EventNote) {
        match self.texts.iter_mut().find(|(reason, _)| *reason == note.reason) {
            Some((_, text)) => *text = format!("{text}; {}", note.text),
            None => self.texts.push((note.reason, note.text.clone())),
        }
        if self.lasting {
            self.sentences.push(note.text.clone());
        }
    }

    fn into_note(self) -> JoinedNote {
        let named = self
            .texts
            .iter()
            .map(|(reason, _)| *reason)
            .max_by_key(|r| place(*r));
        let reason = named.unwrap_or(Reason::Run);
        // The sentences of the Event's own reason first; the others' say which is theirs.
        let (own, others): (Vec<_>, Vec<_>) = self.texts.into_iter().partition(|(r, _)| *r == reason);
        let own = own.into_iter().map(|(_, text)| text);
        let others = others.into_iter().map(|(r, text)| format!("{r}: {text}"));
        JoinedNote {
            note: EventNote {
                warning: self.warning,
                lasting: self.lasting,
                reason,
                text: own.chain(others).collect::<Vec<_>>().join("; "),
            },
            lasting: self.sentences,
        }
    }
}

/// The Events for sentences that came together: one Event for each reason, and one for all sentences about one change of plan, as far as
/// there is room. Warnings keep their reasons, because people and alert rules search for them. A sentence that stays true for a while is
/// recorded once, so it is never joined with others.
pub(super) fn joined(notes: &[EventNote]) -> Vec<JoinedNote> {
    let mut all: Vec<Joined> = vec![];
    for note in notes {
        if let Some(joined) = all.iter_mut().rfind(|joined| joined.takes(note)) {
            joined.add(note);
            continue;
        }
        all.push(Joined::new(note));
    }
    all.into_iter().map(Joined::into_note).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(reason: Reason, text: &str) -> EventNote {
        EventNote {
            warning: false,
            lasting: false,
            reason,
            text: text.into(),
        }
    }

    fn events(notes: &[EventNote]) -> Vec<EventNote> {
        joined(notes).into_iter().map(|event| event.note).collect()
    }

    #[test]
    fn joint_preemptions_are_few_events() {
        let pod = |i: usize| EventNote {
            warning: true,
            lasting: true,
            ..note(
                Reason::WorkerPreempted,
                &format!("pod job-w{i}-0a1b2c3d on node-{i} is taken away (PreemptionByScheduler)"),
            )
        };
        let pods: Vec<EventNote> = (0..40).map(pod).collect();
        let all = joined(&pods);
        assert!(all.len() <= 5, "{}", all.len());
        assert!(
            all.iter()
                .all(|e| e.note.lasting && e.note.text.len() <= NOTE_MAX)
        );
        let told: Vec<&String> = all.iter().flat_map(|e| &e.lasting).collect();
        assert_eq!(told, pods.iter().map(|pod| &pod.text).collect::<Vec<_>>());
        let once = joined(&[note(Reason::Run, "a")]);
        assert!(once[0].lasting.is_empty(), "it is over when it is told");
    }

    #[test]
    fn sentences_of_one_reason_that_come_together_are_one_event() {
        let warning = |text: &str| EventNote {
            warning: true,
            ..note(Reason::WorkerPreempted, text)
        };
        let lasting = EventNote {
            lasting: true,
            ..warning("e")
        };
        let notes = [
            warning("a"),
            note(Reason::Phase, "b"),
            warning("c"),
            lasting.clone(),
        ];
        let expected = [warning("a; c"), note(Reason::Phase, "b"), lasting];
        assert_eq!(events(&notes), expected);
    }

    #[test]
    fn change_of_plan_is_one_event() {
        let lost = EventNote {
            warning: true,
            ..note(Reason::WorkerLost, "w")
        };
        let notes = [
            note(Reason::Run, "lost w1"),
            lost.clone(),
            note(Reason::Planned, "plan 2"),
            note(Reason::Run, "planned"),
            note(Reason::Resumed, "after 61 ms"),
        ];
        let text = "after 61 ms; Run: lost w1; planned; Planned: plan 2";
        assert_eq!(events(&notes), [note(Reason::Resumed, text), lost]);
        assert_eq!(
            events(&notes[..1]),
            [note(Reason::Run, "lost w1")],
            "what came alone says no reason twice"
        );
    }

    #[test]
    fn what_has_no_room_is_an_event_of_its_own() {
        let long = "x".repeat(NOTE_MAX - 8);
        let notes = [note(Reason::Run, &long), note(Reason::Planned, "y")];
        assert_eq!(events(&notes), notes, "nothing is cut off");
        let many: Vec<_> = (0..100)
            .map(|i| note(OF_A_CHANGE[i % 3], &"z".repeat(40)))
            .collect();
        let events = events(&many);
        assert!(events.iter().all(|e| e.text.len() <= NOTE_MAX), "{events:?}");
        let sentences = events.iter().map(|e| e.text.matches("zzz").count());
        assert!(sentences.sum::<usize>() > 100, "none is lost");
    }
}
