//! The only schedule checker: it judges the task lists of all workers of a pipeline, however they were made.

use super::{Instruction, Task};
use crate::document::{Recompute, ScheduleSpec};
use std::collections::BTreeSet;

/// Why a schedule must not run. `stage` counts from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// Forwards or backwards are missing, repeated or out of order.
    #[error("stage {stage}: expected {expected} as its next {what}, found {found}")]
    Order {
        /// Index of the stage in its pipeline.
        stage: usize,
        /// Forward or backward.
        what: &'static str,
        /// The micro-batch that was due.
        expected: u32,
        /// The micro-batch in the list.
        found: u32,
    },
    /// Not all micro-batches are done.
    #[error("stage {stage} runs {found} {what}s of {expected} micro-batches")]
    Count {
        /// Index of the stage in its pipeline.
        stage: usize,
        /// Forward or backward.
        what: &'static str,
        /// Micro-batches of the step.
        expected: u32,
        /// Found in the list.
        found: u32,
    },
    /// A backward before its forward.
    #[error("stage {stage} runs the backward of micro-batch {micro_batch} before its forward")]
    Early {
        /// Index of the stage in its pipeline.
        stage: usize,
        /// Number of the micro-batch.
        micro_batch: u32,
    },
    /// A recompute without need, twice, not directly before its backward, or missing.
    #[error("stage {stage}: the recompute of micro-batch {micro_batch} is missing or out of place")]
    Recompute {
        /// Index of the stage in its pipeline.
        stage: usize,
        /// Number of the micro-batch.
        micro_batch: u32,
    },
    /// More micro-batches are kept than the bound allows.
    #[error("stage {stage} keeps {found} micro-batches, allowed are {allowed}")]
    Stash {
        /// Index of the stage in its pipeline.
        stage: usize,
        /// Most at one time.
        found: u32,
        /// The bound.
        allowed: u32,
    },
    /// A worker is told to run a stage that is not its own.
    #[error("worker {worker}: its task {position} is of stage {stage}, which is not its own")]
    Foreign {
        /// Which worker of the pipeline.
        worker: usize,
        /// Index in its list.
        position: usize,
        /// The stage of the task.
        stage: usize,
    },
    /// Every worker waits for another.
    #[error("deadlock: worker {worker} waits for ever at its task {position}")]
    Deadlock {
        /// The first worker that waits.
        worker: usize,
        /// Index in its list.
        position: usize,
    },
}

/// Judges the task lists of all workers, first worker first, each stage by its own schedule. Sends never block. A forward waits for the
/// previous stage's forward, a backward for the next stage's backward of the same micro-batch. Stage s is on the worker s modulo the number
/// of workers. `stash_allowed[s]` limits the micro-batches that stage s keeps.
///
/// # Errors
/// The first violation found.
pub fn check(
    specs: &[ScheduleSpec],
    lists: &[Vec<Task>],
    micro_batches: u32,
    stash_allowed: &[u32],
) -> Result<(), ScheduleError> {
    for (worker, list) in lists.iter().enumerate() {
        let own = |stage: usize| stage < specs.len() && stage % lists.len() == worker;
        if let Some(position) = list.iter().position(|t| !own(t.stage)) {
            return Err(ScheduleError::Foreign {
                worker,
                position,
                stage: list[position].stage,
            });
        }
    }
    for (stage, spec) in specs.iter().enumerate() {
        let list = lists
            .get(stage % lists.len().max(1))
            .map_or(&[][..], Vec::as_slice);
        let allowed = stash_allowed.get(stage).copied().unwrap_or(0);
        check_stage(spec, stage, list, micro_batches, allowed)?;
    }
    check_progress(specs.len(), lists)
}

