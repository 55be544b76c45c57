//! Arbitrary inputs to one coordinator or one member, including inputs that the simulated world never produces: drains, refused writes,
//! failed fetches, a Stop in the middle of a write, and reports that contradict each other.
//!
//! The state machines must not panic, and their effects are compared with a golden file. These tests do not check that the effects are
//! correct.

mod coordinator;
mod draw;
mod member;

use coordinator::coordinator_with_arbitrary_inputs;
use member::member_with_arbitrary_inputs;
use varuna_plan::state::mix;

const LINES: u64 = 40;
const SEEDS_PER_LINE: u64 = 100;
/// Each line has its first seed, the digest of the coordinator's effects, and the digest of the member's.
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/arbitrary.txt");

#[test]
fn arbitrary_inputs_have_the_same_effects_as_before() {
    let line = |line: u64| {
        let first = line * SEEDS_PER_LINE;
        let fold = |run: fn(u64) -> u64| (first..first + SEEDS_PER_LINE).map(run).fold(0, mix);
        let coordinator = fold(coordinator_with_arbitrary_inputs);
        let member = fold(member_with_arbitrary_inputs);
        format!("{first} {coordinator:016x} {member:016x}")
    };
    let lines: Vec<String> = (0..LINES).map(line).collect();
    if std::env::var_os("VARUNA_UPDATE_GOLDEN").is_some() {
        return std::fs::write(GOLDEN, lines.join("\n") + "\n").unwrap();
    }
    let golden = std::fs::read_to_string(GOLDEN).unwrap();
    let differing = golden.lines().zip(&lines).filter(|(a, b)| a != b).count();
    assert_eq!(golden.lines().count(), lines.len());
    assert_eq!(differing, 0, "groups of {SEEDS_PER_LINE} seeds that differ");
}
