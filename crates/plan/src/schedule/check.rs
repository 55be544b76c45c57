//! The one schedule checker: judges the lists of all stages of a pipeline, whoever made them.

use super::Instruction;
use crate::document::{Recompute, ScheduleSpec};
use std::collections::BTreeSet;

/// Why a schedule must not run. `stage` counts from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// Forwards or backwards are missing, repeated or out of order.
    #[error("stage {stage}: expected {expected} as its next {what}, found {found}")]
    Order {
        /// Which stage.
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
        /// Which stage.
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
        /// Which stage.
        stage: usize,
        /// Of which micro-batch.
        micro_batch: u32,
    },
    /// A recompute without need, twice, not directly before its backward, or missing.
    #[error("stage {stage}: the recompute of micro-batch {micro_batch} is missing or out of place")]
    Recompute {
        /// Which stage.
        stage: usize,
        /// Of which micro-batch.
        micro_batch: u32,
    },
    /// More micro-batches are kept than the bound allows.
    #[error("stage {stage} keeps {found} micro-batches, allowed are {allowed}")]
    Stash {
        /// Which stage.
        stage: usize,
        /// Most at one time.
        found: u32,
        /// The bound.
        allowed: u32,
    },
    /// Every stage waits for another.
    #[error("deadlock: stage {stage} waits for ever at its instruction {position}")]
    Deadlock {
        /// The first stage that waits.
        stage: usize,
        /// Index in its list.
        position: usize,
    },
}

/// Judges the lists of all stages, first stage first, each by its own schedule. Sends never block; a forward waits for the previous stage's forward, a
/// backward for the next stage's backward of the same micro-batch. `stash_allowed[s]` bounds what stage s keeps.
///
/// # Errors
/// The first violation found.
pub fn check(
    specs: &[ScheduleSpec],
    lists: &[Vec<Instruction>],
    micro_batches: u32,
    stash_allowed: &[u32],
) -> Result<(), ScheduleError> {
    for (stage, (list, spec)) in lists.iter().zip(specs).enumerate() {
        check_stage(
            spec,
            stage,
            list,
            micro_batches,
            stash_allowed.get(stage).copied().unwrap_or(0),
        )?;
    }
    check_progress(lists)
}

