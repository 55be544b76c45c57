//! Links in the documents are valid: they name a file of the repository, and if they name a heading, the file has it.

use super::files;
use crate::source::root;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The lines of a document outside of code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// The name of a heading in a link: lower case, dashes for spaces, no punctuation.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars().filter(kept).collect::<String>().replace(' ', "-")
}

/// The targets of the links in a line.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// A path without `.` and `..`.
fn plain(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').filter(|p| !p.is_empty() && *p != ".") {
        match part {
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[test]
fn every_link_of_a_document_leads_somewhere() {
    let documents: BTreeMap<String, String> = files()
        .into_iter()
        .filter(|(name, _)| name.ends_with(".md"))
        .collect();
    let headings = |name: &str| -> BTreeSet<String> {
        prose(&documents[name])
            .filter(|l| l.starts_with('#'))
            .map(anchor)
            .collect()
    };
    let (mut seen, mut wrong) = (0, Vec::new());
    for (name, text) in &documents {
        let folder = Path::new(name).parent().unwrap_or(Path::new(""));
        for link in prose(text).flat_map(links).filter(|l| !l.contains(':')) {
            seen += 1;
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let path = if path.is_empty() {
                name.clone()
            } else {
                plain(&folder.join(path).to_string_lossy())
            };
            let found = root().join(&path).exists()
                && (heading.is_empty() || documents.contains_key(&path) && headings(&path).contains(heading));
            if !found {
                wrong.push(format!("{name}: {link}"));
            }
        }
    }
    assert!(seen > 50, "only {seen} links were found: the test sees nothing");
    assert!(wrong.is_empty(), "links that lead nowhere:\n{}", wrong.join("\n"));
}
