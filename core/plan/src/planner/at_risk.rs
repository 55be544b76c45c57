//! State that only leaving workers hold, and whether the workers of a plan have it before the first of those goes.
//!
//! All other state may come later, from holders that stay. A plan names the sources of each unit, and its own workers are not among those of
//! this state, so a leaving worker sends every copy. What a worker lacks arrives in no particular order, so a worker that needs any of this
//! state must have all that it lacks by then. As in all predictions of moves, links carry nothing else. This says only whether state
//! arrives in time; it never ranks plans.

use super::held_bytes::{Held, unit_bytes};
use super::request::PlanRequest;
use crate::cost::Costs;
use crate::ids::{Unit, WorkerId};
use crate::layout::{Layout, SegmentRange};
use std::collections::{BTreeMap, BTreeSet};

/// What a leaving worker sends for one copy of the state, bytes.
#[derive(Clone, Copy, Default)]
struct Sent {
    segments: u64,
    tied: u64,
}

/// The state that is lost unless it is moved in time.
pub(super) struct AtRisk {
    layout: Layout,
    state: Held,
    /// For each leaving worker. Leaving workers that hold the same state share its sending.
    sent: Vec<Sent>,
    /// Until the first worker goes that holds any of it, milliseconds.
    deadline_ms: f64,
    /// What a link carries in that time, bytes.
    link_bytes: f64,
}

impl AtRisk {
    /// None if nobody leaves at a known time, or if workers that stay hold everything too.
    pub(super) fn new(costs: &Costs, request: &PlanRequest) -> Option<AtRisk> {
        let departure = request.departure.as_ref()?;
        let layout = request.layout;
        let bytes = unit_bytes(costs, &layout);
        let mut stays: BTreeSet<Unit> = BTreeSet::new();
        let mut holders: BTreeMap<Unit, u64> = BTreeMap::new();
        for (worker, units) in &request.held {
            for unit in units.iter().copied() {
                if departure.sends_for_ms.contains_key(worker) {
                    *holders.entry(unit).or_default() += 1;
                } else {
                    stays.insert(unit);
                }
            }
        }
        holders.retain(|unit, _| !stays.contains(unit) || bug!(CountSafeState));
        if holders.is_empty() {
            return None;
        }
        let sent = |worker: &WorkerId| {
            let mut sent = Sent::default();
            for unit in request.held.get(worker).into_iter().flatten() {
                let among = holders.get(unit).copied().unwrap_or(0);
                let all = bytes.get(unit.index()).copied().unwrap_or(0);
                let share = all.checked_div(among).unwrap_or(0);
                if layout.tied_unit() == Some(layout.whole_of(*unit)) {
                    sent.tied += share;
                } else {
                    sent.segments += share;
                }
            }
            sent
        };
        let is_needed = |w: &WorkerId| {
            request
                .held
                .get(w)
                .into_iter()
                .flatten()
                .any(|u| holders.contains_key(u))
        };
        let needed = departure.sends_for_ms.iter().filter(|(w, _)| is_needed(w));
        let deadline_ms = needed.map(|(_, ms)| *ms).fold(f64::INFINITY, f64::min);
        let all: Vec<Unit> = holders.keys().copied().collect();
        Some(AtRisk {
            layout,
            state: Held::new(&layout, &bytes, &all),
            sent: departure.sends_for_ms.keys().map(sent).collect(),
            deadline_ms,
            link_bytes: deadline_ms / 1e3 * costs.device.bytes_per_s,
        })
    }

    /// Until the first worker goes that holds any of it, milliseconds.
    pub(super) fn deadline_ms(&self) -> f64 {
        self.deadline_ms
    }

    /// Whether the workers of a plan have this state in time. `stages`: the segments of each stage, and what its worker lacks of any state,
    /// bytes.
    pub(super) fn arrives_in_time(
        &self,
        pipelines: usize,
        stages: impl IntoIterator<Item = (SegmentRange, u64)>,
    ) -> bool {
        let (mut ends, mut most_lacking) = (0, 0);
        for (segments, lacking) in stages {
            let tied = self.layout.tied_unit();
            ends += usize::from(tied.is_some_and(|t| self.layout.undivided().stage_needs(segments, t)));
            if self.state.of(&self.layout, segments) > 0 {
                most_lacking = lacking.max(most_lacking);
            }
        }
        self.fits(most_lacking.max(self.most_sent(pipelines, ends)))
    }

    /// Whether this state can arrive in time for some plan with this many pipelines.
    pub(super) fn allows(&self, pipelines: usize) -> bool {
        // Each pipeline needs the tied weight on one worker at least.
        self.fits(self.most_sent(pipelines, pipelines))
    }

    /// What one leaving worker sends at most, bytes, if this many workers compute with each segment, and with the tied weight.
    fn most_sent(&self, group: usize, tied_group: usize) -> u64 {
        let copies = |group: usize| match bug!(SendOneCopy) {
            true => 1,
            false => self.layout.places_of(Unit(0), group).len() as u64,
        };
        let (of_segments, of_tied) = (copies(group), copies(tied_group));
        let all = self.sent.iter();
        let bytes = all.map(|s| s.segments * of_segments + s.tied * of_tied);
        bytes.max().unwrap_or(0)
    }

