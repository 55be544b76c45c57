//! Limits who may hold a connection to the coordinator's port.
//!
//! Anyone who reaches the port can connect, and send nothing or open streams. Until a request on a connection shows the run's token, the
//! connection is unauthenticated: the number of such connections is limited, and each ends after a few seconds whatever it does. The token
//! is checked in a request's headers, before a byte of its message is read, so that a client without the token cannot use up memory.

use std::future::Future as _;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use subtle::ConstantTimeEq as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::Sleep;
use tokio_stream::Stream;
use tonic::transport::server::{Connected, TlsConnectInfo};
use tonic::{Request, Status};
use varuna_wire::{UnauthenticatedConnections, shown_token};

/// How long a connection may take, including its TLS handshake, until a request on it shows the token.
const DEADLINE: Duration = Duration::from_secs(5);
/// Maximum number of unauthenticated connections at a time. Each uses a file descriptor, of which a process often may have 1,024. It must
/// not be small either: after a restart of the coordinator, the connections of all its workers are unauthenticated for a moment.
const MAX: usize = 512;
/// Maximum number of them from one source address. All workers of a node may have the same one.
const OF_ONE_SOURCE: usize = 256;
/// Pause after a failed accept: without file descriptors it would fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// All unauthenticated connections of a port. Each is notified through its sender when it is admitted. If the sender is dropped instead,
/// the connection has to make room.
type All = Arc<Mutex<UnauthenticatedConnections<oneshot::Sender<()>>>>;

/// A connection's entry among the unauthenticated ones.
pub(crate) struct UnauthenticatedConnection {
    all: All,
    number: u64,
}

impl UnauthenticatedConnection {
    fn end(&self) -> Option<oneshot::Sender<()>> {
        // Nothing panics while it holds this lock.
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.end(self.number)
    }

    fn admit(&self) {
        if let Some(tell) = self.end() {
            // An error means that the connection has ended.
            let _ = tell.send(());
        }
    }
}

impl Drop for UnauthenticatedConnection {
    fn drop(&mut self) {
        self.end();
    }
}

/// Refuses requests without the token, and admits the connections of the others.
pub(crate) fn admission(
    token: String,
) -> impl Fn(Request<()>) -> Result<Request<()>, Status> + Clone + Send + Sync + 'static {
    move |request| {
        let shown = shown_token(request.metadata());
        if !bool::from(shown.as_ref().ct_eq(token.as_bytes())) {
            return Err(Status::unauthenticated("the token is not this run's"));
        }
        let of_tls = request
            .extensions()
            .get::<TlsConnectInfo<Arc<UnauthenticatedConnection>>>();
        let of_tcp = request.extensions().get::<Arc<UnauthenticatedConnection>>();
        if let Some(unauthenticated) = of_tls.map(TlsConnectInfo::get_ref).or(of_tcp) {
            unauthenticated.admit();
        }
        Ok(request)
    }
}

/// The port's incoming connections. This stream never ends: a failure is one of a single connection, or temporary.
pub(crate) struct Incoming {
    listener: TcpListener,
    all: All,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Incoming {
    pub(crate) fn new(listener: TcpListener) -> Incoming {
        Incoming {
            listener,
            all: Arc::new(Mutex::new(UnauthenticatedConnections::new(MAX, OF_ONE_SOURCE))),
            pause: None,
        }
    }
}

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            match ready!(self.listener.poll_accept(context)) {
                Ok((socket, from)) => return Poll::Ready(Some(Ok(Connection::new(socket, from, &self.all)))),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    self.pause = Some(Box::pin(tokio::time::sleep(ACCEPT_PAUSE)));
                }
            }
        }
    }
}

/// A connection. It ends by itself if its peer does not show the token in time.
pub(crate) struct Connection {
    socket: TcpStream,
    unauthenticated: Arc<UnauthenticatedConnection>,
    /// Set until the peer has shown the token.
    waiting: Option<Waiting>,
}

struct Waiting {
    verdict: oneshot::Receiver<()>,
    deadline: Pin<Box<Sleep>>,
}

impl Connection {
    fn new(socket: TcpStream, from: SocketAddr, all: &All) -> Connection {
        // An error means that the peer has closed the connection, which the first read reports.
        let _ = socket.set_nodelay(true);
        let (tell, verdict) = oneshot::channel();
        let begun = all
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .begin(from.ip(), tell);
        // A connection that had to make room notices that its sender is dropped.
        let (number, _displaced) = begun;
        Connection {
            socket,
            unauthenticated: Arc::new(UnauthenticatedConnection {
                all: Arc::clone(all),
                number,
            }),
            waiting: Some(Waiting {
                verdict,
                deadline: Box::pin(tokio::time::sleep(DEADLINE)),
            }),
        }
    }

    /// Why the connection has to end, if it has to. A server always waits to read, so this is called whenever something changes.
    fn refused(&mut self, context: &mut Context<'_>) -> Option<io::Error> {
        let Waiting { verdict, deadline } = self.waiting.as_mut()?;
        match Pin::new(verdict).poll(context) {
            Poll::Ready(Ok(())) => {
                self.waiting = None;
                None
            }
            Poll::Ready(Err(_)) => Some(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => {
                let late = deadline.as_mut().poll(context).is_ready();
                late.then(|| io::ErrorKind::TimedOut.into())
            }
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Arc<UnauthenticatedConnection>;

    fn connect_info(&self) -> Arc<UnauthenticatedConnection> {
        Arc::clone(&self.unauthenticated)
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(why) = self.refused(context) {
            return Poll::Ready(Err(why));
        }
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
