//! Systems that restart the job at a change, on the same trace and against the same ideal: a model of published costs, not a
//! run of those systems (`docs/guides/replay.md` names the sources).

use serde::Serialize;
use varuna_sim::replay::{Ideal, Trace};

/// The published cost of a change.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RestartSystem {
    /// Name of the system.
    pub name: &'static str,
    /// Seconds without training after nodes left.
    pub shrink_s: f64,
    /// Seconds without training after nodes came.
    pub grow_s: f64,
    /// Training that is done again at each change, seconds.
    pub again_s: f64,
}

const fn system(name: &'static str, shrink_s: f64, grow_s: f64, again_s: f64) -> RestartSystem {
    RestartSystem {
        name,
        shrink_s,
        grow_s,
        again_s,
    }
}

/// The systems that the comparison shows, slowest first.
pub const SYSTEMS: [RestartSystem; 7] = [
    system("Varuna (2022 code), noticed", 172.0, 172.0, 0.0),
    system("FlashRecovery", 150.0, 150.0, 3.0),
    system("restart, checkpoint every 10 min", 60.0, 60.0, 300.0),
    system("HyperPod checkpointless", 110.0, 60.0, 3.0),
    system("Parcae", 54.3, 28.8, 14.0),
    system("DeadPool", 40.0, 40.0, 3.0),
    system("TrainMover", 20.0, 20.0, 3.0),
];

/// What a restart-based system would have trained.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Restarted {
    /// The system, with its costs.
    #[serde(flatten)]
    pub system: RestartSystem,
    /// Trained / ideal when every change is taken up at once.
    pub goodput: f64,
    /// Trained / ideal when nodes that came wait until a change repays itself, the better of the two.
    pub patient: f64,
}

/// All of [`SYSTEMS`] on a trace. Kind to them: best plans, free of transfers, no loss of the last holder of a segment.
#[must_use]
pub fn restarts(trace: &Trace, ideal: &Ideal) -> Vec<Restarted> {
    let of = |s: &RestartSystem| {
        let greedy = goodput(trace, ideal, s, false);
        Restarted {
            system: *s,
            goodput: greedy,
            patient: greedy.max(goodput(trace, ideal, s, true)),
        }
    };
    SYSTEMS.iter().map(of).collect()
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds of a trace")]
fn goodput(trace: &Trace, ideal: &Ideal, system: &RestartSystem, patient: bool) -> f64 {
    let counts = trace.counts();
    let seconds = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e9;
    let mean = seconds(trace.start_ns(), trace.end_ns()) / counts.len() as f64;
    let (mut trained, mut whole) = (0.0, 0.0);
    // Of the running plan; and until when nothing is trained.
    let (mut rate, mut paused_s) = (0.0f64, 0.0f64);
    for (i, pair) in counts.windows(2).enumerate() {
        let (at, n) = pair[0];
        let length = seconds(at, pair[1].0);
        let best = ideal.rate(n) * 1e9;
        whole += best * length;
        let left = !trace.moments[i].leaves.is_empty();
        let pause = if left { system.shrink_s } else { system.grow_s };
        let cost = (pause + system.again_s) * best;
        let worth = (best - rate) * mean > cost;
        if left || best > rate && (!patient || worth) {
            paused_s = pause + system.again_s;
            rate = best;
        }
        let stands = paused_s.min(length);
        paused_s -= stands;
        trained += rate * (length - stands);
    }
    if whole > 0.0 { trained / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_model::{Transformer, gpt2};
    use varuna_plan::{Constraints, CostPlanner, Costs, Device, Recompute, ScheduleKind, ScheduleSpec};

    /// A planner for pipelines with at least two workers.
    fn planner() -> CostPlanner {
        let sizes = Transformer {
            layers: 6,
            hidden_size: 512,
            sequence_length: 256,
            vocabulary_size: 8192,
            ..gpt2::SMALL
        };
        CostPlanner {
            costs: Costs::estimate(&sizes.spec(), Device::CPU_CORE),
            constraints: Constraints {
                min_workers: 2,
                max_workers: 6,
                micro_batch_size: Some(1),
                min_depth: 2,
                max_depth: None,
                schedules: vec![ScheduleSpec {
                    kind: ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 },
                    recompute: Recompute::None,
                }],
                device_memory_bytes: None,
            },
        }
    }

    #[test]
    fn each_change_costs_a_restart_pause_and_waiting_avoids_some() {
        let planner = planner();
        let text = "time_s,event,node\n0,add,a\n0,add,b\n100,add,c\n130,remove,c\n200,remove,a\n";
        let trace = Trace::read("t.csv", text, 1).unwrap();
        let ideal = Ideal::new(&planner, planner.costs.layout(), 32, trace.most());
        let slow = system("slow", 20.0, 20.0, 0.0);
        let whole = ideal.rate(2) * 170.0 + ideal.rate(3) * 30.0;
        let greedy = (ideal.rate(2) * (80.0 + 50.0) + ideal.rate(3) * 10.0) / whole;
        assert!(ideal.rate(3) > ideal.rate(2) && ideal.rate(2) > 0.0);
        assert!((goodput(&trace, &ideal, &slow, false) - greedy).abs() < 1e-9);
        assert!(goodput(&trace, &ideal, &slow, true) > greedy);
    }
}
