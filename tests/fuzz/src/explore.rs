//! Runs mutated inputs, one after another. Inputs with a new answer are mutated further.

use crate::corpus::Named;
use crate::mutate::mutated;
use crate::pool::Pool;
use crate::run::{Answer, Failure, run};
use crate::{ONE_AT_A_TIME, Target};
use std::collections::BTreeSet;
use std::sync::PoisonError;
use std::time::Instant;
use varuna_sim::Rng;

/// Answers are compared up to this number of characters, because some repeat a part of the input.
const ANSWER_CHARS: usize = 96;
/// Maximum number of attempts to find a shorter input that fails in the same way.
const SHORTENED: usize = 4000;

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// After this number of inputs.
    Count(u64),
    /// At this time.
    Time(Instant),
}

/// Statistics of an exploration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Number of inputs that were run.
    pub executions: u64,
    /// Number of inputs that the target accepted.
    pub accepted: u64,
    /// Number of different answers.
    pub answers: usize,
}

/// An input that fails.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{failure}")]
pub struct Found {
    /// The shortest input that was found to fail in this way.
    pub input: Vec<u8>,
    /// The failure.
    pub failure: Failure,
}

/// Explores a target from the inputs of its corpus. The same seed gives the same inputs. `before` is called with each input before it is
/// run, because some failures end the process.
///
/// # Errors
/// An input fails.
pub fn explore(
    target: &Target,
    corpus: &[Named],
    seed: u64,
    until: Until,
    mut before: impl FnMut(&[u8]),
) -> Result<Stats, Found> {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut rng = Rng(seed);
    let mut stats = Stats::default();
    let mut seen = BTreeSet::new();
    let mut pool = Pool::new(corpus);
    let known = corpus.len();
    loop {
        let over = match until {
            Until::Count(count) => stats.executions >= count + known as u64,
            Until::Time(end) => Instant::now() >= end,
        };
        if over {
            stats.answers = seen.len();
            return Ok(stats);
        }
        // The corpus is run first, without mutations.
        let input = match usize::try_from(stats.executions) {
            Ok(at) if at < known => corpus[at].1.clone(),
            _ => mutated(target, &pool, &mut rng),
        };
        before(&input);
        stats.executions += 1;
        let answer = match run(target, &input) {
            Ok(answer) => answer,
            Err(failure) => return Err(shortened(target, input, failure, &mut before)),
        };
        stats.accepted += u64::from(answer.accepted);
        if seen.insert(in_short(&answer)) && stats.executions > known as u64 {
            pool.keep(input, answer.accepted, &mut rng);
        }
    }
}

/// The part of an answer that distinguishes it from others: the words without numbers and quoted parts, and the magnitude of the memory.
fn in_short(answer: &Answer) -> String {
    let mut short = format!("{} {} ", answer.accepted, answer.taken.max(1).ilog2());
    let mut quoted = false;
    for c in answer.said.chars() {
        match c {
            '"' | '`' => quoted = !quoted,
            _ if quoted => {}
            '0'..='9' if short.ends_with('#') => {}
            '0'..='9' => short.push('#'),
            c => short.push(c),
        }
        if short.len() > ANSWER_CHARS {
            break;
        }
    }
    short
}

/// Removes parts of an input, as long as the rest fails in the same way.
fn shortened(target: &Target, input: Vec<u8>, failure: Failure, before: &mut impl FnMut(&[u8])) -> Found {
    let mut found = Found { input, failure };
    if matches!(found.failure, Failure::Time { .. }) {
        return found;
    }
    let (mut length, mut tries) = (found.input.len() / 2, 0);
    while length > 0 {
        let mut at = 0;
        while at < found.input.len() && tries < SHORTENED {
            let mut shorter = found.input.clone();
            shorter.drain(at..(at + length).min(shorter.len()));
            before(&shorter);
            tries += 1;
            match run(target, &shorter) {
                Err(failure) if failure.is_like(&found.failure) => {
                    found = Found {
                        input: shorter,
                        failure,
                    };
                }
                _ => at += length,
            }
        }
        length /= 2;
    }
    found
}
