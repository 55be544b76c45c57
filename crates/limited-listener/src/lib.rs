//! A port that anyone may reach: limits the number of its connections, and ends those on which nothing comes. Each connection uses a file
//! descriptor of the process, which its run needs for its workers.
//!
//! A new connection is always accepted. If there are too many then, the one that was silent for longest ends. So strangers who connect and
//! say nothing keep nobody out: a probe asks as soon as it is connected, and has its answer long before that many others have connected after it.

use axum::serve::Listener;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep};

/// Maximum number of connections at a time. A scraper has one or two, and a kubelet has one for each probe.
pub const CONNECTIONS_MAX: usize = 64;
/// How long nothing may come on a connection. Scrapers that ask less often connect again. It must be longer than the operator's `probes::INTERVAL` (120 s):
/// on the connection that the operator holds to a coordinator nothing comes for that long, and its end would look like that of the coordinator.
const SILENCE_MAX: Duration = Duration::from_secs(180);

/// A listener that keeps at most [`CONNECTIONS_MAX`] connections.
#[derive(Debug)]
pub struct LimitedListener {
    listener: TcpListener,
    most: usize,
    silence: Duration,
    open: Vec<Open>,
    /// Grows with whatever happens on a connection, and so orders it.
    events: Arc<AtomicU64>,
}

/// A connection, as its listener knows it.
#[derive(Debug)]
struct Open {
    /// The event when something came last.
    heard: Arc<AtomicU64>,
    /// The connection ends when this is dropped. It is closed once the connection has ended.
    end: oneshot::Sender<()>,
}

impl LimitedListener {
    /// Limits the connections of this listener.
    #[must_use]
    pub fn new(listener: TcpListener) -> LimitedListener {
        LimitedListener::with(listener, CONNECTIONS_MAX, SILENCE_MAX)
    }

    fn with(listener: TcpListener, most: usize, silence: Duration) -> LimitedListener {
        LimitedListener {
            listener,
            most,
            silence,
            open: Vec::new(),
            events: Arc::default(),
        }
    }

    /// Ends the connection that was silent for longest, if there is no place for another one.
    fn make_room(&mut self) {
        self.open.retain(|open| !open.end.is_closed());
        if self.open.len() < self.most {
            return;
        }
        let heard = |(_, open): &(usize, &Open)| open.heard.load(Ordering::Relaxed);
        if let Some((longest_silent, _)) = self.open.iter().enumerate().min_by_key(heard) {
            drop(self.open.swap_remove(longest_silent));
        }
    }
}

impl Listener for LimitedListener {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let (socket, from) = Listener::accept(&mut self.listener).await;
        self.make_room();
        let (end, ended) = oneshot::channel();
        let connection = Connection {
            socket,
            silence: self.silence,
            silent_until: Box::pin(sleep(self.silence)),
            ended,
            has_ended: false,
            heard: Arc::default(),
            events: Arc::clone(&self.events),
        };
        connection.hear();
        self.open.push(Open {
            heard: Arc::clone(&connection.heard),
            end,
        });
        (connection, from)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection of a [`LimitedListener`].
#[derive(Debug)]
pub struct Connection {
    socket: TcpStream,
    silence: Duration,
    /// When it ends if nothing comes until then.
    silent_until: Pin<Box<Sleep>>,
    /// Completes when another connection needs the place.
    ended: oneshot::Receiver<()>,
    has_ended: bool,
    /// The event when something came last.
    heard: Arc<AtomicU64>,
    events: Arc<AtomicU64>,
}

impl Connection {
    /// Notes that something has come.
    fn hear(&self) {
        let event = self.events.fetch_add(1, Ordering::Relaxed);
        self.heard.store(event, Ordering::Relaxed);
    }

    /// An error once another connection needs the place.
    fn check_place(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        // A channel that has completed must not be polled again.
        if !self.has_ended {
            self.has_ended = Pin::new(&mut self.ended).poll(context).is_ready();
        }
        match self.has_ended {
            true => Err(io::ErrorKind::ConnectionAborted.into()),
            false => Ok(()),
        }
    }

    /// What was written. An answer that nobody reads does not keep the connection open.
    fn unless_silent(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            return written;
        }
        let silent = self.silent_until.as_mut().poll(context);
        silent.map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_place(context)?;
        let read = Pin::new(&mut self.socket).poll_read(context, buffer);
        if read.is_ready() {
            let end = Instant::now() + self.silence;
            self.silent_until.as_mut().reset(end);
            self.hear();
            return read;
        }
        // A server always waits to read.
        let silent = self.silent_until.as_mut().poll(context);
        silent.map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_place(context)?;
        let written = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.unless_silent(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_place(context)?;
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, parts);
        self.unless_silent(context, written)
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
    async fn port(most: usize, silence: Duration) -> (LimitedListener, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (LimitedListener::with(listener, most, silence), client)
    }

    async fn read(connection: &mut Connection) -> io::Result<u8> {
        let mut byte = [0];
        connection.read_exact(&mut byte).await?;
        Ok(byte[0])
    }

    #[tokio::test]
    async fn the_longest_silent_connection_makes_room_for_another() {
        let (mut port, mut client) = port(2, SILENCE_MAX).await;
        let address = port.local_addr().unwrap();
        let (mut first, _) = port.accept().await;
        let _another = TcpStream::connect(address).await.unwrap();
        let (mut second, _) = port.accept().await;
        client.write_all(b"ab").await.unwrap();
        assert_eq!(read(&mut first).await.unwrap(), b'a');
        let _third = TcpStream::connect(address).await.unwrap();
        let (_kept, _) = port.accept().await;
        for _ in 0..2 {
            let ended = read(&mut second).await.unwrap_err();
            assert_eq!(ended.kind(), io::ErrorKind::ConnectionAborted);
        }
        assert_eq!(read(&mut first).await.unwrap(), b'b');
    }

    #[tokio::test]
    async fn a_connection_that_has_ended_leaves_its_place() {
        let (mut port, _client) = port(2, SILENCE_MAX).await;
        let address = port.local_addr().unwrap();
        let (_first, _) = port.accept().await;
        let heard = Arc::clone(&port.open[0].heard);
        for _ in 0..3 {
            let _client = TcpStream::connect(address).await.unwrap();
            let (another, _) = port.accept().await;
            assert_eq!(port.open.len(), 2);
            drop(another);
        }
        // It was silent for longest, and would have made room for another.
        let is_first = |open: &&Open| Arc::ptr_eq(&open.heard, &heard);
        let first = port.open.iter().find(is_first).expect("its place is kept");
        assert!(!first.end.is_closed());
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
