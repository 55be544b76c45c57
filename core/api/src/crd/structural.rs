//! From a derived JSON schema to what an API server takes: a structural schema without references, nulls and odd formats.
//!
//! (Structural schemas: every value has one type, no `$ref`, no `additionalProperties` next to `properties`.)

use super::rules::Rule;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// The structural schema of a type.
pub(super) fn of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::openapi3().with(|s| {
        s.inline_subschemas = true;
        s.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    tidy(&mut schema);
    schema
}

/// Rewrites a schema and all within it.
fn tidy(schema: &mut Value) {
    let Value::Object(map) = schema else { return };
    for gone in ["title", "$schema", "nullable", "additionalProperties"] {
        // A map of anything keeps its `additionalProperties`; a struct has properties, and the server prunes the rest.
        if gone != "additionalProperties" || map.contains_key("properties") {
            map.remove(gone);
        }
    }
    if map.get("default") == Some(&Value::Null) {
        map.remove("default");
    }
    one_type(map);
    whole_numbers(map);
    if let Some(Value::String(text)) = map.get_mut("description") {
        *text = text.replace('\n', " ").replace('`', "");
    }
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties.values_mut().for_each(tidy);
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(inner) = map.get_mut(inner) {
            tidy(inner);
        }
    }
}

/// An optional value is one that may be left out, not one that may be null.
fn one_type(map: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = map.get_mut("type") {
        types.retain(|t| t != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            map.insert("type".into(), only);
        }
    }
    for union in ["anyOf", "oneOf", "allOf"] {
        let Some(Value::Array(cases)) = map.remove(union) else {
            continue;
        };
        let case = cases.into_iter().find(|c| c["type"] != "null");
        for (key, value) in case.as_ref().and_then(Value::as_object).into_iter().flatten() {
            map.entry(key.clone()).or_insert(value.clone());
        }
    }
}

/// A server warns of formats that it does not know (`uint32`); 64 signed bits hold all of ours.
fn whole_numbers(map: &mut Map<String, Value>) {
    let Some(format) = map.get("format").and_then(Value::as_str) else {
        return;
    };
    if format.starts_with("uint") {
        map.insert("format".into(), json!("int64"));
        map.insert("minimum".into(), json!(0));
        map.remove("maximum");
    }
}

/// The schema of the field at a path (`training.optimizer`; empty = the schema itself).
///
/// # Panics
/// There is no such field: the tables of this module name it wrongly.
pub(super) fn property<'a>(schema: &'a mut Value, path: &str) -> &'a mut Value {
    let mut at = schema;
    for field in path.split('.').filter(|f| !f.is_empty()) {
        at = at["properties"]
            .get_mut(field)
            .unwrap_or_else(|| panic!("the schema has no field {path}"));
    }
    at
}

/// Adds the keys of `more`.
pub(super) fn merge(schema: &mut Value, more: Value) {
    if let (Value::Object(map), Value::Object(more)) = (schema, more) {
        map.extend(more);
    }
}

pub(super) fn add_rule(schema: &mut Value, rule: &Rule) {
    let written = json!({ "rule": rule.rule, "message": rule.message });
    match &mut schema["x-kubernetes-validations"] {
        Value::Array(rules) => rules.push(written),
        none => *none = json!([written]),
    }
}

/// The same value with all keys in order: `serde_json`'s own order depends on a feature that any crate can turn on.
pub(super) fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<_> = map.iter().collect();
            keys.sort_by_key(|(key, _)| *key);
            Value::Object(keys.into_iter().map(|(k, v)| (k.clone(), sorted(v))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}
