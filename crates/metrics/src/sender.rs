//! Sends figures to a receiver, each time within a limit, and says once that it takes none.

use crate::receiver::{Protocol, Receiver, ReceiverError};
use hyper_rustls::HttpsConnectorBuilder;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_otlp::{
    ExporterBuildError, MetricExporter, WithExportConfig as _, WithHttpConfig as _, WithTonicConfig as _,
};
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::metrics::Temporality;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tonic::transport::ClientTlsConfig;

/// Until when the last figures may be sent; none while the run goes on. It only comes nearer.
pub(crate) type End = Option<Instant>;

/// What sends figures to a receiver.
pub(crate) struct Sender {
    exporter: MetricExporter,
    receiver: Receiver,
    runtime: Handle,
    end: watch::Receiver<End>,
    /// Whether the last figures were not taken.
    is_failing: AtomicBool,
}

impl Sender {
    /// What sends to this receiver, in the runtime of the caller. Nothing is sent yet: the receiver need not be there.
    ///
    /// # Errors
    /// Nothing can be set up that sends.
    pub(crate) fn new(receiver: &Receiver, end: watch::Receiver<End>) -> Result<Sender, ReceiverError> {
        let client = |why: String| ReceiverError::Client {
            endpoint: receiver.shown(),
            why,
        };
        let exporter = match receiver.protocol {
            Protocol::Grpc => over_grpc(receiver).map_err(|e| client(e.to_string()))?,
            Protocol::Http => over_http(receiver).map_err(client)?,
        };
        Ok(Sender {
            exporter,
            receiver: receiver.clone(),
            runtime: Handle::current(),
            end,
            is_failing: AtomicBool::new(false),
        })
    }

    /// Where figures are sent.
    pub(crate) fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    /// Sends figures. None if it was broken off: the last figures are sent in their place, or nobody wants them any more.
    async fn send(&self, figures: &ResourceMetrics) -> Option<OTelSdkResult> {
        let mut end = self.end.clone();
        let (last, now) = (*end.borrow_and_update(), Instant::now());
        let until = last.unwrap_or(now + self.receiver.timeout);
        if until <= now {
            return None;
        }
        tokio::select! {
            sent = self.exporter.export(figures) => Some(sent),
            () = sleep_until(until) => Some(Err(OTelSdkError::Timeout(until - now))),
            _ = end.changed() => None,
        }
    }

    /// Says that figures are not taken, and that they are taken again, each once.
    fn tell(&self, sent: &OTelSdkResult) {
        let was_failing = self.is_failing.swap(sent.is_err(), Ordering::Relaxed);
        let receiver = self.receiver.shown();
        match sent {
            Err(error) if !was_failing => tracing::warn!(
                %error,
                receiver,
                "the OpenTelemetry receiver takes no figures; training goes on, and newer figures are sent every {} s. This is said once",
                self.receiver.interval.as_secs_f64()
            ),
            Ok(()) if was_failing => {
                tracing::warn!(receiver, "the OpenTelemetry receiver takes figures again");
            }
            _ => {}
        }
    }
}

/// Called by the reader's thread alone, which does not belong to the runtime and may wait.
impl PushMetricExporter for Sender {
    async fn export(&self, figures: &ResourceMetrics) -> OTelSdkResult {
        // Connections and timers need the runtime.
        let Some(sent) = self.runtime.block_on(self.send(figures)) else {
            return Err(OTelSdkError::AlreadyShutdown);
        };
        self.tell(&sent);
        sent
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.exporter.temporality()
    }
}

fn over_grpc(receiver: &Receiver) -> Result<MetricExporter, ExporterBuildError> {
    let mut builder = MetricExporter::builder()
        .with_tonic()
        .with_endpoint(receiver.endpoint.to_string())
        .with_timeout(receiver.timeout);
    if receiver.is_encrypted() {
        // Without this no authority would be trusted.
        builder = builder.with_tls_config(ClientTlsConfig::new().with_native_roots());
    }
    builder.build()
}

fn over_http(receiver: &Receiver) -> Result<MetricExporter, String> {
    let builder = MetricExporter::builder()
        .with_http()
        .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
        .with_endpoint(receiver.endpoint.to_string())
        .with_timeout(receiver.timeout);
    let builder = if receiver.is_encrypted() {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let trusting = HttpsConnectorBuilder::new().with_provider_and_native_roots(provider);
        let connector = trusting
            .map_err(|e| format!("the machine's certificates cannot be read: {e}"))?
            .https_only()
            .enable_http1()
            .build();
        builder.with_http_client(HyperClient::new(connector, receiver.timeout, None))
    } else {
        builder.with_http_client(HyperClient::with_default_connector(receiver.timeout, None))
    };
    builder.build().map_err(|e| e.to_string())
}
