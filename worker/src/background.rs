//! A runtime with low-priority threads, for work that training never waits for. Work that training does wait for, such as
//! copying state out, must not run here.

use tokio::runtime::Runtime;

/// The `nice` value of the threads: training gets the processors first.
const NICE: i32 = 15;

/// The runtime. Dropping it does not wait for its tasks.
pub(crate) struct Background(Option<Runtime>);

impl Background {
    /// Starts the threads; `blocking`: the most threads for blocking tasks.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn start(name: &str, blocking: usize) -> std::io::Result<Background> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .thread_name(name)
            .worker_threads(1)
            .max_blocking_threads(blocking)
            .on_thread_start(lower_priority)
            .enable_all()
            .build()?;
        Ok(Background(Some(runtime)))
    }

    /// Runs a task until it ends or the runtime is dropped.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.0 {
            runtime.spawn(task);
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // Unfinished uploads are of no use once the worker has been released.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

fn lower_priority() {
    let thread = rustix::thread::gettid();
    if let Err(error) = rustix::process::setpriority_process(Some(thread), NICE) {
        tracing::debug!(%error, "background threads run at the priority of training");
    }
}
