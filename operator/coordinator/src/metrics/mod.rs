//! What a coordinator measures of its run, for Prometheus: written as things happen, read by scrapes of `/metrics`. Labels are the job and
//! short fixed lists. No decision depends on what is measured.

mod figures;
mod goodput;

pub use figures::Figures;
pub use goodput::Goodput;
pub use varuna_coordinator::recoveries::{Cause, Measured, Over, Phase, Recoveries};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::sync::Arc;

/// Recoveries take from tens of milliseconds (peers in one room) to minutes (a checkpoint from a bucket). Seconds. 30 is what the chart's
/// alert compares with: a quantile is interpolated within its bucket, and with a bucket from 16 to 32 a recovery of 17 s would be reported
/// as almost 32.
const RECOVERY: [f64; 14] = [
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 300.0,
];

const PHASES: [Phase; 6] = [
    Phase::Collect,
    Phase::Plan,
    Phase::Connect,
    Phase::Transfer,
    Phase::Step,
    Phase::Total,
];

const CAUSES: [Cause; 5] = [
    Cause::Lost,
    Cause::Notice,
    Cause::Takeover,
    Cause::Joined,
    Cause::Other,
];

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct RecoveryLabels {
    namespace: String,
    job_name: String,
    phase: &'static str,
    cause: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct JobLabels {
    namespace: String,
    job_name: String,
}

/// Everything that is measured of one run.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    job: JobLabels,
    /// Progress, workers, checkpoints.
    pub figures: Arc<Figures>,
    recoveries: Family<RecoveryLabels, Histogram>,
    plans: Family<JobLabels, Histogram>,
}

impl Metrics {
    /// The metrics of a job.
    #[must_use]
    pub fn new(namespace: &str, job: &str) -> Metrics {
        let mut registry = Registry::with_prefix("varuna");
        let figures = Arc::new(Figures::new(namespace, job));
        registry.register_collector(Box::new(figures::Scrape(Arc::clone(&figures))));
        let recoveries = Family::new_with_constructor((|| Histogram::new(RECOVERY)) as fn() -> Histogram);
        registry.register_with_unit(
            "recovery_duration",
            "Time without training of a recovery or a planned change, by phase and cause; phase total is the whole",
            Unit::Seconds,
            recoveries.clone(),
        );
        let plans = Family::new_with_constructor((|| Histogram::new(RECOVERY)) as fn() -> Histogram);
        registry.register_with_unit(
            "plan_duration",
            "Time from knowing who is left to a persisted plan",
            Unit::Seconds,
            plans.clone(),
        );
        let metrics = Metrics {
            registry,
            job: JobLabels {
                namespace: namespace.to_owned(),
                job_name: job.to_owned(),
            },
            figures,
            recoveries,
            plans,
        };
        metrics.begin_at_zero();
        metrics
    }

    /// All series exist from the start: if a series appeared with its first recovery, a rate would not count that recovery.
    fn begin_at_zero(&self) {
        for phase in PHASES {
            for cause in CAUSES {
                drop(self.recoveries.get_or_create(&self.labels(phase, cause)));
            }
        }
        drop(self.plans.get_or_create(&self.job));
    }

    fn labels(&self, phase: Phase, cause: Cause) -> RecoveryLabels {
        RecoveryLabels {
            namespace: self.job.namespace.clone(),
            job_name: self.job.job_name.clone(),
            phase: phase.label(),
            cause: cause.label(),
        }
    }

    /// All metrics in OpenMetrics' text form.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail; a broken collector would leave what came before it.
        if let Err(error) = prometheus_client::encoding::text::encode(&mut text, &self.registry) {
            tracing::error!(%error, "metrics are incomplete");
        }
        text
    }

    /// A phase of a recovery is over.
    pub fn recovered(&self, measured: &Measured) {
        let seconds = measured.took.as_secs_f64();
        let labels = self.labels(measured.phase, measured.cause);
        self.recoveries.get_or_create(&labels).observe(seconds);
        if measured.phase == Phase::Plan {
            self.plans.get_or_create(&self.job).observe(seconds);
        }
    }
}

#[cfg(test)]
mod tests;
