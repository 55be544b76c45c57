//! The name of a test says in a few words what must hold: one that is longer says how it is tested, or tells of several facts.

use super::files;

/// Maximum number of characters of a test's name: with its module's path it still fits on a line of a terminal.
const CHARACTERS: usize = 60;

/// The names of the tests in a source file, of those in `proptest!` as well.
fn test_names(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim_start) {
        // That of tokio may have arguments, and others may follow either.
        is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        let function = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        if let Some(rest) = function.filter(|_| is_test) {
            names.extend(rest.split(['(', '<']).next());
            is_test = false;
        }
    }
    names
}

#[test]
fn no_test_has_a_name_of_more_than_sixty_characters() {
    let (mut seen, mut wrong) = (0, Vec::new());
    for (name, text) in files().iter().filter(|(name, _)| name.ends_with(".rs")) {
        for test in test_names(text) {
            seen += 1;
            let characters = test.chars().count();
            if characters > CHARACTERS {
                wrong.push(format!(
                    "{name}: {test} has {characters} characters, {CHARACTERS} at most"
                ));
            }
        }
    }
    assert!(
        seen > 1_500,
        "only {seen} tests were found: the test sees nothing"
    );
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn tests_are_found_below_other_attributes_and_in_macros() {
    let text = "#[tokio::test(start_paused = true)]\n#[ignore = \"slow\"]\nasync fn one() {}\nfn helper() {}\n\
                proptest! {\n    #[test]\n    fn two(\n        x in 0..9\n    ) {}\n}\n";
    assert_eq!(test_names(text), ["one", "two"]);
}
