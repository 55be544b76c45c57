//! Which checkpoints are ordered, and until when.

use super::*;

/// The steps beyond which a checkpoint was ordered, of all workers.
fn saves(rig: &mut Rig) -> BTreeSet<(WorkerId, u64)> {
    let sent = std::mem::take(&mut rig.sent);
    let saves = sent.into_iter().filter_map(|(to, order)| match order {
        Order::Save { after } => Some((to, after.0)),
        _ => None,
    });
    saves.collect()
}

#[test]
fn a_wanted_checkpoint_is_ordered_until_the_store_shows_one_that_is_newer() {
    let stored = CoordinatorConfig {
        final_checkpoint: true,
        ..config()
    };
    let mut rig = Rig::training_with(stored, &[A, B]);
    rig.status(A, 1, Phase::Running, state(1, 3));
    rig.status(B, 1, Phase::Running, state(1, 4));
    rig.wait(100);
    assert!(saves(&mut rig).is_empty());
    rig.put(CoordinatorInput::Save);
    rig.wait(100);
    assert_eq!(saves(&mut rig), [(A, 4), (B, 4)].into());
    // One that is no newer does not do, and later steps do not move the goal.
    rig.complete = vec![state(1, 4)];
    rig.status(A, 1, Phase::Running, state(1, 5));
    rig.status(B, 1, Phase::Running, state(1, 5));
    rig.wait(200);
    assert_eq!(saves(&mut rig), [(A, 4), (B, 4)].into());
    rig.complete = vec![state(1, 5)];
    rig.wait(200);
    saves(&mut rig);
    rig.wait(200);
    assert!(saves(&mut rig).is_empty());
    // A notice wants one as well.
    let status = Status {
        generation: Generation(1),
        phase: Phase::Running,
        at: state(1, 6),
        draining: true,
        ..idle()
    };
    rig.say(B, Report::Status(status));
    rig.wait(50);
    assert_eq!(saves(&mut rig), [(A, 6), (B, 6)].into());
}

#[test]
fn by_the_clock_a_checkpoint_is_ordered_when_the_newest_is_too_old_and_without_a_store_never() {
    let every = CoordinatorConfig {
        save_every: Some(Duration::from_secs(1)),
        ..config()
    };
    let mut rig = Rig::training_with(every.clone(), &[A]);
    rig.wait(1_500);
    rig.put(CoordinatorInput::Save);
    assert!(saves(&mut rig).is_empty(), "there is no store");
    let stored = CoordinatorConfig {
        final_checkpoint: true,
        ..every
    };
    let mut rig = Rig::training_with(stored, &[A]);
    for (step, ordered) in [(1, false), (2, false), (3, true)] {
        rig.status(A, 1, Phase::Running, state(1, step));
        rig.wait(400);
        assert_eq!(!saves(&mut rig).is_empty(), ordered, "{step}");
    }
    // A new one resets the clock.
    rig.complete = vec![state(1, 4)];
    rig.wait(200);
    saves(&mut rig);
    for (step, ordered) in [(4, false), (5, false), (6, true)] {
        rig.status(A, 1, Phase::Running, state(1, step));
        rig.wait(400);
        assert_eq!(!saves(&mut rig).is_empty(), ordered, "{step}");
    }
}
