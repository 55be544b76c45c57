//! A runtime with its own named threads, so that their processor time can be attributed.

use tokio::runtime::Runtime;

/// The `nice` value of the threads: training gets the processors first.
const NICE: i32 = 15;

/// The scheduling priority of the threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Priority {
    /// Training goes first: for work that it never waits for.
    Low,
    /// As training has it, for work that it may have to wait for, such as copying state out.
    Training,
}

/// The runtime. Dropping it does not wait for its tasks.
pub(crate) struct Background(Option<Runtime>);

impl Background {
    /// Starts the threads; `blocking`: the most threads for blocking tasks.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn start(name: &str, priority: Priority, blocking: usize) -> std::io::Result<Background> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .thread_name(name)
            .worker_threads(1)
            .max_blocking_threads(blocking)
            .on_thread_start(move || {
                if priority == Priority::Low {
                    lower_priority();
                }
            })
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

    /// Runs blocking work; what is still to come when the runtime is dropped is not done.
    pub(crate) fn spawn_blocking(&self, work: impl FnOnce() + Send + 'static) {
        if let Some(runtime) = &self.0 {
            runtime.spawn_blocking(work);
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // Unfinished uploads are useless once the worker has been released.
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
