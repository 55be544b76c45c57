//! Converts Kueue's objects to what decisions are made from. Pure. Fields that cannot be read are left out: the objects belong to another
//! project, whose later versions may have more.

use crate::decide::objects::{APPLIED_ANNOTATION, INCREMENT_INFIX, workload_prefix};
use crate::decide::{Assignment, ObservedWorkload, Placement};
use kube::ResourceExt;
use kube::api::DynamicObject;
use serde::Deserialize as _;
use serde_json::Value;
use std::collections::BTreeMap;
use varuna_api::crd::Condition;
use varuna_api::manifest::KIND;

/// A Workload of a job; none where it is not one that the operator has made.
#[must_use]
pub fn workload(object: &DynamicObject) -> Option<ObservedWorkload> {
    let owners = object.owner_references();
    let job = owners
        .iter()
        .find(|o| o.controller == Some(true) && o.kind == KIND)?;
    let name = object.name_any();
    let rest = name.strip_prefix(&workload_prefix(&job.name))?;
    let of_increment = rest.strip_prefix(INCREMENT_INFIX);
    let number = of_increment.unwrap_or(rest).split('-').next()?;
    let number = number.parse().ok()?;
    let (spec, status) = (&object.data["spec"], &object.data["status"]);
    let conditions = items(&status["conditions"]).filter_map(|c| Condition::deserialize(c).ok());
    Some(ObservedWorkload {
        number,
        is_increment: of_increment.is_some(),
        made: object.creation_timestamp().map_or(0, |t| t.0.as_second()),
        version: object.resource_version().unwrap_or_default(),
        generation: object.metadata.generation.unwrap_or(0),
        made_from: object.annotations().get(APPLIED_ANNOTATION).cloned(),
        deleting: object.metadata.deletion_timestamp.is_some(),
        is_active: spec["active"].as_bool().unwrap_or(true),
        queue: text(&spec["queueName"]),
        priority_class: [&spec["priorityClassRef"]["name"], &spec["priorityClassName"]]
            .into_iter()
            .find_map(|name| name.as_str().map(str::to_owned)),
        conditions: conditions.collect(),
        assignments: status["admission"].is_object().then(|| {
            let sets = items(&status["admission"]["podSetAssignments"]);
            sets.map(|set| (text(&set["name"]), assignment(set, spec)))
                .collect()
        }),
        updates: updates(status),
        name,
    })
}

fn assignment(set: &Value, spec: &Value) -> Assignment {
    let asked = items(&spec["podSets"]).find(|asked| asked["name"] == set["name"]);
    let count = set["count"].as_u64().or_else(|| asked?["count"].as_u64());
    let flavors = set["flavors"].as_object().into_iter().flatten();
    Assignment {
        count: count.and_then(|count| u32::try_from(count).ok()).unwrap_or(0),
        flavors: flavors.map(|(_, name)| text(name)).collect(),
    }
}

/// What all admission checks together ask, by set of pods.
fn updates(status: &Value) -> BTreeMap<String, Placement> {
    let mut sets: BTreeMap<String, Placement> = BTreeMap::new();
    let checks = items(&status["admissionChecks"]);
    for update in checks.flat_map(|check| items(&check["podSetUpdates"])) {
        let set = sets.entry(text(&update["name"])).or_default();
        set.labels.extend(texts(&update["labels"]));
        set.annotations.extend(texts(&update["annotations"]));
        set.node_selector.extend(texts(&update["nodeSelector"]));
        set.tolerations.extend(items(&update["tolerations"]).cloned());
    }
    sets
}

/// The value of a class of priority, and whether it is that of all pods that name none. None where it has no value that can be read.
#[must_use]
pub fn priority_class(object: &DynamicObject) -> Option<(i32, bool)> {
    let value = object.data["value"].as_i64()?;
    let is_default = object.data["globalDefault"].as_bool().unwrap_or(false);
    Some((i32::try_from(value).ok()?, is_default))
}

/// The placement that a ResourceFlavor gives.
#[must_use]
pub fn flavor(object: &DynamicObject) -> Placement {
    let spec = &object.data["spec"];
    Placement {
        node_selector: texts(&spec["nodeLabels"]).collect(),
        tolerations: items(&spec["tolerations"]).cloned().collect(),
        ..Placement::default()
    }
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn texts(mapping: &Value) -> impl Iterator<Item = (String, String)> {
    let entries = mapping.as_object().into_iter().flatten();
    entries.map(|(name, value)| (name.clone(), text(value)))
}
