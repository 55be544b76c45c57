//! The timeline of faults that follows from a seed. Pure.

use crate::fault::{Condition, Fault, Part, Planned, Victim};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Number of workers of a run without faults.
pub const WORKERS: u32 = 6;
/// Maximum number of workers that may be disturbed at the same time by faults of single workers.
const DISTURBED_MAX: usize = 3;
/// Time without faults at the start, in milliseconds: the workers load their program and train the first steps.
const START_MS: u64 = 4_000;

/// The settings of a timeline.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Settings {
    /// Length of the timeline in milliseconds. All faults have ended by then.
    pub length_ms: u64,
    /// Mean time between the beginnings of two faults, milliseconds.
    pub every_ms: u64,
    /// Whether the disk of the run folder can be filled.
    pub disk: bool,
    /// Whether the coordinator's fsync can be made to fail.
    pub fsync: bool,
}

/// The kinds of faults, with their weights: a kind's probability is its weight divided by the sum of all weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Kill,
    KillTogether,
    KillMost,
    KillCoordinator,
    Pause,
    PauseCoordinator,
    Notice,
    Join,
    Cut,
    CutCoordinator,
    Reset,
    Delay,
    Loss,
    SlowLink,
    DiskFull,
    FsyncFails,
    StoreDown,
    NoMemory,
}

const WEIGHTS: &[(Kind, u32)] = &[
    (Kind::Kill, 560),
    (Kind::KillTogether, 80),
    (Kind::KillMost, 4),
    (Kind::KillCoordinator, 35),
    (Kind::Pause, 35),
    (Kind::PauseCoordinator, 10),
    (Kind::Notice, 50),
    (Kind::Join, 40),
    (Kind::Cut, 18),
    (Kind::CutCoordinator, 14),
    (Kind::Reset, 30),
    (Kind::Delay, 25),
    (Kind::Loss, 20),
    (Kind::SlowLink, 20),
    (Kind::DiskFull, 20),
    (Kind::FsyncFails, 15),
    (Kind::StoreDown, 15),
    (Kind::NoMemory, 15),
];

/// The timeline of a seed, in order of time.
#[must_use]
pub fn timeline(seed: u64, settings: Settings) -> Vec<Planned> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut planned: Vec<Planned> = Vec::new();
    let mut now = START_MS;
    loop {
        // Exponential gaps, as for independent causes. The minimum gives the coordinator time to react.
        let gap = -(1.0 - random.random::<f64>()).ln() * settings.every_ms as f64;
        now += (gap as u64).clamp(50, 10 * settings.every_ms.max(50));
        if now >= settings.length_ms {
            return planned;
        }
        let (for_ms, fault) = draw(&mut random, settings);
        let next = Planned {
            at_ms: now,
            for_ms,
            fault,
        };
        if next.end_ms() <= settings.length_ms && fits(&planned, &next) {
            planned.push(next);
        }
    }
}

/// Whether a fault may begin while these others are in progress.
fn fits(planned: &[Planned], next: &Planned) -> bool {
    let under_way = || planned.iter().filter(|p| p.end_ms() >= next.at_ms);
    // There is only one coordinator, one disk and one store.
    let single = |fault: &Fault| match fault {
        Fault::KillCoordinator | Fault::PauseCoordinator => Some(0),
        Fault::DiskFull => Some(1),
        Fault::FsyncFails => Some(2),
        Fault::StoreDown => Some(3),
        _ => None,
    };
    if let Some(of_next) = single(&next.fault) {
        return under_way().all(|p| single(&p.fault) != Some(of_next));
    }
    let disturbed: usize = under_way().map(|p| disturbed(&p.fault)).sum();
    let own = self::disturbed(&next.fault);
    own == 0 || own > DISTURBED_MAX || disturbed + own <= DISTURBED_MAX
}

