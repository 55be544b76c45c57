//! How the API server is reached, and how long calls wait for it. Every call ends, whatever happens to the server and to the network.

use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt as _, RustlsTlsError};
use kube::{Client, Config};
use std::time::Duration;
use tower::ServiceBuilder;
use tower::timeout::TimeoutLayer;
use tower_http::timeout::ResponseBodyTimeoutLayer;

/// A connection or an answer that has been silent for this time is dead. The server ends watches sooner (`watches.rs`), and answers everything
/// else within a minute.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Bytes of one answer that the server may send before they are read.
const ANSWER_WINDOW: u32 = 1 << 20;
/// Bytes that the server may send on one connection before they are read. A server allows a hundred calls at once, and the windows of all their
/// answers fit: a watch that is not read for a moment cannot block other calls.
const CONNECTION_WINDOW: u32 = 128 << 20;

/// The same configuration, whose calls end.
#[must_use]
pub fn bounded(mut config: Config) -> Config {
    config.read_timeout = Some(SILENCE_MAX);
    // A connection that was idle has that time for its next answer as well.
    config.reset_reader_on_write = true;
    // Callers try again themselves. kube would try fifteen times in silence, with pauses of minutes in the end.
    config.default_retry = false;
    config
}

/// A client with this configuration. If the server speaks HTTP/2, all calls share one connection: otherwise each call of a burst would open one, which
/// costs milliseconds of TLS on both sides.
///
/// # Errors
/// The configuration cannot be used.
pub fn client(config: Config) -> kube::Result<Client> {
    if config.proxy_url.is_some() {
        // kube's own client supports proxies, but only HTTP/1.1.
        return Client::try_from(config);
    }
    multiplexed(&config, SILENCE_MAX)
}

/// On a shared connection one answer may be silent while others arrive, so each answer has a time limit of its own. While the whole connection is
/// silent, PINGs find out whether the server is still there.
fn multiplexed(config: &Config, silence_max: Duration) -> kube::Result<Client> {
    let http: legacy::Client<_, Body> = legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(silence_max / 4)
        .http2_keep_alive_timeout(silence_max / 4)
        .http2_initial_stream_window_size(ANSWER_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .build(connector(config)?);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .layer(TimeoutLayer::new(silence_max))
        .layer(ResponseBodyTimeoutLayer::new(silence_max))
        .service(http);
    Ok(Client::new(service, config.default_namespace.clone()))
}

/// Opens connections as kube's own client does, and offers the server HTTP/2 as well.
fn connector(config: &Config) -> kube::Result<TimeoutConnector<HttpsConnector<HttpConnector>>> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    // Several calls send small frames one after the other. None should wait until the one before it is acknowledged.
    tcp.set_nodelay(true);
    let mut tls = HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http();
    if let Some(name) = &config.tls_server_name {
        tls = tls.with_server_name_resolver(FixedServerNameResolver::new(
            name.clone()
                .try_into()
                .map_err(RustlsTlsError::InvalidServerName)
                .map_err(kube::Error::RustlsTls)?,
        ));
    }
    let mut connector = TimeoutConnector::new(tls.enable_all_versions().wrap_connector(tcp));
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    Ok(connector)
}

/// What a call gives within a deadline.
///
/// # Errors
/// The call fails, or does not end before the deadline.
pub async fn within<T>(deadline: Duration, call: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    let answer = tokio::time::timeout(deadline, call).await;
    answer.unwrap_or_else(|late| Err(kube::Error::Service(late.into())))
}

#[cfg(test)]
mod tests;
