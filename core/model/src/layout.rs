//! Segments, and the units of state they make.
//!
//! A unit is the smallest piece of state that is held, moved, saved and compared. It is the state of a whole segment, or, if optimizer
//! state is sharded (ZeRO-1, Rajbhandari et al. 2020), one of several equal ranges of it: then the workers that compute with a segment
//! share its ranges out among them. Ranges are the same for the whole life of a job, whatever its plans are, so that a unit is moved, and
//! read from a checkpoint, unchanged.

mod sharing;

use serde::{Deserialize, Serialize};
pub use sharing::{RANGE_HOLDERS, SHARDED_RANGES, StateShare};
use std::fmt;
use std::ops::Range;

/// A unit of state. Undivided, it is segment `0..segments`, or number `segments` for the tied weight, if there is one. If a layout has R
/// ranges, range r of the undivided unit u has the number `u R + r`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Unit(pub u32);

impl Unit {
    /// Index of the unit in tables with an entry for each unit.
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
    /// Number of segments.
    #[must_use]
    pub fn len(self) -> u32 {
        self.end.saturating_sub(self.start)
    }
    /// True for a range that holds nothing (never in a valid plan).
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.end <= self.start
    }
    /// Whether the segment is in the range.
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

/// Maximum number of segments of a layout that is read. A model of 10,000 blocks, the most that a job may have, has 20,002. A greater
/// number comes from a damaged document, and a loop over all units would not end.
pub const SEGMENTS_MAX: u32 = 1 << 20;

/// Maximum number of ranges of a layout that is read.
pub const RANGES_MAX: u32 = 64;

/// Maximum number of units of a layout that is read, whatever its segments and ranges.
pub const UNITS_MAX: usize = SEGMENTS_MAX as usize + 1;

/// A layout as it is written, before its numbers are checked.
#[derive(Deserialize)]
struct WrittenLayout {
    segments: u32,
    tied: bool,
    #[serde(default = "one")]
    ranges: u32,
}

fn one() -> u32 {
    1
}

fn is_one(ranges: &u32) -> bool {
    *ranges == 1
}

/// An error: no model can have this layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ImpossibleLayout {
    /// More segments than any model has.
    #[error("a layout of {0} segments; at most {SEGMENTS_MAX} are allowed")]
    Segments(u32),
    /// More units than any model makes.
    #[error("a layout of {0} units; at most {UNITS_MAX} are allowed")]
    Units(usize),
    /// No range, or more than units are divided into.
    #[error("a layout of {0} ranges; 1 to {RANGES_MAX} are allowed")]
    Ranges(u32),
}

impl TryFrom<WrittenLayout> for Layout {
    type Error = ImpossibleLayout;
    fn try_from(written: WrittenLayout) -> Result<Layout, ImpossibleLayout> {
        let WrittenLayout {
            segments,
            tied,
            ranges,
        } = written;
        Layout {
            segments,
            tied,
            ranges,
        }
        .checked()
    }
}

/// How the model's state is divided into units: one per segment, and one more if the first and the last segment share a weight (the token
/// embedding and the head), each divided into as many ranges as the layout has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "WrittenLayout")]
pub struct Layout {
    /// Number of segments, at most [`SEGMENTS_MAX`].
    pub segments: u32,
    /// Whether the first and the last segment share a weight.
    pub tied: bool,
    /// Number of units of each segment and of the tied weight, at most [`RANGES_MAX`]; 1 if every worker that computes with a segment holds
    /// all of its state.
    #[serde(skip_serializing_if = "is_one")]
    pub ranges: u32,
}

