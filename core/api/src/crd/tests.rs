use super::definition;
use crate::{ConditionType, JobPhase};
use serde_json::Value;

fn schema() -> Value {
    definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// Every schema below one, with its path.
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
fn the_committed_definitions_are_the_generated_one() {
    // Through text, so that 1 and 1.0 are one number.
    let generated: Value = serde_saphyr::from_str(&serde_saphyr::to_string(&definition()).unwrap()).unwrap();
    for file in ["crds/varunajobs.yaml", "charts/varuna/crd/varunajobs.yaml"] {
        let path = format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR"));
        let text =
            std::fs::read_to_string(path).unwrap_or_else(|_| panic!("{file} is missing: run `make crds`"));
        let committed: Value = serde_saphyr::from_str(&text).unwrap();
        assert!(committed == generated, "{file} is out of date: run `make crds`");
    }
}

#[test]
fn every_field_has_a_description_and_one_type() {
    let mut found = Vec::new();
    each(&schema(), "", &mut found);
    assert!(found.len() > 70, "{}", found.len());
    for (path, schema) in found {
        let open = path == ".metadata" || path.ends_with("[]");
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
    let text = definition().to_string();
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
