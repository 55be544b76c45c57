//! `docs/reference/job-file.md` shows an example of `examples/` and every field as the custom resource definition states it.
//!
//! `make crds` writes these parts of the page: it runs this test with `VARUNA_UPDATE_GOLDEN=1`.

#![cfg(feature = "kubernetes")]

use serde_json::{Value, json};
use std::path::PathBuf;
use varuna_api::crd;

fn root(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(file)
}

/// A field of the job file, as a row of the page.
struct Field {
    /// Path from the root, such as `spec.model.layers`.
    path: String,
    kind: String,
    /// `required`, a value, or a few words. Empty if leaving the field out has a meaning of its own.
    default: String,
    limits: String,
    meaning: String,
}

fn schema() -> Value {
    let definition = serde_json::to_value(crd::definition()).expect("a definition has a JSON form");
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

fn list(value: &Value) -> Vec<String> {
    let items = value.as_array().into_iter().flatten();
    items.filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

/// The allowed values, if the schema lists them.
fn values(schema: &Value) -> Vec<String> {
    let items = schema["enum"].as_array().into_iter().flatten();
    let written = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
    items.map(written).collect()
}

fn kind(schema: &Value) -> String {
    let name = |kind: &str| match kind {
        "object" => "mapping".to_owned(),
        "string" => "text".to_owned(),
        "integer" => "whole number".to_owned(),
        "array" => format!("list of {}", self::kind(&schema["items"])),
        "" if schema["enum"].is_array() => "number or text".to_owned(),
        "" => "amount of bytes".to_owned(),
        other => other.to_owned(),
    };
    name(schema["type"].as_str().unwrap_or_default())
}

/// A number with commas between thousands.
fn number(value: &Value) -> String {
    let number = value.as_f64().unwrap_or(f64::NAN);
    if number.fract() != 0.0 || number < 1e4 {
        return number.to_string();
    }
    let digits = format!("{number:.0}");
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups: Vec<_> = groups.map(|g| String::from_utf8_lossy(g)).collect();
    groups.join(",")
}

fn limits(schema: &Value) -> String {
    if let [first, .., last] = schema["enum"].as_array().map_or(&[][..], Vec::as_slice)
        && first.is_number()
        && last.is_number()
    {
        return format!("powers of two, {} to {}", number(first), number(last));
    }
    if schema["enum"].is_array() {
        let words: Vec<_> = values(schema).iter().map(|w| format!("`{w}`")).collect();
        return words.join(", ");
    }
    let unit = if schema["maxLength"].is_number() {
        " characters"
    } else {
        ""
    };
    let bound = |a: &str, b: &str| [a, b].map(|key| &schema[key]).into_iter().find(|v| v.is_number());
    let (least, most) = (bound("minimum", "minLength"), bound("maximum", "maxLength"));
    let (above, below) = (
        &schema["exclusiveMinimum"] == true,
        &schema["exclusiveMaximum"] == true,
    );
    match (least, most) {
        (Some(least), None) => format!("{} or more", number(least)),
        (Some(least), Some(most)) if above => format!("above {}, to {}", number(least), number(most)),
        (Some(least), Some(most)) if below => format!("from {}, below {}", number(least), number(most)),
        (Some(least), Some(most)) => format!("{} to {}{unit}", number(least), number(most)),
        _ => String::new(),
    }
}

/// Splits a description into its meaning and its default, which its last sentence names: `... Default: 3.`
fn default(description: &str) -> (String, String) {
    let text = description.replace(" Required.", "");
    let Some((meaning, default)) = text.split_once(" Default: ") else {
        return (text, String::new());
    };
    let default = default.strip_suffix('.').expect("a sentence");
    assert!(
        !default.contains(". "),
        "the default is not the last sentence: {text}"
    );
    (meaning.to_owned(), default.to_owned())
}

/// The schema of a mapping, or of the mappings in a list.
fn mapping(schema: &Value) -> &Value {
    match &schema["items"] {
        items @ Value::Object(_) => items,
        _ => schema,
    }
}

fn collect(schema: &Value, path: &str, found: &mut Vec<Field>) {
    let required = list(&schema["required"]);
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let (meaning, mut absent) = default(field["description"].as_str().unwrap_or_default());
        match values(field).as_slice() {
            _ if required.contains(name) => absent = "required".to_owned(),
            // The only allowed value.
            [only] => absent.clone_from(only),
            _ if field["type"] == "boolean" && absent.is_empty() => absent = "false".to_owned(),
            _ => {}
        }
        let limits = match &field["maxItems"] {
            Value::Number(most) => format!("at most {most}, each {}", limits(&field["items"])),
            _ => limits(field),
        };
        found.push(Field {
            kind: kind(field),
            default: absent,
            limits,
            meaning,
            path: path.clone(),
        });
        collect(mapping(field), &path, found);
    }
}

fn fields() -> Vec<Field> {
    let mut found = Vec::new();
    collect(&schema()["properties"]["spec"], "spec", &mut found);
    assert!(found.len() > 45, "{}", found.len());
    found
}

/// The rules between fields of the spec, each with the mapping to which it belongs.
fn rules(schema: &Value, path: &str, found: &mut Vec<(String, String, bool)>) {
    for rule in schema["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let text = |key: &str| rule[key].as_str().unwrap_or_default().to_owned();
        found.push((path.to_owned(), text("message"), text("rule").contains("oldSelf")));
    }
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        rules(mapping(inner), &format!("{path}.{name}"), found);
    }
}

