use super::{api_resource, definition, definitions};
use crate::manifest::{API_VERSION, KIND};
use crate::resolve::tests::FULL;
use crate::{ConditionType, JobPhase, parse_job};
use serde_json::{Value, json};
use varuna_model::{Positions, presets};

/// A job with an exported model, which replaces all other fields of `model`.
const EXPORTED: &str = include_str!("../../testdata/exported.yaml");

fn schema() -> Value {
    serde_json::to_value(definition()).unwrap()["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// Collects every schema within a schema, with its path.
fn each(schema: &Value, path: &str, found: &mut Vec<(String, Value)>) {
    found.push((path.to_owned(), schema.clone()));
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        each(inner, &format!("{path}.{name}"), found);
    }
    if schema["items"].is_object() {
        each(&schema["items"], &format!("{path}[]"), found);
    }
}

#[test]
fn the_committed_definitions_are_the_generated_ones() {
    for definition in definitions() {
        // Both are compared as text that was parsed, so that 1 and 1.0 are the same number.
        let generated: Value =
            serde_saphyr::from_str(&serde_saphyr::to_string(&definition).unwrap()).unwrap();
        for folder in ["crds", "charts/varuna/crd"] {
            let file = format!("{folder}/{}.yaml", definition.spec.names.plural);
            let path = format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(path)
                .unwrap_or_else(|_| panic!("{file} is missing: run `make crds`"));
            let committed: Value = serde_saphyr::from_str(&text).unwrap();
            assert!(committed == generated, "{file} is out of date: run `make crds`");
        }
    }
}

#[test]
fn the_definition_is_of_the_kind_that_the_parser_reads() {
    let resource = api_resource();
    assert_eq!((&*resource.api_version, &*resource.kind), (API_VERSION, KIND));
}

#[test]
fn every_field_has_a_description_and_one_type() {
    let mut found = Vec::new();
    each(&schema(), "", &mut found);
    assert!(found.len() > 70, "{}", found.len());
    for (path, schema) in found {
        let open = path.ends_with("[]");
        assert!(
            open || schema["description"].is_string(),
            "{path} has no description"
        );
        let typed = schema["type"].is_string() || schema["x-kubernetes-int-or-string"] == true;
        assert!(typed, "{path} has no type: {schema}");
    }
}

#[test]
fn nothing_is_left_that_an_api_server_refuses_or_warns_of() {
    let text = serde_json::to_string(&definitions()).unwrap();
    for bad in ["uint", "$ref", "anyOf", "nullable", "\"null\"", ":null"] {
        assert!(!text.contains(bad), "{bad} in {text}");
    }
    let mut found = Vec::new();
    each(&schema(), "", &mut found);
    for (path, schema) in found {
        let both = schema.get("properties").is_some() && schema.get("additionalProperties").is_some();
        assert!(!both, "{path}");
    }
}

#[test]
fn every_whole_number_of_a_job_has_a_greatest_value() {
    let mut fields = Vec::new();
    each(&schema()["properties"]["spec"], "spec", &mut fields);
    let mut tried = 0;
    for (path, field) in fields.iter().filter(|(_, field)| field["type"] == "integer") {
        tried += 1;
        // A seed may be any number that an API server knows.
        let has_one = field["maximum"].is_number() || field["enum"].is_array();
        assert!(has_one || path == "spec.training.seed", "{path}");
    }
    assert!(tried > 30, "{tried}");
}

#[test]
fn the_pod_template_is_passed_through_untouched() {
    let template = &schema()["properties"]["spec"]["properties"]["workers"]["properties"]["template"];
    assert_eq!(template["x-kubernetes-preserve-unknown-fields"], true);
    assert!(template.get("properties").is_none());
}

#[test]
fn every_rule_says_what_to_do() {
    let mut found = Vec::new();
    each(&schema(), "", &mut found);
    let rules: Vec<Value> = found
        .iter()
        .flat_map(|(_, s)| {
            s["x-kubernetes-validations"]
                .as_array()
                .cloned()
                .unwrap_or_default()
        })
        .collect();
    assert!(rules.len() >= 18, "{}", rules.len());
    for rule in rules {
        let message = rule["message"].as_str().unwrap();
        assert!(message.len() > 20, "{message}");
    }
}

#[test]
fn the_documentation_names_every_phase_and_every_condition() {
    let status = &schema()["properties"]["status"]["properties"];
    let phase = status["phase"]["description"].as_str().unwrap().to_owned();
    for word in JobPhase::ALL {
        assert!(phase.contains(word.as_str()), "{word} is not in: {phase}");
    }
    let kinds = &status["conditions"]["items"]["properties"]["type"]["description"];
    for word in ConditionType::ALL {
        assert!(
            kinds.as_str().unwrap().contains(word.as_str()),
            "{word} is not in: {kinds}"
        );
    }
}

#[test]
fn the_documentation_names_every_preset() {
    let preset = &schema()["properties"]["spec"]["properties"]["model"]["properties"]["preset"];
    let text = preset["description"].as_str().unwrap();
    for name in presets::names() {
        assert!(text.contains(name), "{name} is not in: {text}");
    }
}

/// What an API server checks of `spec.model` as a whole.
fn rules_of_models() -> Vec<String> {
    let model = &schema()["properties"]["spec"]["properties"]["model"];
    let rules = model["x-kubernetes-validations"].as_array().unwrap();
    rules
        .iter()
        .map(|rule| rule["rule"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn every_place_is_refused_with_what_no_url_may_have() {
    let spec = &schema()["properties"]["spec"]["properties"];
    let (data, checkpoint) = (&spec["data"]["properties"], &spec["checkpoint"]["properties"]);
    for field in [
        &data["path"],
        &data["validationPath"],
        &data["train"]["items"]["properties"]["path"],
        &checkpoint["uri"],
        &checkpoint["from"]["properties"]["uri"],
    ] {
        let rule = field["x-kubernetes-validations"][0]["rule"].as_str();
        assert!(rule.is_some_and(|rule| rule.contains("[?#]")), "{field}");
    }
}

#[test]
fn an_exported_model_excludes_every_other_field() {
    let rules = rules_of_models();
    let rule = rules.iter().find(|rule| rule.starts_with("!has(self.exported)"));
    let model = &schema()["properties"]["spec"]["properties"]["model"];
    let mut fields = 0;
    for field in model["properties"].as_object().unwrap().keys() {
        let named = rule.unwrap().contains(&format!("|| has(self.{field})"))
            || rule.unwrap().contains(&format!("!(has(self.{field})"));
        assert!(named || field == "exported", "{field} is not in: {rule:?}");
        fields += 1;
    }
    assert!(fields > 20, "{fields}");
}

#[test]
fn the_rule_about_angles_knows_the_presets_that_have_them() {
    let rules = rules_of_models();
    let of_positions: Vec<_> = rules
        .iter()
        .filter(|rule| rule.contains("self.positions == "))
        .collect();
    assert_eq!(of_positions.len(), 2, "angles, and pairs of elements: {rules:?}");
    let prefixes = ["llama", "qwen3-"];
    let expected = prefixes.map(|prefix| format!("self.preset.startsWith('{prefix}')"));
    let expected = format!(
        "(has(self.positions) ? self.positions == 'rotary' : has(self.preset) && ({}))",
        expected.join(" || ")
    );
    for rule in of_positions {
        assert!(rule.contains(&expected), "{rule}");
    }
    for name in presets::names() {
        let positions = presets::preset(name).unwrap().features.positions;
        assert_eq!(
            matches!(positions, Positions::Rotary(_)),
            prefixes.iter().any(|prefix| name.starts_with(prefix)),
            "{name}"
        );
    }
}

/// Fields whose values the resolver refuses because of other fields, although the schema accepts them.
const DEPEND_ON_OTHERS: &[&str] = &[
    "spec.model.hiddenSize",
    "spec.model.heads",
    "spec.model.kvHeads",
    "spec.model.headSize",
    "spec.training.microBatchSize",
    "spec.training.optimizer.minLearningRate",
    "spec.training.optimizer.warmupSteps",
    "spec.training.optimizer.stableSteps",
    "spec.pipeline.minDepth",
    "spec.training.lossScale.minimum",
    "spec.pipeline.maxDepth",
    "spec.elasticity.minWorkers",
    "spec.elasticity.maxWorkers",
    "spec.workerGroups.0.maxWorkers",
    "spec.workers.transport",
    "spec.training.masking.maskToken",
];
/// Fields that have a limit only in a cluster.
const LIMITED_IN_CLUSTERS: &[&str] = &["spec.elasticity.minWorkers", "spec.elasticity.maxWorkers"];

/// Fields that exclude fields beside them, which the full job has. Each with the fields that must be set instead.
const ALONE: &[(&str, &[(&str, &str)])] = &[
    ("spec.model.slidingWindow", &[("preset", "gpt2-small")]),
    ("spec.training.lossScale.static", &[]),
    ("spec.data.path", &[]),
    ("spec.data.validationFraction", &[]),
    ("spec.training.optimizer.momentum", &[("kind", "sgd")]),
];

/// Values at and beyond the bounds of a field, each with whether the schema accepts it.
fn values_at_the_bounds(schema: &Value) -> Vec<(Value, bool)> {
    let text = |characters: u64| {
        let text = "a".repeat(usize::try_from(characters).unwrap());
        // Names with a domain contain a slash.
        match schema["pattern"].as_str() {
            Some(pattern) if pattern.contains('/') => text.replacen("aa", "a/", 1),
            _ => text,
        }
    };
    let mut values = Vec::new();
    if let Some(names) = schema["enum"].as_array() {
        values.extend(names.iter().map(|name| (name.clone(), true)));
        values.extend([(json!("another"), false), (json!(3), false)]);
        return values;
    }
    if let Some(min) = schema["minLength"].as_u64() {
        values.extend([(json!(text(min)), true), (json!(text(min - 1)), false)]);
    }
    if let Some(max) = schema["maxLength"].as_u64() {
        values.extend([(json!(text(max)), true), (json!(text(max + 1)), false)]);
    }
    if let Some(max) = schema["maxItems"].as_u64() {
        let item = |i: u64| match schema["items"]["type"].as_str() {
            Some("object") => json!({}),
            Some("integer") => json!(1),
            _ => json!(format!("s{i}")),
        };
        let list = |items: u64| json!((0..items).map(item).collect::<Vec<_>>());
        values.extend([(list(max), true), (list(max + 1), false)]);
    }
    for (bound, exclusive, step) in [
        ("minimum", "exclusiveMinimum", -1.0),
        ("maximum", "exclusiveMaximum", 1.0),
    ] {
        let Some(bound) = schema[bound].as_f64() else {
            continue;
        };
        let number = |value: f64| match schema["type"].as_str() {
            Some("integer") => json!(value as i64),
            _ => json!(value),
        };
        values.push((number(bound), schema[exclusive] != true));
        values.push((number(bound + step), false));
    }
    values
}

#[test]
fn the_resolver_has_the_limits_of_the_schema() {
    let [full, exported]: [Value; 2] = [FULL, EXPORTED].map(|text| serde_saphyr::from_str(text).unwrap());
    let mut fields = Vec::new();
    each(&schema()["properties"]["spec"], "spec", &mut fields);
    let (mut tried, mut wrong) = (0, Vec::new());
    for (path, schema) in fields {
        // For a list of mappings, the first mapping.
        let path = path.replace("[].", ".0.");
        let in_list = path.strip_suffix("[]");
        let error_at = in_list.map_or(path.clone(), |list| format!("{list}.0"));
        for (value, taken) in values_at_the_bounds(&schema) {
            let mut job = match path.starts_with("spec.model.exported") {
                true => exported.clone(),
                false => full.clone(),
            };
            if let Some((_, needed)) = ALONE.iter().find(|(alone, _)| *alone == path)
                && let Some((parent, name)) = path.rsplit_once('.')
                && let Some(place) = job.pointer_mut(&format!("/{}", parent.replace('.', "/")))
            {
                *place = json!({ name: null });
                for (key, value) in *needed {
                    place[*key] = json!(value);
                }
            }
            let pointer = format!("/{}", in_list.unwrap_or(&path).replace('.', "/"));
            let field = job
                .pointer_mut(&pointer)
                .unwrap_or_else(|| panic!("{path} is not in the full job"));
            *field = if in_list.is_some() {
                json!([value])
            } else {
                value.clone()
            };
            let parsed = parse_job(&job.to_string());
            let refused = parsed.is_err_and(|errors| errors.all().iter().any(|e| e.path == error_at));
            let known = if taken {
                DEPEND_ON_OTHERS
            } else {
                LIMITED_IN_CLUSTERS
            };
            tried += 1;
            if refused == taken && !known.contains(&path.as_str()) {
                let text = value.to_string().chars().take(60).collect::<String>();
                wrong.push(format!(
                    "{path}: {text}: the schema takes it: {taken}, the resolver refuses it: {refused}"
                ));
            }
        }
    }
    assert!(tried > 140, "{tried}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
