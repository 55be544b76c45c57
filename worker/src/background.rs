//! Threads behind training in the queue for processors, for work that training never waits for. Nothing that it does wait for, such
//! as copying state out, may run here.

use tokio::runtime::Runtime;

/// How far they stand behind training in the queue for processors (the `nice` of their threads).
const NICE: i32 = 15;

/// A runtime whose threads give way; dropped, it waits for nothing.
pub(crate) struct Background(Option<Runtime>);

impl Background {
    /// Starts them, with at most so many for what keeps a processor.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub(crate) fn start(name: &str, blocking: usize) -> std::io::Result<Background> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .thread_name(name)
            .worker_threads(1)
            .max_blocking_threads(blocking)
            .on_thread_start(give_way)
            .enable_all()
            .build()?;
        Ok(Background(Some(runtime)))
    }

    /// Runs a task there until it ends or this is dropped.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.0 {
            runtime.spawn(task);
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // What is on its way is of no use once the worker has been released.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

fn give_way() {
    let thread = rustix::thread::gettid();
    if let Err(error) = rustix::process::setpriority_process(Some(thread), NICE) {
        tracing::debug!(%error, "these threads run at the priority of training");
    }
}
