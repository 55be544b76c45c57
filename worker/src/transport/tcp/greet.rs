//! Both sides of a connection's first messages: who may send frames, and to whom.

use super::greetings::Greeting as Waiting;
use super::{Open, Shared};
use rand::TryRngCore as _;
use rand::rngs::OsRng;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};
use varuna_frames::{
    Greeting, Hello, Nonce, Refusal, Side, read_answer, read_proof, write_answer, write_proof,
};
use varuna_plan::WorkerId;

/// How long a peer may take for all of its part of a greeting.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A connection with a deadline for all of its reads and writes together.
struct Deadline<'a>(&'a TcpStream, Instant);

impl Deadline<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.1.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(io::ErrorKind::TimedOut.into())
        } else {
            Ok(Some(left))
        }
    }
}

impl Read for Deadline<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.set_read_timeout(self.left()?)?;
        self.0.read(buffer)
    }
}

impl Write for Deadline<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.0.set_write_timeout(self.left()?)?;
        self.0.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Begins a greeting.
fn begin(socket: &TcpStream) -> io::Result<Deadline<'_>> {
    socket.set_nodelay(true)?;
    Ok(Deadline(socket, Instant::now() + TIMEOUT))
}

/// The greeting has ended: reads and writes wait for as long as it takes.
fn end(socket: &TcpStream) -> io::Result<()> {
    socket.set_read_timeout(None)?;
    socket.set_write_timeout(None)
}

fn nonce() -> io::Result<Nonce> {
    let mut nonce = Nonce::default();
    OsRng.try_fill_bytes(&mut nonce).map_err(io::Error::other)?;
    Ok(nonce)
}

/// Checks who has connected. Returns the peer and its generation once both sides have proven themselves.
pub(super) fn accept(
    shared: &Shared,
    waiting: Waiting,
    socket: &TcpStream,
) -> io::Result<Option<(WorkerId, Arc<Open>)>> {
    let mut channel = begin(socket)?;
    let checked = Hello::read(&mut channel)?.and_then(|hello| {
        let open = shared.open(hello.generation).ok_or(Refusal::Generation)?;
        if hello.to == shared.me {
            Ok((hello, open))
        } else {
            Err(Refusal::Secret)
        }
    });
    let (hello, open) = match checked {
        Ok(known) => known,
        Err(refusal) => return write_answer(&mut channel, Err(refusal)).map(|()| None),
    };
    let greeting = Greeting {
        hello,
        nonce: nonce()?,
    };
    let mut answer = Vec::new();
    write_answer(&mut answer, Ok(greeting.nonce))?;
    write_proof(&mut answer, &greeting.prove(&open.secret, Side::Acceptor))?;
    channel.write_all(&answer)?;
    let proof = read_proof(&mut channel)?;
    if !greeting.proves(&open.secret, Side::Dialer, &proof) {
        let why = format!("the proof is not that of worker {}", hello.from);
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    if !waiting.end() || !open.accept(hello.from, socket) {
        return Ok(None);
    }
    end(socket)?;
    Ok(Some((hello.from, open)))
}

/// Connects to a peer. Returns the connection once both sides have proven themselves.
pub(super) fn dial(
    shared: &Shared,
    open: &Open,
    peer: WorkerId,
    address: &str,
) -> io::Result<Result<TcpStream, Refusal>> {
    let socket = connect(address)?;
    let mut channel = begin(&socket)?;
    let hello = Hello {
        generation: open.generation,
        from: shared.me,
        to: peer,
        nonce: nonce()?,
    };
    hello.write(&mut channel)?;
    let nonce = match read_answer(&mut channel)? {
        Ok(nonce) => nonce,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let greeting = Greeting { hello, nonce };
    let proof = read_proof(&mut channel)?;
    if !greeting.proves(&open.secret, Side::Acceptor, &proof) {
        return Ok(Err(Refusal::Secret));
    }
    write_proof(&mut channel, &greeting.prove(&open.secret, Side::Dialer))?;
    end(&socket)?;
    Ok(Ok(socket))
}

/// Connects to the first address of the name that answers (`localhost` has two, and a worker listens on one).
fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    for resolved in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&resolved, TIMEOUT) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}
