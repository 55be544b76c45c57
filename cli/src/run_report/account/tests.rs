use super::super::history::tests::{event, step};
use super::*;
use varuna_plan::{Generation, StateId, Step, WorkerId};
use varuna_run_folder::EventEntry;

fn fenced(generation: u64) -> Event {
    Event::Fenced {
        upto: Generation(generation),
        because: "w2 is gone".into(),
    }
}

fn resumed(generation: u64, step: u64) -> Event {
    Event::Resumed {
        generation: Generation(generation),
        base: StateId {
            step: Step(step),
            ..StateId::INITIAL
        },
        finished: false,
        restored: true,
    }
}

fn lost() -> Event {
    Event::WorkerLost {
        worker: WorkerId(2),
        name: "w2".into(),
    }
}

fn planned() -> Event {
    Event::Planned {
        generation: Generation(2),
        plan: "P1xD1".into(),
        workers: 1,
        predicted_ms: 1.0,
        change: false,
        reason: "lost w2".into(),
    }
}

/// Ten steps of 100 ms. Then a worker is lost, and the others run the steps from 8 on again, at half the speed.
fn history() -> History {
    let mut steps: Vec<_> = (1..=10).map(|n| step(1, n, 1000 + 100 * n)).collect();
    steps.extend((9..=12).map(|n| step(2, n, 2700 + 200 * (n - 9))));
    let answered = Event::Collected {
        answered: vec![WorkerId(1)],
        missing: vec![WorkerId(2)],
    };
    let events = [
        (2050, lost()),
        (2100, fenced(1)),
        (2150, answered),
        (2200, planned()),
        (2200, resumed(2, 8)),
    ];
    History::new(steps, events.map(|(time, e)| event(time, e)).into())
}

#[test]
fn a_recovery_is_told_with_its_cause_parts_and_losses() {
    let account = Account::of(&history());
    let ms = Duration::from_millis;
    let expected = Recovery {
        at: ms(1600),
        cause: Cause::Lost,
        took: ms(600),
        waited: ms(0),
        phases: vec![
            (Phase::Collect, ms(50)),
            (Phase::Plan, ms(50)),
            (Phase::Step, ms(500)),
        ],
        plan: "P1xD1".into(),
        steps_lost: 2,
    };
    assert_eq!(account.recoveries, [expected]);
}

#[test]
fn all_time_is_accounted_for_by_what_it_was_spent_on() {
    let account = Account::of(&history());
    let ms = Duration::from_millis;
    // 2.2 s in all: steps 9 and 10 of the first generation were run again, and 0.6 s were without a step.
    let expected = [
        (Spent::Steps, ms(1400)),
        (Spent::Again, ms(200)),
        (Spent::Recovery(Cause::Lost), ms(600)),
    ];
    assert_eq!(account.spent, expected);
    assert!((account.goodput() - 1.4 / 2.2).abs() < 1e-9);
}

/// A worker is lost, and two steps are run again: the fence comes at this time.
fn lost_at(fence: u64, planned_at: u64) -> Vec<EventEntry> {
    let events = [
        (fence - 500, lost()),
        (fence, fenced(1)),
        (planned_at, planned()),
        (planned_at, resumed(2, 12)),
    ];
    events.map(|(time, e)| event(time, e)).into()
}

/// When the recoveries were over, what they took and how many steps they cost.
fn told(history: &History) -> Vec<(u64, u64, u64, Cause)> {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap();
    let recoveries = Account::of(history).recoveries;
    let told = recoveries.iter();
    told.map(|r| (ms(r.at), ms(r.took), r.steps_lost, r.cause))
        .collect()
}

/// By times alone, the worker was lost before step 10.
#[test]
fn a_recovery_after_the_clock_was_set_back_is_told_at_its_step() {
    let mut steps: Vec<_> = (1..=10).map(|n| step(1, n, 10_000 * n)).collect();
    steps.extend((11..=14).map(|n| step(1, n, 10_000 * n - 50_000)));
    steps.extend((13..=16).map(|n| step(2, n, 10_000 * n - 30_000)));
    let history = History::new(steps, lost_at(92_500, 94_000));
    // Nobody knows when step 11 was: 100 s, by the clock of the first ones. Step 14 was at 130 s, and step 13 of the next generation at 140 s.
    assert_eq!(told(&history), [(130_000, 7_500, 2, Cause::Lost)]);
    assert_eq!(history.span_ms(), (10_000, 170_000));
}

#[test]
fn a_clock_that_is_set_back_in_a_recovery_makes_it_no_longer() {
    let mut steps: Vec<_> = (1..=14).map(|n| step(1, n, 10_000 * n)).collect();
    steps.extend((13..=16).map(|n| step(2, n, 10_000 * n - 30_000)));
    // The fence was at 142.5 s, and the plan was made by the clock that was set back.
    let history = History::new(steps, lost_at(142_500, 94_000));
    assert_eq!(told(&history), [(138_500, 6_000, 2, Cause::Lost)]);
}

/// The second one has the generations of the first again.
#[test]
fn two_runs_in_a_folder_are_told_by_their_times() {
    let mut steps: Vec<_> = (1..=14).map(|n| step(1, n, 10_000 * n)).collect();
    steps.extend((13..=16).map(|n| step(2, n, 10_000 * n + 20_000)));
    steps.extend((1..=4).map(|n| step(1, n, 1_000_000 + 10_000 * n)));
    let mut events = lost_at(142_500, 144_000);
    events.push(event(1_000_000, fenced(0)));
    let history = History::new(steps, events);
    assert_eq!(told(&history).first(), Some(&(140_000, 7_500, 2, Cause::Lost)));
}