    #[expect(clippy::cast_precision_loss, reason = "bytes of state")]
    fn fits(&self, bytes: u64) -> bool {
        bytes as f64 <= self.link_bytes || bug!(IgnoreDeparture)
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::Departure;
    use super::super::tests::planner;
    use super::*;

    /// Workers 1 to 4 hold these segments, without the tied weight unless they have an end of the pipeline, and the first `leaving` of them
    /// go in the time that a link takes for this many copies of what worker 1 holds.
    fn at_risk(held: [(u32, u32); 4], leaving: u64, copies: f64) -> Option<AtRisk> {
        at_risk_of(held, (1..=leaving).map(|w| (w, copies)).collect())
    }

    /// The same with a time for each leaving worker.
    fn at_risk_of(held: [(u32, u32); 4], leaving: BTreeMap<u64, f64>) -> Option<AtRisk> {
        let costs = planner(1, None).costs;
        let layout = costs.layout();
        let units = |(start, end): (u32, u32)| layout.whole_units_of(SegmentRange { start, end });
        let held: BTreeMap<WorkerId, Vec<Unit>> = (1..).map(WorkerId).zip(held.map(units)).collect();
        let bytes = unit_bytes(&costs, &layout);
        let of_first: u64 = held[&WorkerId(1)].iter().map(|u| bytes[u.index()]).sum();
        let ms = |copies: f64| of_first as f64 * copies / costs.device.bytes_per_s * 1e3;
        let departure = Departure {
            sends_for_ms: leaving
                .into_iter()
                .map(|(w, copies)| (WorkerId(w), ms(copies)))
                .collect(),
        };
        let request = PlanRequest {
            held,
            departure: Some(departure),
            ..PlanRequest::first(Vec::new(), layout, 8)
        };
        AtRisk::new(&costs, &request)
    }

    #[test]
    fn each_pipeline_needs_a_copy_and_leaving_holders_share_them() {
        // The most pipelines that can have it.
        let most = |leaving: u64, held: [(u32, u32); 4]| {
            let at_risk = at_risk(held, leaving, 2.6).unwrap();
            (0..9).take_while(|n| at_risk.allows(*n)).last()
        };
        assert_eq!(most(1, [(4, 7), (7, 10), (10, 14), (0, 4)]), Some(2));
        let one_segment = most(1, [(4, 7), (4, 6), (7, 14), (0, 4)]);
        assert!(one_segment > Some(3), "{one_segment:?}");
        assert_eq!(most(2, [(4, 7), (4, 7), (7, 14), (0, 4)]), Some(5));
    }

    #[test]
    fn state_that_a_worker_holds_that_stays_is_not_at_risk() {
        let twice = [(4, 7), (4, 7), (7, 14), (0, 4)];
        assert!(at_risk(twice, 1, 0.0).is_none());
        assert!(at_risk(twice, 2, 0.0).is_some());
    }

    #[test]
    fn only_workers_count_whose_state_nobody_else_has() {
        // The first one's state is the second one's too, which goes later; the third, which goes at once, has what the fourth has.
        let held = [(4, 7), (4, 7), (7, 14), (7, 14)];
        let leaving = |third: f64| at_risk_of(held, [(1, 3.0), (2, 2.0), (3, third)].into()).unwrap();
        assert_eq!(leaving(0.0).deadline_ms(), leaving(9.0).deadline_ms());
        assert!(leaving(0.0).allows(2), "two copies fit");
    }

    #[test]
    fn who_needs_any_of_it_has_to_have_all_that_it_lacks_in_time() {
        let at_risk = at_risk([(4, 7), (7, 10), (10, 14), (0, 4)], 1, 1.5).unwrap();
        let range = |start, end| SegmentRange { start, end };
        let copy = at_risk.state.all();
        let is_in_time =
            |first: u64, last: u64| at_risk.arrives_in_time(1, [(range(0, 7), first), (range(7, 14), last)]);
        assert!(is_in_time(copy, 0));
        assert!(!is_in_time(2 * copy, 0));
        assert!(
            is_in_time(copy, 9 * copy),
            "it needs nothing of the leaving worker"
        );
    }

    #[test]
    fn the_tied_weight_is_sent_to_both_ends_of_each_pipeline() {
        // Both ends of the only pipeline leave; the weight that they share is most of what they hold, and each sends half of it.
        let at_risk = at_risk([(0, 1), (13, 14), (1, 7), (7, 13)], 2, 0.9).unwrap();
        let range = |start, end| SegmentRange { start, end };
        assert!(at_risk.arrives_in_time(1, [(range(0, 14), 0)]));
        assert!(!at_risk.arrives_in_time(1, [(range(0, 7), 0), (range(7, 14), 0)]));
    }
}