fn check_stage(
    spec: &ScheduleSpec,
    stage: usize,
    list: &[Task],
    micro_batches: u32,
    allowed: u32,
) -> Result<(), ScheduleError> {
    let (mut forwards, mut backwards, mut stash) = (0u32, 0u32, 0u32);
    let of = |instruction| Task { stage, instruction };
    let own = |(_, task): &(usize, &Task)| task.stage == stage;
    let misplaced = |micro_batch| Err(ScheduleError::Recompute { stage, micro_batch });
    for (position, task) in list.iter().enumerate().filter(own) {
        match task.instruction {
            Instruction::Forward(m) if m != forwards => {
                return Err(ScheduleError::Order {
                    stage,
                    what: "forward",
                    expected: forwards,
                    found: m,
                });
            }
            Instruction::Forward(_) => {
                forwards += 1;
                stash = stash.max(forwards - backwards);
            }
            Instruction::Recompute(m) => {
                let needed = spec.recompute != Recompute::None && m < forwards;
                if !needed || list.get(position + 1) != Some(&of(Instruction::Backward(m))) {
                    return misplaced(m);
                }
            }
            Instruction::Backward(m) if m != backwards => {
                return Err(ScheduleError::Order {
                    stage,
                    what: "backward",
                    expected: backwards,
                    found: m,
                });
            }
            Instruction::Backward(m) => {
                if m >= forwards {
                    return Err(ScheduleError::Early {
                        stage,
                        micro_batch: m,
                    });
                }
                let before = position.checked_sub(1).map(|p| list[p]);
                let kept = [Instruction::Forward(m), Instruction::Recompute(m)].map(|i| Some(of(i)));
                let kept = kept.contains(&before);
                if spec.recompute != Recompute::None && !kept {
                    return misplaced(m);
                }
                backwards += 1;
            }
        }
    }
    for (what, found) in [("forward", forwards), ("backward", backwards)] {
        if found != micro_batches {
            return Err(ScheduleError::Count {
                stage,
                what,
                expected: micro_batches,
                found,
            });
        }
    }
    if stash > allowed {
        return Err(ScheduleError::Stash {
            stage,
            found: stash,
            allowed,
        });
    }
    Ok(())
}