#[test]
fn a_run_without_a_loss_has_steps_alone() {
    let history = History::new((1..=5).map(|n| step(1, n, 100 * n)).collect(), vec![]);
    let account = Account::of(&history);
    assert_eq!(account.spent, [(Spent::Steps, Duration::from_millis(400))]);
    assert_eq!(
        (account.recoveries.len(), account.goodput().to_bits()),
        (0, 1f64.to_bits())
    );
}

/// The run was stopped at step 10, and continued an hour later by another coordinator.
#[test]
fn the_time_in_which_a_run_was_stopped_is_no_time_of_steps() {
    let mut steps: Vec<_> = (1..=10).map(|n| step(1, n, 1000 * n)).collect();
    let hour = 3_600_000;
    steps.extend((11..=20).map(|n| step(2, n, hour + 1000 * n)));
    let events = [
        (10_100, lost()),
        (hour + 9_000, Event::TookOver { term: 2 }),
        (hour + 9_500, fenced(1)),
    ];
    let account = Account::of(&History::new(
        steps,
        events.map(|(time, e)| event(time, e)).into(),
    ));
    let ms = Duration::from_millis;
    let expected = [
        (Spent::Steps, ms(18_000)),
        (Spent::Stopped, ms(hour - 500)),
        (Spent::Recovery(Cause::Takeover), ms(1_500)),
    ];
    assert_eq!(account.spent, expected);
    // If workers continued while the coordinator changed, no time was lost.
    let steps: Vec<_> = (1..=10).map(|n| step(1, n, 1000 * n)).collect();
    let over = event(5_500, Event::TookOver { term: 2 });
    let account = Account::of(&History::new(steps, vec![over]));
    assert_eq!(account.spent, [(Spent::Steps, ms(9_000))]);
}

/// The run was stopped at step 10. Two starts of it were stopped before their first step.
#[test]
fn a_stop_counts_once_and_only_if_a_step_follows() {
    let mut steps: Vec<_> = (1..=10).map(|n| step(1, n, 1000 * n)).collect();
    let starts = [
        (20_000, Event::TookOver { term: 2 }),
        (20_500, fenced(1)),
        (50_000, Event::TookOver { term: 3 }),
        (50_500, fenced(1)),
    ];
    let events: Vec<EventEntry> = starts.map(|(time, e)| event(time, e)).into();
    let account = Account::of(&History::new(steps.clone(), events.clone()));
    let ms = Duration::from_millis;
    assert_eq!(account.spent, [(Spent::Steps, ms(9_000))]);
    assert_eq!(account.stops, []);
    steps.extend((11..=12).map(|n| step(2, n, 40_500 + 1000 * n)));
    let account = Account::of(&History::new(steps, events));
    let expected = [
        (Spent::Steps, ms(10_000)),
        (Spent::Stopped, ms(40_500)),
        (Spent::Recovery(Cause::Takeover), ms(1_000)),
    ];
    assert_eq!(account.spent, expected);
    let (from, until) = (ms(9_000), ms(49_500));
    assert_eq!(account.stops, [Stop { from, until }]);
}

#[test]
fn waiting_for_workers_is_no_part_of_a_recoverys_phases() {
    let mut steps: Vec<_> = (1..=10).map(|n| step(1, n, 1000 * n)).collect();
    steps.extend((11..=12).map(|n| step(2, n, 4_000 + 1000 * n)));
    let collected = Event::Collected {
        answered: vec![WorkerId(1), WorkerId(3)],
        missing: vec![WorkerId(2)],
    };
    let events = [
        (10_050, lost()),
        (10_100, fenced(1)),
        (10_200, Event::BelowMinimum { have: 1, need: 2 }),
        (14_600, collected),
        (14_650, planned()),
        (14_650, resumed(2, 10)),
    ];
    let events = events.map(|(time, e)| event(time, e)).into();
    let account = Account::of(&History::new(steps, events));
    let ms = Duration::from_millis;
    let recovery = &account.recoveries[0];
    assert_eq!((recovery.took, recovery.waited), (ms(4_900), ms(4_400)));
    let phases = [
        (Phase::Collect, ms(100)),
        (Phase::Plan, ms(50)),
        (Phase::Step, ms(350)),
    ];
    assert_eq!(recovery.phases, phases);
    let expected = [
        (Spent::Steps, ms(10_100)),
        (Spent::Waiting, ms(4_400)),
        (Spent::Recovery(Cause::Lost), ms(500)),
    ];
    assert_eq!(account.spent, expected);
}

/// A second coordinator takes over before the first step.
#[test]
fn what_came_before_the_first_step_is_the_start_of_the_run() {
    let steps: Vec<_> = (1..=10).map(|n| step(2, n, 60_000 + 1000 * n)).collect();
    let events = [(500, Event::TookOver { term: 2 }), (1_000, fenced(1))];
    let account = Account::of(&History::new(
        steps,
        events.map(|(time, e)| event(time, e)).into(),
    ));
    assert_eq!(account.recoveries, []);
    assert_eq!(account.spent, [(Spent::Steps, Duration::from_secs(9))]);
}
