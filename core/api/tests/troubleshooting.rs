//! The troubleshooting page has an entry for every phase, condition and reason that the operator reports, under the heading where users
//! look for it.

use varuna_api::{ConditionType, JobPhase, Reason};

const PAGE: &str = include_str!("../../../docs/kubernetes/troubleshooting.md");

/// The words in the first column of the page's tables.
fn entries() -> Vec<&'static str> {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split_once('`').map(|(word, _)| word))
        .collect()
}

#[test]
fn every_phase_condition_and_reason_has_an_entry() {
    let entries = entries();
    for phase in JobPhase::ALL {
        assert!(
            entries.contains(&phase.as_str()),
            "no entry for the phase {phase}"
        );
    }
    for reason in Reason::ALL {
        assert!(
            entries.contains(&reason.as_str()),
            "no entry for the reason {reason}"
        );
    }
    for kind in ConditionType::ALL {
        assert!(
            PAGE.contains(&format!("\n### {kind}\n")),
            "no section for the condition {kind}"
        );
    }
}

#[test]
fn no_entry_is_of_a_word_that_there_is_not() {
    for word in entries() {
        let known = JobPhase::parse(word).is_some() || Reason::parse(word).is_some();
        assert!(known, "{word} is neither a phase nor a reason");
    }
}
