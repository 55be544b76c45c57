//! Which of the workers that compute with a segment holds which range of its state, if optimizer state is sharded (ADR 39).

use super::{Layout, Unit};
use std::ops::Range;

/// Number of ranges of each segment's state if optimizer state is sharded. They divide evenly among 2, 3, 4, 6 or 12 workers, and nearly
/// evenly among others. More ranges would divide better, but make messages about units longer.
pub const SHARDED_RANGES: u32 = 12;

/// Number of workers that hold each range, if that many compute with the segment: then losing one of them loses no state.
pub const RANGE_HOLDERS: usize = 2;

/// A part of a segment's state that is held by the same workers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateShare {
    /// The elements of the part.
    pub elements: Range<usize>,
    /// Positions of the holders; the first of them sends the part to the others.
    pub places: Vec<usize>,
}

impl Layout {
    /// The workers that compute with a segment, in runs of at most as many workers as there are ranges. Each run shares out all ranges, so
    /// that every worker holds some. A single run if the layout is undivided.
    pub fn runs(&self, workers: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let runs = match self.ranges {
            1 => 1,
            ranges => workers.div_ceil(ranges as usize),
        };
        (0..runs).map(move |run| run * workers / runs..(run + 1) * workers / runs)
    }
    /// The positions, in a run of `workers`, of those that hold a unit; the first sends it to the others. Ranges are shared out as a ring
    /// sums them: the worker before position c has the sum of slice c first, the one at position c next ([`Layout::slice_of`]). So
    /// neighbours hold the same ranges, and the planner puts consecutive pipelines on different nodes.
    #[must_use]
    pub fn places_in(&self, unit: Unit, workers: usize) -> Vec<usize> {
        if self.ranges == 1 || workers <= RANGE_HOLDERS {
            return (0..workers).collect();
        }
        let slice = self.slice_of(unit, workers);
        vec![(slice + workers - 1) % workers, slice]
    }
    /// The positions, among the `workers` that compute with a segment, of those that hold a unit; the first owns its part of the norm.
    #[must_use]
    pub fn places_of(&self, unit: Unit, workers: usize) -> Vec<usize> {
        let places = |run: Range<usize>| {
            let own = self.places_in(unit, run.len()).into_iter();
            own.map(move |place| run.start + place)
        };
        self.runs(workers).flat_map(places).collect()
    }
    /// Whether each of the `workers` that compute with a segment needs only two slices of a sum, those of the ranges that it holds. With
    /// several runs each slice is needed in several places, so all workers get the whole sum.
    #[must_use]
    pub fn is_shared_out(&self, workers: usize) -> bool {
        self.ranges > 1 && workers > RANGE_HOLDERS && self.runs(workers).count() == 1
    }
    /// Divides a segment's state of `elements` elements into parts by the workers (among the `workers` that compute with it) that hold
    /// them, in order. No part is empty.
    #[must_use]
    pub fn shares(&self, whole: Unit, workers: usize, elements: usize) -> Vec<StateShare> {
        let mut shares: Vec<StateShare> = Vec::new();
        for unit in self.ranges_of(whole) {
            let (own, places) = (self.elements_of(unit, elements), self.places_of(unit, workers));
            match shares.last_mut() {
                Some(last) if last.places == places => last.elements.end = own.end,
                _ => shares.push(StateShare {
                    elements: own,
                    places,
                }),
            }
        }
        shares.retain(|share| !share.elements.is_empty());
        shares
    }
    /// Maximum number of ranges of a segment that one of `workers` workers holds.
    #[must_use]
    pub fn ranges_held(&self, workers: usize) -> u64 {
        let smallest = self.runs(workers).map(|run| run.len()).min().unwrap_or(0);
        if self.ranges == 1 || smallest <= RANGE_HOLDERS {
            return self.ranges.into();
        }
        RANGE_HOLDERS as u64 * u64::from(self.ranges).div_ceil(smallest as u64)
    }
    /// The slice that a unit belongs to if a segment's ranges are shared out among a run of `workers`, in order.
    #[must_use]
    pub fn slice_of(&self, unit: Unit, workers: usize) -> usize {
        self.range_number(unit) as usize * workers / self.ranges as usize
    }
    /// Where the slices of a run of `workers` begin, in ranges: `workers + 1` numbers.
    #[must_use]
    pub fn slices(&self, workers: usize) -> Vec<u32> {
        let (ranges, workers) = (self.ranges as usize, workers.max(1));
        let starts = (0..=workers).map(|slice| (slice * ranges).div_ceil(workers));
        starts
            .map(|start| u32::try_from(start).unwrap_or(u32::MAX))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_divide_each_unit_and_have_two_holders() {
        let layout = Layout::new(3, true).in_ranges(12);
        assert_eq!(layout.units(), 48);
        for elements in [0, 1, 7, 12, 1000] {
            let ranges = layout.ranges_of(Unit(2)).map(|u| layout.elements_of(u, elements));
            let all: Vec<usize> = ranges.flatten().collect();
            assert_eq!(all, (0..elements).collect::<Vec<_>>());
        }
        for workers in 1..40 {
            let mut held = vec![0; workers];
            for unit in layout.ranges_of(Unit(1)) {
                assert_eq!(layout.whole_of(unit), Unit(1));
                let places = layout.places_of(unit, workers);
                let runs = layout.runs(workers).count();
                assert_eq!(places.len(), runs * workers.min(2), "{workers}");
                assert!(places.windows(2).all(|p| p[0] != p[1]));
                let slices = layout.slices(workers);
                let slice = layout.slice_of(unit, workers);
                assert!((slices[slice]..slices[slice + 1]).contains(&layout.range_number(unit)));
                places.iter().for_each(|p| held[*p] += 1);
            }
            for elements in [0, 5, 1000] {
                let shares = layout.shares(Unit(1), workers, elements);
                let all: Vec<usize> = shares.iter().flat_map(|share| share.elements.clone()).collect();
                assert_eq!(all, (0..elements).collect::<Vec<_>>());
                assert!(shares.len() <= workers.min(12));
            }
            assert_eq!(layout.is_shared_out(workers), (3..=12).contains(&workers));
            let (least, most) = (held.iter().min().unwrap(), held.iter().max().unwrap());
            assert!(*least > 0 && most - least <= 2, "{workers}: {held:?}");
            assert!(*most as u64 <= layout.ranges_held(workers), "{workers}: {held:?}");
        }
    }
}
