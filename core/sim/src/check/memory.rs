//! Invariant (k): the memory of coordinators and members is bounded by what is alive and by what the record's plans name.

use super::{Violation, broken};
use varuna_plan::WorkerId;
use varuna_protocol::{CoordinatorTables, MemberTables};

/// Number of departed workers that are remembered for people.
const GONE: usize = 256;
/// Kinds of orders.
const ORDERS: usize = 7;
/// Names in quarantine.
const NAMES: usize = 1_024;

/// States that are compared at the same time, compared checkpoints, and rollbacks.
const COMPARISONS: usize = 4 + 8 + 16;

/// A table: its name, its entries, and how many it may have.
type Table = (&'static str, usize, usize);

/// Checks that a coordinator's memory is bounded by the workers that are connected, those that plans name, and a constant.
pub(crate) fn coordinator_is_bounded(c: usize, tables: CoordinatorTables) -> Result<(), Violation> {
    let known = tables.connected + tables.planned + GONE;
    let all = [
        ("workers", tables.workers, known),
        ("orders", tables.orders, ORDERS * known),
        ("bad links", tables.bad_links, known * known),
        ("names in quarantine", tables.quarantined, NAMES),
        ("prepared plans", tables.prepared_plans, 2 * known),
        ("comparisons", tables.comparisons, COMPARISONS),
    ];
    within(&format!("coordinator {c}"), &all)
}

/// Checks that a member's memory is bounded by the workers that its plans name and the units of the model.
pub(crate) fn member_is_bounded(w: WorkerId, tables: MemberTables, units: usize) -> Result<(), Violation> {
    let all = [
        ("peers", tables.peers, tables.planned),
        (
            "state that peers asked for",
            tables.serving,
            2 * tables.planned * units,
        ),
        ("state that it asked for", tables.fetching, 2 * units),
        ("spare copies", tables.kept, 5 * units),
        ("units", tables.units, 3 * units),
    ];
    within(&format!("{w:?}"), &all)
}

fn within(whose: &str, tables: &[Table]) -> Result<(), Violation> {
    match tables.iter().find(|(_, entries, most)| entries > most) {
        Some((name, entries, most)) => {
            broken('k', format!("{whose} remembers {entries} {name}, {most} at most"))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_grows_beyond_what_lives_breaks_the_invariant() {
        let three = CoordinatorTables {
            connected: 3,
            planned: 3,
            workers: 3 + 3 + GONE,
            ..CoordinatorTables::default()
        };
        assert_eq!(coordinator_is_bounded(0, three), Ok(()));
        let more = CoordinatorTables {
            workers: three.workers + 1,
            ..three
        };
        let broken = coordinator_is_bounded(0, more).unwrap_err();
        assert_eq!(
            (broken.invariant, &*broken.seen),
            ('k', "coordinator 0 remembers 263 workers, 262 at most")
        );
        let asked = MemberTables {
            planned: 2,
            serving: 13,
            ..MemberTables::default()
        };
        assert_eq!(member_is_bounded(WorkerId(1), asked, 4), Ok(()));
        assert!(member_is_bounded(WorkerId(1), asked, 3).is_err());
    }
}
