//! Names are the terms of the field: no identifier and no file name may contain a word that `docs/glossary.md` lists as not used.

use crate::source::{crates, root};
use std::collections::BTreeSet;
use std::fs;

/// The words of the glossary's last table.
fn refused() -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("docs/glossary.md")).expect("docs/glossary.md");
    let (_, table) = text
        .split_once("## Names that are not used")
        .expect("its last section");
    let rows = table.lines().filter(|l| l.starts_with("| `"));
    let first = rows.filter_map(|row| row.split('|').nth(1));
    let words = first.flat_map(|cell| cell.split(',').map(|w| w.trim().trim_matches('`').to_owned()));
    words.collect()
}

/// The words of an identifier, in lower case: `retry_pace` and `RetryPace` are both `retry`, `pace`.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for c in name.chars() {
        let begins = c.is_uppercase() && !before.is_uppercase();
        if !c.is_alphanumeric() || begins {
            words.push(String::new());
        }
        if c.is_alphanumeric() {
            words.last_mut().expect("a word").extend(c.to_lowercase());
        }
        before = c;
    }
    words.retain(|w| !w.is_empty());
    words
}

#[test]
fn no_name_is_one_that_the_glossary_refuses() {
    let refused = refused();
    assert!(refused.len() > 5, "{refused:?}");
    let mut wrong = BTreeSet::new();
    let mut seen = 0;
    for krate in crates() {
        for file in krate.files.values() {
            let path = file.name.trim_end_matches(".rs");
            for name in file.names.iter().map(String::as_str).chain(path.split('/')) {
                seen += 1;
                let phrase = words(name).join("_");
                let bad = |r: &&String| {
                    phrase.split('_').any(|w| w == r.as_str())
                        || phrase.contains(r.as_str()) && r.contains('_')
                };
                if let Some(word) = refused.iter().find(bad) {
                    wrong.insert(format!("{}: {name} ({word})", file.name));
                }
            }
        }
    }
    assert!(
        seen > 3_000,
        "only {seen} names were found: the test sees nothing"
    );
    assert!(
        wrong.is_empty(),
        "\n{}",
        wrong.into_iter().collect::<Vec<_>>().join("\n")
    );
}

#[test]
fn an_identifier_is_split_into_its_words() {
    assert_eq!(words("RetryPace"), ["retry", "pace"]);
    assert_eq!(words("retry_pace_ms"), ["retry", "pace", "ms"]);
    assert_eq!(words("HTTPServer2"), ["httpserver2"]);
    assert_eq!(words("place"), ["place"]);
}
