//! The metrics of one run: written as things happen, read by scrapes of `/metrics`. Labels are the job and short fixed lists.

use crate::figures::Figures;
use crate::table::{self, BOUNDS, Durations, GAUGES, Gauge, PREFIX};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::sync::Arc;
use varuna_coordinator::recoveries::{Cause, Measured, Phase};

pub(crate) const PHASES: [Phase; 6] = [
    Phase::Collect,
    Phase::Plan,
    Phase::Connect,
    Phase::Transfer,
    Phase::Step,
    Phase::Total,
];

pub(crate) const CAUSES: [Cause; 5] = [
    Cause::Lost,
    Cause::Notice,
    Cause::Takeover,
    Cause::Joined,
    Cause::Other,
];

/// Names and values of labels.
type Labels = Vec<(&'static str, String)>;

/// Everything that is measured of one run.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Labels of all series.
    job: Labels,
    /// Progress, workers, checkpoints.
    pub figures: Arc<Figures>,
    recoveries: Family<Labels, Histogram>,
    plans: Family<Labels, Histogram>,
}

impl Metrics {
    /// The metrics of a job in a namespace of a cluster.
    #[must_use]
    pub fn new(namespace: &str, job: &str) -> Metrics {
        Metrics::with_labels(vec![
            ("namespace", namespace.to_owned()),
            ("job_name", job.to_owned()),
        ])
    }

    fn with_labels(job: Labels) -> Metrics {
        let mut registry = Registry::with_prefix(PREFIX);
        let figures = Arc::new(Figures::default());
        registry.register_collector(Box::new(Scrape {
            figures: Arc::clone(&figures),
            job: job.clone(),
        }));
        let metrics = Metrics {
            recoveries: register(&mut registry, &table::RECOVERY),
            plans: register(&mut registry, &table::PLAN),
            registry,
            job,
            figures,
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

    fn labels(&self, phase: Phase, cause: Cause) -> Labels {
        let mut labels = self.job.clone();
        labels.push(("phase", phase.label().to_owned()));
        labels.push(("cause", cause.label().to_owned()));
        labels
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

fn register(registry: &mut Registry, row: &Durations) -> Family<Labels, Histogram> {
    let family = Family::new_with_constructor((|| Histogram::new(BOUNDS)) as fn() -> Histogram);
    registry.register_with_unit(row.name, row.help, Unit::Seconds, family.clone());
    family
}

/// Reads the figures at a scrape.
#[derive(Debug)]
struct Scrape {
    figures: Arc<Figures>,
    job: Labels,
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let run = self.figures.now();
        for row in GAUGES {
            let Gauge { name, help, .. } = row;
            let unit = row.quantity.unit();
            let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
            for (label, value) in (row.read)(&run) {
                let mut labels = self.job.clone();
                labels.extend(label.map(|(name, value)| (name, value.to_owned())));
                ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
