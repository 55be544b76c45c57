//! Reads samples on a separate thread, in parallel with the engine's work and a few micro-batches ahead.
//!
//! The engine says in advance what it will ask for, in order. It always gets what it asks for: a sample is identified by its number, and a
//! request that was not expected waits for its read as if there were no thread.

use super::masked::{MaskedSamples, chosen, hide, leave_targets};
use super::{EngineConfig, EngineError, SampleError, Samples, Split};
use crate::ablation::Ablation;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Micro-batches that are read and not asked for yet: one is needed next, one while that is computed with.
pub(super) const READY: usize = 2;

/// How often a waiting reader checks whether it should still wait.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A read that takes longer is late. Reads from a store that answers are far shorter, and the deadline of a step is longer.
const LATE: Duration = Duration::from_secs(2);

/// The most samples that are announced before they are read: if reads take long, they are under way together.
const ANNOUNCED: usize = 256;

/// What is read of samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Field {
    /// Their tokens, one sample after the other: inputs and, shifted by one, targets. With masking they are only inputs.
    Tokens,
    /// Where tokens are masked: their targets, shifted by one as well.
    MaskedTargets,
    /// The positions of the same tokens within their documents.
    Positions,
    /// One number: the targets of all samples that do not begin a document; where tokens are masked, those that are to be filled in.
    TargetCount,
}

/// Samples that are read together: a micro-batch, or a batch of which something is counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Rows {
    pub(super) field: Field,
    pub(super) split: Split,
    /// Numbers in the split's order.
    pub(super) samples: Vec<u64>,
}

type Numbers = Result<Vec<i64>, SampleError>;
/// What became of a read; an error is what it panicked with.
type Outcome = std::thread::Result<Numbers>;

#[derive(Default)]
struct State {
    /// Rows whose reads have not begun.
    wanted: VecDeque<Rows>,
    /// What the thread reads now; none once nobody expects it any more.
    reading: Option<Rows>,
    /// Since when it reads, whether that is still expected or not.
    since: Option<Instant>,
    /// Grows when what is read, or was, is expected no more: the thread then gives its read up as soon as it can.
    order: u64,
    /// How many of the first wanted samples were announced.
    announced: usize,
    /// Rows that were read; at most [`READY`].
    ready: VecDeque<(Rows, Outcome)>,
    closed: bool,
}

struct Shared {
    samples: Arc<dyn Samples>,
    masked: Option<MaskedSamples>,
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
    /// No reads are expected: whoever needs a sample reads it itself.
    Never,
}

impl State {
    /// What was not announced yet of what is wanted next.
    fn next_to_announce(&mut self) -> Vec<Rows> {
        let announced = self.announced.saturating_sub(1);
        let mut samples = 0;
        let next = self.wanted.iter().take_while(|rows| {
            samples += rows.samples.len();
            samples <= ANNOUNCED
        });
        let coming: Vec<Rows> = next.skip(announced).cloned().collect();
        self.announced = announced + coming.len();
        coming
    }

    /// What is expected has not come for long, or cannot be read.
    fn is_late(&self, now: Instant) -> bool {
        let expected = self.reading.is_some() || !self.wanted.is_empty();
        let since = self.since.filter(|_| expected);
        let failed = |(_, outcome): &(Rows, Outcome)| matches!(outcome, Ok(Err(_)));
        since.is_some_and(|since| now.duration_since(since) >= LATE) || self.ready.iter().any(failed)
    }

    /// The rows that are read or being read, in order.
    fn begun(&self) -> impl Iterator<Item = &Rows> {
        let ready = self.ready.iter().map(|(rows, _)| rows);
        ready.chain(self.reading.as_ref())
    }
}

