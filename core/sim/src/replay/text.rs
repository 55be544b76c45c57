//! The report as text for a terminal.

use crate::replay::report::{ExtraMemory, MemoryPeak, PlanCause, Report};
use std::fmt::Write;

/// Reconfigurations that are listed; the rest is only counted.
const SHOWN: usize = 12;
/// Bytes of a GiB.
const GIB: f64 = 1_073_741_824.0;

/// Goodput, losses, memory, reconfigurations.
#[must_use]
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    let hours = report.seconds / 3600.0;
    let notice = if report.notice_s > 0.0 {
        format!("{:.0} s of notice", report.notice_s)
    } else {
        "without notice".into()
    };
    let _ = writeln!(
        out,
        "{hours:.1} h, at most {} nodes, {} joined, {} left {notice}; costs {}",
        report.nodes,
        report.joins,
        report.leaves,
        if report.calibrated {
            "calibrated"
        } else {
            "estimated, not calibrated"
        }
    );
    let _ = writeln!(
        out,
        "goodput {:.2} %  ({} steps, {:.0} of {:.0} samples)",
        report.goodput * 100.0,
        report.steps,
        report.trained_samples,
        report.ideal_samples
    );
    for loss in report.losses.iter().filter(|l| l.percent.abs() >= 0.0005) {
        let _ = writeln!(out, "  lost to {:18} {:6.3} %", loss.cause.label(), loss.percent);
    }
    extra_memory(&mut out, &report.extra_memory);
    let made = report.checkpoints;
    let _ = writeln!(
        out,
        "checkpoints: {}, on their way to the store for {:.2} % of the time",
        made.count,
        made.upload_s / report.seconds.max(1e-9) * 100.0
    );
    reconfigurations(&mut out, report);
    out
}

fn extra_memory(out: &mut String, memory: &ExtraMemory) {
    let of = |peak: &MemoryPeak| {
        let share = peak
            .share
            .map(|share| format!(" ({:.1} % of its device)", share * 100.0));
        format!("{:.2} GiB{}", peak.bytes / GIB, share.unwrap_or_default())
    };
    let _ = writeln!(
        out,
        "memory for following and spare copies: at most {} of a worker, {} of one that trained meanwhile",
        of(&memory.most),
        of(&memory.most_beside_training)
    );
}

fn reconfigurations(out: &mut String, report: &Report) {
    let ran: Vec<_> = report.reconfigurations.iter().filter(|r| r.ran).collect();
    let _ = writeln!(
        out,
        "{} reconfigurations, {} of them abandoned:",
        report.reconfigurations.len(),
        report.reconfigurations.len() - ran.len()
    );
    for (why, label) in [(PlanCause::Loss, "after a loss"), (PlanCause::Change, "planned")] {
        let mut pauses: Vec<f64> = ran.iter().filter(|r| r.why == why).map(|r| r.pause_ms).collect();
        pauses.sort_by(f64::total_cmp);
        let Some(worst) = pauses.last() else { continue };
        let moved: f64 = ran.iter().filter(|r| r.why == why).map(|r| r.moved_bytes).sum();
        let _ = writeln!(
            out,
            "  {:4} {label:13} pause p50 {:7.0} ms, p90 {:7.0} ms, worst {:7.0} ms; {:6.1} GB moved in all",
            pauses.len(),
            pauses[pauses.len() / 2],
            pauses[pauses.len() * 9 / 10],
            worst,
            moved / 1e9
        );
    }
    out.push_str("       at s  why     there  used  plan              step ms  pause ms  moved GB\n");
    for r in report.reconfigurations.iter().take(SHOWN) {
        let _ = writeln!(
            out,
            "  {:9.1}  {:6}  {:5}  {:4}  {:16}  {:7.0}  {:>8}  {:8.1}{}",
            r.at_s,
            format!("{:?}", r.why).to_lowercase(),
            r.there,
            r.workers,
            r.plan,
            r.step_ms,
            if r.ran {
                format!("{:.0}", r.pause_ms)
            } else {
                "-".into()
            },
            r.moved_bytes / 1e9,
            match r.rolled_back_steps {
                0 => String::new(),
                n => format!("  back by {n} steps"),
            }
        );
    }
    if report.reconfigurations.len() > SHOWN {
        let _ = writeln!(
            out,
            "  ... {} more (--json has all)",
            report.reconfigurations.len() - SHOWN
        );
    }
}