/// The rows of the fields directly within a mapping, except mappings with fields of their own.
fn table(fields: &[Field], of: &str) -> String {
    let mut text = "\n| field | type | default | limits | meaning |\n|---|---|---|---|---|\n".to_owned();
    for f in fields.iter().filter(|f| !is_section(fields, &f.path)) {
        match f.path.rsplit_once('.') {
            Some((parent, name)) if parent == of => {
                let Field {
                    kind,
                    default,
                    limits,
                    meaning,
                    ..
                } = f;
                text += &format!("| `{name}` | {kind} | {default} | {limits} | {meaning} |\n");
            }
            _ => {}
        }
    }
    text
}

fn is_section(fields: &[Field], path: &str) -> bool {
    let below = format!("{path}.");
    fields.iter().any(|f| f.path.starts_with(&below))
}

/// One table for each mapping, then the rules between fields.
fn sections() -> String {
    let fields = fields();
    let mut text = format!("\n### spec\n{}", table(&fields, "spec"));
    for field in fields.iter().filter(|f| is_section(&fields, &f.path)) {
        let absent = match field.default.as_str() {
            "" => String::new(),
            "required" => " Required.".to_owned(),
            absent => format!(" Default: {absent}."),
        };
        let Field { path, meaning, .. } = field;
        text += &format!("\n### {path}\n\n{meaning}{absent}\n{}", table(&fields, path));
    }
    let mut found = Vec::new();
    rules(&schema()["properties"]["spec"], "spec", &mut found);
    for (head, fixed) in [
        ("Rules between fields", false),
        ("What cannot change in a cluster", true),
    ] {
        text += &format!("\n### {head}\n\n");
        for (path, message, _) in found.iter().filter(|r| r.2 == fixed) {
            text += &format!("* `{path}`: {message}\n");
        }
    }
    text + "\n"
}

/// The page with `inner` between the comments of this name.
fn replaced(page: &str, name: &str, inner: &str) -> String {
    let (begin, end) = (
        format!("<!-- {name}: begin -->\n"),
        format!("<!-- {name}: end -->"),
    );
    let (before, rest) = page.split_once(&begin).expect("where the part begins");
    let (_, after) = rest.split_once(&end).expect("where the part ends");
    format!("{before}{begin}{inner}{end}{after}")
}

#[test]
fn the_page_shows_the_example_and_the_fields_as_they_are() {
    let file = root("docs/reference/job-file.md");
    let page = std::fs::read_to_string(&file).unwrap();
    let example = std::fs::read_to_string(root("examples/demo.yaml")).unwrap();
    let written = replaced(&page, "example", &format!("```yaml\n{example}```\n"));
    let written = replaced(&written, "fields", &sections());
    if std::env::var_os("VARUNA_UPDATE_GOLDEN").is_some() {
        std::fs::write(file, written).unwrap();
    } else {
        assert!(
            written == page,
            "docs/reference/job-file.md is out of date: run `make crds`"
        );
    }
}

#[test]
fn a_job_with_every_default_written_out_is_the_same_job() {
    let mut job = json!({
        "apiVersion": "varuna.dev/v1alpha1", "kind": "VarunaJob", "metadata": { "name": "j" },
        "spec": {
            "model": { "preset": "gpt2-tiny" }, "data": { "path": "d", "packing": {} },
            "training": {
                "globalBatchSize": 8, "steps": 9, "optimizer": { "learningRate": 0.01 }, "evaluation": { "intervalSteps": 3 },
                "precision": "fp16", "lossScale": {},
            },
            "checkpoint": { "uri": "c", "intervalSteps": 3, "from": { "job": "base" } },
            "pipeline": {}, "elasticity": {}, "workers": {}, "network": {}, "disruption": {}, "failurePolicy": {},
        },
    });
    let short = varuna_api::parse_job(&job.to_string()).unwrap();
    let mut written = 0;
    for field in fields() {
        let value = match (field.kind.as_str(), serde_json::from_str::<Value>(&field.default)) {
            // A list, which may have several entries.
            _ if field.path.starts_with("spec.workerGroups.") => continue,
            _ if field.path.starts_with("spec.data.train.") => continue,
            // Without a cluster there is no limit.
            _ if field.path == "spec.elasticity.maxWorkers" => continue,
            // A setting of rotary positions, which GPT-2 does not have.
            _ if field.path.starts_with("spec.model.ropeScaling.") => continue,
            // A setting of masked tokens, which are off by default.
            _ if field.path.starts_with("spec.training.masking.") => continue,
            // An exported model would replace all other fields of `model`.
            _ if field.path.starts_with("spec.model.exported.") => continue,
            // The default precision has no loss scale, whose fields have defaults.
            _ if field.path == "spec.training.precision" => continue,
            // `adamw`, the default, does not have this field.
            _ if field.path == "spec.training.optimizer.momentum" => continue,
            // The default is the value of another field.
            _ if field.path == "spec.checkpoint.from.uri" => continue,
            (_, Ok(value)) => value,
            // A default of several words is a description, not a value.
            ("text", Err(_)) if field.default.contains(' ') => continue,
            ("text", Err(_)) if !matches!(field.default.as_str(), "" | "required") => json!(field.default),
            _ => continue,
        };
        let (parent, name) = field.path.rsplit_once('.').unwrap();
        job.pointer_mut(&format!("/{}", parent.replace('.', "/")))
            .unwrap()[name] = value;
        written += 1;
    }
    assert!(written >= 15, "only {written} defaults are named as values");
    assert_eq!(varuna_api::parse_job(&job.to_string()).unwrap(), short);
}
