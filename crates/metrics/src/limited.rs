//! A port that anyone may reach: limits the number of its connections, and ends those on which nothing comes. Each connection uses a file
//! descriptor of the process, which its run needs for its workers.

use axum::serve::Listener;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// Maximum number of connections at a time. A scraper has one or two. Others wait to be accepted.
const CONNECTIONS_MAX: usize = 64;
/// How long nothing may come on a connection. Scrapers that ask less often connect again.
const SILENCE_MAX: Duration = Duration::from_secs(180);

/// A listener with so many places for connections.
pub(crate) struct Limited {
    listener: TcpListener,
    places: Arc<Semaphore>,
    silence: Duration,
}

impl Limited {
    pub(crate) fn new(listener: TcpListener) -> Limited {
        Limited::with(listener, CONNECTIONS_MAX, SILENCE_MAX)
    }

    fn with(listener: TcpListener, most: usize, silence: Duration) -> Limited {
        Limited {
            listener,
            places: Arc::new(Semaphore::new(most)),
            silence,
        }
    }
}

impl Listener for Limited {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        // There is always a permit: this semaphore is never closed.
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        let (socket, from) = Listener::accept(&mut self.listener).await;
        let connection = Connection {
            socket,
            silence: self.silence,
            end: Box::pin(sleep(self.silence)),
            _place: place,
        };
        (connection, from)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection, which has its place until it is dropped.
pub(crate) struct Connection {
    socket: TcpStream,
    silence: Duration,
    /// When it ends if nothing comes until then.
    end: Pin<Box<Sleep>>,
    _place: Option<OwnedSemaphorePermit>,
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.socket).poll_read(context, buffer);
        if read.is_ready() {
            let end = Instant::now() + self.silence;
            self.end.as_mut().reset(end);
            return read;
        }
        // A server always waits to read.
        let ended = self.end.as_mut().poll(context);
        ended.map(|()| Err(io::ErrorKind::TimedOut.into()))
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// A port with so many places, and a client that has connected to it.
    async fn port(most: usize, silence: Duration) -> (Limited, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (Limited::with(listener, most, silence), client)
    }

    #[tokio::test]
    async fn a_connection_has_its_place_until_it_ends() {
        let (mut port, _client) = port(1, SILENCE_MAX).await;
        let _another = TcpStream::connect(port.local_addr().unwrap()).await.unwrap();
        let (first, _) = port.accept().await;
        assert_eq!(port.places.available_permits(), 0);
        drop(first);
        let _second = port.accept().await;
        assert_eq!(port.places.available_permits(), 0);
    }

    #[tokio::test]
    async fn a_connection_on_which_nothing_comes_ends() {
        let silence = Duration::from_millis(20);
        let (mut port, mut client) = port(1, silence).await;
        client.write_all(b"a").await.unwrap();
        let (mut connection, _) = port.accept().await;
        let mut byte = [0];
        connection.read_exact(&mut byte).await.unwrap();
        let ended = connection.read(&mut byte).await.unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::TimedOut);
    }
}
