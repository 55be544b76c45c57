//! No module of a crate imports a sibling that, directly or through others, imports it back.
//!
//! Sibling modules are compared with everything below them. A name that a parent module re-exports counts as an import of the module that
//! defines it. Code under `#[cfg(test)]` is ignored: tests may import any module.

use crate::source::{Crate, crates};
use std::collections::{BTreeMap, BTreeSet};

/// A module's path inside its crate; the root is empty.
type Module = Vec<String>;

/// For one parent: which of its children import which others, with one example each.
type Siblings = BTreeMap<String, BTreeMap<String, String>>;

/// Parents below which there is still a cycle. This list may only shrink.
const KNOWN: &[&str] = &[];

#[test]
fn no_sibling_modules_import_each_other_in_a_cycle() {
    let mut wrong = Vec::new();
    let mut edges = 0;
    for krate in crates() {
        let by_parent = sibling_imports(&krate);
        edges += by_parent
            .values()
            .flat_map(BTreeMap::values)
            .map(BTreeMap::len)
            .sum::<usize>();
        for (parent, siblings) in by_parent {
            let place = [std::slice::from_ref(&krate.name), &parent].concat().join(" ");
            let known = KNOWN.contains(&place.as_str());
            match cycle(&siblings) {
                Some(cycle) if !known => wrong.push(describe(&krate.name, &parent, &siblings, &cycle)),
                None if known => wrong.push(format!("{place}: has no cycle any more: remove it from KNOWN")),
                _ => {}
            }
        }
    }
    assert!(
        edges > 100,
        "only {edges} imports between siblings were found: the test sees nothing"
    );
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

fn sibling_imports(krate: &Crate) -> BTreeMap<Module, Siblings> {
    let mut found: BTreeMap<Module, Siblings> = BTreeMap::new();
    for (module, file) in &krate.files {
        for path in &file.paths {
            let Some(target) = krate.resolve(module, path) else {
                continue;
            };
            let shared = module.iter().zip(&target).take_while(|(a, b)| a == b).count();
            let (Some(from), Some(to)) = (module.get(shared), target.get(shared)) else {
                continue;
            };
            let example = format!("{} uses {}", file.name, path.join("::"));
            found
                .entry(module[..shared].to_vec())
                .or_default()
                .entry(from.clone())
                .or_default()
                .entry(to.clone())
                .or_insert(example);
        }
    }
    found
}

/// The modules of one cycle, in order; the first comes again after the last.
fn cycle(siblings: &Siblings) -> Option<Vec<String>> {
    siblings.keys().find_map(|start| {
        let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
        let mut open = vec![start.as_str()];
        let mut seen = BTreeSet::new();
        while let Some(at) = open.pop() {
            for to in siblings.get(at).into_iter().flat_map(BTreeMap::keys) {
                if to == start {
                    let mut way = vec![at.to_owned()];
                    let mut step = at;
                    while step != start {
                        step = came_from[step];
                        way.push(step.to_owned());
                    }
                    way.reverse();
                    return Some(way);
                }
                if seen.insert(to.as_str()) {
                    came_from.insert(to, at);
                    open.push(to);
                }
            }
        }
        None
    })
}

fn describe(krate: &str, parent: &[String], siblings: &Siblings, cycle: &[String]) -> String {
    let next = cycle.iter().cycle().skip(1);
    let arrows: Vec<String> = cycle
        .iter()
        .zip(next)
        .map(|(a, b)| format!("  {a} -> {b}: {}", siblings[a][b]))
        .collect();
    let place = if parent.is_empty() {
        "the crate root".to_owned()
    } else {
        parent.join("::")
    };
    format!("{krate}, below {place}:\n{}", arrows.join("\n"))
}

#[test]
fn a_cycle_is_found_and_a_chain_is_not() {
    let graph = |arrows: &[(&str, &str)]| {
        let mut siblings = Siblings::new();
        for (a, b) in arrows {
            siblings
                .entry((*a).into())
                .or_default()
                .insert((*b).into(), "here".into());
        }
        siblings
    };
    assert_eq!(cycle(&graph(&[("a", "b"), ("b", "c"), ("a", "c")])), None);
    let found = cycle(&graph(&[("a", "b"), ("b", "c"), ("c", "b")])).unwrap();
    assert_eq!(
        BTreeSet::from_iter(found),
        BTreeSet::from(["b".to_owned(), "c".to_owned()])
    );
}
