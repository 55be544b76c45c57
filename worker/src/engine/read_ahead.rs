//! Reads samples beside the engine's work, on a thread of its own and a few micro-batches ahead.
//!
//! The engine says what it will ask for, in order. What it does ask for is what it gets: a sample is told by its number, and who asks for
//! something that was not expected waits for its read as if there were no thread.

use super::{EngineError, SampleError, Samples};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Instant;

/// Micro-batches that are read and not asked for yet: one is needed next, one while that is computed with.
pub(super) const READY: usize = 2;

/// Where a sample is from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Split {
    Train,
    HeldOut,
}

/// Samples that are read together: a micro-batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Rows {
    pub(super) split: Split,
    /// Numbers in the split's order.
    pub(super) samples: Vec<u64>,
}

type Tokens = Result<Vec<i64>, SampleError>;
/// What became of a read; an error is what it panicked with.
type Outcome = std::thread::Result<Tokens>;

#[derive(Default)]
struct State {
    /// What is not begun.
    wanted: VecDeque<Rows>,
    /// What the thread reads now; none once nobody expects it any more.
    reading: Option<Rows>,
    /// At most [`READY`].
    ready: VecDeque<(Rows, Outcome)>,
    closed: bool,
}

struct Shared {
    samples: Arc<dyn Samples>,
    /// Tokens of a sample: inputs and, shifted by one, targets.
    row: usize,
    state: Mutex<State>,
    changed: Condvar,
}

/// The thread's owner. The thread ends when this is dropped, and its read has ended.
pub(super) struct ReadAhead {
    shared: Arc<Shared>,
    thread: Thread,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Thread {
    NotStarted,
    Started,
    /// Nothing is expected: who asks reads.
    Never,
}

impl State {
    /// The rows that are read or being read, in order.
    fn begun(&self) -> impl Iterator<Item = &Rows> {
        let ready = self.ready.iter().map(|(rows, _)| rows);
        ready.chain(self.reading.as_ref())
    }
}

impl Shared {
    fn read(&self, rows: &Rows) -> Tokens {
        let mut tokens = vec![0; rows.samples.len() * self.row];
        for (row, sample) in tokens.chunks_exact_mut(self.row).zip(&rows.samples) {
            match rows.split {
                Split::Train => self.samples.train(*sample, row),
                Split::HeldOut => self.samples.held_out(*sample, row),
            }?;
        }
        Ok(tokens)
    }

    /// The thread: reads what is wanted, as long as there is place for it.
    fn serve(&self) {
        let mut state = self.state.lock();
        while !state.closed {
            let next = match state.ready.len() < READY {
                true => state.wanted.pop_front(),
                false => None,
            };
            let Some(rows) = next else {
                self.changed.wait(&mut state);
                continue;
            };
            state.reading = Some(rows.clone());
            drop(state);
            let outcome = catch_unwind(AssertUnwindSafe(|| self.read(&rows)));
            state = self.state.lock();
            // Else it was forgotten meanwhile.
            if state.reading.as_ref() == Some(&rows) {
                state.reading = None;
                state.ready.push_back((rows, outcome));
            }
            self.changed.notify_all();
        }
    }
}

impl ReadAhead {
    /// For samples of `row` tokens.
    pub(super) fn new(samples: Arc<dyn Samples>, row: usize) -> ReadAhead {
        ReadAhead {
            shared: Arc::new(Shared {
                samples,
                row,
                state: Mutex::default(),
                changed: Condvar::new(),
            }),
            thread: Thread::NotStarted,
        }
    }

    /// The same where nothing is read ahead.
    pub(super) fn without(samples: Arc<dyn Samples>, row: usize) -> ReadAhead {
        let mut reader = ReadAhead::new(samples, row);
        reader.thread = Thread::Never;
        reader
    }

