//! How long a piece of work takes: by the clock, and in processor time of the thread that does it.

use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// What a piece of work took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Took {
    /// By the clock.
    pub time: Duration,
    /// Processor time of the thread that did it. What other threads computed for it is not in here.
    pub processor: Duration,
}

/// Does the work on this thread, and measures it if it succeeds.
pub(crate) fn timed<E>(work: impl FnOnce() -> Result<(), E>) -> Result<Took, E> {
    let (began, before) = (Instant::now(), processor_time());
    work()?;
    Ok(Took {
        time: began.elapsed(),
        processor: processor_time().saturating_sub(before),
    })
}

/// Processor time of this thread so far.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes until this thread has had the processor for some time.
    fn compute(long: Duration) -> Result<(), ()> {
        let end = processor_time() + long;
        while processor_time() < end {}
        Ok(())
    }

    #[test]
    fn a_thread_uses_its_processor_if_it_computes_not_if_it_waits() {
        let long = Duration::from_millis(20);
        let busy = timed(|| compute(long)).unwrap();
        assert!(busy.processor >= long && busy.time >= long, "{busy:?}");
        let waits = || std::thread::spawn(move || compute(long)).join().unwrap();
        let waited = timed(waits).unwrap();
        assert!(waited.time >= long, "{waited:?}");
        assert!(waited.processor < long / 2, "{waited:?}");
    }

    #[test]
    fn work_that_fails_is_not_measured() {
        assert_eq!(timed(|| Err("no")), Err("no"));
    }
}