impl Layout {
    /// A layout whose units are undivided.
    #[must_use]
    pub const fn new(segments: u32, tied: bool) -> Layout {
        Layout {
            segments,
            tied,
            ranges: 1,
        }
    }
    /// The same layout, if a model can have its numbers.
    ///
    /// # Errors
    /// One of its numbers is impossible.
    pub fn checked(self) -> Result<Layout, ImpossibleLayout> {
        if self.segments > SEGMENTS_MAX {
            return Err(ImpossibleLayout::Segments(self.segments));
        }
        match self.ranges {
            1..=RANGES_MAX if self.units() <= UNITS_MAX => Ok(self),
            1..=RANGES_MAX => Err(ImpossibleLayout::Units(self.units())),
            ranges => Err(ImpossibleLayout::Ranges(ranges)),
        }
    }
    /// The same segments with units of this many ranges.
    #[must_use]
    pub const fn in_ranges(self, ranges: u32) -> Layout {
        Layout { ranges, ..self }
    }
    /// The same segments, each with one unit.
    #[must_use]
    pub const fn undivided(self) -> Layout {
        self.in_ranges(1)
    }
    /// Number of units.
    #[must_use]
    pub fn units(&self) -> usize {
        (self.segments as usize + usize::from(self.tied)) * self.ranges as usize
    }
    /// All units in order.
    pub fn all_units(&self) -> impl Iterator<Item = Unit> + use<> {
        (0..(self.segments + u32::from(self.tied)) * self.ranges).map(Unit)
    }
    /// The unit of the undivided layout that this one is a range of.
    #[must_use]
    pub fn whole_of(&self, unit: Unit) -> Unit {
        Unit(unit.0 / self.ranges)
    }
    /// The number of the range that the unit is: `0..ranges`.
    #[must_use]
    pub fn range_number(&self, unit: Unit) -> u32 {
        unit.0 % self.ranges
    }
    /// The ranges of a unit of the undivided layout, in order.
    pub fn ranges_of(&self, whole: Unit) -> impl DoubleEndedIterator<Item = Unit> + use<> {
        let first = whole.0 * self.ranges;
        (first..first + self.ranges).map(Unit)
    }
    /// The elements of the undivided unit, which has `elements`, that belong to this unit.
    #[must_use]
    pub fn elements_of(&self, unit: Unit, elements: usize) -> Range<usize> {
        let (range, ranges) = (self.range_number(unit) as usize, self.ranges as usize);
        range * elements / ranges..(range + 1) * elements / ranges
    }
    /// The tied weight as a unit of the undivided layout, if there is one.
    #[must_use]
    pub fn tied_unit(&self) -> Option<Unit> {
        self.tied.then_some(Unit(self.segments))
    }
    /// Whether a stage with these segments computes with the unit.
    #[must_use]
    pub fn stage_needs(&self, range: SegmentRange, unit: Unit) -> bool {
        let whole = self.whole_of(unit);
        if Some(whole) == self.tied_unit() {
            range.start == 0 || range.end == self.segments
        } else {
            range.contains(whole.0)
        }
    }
    /// The units of the undivided layout that a stage with these segments computes with, in order.
    #[must_use]
    pub fn whole_units_of(&self, range: SegmentRange) -> Vec<Unit> {
        let segments = range.start.min(self.segments)..range.end.min(self.segments);
        let tied = self
            .tied_unit()
            .filter(|u| self.undivided().stage_needs(range, *u));
        segments.map(Unit).chain(tied).collect()
    }
    /// Names units for people: `segments 0, 3 and the tied embedding`. A segment is named if any range of it is among them.
    #[must_use]
    pub fn name(&self, units: &[Unit]) -> String {
        let tied = self.tied_unit();
        let mut units: Vec<Unit> = units.iter().map(|u| self.whole_of(*u)).collect();
        units.dedup();
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

/// The part of a parameter that is in a range of its segment's elements; none if no part is. The parameter has the elements `own` of the
/// segment's `all`. A parameter without elements belongs to the range at its position.
#[must_use]
pub fn part_in_range(own: &Range<usize>, range: &Range<usize>, all: usize) -> Option<Range<usize>> {
    let part = own.start.max(range.start)..own.end.min(range.end);
    let is_here = match own.is_empty() {
        true => !range.is_empty() && (range.contains(&own.start) || (own.start == all && range.end == all)),
        false => part.start < part.end,
    };
    is_here.then_some(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_named_in_words() {
        let layout = Layout::new(4, true);
        assert_eq!(
            layout.name(&[Unit(1), Unit(3), Unit(4)]),
            "segments 1, 3 and the tied embedding"
        );
        assert_eq!(layout.name(&[Unit(0)]), "segment 0");
        let ranges = layout.in_ranges(3);
        assert_eq!(
            ranges.name(&[Unit(3), Unit(5), Unit(14)]),
            "segment 1 and the tied embedding"
        );
    }

    #[test]
    fn undivided_unit_is_held_by_all_workers_that_compute_with_it() {
        let layout = Layout::new(3, false);
        assert_eq!(layout.places_of(Unit(1), 4), [0, 1, 2, 3]);
        assert_eq!(layout.elements_of(Unit(1), 9), 0..9);
        assert_eq!(layout.whole_units_of(layout.whole()), [0, 1, 2].map(Unit));
        let text = serde_json::to_string(&layout).unwrap();
        assert_eq!(text, r#"{"segments":3,"tied":false}"#);
        assert_eq!(serde_json::from_str::<Layout>(&text).unwrap(), layout);
    }

    #[test]
    fn a_layout_that_no_model_has_is_refused() {
        let read = |segments: u32| {
            serde_json::from_str::<Layout>(&format!(r#"{{"segments":{segments},"tied":true}}"#))
        };
        assert_eq!(read(SEGMENTS_MAX).unwrap().units(), 1_048_577);
        let error = read(u32::MAX).unwrap_err().to_string();
        assert!(error.contains("4294967295 segments; at most 1048576"), "{error}");
        let text = r#"{"segments":4,"tied":true,"ranges":0}"#;
        let error = serde_json::from_str::<Layout>(text).unwrap_err().to_string();
        assert!(error.contains("0 ranges; 1 to 64"), "{error}");
    }
}
