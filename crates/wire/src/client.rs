//! Connecting to a coordinator.

use crate::MESSAGE_BYTES_MAX;
use crate::v1::coordinator_client::CoordinatorClient;
use bytes::Bytes;
use std::time::Duration;
use tonic::metadata::{Binary, MetadataMap, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};

/// The service's client, with this project's limits on messages. It shows the token with every request.
pub type Client = CoordinatorClient<InterceptedService<Channel, Token>>;

/// Name of the metadata entry of a request with the run's token. A server checks it before it reads a message. It is binary, because a
/// token may have any characters.
const TOKEN: &str = "varuna-token-bin";

/// Puts the run's token into the metadata of requests.
#[derive(Clone, Debug)]
pub struct Token(MetadataValue<Binary>);

impl Token {
    fn new(token: &str) -> Token {
        let mut value = MetadataValue::from_bytes(token.as_bytes());
        // It is neither printed nor kept in the tables of header compression.
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

/// The token that a request shows; empty if it shows none.
#[must_use]
pub fn shown_token(metadata: &MetadataMap) -> Bytes {
    let value = metadata.get_bin(TOKEN);
    value.and_then(|v| v.to_bytes().ok()).unwrap_or_default()
}

/// Whether a coordinator has refused a request, so that asking again changes nothing. Otherwise it could not answer.
#[must_use]
pub fn is_refusal(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::FailedPrecondition
            | Code::InvalidArgument
            | Code::Unauthenticated
            | Code::PermissionDenied
            | Code::Unimplemented
    )
}

/// How long a connection attempt may take. Reattaching is retried continually, so this may be short.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// A dead host answers no ping: its stream ends after interval + timeout, well within the coordinator's own limit.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
/// Timeout of a keepalive probe; the interval above says why there are probes.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);

/// The name in a coordinator's certificate, whatever its address: coordinators move.
pub const SERVER_NAME: &str = "varuna-coordinator";

/// Connects to `address` (`host:port`, or a URI) and shows the token there. With a certificate (PEM), it uses TLS and only connects to a
/// server that has this certificate.
///
/// # Errors
/// The address or the certificate is invalid, or nobody answers in time.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_differ_from_failures() {
        for no in [
            Status::failed_precondition("0 workers cannot train"),
            Status::unauthenticated("the token is not this run's"),
            Status::invalid_argument("no Hello"),
        ] {
            assert!(is_refusal(&no), "{no}");
        }
        for trouble in [
            Status::unavailable("the run is ending"),
            Status::unknown("transport error"),
            Status::internal("h2 protocol error"),
        ] {
            assert!(!is_refusal(&trouble), "{trouble}");
        }
    }
}
