//! Starts coordinators and tells them what they need.

use super::{BATCH, Schedule};
use crate::engine::SCALING;
use crate::host::{Event, Host, Process};
use std::time::Duration;
use varuna_protocol::{Coordinator, CoordinatorConfig, CoordinatorInput, Record, Timing};

/// Interval at which the record is read if that is seldom, as in a cluster: a process that relied on it would wait for ever.
const SELDOM: Duration = Duration::from_secs(300);

impl Host<Schedule> {
    pub(super) fn add_coordinator_process(&mut self) {
        let seed = self.env.rng.draw();
        let mut timing = Timing::model();
        if self.env.job.shipped_planner {
            timing.prepare_plans_every = Duration::from_millis(30);
        }
        if self.env.job.seldom_reads {
            timing.watch = SELDOM;
        }
        let job = &self.env.job;
        let config = CoordinatorConfig {
            min_workers: job.min_workers(),
            timing,
            evaluation: job.evaluation,
            final_checkpoint: job.final_checkpoint,
            save_every: job.save_every,
            save_every_steps: Some(job.checkpoint_every),
            adaptive_checkpoints: job.adaptive_checkpoints,
            tree_fan_out: 2,
            loss_scaling: SCALING,
            spare_copies: job.spare_copies,
            ..CoordinatorConfig::new(job.layout, BATCH, job.last_step)
        };
        let planner = self.env.job.planner(seed);
        let mut machine = Coordinator::new(config, planner);
        if self.env.job.may_begin_anew {
            machine = machine.may_begin_anew();
        }
        let c = self.add_coordinator(machine);
        let ordered = self.env.job.ordered_last_step;
        // The starter need not know what an earlier coordinator was told, since the record has it. The record of a run that has ended may
        // lack it.
        if ordered.0 > 0 && (self.env.store.record.done || self.env.rng.chance(50)) {
            self.after_random(0, 0, Event::Coordinator(c, CoordinatorInput::LastStep(ordered)));
        }
        self.after_random(1, 5, Event::Tick(Process::Coordinator(c)));
    }

    /// A coordinator has taken over. Others notice when they read the record; if that is seldom, the platform tells them.
    pub(super) fn announce_take_over(&mut self, record: &Record) {
        for c in 0..self.coordinators.len() {
            let other = &self.coordinators[c];
            if self.env.job.seldom_reads && other.alive && other.machine.term() < record.term {
                let read = CoordinatorInput::Record(record.clone());
                self.after_random(100, 1_000, Event::Coordinator(c, read));
            }
        }
    }

    pub(super) fn newest_coordinator(&self) -> Option<usize> {
        self.coordinators.iter().rposition(|c| c.alive)
    }
}