    /// From now on these will be asked for, in this order. What was read for another order is forgotten.
    ///
    /// # Errors
    /// The thread does not start.
    pub(super) fn expect(&mut self, next: Vec<Rows>) -> Result<(), EngineError> {
        if self.thread == Thread::Never {
            return Ok(());
        }
        if self.thread == Thread::NotStarted {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("read-ahead".into());
            let started = thread.spawn(move || shared.serve());
            started.map_err(|e| EngineError::Thread("that reads samples", e.to_string()))?;
            self.thread = Thread::Started;
        }
        let mut state = self.shared.state.lock();
        let begun = state.begun().count();
        let mut next = VecDeque::from(next);
        if begun <= next.len() && state.begun().eq(next.iter().take(begun)) {
            next.drain(..begun);
        } else {
            state.ready.clear();
            state.reading = None;
        }
        state.wanted = next;
        drop(state);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// The tokens of these samples, one sample after the other.
    ///
    /// # Errors
    /// One cannot be read, or was not read by the deadline. Where the read panicked, so does this.
    pub(super) fn take(&self, rows: &Rows, deadline: Instant) -> Tokens {
        let mut state = self.shared.state.lock();
        while state.begun().chain(&state.wanted).next() == Some(rows) {
            if let Some((_, outcome)) = state.ready.pop_front() {
                drop(state);
                self.shared.changed.notify_all();
                return outcome.unwrap_or_else(|panic| resume_unwind(panic));
            }
            if self.shared.changed.wait_until(&mut state, deadline).timed_out() {
                return Err(SampleError {
                    index: rows.samples.first().copied().unwrap_or(0),
                    why: "the read did not end by the deadline of the step that needs it".to_owned(),
                });
            }
        }
        drop(state);
        self.shared.read(rows)
    }

    /// What will be asked for next, if it is read already and its read succeeded.
    pub(super) fn take_ready(&self) -> Option<(Rows, Vec<i64>)> {
        let mut state = self.shared.state.lock();
        let succeeded = |first: &mut (Rows, Outcome)| matches!(first.1, Ok(Ok(_)));
        let (rows, outcome) = state.ready.pop_front_if(succeeded)?;
        drop(state);
        self.shared.changed.notify_all();
        Some((rows, outcome.ok()?.ok()?))
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    /// Each sample has its number, or one more in the held-out split; 13 cannot be read.
    struct Numbers;

    impl Samples for Numbers {
        fn train(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
            if index == 13 {
                let why = "a hole".to_owned();
                return Err(SampleError { index, why });
            }
            tokens.fill(i64::try_from(index).unwrap());
            Ok(())
        }
        fn held_out(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
            self.train(index + 1, tokens)
        }
        fn held_out_len(&self) -> u64 {
            5
        }
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    fn rows() -> impl Strategy<Value = Rows> {
        let split = prop_oneof![Just(Split::Train), Just(Split::HeldOut)];
        let samples = prop::collection::vec(0..16u64, 0..3);
        (split, samples).prop_map(|(split, samples)| Rows { split, samples })
    }

    /// What is done with it: expect these, take one, take what is ready.
    #[derive(Clone, Debug)]
    enum Act {
        Expect(Vec<Rows>),
        Take(Rows),
        TakeReady,
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            prop::collection::vec(rows(), 0..6).prop_map(Act::Expect),
            rows().prop_map(Act::Take),
            Just(Act::TakeReady),
        ]
    }

    proptest! {
        #[test]
        fn whatever_is_expected_who_asks_gets_what_a_read_would_give(acts in prop::collection::vec(act(), 1..40)) {
            let mut ahead = ReadAhead::new(Arc::new(Numbers), 3);
            let direct = ReadAhead::new(Arc::new(Numbers), 3);
            let mut expected = VecDeque::new();
            for act in acts {
                match act {
                    Act::Expect(next) => {
                        expected = VecDeque::from(next.clone());
                        ahead.expect(next).unwrap();
                    }
                    // In turn every second time, so that the thread's reads are used.
                    Act::Take(other) => {
                        let rows = expected.pop_front().unwrap_or(other);
                        prop_assert_eq!(ahead.take(&rows, later()), direct.shared.read(&rows));
                    }
                    Act::TakeReady => {
                        if let Some((rows, tokens)) = ahead.take_ready() {
                            prop_assert_eq!(Some(rows.clone()), expected.pop_front());
                            prop_assert_eq!(Ok(tokens), direct.shared.read(&rows));
                        }
                    }
                }
                prop_assert!(ahead.shared.state.lock().ready.len() <= READY);
            }
        }
    }

    /// A store whose reads end when the test says so.
    struct Slow(Mutex<std::sync::mpsc::Receiver<()>>);

    impl Samples for Slow {
        fn train(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
            self.0.lock().recv().unwrap();
            Numbers.train(index, tokens)
        }
        fn held_out(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
            self.train(index, tokens)
        }
        fn held_out_len(&self) -> u64 {
            0
        }
    }

    #[test]
    fn a_read_that_does_not_end_is_waited_for_until_the_deadline_and_named() {
        let (end, ends) = std::sync::mpsc::channel();
        let mut ahead = ReadAhead::new(Arc::new(Slow(Mutex::new(ends))), 3);
        let rows = |sample| Rows {
            split: Split::Train,
            samples: vec![sample],
        };
        ahead.expect(vec![rows(7), rows(8)]).unwrap();
        let late = ahead.take(&rows(7), Instant::now()).unwrap_err();
        assert_eq!((late.index, late.why.contains("deadline")), (7, true));
        end.send(()).unwrap();
        assert_eq!(ahead.take(&rows(7), later()), Ok(vec![7; 3]));
        // What is being read and no longer expected is not mistaken for what is.
        ahead.expect(vec![rows(9)]).unwrap();
        end.send(()).unwrap();
        end.send(()).unwrap();
        assert_eq!(ahead.take(&rows(9), later()), Ok(vec![9; 3]));
    }
}
