//! The table of figures: a row for each, with its name, its meaning, its unit and where its value comes from. Pure. Whatever shows or sends
//! figures goes through these rows and has no list of its own.

use crate::figures::Run;
use prometheus_client::registry::Unit;
use std::time::{SystemTime, UNIX_EPOCH};
use varuna_run_folder::Metric;

/// What all names begin with.
pub(crate) const PREFIX: &str = "varuna";

/// What a figure counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Quantity {
    /// A number without a unit.
    Number,
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// A share, from 0 to 1.
    Ratio,
}

impl Quantity {
    /// The unit as it stands at the end of a name.
    pub(crate) fn suffix(self) -> Option<&'static str> {
        match self {
            Quantity::Number => None,
            Quantity::Seconds => Some("seconds"),
            Quantity::Bytes => Some("bytes"),
            Quantity::Ratio => Some("ratio"),
        }
    }

    /// The unit for OpenTelemetry, by UCUM.
    pub(crate) fn ucum(self) -> Option<&'static str> {
        match self {
            Quantity::Number => None,
            Quantity::Seconds => Some("s"),
            Quantity::Bytes => Some("By"),
            Quantity::Ratio => Some("1"),
        }
    }

    /// The unit for Prometheus, which adds it to the name.
    pub(crate) fn unit(self) -> Option<Unit> {
        self.suffix().map(|suffix| Unit::Other(suffix.to_owned()))
    }
}

/// One value: a label that distinguishes it from others of its row, if there are others, and the value.
pub(crate) type Sample = (Option<(&'static str, &'static str)>, f64);

/// A row whose values may rise and fall.
pub(crate) struct Gauge {
    /// Its name without what all names begin with and without its unit.
    pub(crate) name: &'static str,
    pub(crate) quantity: Quantity,
    /// Its meaning.
    pub(crate) help: &'static str,
    /// Its values; none if they are not known.
    pub(crate) read: fn(&Run) -> Vec<Sample>,
}

/// A row whose values are times that something took.
#[derive(Debug)]
pub(crate) struct Durations {
    /// Its name without what all names begin with and without its unit, which is seconds.
    pub(crate) name: &'static str,
    /// Its meaning.
    pub(crate) help: &'static str,
}

impl Gauge {
    /// Its name as Prometheus shows it.
    pub(crate) fn full_name(&self) -> String {
        full_name(self.name, self.quantity)
    }
}

impl Durations {
    /// Its name as Prometheus shows it, without the endings of a histogram's series.
    pub(crate) fn full_name(&self) -> String {
        full_name(self.name, Quantity::Seconds)
    }
}

fn full_name(name: &str, quantity: Quantity) -> String {
    let unit = quantity.suffix().map_or(String::new(), |unit| format!("_{unit}"));
    format!("{PREFIX}_{name}{unit}")
}

/// Recoveries take from tens of milliseconds (peers in one room) to minutes (a checkpoint from a bucket). Seconds. 30 is what the chart's
/// alert compares with: a quantile is interpolated within its bucket, and with a bucket from 16 to 32 a recovery of 17 s would be reported
/// as almost 32.
pub(crate) const BOUNDS: [f64; 14] = [
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 300.0,
];

pub(crate) const RECOVERY: Durations = Durations {
    name: "recovery_duration",
    help: "Time without training of a recovery or a planned change, by phase and cause; phase total is the whole",
};

pub(crate) const PLAN: Durations = Durations {
    name: "plan_duration",
    help: "Time from knowing who is left to a persisted plan",
};

