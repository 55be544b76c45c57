//! Checks of single values: required fields, ranges, words, names.

use crate::error::Found;
use crate::limits;
use crate::manifest::OPERATOR;
use crate::quantity;
use serde_json::Value;
use std::fmt::Display;
use std::ops::{Range, RangeInclusive};

/// Takes values from the manifest and notes their errors. A refused value is replaced by a harmless one, so that the checks can continue;
/// the job is not returned then.
pub(super) struct Check(pub(super) Found);

impl Check {
    /// The value, or an error.
    pub(super) fn required<T: Default>(&mut self, path: &str, value: Option<T>, allowed: &str) -> T {
        value.unwrap_or_else(|| {
            self.0.push(path, "missing", allowed);
            T::default()
        })
    }

    /// The value; if it is out of range, an error and the nearer limit, since sizes are multiplied before the errors are returned.
    pub(super) fn within<T: PartialOrd + Display>(
        &mut self,
        path: &str,
        value: T,
        range: RangeInclusive<T>,
    ) -> T {
        if !range.contains(&value) {
            self.0
                .push(path, &value, format!("{} to {}", range.start(), range.end()));
            let (start, end) = range.into_inner();
            return if value > end { end } else { start };
        }
        value
    }

    /// A required whole number, at least 1.
    pub(super) fn count(&mut self, path: &str, value: Option<u64>) -> u64 {
        let value = self.required(path, value, &format!("1 to {}", limits::COUNT.end()));
        self.within(path, value, limits::COUNT)
    }

    /// A required text that is not blank.
    pub(super) fn text(&mut self, path: &str, value: Option<String>, allowed: &str) -> String {
        let value = self.required(path, value, allowed);
        if value.trim().is_empty() {
            self.0.push(path, quoted(&value), allowed);
        }
        self.characters(path, &value, limits::TEXT);
        value
    }

    /// A required path or URL. A URL has no `?` or `#`: a store would take what follows for no part of the place.
    pub(super) fn place(&mut self, path: &str, value: Option<String>, allowed: &str) -> String {
        let value = self.text(path, value, allowed);
        if let Some(end) = value.find(['?', '#']).filter(|_| is_url(&value)) {
            // What follows may be a key, so it is not shown.
            let shown = format!("{}...", &value[..=end]);
            let allowed = format!("{allowed}; a URL has no ? or #, such as s3://bucket/folder");
            self.0.push(path, quoted(&shown), allowed);
        }
        value
    }

    /// Refuses a text that is too short or too long.
    pub(super) fn characters(&mut self, path: &str, text: &str, range: RangeInclusive<usize>) {
        // As an API server counts: Unicode characters, not bytes.
        let count = text.chars().count();
        if !range.contains(&count) {
            let allowed = format!("{} to {}", range.start(), range.end());
            self.0.push(path, format!("{count} characters"), allowed);
        }
    }

    /// A share: at least 0, below 1.
    pub(super) fn fraction(&mut self, path: &str, value: f64, symbol: &str) -> f64 {
        let Range { start, end } = limits::FRACTION;
        if !limits::FRACTION.contains(&value) {
            self.0.push(path, value, format!("{start} <= {symbol} < {end}"));
        }
        value
    }

    /// A required number above 0, at most `max`.
    pub(super) fn above_zero(&mut self, path: &str, value: Option<f64>, max: f64) -> f64 {
        let allowed = format!("a number above 0, at most {max}");
        if let Some(value) = value.filter(|v| !(*v > 0.0 && *v <= max)) {
            self.0.push(path, value, allowed.as_str());
        }
        self.required(path, value, &allowed)
    }

    /// A quantity of bytes; none if it is omitted or was refused.
    pub(super) fn bytes(&mut self, path: &str, written: Option<&Value>) -> Option<u64> {
        let bytes = written.and_then(quantity::bytes);
        if let (Some(value), None) = (written, bytes) {
            self.0.push(path, value, quantity::ALLOWED);
        }
        bytes
    }

    /// The meaning of a required name; none if it was refused.
    pub(super) fn one_of<T: Copy>(
        &mut self,
        path: &str,
        value: Option<String>,
        names: &[(&str, T)],
    ) -> Option<T> {
        let known = names.iter().find(|(name, _)| Some(*name) == value.as_deref());
        if known.is_none() {
            let allowed: Vec<_> = names.iter().map(|(name, _)| *name).collect();
            let found = value.map_or("missing".to_owned(), |value| quoted(&value));
            self.0.push(path, found, allowed.join(" or "));
        }
        known.map(|(_, meaning)| *meaning)
    }

    /// The meaning of a name; the first meaning if it is omitted or was refused.
    pub(super) fn choice<T: Copy, const N: usize>(
        &mut self,
        path: &str,
        value: Option<String>,
        names: &[(&str, T); N],
    ) -> T {
        let first = names[0].1;
        value.map_or(first, |value| {
            self.one_of(path, Some(value), names).unwrap_or(first)
        })
    }

    /// The name of a controller: a domain, a slash and a name.
    pub(super) fn manager(&mut self, path: &str, value: &str) {
        let (least, most) = (limits::MANAGER.start(), limits::MANAGER.end());
        if !limits::MANAGER.contains(&value.len()) || !is_name_below_a_domain(value) {
            let allowed = format!("a domain and a name, such as {OPERATOR}, of {least} to {most} characters");
            self.0.push(path, quoted(value), allowed);
        }
    }

    /// A DNS label ([`is_label`]).
    pub(super) fn label(&mut self, path: &str, value: Option<String>) -> String {
        let value = self.required(path, value, DNS_LABEL);
        if !is_label(&value) {
            self.0.push(path, quoted(&value), DNS_LABEL);
        }
        value
    }

    /// The name of an object of a cluster that a label can hold: DNS labels with dots between them.
    pub(super) fn dotted_name(&mut self, path: &str, value: String) -> String {
        let allowed = "1 to 63 of a-z, 0-9, - and ., neither first nor last a - or .";
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let is_label =
            |l: &str| !l.is_empty() && !l.starts_with('-') && !l.ends_with('-') && l.chars().all(inner);
        if value.len() > 63 || !value.split('.').all(is_label) {
            self.0.push(path, quoted(&value), allowed);
        }
        value
    }
}

/// What a DNS label is, for messages.
pub const DNS_LABEL: &str = "1 to 63 of a-z, 0-9 and -, neither first nor last a -";

/// Whether a text is a DNS label (RFC 1123). Kubernetes requires this of names that become parts of other names, such as a job's.
#[must_use]
pub fn is_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let ends = text.starts_with('-') || text.ends_with('-');
    !text.is_empty() && text.len() <= 63 && !ends && text.chars().all(inner)
}

/// Whether a text begins as a URL does. One letter is a drive, not a scheme.
fn is_url(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || "+.-".contains(c);
    text.split_once("://").is_some_and(|(scheme, _)| {
        let begins = scheme.starts_with(|c: char| c.is_ascii_alphabetic());
        scheme.len() > 1 && begins && scheme.chars().all(inner)
    })
}

/// Whether a text is a domain and a name below it, as `example.com/controller`.
fn is_name_below_a_domain(text: &str) -> bool {
    let Some((domain, name)) = text.split_once('/') else {
        return false;
    };
    let outer = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let ends = domain.starts_with(outer) && domain.ends_with(outer);
    ends && domain.chars().all(|c| outer(c) || ".-".contains(c))
        && !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_.~/-".contains(c))
}

/// Text as it is shown in an error.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}
