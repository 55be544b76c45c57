//! The handshake of a connection, for both sides: it decides who may send frames, and to whom.

use super::options::{self, End};
use super::pending_handshakes::PendingHandshake;
use super::{Open, Shared};
use rand::TryRngCore as _;
use rand::rngs::OsRng;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};
use varuna_frames::{
    Answer, Encrypted, Handshake, Hello, Nonce, Refusal, Side, VERSIONS, read_answer, read_proof,
    write_answer, write_proof,
};
use varuna_plan::WorkerId;

/// How long a peer may take for all of its part of a handshake.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The TLS session of a connection, if the job encrypts, without its socket.
pub(super) type Session = Option<Encrypted<()>>;

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

/// Begins a handshake.
fn begin(socket: &TcpStream, end: End) -> io::Result<Deadline<'_>> {
    options::set(socket, end)?;
    Ok(Deadline(socket, Instant::now() + TIMEOUT))
}

/// The handshake has ended: reads and writes wait for as long as it takes.
fn end(socket: &TcpStream) -> io::Result<()> {
    socket.set_read_timeout(None)?;
    socket.set_write_timeout(None)
}

fn nonce() -> io::Result<Nonce> {
    let mut nonce = Nonce::default();
    OsRng.try_fill_bytes(&mut nonce).map_err(io::Error::other)?;
    Ok(nonce)
}

/// Whether a hello is for this worker, and of a generation that is open here.
fn check(shared: &Shared, hello: Hello) -> Result<(Hello, Arc<Open>), Refusal> {
    let open = shared.open(hello.generation).ok_or(Refusal::Generation)?;
    if hello.to != shared.me {
        return Err(Refusal::Secret);
    }
    let encrypted = shared.tls.get().is_some();
    if hello.encrypted != encrypted {
        tracing::warn!(from = %hello.from, theirs = hello.encrypted, own = encrypted, "a peer is refused: {}", Refusal::Encryption);
        return Err(Refusal::Encryption);
    }
    Ok((hello, open))
}

/// Checks who has connected. Returns the peer and its generation once both sides have proven themselves.
pub(super) fn accept(
    shared: &Shared,
    pending: PendingHandshake,
    socket: &TcpStream,
) -> io::Result<Option<(WorkerId, Arc<Open>, Session)>> {
    let mut channel = begin(socket, End::Acceptor)?;
    let checked =
        Hello::read(&mut channel)?.and_then(|(hello, version)| Ok((check(shared, hello)?, version)));
    let ((hello, open), version) = match checked {
        Ok(known) => known,
        Err(refusal) => return write_answer(&mut channel, Err(refusal)).map(|()| None),
    };
    let nonce = nonce()?;
    let mut handshake = Handshake {
        hello,
        version,
        nonce,
        binding: None,
    };
    write_answer(&mut channel, Ok(Answer { version, nonce }))?;
    let session = if let Some(tls) = shared.tls.get() {
        let mut inside = tls.accept(channel)?;
        handshake.binding = Some(inside.binding());
        let session = prove_as_acceptor(&mut inside, &handshake, &open.secret);
        session.map(|()| Some(inside.on(())))
    } else {
        prove_as_acceptor(&mut channel, &handshake, &open.secret).map(|()| None)
    }?;
    if !pending.end() || !open.accept(hello.from, socket)? {
        return Ok(None);
    }
    end(socket)?;
    Ok(Some((hello.from, open, session)))
}

/// The acceptor's proof, and the dialer's after it.
fn prove_as_acceptor(
    channel: &mut (impl Read + Write),
    handshake: &Handshake,
    secret: &str,
) -> io::Result<()> {
    write_proof(channel, &handshake.prove(secret, Side::Acceptor))?;
    let proof = read_proof(channel)?;
    if handshake.proves(secret, Side::Dialer, &proof) {
        return Ok(());
    }
    let why = format!("the proof is not that of worker {}", handshake.hello.from);
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// The dialer's proof, if the acceptor's is right.
fn prove_as_dialer(
    channel: &mut (impl Read + Write),
    handshake: &Handshake,
    secret: &str,
) -> io::Result<Result<(), Refusal>> {
    let proof = read_proof(channel)?;
    if !handshake.proves(secret, Side::Acceptor, &proof) {
        return Ok(Err(Refusal::Secret));
    }
    write_proof(channel, &handshake.prove(secret, Side::Dialer)).map(Ok)
}

/// Connects to a peer. Returns the connection once both sides have proven themselves.
pub(super) fn dial(
    shared: &Shared,
    open: &Open,
    peer: WorkerId,
    address: &str,
) -> io::Result<Result<(TcpStream, Session), Refusal>> {
    let socket = connect(address)?;
    let mut channel = begin(&socket, End::Dialer)?;
    let hello = Hello {
        versions: VERSIONS,
        generation: open.generation,
        from: shared.me,
        to: peer,
        nonce: nonce()?,
        encrypted: shared.tls.get().is_some(),
    };
    hello.write(&mut channel)?;
    let Answer { version, nonce } = match read_answer(&mut channel)? {
        Ok(answer) => answer,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let mut handshake = Handshake {
        hello,
        version,
        nonce,
        binding: None,
    };
    let proven = if let Some(tls) = shared.tls.get() {
        let mut inside = tls.dial(channel)?;
        handshake.binding = Some(inside.binding());
        prove_as_dialer(&mut inside, &handshake, &open.secret)?.map(|()| Some(inside.on(())))
    } else {
        prove_as_dialer(&mut channel, &handshake, &open.secret)?.map(|()| None)
    };
    end(&socket)?;
    Ok(proven.map(|session| (socket, session)))
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