pub(crate) const GAUGES: &[Gauge] = &[
    // Progress.
    Gauge {
        name: "job_step",
        quantity: Quantity::Number,
        help: "Steps committed",
        read: |run| one(run.step.map(whole)),
    },
    Gauge {
        name: "job_loss",
        quantity: Quantity::Number,
        help: "Training loss of the last step, in nats per token",
        read: |run| of_step(run, Metric::mean_loss),
    },
    Gauge {
        name: "job_gradient_norm",
        quantity: Quantity::Number,
        help: "L2 norm of the last step's gradient before clipping",
        read: |run| of_step(run, |m| Some(m.gradient_norm)),
    },
    Gauge {
        name: "job_learning_rate",
        quantity: Quantity::Number,
        help: "Learning rate of the last step",
        read: |run| of_step(run, |m| m.figures.learning_rate),
    },
    Gauge {
        name: "job_tokens_per_second",
        quantity: Quantity::Number,
        help: "Tokens per second of the last step, where its own time is known",
        read: |run| of_step(run, |m| m.figures.tokens_per_second),
    },
    Gauge {
        name: "job_model_flops_per_second",
        quantity: Quantity::Number,
        help: "Operations per second that the model needed in the last step, where its own time is known",
        read: |run| of_step(run, |m| m.figures.model_flops_per_second),
    },
    Gauge {
        name: "job_mfu",
        quantity: Quantity::Ratio,
        help: "These operations as a share of what the GPUs can do by their data sheets",
        read: |run| of_step(run, |m| m.figures.mfu),
    },
    Gauge {
        name: "job_consumed_samples",
        quantity: Quantity::Number,
        help: "Samples trained on up to the last step",
        read: |run| of_step(run, |m| m.figures.consumed_samples.map(whole)),
    },
    Gauge {
        name: "job_consumed_tokens",
        quantity: Quantity::Number,
        help: "Tokens trained on up to the last step",
        read: |run| of_step(run, |m| m.figures.consumed_tokens.map(whole)),
    },
    Gauge {
        name: "job_skipped_steps",
        quantity: Quantity::Number,
        help: "Steps that the optimizer skipped because a gradient or the loss was not finite",
        read: |run| of_step(run, |m| Some(whole(m.skipped_steps))),
    },
    Gauge {
        name: "job_nan_steps",
        quantity: Quantity::Number,
        help: "Steps whose loss was not a finite number, as far as this run folder has them",
        read: |run| of_step(run, |m| m.figures.nan_steps.map(whole)),
    },
    Gauge {
        name: "job_loss_scale",
        quantity: Quantity::Number,
        help: "What the loss is multiplied by, where the job scales it",
        read: |run| of_step(run, |m| m.loss_scale.map(whole)),
    },
    Gauge {
        name: "job_goodput",
        quantity: Quantity::Ratio,
        help: "Share of the time since the first step here in which steps were trained that stayed",
        read: |run| one(run.goodput.ratio()),
    },
    Gauge {
        name: "job_step_duration",
        quantity: Quantity::Seconds,
        help: "Time of a step",
        read: |run| {
            let kinds = [("observed", run.observed_ms), ("predicted", run.predicted_ms)];
            let known = kinds.into_iter().filter_map(|(kind, ms)| Some((kind, ms?)));
            known.map(|(kind, ms)| (Some(("kind", kind)), ms / 1e3)).collect()
        },
    },
    // Workers.
    Gauge {
        name: "job_workers",
        quantity: Quantity::Number,
        help: "Workers that are attached: in the plan, or spare",
        read: |run| by_state([("member", run.members), ("spare", run.spares)]),
    },
    Gauge {
        name: "job_spare_copy_keepers",
        quantity: Quantity::Number,
        help: "Units that one worker alone holds, by what is to be said of the keeper of their spare copy",
        read: |run| {
            let Some(copies) = &run.spare_copies else {
                return vec![];
            };
            by_state([
                ("in_step", copies.in_step),
                ("behind", copies.kept.saturating_sub(copies.in_step)),
                ("none", copies.units.saturating_sub(copies.kept)),
            ])
        },
    },
    Gauge {
        name: "job_peak_memory",
        quantity: Quantity::Bytes,
        help: "Most memory that a worker of the plan took since it started: tensors on a GPU, the process on a processor",
        read: |run| of_step(run, |m| m.figures.peak_memory_bytes.map(whole)),
    },
    // Checkpoints.
    Gauge {
        name: "job_checkpoint_step",
        quantity: Quantity::Number,
        help: "Step of the newest checkpoint",
        read: |run| one(run.checkpoint.map(|(step, _)| whole(step))),
    },
    Gauge {
        name: "job_checkpoint_timestamp",
        quantity: Quantity::Seconds,
        help: "When the newest checkpoint was first seen, since 1970",
        read: |run| one(seen(run).and_then(|at| Some(at.duration_since(UNIX_EPOCH).ok()?.as_secs_f64()))),
    },
    Gauge {
        name: "job_checkpoint_age",
        quantity: Quantity::Seconds,
        help: "Time since the newest checkpoint was first seen",
        read: |run| one(seen(run).and_then(|at| Some(at.elapsed().ok()?.as_secs_f64()))),
    },
    Gauge {
        name: "job_checkpoint_store_failing",
        quantity: Quantity::Number,
        help: "1 while the store does not answer, or workers cannot upload to it",
        read: |run| one(Some(f64::from(u8::from(run.failing)))),
    },
];

/// The value of a row that is a figure of the last step.
fn of_step(run: &Run, figure: fn(&Metric) -> Option<f64>) -> Vec<Sample> {
    one(run.metric.as_ref().and_then(figure))
}

/// The value of a row that has one at most.
fn one(value: Option<f64>) -> Vec<Sample> {
    value.map(|value| (None, value)).into_iter().collect()
}

/// The values of a row, distinguished by the label `state`.
fn by_state<const N: usize>(values: [(&'static str, usize); N]) -> Vec<Sample> {
    values
        .map(|(state, n)| (Some(("state", state)), whole(n as u64)))
        .to_vec()
}

/// When the newest checkpoint was first seen.
fn seen(run: &Run) -> Option<SystemTime> {
    run.checkpoint.map(|(_, at)| at)
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn whole(n: u64) -> f64 {
    n as f64
}
