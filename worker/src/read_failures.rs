//! Which failed reads of files are tried again, and when.

use backon::{BackoffBuilder, ExponentialBuilder};
use std::fmt::Display;
use std::io::ErrorKind;
use std::thread;
use std::time::{Duration, Instant};

/// Pauses between attempts to read what a step needs: a store may be unavailable for a while. A step that waits ends by its own deadline, not
/// by these pauses. They limit how often a store that is down is asked, and how often a step fails because of it: about once in a minute. They
/// are random, so that the workers of a job do not try at the same moment.
pub(crate) const BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(50))
    .with_max_delay(Duration::from_secs(2))
    .with_jitter()
    .with_max_times(25);

/// How often a pause checks whether the read is still wanted: a fence must not wait for the end of a pause.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Whether a read that failed so may succeed later. Not where there is no such file, or it is another one, or a shorter one, than it was.
pub(crate) fn read_may_pass(kind: ErrorKind) -> bool {
    use ErrorKind::{NotFound, PermissionDenied, StaleNetworkFileHandle, UnexpectedEof};
    !matches!(
        kind,
        NotFound | PermissionDenied | StaleNetworkFileHandle | UnexpectedEof
    )
}

/// Reads `what`, again after each of these pauses, as long as the error may pass and the read is wanted.
///
/// # Errors
/// That of the last attempt.
pub(crate) fn read_again<T, E: Display>(
    backoff: ExponentialBuilder,
    what: &dyn Display,
    wanted: &mut dyn FnMut() -> bool,
    may_pass: impl Fn(&E) -> bool,
    mut read: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let mut pauses = backoff.build();
    loop {
        let error = match read() {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        if !may_pass(&error) || !wanted() {
            return Err(error);
        }
        let Some(pause) = pauses.next() else {
            return Err(error);
        };
        tracing::warn!(%error, %what, ?pause, "a read failed and is tried again");
        if !pause_while(pause, wanted) {
            return Err(error);
        }
    }
}

/// Pauses; false if the read was not wanted any more before the end.
fn pause_while(pause: Duration, wanted: &mut dyn FnMut() -> bool) -> bool {
    let end = Instant::now() + pause;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(POLL_INTERVAL));
        if !wanted() {
            return false;
        }
    }
}