/// Number of workers that cannot train during the fault.
fn disturbed(fault: &Fault) -> usize {
    match fault {
        Fault::Kill { victims, .. } => victims.len(),
        Fault::Pause { .. } | Fault::NoMemory { .. } | Fault::Notice { .. } => 1,
        Fault::Network {
            condition: Condition::Held | Condition::Reset,
            part,
        } => match part {
            Part::Everything | Part::AroundCoordinator => 0,
            _ => 1,
        },
        _ => 0,
    }
}

fn draw(random: &mut StdRng, settings: Settings) -> (u64, Fault) {
    let usable = |kind: Kind| match kind {
        Kind::DiskFull => settings.disk,
        Kind::FsyncFails => settings.fsync,
        _ => true,
    };
    let weights = || WEIGHTS.iter().filter(|(kind, _)| usable(*kind));
    let mut left = random.random_range(0..weights().map(|(_, w)| w).sum::<u32>());
    for (kind, weight) in weights() {
        match left.checked_sub(*weight) {
            Some(rest) => left = rest,
            None => return of_kind(*kind, random),
        }
    }
    (0, Fault::Join) // never reached, because `left` is less than the sum
}

fn of_kind(kind: Kind, random: &mut StdRng) -> (u64, Fault) {
    let victim = |random: &mut StdRng| Victim(random.random_range(0..u32::MAX));
    let mostly_short = |random: &mut StdRng| match random.random_range(0..10) {
        0..7 => random.random_range(50..1_500),
        _ => random.random_range(3_000..9_000),
    };
    match kind {
        Kind::Kill | Kind::KillTogether | Kind::KillMost => kill(kind, random),
        Kind::KillCoordinator => (random.random_range(20..2_500), Fault::KillCoordinator),
        Kind::Pause => (
            mostly_short(random),
            Fault::Pause {
                victim: victim(random),
            },
        ),
        Kind::PauseCoordinator => (mostly_short(random), Fault::PauseCoordinator),
        Kind::Notice => (
            random.random_range(20..1_000),
            Fault::Notice {
                victim: victim(random),
            },
        ),
        Kind::Join => (random.random_range(3_000..15_000), Fault::Join),
        Kind::NoMemory => (
            random.random_range(200..2_000),
            Fault::NoMemory {
                victim: victim(random),
            },
        ),
        Kind::DiskFull => (random.random_range(200..4_000), Fault::DiskFull),
        Kind::FsyncFails => (random.random_range(200..4_000), Fault::FsyncFails),
        Kind::StoreDown => (random.random_range(1_000..8_000), Fault::StoreDown),
        Kind::Cut | Kind::CutCoordinator | Kind::Reset | Kind::Delay | Kind::Loss | Kind::SlowLink => {
            network(kind, random)
        }
    }
}

fn kill(kind: Kind, random: &mut StdRng) -> (u64, Fault) {
    // Killing the last holder of a unit makes a recovery wait for its answer. This is rare, so that the run trains most of the time.
    let (count, reckless) = match kind {
        Kind::KillTogether => (
            random.random_range(2..=DISTURBED_MAX as u32),
            random.random_bool(0.1),
        ),
        Kind::KillMost => (random.random_range(WORKERS - 1..=WORKERS + 3), true),
        _ => (1, random.random_bool(0.03)),
    };
    let first = random.random_range(0..u32::MAX / 2);
    let victims = (0..count).map(|i| Victim(first + i)).collect();
    (random.random_range(20..1_000), Fault::Kill { victims, reckless })
}

