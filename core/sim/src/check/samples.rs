//! (d): a commit's reduction covers every sample of the step exactly once per role. (e): nothing of another generation enters.

use super::{Checker, Violation, broken};
use crate::engine::Reduced;
use varuna_plan::{Decision, Generation, Layout, Unit, WorkerId};

impl Checker {
    pub(crate) fn committed(
        &mut self,
        worker: WorkerId,
        layout: Layout,
        batch: u64,
        generation: Generation,
        decision: &Decision,
        reduced: &Reduced,
    ) -> Result<(), Violation> {
        if reduced.foreign || reduced.generation != generation {
            return broken('e', format!("{worker:?} used a tensor of another generation"));
        }
        if reduced.mixed {
            return broken(
                'e',
                format!("{worker:?} computed with parameters of several states"),
            );
        }
        if self
            .stopped
            .is_some_and(|(from, to)| (from..=to).contains(&generation))
        {
            let stopped = self.stopped;
            let seen = format!("{worker:?} commits in {generation} after the stop of {stopped:?}");
            return broken('o', seen);
        }
        self.reached(decision.id);
        self.counted(decision)?;
        let parent = *self.parent.entry(decision.id).or_insert(decision.parent);
        if decision.parent.step.next() != decision.id.step || parent != decision.parent {
            return broken('d', format!("{} -> {}", decision.parent, decision.id));
        }
        for (unit, (_, parts)) in &reduced.units {
            if parts.iter().any(|c| c.run_gen != generation) {
                return broken('e', format!("{worker:?} used a gradient of another generation"));
            }
            let roles: &[u8] = if Some(layout.whole_of(*unit)) == layout.tied_unit() {
                &[1, 2]
            } else {
                &[1]
            };
            for role in roles {
                let mine = parts.iter().filter(|c| c.roles & role != 0);
                let mut ranges: Vec<(u64, u64)> = mine.map(|c| c.samples).collect();
                ranges.sort_unstable();
                cover(*unit, &ranges, batch)?;
            }
        }
        Ok(())
    }
}

fn cover(unit: Unit, ranges: &[(u64, u64)], batch: u64) -> Result<(), Violation> {
    let mut at = 0;
    for (start, end) in ranges {
        if *start != at {
            return broken('d', format!("{unit:?}: samples {at}..{start}"));
        }
        at = *end;
    }
    if at == batch {
        Ok(())
    } else {
        broken('d', format!("{unit:?}: samples end at {at}"))
    }
}
