//! Which branches of the protocol a schedule reaches, by what its coordinators say.

use super::Schedule;
use crate::host::Host;
use varuna_plan::{ScaleFactor, StateId};
use varuna_protocol::Event;

impl Host<Schedule> {
    /// A coordinator emitted an event.
    pub(super) fn note_event(&mut self, c: usize, event: &Event) {
        if self.env.print {
            println!("{:6} coordinator {c}: {event:?}", self.now());
        }
        self.watch_event(c, event);
        let now = self.now();
        let in_force = self.coordinators[c].machine.record().plan.as_ref();
        let in_force = in_force.map(|plan| plan.generation);
        match event {
            Event::Running { generation } => self.note_go(*generation),
            Event::TookOver { .. } => self.env.checker.takes_over(c, in_force),
            Event::Fenced { .. } => {
                self.env.checker.recovery_begins(c, now);
                self.env.checker.fenced(in_force, now);
            }
            _ => {}
        }
        if let Some(kind) = kind_of(event) {
            self.env.stats.reach(kind);
        }
    }
}

/// The kind under which an event is counted; none if it is counted in another way.
fn kind_of(event: &Event) -> Option<String> {
    let kind = match event {
        Event::Fenced { because, .. } => return Some(format!("recovery: {}", without_names(because))),
        Event::Cancelled { because, .. } => {
            return Some(format!("change cancelled: {}", without_names(because)));
        }
        Event::Resumed { finished: true, .. } => "resume: finishes a step",
        Event::Resumed {
            restored: true, base, ..
        } if *base == StateId::INITIAL => "resume: from the seed",
        Event::Resumed { restored: true, .. } => "resume: from a checkpoint",
        Event::Resumed { .. } => "resume: from memory",
        Event::Planned { change: true, .. } => "change proposed",
        Event::Switched { .. } => "change switched",
        Event::FollowersCaughtUp { .. } => "following: newcomers have caught up",
        Event::SpareCopies { verdict, .. } if verdict.keeps() => "spare copies are kept",
        Event::SpareCopies { .. } => "no spare copies are kept",
        Event::CheckpointInterval { seconds: Some(_) } => "checkpoints: more because of losses",
        Event::CheckpointInterval { seconds: None } => "checkpoints: no more because of losses",
        Event::FollowersLate { .. } => "following: newcomers are late",
        Event::TookOver { .. } => "coordinator: takes over",
        Event::Deposed { .. } => "coordinator: deposed",
        Event::WriteFailed { .. } => "coordinator: write failed",
        Event::BelowMinimum { .. } => "coordinator: waits for workers",
        Event::NoPlan { .. } => "coordinator: no plan",
        Event::WorkerReleased { .. } => "worker released",
        Event::StatesDiffer { replaced, .. } if replaced.is_empty() => "states differ: goes back",
        Event::StatesDiffer { .. } => "states differ: replaces",
        Event::StepTimeOff { .. } => "step time off",
        Event::CostsCorrected { .. } => "costs corrected",
        Event::Committed {
            overflow: true,
            progress,
            ..
        } if progress.failed_in_a_row > 0 => "step skipped: the loss scale cannot fall",
        Event::Committed { overflow: true, .. } => "step skipped: the loss scale falls",
        Event::Committed { progress, .. }
            if progress.loss_scale.clean_steps == 0 && progress.loss_scale.factor > ScaleFactor::ONE =>
        {
            "the loss scale rises"
        }
        Event::FinalCheckpointDamaged { .. } => "end: the checkpoint of the last step is damaged",
        Event::Diverged(_) => "run ends: diverged",
        Event::Committed { .. }
        | Event::Lost { .. }
        | Event::Done { .. }
        | Event::Planned { .. }
        | Event::Collected { .. }
        | Event::Connected { .. }
        | Event::Running { .. }
        | Event::WorkerJoined { .. }
        | Event::WorkerLost { .. }
        | Event::WorkerDraining { .. } => return None,
    };
    Some(kind.to_owned())
}

/// A reason without workers and numbers: the same text for the same cause.
fn without_names(because: &str) -> String {
    let is_name = |word: &&str| word.contains(|c: char| c.is_ascii_digit());
    let words: Vec<&str> = because.split(' ').filter(|word| !is_name(word)).collect();
    words.join(" ")
}
