//! Connecting to a coordinator.

use crate::MESSAGE_BYTES_MAX;
use crate::v1::coordinator_client::CoordinatorClient;
use bytes::Bytes;
use std::time::Duration;
use tonic::metadata::{Binary, MetadataMap, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status};

/// The service's client, with this project's message bounds. It shows the token with every request.
pub type Client = CoordinatorClient<InterceptedService<Channel, Token>>;

/// Under which name a request's metadata hold the run's token. A server looks at it before it reads a message. It is binary: a
/// token may have any characters.
const TOKEN: &str = "varuna-token-bin";

/// Puts the run's token into the metadata of requests.
#[derive(Clone, Debug)]
pub struct Token(MetadataValue<Binary>);

impl Token {
    fn new(token: &str) -> Token {
        let mut value = MetadataValue::from_bytes(token.as_bytes());
        // Neither printed nor kept in the tables of header compression.
        value.set_sensitive(true);
        Token(value)
    }
}

impl Interceptor for Token {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert_bin(TOKEN, self.0.clone());
        Ok(request)
    }
}

/// The token that a request shows; empty where it shows none.
#[must_use]
pub fn shown_token(metadata: &MetadataMap) -> Bytes {
    let value = metadata.get_bin(TOKEN);
    value.and_then(|v| v.to_bytes().ok()).unwrap_or_default()
}

/// How long a connection attempt may take. Reattaching is tried again and again, so it may be short.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// A dead host answers no ping: its stream ends after interval + timeout, well within the coordinator's own limit.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
/// See above.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);

/// The name in a coordinator's certificate, whatever its address: coordinators move.
pub const SERVER_NAME: &str = "varuna-coordinator";

/// Connects to `address`: `host:port`, or a URI, and shows the token there. With a certificate (PEM) over TLS, and only to who can show this one.
///
/// # Errors
/// The address is no address, the certificate is none, or nobody answers there in time.
pub async fn connect(
    address: &str,
    certificate: Option<&str>,
    token: &str,
) -> Result<Client, tonic::transport::Error> {
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
    Ok(CoordinatorClient::with_interceptor(channel, Token::new(token))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX))
}
