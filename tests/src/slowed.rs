//! A process on a processor that is three quarters somebody else's.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// It runs for so long at a time: less than a segment's backward takes, so that none is spared.
const RUNS: Duration = Duration::from_millis(2);
/// Then it stands for so many times as long as it ran.
const STANDS: u32 = 3;

/// A process that is slow until this is dropped: it is stopped and continued all the time.
pub struct Slowed {
    enough: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Slowed {
    /// Slows a process down.
    #[must_use]
    pub fn start(pid: i32) -> Slowed {
        let enough = Arc::new(AtomicBool::new(false));
        let told = enough.clone();
        let pid = Pid::from_raw(pid);
        let slow = move || {
            // These sleeps are the load; nothing is waited for.
            while !told.load(Ordering::Relaxed) {
                let start = Instant::now();
                std::thread::sleep(RUNS);
                let ran = start.elapsed();
                if kill(pid, Signal::SIGSTOP).is_err() {
                    return; // it has ended
                }
                std::thread::sleep(ran * STANDS);
                if kill(pid, Signal::SIGCONT).is_err() {
                    return;
                }
            }
        };
        Slowed {
            enough,
            thread: Some(std::thread::spawn(slow)),
        }
    }
}

impl Drop for Slowed {
    fn drop(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
