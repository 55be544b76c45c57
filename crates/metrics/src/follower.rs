//! Measures a run by the views that its coordinator publishes, for a process that has nothing else to do with them.

use crate::measurements::Measurements;
use crate::metrics::Metrics;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use varuna_coordinator::View;

/// Measures a run until it is ended or dropped, or no views come any more.
pub struct Follower {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Follower {
    /// Begins to measure the run with these views.
    #[must_use]
    pub fn start(views: watch::Receiver<View>, metrics: Arc<Metrics>) -> Follower {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(follow(views, metrics, stopped));
        Follower { stop, task }
    }

    /// Measures the newest view and ends.
    pub async fn end(self) {
        drop(self.stop);
        // An error means that it has ended.
        let _ = self.task.await;
    }
}

async fn follow(mut views: watch::Receiver<View>, metrics: Arc<Metrics>, mut stopped: oneshot::Receiver<()>) {
    let began = Instant::now();
    let mut measured = Measurements::default();
    let mut goes_on = true;
    loop {
        {
            let view = views.borrow_and_update();
            metrics.figures.observe(&view, began.elapsed());
            measured.observe(&view, &metrics);
        }
        if !goes_on {
            return;
        }
        goes_on = tokio::select! {
            changed = views.changed() => changed.is_ok(),
            _ = &mut stopped => false,
        };
    }
}
