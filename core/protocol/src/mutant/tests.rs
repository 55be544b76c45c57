//! Which mutants the unit tests catch.

use super::Mutant;
use varuna_mutants::compare_with_unit_tests;

#[test]
fn unit_tests_catch_the_mutants_of_the_table() {
    let table: Vec<_> = Mutant::ALL.iter().map(|m| (m.name(), m.caught_by())).collect();
    let wrong = compare_with_unit_tests(&table);
    assert!(
        wrong.is_empty(),
        "caught by unit tests; correct the table in mutant.rs, where it got better:\n{}",
        wrong.join("\n")
    );
}
