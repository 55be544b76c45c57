//! The state that a member has only because it follows the run or keeps spare copies: what these cost in memory. Nothing here decides
//! anything.

use super::Member;
use std::collections::BTreeMap;
use varuna_plan::Unit;

impl Member {
    /// The units that this worker has beside those that it trains: those that it follows until their plan runs, and those whose spare
    /// copy it keeps. With each, the number of its gradients that wait here for their decision.
    #[must_use]
    pub fn extra_units(&self) -> BTreeMap<Unit, u32> {
        let (current, change) = (self.current.as_ref(), self.change.as_ref());
        let loading = current.filter(|c| c.takes_gradients()).map(|c| &c.followed);
        let followed = loading.into_iter().chain(change.map(|c| &c.followed));
        let followed = followed.flat_map(|f| f.units());
        let here = |unit: &Unit| self.holdings.units.contains_key(unit) || self.adopting.contains_key(unit);
        let kept = current.into_iter().flat_map(|c| c.kept.units()).filter(here);
        let waiting = |unit: Unit| (unit, self.holdings.waiting_for(unit));
        followed.chain(kept).map(waiting).collect()
    }
}
