//! Segments, and the units of state they make.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A unit of state: segment `0..segments`, or, where weights are tied, number `segments` for the tied weight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Unit(pub u32);

impl Unit {
    /// For indexing per-unit tables.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "u{}", self.0)
    }
}

/// Segments `start..end` of the model, `start < end` in every stage.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct SegmentRange {
    /// First segment.
    pub start: u32,
    /// One past the last segment.
    pub end: u32,
}

impl SegmentRange {
    /// How many segments.
    #[must_use]
    pub fn len(self) -> u32 {
        self.end.saturating_sub(self.start)
    }
    /// True for a range that holds nothing (never in a valid plan).
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.end <= self.start
    }
    /// Whether the segment lies inside.
    #[must_use]
    pub fn contains(self, segment: u32) -> bool {
        (self.start..self.end).contains(&segment)
    }
}

impl fmt::Display for SegmentRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

/// Most segments of a layout that is read. A model of 10,000 blocks, the most that a job may have, has 20,002; a greater number
/// comes from a damaged document, and whatever goes through all units would go on for ever.
pub const SEGMENTS_MAX: u32 = 1 << 20;

/// A layout as it is written, before its number is checked.
#[derive(Deserialize)]
struct WrittenLayout {
    segments: u32,
    tied: bool,
}

/// A layout that no model has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a layout of {0} segments; at most {SEGMENTS_MAX} are allowed")]
pub struct TooManySegments(u32);

impl TryFrom<WrittenLayout> for Layout {
    type Error = TooManySegments;
    fn try_from(written: WrittenLayout) -> Result<Layout, TooManySegments> {
        let WrittenLayout { segments, tied } = written;
        if segments > SEGMENTS_MAX {
            return Err(TooManySegments(segments));
        }
        Ok(Layout { segments, tied })
    }
}

/// How the model's state divides into units: one per segment, and one more where the first and the last segment share a
/// weight (the token embedding and the head). The tied unit is held by the holders of either end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "WrittenLayout")]
pub struct Layout {
    /// Number of segments, at most [`SEGMENTS_MAX`].
    pub segments: u32,
    /// Whether the first and the last segment share a weight.
    pub tied: bool,
}

impl Layout {
    /// Number of units.
    #[must_use]
    pub fn units(&self) -> usize {
        self.segments as usize + usize::from(self.tied)
    }
    /// All units in order.
    pub fn all_units(&self) -> impl Iterator<Item = Unit> + use<> {
        (0..self.segments + u32::from(self.tied)).map(Unit)
    }
    /// The tied unit, where there is one.
    #[must_use]
    pub fn tied_unit(&self) -> Option<Unit> {
        self.tied.then_some(Unit(self.segments))
    }
    /// Whether a stage with these segments holds the unit.
    #[must_use]
    pub fn stage_holds(&self, range: SegmentRange, unit: Unit) -> bool {
        if Some(unit) == self.tied_unit() {
            range.start == 0 || range.end == self.segments
        } else {
            range.contains(unit.0)
        }
    }
    /// The units that a stage with these segments holds, in order.
    #[must_use]
    pub fn units_of(&self, range: SegmentRange) -> Vec<Unit> {
        let segments = range.start.min(self.segments)..range.end.min(self.segments);
        let tied = self.tied_unit().filter(|u| self.stage_holds(range, *u));
        segments.map(Unit).chain(tied).collect()
    }
    /// Units as people read them: `segments 0, 3 and the tied embedding`.
    #[must_use]
    pub fn name(&self, units: &[Unit]) -> String {
        let tied = self.tied_unit();
        let segments: Vec<String> = units
            .iter()
            .filter(|u| Some(**u) != tied)
            .map(ToString::to_string)
            .collect();
        let mut parts = Vec::new();
        match segments.as_slice() {
            [] => {}
            [one] => parts.push(format!("segment {one}")),
            many => parts.push(format!("segments {}", many.join(", "))),
        }
        if units.iter().any(|u| Some(*u) == tied) {
            parts.push("the tied embedding".into());
        }
        parts.join(" and ")
    }
    /// The whole model.
    #[must_use]
    pub fn whole(&self) -> SegmentRange {
        SegmentRange {
            start: 0,
            end: self.segments,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_named_in_words() {
        let layout = Layout {
            segments: 4,
            tied: true,
        };
        assert_eq!(
            layout.name(&[Unit(1), Unit(3), Unit(4)]),
            "segments 1, 3 and the tied embedding"
        );
        assert_eq!(layout.name(&[Unit(0)]), "segment 0");
    }

    #[test]
    fn a_layout_that_no_model_has_is_refused() {
        let read = |segments: u32| {
            serde_json::from_str::<Layout>(&format!(r#"{{"segments":{segments},"tied":true}}"#))
        };
        assert_eq!(read(SEGMENTS_MAX).unwrap().units(), 1_048_577);
        let error = read(u32::MAX).unwrap_err().to_string();
        assert!(error.contains("4294967295 segments; at most 1048576"), "{error}");
    }
}
