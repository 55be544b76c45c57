//! The metrics of one run: written as things happen, read by scrapes of `/metrics` and by what pushes them. Labels are the job and short fixed
//! lists.

use crate::figures::Figures;
use crate::table::{self, BOUNDS, Durations, GAUGES, Gauge, PREFIX};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Histogram as PushedHistogram, Meter};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::sync::{Arc, OnceLock};
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
    recoveries: Times,
    plans: Times,
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

    /// The metrics of a job that runs in no cluster.
    #[must_use]
    pub fn outside_a_cluster(job: &str) -> Metrics {
        Metrics::with_labels(vec![("job_name", job.to_owned())])
    }

    fn with_labels(job: Labels) -> Metrics {
        let mut registry = Registry::with_prefix(PREFIX);
        let figures = Arc::new(Figures::default());
        registry.register_collector(Box::new(Scrape {
            figures: Arc::clone(&figures),
            job: job.clone(),
        }));
        let metrics = Metrics {
            recoveries: Times::new(&table::RECOVERY, &mut registry),
            plans: Times::new(&table::PLAN, &mut registry),
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
                self.recoveries.begin(&self.labels(phase, cause));
            }
        }
        self.plans.begin(&self.job);
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
        self.recoveries.observe(&labels, seconds);
        if measured.phase == Phase::Plan {
            self.plans.observe(&self.job, seconds);
        }
    }

    /// Gives a meter the same metrics under the same names, with the same labels. Only the first meter gets times.
    pub(crate) fn register(&self, meter: &Meter) {
        for row in GAUGES {
            let (figures, job) = (Arc::clone(&self.figures), self.job.clone());
            let mut gauge = meter
                .f64_observable_gauge(row.full_name())
                .with_description(row.help);
            if let Some(unit) = row.quantity.ucum() {
                gauge = gauge.with_unit(unit);
            }
            let gauge = gauge.with_callback(move |observer| {
                for (label, value) in (row.read)(&figures.now()) {
                    observer.observe(value, &attributes(&with_label(&job, label)));
                }
            });
            // The meter keeps what is called.
            gauge.build();
        }
        self.recoveries.register(meter);
        self.plans.register(meter);
    }
}

/// A job's labels and one more.
fn with_label(job: &Labels, label: Option<(&'static str, &'static str)>) -> Labels {
    let mut labels = job.clone();
    labels.extend(label.map(|(name, value)| (name, value.to_owned())));
    labels
}

fn attributes(labels: &Labels) -> Vec<KeyValue> {
    let attribute = |(name, value): &(&'static str, String)| KeyValue::new(*name, value.clone());
    labels.iter().map(attribute).collect()
}

/// The times of a row of the table, by labels.
#[derive(Debug)]
struct Times {
    row: &'static Durations,
    scraped: Family<Labels, Histogram>,
    /// The same times for what pushes them.
    pushed: OnceLock<PushedHistogram<f64>>,
}

impl Times {
    fn new(row: &'static Durations, registry: &mut Registry) -> Times {
        let scraped = Family::new_with_constructor((|| Histogram::new(BOUNDS)) as fn() -> Histogram);
        registry.register_with_unit(row.name, row.help, Unit::Seconds, scraped.clone());
        Times {
            row,
            scraped,
            pushed: OnceLock::new(),
        }
    }

    /// Makes the series for scrapes, with the value zero.
    fn begin(&self, labels: &Labels) {
        drop(self.scraped.get_or_create(labels));
    }

    fn observe(&self, labels: &Labels, seconds: f64) {
        self.scraped.get_or_create(labels).observe(seconds);
        if let Some(pushed) = self.pushed.get() {
            pushed.record(seconds, &attributes(labels));
        }
    }

    fn register(&self, meter: &Meter) {
        self.pushed.get_or_init(|| {
            meter
                .f64_histogram(self.row.full_name())
                .with_description(self.row.help)
                .with_unit("s")
                .with_boundaries(BOUNDS.to_vec())
                .build()
        });
    }
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
                let labels = with_label(&self.job, label);
                ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
