//! How a limit of [`crate::limits`] and a kind of value are written in the schema of a custom resource definition.

use crate::limits;
use schemars::{Schema, transform::Transform};
use serde::Serialize;
use serde_json::{Value, json};
use std::ops::{Range, RangeInclusive};

/// Adds the keys of `more`, an object.
fn with(more: Value) -> impl Transform {
    move |schema: &mut Schema| {
        for (key, value) in more.as_object().into_iter().flatten() {
            schema.insert(key.clone(), value.clone());
        }
    }
}

/// A number, both ends included.
pub(crate) fn within<T: Serialize>(range: RangeInclusive<T>) -> impl Transform {
    with(json!({ "minimum": range.start(), "maximum": range.end() }))
}

/// Above 0, at most `max`.
pub(crate) fn above_zero(max: f64) -> impl Transform {
    with(json!({ "minimum": 0, "exclusiveMinimum": true, "maximum": max }))
}

/// At least 0, below 1.
pub(crate) fn fraction(schema: &mut Schema) {
    let Range { start, end } = limits::FRACTION;
    with(json!({ "minimum": start, "maximum": end, "exclusiveMaximum": true })).transform(schema);
}

/// One of these names.
pub(crate) fn one_of<T: Serialize>(names: T) -> impl Transform {
    with(json!({ "enum": names }))
}

/// A text of so many characters.
pub(crate) fn text(characters: RangeInclusive<usize>) -> impl Transform {
    with(json!({ "minLength": characters.start(), "maxLength": characters.end() }))
}

/// A path or a URL of so many characters; `Check::place` has the same rule. What follows a `?` or `#` in a URL is no part of a place.
pub(crate) fn place(characters: RangeInclusive<usize>) -> impl Transform {
    let (shortest, longest) = characters.into_inner();
    let rule = json!({
        "rule": "!self.matches('^[A-Za-z][A-Za-z0-9+.-]+://[^?#]*[?#]')",
        "message": "give the URL without ? and what follows it, and without #, such as s3://bucket/folder",
    });
    with(json!({ "minLength": shortest, "maxLength": longest, "x-kubernetes-validations": [rule] }))
}

/// A text of so many characters that matches this pattern.
pub(crate) fn pattern(pattern: &str, characters: RangeInclusive<usize>) -> impl Transform {
    let (shortest, longest) = characters.into_inner();
    with(json!({ "pattern": pattern, "minLength": shortest, "maxLength": longest }))
}

/// At most `max` different texts of so many characters. Bounds keep the cost of rules within a server's limit.
pub(crate) fn set_of_texts(max: usize, characters: RangeInclusive<usize>) -> impl Transform {
    let (shortest, longest) = characters.into_inner();
    let item = json!({ "type": "string", "minLength": shortest, "maxLength": longest });
    with(json!({ "items": item, "maxItems": max, "x-kubernetes-list-type": "set" }))
}

/// Different ones of these names.
pub(crate) fn set_of_names<const N: usize>(names: [&'static str; N]) -> impl Transform {
    let item = json!({ "type": "string", "enum": names.as_slice() });
    with(json!({ "items": item, "maxItems": N, "x-kubernetes-list-type": "set" }))
}

/// A quantity: a number or a text.
pub(crate) fn int_or_string(schema: &mut Schema) {
    with(json!({ "x-kubernetes-int-or-string": true })).transform(schema);
}

/// At most `max` mappings that belong to somebody else.
pub(crate) fn open_objects(max: usize) -> impl Transform {
    let item = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    with(json!({ "items": item, "maxItems": max }))
}

/// A DNS label (RFC 1123).
pub(crate) fn label(schema: &mut Schema) {
    let pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
    with(json!({ "minLength": 1, "maxLength": 63, "pattern": pattern })).transform(schema);
}

/// At most `max` mappings that each have a `name` of their own.
pub(crate) fn named_mappings(max: usize) -> impl Transform {
    with(json!({ "maxItems": max, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"] }))
}

/// One to `max` mappings.
pub(crate) fn mappings(max: usize) -> impl Transform {
    with(json!({ "minItems": 1, "maxItems": max }))
}

/// One to `max` sizes of a tensor.
pub(crate) fn sizes(max: usize) -> impl Transform {
    let (least, most) = limits::WIDTH.into_inner();
    let item = json!({ "type": "integer", "format": "int32", "minimum": least, "maximum": most });
    with(json!({ "items": item, "minItems": 1, "maxItems": max }))
}

/// A mapping that belongs to somebody else and is kept as it is, so that no field of a newer Kubernetes is dropped.
pub(crate) fn open_object(schema: &mut Schema) {
    with(json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })).transform(schema);
}
