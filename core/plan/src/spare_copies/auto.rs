//! Decides whether spare copies repay their cost.

use super::{Keepers, SpareCopies, SpareCosts};
use crate::document::Shape;
use crate::ids::{Unit, WorkerId};
use crate::layout::Layout;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What is expected of the run. Times in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Expected {
    /// Time of a step.
    pub step_ms: f64,
    /// Expected time until the next loss of workers, from observations. Workers that come, and those that leave after a notice and are planned
    /// around, cost no state, so that copies do not help against them.
    pub loss_ms: f64,
    /// Work that is repeated after a loss of the only copy. None if it is unknown, or if there is no store, so that everything would be
    /// repeated.
    pub redo_ms: Option<f64>,
}

impl Expected {
    /// Work that is repeated after a loss if checkpoints are made every `every_ms` milliseconds, every `every_steps` steps, or both: half
    /// of the interval between two of them.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "steps between two checkpoints")]
    pub fn redo_ms(step_ms: f64, every_ms: Option<f64>, every_steps: Option<u64>) -> Option<f64> {
        let by_steps = every_steps.map(|steps| steps as f64 * step_ms);
        let between = every_ms.into_iter().chain(by_steps).reduce(f64::min);
        between.map(|ms| ms / 2.0)
    }
}

/// The decision on spare copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SpareCopyDecision {
    /// Copies are kept of all units that only one worker holds.
    Kept,
    /// Copies are kept of some of them; for the others no worker that can keep copies has memory.
    KeptInPart,
    /// Copies are kept of some of them; the gradients of the others would occupy some worker's link for more than half of a step.
    KeptWhereLinksAllow,
    /// The job does not want any.
    NotWanted,
    /// Every unit has several holders.
    NothingAlone,
    /// No worker that can keep copies has memory for one, or no holder can send its gradients.
    NoKeeper,
    /// The gradients would occupy some worker's link for more than half of a step ([`super::LINK_SHARE_MAX`]).
    LinksTooSlow,
    /// The expected cost of losses is lower than what the copies cost in every step.
    LossesTooRare,
    /// A decision of a coordinator of a later release that this one does not know. [`decide`] never makes it.
    #[serde(other)]
    Unknown,
}

impl SpareCopyDecision {
    /// The serialized name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            SpareCopyDecision::Kept => "kept",
            SpareCopyDecision::KeptInPart => "keptInPart",
            SpareCopyDecision::KeptWhereLinksAllow => "keptWhereLinksAllow",
            SpareCopyDecision::NotWanted => "notWanted",
            SpareCopyDecision::NothingAlone => "nothingAlone",
            SpareCopyDecision::NoKeeper => "noKeeper",
            SpareCopyDecision::LinksTooSlow => "linksTooSlow",
            SpareCopyDecision::LossesTooRare => "lossesTooRare",
            SpareCopyDecision::Unknown => "unknown",
        }
    }

    /// Whether copies are kept.
    #[must_use]
    pub fn keeps(self) -> bool {
        matches!(
            self,
            SpareCopyDecision::Kept | SpareCopyDecision::KeptInPart | SpareCopyDecision::KeptWhereLinksAllow
        )
    }
}

/// Decides whether the copies that `keepers` describes are kept, with the reason if not.
#[must_use]
pub fn decide(
    wanted: SpareCopies,
    layout: &Layout,
    shape: &Shape,
    keepers: &Keepers,
    costs: &SpareCosts,
    expected: &Expected,
) -> SpareCopyDecision {
    if wanted == SpareCopies::Off {
        return SpareCopyDecision::NotWanted;
    }
    let mut alone: Vec<(Unit, WorkerId)> = Vec::new();
    for unit in layout.all_units() {
        if let [holder] = shape.holders(layout, unit)[..] {
            alone.push((unit, holder));
        }
    }
    if alone.is_empty() {
        return SpareCopyDecision::NothingAlone;
    }
    let keeper = |unit: Unit| keepers.of_units.get(unit.index()).copied().flatten();
    let streams = alone.iter().filter_map(|(u, h)| Some((*u, *h, keeper(*u)?)));
    let streams: Vec<(Unit, WorkerId, WorkerId)> = streams.collect();
    // Where all have to fit, a part of the copies is none.
    if keepers.links_too_slow && (streams.is_empty() || wanted == SpareCopies::Auto) {
        return SpareCopyDecision::LinksTooSlow;
    }
    if streams.is_empty() {
        return SpareCopyDecision::NoKeeper;
    }
    if wanted == SpareCopies::Auto && !repays(layout, &streams, costs, expected) {
        return SpareCopyDecision::LossesTooRare;
    }
    match (streams.len() == alone.len(), keepers.links_too_slow) {
        (true, _) => SpareCopyDecision::Kept,
        (false, true) => SpareCopyDecision::KeptWhereLinksAllow,
        (false, false) => SpareCopyDecision::KeptInPart,
    }
}

/// The time in each step in which the busiest worker sends or receives, milliseconds. Links carry both directions at once.
fn busiest_link_ms(layout: &Layout, streams: &[(Unit, WorkerId, WorkerId)], costs: &SpareCosts) -> f64 {
    let (mut sent, mut received) = (BTreeMap::new(), BTreeMap::new());
    for (unit, holder, keeper) in streams {
        *sent.entry(holder).or_insert(0.0) += costs.send(layout, *unit);
        let received = if bug!(BothWaysShareLink) {
            &mut sent
        } else {
            &mut received
        };
        *received.entry(keeper).or_insert(0.0) += costs.send(layout, *unit);
    }
    let all = sent.values().chain(received.values());
    all.copied().fold(0.0, f64::max)
}

/// Whether the copies cost less than the losses that they prevent. In every step the commit waits for the worker that sends or receives
/// most: a worker sends the gradients of all its units once it has run the step, and different workers send at the same time.
fn repays(
    layout: &Layout,
    streams: &[(Unit, WorkerId, WorkerId)],
    costs: &SpareCosts,
    expected: &Expected,
) -> bool {
    let Some(redo_ms) = expected.redo_ms else {
        return !bug!(NothingToRedoWithoutStore);
    };
    let each = || streams.iter().map(|(u, _, _)| costs.send(layout, *u));
    let waited_ms = if bug!(CommitWaitsForAll) {
        each().sum()
    } else if bug!(CommitWaitsForOne) {
        each().fold(0.0, f64::max)
    } else {
        busiest_link_ms(layout, streams, costs)
    };
    waited_ms * expected.loss_ms < redo_ms * expected.step_ms
}
