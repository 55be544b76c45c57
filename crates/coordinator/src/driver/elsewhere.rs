//! What somebody else has seen of workers, such as the operator of their pods.

use super::Driver;
use crate::serve::Known;
use varuna_protocol::coordinator::CoordinatorInput;

impl Driver {
    pub(super) fn seen_elsewhere(&mut self, known: &Known) {
        for worker in self.machine.snapshot().workers {
            match known {
                Known::Leaving(name) if worker.up && worker.name == *name => {
                    self.feed(CoordinatorInput::Notice { worker: worker.id });
                }
                // One that is attached has not ended, whoever says so.
                Known::Ended(name) if !worker.up && worker.name == *name => {
                    self.feed(CoordinatorInput::ProcessEnded { worker: worker.id });
                }
                _ => {}
            }
        }
    }
}
