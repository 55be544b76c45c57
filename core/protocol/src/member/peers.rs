//! Handles connections of the plan in force and of the planned change that open and close.

use super::in_plan::Stage;
use super::{Member, MemberEffect};
use crate::message::{Phase, Suspicion, Time};
use varuna_plan::{Generation, WorkerId};

impl Member {
    pub(super) fn connected(
        &mut self,
        now: Time,
        generation: Generation,
        peer: WorkerId,
        effects: &mut Vec<MemberEffect>,
    ) {
        let me = self.config.id;
        if let Some(change) = self.change_to(generation) {
            let new = change.connections.accepted(peer);
            if change.is_connected(me) {
                change.suspect_at = None;
            }
            if new {
                self.report_status_change(effects);
                self.follow_next(now, effects);
            }
        } else if let Some(current) = self.current_in(generation)
            && current.connections.accepted(peer)
        {
            current.progress_at = now;
            self.serve(effects);
            self.load(now, effects);
            self.report_status_change(effects);
        }
    }

    pub(super) fn closed(
        &mut self,
        now: Time,
        generation: Generation,
        peer: WorkerId,
        effects: &mut Vec<MemberEffect>,
    ) {
        if let Some(change) = self.change_to(generation) {
            change.serving.lose(peer);
            change.followers.lose(peer);
            change.lose_followed(peer);
            if change.connections.lose(peer) {
                // Nobody dials again. Unless the peer itself is gone, which the coordinator notices, the change can no longer succeed.
                if !bug!(ForgetLostLinkOfChange) {
                    change.suspect_at = Some(now);
                }
                self.report_status_change(effects);
            }
            return;
        }
        let finished = self.finished();
        let Some(current) = self.current_in(generation) else {
            return;
        };
        current.connections.lose(peer);
        current.serving.lose(peer);
        current.followers.lose(peer);
        current.keepers.lose(peer);
        // a source may leave as soon as Go is given, and it may get Go before this worker does
        let needed = match current.stage {
            Stage::Running => current.plan.has(peer) && !finished,
            Stage::Ready => current.plan.has(peer),
            Stage::Loading(_) => current.plan.involves(peer),
            Stage::Source => false,
        };
        if needed && !bug!(IgnoreClosedPeer) {
            self.suspect(peer, Suspicion::Gone, effects);
        }
    }

    /// A peer's connection is about to end because an invalid frame came over it.
    pub(super) fn damaged(&self, generation: Generation, from: WorkerId, effects: &mut Vec<MemberEffect>) {
        let here = self.generation() == generation && self.phase() != Phase::Source;
        if here && !self.finished() && !bug!(HideDamagedFrames) {
            self.suspect(from, Suspicion::Damaged, effects);
        }
    }
}
