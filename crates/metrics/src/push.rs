//! Pushes the figures of a run to an OpenTelemetry receiver, by the table that Prometheus reads too. A thread of its own collects and sends
//! them at intervals. Whoever trains never waits for it.

use crate::metrics::Metrics;
use crate::receiver::{Receiver, ReceiverError};
use crate::sender::{End, Sender};
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::resource::{EnvResourceDetector, TelemetryResourceDetector};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How long the last figures may take. A receiver that is there answers in a fraction of it; one that is not there must not hold a process up.
pub const LAST_FIGURES: Duration = Duration::from_secs(3);

/// A receiver to which figures can be pushed.
pub struct Prepared {
    sender: Sender,
    end: watch::Sender<End>,
}

impl Prepared {
    /// Makes ready to push to a receiver. Call it in a runtime with threads of its own, before the run begins.
    ///
    /// # Errors
    /// Nothing can be set up that sends.
    pub fn new(receiver: &Receiver) -> Result<Prepared, ReceiverError> {
        let (end, ends) = watch::channel(None);
        let sender = Sender::new(receiver, ends)?;
        Ok(Prepared { sender, end })
    }

    /// Begins to push these metrics. `instance`: identity of this process among those that push metrics of runs.
    #[must_use]
    pub fn start(self, metrics: &Metrics, instance: &str) -> Push {
        let Prepared { sender, end } = self;
        let receiver = sender.receiver().clone();
        let reader = PeriodicReader::builder(sender)
            .with_interval(receiver.interval)
            .build();
        let provider = SdkMeterProvider::builder()
            .with_resource(resource(receiver.service.as_deref(), instance))
            .with_reader(reader)
            .build();
        let scope = InstrumentationScope::builder("varuna").with_version(env!("CARGO_PKG_VERSION"));
        metrics.register(&provider.meter_with_scope(scope.build()));
        Push { provider, end }
    }
}

/// Metrics that are being pushed. If it is dropped, pushing ends at once and the last figures are not sent.
pub struct Push {
    provider: SdkMeterProvider,
    end: watch::Sender<End>,
}

impl Push {
    /// Sends the last figures and ends. It takes [`LAST_FIGURES`] at most.
    pub async fn end(self) {
        self.end_unless(std::future::pending()).await;
    }

    /// The same, but the last figures are given up as soon as this happens.
    pub async fn end_unless(self, given_up: impl Future<Output = ()>) {
        self.end.send_replace(Some(Instant::now() + LAST_FIGURES));
        let provider = self.provider.clone();
        // A failure was said where it happened.
        let mut ended = tokio::task::spawn_blocking(move || provider.shutdown());
        tokio::select! {
            _ = &mut ended => return,
            () = given_up => {}
        }
        self.end.send_replace(Some(Instant::now()));
        // The reader's thread needs the runtime until it has ended.
        let _ = ended.await;
    }
}

/// What is being sent is broken off, and the reader's thread ends, before the runtime that it uses does. After [`Push::end`] it has ended.
impl Drop for Push {
    fn drop(&mut self) {
        self.end.send_replace(Some(Instant::now()));
        // An error means that it has ended.
        let _ = self.provider.shutdown();
    }
}

/// Who pushes: what the user's variables say, and else our names.
fn resource(service: Option<&str>, instance: &str) -> Resource {
    let builder = Resource::builder_empty()
        .with_attributes([
            KeyValue::new("service.name", "varuna"),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", instance.to_owned()),
        ])
        .with_detectors(&[
            Box::new(TelemetryResourceDetector),
            Box::new(EnvResourceDetector::new()),
        ]);
    match service {
        Some(name) => builder.with_service_name(name.to_owned()).build(),
        None => builder.build(),
    }
}
