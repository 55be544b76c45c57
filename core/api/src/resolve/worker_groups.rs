//! `spec.workerGroups`: kinds of workers, each with its own settings over those of `spec.workers`.

use super::check::{Check, quoted};
use super::workers::{resources, template};
use crate::job::{Elasticity, WorkerGroup, Workers};
use crate::limits;
use crate::manifest::WorkerGroupSpec;
use crate::worker_groups::{fill_in, pods_of_groups};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The groups; `elasticity` is lowered to what they can hold together.
pub(super) fn worker_groups(
    check: &mut Check,
    written: Vec<WorkerGroupSpec>,
    base: &Workers,
    elasticity: &mut Elasticity,
) -> Vec<WorkerGroup> {
    let at = "spec.workerGroups";
    if written.len() > limits::WORKER_GROUPS_MAX {
        let allowed = format!("at most {}", limits::WORKER_GROUPS_MAX);
        check.0.push(at, format!("{} groups", written.len()), allowed);
    }
    let mut names = BTreeSet::new();
    let mut groups = Vec::new();
    for (i, written) in written.into_iter().take(limits::WORKER_GROUPS_MAX).enumerate() {
        let group = group(check, &format!("{at}.{i}"), written, base);
        if !names.insert(group.name.clone()) {
            let allowed = "a name that no other group has";
            check
                .0
                .push(&format!("{at}.{i}.name"), quoted(&group.name), allowed);
        }
        groups.push(group);
    }
    if !groups.is_empty() {
        let written = elasticity.max_workers;
        fit(check, &groups, elasticity);
        // A maximum below the minimum was refused before.
        if written.is_none_or(|most| most >= elasticity.min_workers) {
            fit_in_whole_pods(check, &groups, elasticity);
        }
    }
    groups
}

fn group(check: &mut Check, at: &str, written: WorkerGroupSpec, base: &Workers) -> WorkerGroup {
    let at = |field: &str| format!("{at}.{field}");
    let of_group = limits::WORKERS_OF_A_GROUP;
    let min_workers = check.within(
        &at("minWorkers"),
        written.min_workers.unwrap_or(0),
        of_group.clone(),
    );
    let max_workers = written
        .max_workers
        .map(|max| check.within(&at("maxWorkers"), max, of_group));
    if let Some(max) = max_workers.filter(|max| *max < min_workers) {
        let allowed = format!("at least minWorkers ({min_workers})");
        check.0.push(&at("maxWorkers"), max, allowed);
    }
    if let Some(image) = &written.image {
        check.characters(&at("image"), image, limits::TEXT);
    }
    resources(check, &at("resources"), written.resources.as_ref());
    template(check, &at("template"), written.template.as_ref());
    if let Some(labels) = written
        .node_selector
        .as_ref()
        .filter(|labels| !labels.is_object())
    {
        check
            .0
            .push(&at("nodeSelector"), labels, "a mapping from labels to values");
    }
    let per_pod = written.gpus_per_pod;
    let mut own = written.template;
    if let Some(labels) = written.node_selector {
        let mut template = json!({ "spec": { "nodeSelector": labels } });
        fill_in(&mut template, &own.unwrap_or(Value::Null));
        own = Some(template);
    }
    WorkerGroup {
        name: check.label(&at("name"), written.name),
        min_workers,
        max_workers,
        workers: Workers {
            gpus_per_pod: per_pod.map_or(base.gpus_per_pod, |n| {
                check.within(&at("gpusPerPod"), n, limits::GPUS_PER_POD)
            }),
            image: written.image.or_else(|| base.image.clone()),
            resources: merged(written.resources, base.resources.as_ref()),
            template: merged(own, base.template.as_ref()),
            ..base.clone()
        },
    }
}

/// Merges a group's document over that of all workers.
fn merged(own: Option<Value>, base: Option<&Value>) -> Option<Value> {
    let Some(mut own) = own else {
        return base.cloned();
    };
    if let Some(base) = base {
        fill_in(&mut own, base);
    }
    Some(own)
}

/// Checks that the groups' minima fit into the job's maximum, and the job's minimum into the groups' maxima.
fn fit(check: &mut Check, groups: &[WorkerGroup], elasticity: &mut Elasticity) {
    let least = groups
        .iter()
        .fold(0u32, |sum, g| sum.saturating_add(g.min_workers));
    if let Some(most) = elasticity.max_workers.filter(|most| *most < least) {
        let allowed = format!("together at most spec.elasticity.maxWorkers ({most})");
        check
            .0
            .push("spec.workerGroups", format!("{least} as minWorkers"), allowed);
    }
    let most = groups
        .iter()
        .try_fold(0u32, |sum, g| Some(sum.saturating_add(g.max_workers?)));
    let Some(most) = most else { return };
    if most < elasticity.min_workers {
        let allowed = format!(
            "together at least spec.elasticity.minWorkers ({})",
            elasticity.min_workers
        );
        check
            .0
            .push("spec.workerGroups", format!("{most} as maxWorkers"), allowed);
    }
    let limit = elasticity.max_workers.unwrap_or(most);
    elasticity.max_workers = Some(limit.min(most).max(elasticity.min_workers));
}

/// Checks that whole pods can hold the job's minimum of workers: with fewer workers the job would wait for ever.
fn fit_in_whole_pods(check: &mut Check, groups: &[WorkerGroup], elasticity: &Elasticity) {
    // Without a maximum, as on one machine, there can be as many pods as it takes.
    let Some(most) = elasticity.max_workers else {
        return;
    };
    let pods = pods_of_groups(groups, most).into_iter().zip(groups);
    let held: u32 = pods.map(|(pods, group)| pods * group.workers.gpus_per_pod).sum();
    if held < elasticity.min_workers {
        let allowed = format!(
            "together at least spec.elasticity.minWorkers ({}): raise maxWorkers of the job or of a group, or lower gpusPerPod",
            elasticity.min_workers
        );
        let value = format!("{held} workers in whole pods");
        check.0.push("spec.workerGroups", value, allowed);
    }
}
