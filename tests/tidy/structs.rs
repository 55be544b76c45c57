//! State is divided by owner: no struct of a state machine or a shell has more fields than a reader can keep in mind.

use crate::source::crates;

/// Maximum number of fields of a struct.
const FIELDS: usize = 20;

/// Structs that still have more. This list may only shrink.
const KNOWN: &[(&str, usize)] = &[];

#[test]
fn no_struct_has_more_than_twenty_fields() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for krate in crates() {
        for file in krate.files.values() {
            for s in &file.structs {
                seen += 1;
                // Documents and configurations have as many fields as needed.
                let document = ["Serialize", "Deserialize", "Parser", "Args"]
                    .iter()
                    .any(|d| s.derives.contains(*d));
                let configuration = ["Config", "Timing", "Options"]
                    .iter()
                    .any(|end| s.name.ends_with(end));
                let place = format!("{} {}", file.name, s.name);
                let most = KNOWN
                    .iter()
                    .find(|(known, _)| *known == place)
                    .map_or(FIELDS, |(_, n)| *n);
                if s.fields > most && !document && !configuration {
                    wrong.push(format!(
                        "{}: {} has {} fields, {FIELDS} at most",
                        file.name, s.name, s.fields
                    ));
                }
            }
        }
    }
    assert!(
        seen > 200,
        "only {seen} structs were found: the test sees nothing"
    );
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
