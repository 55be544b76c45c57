//! Which mutants the unit tests catch.

use super::Mutant;
use varuna_mutants::compare_with_unit_tests;

#[test]
#[ignore = "all unit tests once for each mutant: make mutants, in make nightly"]
fn the_unit_tests_catch_every_mutant() {
    let table: Vec<_> = Mutant::ALL.iter().map(|m| (m.name(), m.caught_by())).collect();
    let wrong = compare_with_unit_tests(&table);
    assert!(
        wrong.is_empty(),
        "survivors, to be caught by a test:\n{}",
        wrong.join("\n")
    );
}
