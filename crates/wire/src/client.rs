//! Connecting to a coordinator.

use crate::MESSAGE_BYTES_MAX;
use crate::v1::coordinator_client::CoordinatorClient;
use std::time::Duration;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

/// The service's client, with this project's message bounds.
pub type Client = CoordinatorClient<Channel>;

/// How long a connection attempt may take. Reattaching is tried again and again, so it may be short.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// A dead host answers no ping: its stream ends after interval + timeout, well within the coordinator's own limit.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
/// See above.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);

/// The name in a coordinator's certificate, whatever its address: coordinators move.
pub const SERVER_NAME: &str = "varuna-coordinator";

/// Connects to `address`: `host:port`, or a URI. With a certificate (PEM) over TLS, and only to who can show this one.
///
/// # Errors
/// The address is no address, the certificate is none, or nobody answers there in time.
pub async fn connect(address: &str, certificate: Option<&str>) -> Result<Client, tonic::transport::Error> {
    let scheme = if certificate.is_some() { "https" } else { "http" };
    let uri = if address.contains("://") {
        address.to_owned()
    } else {
        format!("{scheme}://{address}")
    };
    let mut endpoint = Endpoint::from_shared(uri)?;
    if let Some(pem) = certificate {
        let trust = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem));
        endpoint = endpoint.tls_config(trust.domain_name(SERVER_NAME))?;
    }
    let channel = endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true)
        .connect()
        .await?;
    Ok(CoordinatorClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX))
}