fn check_stage(
    spec: &ScheduleSpec,
    stage: usize,
    list: &[Instruction],
    micro_batches: u32,
    allowed: u32,
) -> Result<(), ScheduleError> {
    let (mut forwards, mut backwards, mut stash) = (0u32, 0u32, 0u32);
    for (position, instruction) in list.iter().enumerate() {
        match *instruction {
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
                if !needed || list.get(position + 1) != Some(&Instruction::Backward(m)) {
                    return Err(ScheduleError::Recompute {
                        stage,
                        micro_batch: m,
                    });
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
                let kept =
                    before == Some(Instruction::Forward(m)) || before == Some(Instruction::Recompute(m));
                if spec.recompute != Recompute::None && !kept {
                    return Err(ScheduleError::Recompute {
                        stage,
                        micro_batch: m,
                    });
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

/// Runs all lists against each other until nothing moves any more.
fn check_progress(lists: &[Vec<Instruction>]) -> Result<(), ScheduleError> {
    let mut at = vec![0; lists.len()];
    let mut done: BTreeSet<(usize, Instruction)> = BTreeSet::new();
    loop {
        let mut moved = false;
        for (stage, list) in lists.iter().enumerate() {
            while let Some(instruction) = list.get(at[stage]) {
                let ready = match instruction {
                    Instruction::Forward(_) => stage == 0 || done.contains(&(stage - 1, *instruction)),
                    Instruction::Backward(_) => {
                        stage + 1 == lists.len() || done.contains(&(stage + 1, *instruction))
                    }
                    Instruction::Recompute(_) => true,
                };
                if !ready {
                    break;
                }
                done.insert((stage, *instruction));
                at[stage] += 1;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    match (0..lists.len()).find(|s| at[*s] < lists[*s].len()) {
        Some(stage) => Err(ScheduleError::Deadlock {
            stage,
            position: at[stage],
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::ScheduleKind;
    use crate::schedule::{generate, stash_max};
    use proptest::prelude::*;

    fn any_spec() -> impl Strategy<Value = ScheduleSpec> {
        let kind = prop_oneof![
            Just(ScheduleKind::Gpipe),
            (1.0..4.0f64).prop_map(|w| ScheduleKind::OneForwardOneBackward { warmup_factor: w }),
        ];
        let recompute = prop_oneof![
            Just(Recompute::None),
            Just(Recompute::Selective),
            Just(Recompute::Full)
        ];
        (kind, recompute).prop_map(|(kind, recompute)| ScheduleSpec { kind, recompute })
    }

    fn lists(spec: &ScheduleSpec, stages: usize, n: u32) -> (Vec<Vec<Instruction>>, Vec<u32>) {
        (0..stages)
            .map(|s| (generate(spec, stages, s, n), stash_max(spec.kind, stages, s, n)))
            .unzip()
    }

    proptest! {
        #[test]
        fn every_generated_schedule_is_sound(spec in any_spec(), stages in 1usize..12, n in 1u32..24) {
            let (lists, allowed) = lists(&spec, stages, n);
            prop_assert_eq!(check(&vec![spec; lists.len()], &lists, n, &allowed), Ok(()));
        }

        #[test]
        fn stages_that_keep_differently_fit_each_other(
            stages in prop::collection::vec(any_spec(), 1..8), n in 1u32..16
        ) {
            let kind = stages[0].kind;
            let specs: Vec<_> = stages.iter().map(|s| ScheduleSpec { kind, ..*s }).collect();
            let of = |(s, spec): (usize, &ScheduleSpec)| generate(spec, specs.len(), s, n);
            let lists: Vec<_> = specs.iter().enumerate().map(of).collect();
            let allowed: Vec<_> = (0..specs.len()).map(|s| stash_max(kind, specs.len(), s, n)).collect();
            prop_assert_eq!(check(&specs, &lists, n, &allowed), Ok(()));
        }

        #[test]
        fn swapping_two_different_instructions_of_a_tight_schedule_is_refused(
            stages in 2usize..6, n in 2u32..10, stage in 0usize..6, a in 0usize..40, b in 0usize..40
        ) {
            let spec = ScheduleSpec {
                kind: ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 },
                recompute: Recompute::Full,
            };
            let (mut lists, allowed) = lists(&spec, stages, n);
            let stage = stage % (stages - 1); // the last stage has no recompute
            let len = lists[stage].len();
            let (a, b) = (a % len, b % len);
            prop_assume!(a != b);
            lists[stage].swap(a, b);
            prop_assert!(check(&vec![spec; lists.len()], &lists, n, &allowed).is_err());
        }

        #[test]
        fn leaving_out_or_repeating_an_instruction_is_refused(
            spec in any_spec(), stages in 1usize..6, n in 1u32..10, at in 0usize..60, repeat in any::<bool>()
        ) {
            let (mut lists, allowed) = lists(&spec, stages, n);
            let at = at % lists[0].len();
            if repeat {
                let again = lists[0][at];
                lists[0].insert(at, again);
            } else {
                lists[0].remove(at);
            }
            prop_assert!(check(&vec![spec; lists.len()], &lists, n, &allowed).is_err());
        }
    }

    #[test]
    fn stages_that_wait_for_each_other_are_a_deadlock() {
        let f = |micro_batch| Instruction::Forward(micro_batch);
        let b = |micro_batch| Instruction::Backward(micro_batch);
        let spec = ScheduleSpec {
            kind: ScheduleKind::Gpipe,
            recompute: Recompute::None,
        };
        // Stage 0 wants the gradient of 0 before it sends 1; stage 1 wants 1 before it sends the gradient of 0.
        let lists = vec![vec![f(0), b(0), f(1), b(1)], vec![f(0), f(1), b(0), b(1)]];
        let verdict = check(&[spec; 2], &lists, 2, &[2, 2]);
        assert_eq!(
            verdict,
            Err(ScheduleError::Deadlock {
                stage: 0,
                position: 1
            })
        );
    }
}
