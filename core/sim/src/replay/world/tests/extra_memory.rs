//! The memory that following takes.

use super::*;
use crate::replay::report::ExtraMemory;

const DEVICE: u64 = 16 << 30;

/// Workers that each hold the whole model.
fn whole_models() -> Setup {
    let mut planner = planner(64);
    planner.constraints.min_workers = 1;
    (planner.constraints.min_depth, planner.constraints.max_depth) = (1, Some(1));
    planner.constraints.device_memory_bytes = Some(DEVICE);
    Setup {
        planner,
        min_workers: 1,
        ..setup()
    }
}

#[test]
fn follower_holds_its_units_and_their_gradients() {
    let setup = whole_models();
    let report = replay(&trace("0,add,a\n120,add,b\n400,remove,b\n"), &setup).unwrap();
    let grown = report.reconfigurations.last().unwrap();
    assert!(grown.ran && grown.workers == 2, "{grown:?}");
    let all: f64 = unit_bytes(&setup).iter().sum();
    let ExtraMemory {
        most,
        most_beside_training,
        ..
    } = report.extra_memory;
    // The gradient of the step that switches comes when the newcomer has a copy of everything. A gradient has a quarter of the state's
    // bytes, and at most four of a unit wait.
    assert!(
        most.bytes > all && most.bytes <= 2.0 * all,
        "{most:?}, {all} in all"
    );
    assert_eq!(most.share, Some(most.bytes / DEVICE as f64));
    assert_eq!(
        (most_beside_training.bytes, most_beside_training.share),
        (0.0, Some(0.0))
    );
}

#[test]
fn member_that_gains_units_has_them_beside_training() {
    let mut planner = planner(64);
    planner.constraints.max_depth = Some(3);
    let setup = Setup {
        planner,
        notice_s: 60.0,
        ..setup()
    };
    let text = "0,add,a\n0,add,b\n0,add,c\n300,remove,c\n400,remove,a\n";
    let report = replay(&trace(text), &setup).unwrap();
    let plans: Vec<&str> = report.reconfigurations.iter().map(|r| r.plan.as_str()).collect();
    assert_eq!(plans[..2], ["P3xD1", "P2xD1"]);
    let ExtraMemory {
        device_bytes,
        most,
        most_beside_training,
    } = report.extra_memory;
    let all: f64 = unit_bytes(&setup).iter().sum();
    assert!(most.bytes > 0.0 && most.bytes < all, "{most:?}, {all} in all");
    assert_eq!(most_beside_training, most, "nobody else has followed");
    assert_eq!((device_bytes, most.share), (None, None));
}

#[test]
fn a_replay_without_followers_holds_nothing_more() {
    let of = |text: &str| replay(&trace(text), &setup()).unwrap();
    let none = ExtraMemory::of_device(None);
    assert_eq!(none.most.bytes, 0.0);
    assert_eq!(of("0,add,a\n0,add,b\n200,remove,b\n").extra_memory, none);
    // After a loss state is fetched while training stands.
    let lost = of("0,add,a\n0,add,b\n0,add,c\n0,add,d\n120,remove,c\n200,remove,a\n");
    assert_eq!(lost.reconfigurations.len(), 2);
    assert_eq!(lost.extra_memory, none);
    assert!(crate::replay::text(&lost).contains("at most 0.00 GiB of a worker"));
}
