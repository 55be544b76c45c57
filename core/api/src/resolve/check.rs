//! Checks of single values: what is required, ranges, words, names.

use crate::error::Found;
use crate::limits;
use std::fmt::Display;
use std::ops::RangeInclusive;
use varuna_plan::Recompute;

/// What `spec.pipeline.recompute` names; the first where it is left out.
pub(crate) const RECOMPUTE: [(&str, &[Recompute]); 4] = [
    ("auto", &[Recompute::None, Recompute::Selective, Recompute::Full]),
    ("none", &[Recompute::None]),
    ("selective", &[Recompute::Selective]),
    ("full", &[Recompute::Full]),
];

/// Takes values out of the manifest and notes what is wrong with them. A refused value is replaced by a harmless one, so
/// that the checks can go on; the job is not returned then.
pub(super) struct Check(pub(super) Found);

impl Check {
    /// The value, or an error.
    pub(super) fn required<T: Default>(&mut self, path: &str, value: Option<T>, allowed: &str) -> T {
        value.unwrap_or_else(|| {
            self.0.push(path, "missing", allowed);
            T::default()
        })
    }

    /// The value, and an error if it lies outside.
    pub(super) fn within<T: PartialOrd + Display>(
        &mut self,
        path: &str,
        value: T,
        range: RangeInclusive<T>,
    ) -> T {
        if !range.contains(&value) {
            self.0
                .push(path, &value, format!("{} to {}", range.start(), range.end()));
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
        value
    }

    /// A word of a list; none where it was refused. Without a default the field is required.
    pub(super) fn one_of<T: Copy>(
        &mut self,
        path: &str,
        value: Option<String>,
        words: &[(&str, T)],
        default: Option<T>,
    ) -> Option<T> {
        let allowed = || {
            words
                .iter()
                .map(|(word, _)| *word)
                .collect::<Vec<_>>()
                .join(" or ")
        };
        let Some(value) = value else {
            if default.is_none() {
                self.0.push(path, "missing", allowed());
            }
            return default;
        };
        let known = words
            .iter()
            .find(|(word, _)| *word == value)
            .map(|(_, meaning)| *meaning);
        if known.is_none() {
            self.0.push(path, quoted(&value), allowed());
        }
        known
    }

    /// A DNS label (RFC 1123), as Kubernetes wants names that become parts of other names.
    pub(super) fn label(&mut self, path: &str, value: Option<String>) -> String {
        let allowed = "1 to 63 of a-z, 0-9 and -, neither first nor last a -";
        let value = self.required(path, value, allowed);
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let ends = value.starts_with('-') || value.ends_with('-');
        if value.is_empty() || value.len() > 63 || ends || !value.chars().all(inner) {
            self.0.push(path, quoted(&value), allowed);
        }
        value
    }
}

/// Text as it is shown in an error.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}
