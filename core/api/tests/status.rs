//! `docs/reference/status.md` shows every field of a job's status, and every column, as the custom resource definition states them.
//!
//! `make crds` writes these parts of the page: it runs this test with `VARUNA_UPDATE_GOLDEN=1`.

#![cfg(feature = "kubernetes")]

use serde_json::Value;
use std::path::PathBuf;
use varuna_api::crd;

fn version() -> Value {
    let definition = serde_json::to_value(crd::definition()).expect("a definition has a JSON form");
    definition["spec"]["versions"][0].clone()
}

fn kind(schema: &Value) -> &'static str {
    match schema["type"].as_str().unwrap_or_default() {
        "object" => "mapping",
        "string" if schema["format"] == "date-time" => "time",
        "string" => "text",
        "integer" => "whole number",
        "array" => "list",
        _ => "",
    }
}

/// A row for each field. The fields of a mapping, or of the entries of a list, come after the mapping or list.
fn rows(schema: &Value, path: &str, text: &mut String) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}{name}");
        let meaning = field["description"].as_str().unwrap_or_default();
        text.push_str(&format!("| `{path}` | {} | {meaning} |\n", kind(field)));
        rows(field, &format!("{path}."), text);
        rows(&field["items"], &format!("{path}[]."), text);
    }
}

fn fields() -> String {
    let mut text = "\n| field | type | meaning |\n|---|---|---|\n".to_owned();
    let version = version();
    rows(
        &version["schema"]["openAPIV3Schema"]["properties"]["status"],
        "",
        &mut text,
    );
    text + "\n"
}

fn columns() -> String {
    let mut text = "\n| column | of | meaning |\n|---|---|---|\n".to_owned();
    for column in version()["additionalPrinterColumns"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let word = |key: &str| column[key].as_str().unwrap_or_default().to_owned();
        let wide = if column["priority"].as_i64().unwrap_or(0) > 0 {
            " (`-o wide`)"
        } else {
            ""
        };
        let (name, path) = (word("name").to_uppercase(), word("jsonPath"));
        text.push_str(&format!(
            "| {name}{wide} | `{path}` | {} |\n",
            word("description")
        ));
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
fn the_page_shows_the_columns_and_the_fields_as_they_are() {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/status.md");
    let page = std::fs::read_to_string(&file).unwrap();
    let (fields, columns) = (fields(), columns());
    assert!(
        fields.lines().count() > 40 && fields.contains("`plan.rankMap`"),
        "{fields}"
    );
    assert!(columns.lines().count() > 10, "{columns}");
    let unexplained: Vec<&str> = fields.lines().filter(|row| row.ends_with("|  |")).collect();
    assert!(unexplained.is_empty(), "{unexplained:?}");
    let written = replaced(&replaced(&page, "columns", &columns), "fields", &fields);
    if std::env::var_os("VARUNA_UPDATE_GOLDEN").is_some() {
        std::fs::write(file, written).unwrap();
    } else {
        assert!(
            written == page,
            "docs/reference/status.md is out of date: run `make crds`"
        );
    }
}
