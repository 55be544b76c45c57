//! Limits the rate of uploads.

use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

/// A limit in bytes per second, shared by all uploads of a process. The default has no limit.
#[derive(Debug, Default)]
pub struct RateLimit {
    bytes_per_second: Option<u64>,
    free_at: Mutex<Option<Instant>>,
}

impl RateLimit {
    /// Makes a limit; none or 0 means no limit.
    #[must_use]
    pub fn new(bytes_per_second: Option<u64>) -> RateLimit {
        RateLimit {
            bytes_per_second: bytes_per_second.filter(|rate| *rate > 0),
            free_at: Mutex::default(),
        }
    }

    /// Waits until the bytes of earlier calls have been sent at this rate, then reserves the time for these `bytes`.
    #[expect(clippy::cast_precision_loss, reason = "a duration's precision")]
    pub async fn wait(&self, bytes: usize) {
        let Some(rate) = self.bytes_per_second else { return };
        let mut free_at = self.free_at.lock().await;
        let start = free_at.map_or_else(Instant::now, |at| at.max(Instant::now()));
        *free_at = Some(start + Duration::from_secs_f64(bytes as f64 / rate as f64));
        drop(free_at);
        sleep_until(start).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bytes_pass_at_the_rate_whoever_sends_them() {
        let limit = RateLimit::new(Some(1_000));
        let start = Instant::now();
        tokio::join!(limit.wait(500), limit.wait(500), limit.wait(1_000));
        assert_eq!(
            start.elapsed().as_millis(),
            1_000,
            "the last may start after the first two"
        );
        limit.wait(1).await;
        assert_eq!(start.elapsed().as_millis(), 2_000);
        let unlimited = RateLimit::new(None);
        unlimited.wait(1 << 40).await;
        assert_eq!(start.elapsed().as_millis(), 2_000);
    }
}