impl Shared {
    /// The read stops between samples, and between attempts to read one, once `wanted` says no.
    fn read(&self, rows: &Rows, wanted: &mut dyn FnMut() -> bool) -> Numbers {
        if rows.field == Field::TargetCount {
            return Ok(vec![self.count_targets(rows, wanted)?]);
        }
        let mut numbers = vec![0; rows.samples.len() * self.row];
        let places = numbers.chunks_exact_mut(self.row).zip(&rows.samples);
        for (i, (row, sample)) in places.enumerate() {
            if i > 0 && !wanted() {
                return Err(late(rows));
            }
            match rows.field {
                Field::Tokens | Field::MaskedTargets => self.tokens(rows, *sample, row, wanted),
                Field::Positions | Field::TargetCount => {
                    self.samples
                        .read_while(rows.split.positions(), *sample, row, wanted)
                }
            }?;
        }
        Ok(numbers)
    }

    fn tokens(
        &self,
        rows: &Rows,
        sample: u64,
        row: &mut [i64],
        wanted: &mut dyn FnMut() -> bool,
    ) -> Result<(), SampleError> {
        self.samples
            .read_while(rows.split.tokens(), sample, row, wanted)?;
        if let Some(masked) = self.masked {
            let mask = masked.mask(rows.split, sample);
            match rows.field {
                Field::MaskedTargets => leave_targets(&mask, row),
                _ => hide(&mask, row),
            }
        }
        Ok(())
    }

    fn count_targets(&self, rows: &Rows, wanted: &mut dyn FnMut() -> bool) -> Result<i64, SampleError> {
        let mut row = vec![0; self.row];
        let mut count = 0;
        for (i, sample) in rows.samples.iter().enumerate() {
            if i > 0 && !wanted() {
                return Err(late(rows));
            }
            // A batch may have more samples than are announced before.
            if i.is_multiple_of(ANNOUNCED) {
                let end = rows.samples.len().min(i + ANNOUNCED);
                self.announce(rows, &rows.samples[i..end]);
            }
            count += match self.masked {
                // The last token is no input.
                Some(masked) => chosen(&masked.mask(rows.split, *sample), self.row.saturating_sub(1)),
                None => {
                    let part = rows.split.positions();
                    self.samples.read_while(part, *sample, &mut row, wanted)?;
                    row.iter().skip(1).filter(|position| **position != 0).count()
                }
            };
        }
        Ok(i64::try_from(count).unwrap_or(i64::MAX))
    }

    /// Announces that these samples, some of the rows' or all, are read soon.
    fn announce(&self, rows: &Rows, samples: &[u64]) {
        let part = match rows.field {
            Field::Tokens | Field::MaskedTargets => rows.split.tokens(),
            // Which tokens are masked does not depend on the data.
            Field::TargetCount if self.masked.is_some() => return,
            Field::Positions | Field::TargetCount => rows.split.positions(),
        };
        samples
            .iter()
            .for_each(|sample| self.samples.prefetch(part, *sample));
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
            state.since = Some(Instant::now());
            let order = state.order;
            let coming = state.next_to_announce();
            drop(state);
            coming.iter().for_each(|rows| self.announce(rows, &rows.samples));
            let mut wanted = || {
                let state = self.state.lock();
                state.order == order && !state.closed
            };
            let outcome = catch_unwind(AssertUnwindSafe(|| self.read(&rows, &mut wanted)));
            state = self.state.lock();
            state.since = None;
            // Else it was forgotten meanwhile.
            if state.order == order {
                state.reading = None;
                state.ready.push_back((rows, outcome));
            }
            self.changed.notify_all();
        }
    }
}

impl ReadAhead {
    /// Prepares to read the samples of an engine ahead.
    pub(super) fn of(config: &EngineConfig) -> ReadAhead {
        let row = config.model.sample_length() + 1;
        let masked = MaskedSamples::of(&config.model, &config.training);
        let samples = Arc::clone(&config.samples);
        match config.backend.without.has(Ablation::ReadAhead) {
            true => ReadAhead::without(samples, row, masked),
            false => ReadAhead::new(samples, row, masked),
        }
    }

    /// Prepares to read samples of `row` tokens ahead, of which some may be masked.
    fn new(samples: Arc<dyn Samples>, row: usize, masked: Option<MaskedSamples>) -> ReadAhead {
        ReadAhead {
            shared: Arc::new(Shared {
                samples,
                masked,
                row,
                state: Mutex::default(),
                changed: Condvar::new(),
            }),
            thread: Thread::NotStarted,
        }
    }

