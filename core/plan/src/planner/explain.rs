//! Explains a plan: its costs, and those of the next best ones.

use super::candidate::Candidate;
use crate::document::{Recompute, ScheduleSpec, Shape, summary_of};
use crate::predict::StepParts;

/// Number of runners-up that are named.
const RUNNERS_UP: usize = 5;

/// A plan that was not chosen.
#[derive(Clone, PartialEq, Debug)]
pub struct RunnerUp {
    /// Summary of the shape, as from [`Shape::summary`].
    pub summary: String,
    /// Samples in a micro-batch.
    pub micro_batch_size: u32,
    /// Schedule, with the heaviest recompute of its stages.
    pub schedule: ScheduleSpec,
    /// Workers that it uses.
    pub workers: usize,
    /// Predicted step, milliseconds.
    pub step_ms: f64,
    /// Bubble of the shape, as in [`crate::Prediction::bubble`].
    pub bubble: f64,
    /// Why it lost, for people.
    pub why: String,
}

/// A plan with its reasons.
#[derive(Clone, PartialEq, Debug)]
pub struct Explained {
    /// The plan: what [`crate::Planner::plan`] gives.
    pub shape: Shape,
    /// Where its step's time goes.
    pub parts: StepParts,
    /// Memory that each stage of each pipeline needs, bytes.
    pub memory_bytes: Vec<Vec<u64>>,
    /// State that workers have to fetch for this plan, bytes.
    pub moved_bytes: u64,
    /// The next best, fastest first.
    pub runners_up: Vec<RunnerUp>,
    /// Plans that were scored in closed form.
    pub scored: u64,
    /// How many of those were simulated.
    pub simulated: usize,
}

/// The next best of these after the chosen one, each kind once. `late`: the one that would have been chosen if there were more time; it
/// comes first.
pub(super) fn runners_up(chosen: &Candidate, late: Option<&Candidate>, found: &[Candidate]) -> Vec<RunnerUp> {
    let name = |c: &Candidate| (summary(c), c.work.micro_batch_size, heaviest(c));
    let mut seen = vec![name(chosen)];
    let mut runners_up = Vec::new();
    if let Some(late) = late {
        seen.push(name(late));
        runners_up.push(runner_up(late, why_late(chosen, late)));
    }
    for c in found {
        if runners_up.len() == RUNNERS_UP || seen.contains(&name(c)) {
            continue;
        }
        seen.push(name(c));
        runners_up.push(runner_up(c, why(chosen, c)));
    }
    runners_up
}

fn runner_up(candidate: &Candidate, why: String) -> RunnerUp {
    RunnerUp {
        summary: summary(candidate),
        micro_batch_size: candidate.work.micro_batch_size,
        schedule: ScheduleSpec {
            kind: candidate.work.kind,
            recompute: heaviest(candidate),
        },
        workers: candidate.workers(),
        step_ms: candidate.step_ms,
        bubble: candidate.bubble,
        why,
    }
}

/// Why a plan was not chosen that would have been if leaving workers had more time.
fn why_late(chosen: &Candidate, late: &Candidate) -> String {
    let by = chosen.step_ms - late.step_ms;
    let faster = match by > 0.0 {
        true => format!("{by:.1} ms faster"),
        false => "as good".to_owned(),
    };
    format!("{faster}, but what only leaving workers hold would come too late")
}

/// The same as part of a plan's reason, for people.
pub(super) fn haste(late: &Candidate, deadline_ms: f64) -> String {
    format!(
        "{} ({:.1} ms a step) would not have what only leaving workers hold within the {:.1} s that are left",
        summary(late),
        late.step_ms,
        deadline_ms / 1e3
    )
}

fn summary(candidate: &Candidate) -> String {
    summary_of(candidate.work.depths(), candidate.work.kind)
}

/// The heaviest recompute of its stages.
fn heaviest(candidate: &Candidate) -> Recompute {
    let stages = candidate.pipelines().iter().flat_map(|p| &p.stages);
    let heaviest = stages.map(|s| s.recompute).max();
    heaviest.unwrap_or(candidate.recompute)
}

/// Why the loser was not chosen: the part of its step that takes longest compared with the chosen plan's, or what decided between equals.
fn why(chosen: &Candidate, lost: &Candidate) -> String {
    let by = lost.step_ms - chosen.step_ms;
    if by <= 0.0 || by / chosen.step_ms < 1e-4 {
        let (ours, theirs) = (chosen.pipelines().len(), lost.pipelines().len());
        return if theirs < 2 && ours > 1 {
            "as fast, but one pipeline holds each segment's state only once".into()
        } else if lost.workers() > chosen.workers() {
            "as fast, with more workers".into()
        } else if by < 0.0 {
            format!("{:.1} ms faster, but more state would have to move", -by)
        } else {
            "as fast, but more state would have to move".into()
        };
    }
    let more = |of: fn(&StepParts) -> f64| of(&lost.parts) - of(&chosen.parts);
    let parts = [
        (more(|p| p.steady_ms), "at the pace of its slowest stage"),
        (more(|p| p.fill_ms), "to fill and drain its pipelines"),
        (more(|p| p.rings_ms), "for gradient rings and optimizer"),
    ];
    let largest = parts.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
    let (ms, what) = largest.unwrap_or_default();
    format!("{by:.1} ms slower: {ms:.1} ms more {what}")
}