/// Runs all lists against each other until no task can run any more.
fn check_progress(stages: usize, lists: &[Vec<Task>]) -> Result<(), ScheduleError> {
    let mut at = vec![0; lists.len()];
    let mut done: BTreeSet<Task> = BTreeSet::new();
    loop {
        let mut moved = false;
        for (worker, list) in lists.iter().enumerate() {
            while let Some(task) = list.get(at[worker]) {
                let by = |stage: usize| done.contains(&Task { stage, ..*task });
                let ready = match task.instruction {
                    Instruction::Forward(_) => task.stage == 0 || by(task.stage - 1),
                    Instruction::Backward(_) => task.stage + 1 == stages || by(task.stage + 1),
                    Instruction::Recompute(_) => true,
                };
                if !ready {
                    break;
                }
                done.insert(*task);
                at[worker] += 1;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    match (0..lists.len()).find(|w| at[*w] < lists[*w].len()) {
        Some(worker) => Err(ScheduleError::Deadlock {
            worker,
            position: at[worker],
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::ScheduleKind;
    use crate::schedule::{lists, stash_max};
    use proptest::prelude::*;

    fn any_spec() -> impl Strategy<Value = ScheduleSpec> {
        let kind = prop_oneof![
            Just(ScheduleKind::Gpipe),
            (1.0..4.0f64).prop_map(|w| ScheduleKind::OneForwardOneBackward { warmup_factor: w }),
            (2u32..5).prop_map(|chunks| ScheduleKind::Interleaved { chunks }),
        ];
        let recompute = prop_oneof![
            Just(Recompute::None),
            Just(Recompute::Selective),
            Just(Recompute::Full)
        ];
        (kind, recompute).prop_map(|(kind, recompute)| ScheduleSpec { kind, recompute })
    }

    /// Schedules, lists and bounds of a pipeline of this many workers, and its micro-batches: `n`, or the next whole groups.
    fn pipeline(
        spec: ScheduleSpec,
        workers: usize,
        n: u32,
    ) -> (Vec<ScheduleSpec>, Vec<Vec<Task>>, u32, Vec<u32>) {
        let stages = workers * spec.kind.chunks();
        let n = match spec.kind.chunks() {
            1 => n,
            _ => n.next_multiple_of(u32::try_from(workers).unwrap()),
        };
        let allowed = (0..stages).map(|s| stash_max(spec.kind, stages, s, n)).collect();
        let specs = vec![spec; stages];
        let lists = lists(&specs, n);
        (specs, lists, n, allowed)
    }

    proptest! {
        #[test]
        fn every_generated_schedule_is_sound(spec in any_spec(), workers in 1usize..12, n in 1u32..24) {
            let (specs, lists, n, allowed) = pipeline(spec, workers, n);
            prop_assert_eq!(check(&specs, &lists, n, &allowed), Ok(()));
            // The bound is not greater than the number of activations that are kept.
            for (stage, most) in allowed.iter().enumerate() {
                let mut less = allowed.clone();
                less[stage] = most - 1;
                prop_assert!(check(&specs, &lists, n, &less).is_err());
            }
        }

        #[test]
        fn stages_that_keep_differently_fit_each_other(
            stages in prop::collection::vec(any_spec(), 1..8), n in 1u32..16
        ) {
            let kind = stages[0].kind;
            let specs: Vec<_> = stages.iter().map(|s| ScheduleSpec { kind, ..*s }).collect();
            prop_assume!(specs.len().is_multiple_of(kind.chunks()));
            let n = n.next_multiple_of(u32::try_from(kind.workers(specs.len())).unwrap());
            let lists = lists(&specs, n);
            let allowed: Vec<_> = (0..specs.len()).map(|s| stash_max(kind, specs.len(), s, n)).collect();
            prop_assert_eq!(check(&specs, &lists, n, &allowed), Ok(()));
        }

        #[test]
        fn swapped_instructions_are_refused(
            stages in 2usize..6, n in 2u32..10, stage in 0usize..6, a in 0usize..40, b in 0usize..40
        ) {
            let spec = ScheduleSpec {
                kind: ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 },
                recompute: Recompute::Full,
            };
            let (specs, mut lists, n, allowed) = pipeline(spec, stages, n);
            let stage = stage % (stages - 1); // the last stage has no recompute
            let len = lists[stage].len();
            let (a, b) = (a % len, b % len);
            prop_assume!(a != b);
            lists[stage].swap(a, b);
            prop_assert!(check(&specs, &lists, n, &allowed).is_err());
        }

        #[test]
        fn leaving_out_or_repeating_an_instruction_is_refused(
            spec in any_spec(), workers in 1usize..6, n in 1u32..10, at in 0usize..60, repeat in any::<bool>()
        ) {
            let (specs, mut lists, n, allowed) = pipeline(spec, workers, n);
            let at = at % lists[0].len();
            if repeat {
                let again = lists[0][at];
                lists[0].insert(at, again);
            } else {
                lists[0].remove(at);
            }
            prop_assert!(check(&specs, &lists, n, &allowed).is_err());
        }
    }

    #[test]
    fn interleaved_groups_that_are_not_whole_are_a_deadlock() {
        let spec = ScheduleSpec {
            kind: ScheduleKind::Interleaved { chunks: 2 },
            recompute: Recompute::None,
        };
        let lists = lists(&[spec; 8], 6);
        let verdict = check(&[spec; 8], &lists, 6, &[9; 8]);
        assert!(verdict.is_err(), "{verdict:?}");
    }

    #[test]
    fn a_task_on_another_stages_worker_is_refused() {
        let spec = ScheduleSpec {
            kind: ScheduleKind::Gpipe,
            recompute: Recompute::None,
        };
        let mut lists = lists(&[spec; 2], 1);
        lists.swap(0, 1);
        let expected = ScheduleError::Foreign {
            worker: 0,
            position: 0,
            stage: 1,
        };
        assert_eq!(check(&[spec; 2], &lists, 1, &[1, 1]), Err(expected));
    }

    #[test]
    fn stages_that_wait_for_each_other_are_a_deadlock() {
        let task = |(stage, instruction)| Task { stage, instruction };
        let f = |m| Instruction::Forward(m);
        let b = |m| Instruction::Backward(m);
        let spec = ScheduleSpec {
            kind: ScheduleKind::Gpipe,
            recompute: Recompute::None,
        };
        // Stage 0 needs the gradient of 0 before it sends 1, and stage 1 needs 1 before it sends the gradient of 0.
        let lists = [[f(0), b(0), f(1), b(1)], [f(0), f(1), b(0), b(1)]];
        let lists = [0, 1].map(|s| lists[s].map(|i| task((s, i))).to_vec());
        let verdict = check(&[spec; 2], &lists, 2, &[2, 2]);
        assert_eq!(
            verdict,
            Err(ScheduleError::Deadlock {
                worker: 0,
                position: 1
            })
        );
    }
}
