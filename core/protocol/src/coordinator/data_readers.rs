//! What follows if workers cannot read the job's data, or the code of an exported model: those that are not needed are left out for a while.

use super::data_errors::Finding;
use super::shared::Shared;
use crate::message::Time;
use std::collections::BTreeSet;
use std::sync::Arc;
use varuna_plan::{Generation, Plan, Shape, StateId, WorkerId};

/// The workers that read under every plan: the first stage of a pipeline reads its inputs, the last one its targets. Other stages read as
/// well if documents are packed.
fn data_readers(plan: &Plan) -> BTreeSet<WorkerId> {
    let pipelines = plan.shape.pipelines.iter();
    let ends = pipelines.flat_map(|p| [p.stages.first(), p.stages.last()]);
    ends.flatten().map(|stage| stage.worker).collect()
}

impl Shared {
    /// A worker reports that what it reads for its step in this generation cannot be read.
    pub(super) fn note_data_error(&mut self, worker: WorkerId, generation: Generation) {
        let ran = |p: &Arc<Plan>| p.generation == generation && p.has(worker);
        if self.record.plans().any(ran) {
            self.quarantine.data_errors.note(generation, worker);
        }
    }

    /// A recovery is about to plan. All workers have stopped; `answered` tells which ones have sent their inventory.
    pub(super) fn check_data_readers(&mut self, now: Time, answered: impl Fn(&WorkerId) -> bool) {
        let generation = self.quarantine.data_errors.generation();
        let Some(stopped) = self.record.plans().find(|p| p.generation == generation) else {
            return;
        };
        let mut reading = data_readers(stopped);
        reading.retain(answered);
        match self.quarantine.data_errors.judge(&reading) {
            Finding::Nothing => {}
            Finding::NobodyReads => self.quarantine.readmit_readers(),
            Finding::LeaveOut(workers) => {
                for worker in workers {
                    let name = self.roster.name(worker);
                    self.quarantine.could_not_read(now, &name);
                }
            }
        }
    }

    /// A greater state was reached: the workers that took part in its last step could read, and had memory for it.
    pub(super) fn clear_faults(&mut self, at: StateId) {
        let mut plans = self.record.plans();
        // If it is a step of an earlier plan that a recovery has finished, the members of the present plan held its gradients.
        let ran = plans.find(|p| p.generation == at.run_gen);
        if let Some(plan) = ran.or(self.record.stored.plan.as_ref()) {
            self.quarantine.data_errors.committed(|worker| plan.has(worker));
            self.quarantine.exhausted.committed(|worker| plan.has(worker));
        }
    }

    /// What is unusual about the workers of a plan that is made after a loss, as text for people.
    pub(super) fn exceptions(&self, now: Time, shape: &Shape) -> String {
        self.left_out_readers_text(now, shape) + &self.with_less_memory(shape)
    }

    /// The members of the plan in force that this shape leaves out because they cannot read their data or their model's code, as text for
    /// people.
    fn left_out_readers_text(&self, now: Time, shape: &Shape) -> String {
        let used = shape.members();
        let plan = self.record.stored.plan.iter();
        let lost = plan.flat_map(|p| p.members()).filter(|w| !used.contains(w));
        let names = lost.map(|w| self.roster.name(*w));
        let data_errors = names.filter(|name| self.quarantine.cannot_read(now, name));
        let sentences = data_errors.map(|name| {
            format!("; {name} cannot read its data or its model's code and is left out for a while")
        });
        sentences.collect()
    }
}
