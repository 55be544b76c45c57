//! Transfers of state and gradients, in both directions. Only those that belong to the plan in force or to the planned change are handled.

use super::{Member, MemberEffect, MemberInput};
use crate::message::Time;

impl Member {
    /// Handles state and gradients that arrive, and those that were sent.
    pub(super) fn transfer(&mut self, now: Time, input: MemberInput, effects: &mut Vec<MemberEffect>) {
        match input {
            MemberInput::Fetched { generation, .. }
            | MemberInput::FetchProgress { generation, .. }
            | MemberInput::FetchFailed { generation, .. }
            | MemberInput::Gradient { generation, .. }
                if self.change_to(generation).is_some() =>
            {
                self.followed_arrival(now, input, effects);
            }
            MemberInput::Fetched {
                generation,
                from,
                unit,
                id,
                decision,
            } if generation == self.generation() || bug!(TakeUnitOfAnyGeneration) => {
                self.fetched(now, from, unit, (id, decision), effects);
            }
            MemberInput::FetchProgress {
                generation,
                from,
                unit,
            } => {
                self.fetch_progress(now, generation, from, unit);
            }
            MemberInput::FetchFailed {
                generation,
                from,
                unit,
            } if generation == self.generation() || bug!(FetchFailedInAnyGeneration) => {
                self.fetch_failed(now, from, unit, effects);
            }
            MemberInput::Served { generation, to, unit } => self.served(now, generation, to, unit, effects),
            MemberInput::NotCopied(generation, to, unit) => self.not_copied(generation, to, unit),
            MemberInput::Forwarded { generation, to, unit } => self.forwarded(generation, to, unit),
            MemberInput::Gradient {
                generation,
                from,
                unit,
                decision,
            } if generation == self.generation() || bug!(TakeGradientOfAnyGeneration) => {
                self.gradient_arrived(now, (from, unit), decision, effects);
            }
            MemberInput::PreparedGradient {
                generation,
                from,
                unit,
                prepared,
            } if generation == self.generation() || bug!(TakeSpareGradientOfAnyGeneration) => {
                self.gradient_before_decision(now, (unit, from), prepared, effects);
            }
            _ => {}
        }
    }
}