fn network(kind: Kind, random: &mut StdRng) -> (u64, Fault) {
    let first = Victim(random.random_range(0..u32::MAX / 2));
    let second = Victim(first.0 + random.random_range(1..WORKERS));
    let (from, to) = (first, second);
    let between = Part::Between {
        one: first,
        other: second,
    };
    let peers = [Part::OneWay { from, to }, between, Part::Around(first)];
    let uplinks = [
        Part::ToCoordinator(first),
        Part::FromCoordinator(first),
        Part::AroundCoordinator,
    ];
    let wide = [between, Part::Around(first), Part::Everything];
    let choose = |random: &mut StdRng, of: [Part; 3]| of[random.random_range(0..of.len())];
    let (for_ms, part, condition) = match kind {
        Kind::CutCoordinator => {
            let part = choose(random, uplinks);
            (random.random_range(200..7_000), part, Condition::Held)
        }
        Kind::Reset => {
            let part = choose(random, wide);
            (random.random_range(10..400), part, Condition::Reset)
        }
        Kind::Delay => {
            let ms = random.random_range(1..30);
            (
                random.random_range(500..4_000),
                choose(random, wide),
                Condition::Delayed { ms },
            )
        }
        Kind::Loss => {
            let percent = random.random_range(1..8);
            let part = choose(random, wide);
            (
                random.random_range(500..4_000),
                part,
                Condition::Lossy { percent },
            )
        }
        Kind::SlowLink => {
            let bytes_per_second = random.random_range(100_000..4_000_000);
            let part = choose(random, wide);
            (
                random.random_range(500..4_000),
                part,
                Condition::Slow { bytes_per_second },
            )
        }
        _ => {
            let part = choose(random, peers);
            (random.random_range(200..8_000), part, Condition::Held)
        }
    };
    (for_ms, Fault::Network { part, condition })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    const SETTINGS: Settings = Settings {
        length_ms: 100_000,
        every_ms: 1_000,
        disk: true,
        fsync: true,
    };

    #[test]
    fn seed_determines_the_timeline() {
        assert_eq!(timeline(7, SETTINGS), timeline(7, SETTINGS));
        assert_ne!(timeline(7, SETTINGS), timeline(8, SETTINGS));
    }

    #[test]
    fn faults_start_and_end_within_the_timeline() {
        for seed in 0..200 {
            let planned = timeline(seed, SETTINGS);
            assert!(planned.len() > 30, "seed {seed}: {}", planned.len());
            assert!(planned.is_sorted_by_key(|p| p.at_ms));
            for fault in planned {
                assert!(
                    fault.at_ms >= START_MS && fault.end_ms() <= SETTINGS.length_ms,
                    "{fault:?}"
                );
                assert!(fault.for_ms > 0, "{fault:?}");
            }
        }
    }

    #[test]
    fn every_kind_is_drawn_and_kills_are_the_most() {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for fault in (0..50).flat_map(|seed| timeline(seed, SETTINGS)) {
            *counts.entry(fault.fault.name()).or_default() += 1;
        }
        let kinds: BTreeSet<&str> = counts.keys().copied().collect();
        let expected = [
            "kill",
            "killTogether",
            "killCoordinator",
            "pause",
            "pauseCoordinator",
            "notice",
            "join",
            "cutOneWay",
            "cut",
            "reset",
            "delay",
            "loss",
            "slowLink",
            "diskFull",
            "fsyncFails",
            "storeDown",
            "noMemory",
        ];
        assert_eq!(kinds, BTreeSet::from(expected));
        assert_eq!(counts.values().max(), counts.get("kill"));
    }

    #[test]
    fn what_cannot_be_injected_here_is_not_drawn() {
        let none = Settings {
            disk: false,
            fsync: false,
            ..SETTINGS
        };
        let drawn = (0..50).flat_map(|seed| timeline(seed, none));
        let names: BTreeSet<&str> = drawn.map(|p| p.fault.name()).collect();
        assert!(!names.contains("diskFull") && !names.contains("fsyncFails"));
    }

    #[test]
    fn three_workers_stay_undisturbed() {
        for planned in (0..100).map(|seed| timeline(seed, SETTINGS)) {
            for p in planned.iter().filter(|p| disturbed(&p.fault) <= DISTURBED_MAX) {
                let small = planned.iter().filter(|q| disturbed(&q.fault) <= DISTURBED_MAX);
                let together = small.filter(|q| q.at_ms <= p.at_ms && p.at_ms <= q.end_ms());
                let count: usize = together.map(|q| disturbed(&q.fault)).sum();
                assert!(count <= DISTURBED_MAX, "{count} at {} ms", p.at_ms);
            }
        }
    }
}
