use super::*;
use crate::watches;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;
use tokio_rustls::server::TlsStream;

#[test]
fn silent_connection_ends_and_watches_stay() {
    let config = bounded(Config::new("https://cluster.example:6443".parse().unwrap()));
    let silence = config.read_timeout.expect("a bound");
    let watch = u64::from(watches::config().timeout.expect("a bound"));
    // kube itself treats a watch as dead five seconds after its timeout.
    assert!(silence > Duration::from_secs(watch + 5), "{silence:?}, {watch} s");
    assert!(
        config.reset_reader_on_write,
        "what was idle is not cut when it is used"
    );
    assert!(!config.default_retry, "each caller has a backoff of its own");
}

#[tokio::test]
async fn a_call_that_is_not_answered_fails() {
    let never = std::future::pending::<kube::Result<()>>();
    let late = within(Duration::from_millis(1), never).await;
    assert!(matches!(late, Err(kube::Error::Service(_))), "{late:?}");
    let answered = within(Duration::from_secs(60), std::future::ready(Ok(7)));
    assert_eq!(answered.await.unwrap(), 7);
}

/// What a server does with its connections.
#[derive(Clone, Copy)]
enum Server {
    /// The server answers with the HTTP version of the request.
    Answers,
    /// The server answers no request, but the connection is alive.
    Waits,
    /// The server starts answers that do not continue, but the connection is alive.
    Stops,
    /// The server keeps its connections open, but does not react at all.
    Hangs,
}

impl Server {
    async fn answer(self, asked_in: Version) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
        let body = match self {
            Server::Answers => Full::new(Bytes::from(format!("{asked_in:?}"))).boxed(),
            Server::Waits | Server::Hangs => std::future::pending().await,
            Server::Stops => {
                let nothing = futures::stream::pending::<Result<Frame<Bytes>, Infallible>>();
                StreamBody::new(nothing).boxed()
            }
        };
        Ok(Response::new(body))
    }

    async fn serve(self, connection: TlsStream<TcpStream>) {
        if matches!(self, Server::Hangs) {
            let _held = connection;
            return std::future::pending().await;
        }
        let is_http2 = connection.get_ref().1.alpn_protocol() == Some(b"h2".as_slice());
        let answer = service_fn(move |request: Request<Incoming>| self.answer(request.version()));
        let io = TokioIo::new(connection);
        // If the client closes the connection, the server ends with an error.
        if is_http2 {
            let server = http2::Builder::new(TokioExecutor::new());
            let _ = server.serve_connection(io, answer).await;
        } else {
            let _ = http1::Builder::new().serve_connection(io, answer).await;
        }
    }

    /// Starts the server with these protocols. Returns its address, and a counter of its connections.
    async fn start(self, protocols: &[&str]) -> (Config, Arc<AtomicUsize>) {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let certificate = made.cert.der().clone();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let mut tls = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key.into())
            .unwrap();
        tls.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        let tls = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                let tls = tls.clone();
                tokio::spawn(async move {
                    if let Ok(connection) = tls.accept(stream).await {
                        self.serve(connection).await;
                    }
                });
            }
        });
        let mut config = bounded(Config::new(format!("https://{address}").parse().unwrap()));
        config.root_cert = Some(vec![certificate.to_vec()]);
        (config, connections)
    }
}

async fn ask(client: &Client) -> kube::Result<String> {
    let request = Request::get("/version").body(vec![]).unwrap();
    client.request_text(request).await
}

#[tokio::test]
async fn all_calls_share_one_http2_connection() {
    let (config, connections) = Server::Answers.start(&["h2", "http/1.1"]).await;
    let client = client(config).unwrap();
    assert_eq!(ask(&client).await.unwrap(), "HTTP/2.0");
    let burst = futures::future::join_all((0..20).map(|_| ask(&client))).await;
    assert!(burst.into_iter().all(|answer| answer.unwrap() == "HTTP/2.0"));
    assert_eq!(connections.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_server_that_speaks_only_http_1_is_asked_in_that() {
    for protocols in [&["http/1.1"][..], &[]] {
        let (config, _) = Server::Answers.start(protocols).await;
        assert_eq!(ask(&client(config).unwrap()).await.unwrap(), "HTTP/1.1");
    }
}

#[tokio::test]
async fn a_call_ends_however_its_server_fails() {
    let silence_max = Duration::from_millis(200);
    for server in [Server::Waits, Server::Stops, Server::Hangs] {
        for protocol in ["h2", "http/1.1"] {
            let (mut config, _) = server.start(&[protocol]).await;
            config.read_timeout = Some(silence_max);
            let client = multiplexed(&config, silence_max).unwrap();
            let ended = tokio::time::timeout(Duration::from_secs(20), ask(&client)).await;
            assert!(ended.expect("it ends").is_err());
        }
    }
}

#[tokio::test]
async fn a_connection_whose_other_end_is_gone_is_not_used_again() {
    let (config, connections) = Server::Hangs.start(&["h2"]).await;
    let client = multiplexed(&config, Duration::from_millis(400)).unwrap();
    for opened in 1..=2 {
        assert!(ask(&client).await.is_err());
        assert_eq!(connections.load(Ordering::Relaxed), opened);
    }
}
