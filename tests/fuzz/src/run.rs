//! Runs one input with one target, and decides what counts as a failure: a panic, too much memory, too much time.

use crate::Target;
use nix::time::{ClockId, clock_gettime};
use peak_alloc::PeakAlloc;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::time::Duration;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Bytes of memory that a parser may use for each byte of its input: a value of one digit in a JSON document becomes a node of a tree, and
/// one in a table becomes a row with its cells.
const MEMORY_PER_BYTE: usize = 64;
/// An input has a few KiB. A parser that needs longer than this does something that grows faster than its input. This is ten times what the
/// slowest one takes in a test build.
const TIME_MAX: Duration = Duration::from_secs(5);

/// The result of running an input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Whether the target accepted it.
    pub accepted: bool,
    /// The target's description, or the reason why it refused the input.
    pub said: String,
    /// Peak of the memory that it used, in bytes.
    pub taken: usize,
}

/// A failure: something that must not happen for any input.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// The target panicked.
    #[error("panic: {0}")]
    Panic(String),
    /// The target used more memory than the length of the input allows.
    #[error("{taken} bytes of memory for an input of {length} bytes, {allowed} are allowed")]
    Memory {
        /// Peak of the memory that it used, in bytes.
        taken: usize,
        /// Length of the input.
        length: usize,
        /// The limit.
        allowed: usize,
    },
    /// The target took too long.
    #[error("{took:?} for an input of {length} bytes, {TIME_MAX:?} are allowed")]
    Time {
        /// The time that it took.
        took: Duration,
        /// Length of the input.
        length: usize,
    },
}

impl Failure {
    /// Whether both failures are of the same kind, so that one input may replace the other.
    #[must_use]
    pub fn is_like(&self, other: &Failure) -> bool {
        match (self, other) {
            (Failure::Panic(a), Failure::Panic(b)) => place(a) == place(b),
            (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
        }
    }
}

/// The origin of a panic: the first line of its text.
fn place(panic: &str) -> &str {
    panic.lines().next().unwrap_or_default()
}

thread_local! {
    /// The text of the panic of the present input; none while no input is running.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Stores the texts of panics of targets instead of printing them.
fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let noted = PANIC.with_borrow_mut(|panic| {
                panic.as_mut().is_some_and(|text| {
                    *text = info.to_string();
                    true
                })
            });
            if !noted {
                usual(info);
            }
        }));
    });
}

/// Runs a target with an input. Only one thread of the process may do so at a time, and other threads must not use much memory meanwhile.
///
/// # Errors
/// The input causes a failure.
pub fn run(target: &Target, input: &[u8]) -> Result<Answer, Failure> {
    watch_panics();
    let length = input.len();
    let (took, answer) = timed(target, input)?;
    let allowed = target.memory + MEMORY_PER_BYTE * length;
    if answer.taken > allowed {
        return Err(Failure::Memory {
            taken: answer.taken,
            length,
            allowed,
        });
    }
    if took > TIME_MAX {
        return Err(Failure::Time { took, length });
    }
    Ok(answer)
}

/// The CPU time of this thread, which does not depend on other load of the machine.
fn busy() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

fn timed(target: &Target, input: &[u8]) -> Result<(Duration, Answer), Failure> {
    PANIC.set(Some(String::new()));
    MEMORY.reset_peak_usage();
    let (before, began) = (MEMORY.current_usage(), busy());
    let result = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    let (took, taken) = (
        busy().saturating_sub(began),
        MEMORY.peak_usage().saturating_sub(before),
    );
    let panic = PANIC.take().unwrap_or_default();
    let (accepted, said) = match result {
        Ok(Ok(said)) => (true, said),
        Ok(Err(why)) => (false, why),
        Err(_) => return Err(Failure::Panic(panic)),
    };
    let answer = Answer {
        accepted,
        said,
        taken,
    };
    Ok((took, answer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Form, ONE_AT_A_TIME};

    fn target(run: fn(&[u8]) -> Result<String, String>) -> Target {
        Target {
            name: "test",
            what: "",
            form: Form::Bytes,
            words: &[],
            memory: 1 << 20,
            seeds: Vec::new,
            run,
        }
    }

    #[test]
    fn panics_and_excess_memory_are_failures() {
        let _one = ONE_AT_A_TIME.lock();
        let refuses = target(|_| Err("no".into()));
        assert!(!run(&refuses, b"x").unwrap().accepted);
        let panics = target(|input| Ok(input[1].to_string()));
        let failure = run(&panics, b"x").unwrap_err();
        assert!(failure.to_string().contains("index out of bounds"), "{failure}");
        assert!(failure.is_like(&run(&panics, b"y").unwrap_err()));
        let greedy = target(|input| Ok(vec![1u8; input.len() << 20].len().to_string()));
        assert!(run(&greedy, b"").is_ok());
        let failure = run(&greedy, b"four").unwrap_err();
        assert!(
            matches!(failure, Failure::Memory { taken, .. } if taken >= 4 << 20),
            "{failure}"
        );
    }
}
