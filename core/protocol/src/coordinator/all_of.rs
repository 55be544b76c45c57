//! A condition that all members of a plan have to meet, checked repeatedly while they come to meet it one by one.

use super::turn::Scope;
use varuna_plan::{Generation, WorkerId};

/// Remembers one member that did not meet the condition: until it does, no other member has to be checked. Members come to meet a condition
/// one after another, so each is checked about once, and not for every message of every other member.
#[derive(Default)]
pub(super) struct AllOf {
    generation: Generation,
    /// Index of the first member that is not known to meet the condition; the number of members if all did.
    next: usize,
}

impl AllOf {
    /// Whether all of `members` (ascending, of the plan of this generation) meet the condition. `scope`: the workers whose status may have
    /// changed since the last call.
    pub(super) fn holds(
        &mut self,
        scope: Scope,
        generation: Generation,
        members: &[WorkerId],
        meets: impl Fn(WorkerId) -> bool,
    ) -> bool {
        if self.generation != generation {
            *self = AllOf { generation, next: 0 };
        }
        if self.next < members.len() {
            self.next += members[self.next..].iter().take_while(|w| meets(**w)).count();
            // Each met the condition when it was checked; do all of them meet it now?
            return self.next == members.len() && self.still_holds(Scope::Everyone, members, meets);
        }
        self.still_holds(scope, members, meets)
    }

    fn still_holds(&mut self, scope: Scope, members: &[WorkerId], meets: impl Fn(WorkerId) -> bool) -> bool {
        let failed = scope.among(members).iter().find(|w| !meets(**w));
        if let Some(failed) = failed {
            self.next = members.partition_point(|w| w < failed);
        }
        failed.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;
    use std::collections::BTreeSet;

    const EACH: Generation = Generation(1);

    proptest! {
        /// After changes in any order, the answer is the same as if all workers were checked.
        #[test]
        fn it_holds_where_looking_at_everyone_says_so(
            changes in proptest::collection::vec((0..8_u64, any::<bool>(), any::<bool>()), 0..60)
        ) {
            let members: Vec<WorkerId> = (0..8).map(WorkerId).collect();
            let mut met = BTreeSet::new();
            let mut all = AllOf::default();
            for (worker, meets, everyone) in changes {
                if meets { met.insert(WorkerId(worker)) } else { met.remove(&WorkerId(worker)) };
                let scope = if everyone { Scope::Everyone } else { Scope::One(WorkerId(worker)) };
                let holds = all.holds(scope, EACH, &members, |w| met.contains(&w));
                prop_assert_eq!(holds, met.len() == members.len());
            }
        }
    }

    #[test]
    fn members_that_come_one_by_one_are_looked_at_a_few_times_each() {
        let members: Vec<WorkerId> = (0..1_000).map(WorkerId).collect();
        let (mut all, looks) = (AllOf::default(), Cell::new(0));
        for come in (0..1_000).rev() {
            let meets = |w: WorkerId| {
                looks.set(looks.get() + 1);
                w.0 >= come
            };
            let holds = all.holds(Scope::One(WorkerId(come)), EACH, &members, meets);
            assert_eq!(holds, come == 0);
        }
        assert!(looks.get() <= 4_000, "{} looks", looks.get());
    }
}
