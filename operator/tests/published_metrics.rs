//! The dashboard, the alert rules and the reference page name only metrics that the operator or a coordinator has.

use std::collections::BTreeSet;
use std::time::Duration;
use varuna_metrics::{self as of_runs, Cause, Measured, Phase};
use varuna_operator::metrics::{EventOutcome, Metrics};

const DASHBOARD: &str = include_str!("../../charts/varuna/dashboard.json");
const RULES: &str = include_str!("../../charts/varuna/rules.yaml");
const REFERENCE: &str = include_str!("../../docs/reference/observability.md");

/// Names of the metric families of the operator and of a coordinator; for histograms, the names of their series as well.
fn published() -> BTreeSet<String> {
    let metrics = Metrics::default();
    metrics.reconciled(Duration::ZERO, Some("api"));
    metrics.event(EventOutcome::Dropped);
    let run = of_runs::Metrics::new("ns", "j");
    for phase in [Phase::Plan, Phase::Total] {
        run.recovered(&Measured {
            phase,
            cause: Cause::Lost,
            took: Duration::ZERO,
            workers: 1,
        });
    }
    let text = metrics.render() + &run.render();
    let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let names = families.flat_map(|family| {
        let (name, kind) = family.split_once(' ').unwrap_or((family, ""));
        let endings: &[&str] = match kind {
            "histogram" => &["", "_bucket", "_sum", "_count"],
            "counter" => &["_total"],
            _ => &[""],
        };
        let all = endings.iter().map(|ending| format!("{name}{ending}"));
        all.collect::<Vec<_>>()
    });
    names.collect()
}

/// Words of a text that are names of metrics.
fn named(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("varuna_"))
        .collect()
}

fn assert_published(of: &str, text: &str, least: usize) {
    let (known, named) = (published(), named(text));
    assert!(named.len() >= least, "{of} names {named:?}");
    let unknown: Vec<&&str> = named.iter().filter(|name| !known.contains(**name)).collect();
    assert!(unknown.is_empty(), "{of} names {unknown:?}; there are {known:?}");
}

#[test]
fn dashboard_alerts_and_reference_name_existing_metrics() {
    assert_published("charts/varuna/dashboard.json", DASHBOARD, 15);
    assert_published("charts/varuna/rules.yaml", RULES, 6);
    assert_published("docs/reference/observability.md", REFERENCE, 15);
}

#[test]
fn the_dashboard_is_one_that_grafana_loads() {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().filter_map(|p| p["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "each panel has a number of its own");
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        let place = &panel["gridPos"];
        let end = place["x"].as_u64().unwrap() + place["w"].as_u64().unwrap();
        assert!(end <= 24, "{title} is wider than the page");
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            assert!(!named(expression).is_empty(), "{title}: {expression}");
            let brackets = |open, close| {
                let count = |c: char| expression.chars().filter(|x| *x == c).count();
                count(open) == count(close)
            };
            let closed = brackets('(', ')') && brackets('{', '}') && brackets('[', ']');
            assert!(closed, "{title}: {expression}");
        }
    }
}

#[test]
fn panels_show_the_chosen_jobs_and_every_job_can_be_chosen() {
    const CHOICE: &str = r#"namespace=~"$namespace", job_name=~"$job""#;
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            // Each use of a metric, with its labels.
            for used in expression.split("varuna_").skip(1) {
                let is_of_jobs = ["job_", "recovery_", "plan_"]
                    .iter()
                    .any(|start| used.starts_with(start));
                let labels = used.split_once('{').map_or("", |(_, labels)| labels);
                assert!(
                    !is_of_jobs || labels.starts_with(CHOICE),
                    "{}: {expression}",
                    panel["title"]
                );
            }
        }
    }
    // A job has no step before its first plan.
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        let query = variable["query"].as_str().unwrap();
        let lists_all = variable["type"] != "query" || query.starts_with("label_values(varuna_job_phase");
        assert!(lists_all, "{}: {query}", variable["name"]);
    }
}
