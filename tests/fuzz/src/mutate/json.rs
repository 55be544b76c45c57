//! Mutations of a JSON document whose result is still JSON.

use super::{index, number, times};
use serde_json::{Value, json};
use varuna_sim::Rng;

/// Changes one value of the document; none if it is no JSON.
pub(super) fn mutate(input: &[u8], words: &[&str], rng: &mut Rng) -> Option<Vec<u8>> {
    let mut document: Value = serde_json::from_slice(input).ok()?;
    let mut places = 0;
    visit(&mut document, &mut |_| places += 1);
    let (from, to) = (index(rng, places), index(rng, places));
    let mut at = 0;
    let mut copy = Value::Null;
    visit(&mut document, &mut |value| {
        if at == from {
            copy = value.clone();
        }
        at += 1;
    });
    let new = other(copy, words, rng);
    at = 0;
    let mut new = Some(new);
    visit(&mut document, &mut |value| {
        if at == to {
            change(value, &mut new, rng);
        }
        at += 1;
    });
    serde_json::to_vec(&document).ok()
}

/// Calls `call` for each value, the outer ones first.
fn visit(value: &mut Value, call: &mut impl FnMut(&mut Value)) {
    call(value);
    match value {
        Value::Array(items) => items.iter_mut().for_each(|v| visit(v, call)),
        Value::Object(fields) => fields.values_mut().for_each(|v| visit(v, call)),
        _ => {}
    }
}

/// Another value: one from elsewhere in the document, a number, or a word.
fn other(copy: Value, words: &[&str], rng: &mut Rng) -> Value {
    match rng.below(8) {
        0 => copy,
        1..=3 => json!(number(rng)),
        4 => json!(-1.5),
        5 => json!(f64::from_bits(rng.draw())),
        6 => json!(rng.pick(words).unwrap_or_default()),
        _ => rng
            .pick(&["null", "[]", "{}", "\"\"", "true", "[[[[]]]]", "1e308"])
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default(),
    }
}

fn change(value: &mut Value, new: &mut Option<Value>, rng: &mut Rng) {
    let new = new.take().unwrap_or_default();
    let how = rng.below(6);
    match value {
        Value::Array(items) if how < 5 => {
            let at = index(rng, items.len() + 1);
            match how {
                0 if at < items.len() => drop(items.remove(at)),
                1 if at < items.len() => {
                    let item = items[at].clone();
                    let length = item.to_string().len();
                    items.extend(std::iter::repeat_n(item, times(length, 8, rng)));
                }
                2 if at < items.len() => {
                    let other = index(rng, items.len());
                    items.swap(at, other);
                }
                _ => items.insert(at, new),
            }
        }
        Value::Object(fields) if how < 4 => {
            let keys: Vec<String> = fields.keys().cloned().collect();
            let key = keys.get(index(rng, keys.len())).cloned().unwrap_or_default();
            if how < 2 {
                fields.remove(&key);
            } else {
                fields.insert(key, new);
            }
        }
        // A JSON document within a text.
        Value::String(text) if how < 5 && text.starts_with('{') => {
            let changed = mutate(text.as_bytes(), &[], rng).and_then(|bytes| String::from_utf8(bytes).ok());
            *text = changed.unwrap_or_default();
        }
        value => *value = new,
    }
}
