//! `events.jsonl`.

use serde::{Deserialize, Serialize};
use varuna_plan::{StateId, Step};
use varuna_protocol::Event;

/// One line of `events.jsonl`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventEntry {
    /// What happened: its kind in the field `event`, and its own fields, on one level with the two below.
    #[serde(flatten)]
    pub event: LoggedEvent,
    /// For `resumed` from a checkpoint: the number of published steps that are run again.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub steps_lost: Option<u64>,
    /// When it was logged: milliseconds since 1970.
    pub time_ms: u64,
}

/// What the event log holds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LoggedEvent {
    /// An event of the protocol; [`Event::Committed`] goes to `metrics.jsonl` instead.
    Protocol(Event),
    /// An event of the checkpoint store.
    Checkpoint(CheckpointEvent),
}

/// What changed in the store of a run's checkpoints.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum CheckpointEvent {
    /// A newer checkpoint is complete.
    Checkpointed {
        /// Steps done in it.
        step: Step,
        /// Identity of its state.
        state: StateId,
    },
    /// The store does not answer, or refuses, or workers cannot upload to it.
    CheckpointsFail {
        /// The error of the store, or of the first such worker with its name.
        why: String,
        /// Step of the newest checkpoint that is known.
        newest_step: Option<Step>,
    },
    /// Neither is so any more.
    CheckpointsWork {
        /// Step of the newest checkpoint that is known.
        newest_step: Option<Step>,
    },
    /// All steps are done, and the run waits for some time already until the checkpoint of the last one is complete.
    LastCheckpointAwaited {
        /// The last step.
        step: Step,
        /// Why checkpoints fail; none if they do not.
        why: Option<String>,
    },
    /// The newest checkpoint is older than a few save intervals.
    CheckpointStale {
        /// Step of the newest checkpoint; 0 where there is none.
        newest_step: Step,
        /// Steps committed since.
        steps_behind: u64,
    },
    /// A worker has read a shard as damaged that the coordinator has found sound: its machine may be bad.
    ShardMisread {
        /// Identity of the checkpoint's state.
        state: StateId,
        /// The shard's unit, as in its file's name.
        unit: String,
        /// The worker and its machine.
        by: String,
    },
    /// Another run writes at this run's checkpoint location, so this run ends.
    CheckpointsTaken {
        /// Name of the other run.
        by: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_plan::state::Chain;
    use varuna_plan::{Generation, WorkerId};

    fn check(event: LoggedEvent, steps_lost: Option<u64>, line: &str) {
        let entry = EventEntry {
            event,
            steps_lost,
            time_ms: 5,
        };
        assert_eq!(serde_json::to_string(&entry).unwrap(), line);
        assert_eq!(serde_json::from_str::<EventEntry>(line).unwrap(), entry);
    }

    #[test]
    fn a_misread_shard_is_one_flat_object_too() {
        let state = StateId {
            run_gen: Generation(2),
            step: Step(100),
            chain: Chain(7),
        };
        let misread = CheckpointEvent::ShardMisread {
            state,
            unit: "segment-001".into(),
            by: "w7 on node-3".into(),
        };
        check(
            LoggedEvent::Checkpoint(misread),
            None,
            r#"{"event":"shardMisread","state":{"run_gen":2,"step":100,"chain":"0000000000000007"},"unit":"segment-001","by":"w7 on node-3","timeMs":5}"#,
        );
    }

    #[test]
    fn what_is_wrong_with_a_store_reads_back() {
        let checkpoint = LoggedEvent::Checkpoint;
        let cases = [
            (
                checkpoint(CheckpointEvent::CheckpointsFail {
                    why: "403 Forbidden".into(),
                    newest_step: None,
                }),
                None,
                r#"{"event":"checkpointsFail","why":"403 Forbidden","newestStep":null,"timeMs":5}"#,
            ),
            (
                checkpoint(CheckpointEvent::CheckpointsWork {
                    newest_step: Some(Step(20)),
                }),
                None,
                r#"{"event":"checkpointsWork","newestStep":20,"timeMs":5}"#,
            ),
            (
                checkpoint(CheckpointEvent::LastCheckpointAwaited {
                    step: Step(20),
                    why: None,
                }),
                None,
                r#"{"event":"lastCheckpointAwaited","step":20,"why":null,"timeMs":5}"#,
            ),
        ];
        for (event, steps_lost, line) in cases {
            check(event, steps_lost, line);
        }
    }

    #[test]
    fn an_entry_is_one_flat_object_and_reads_back() {
        let state = StateId {
            run_gen: Generation(2),
            step: Step(100),
            chain: Chain(7),
        };
        let protocol = LoggedEvent::Protocol;
        let checkpoint = LoggedEvent::Checkpoint;
        let cases = [
            (
                protocol(Event::WorkerLost {
                    worker: WorkerId(3),
                    name: "w3".into(),
                }),
                None,
                r#"{"event":"workerLost","worker":"0000000000000003","name":"w3","timeMs":5}"#,
            ),
            (
                protocol(Event::Resumed {
                    generation: Generation(3),
                    base: state,
                    finished: false,
                    restored: true,
                }),
                Some(20),
                r#"{"event":"resumed","generation":3,"base":{"run_gen":2,"step":100,"chain":"0000000000000007"},"finished":false,"restored":true,"stepsLost":20,"timeMs":5}"#,
            ),
            (
                checkpoint(CheckpointEvent::Checkpointed {
                    step: Step(100),
                    state,
                }),
                None,
                r#"{"event":"checkpointed","step":100,"state":{"run_gen":2,"step":100,"chain":"0000000000000007"},"timeMs":5}"#,
            ),
            (
                checkpoint(CheckpointEvent::CheckpointStale {
                    newest_step: Step(20),
                    steps_behind: 61,
                }),
                None,
                r#"{"event":"checkpointStale","newestStep":20,"stepsBehind":61,"timeMs":5}"#,
            ),
            (
                checkpoint(CheckpointEvent::CheckpointsTaken {
                    by: "default/other".into(),
                }),
                None,
                r#"{"event":"checkpointsTaken","by":"default/other","timeMs":5}"#,
            ),
        ];
        for (event, steps_lost, line) in cases {
            check(event, steps_lost, line);
        }
    }
}
