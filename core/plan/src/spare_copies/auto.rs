//! Whether spare copies repay.

use super::{SpareCopies, SpareCosts};
use crate::document::Shape;
use crate::ids::{Unit, WorkerId};
use crate::layout::Layout;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A link may carry gradients for spare copies in so much of a step: activations and rings need the rest.
const LINK_SHARE_MAX: f64 = 0.5;

/// What is expected of the run, milliseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Expected {
    /// A step.
    pub step_ms: f64,
    /// Until the next change of workers, by what was observed of them. Changes are counted, whether losses or not.
    pub change_ms: f64,
    /// What is trained again after a loss that leaves no copy; none where nobody knows how much, or there is no store, and everything would be.
    pub redo_ms: Option<f64>,
}

impl Expected {
    /// What is trained again after a loss, where checkpoints are made every so many milliseconds, every so many steps, or both: half of what comes
    /// between two of them.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "steps between two checkpoints")]
    pub fn redo_ms(step_ms: f64, every_ms: Option<f64>, every_steps: Option<u64>) -> Option<f64> {
        let by_steps = every_steps.map(|steps| steps as f64 * step_ms);
        let between = every_ms.into_iter().chain(by_steps).reduce(f64::min);
        between.map(|ms| ms / 2.0)
    }
}

/// What became of the wish for spare copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// Copies are kept of all units that one worker alone holds.
    Kept,
    /// Copies are kept of some of them; for the others no worker that can has room.
    KeptInPart,
    /// The job does not want any.
    NotWanted,
    /// Every unit has several holders.
    NothingAlone,
    /// No worker that knows how to keep copies has room for one, beside one that knows how to be followed.
    NoKeeper,
    /// The gradients would occupy some worker's link for more than half of a step.
    LinksTooSlow,
    /// What losses cost as often as they happen is less than the copies cost in every step.
    LossesTooRare,
}

impl Verdict {
    /// Copies are kept.
    #[must_use]
    pub fn keeps(self) -> bool {
        matches!(self, Verdict::Kept | Verdict::KeptInPart)
    }
}

/// Whether the copies that `keepers` describes are to be kept, and why not.
#[must_use]
pub fn decide(
    wanted: SpareCopies,
    layout: &Layout,
    shape: &Shape,
    keepers: &[Option<WorkerId>],
    costs: &SpareCosts,
    expected: &Expected,
) -> Verdict {
    if wanted == SpareCopies::Off {
        return Verdict::NotWanted;
    }
    let mut alone: Vec<(Unit, WorkerId)> = Vec::new();
    for unit in layout.all_units() {
        if let [holder] = shape.holders(layout, unit)[..] {
            alone.push((unit, holder));
        }
    }
    if alone.is_empty() {
        return Verdict::NothingAlone;
    }
    let keeper = |unit: Unit| keepers.get(unit.index()).copied().flatten();
    let streams = alone.iter().filter_map(|(u, h)| Some((*u, *h, keeper(*u)?)));
    let streams: Vec<(Unit, WorkerId, WorkerId)> = streams.collect();
    if streams.is_empty() {
        return Verdict::NoKeeper;
    }
    if wanted == SpareCopies::Auto {
        if busiest_link_ms(layout, &streams, costs) > LINK_SHARE_MAX * expected.step_ms {
            return Verdict::LinksTooSlow;
        }
        if !repays(layout, &streams, costs, expected) {
            return Verdict::LossesTooRare;
        }
    }
    if streams.len() == alone.len() {
        Verdict::Kept
    } else {
        Verdict::KeptInPart
    }
}

/// How long the busiest worker sends, or receives, in each step. Links carry both ways at once.
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

/// In every step the commit waits for whoever sends, or receives, most: a worker sends the gradients of all its units once it has run the step. What
/// different workers send travels at once.
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
    waited_ms * expected.change_ms < redo_ms * expected.step_ms
}
