//! What the operator measures, for Prometheus; of a run, its coordinator does: written as things happen, read by scrapes of `/metrics`.
//!
//! Labels are bounded: by the jobs that exist, or by lists in this crate. The series of a job are removed with the job. No decision
//! depends on what is measured.

mod jobs;

pub use jobs::{JobKey, Jobs};

use crate::error::Error;
use crate::index::{DecidedOn, ObjectKind};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::sync::Arc;
use std::time::Duration;

/// A reconciliation takes milliseconds; its deadline is 30 s. Seconds.
const RECONCILE: [f64; 12] = [
    0.000_5, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0,
];

/// What became of an Event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventOutcome {
    /// The Event was written.
    Written,
    /// The Event was counted in an older one with the same text.
    Repeated,
    /// The Event was dropped, because its job had too many.
    Dropped,
    /// The API server has refused it, or did not answer.
    Failed,
}

impl EventOutcome {
    const ALL: [EventOutcome; 4] = [
        EventOutcome::Written,
        EventOutcome::Repeated,
        EventOutcome::Dropped,
        EventOutcome::Failed,
    ];

    /// The label `kind` of the metric `varuna_events`.
    const fn label(self) -> &'static str {
        match self {
            EventOutcome::Written => "written",
            EventOutcome::Repeated => "repeated",
            EventOutcome::Dropped => "dropped",
            EventOutcome::Failed => "failed",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

/// Everything that is measured in this process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Figures of each job.
    pub jobs: Arc<Jobs>,
    /// 1 while this process leads.
    pub leader: Gauge,
    reconcile: Histogram,
    errors: Family<KindLabel, Counter>,
    events: Family<KindLabel, Counter>,
    watch_errors: Family<KindLabel, Counter>,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let mut registry = Registry::with_prefix("varuna");
        let jobs = Arc::new(Jobs::default());
        registry.register_collector(Box::new(jobs::Scrape(Arc::clone(&jobs))));
        let metrics = Metrics {
            jobs,
            leader: Gauge::default(),
            reconcile: Histogram::new(RECONCILE),
            errors: Family::default(),
            events: Family::default(),
            watch_errors: Family::default(),
            registry: Registry::default(),
        };
        let m = &metrics;
        registry.register("operator_leader", "1 while this process leads", m.leader.clone());
        registry.register_with_unit(
            "reconcile_duration",
            "Time of a reconciliation of a job, successful or not",
            Unit::Seconds,
            m.reconcile.clone(),
        );
        registry.register(
            "reconcile_errors",
            "Reconciliations that failed and were tried again, by kind of error",
            m.errors.clone(),
        );
        registry.register(
            "events",
            "Kubernetes Events of jobs: written, repeated (counted in an older one), dropped (too many), failed",
            m.events.clone(),
        );
        registry.register(
            "watch_errors",
            "Watches that failed and began anew, by kind of object",
            m.watch_errors.clone(),
        );
        metrics.begin_at_zero();
        Metrics { registry, ..metrics }
    }
}

impl Metrics {
    /// All series are there from the start: of one that comes with its first event, a rate does not count that event.
    fn begin_at_zero(&self) {
        let decided_on = DecidedOn::ALL.map(DecidedOn::kind);
        let watches = decided_on
            .into_iter()
            .chain(ObjectKind::ALL.map(|kind| kind.kind));
        for (family, kinds) in [
            (&self.errors, Error::KINDS.to_vec()),
            (&self.events, EventOutcome::ALL.map(EventOutcome::label).to_vec()),
            (&self.watch_errors, watches.collect()),
        ] {
            for kind in kinds {
                drop(family.get_or_create(&KindLabel { kind }));
            }
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

    /// A reconciliation took this time; with the kind of its error where it failed.
    pub fn reconciled(&self, took: Duration, error: Option<&'static str>) {
        self.reconcile.observe(took.as_secs_f64());
        if let Some(kind) = error {
            self.errors.get_or_create(&KindLabel { kind }).inc();
        }
    }

    /// A watch of this kind of object has failed.
    pub fn watch_failed(&self, kind: &'static str) {
        self.watch_errors.get_or_create(&KindLabel { kind }).inc();
    }

    /// What became of an Event.
    pub fn event(&self, outcome: EventOutcome) {
        let kind = outcome.label();
        self.events.get_or_create(&KindLabel { kind }).inc();
    }
}

#[cfg(test)]
mod tests;
