//! `processes.json`.

use serde::{Deserialize, Serialize};
use varuna_plan::WorkerId;

/// The worker processes that the run's own process has started, for the next one that continues the run: it need not wait for those that have
/// certainly ended.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerProcesses {
    /// This boot of the machine, and the table of its process ids. Elsewhere the ids mean other processes.
    pub machine: String,
    /// The processes, oldest first.
    pub processes: Vec<WorkerProcess>,
}

/// A worker's process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerProcess {
    /// The worker.
    pub worker: WorkerId,
    /// Process id.
    pub process: u32,
    /// When it was started, in clock ticks since the boot. Process ids are reused.
    pub started: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_processes_read_back() {
        let processes = WorkerProcesses {
            machine: "a-boot pid:[1]".into(),
            processes: vec![WorkerProcess {
                worker: WorkerId(3),
                process: 17,
                started: 9,
            }],
        };
        let text = serde_json::to_string(&processes).unwrap();
        assert_eq!(
            text,
            r#"{"machine":"a-boot pid:[1]","processes":[{"worker":"0000000000000003","process":17,"started":9}]}"#
        );
        assert_eq!(serde_json::from_str::<WorkerProcesses>(&text).unwrap(), processes);
    }
}
