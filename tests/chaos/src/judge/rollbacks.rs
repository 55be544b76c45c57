//! Whether a recovery that gave up committed steps had a reason for that.

use super::{Evidence, Life, Problem, Verdict, protocol};
use varuna_plan::{Generation, WorkerId};
use varuna_protocol::coordinator::Event;

/// Time that a stream may need to come back after the end of a fault. Until then its worker may be silent.
const BACK_MS: u64 = 6_000;
/// If no fence was logged for a recovery, it began at most this long before its end.
const UNKNOWN_BEGIN_MS: u64 = 40_000;

/// A recovery goes back before a committed step only if all holders of some unit had ended or could not answer.
pub(super) fn judge(evidence: &Evidence, verdict: &mut Verdict) {
    let mut running = Generation(0);
    let mut fenced: Option<u64> = None;
    // Commits before this time belong to a history that was given up, or are known to be part of the base.
    let mut since = 0;
    for (time, event) in protocol(evidence) {
        match event {
            Event::Running { generation } | Event::Switched { generation } => {
                running = running.max(*generation);
                fenced = None;
            }
            Event::Fenced { .. } => {
                fenced.get_or_insert(time);
            }
            Event::Resumed {
                generation,
                base,
                restored,
                ..
            } => {
                let (reached, ran_by) = reached(evidence, since, time);
                verdict.figures.restores += usize::from(*restored && base.step.0 > 0);
                since = time;
                let lost = reached.saturating_sub(base.step.0);
                if lost == 0 {
                    continue;
                }
                let begin = fenced.unwrap_or(time.saturating_sub(UNKNOWN_BEGIN_MS));
                let window = (begin.saturating_sub(BACK_MS), time);
                if all_lived(evidence, running.max(ran_by), window) {
                    verdict.figures.steps_lost += lost;
                    verdict.problems.push(Problem::StepsLost {
                        lost,
                        reached,
                        base: base.step.0,
                        generation: generation.0,
                    });
                } else {
                    verdict.figures.steps_again += lost;
                }
            }
            _ => {}
        }
    }
}

/// The last step that a worker committed in this period, and the generation that ran the last published step.
fn reached(evidence: &Evidence, from: u64, to: u64) -> (u64, Generation) {
    let within = |time: u64| from < time && time <= to;
    let published = evidence.published.iter().filter(|m| within(m.time_ms));
    let ran_by = published.clone().map(|m| m.generation).max().unwrap_or_default();
    let committed = evidence.commits.iter().filter(|c| within(c.time_ms));
    let steps = published.map(|m| m.step.0).chain(committed.map(|c| c.step.0));
    (steps.max().unwrap_or(0), ran_by)
}

/// Whether each unit had a holder under this plan that was alive and could answer during the whole period.
fn all_lived(evidence: &Evidence, generation: Generation, (from, to): (u64, u64)) -> bool {
    let lived = |worker: &WorkerId| {
        let life = evidence.lives.iter().find(|l| l.worker == Some(*worker));
        life.is_some_and(|life| could_answer(life, from, to))
    };
    let holders = evidence.holders.get(&generation);
    holders.is_some_and(|units| units.iter().all(|holders| holders.iter().any(lived)))
}

fn could_answer(life: &Life, from: u64, to: u64) -> bool {
    let impaired = life
        .impaired_ms
        .iter()
        .any(|(begin, end)| *begin <= to && from <= *end);
    life.ended_ms.is_none_or(|end| end > to) && !impaired
}
