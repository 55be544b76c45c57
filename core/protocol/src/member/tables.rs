//! How much a member remembers, for tests that its memory is bounded by what its plans name.

use super::Member;
use super::in_plan::Stage;

/// Entries in a member's tables.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MemberTables {
    /// Members and sources of the plan in force and of the planned change.
    pub planned: usize,
    /// Peers that accepted its connections.
    pub peers: usize,
    /// State that peers asked for.
    pub serving: usize,
    /// State that it asked for.
    pub fetching: usize,
    /// Spare copies that it keeps, and the gradients that wait for them.
    pub kept: usize,
    /// Units held, prepared or being taken over.
    pub units: usize,
}

impl Member {
    /// The sizes of the member's tables.
    #[must_use]
    pub fn tables(&self) -> MemberTables {
        let (current, change) = (self.current.as_ref(), self.change.as_ref());
        let plans = current
            .map(|c| &c.plan)
            .into_iter()
            .chain(change.map(|c| &c.plan));
        let named = plans.map(|p| p.members().len() + p.sources.iter().flatten().count());
        let fetching = current.map(|c| match &c.stage {
            Stage::Loading(transfers) => transfers.len(),
            Stage::Source | Stage::Ready | Stage::Running => 0,
        });
        let waiting = self
            .holdings
            .waiting
            .values()
            .map(std::collections::VecDeque::len);
        let count = |of_current: Option<usize>, of_change: Option<usize>| {
            of_current.unwrap_or_default() + of_change.unwrap_or_default()
        };
        MemberTables {
            planned: named.sum(),
            peers: count(
                current.map(|c| c.connections.len()),
                change.map(|c| c.connections.len()),
            ),
            serving: count(
                current.map(|c| c.serving.len() + c.followers.len() + c.keepers.len()),
                change.map(|c| c.serving.len() + c.followers.len()),
            ),
            fetching: fetching.unwrap_or_default()
                + count(
                    current.map(|c| c.followed.len()),
                    change.map(|c| c.followed.len() + c.asked.len()),
                ),
            kept: current.map_or(0, |c| c.kept.len()) + waiting.sum::<usize>(),
            units: self.holdings.units.len() + self.holdings.prepared.len() + self.adopting.len(),
        }
    }
}
