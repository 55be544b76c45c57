//! The data plane of the step that the engine runs, or has run last: a fence ends what waits there.

use crate::transport::Link;
use std::sync::Arc;
use varuna_plan::Generation;

/// The link of that step's generation, until the generation is closed.
#[derive(Default)]
pub(super) struct RunningLink(Option<(Generation, Arc<dyn Link>)>);

impl RunningLink {
    /// A step of this generation begins.
    pub(super) fn begin(&mut self, generation: Generation, link: &Arc<dyn Link>) {
        self.0 = Some((generation, Arc::clone(link)));
    }

    /// Ends all waits of the step.
    pub(super) fn abort(&mut self) {
        if let Some((_, link)) = self.0.take() {
            link.abort();
        }
    }

    /// The generation is closed. As long as somebody has its link, its communicators take memory of the device: from other workers of that device,
    /// and from the next plan.
    pub(super) fn close(&mut self, generation: Generation) {
        if self.0.as_ref().is_some_and(|(own, _)| *own == generation) {
            self.0 = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::local::LocalMesh;
    use varuna_plan::WorkerId;

    const ME: WorkerId = WorkerId(1);

    #[test]
    fn link_of_a_closed_generation_is_dropped() {
        let mut running = RunningLink::default();
        let link = LocalMesh::new(&[ME]).link(ME);
        let held = Arc::downgrade(&link);
        running.begin(Generation(3), &link);
        drop(link);
        running.close(Generation(2));
        running.close(Generation(4));
        assert!(held.upgrade().is_some(), "other generations are closed");
        running.close(Generation(3));
        assert!(held.upgrade().is_none());
    }

    #[test]
    fn abort_ends_the_waits_of_the_step() {
        let mut running = RunningLink::default();
        let link = LocalMesh::new(&[ME]).link(ME);
        running.begin(Generation(3), &link);
        running.abort();
        assert!(link.is_aborted());
    }
}
