//! Which workers hold units that no other worker holds.

use std::collections::BTreeSet;
use std::path::Path;
use varuna_plan::{Plan, WorkerId};
use varuna_protocol::{Phase, Record};
use varuna_run_folder::RunFiles;

/// For each unit, the workers that have its newest state, as far as the run folder shows.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Needed {
    holders: Vec<Vec<WorkerId>>,
}

impl Needed {
    /// Reads the record and the status. If there is no plan yet, no worker is needed.
    #[must_use]
    pub fn read(run: &Path) -> Needed {
        let files = RunFiles::new(run);
        let text = std::fs::read_to_string(files.record_path()).unwrap_or_default();
        let record: Option<Record> = serde_json::from_str(&text).ok();
        let Some(record) = record else {
            return Needed::default();
        };
        let running = files.status().ok().map(|status| {
            let workers = status.workers.into_iter();
            let running = workers.filter(|w| w.view.phase == Some(Phase::Running));
            running
                .map(|w| (w.view.id, w.view.generation))
                .collect::<BTreeSet<_>>()
        });
        let running = running.unwrap_or_default();
        let mut needed = Needed::default();
        for plan in [record.plan, record.next].into_iter().flatten() {
            let in_force = plan
                .shape
                .members()
                .iter()
                .any(|m| running.contains(&(*m, plan.generation)));
            needed.holders.extend(holders(&plan, in_force));
        }
        needed
    }

    /// Whether every unit has a holder among `left`, even without this worker.
    #[must_use]
    pub fn without(&self, left: &BTreeSet<WorkerId>, worker: Option<WorkerId>) -> bool {
        let stays = |holder: &WorkerId| Some(*holder) != worker && left.contains(holder);
        let affected = |holders: &&Vec<WorkerId>| worker.is_some_and(|w| holders.contains(&w));
        self.holders
            .iter()
            .filter(affected)
            .all(|holders| holders.iter().any(stays))
    }
}

/// For a plan that runs, its members have its state. Before that, its sources have it.
fn holders(plan: &Plan, in_force: bool) -> Vec<Vec<WorkerId>> {
    if in_force {
        let units = plan.layout.all_units();
        units.map(|unit| plan.shape.holders(&plan.layout, unit)).collect()
    } else {
        plan.sources.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_holder_of_a_unit_is_needed_and_one_of_two_is_not() {
        let [a, b, c] = [1, 2, 3].map(WorkerId);
        let needed = Needed {
            holders: vec![vec![a, b], vec![c]],
        };
        let left = BTreeSet::from([a, b, c]);
        assert!(needed.without(&left, Some(a)) && needed.without(&left, Some(b)));
        assert!(!needed.without(&left, Some(c)));
        assert!(
            needed.without(&left, None),
            "who has not said its id holds nothing"
        );
        assert!(!needed.without(&BTreeSet::from([a, c]), Some(a)));
    }
}
