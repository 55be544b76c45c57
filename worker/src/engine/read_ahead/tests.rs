use super::*;
use crate::engine::SamplePart;
use crate::transport::LinkError;
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use varuna_api::masking::Masking;
use varuna_torch::NO_TARGET;

/// Each sample consists of its number, or of the next number in the held-out split. Sample 13 cannot be read.
struct Numbers;

impl Samples for Numbers {
    fn train(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        if index == 13 {
            return Err(SampleError {
                index,
                why: "a hole".to_owned(),
                may_pass: false,
            });
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
    // If its number is even, a document begins at each sample's second token, and the sample contains one more document.
    fn train_positions(&self, index: u64, positions: &mut [i64]) -> Result<(), SampleError> {
        self.train(index, positions)?;
        let second = i64::from(!index.is_multiple_of(2));
        positions.copy_from_slice(&[0, second, second + 1]);
        Ok(())
    }
    fn held_out_positions(&self, index: u64, positions: &mut [i64]) -> Result<(), SampleError> {
        self.train_positions(index + 1, positions)
    }
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// Reads these rows, without a fence.
fn take(reader: &ReadAhead, rows: &Rows) -> Result<Vec<i64>, EngineError> {
    reader.take(rows, later(), || Ok(()))
}

fn rows() -> impl Strategy<Value = Rows> {
    let split = prop_oneof![Just(Split::Train), Just(Split::HeldOut)];
    let field = prop_oneof![
        Just(Field::Tokens),
        Just(Field::MaskedTargets),
        Just(Field::Positions),
        Just(Field::TargetCount)
    ];
    let samples = prop::collection::vec(0..16u64, 0..3);
    (field, split, samples).prop_map(|(field, split, samples)| Rows {
        field,
        split,
        samples,
    })
}

/// An action of the test: expect these rows, take one, or take the next if it is ready.
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
        let mut ahead = ReadAhead::new(Arc::new(Numbers), 3, None);
        let direct = ReadAhead::new(Arc::new(Numbers), 3, None);
        let mut expected = VecDeque::new();
        for act in acts {
            match act {
                Act::Expect(next) => {
                    expected = VecDeque::from(next.clone());
                    ahead.expect(next).unwrap();
                }
                // Every second time the next expected rows are taken, so that the reads of the thread are used.
                Act::Take(other) => {
                    let rows = expected.pop_front().unwrap_or(other);
                    let expected = direct.shared.read(&rows, &mut || true).map_err(EngineError::from);
                    prop_assert_eq!(take(&ahead, &rows), expected);
                }
                Act::TakeReady => {
                    if let Some((rows, tokens)) = ahead.take_ready() {
                        prop_assert_eq!(Some(rows.clone()), expected.pop_front());
                        prop_assert_eq!(Ok(tokens), direct.shared.read(&rows, &mut || true));
                    }
                }
            }
            prop_assert!(ahead.shared.state.lock().ready.len() <= READY);
        }
    }
}

#[test]
fn targets_are_counted_that_begin_no_document() {
    let reader = ReadAhead::without(Arc::new(Numbers), 3, None);
    let count = |split, samples: &[u64]| {
        let rows = Rows {
            field: Field::TargetCount,
            split,
            samples: samples.to_vec(),
        };
        take(&reader, &rows)
    };
    assert_eq!(count(Split::Train, &[2, 3, 4]), Ok(vec![1 + 2 + 1]));
    assert_eq!(count(Split::HeldOut, &[2]), Ok(vec![2]));
    assert_eq!(count(Split::Train, &[]), Ok(vec![0]));
    assert!(count(Split::Train, &[2, 13]).is_err());
}

#[test]
fn a_count_is_not_taken_for_the_device() {
    let mut reader = ReadAhead::new(Arc::new(Numbers), 3, None);
    let rows = |field| Rows {
        field,
        split: Split::Train,
        samples: vec![2],
    };
    let (count, tokens) = (rows(Field::TargetCount), rows(Field::Tokens));
    reader.expect(vec![count.clone(), tokens.clone()]).unwrap();
    let mut state = reader.shared.state.lock();
    while state.ready.len() < 2 {
        let waited = reader.shared.changed.wait_until(&mut state, later());
        assert!(!waited.timed_out());
    }
    drop(state);
    assert_eq!(reader.take_ready(), None);
    assert_eq!(take(&reader, &count), Ok(vec![1]));
    assert_eq!(reader.take_ready(), Some((tokens, vec![2; 3])));
}

/// A store whose reads end when the test allows it.
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
fn hanging_read_ends_at_the_deadline() {
    let (end, ends) = std::sync::mpsc::channel();
    let mut ahead = ReadAhead::new(Arc::new(Slow(Mutex::new(ends))), 3, None);
    let rows = |sample| Rows {
        field: Field::Tokens,
        split: Split::Train,
        samples: vec![sample],
    };
    ahead.expect(vec![rows(7), rows(8)]).unwrap();
    let late = ahead.take(&rows(7), Instant::now(), || Ok(())).unwrap_err();
    let is_named = |error: &SampleError| error.index == 7 && error.why.contains("deadline");
    assert!(
        matches!(&late, EngineError::Sample(error) if is_named(error) && error.may_pass),
        "{late}"
    );
    // A fence comes long before the deadline.
    let mut checks = 0;
    let fenced = || {
        checks += 1;
        match checks < 3 {
            true => Ok(()),
            false => Err(EngineError::from(LinkError::Aborted)),
        }
    };
    let ended = ahead.take(&rows(7), later(), fenced);
    assert_eq!(ended, Err(EngineError::from(LinkError::Aborted)));
    assert_eq!(checks, 3);
    end.send(()).unwrap();
    assert_eq!(take(&ahead, &rows(7)), Ok(vec![7; 3]));
    // A read that is no longer expected does not replace the one that is expected.
    ahead.expect(vec![rows(9)]).unwrap();
    end.send(()).unwrap();
    end.send(()).unwrap();
    assert_eq!(take(&ahead, &rows(9)), Ok(vec![9; 3]));
}

/// A store that is unavailable until the test makes it available again.
#[derive(Default)]
struct Away {
    is_back: AtomicBool,
}

impl Samples for Away {
    fn train(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        if self.is_back.load(Ordering::SeqCst) {
            return Numbers.train(index, tokens);
        }
        Err(SampleError {
            index,
            why: "it is away".to_owned(),
            may_pass: true,
        })
    }
    fn held_out(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        self.train(index, tokens)
    }
    fn held_out_len(&self) -> u64 {
        0
    }
}

#[test]
fn failed_read_is_repeated_when_expected_again() {
    let store = Arc::new(Away::default());
    let mut ahead = ReadAhead::new(Arc::clone(&store) as _, 3, None);
    let rows = |sample| Rows {
        field: Field::Tokens,
        split: Split::Train,
        samples: vec![sample],
    };
    let next = vec![rows(7), rows(8)];
    ahead.expect(next.clone()).unwrap();
    let mut state = ahead.shared.state.lock();
    while state.ready.len() < 2 {
        let waited = ahead.shared.changed.wait_until(&mut state, later());
        assert!(!waited.timed_out());
    }
    drop(state);
    store.is_back.store(true, Ordering::SeqCst);
    ahead.expect(next).unwrap();
    assert_eq!(take(&ahead, &rows(7)), Ok(vec![7; 3]));
    assert_eq!(take(&ahead, &rows(8)), Ok(vec![8; 3]));
}

/// A store in which only sample 7 cannot be read. The read is retried for as long as it is expected.
struct Hole;

impl Samples for Hole {
    fn train(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        Numbers.train(index, tokens)
    }
    fn held_out(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        self.train(index, tokens)
    }
    fn held_out_len(&self) -> u64 {
        0
    }
    fn read_while(
        &self,
        _: SamplePart,
        index: u64,
        numbers: &mut [i64],
        wanted: &mut dyn FnMut() -> bool,
    ) -> Result<(), SampleError> {
        if index != 7 {
            return self.train(index, numbers);
        }
        while wanted() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(SampleError {
            index,
            why: "it was given up".to_owned(),
            may_pass: true,
        })
    }
}

fn of_train(samples: &[u64]) -> Rows {
    Rows {
        field: Field::Tokens,
        split: Split::Train,
        samples: samples.to_vec(),
    }
}

/// Waits until the thread is reading.
fn wait_for_read(ahead: &ReadAhead) {
    while ahead.shared.state.lock().since.is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn reads_of_another_plan_do_not_wait() {
    let mut ahead = ReadAhead::new(Arc::new(Hole), 3, None);
    ahead.expect(vec![of_train(&[7]), of_train(&[8])]).unwrap();
    wait_for_read(&ahead);
    ahead.expect(vec![of_train(&[9])]).unwrap();
    assert_eq!(take(&ahead, &of_train(&[9])), Ok(vec![9; 3]));
}

#[test]
fn a_read_of_many_samples_is_given_up_after_the_one_that_hangs() {
    let (end, ends) = std::sync::mpsc::channel();
    let mut ahead = ReadAhead::new(Arc::new(Slow(Mutex::new(ends))), 3, None);
    ahead.expect(vec![of_train(&[4, 5, 6])]).unwrap();
    wait_for_read(&ahead);
    ahead.expect(vec![of_train(&[9])]).unwrap();
    // Only two reads end: the one of sample 4, and the one that is expected now.
    end.send(()).unwrap();
    end.send(()).unwrap();
    assert_eq!(take(&ahead, &of_train(&[9])), Ok(vec![9; 3]));
}

#[test]
fn fence_and_deadline_end_a_direct_read() {
    let reader = ReadAhead::without(Arc::new(Hole), 3, None);
    let mut checks = 0;
    let fenced = || {
        checks += 1;
        match checks < 3 {
            true => Ok(()),
            false => Err(EngineError::from(LinkError::Aborted)),
        }
    };
    let ended = reader.take(&of_train(&[7]), later(), fenced);
    assert_eq!(ended, Err(EngineError::from(LinkError::Aborted)));
    let late = reader.take(&of_train(&[7]), Instant::now(), || Ok(()));
    let may_pass = |e: &EngineError| matches!(e, EngineError::Sample(e) if e.may_pass);
    assert!(late.as_ref().is_err_and(may_pass), "{late:?}");
    assert_eq!(take(&reader, &of_train(&[8])), Ok(vec![8; 3]));
}

#[test]
fn expected_sample_is_late_after_a_slow_or_failed_read() {
    let (end, ends) = std::sync::mpsc::channel();
    let mut ahead = ReadAhead::new(Arc::new(Slow(Mutex::new(ends))), 3, None);
    let is_late =
        |ahead: &ReadAhead, after: Duration| ahead.shared.state.lock().is_late(Instant::now() + after);
    assert!(!is_late(&ahead, LATE), "nothing is expected");
    ahead.expect(vec![of_train(&[8]), of_train(&[13])]).unwrap();
    wait_for_read(&ahead);
    assert!(!is_late(&ahead, Duration::ZERO));
    assert!(is_late(&ahead, LATE));
    // The read is in progress, but is not expected any more. The thread has to end it before it can read what is expected.
    ahead.expect(vec![]).unwrap();
    assert!(!is_late(&ahead, LATE));
    ahead.expect(vec![of_train(&[13])]).unwrap();
    assert!(is_late(&ahead, LATE));
    end.send(()).unwrap();
    end.send(()).unwrap();
    let mut state = ahead.shared.state.lock();
    while state.ready.is_empty() {
        let waited = ahead.shared.changed.wait_until(&mut state, later());
        assert!(!waited.timed_out());
    }
    assert!(state.is_late(Instant::now()), "13 cannot be read");
}

/// Records the announcements.
struct Announced(Mutex<Vec<(SamplePart, u64)>>);

impl Samples for Announced {
    fn train(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        Numbers.train(index, tokens)
    }
    fn held_out(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        Numbers.held_out(index, tokens)
    }
    fn held_out_len(&self) -> u64 {
        Numbers.held_out_len()
    }
    fn prefetch(&self, part: SamplePart, index: u64) {
        self.0.lock().push((part, index));
    }
}

#[test]
fn samples_and_positions_are_prefetched_in_order() {
    let samples = Arc::new(Announced(Mutex::default()));
    let mut reader = ReadAhead::new(Arc::clone(&samples) as _, 3, None);
    let rows = |field, split, samples: &[u64]| Rows {
        field,
        split,
        samples: samples.to_vec(),
    };
    let train = |first: u64| rows(Field::Tokens, Split::Train, &[first, first + 1]);
    let next = vec![
        rows(Field::Tokens, Split::HeldOut, &[3]),
        rows(Field::TargetCount, Split::Train, &[0, 1, 2]),
        train(20),
        rows(Field::Positions, Split::Train, &[20, 21]),
        train(22),
        train(24),
    ];
    reader.expect(next.clone()).unwrap();
    for rows in &next {
        take(&reader, rows).unwrap();
    }
    let all = samples.0.lock().clone();
    // The sample that is read at once need not be announced. A count announces what it reads, which may be more than is announced before.
    let (tokens, positions) = (SamplePart::Train, SamplePart::TrainPositions);
    let parts = [
        (positions, 0..3),
        (tokens, 20..22),
        (positions, 20..22),
        (tokens, 22..26),
        (positions, 0..3),
    ];
    let each = parts
        .into_iter()
        .flat_map(|(part, samples)| samples.map(move |sample| (part, sample)));
    assert_eq!(all, each.collect::<Vec<_>>());
}

#[test]
fn positions_of_a_whole_batch_are_prefetched_in_parts() {
    let samples = Arc::new(Announced(Mutex::default()));
    let reader = ReadAhead::without(Arc::clone(&samples) as _, 3, None);
    let batch = Rows {
        field: Field::TargetCount,
        split: Split::HeldOut,
        samples: (20..620).collect(),
    };
    take(&reader, &batch).unwrap();
    let announced = samples.0.lock().clone();
    let each = (20..620).map(|sample| (SamplePart::HeldOutPositions, sample));
    assert_eq!(announced, each.collect::<Vec<_>>());
}

#[test]
fn no_more_samples_are_announced_than_can_be_kept() {
    let rows = |first: u64| Rows {
        field: Field::Tokens,
        split: Split::Train,
        samples: (first..first + 100).collect(),
    };
    let mut state = State {
        wanted: (0..5).map(|i| rows(i * 100)).collect(),
        ..State::default()
    };
    assert_eq!(state.next_to_announce(), [rows(0), rows(100)]);
    assert_eq!(state.announced, 2);
    state.wanted.pop_front();
    assert_eq!(state.next_to_announce(), [rows(200)]);
}

#[test]
fn masked_tokens_are_counted_as_they_are_left_in_the_targets() {
    let masked = MaskedSamples::with(
        Masking {
            probability: 0.5,
            mask_token: 90,
        },
        100,
    );
    let reader = ReadAhead::without(Arc::new(Numbers), 3, Some(masked));
    for split in [Split::Train, Split::HeldOut] {
        let take = |field| {
            let samples = (0..12).collect();
            let rows = Rows {
                field,
                split,
                samples,
            };
            take(&reader, &rows).unwrap()
        };
        let (seen, targets) = (take(Field::Tokens), take(Field::MaskedTargets));
        let inputs = (0..36).filter(|i| i % 3 != 2);
        let mut count = 0;
        for i in inputs {
            let token = i64::try_from(i / 3).unwrap() + i64::from(split == Split::HeldOut);
            match targets[i + 1] {
                NO_TARGET => assert_eq!(seen[i], token),
                target => {
                    assert_eq!(target, token);
                    count += 1;
                }
            }
        }
        assert!(count > 0 && seen.contains(&90));
        assert_eq!(take(Field::TargetCount), vec![count]);
    }
}
