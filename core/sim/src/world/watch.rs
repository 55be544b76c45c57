//! Checks and records that are made all the time: the size of tables, and the timeline of a schedule.

use super::{Result, Schedule};
use crate::check::{Violation, coordinator_is_bounded, member_is_bounded};
use crate::host::Host;
use crate::timeline::{Kind, ProcessState, Row};
use varuna_protocol::{Event, Phase};

impl Host<Schedule> {
    /// Checks that no process remembers more than is needed for what is alive.
    pub(super) fn check_memory(&self) -> Result {
        for (c, coordinator) in self.coordinators.iter().enumerate().filter(|(_, c)| c.alive) {
            coordinator_is_bounded(c, coordinator.machine.tables())?;
        }
        let units = self.env.job.layout.all_units().count();
        for (id, worker) in self.members.iter().filter(|(_, w)| w.alive) {
            member_is_bounded(id, worker.machine.tables(), units)?;
        }
        Ok(())
    }

    /// Records the present state of all processes for the timeline.
    pub(super) fn record_states(&mut self) {
        let now = self.now();
        let Some(timeline) = &mut self.env.timeline else {
            return;
        };
        for (c, coordinator) in self.coordinators.iter().enumerate() {
            let state = match (coordinator.alive, coordinator.paused > now) {
                (false, _) => ProcessState::Dead,
                (true, true) => ProcessState::Paused,
                (true, false) => ProcessState::Coordinates,
            };
            timeline.record_state(now, Row::Coordinator(c), state);
        }
        for (id, worker) in self.members.iter() {
            let state = match worker.machine.status().phase {
                _ if !worker.alive => ProcessState::Dead,
                _ if worker.paused > now => ProcessState::Paused,
                Phase::Idle => ProcessState::Idle,
                Phase::Source => ProcessState::Source,
                Phase::Loading => ProcessState::Loading,
                Phase::Ready => ProcessState::Ready,
                Phase::Running => ProcessState::Running,
            };
            timeline.record_state(now, Row::Worker(id), state);
        }
    }

    /// Adds a coordinator's events to the timeline; the coming and going of workers shows in their rows.
    pub(super) fn watch_event(&mut self, c: usize, event: &Event) {
        let at = self.now();
        let text = match event {
            Event::WorkerJoined { .. } | Event::WorkerLost { .. } => return,
            Event::Committed { id, .. } => format!("committed {id}"),
            event => format!("{event:?}"),
        };
        if let Some(timeline) = &mut self.env.timeline {
            timeline.add(at, Kind::Protocol, Some(Row::Coordinator(c)), text);
        }
    }

    pub(super) fn watch_violation(&mut self, violation: &Violation) {
        let at = self.now();
        let text = format!("({}) {}", violation.invariant, violation.seen);
        if let Some(timeline) = &mut self.env.timeline {
            timeline.add(at, Kind::Violation, None, text);
        }
    }
}