    /// The same where nothing is read ahead.
    fn without(samples: Arc<dyn Samples>, row: usize, masked: Option<MaskedSamples>) -> ReadAhead {
        let mut reader = ReadAhead::new(samples, row, masked);
        reader.thread = Thread::Never;
        reader
    }

    /// Sets the rows that will be needed next, in this order. What was read for another order is forgotten.
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
        // What could not be read is read again.
        let ready = state.ready.iter();
        let read = ready
            .take_while(|(_, outcome)| matches!(outcome, Ok(Ok(_))))
            .count();
        state.ready.truncate(read);
        let begun = state.begun().count();
        let mut next = VecDeque::from(next);
        if begun <= next.len() && state.begun().eq(next.iter().take(begun)) {
            next.drain(..begun);
        } else {
            state.ready.clear();
            state.reading = None;
            state.order += 1;
        }
        state.wanted = next;
        state.announced = 0;
        drop(state);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// What these rows ask for. While it waits it calls `while_waiting` again and again, whose error ends the wait: the read stays under way.
    ///
    /// # Errors
    /// A sample cannot be read, or was not read by the deadline, or `while_waiting` says why it is not waited for. Where the read panicked, so does
    /// this.
    pub(super) fn take(
        &self,
        rows: &Rows,
        deadline: Instant,
        mut while_waiting: impl FnMut() -> Result<(), EngineError>,
    ) -> Result<Vec<i64>, EngineError> {
        let mut state = self.shared.state.lock();
        while state.begun().chain(&state.wanted).next() == Some(rows) {
            if let Some((_, outcome)) = state.ready.pop_front() {
                drop(state);
                self.shared.changed.notify_all();
                let read = outcome.unwrap_or_else(|panic| resume_unwind(panic));
                return read.map_err(EngineError::from);
            }
            let until = deadline.min(Instant::now() + POLL_INTERVAL);
            if self.shared.changed.wait_until(&mut state, until).timed_out() {
                drop(state);
                while_waiting()?;
                if Instant::now() >= deadline {
                    return Err(late(rows).into());
                }
                state = self.shared.state.lock();
            }
        }
        drop(state);
        self.read_here(rows, deadline, while_waiting)
    }

    /// Reads on the thread that asks. A fence, and the deadline, end this as they end a wait.
    fn read_here(
        &self,
        rows: &Rows,
        deadline: Instant,
        mut while_waiting: impl FnMut() -> Result<(), EngineError>,
    ) -> Result<Vec<i64>, EngineError> {
        let mut ended = None;
        let mut wanted = || match while_waiting() {
            Ok(()) => Instant::now() < deadline,
            Err(error) => {
                ended = Some(error);
                false
            }
        };
        let read = self.shared.read(rows, &mut wanted);
        match (read, ended) {
            (Err(_), Some(error)) => Err(error),
            (read, _) => read.map_err(EngineError::from),
        }
    }

    /// What is expected has not come for long, or cannot be read.
    pub(super) fn is_late(&self) -> bool {
        self.shared.state.lock().is_late(Instant::now())
    }

    /// What will be asked for next, if it is read already, its read succeeded, and it goes to the device, as a count does not.
    pub(super) fn take_ready(&self) -> Option<(Rows, Vec<i64>)> {
        let mut state = self.shared.state.lock();
        let suits = |(rows, outcome): &mut (Rows, Outcome)| {
            rows.field != Field::TargetCount && matches!(outcome, Ok(Ok(_)))
        };
        let (rows, outcome) = state.ready.pop_front_if(suits)?;
        drop(state);
        self.shared.changed.notify_all();
        Some((rows, outcome.ok()?.ok()?))
    }
}

/// A read that takes longer than the step that needs it may.
fn late(rows: &Rows) -> SampleError {
    SampleError {
        index: rows.samples.first().copied().unwrap_or(0),
        why: "the read did not end by the deadline of the step that needs it".to_owned(),
        may_pass: true,
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests;
