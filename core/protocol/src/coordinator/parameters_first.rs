//! Whether the first step of a recovery's plan begins before its members have all their state (ADR 43).

use super::shared::Shared;
use crate::message::Inventory;
use std::collections::BTreeMap;
use varuna_plan::parameters_first::{is_worthwhile, without_room};
use varuna_plan::{Base, Plan, WorkerId};

impl Shared {
    /// Makes the first step of a recovery's plan begin with parameters, where that is possible and worth its time.
    pub(super) fn begin_with_parameters(&self, plan: &mut Plan, answers: &BTreeMap<WorkerId, Inventory>) {
        if self.sends_parameters_first(plan, answers) {
            plan.parameters_first = true;
            plan.reason.push_str("; the first step begins with parameters");
        }
    }

    /// Whether members that lack state get parameters first: the plan allows it, all members can and have memory for it, and it is worth its
    /// time. Not right after a plan that did so and committed nothing: whatever the cause was, the next plan does without.
    fn sends_parameters_first(&self, plan: &Plan, answers: &BTreeMap<WorkerId, Inventory>) -> bool {
        let Base::Fixed { id, .. } = plan.base else {
            return false;
        };
        let able = |w: &_| self.roster.status(*w).is_some_and(|s| s.parameters_first);
        let all_can = bug!(BeginBeforeGoWithAll) || plan.members().iter().all(able);
        if !plan.can_send_parameters_first() || !all_can || id.step >= self.last_step() {
            return false;
        }
        let before = self.record.stored.plan.as_ref().filter(|p| p.parameters_first);
        let failed = before.is_some_and(|p| id.run_gen < p.generation) && !bug!(BeginBeforeGoAgain);
        !failed && self.parameters_first_pays(plan, answers)
    }

    fn parameters_first_pays(&self, plan: &Plan, answers: &BTreeMap<WorkerId, Inventory>) -> bool {
        let workers = self.infos(plan.members());
        let costs = self.spare_costs(&plan.shape, &workers);
        let held = |worker| {
            let inventory = answers.get(&worker);
            inventory.map_or_else(Vec::new, |held| held.units.keys().copied().collect())
        };
        let without_room = without_room(plan, self.record.stored.plan.as_deref(), held, &costs);
        let have_room = without_room.is_empty() || bug!(BeginBeforeGoWithoutRoom);
        have_room && (is_worthwhile(plan, &costs) || bug!(BeginBeforeGoAtAnyCost))
    }
}
