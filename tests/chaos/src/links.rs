//! The effect of a disturbed network on a piece of data. Pure: the forwarders carry it out.

use crate::fault::{Condition, Part, Victim};
use std::time::Duration;

/// Minimum time after which TCP sends a lost packet again (Linux's `TCP_RTO_MIN`).
const RETRANSMISSION: Duration = Duration::from_millis(200);

/// An end of a link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Place {
    /// The coordinator.
    Coordinator,
    /// The worker with this number.
    Worker(u32),
    /// A worker whose number is not known yet.
    Unknown,
}

/// A disturbance of all links from one place to another. None stands for any place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The sender of the data.
    pub from: Option<Place>,
    /// The receiver of the data.
    pub to: Option<Place>,
    /// The disturbance.
    pub condition: Condition,
}

impl Rule {
    fn matches(&self, from: Place, to: Place) -> bool {
        self.from.is_none_or(|p| p == from) && self.to.is_none_or(|p| p == to)
    }
}

/// The rules for a part of the network. `number` returns the number of the worker for a victim.
pub fn rules(part: Part, condition: Condition, number: impl Fn(Victim) -> u32) -> Vec<Rule> {
    let worker = |victim| Some(Place::Worker(number(victim)));
    let coordinator = Some(Place::Coordinator);
    let ends = match part {
        Part::OneWay { from, to } => vec![(worker(from), worker(to))],
        Part::Between { one, other } => vec![(worker(one), worker(other)), (worker(other), worker(one))],
        Part::ToCoordinator(victim) => vec![(worker(victim), coordinator)],
        Part::FromCoordinator(victim) => vec![(coordinator, worker(victim))],
        Part::Around(victim) => vec![(worker(victim), None), (None, worker(victim))],
        Part::AroundCoordinator => vec![(coordinator, None), (None, coordinator)],
        Part::Everything => vec![(None, None)],
    };
    let rule = |(from, to)| Rule { from, to, condition };
    ends.into_iter().map(rule).collect()
}

/// The treatment of a piece of data, or of the end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Treatment {
    /// The data waits until the rules change.
    Hold,
    /// The connection is reset.
    Reset,
    /// The data passes after this delay.
    After(Duration),
}

/// The treatment of a piece of `bytes` bytes; `chance` is a random number from 0 to 1.
#[must_use]
pub fn treatment(rules: &[Rule], from: Place, to: Place, bytes: usize, chance: f64) -> Treatment {
    let mut wait = Duration::ZERO;
    let mut held = false;
    for rule in rules.iter().filter(|r| r.matches(from, to)) {
        match rule.condition {
            Condition::Reset => return Treatment::Reset,
            Condition::Held => held = true,
            Condition::Delayed { ms } => wait += Duration::from_millis(ms),
            Condition::Lossy { percent } if chance * 100.0 < f64::from(percent) => wait += RETRANSMISSION,
            Condition::Lossy { .. } => {}
            Condition::Slow { bytes_per_second } => {
                wait += Duration::from_millis(bytes as u64 * 1_000 / bytes_per_second.max(1));
            }
        }
    }
    if held {
        Treatment::Hold
    } else {
        Treatment::After(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Place = Place::Worker(1);
    const B: Place = Place::Worker(2);

    fn of(part: Part, condition: Condition) -> Vec<Rule> {
        rules(part, condition, |victim| victim.0)
    }

    #[test]
    fn a_cut_in_one_direction_leaves_the_other_as_it_is() {
        let (from, to) = (Victim(1), Victim(2));
        let rules = of(Part::OneWay { from, to }, Condition::Held);
        assert_eq!(treatment(&rules, A, B, 10, 0.5), Treatment::Hold);
        assert_eq!(treatment(&rules, B, A, 10, 0.5), Treatment::After(Duration::ZERO));
        assert_eq!(
            treatment(&rules, A, Place::Coordinator, 10, 0.5),
            Treatment::After(Duration::ZERO)
        );
    }

    #[test]
    fn isolated_worker_reaches_nobody() {
        let rules = of(Part::Around(Victim(1)), Condition::Held);
        for (from, to) in [(A, B), (B, A), (A, Place::Coordinator), (Place::Unknown, A)] {
            assert_eq!(treatment(&rules, from, to, 10, 0.5), Treatment::Hold);
        }
        assert_eq!(
            treatment(&rules, B, Place::Coordinator, 10, 0.5),
            Treatment::After(Duration::ZERO)
        );
    }

    #[test]
    fn times_add_up_and_a_reset_wins() {
        let mut rules = of(Part::Everything, Condition::Delayed { ms: 5 });
        rules.extend(of(
            Part::Everything,
            Condition::Slow {
                bytes_per_second: 1_000,
            },
        ));
        rules.extend(of(Part::Everything, Condition::Lossy { percent: 10 }));
        let after = |ms| Treatment::After(Duration::from_millis(ms));
        assert_eq!(treatment(&rules, A, B, 20, 0.5), after(25));
        assert_eq!(treatment(&rules, A, B, 20, 0.05), after(225));
        rules.extend(of(Part::AroundCoordinator, Condition::Held));
        rules.extend(of(Part::AroundCoordinator, Condition::Reset));
        assert_eq!(treatment(&rules, A, B, 20, 0.5), after(25));
        assert_eq!(
            treatment(&rules, A, Place::Coordinator, 20, 0.5),
            Treatment::Reset
        );
    }
}
