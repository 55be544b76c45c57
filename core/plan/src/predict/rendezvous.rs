//! A pipeline whose sends wait for the matching receives: the program of runtimes with blocking sends.
//!
//! Even and odd slots alternate between neighbours (1F1B with one warm-up forward for each later stage). The input of a slot is received
//! just before it, and its output is sent at the start of the next slot: `receive activation, send gradient, forward` and `send activation,
//! receive gradient, backward`. This is the structure of the run in `bench/data/measured` (`docs/internals/planner.md`).

use super::simulation::{Activity, Simulated, Span};
use super::stage_times::StageTimes;
use crate::schedule::Instruction;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Compute(Instruction),
    SendActivation(u32),
    ReceiveActivation(u32),
    SendGradient(u32),
    ReceiveGradient(u32),
}

/// The micro-batch of `slot` on stage `s` of `stages`, and whether it is a forward.
#[expect(clippy::cast_possible_wrap, reason = "slots and stages are small")]
fn slot(slot: usize, s: usize, stages: usize) -> (i64, bool) {
    let (even_slot, even_stage) = (slot.is_multiple_of(2), s.is_multiple_of(2));
    let (slot, s, p) = (slot as i64, s as i64, stages as i64);
    match (even_slot, even_stage) {
        (true, true) => (slot / 2 - s / 2, true),
        (false, false) => ((slot - 1) / 2 - s / 2, true),
        (true, false) => (slot / 2 - p + (s + 1) / 2, false),
        (false, true) => ((slot - 1) / 2 - p + 1 + s / 2, false),
    }
}

fn program(stages: usize, s: usize, n: u32) -> Vec<Op> {
    let valid = |m: i64| u32::try_from(m).ok().filter(|m| *m < n);
    let (first, last) = (s == 0, s + 1 == stages);
    let mut list = Vec::with_capacity(6 * n as usize);
    let mut before = None;
    // One more slot than there is compute, which sends the last gradient.
    for k in 0..=2 * (n as usize + stages - 1) {
        let (m, forward) = slot(k, s, stages);
        let now = valid(m);
        if forward {
            list.extend(now.filter(|_| !first).map(Op::ReceiveActivation));
            list.extend(before.filter(|_| !first).map(Op::SendGradient));
            list.extend(now.map(|m| Op::Compute(Instruction::Forward(m))));
        } else {
            list.extend(before.filter(|_| !last).map(Op::SendActivation));
            list.extend(now.filter(|_| !last).map(Op::ReceiveGradient));
            list.extend(now.map(|m| Op::Compute(Instruction::Backward(m))));
        }
        before = now;
    }
    list
}

/// Runs a step whose stages exchange tensors by rendezvous. If stages recompute, the caller adds that to their backwards.
pub(crate) fn rendezvous(
    times: &[StageTimes],
    micro_batches: u32,
    mut record: impl FnMut(Span),
) -> Simulated {
    let stages = times.len();
    let lists: Vec<Vec<Op>> = (0..stages).map(|s| program(stages, s, micro_batches)).collect();
    let (mut at, mut free, mut busy) = (vec![0; stages], vec![0.0f64; stages], vec![0.0f64; stages]);
    let mut work: Vec<usize> = (0..stages).rev().collect();
    while let Some(s) = work.pop() {
        while let Some(op) = lists[s].get(at[s]) {
            let (peer, wanted, transfer_ms, sends) = match *op {
                Op::Compute(instruction) => {
                    let takes = match instruction {
                        Instruction::Backward(_) => times[s].backward_ms,
                        _ => times[s].forward_ms,
                    };
                    record(Span {
                        stage: s,
                        activity: Activity::Compute(instruction),
                        start_ms: free[s],
                        end_ms: free[s] + takes,
                    });
                    free[s] += takes;
                    busy[s] += takes;
                    at[s] += 1;
                    continue;
                }
                Op::SendActivation(m) => {
                    let activity = Some(Activity::SendActivation(m));
                    (
                        s + 1,
                        Op::ReceiveActivation(m),
                        times[s + 1].transfer_ms,
                        activity,
                    )
                }
                Op::ReceiveActivation(m) => (s - 1, Op::SendActivation(m), times[s].transfer_ms, None),
                Op::SendGradient(m) => {
                    let activity = Some(Activity::SendGradient(m));
                    (s - 1, Op::ReceiveGradient(m), times[s].transfer_ms, activity)
                }
                Op::ReceiveGradient(m) => (s + 1, Op::SendGradient(m), times[s + 1].transfer_ms, None),
            };
            if lists[peer].get(at[peer]) != Some(&wanted) {
                break;
            }
            let start_ms = free[s].max(free[peer]);
            let end_ms = start_ms + transfer_ms;
            let (stage, activity) = match (sends, wanted) {
                (Some(activity), _) => (s, activity),
                (None, Op::SendActivation(m)) => (peer, Activity::SendActivation(m)),
                (None, Op::SendGradient(m)) => (peer, Activity::SendGradient(m)),
                (None, _) => break,
            };
            record(Span {
                stage,
                activity,
                start_ms,
                end_ms,
            });
            (free[s], free[peer]) = (end_ms, end_ms);
            (at[s], at[peer]) = (at[s] + 1, at[peer] + 1);
            work.push(peer);
        }
    }
    Simulated {
        ends_ms: free,
        busy_ms: busy,
    }
}
