//! The time from an event at the API server to the operator's first write for it, according to the audit log.

use crate::audit::{Account, Request};
use std::collections::BTreeMap;

/// Milliseconds from each event to its effect, and the number of events without an effect.
#[derive(Default)]
pub(crate) struct Effects {
    pub(crate) ms: Vec<f64>,
    pub(crate) missing: usize,
}

/// The job to which an object of this name belongs. Jobs of the benchmark have no hyphen in their names.
fn job_of(name: &str) -> &str {
    name.split('-').next().unwrap_or(name)
}

/// The effects of all events among these requests; an event is a deleted pod or a tainted node. `on` has the jobs with pods on each tainted
/// node. The time of an event is the time of its response. An effect before that counts as 0 ms.
pub(crate) fn effects(requests: &[Request], on: &BTreeMap<String, Vec<String>>) -> Effects {
    let mut writes: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for request in requests.iter().filter(|r| r.is_effect()) {
        writes.entry(job_of(&request.name)).or_default().push(request.at);
    }
    let mut found = Effects::default();
    for event in requests
        .iter()
        .filter(|r| r.who == Account::Signals && r.code < 300)
    {
        let jobs: Vec<&str> = match (event.verb.as_str(), event.resource.as_str()) {
            ("delete", "pods") => vec![job_of(&event.name)],
            ("patch", "nodes") => {
                let on = on.get(&event.name).into_iter().flatten();
                on.map(String::as_str).collect()
            }
            _ => continue,
        };
        for job in jobs {
            let after = writes.get(job).into_iter().flatten();
            match after.copied().filter(|at| *at >= event.at).min_by(f64::total_cmp) {
                Some(at) => found.ms.push((at - event.done).max(0.0) * 1e3),
                None => found.missing += 1,
            }
        }
    }
    found
}
