//! Encrypts a connection: TLS 1.3 between two workers that know no certificate of each other.
//!
//! Each worker signs its own certificate, and accepts any: TLS keeps out eavesdroppers, but does not authenticate the other side. The
//! handshake's proofs do. They cover the session's exporter (RFC 9266), which differs between the two sessions of a man in the middle, so a
//! proof of one session is not valid in another.
//!
//! A session is one state machine for both directions, so its two ends could have to wait for each other. Here they cannot: after the
//! handshake a connection carries frames in one direction. So its writer only writes and its reader only reads. What TLS itself could have
//! to answer is either switched off (tickets) or needs no answer before the end (a key update).

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, ClientConnection, Resumption};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ServerConfig, ServerConnection};
use rustls::version::TLS13;
use rustls::{Connection, DigitallySignedStruct, SignatureScheme};
use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;

/// The name in every worker's certificate. Nothing depends on it.
const NAME: &str = "varuna-worker";
/// RFC 9266: label of the exporter that is bound to one session.
const EXPORTER: &[u8] = b"EXPORTER-Channel-Binding";

/// The exported value that only the two ends of a TLS session know.
pub type Binding = [u8; 32];

/// Why a worker has no key for encryption.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The certificate could not be made.
    #[error("cannot make this worker's certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// The TLS library does not accept key or certificate.
    #[error("cannot set up TLS with this worker's own certificate: {0}")]
    Setup(#[from] rustls::Error),
}

/// A worker's key and certificate.
#[derive(Clone)]
pub struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Tls {
    /// A new key, and a certificate signed with it.
    ///
    /// # Errors
    /// The operating system gives no random bytes.
    pub fn new() -> Result<Tls, TlsError> {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        // The provider is named explicitly, because the process's default depends on what else is linked.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(
                provider.signature_verification_algorithms,
            )))
            .with_no_client_auth();
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.into())?;
        // A ticket would be sent after the handshake, to a dialer that only writes; and no session is resumed.
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Tls {
            client: Arc::new(client),
            server: Arc::new(server),
        })
    }

    /// The dialer's side of a handshake.
    ///
    /// # Errors
    /// The connection is broken, or the other side does not speak TLS 1.3 (`InvalidData`).
    pub fn dial<S: Read + Write>(&self, socket: S) -> io::Result<Encrypted<S>> {
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        let session = ClientConnection::new(Arc::clone(&self.client), name).map_err(io::Error::other)?;
        Encrypted::begin(session.into(), socket)
    }

    /// The acceptor's side of a handshake.
    ///
    /// # Errors
    /// The connection is broken, or the other side does not speak TLS 1.3 (`InvalidData`).
    pub fn accept<S: Read + Write>(&self, socket: S) -> io::Result<Encrypted<S>> {
        let session = ServerConnection::new(Arc::clone(&self.server)).map_err(io::Error::other)?;
        Encrypted::begin(session.into(), socket)
    }
}

/// A connection after the handshake. Reading never writes, and writing never reads.
pub struct Encrypted<S> {
    session: Connection,
    socket: S,
    binding: Binding,
}

impl<S: Read + Write> Encrypted<S> {
    fn begin(mut session: Connection, mut socket: S) -> io::Result<Encrypted<S>> {
        while session.is_handshaking() {
            session.complete_io(&mut socket)?;
        }
        send(&mut session, &mut socket)?;
        let binding = session
            .export_keying_material(Binding::default(), EXPORTER, None)
            .map_err(io::Error::other)?;
        Ok(Encrypted {
            session,
            socket,
            binding,
        })
    }
}

impl<S> Encrypted<S> {
    /// The value that the handshake's proofs cover.
    #[must_use]
    pub fn binding(&self) -> Binding {
        self.binding
    }

    /// The session without its socket, and the socket.
    #[must_use]
    pub fn apart(self) -> (Encrypted<()>, S) {
        let Encrypted {
            session,
            socket,
            binding,
        } = self;
        let apart = Encrypted {
            session,
            socket: (),
            binding,
        };
        (apart, socket)
    }

    /// The session over another handle of the same socket.
    #[must_use]
    pub fn on<T>(self, socket: T) -> Encrypted<T> {
        Encrypted {
            session: self.session,
            socket,
            binding: self.binding,
        }
    }
}

impl<S: Read> Read for Encrypted<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.session.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // No bytes follow the other side's close notification; `UnexpectedEof` if the connection ends without one.
                ended_or_read => return ended_or_read,
            }
            self.session.read_tls(&mut self.socket)?;
            self.session
                .process_new_packets()
                .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        }
    }
}

impl<S: Write> Write for Encrypted<S> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let taken = self.session.writer().write(buffer)?;
        send(&mut self.session, &mut self.socket)?;
        Ok(taken)
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let taken = self.session.writer().write_vectored(buffers)?;
        send(&mut self.session, &mut self.socket)?;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        send(&mut self.session, &mut self.socket)?;
        self.socket.flush()
    }
}

/// Sends all that the session has encrypted. It continues after a signal: a caller that is told of the interruption would write again,
/// although the session already has the data.
fn send(session: &mut Connection, socket: &mut impl Write) -> io::Result<()> {
    while session.wants_write() {
        match session.write_tls(socket) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Accepts every certificate whose holder signs this handshake with its key.
#[derive(Debug)]
struct AnyCertificate(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    /// Both ends of a session over a socket.
    fn pair() -> (Encrypted<TcpStream>, Encrypted<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let dialer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let acceptor = listener.accept().unwrap().0;
        let accepting = std::thread::spawn(move || Tls::new().unwrap().accept(acceptor).unwrap());
        let dialed = Tls::new().unwrap().dial(dialer).unwrap();
        (dialed, accepting.join().unwrap())
    }

    #[test]
    fn only_both_ends_of_a_session_know_its_binding() {
        let ((a, b), (c, _)) = (pair(), pair());
        assert_eq!(a.binding(), b.binding());
        assert_ne!(a.binding(), c.binding());
    }

    #[test]
    fn what_is_written_arrives_and_is_not_sent_in_the_clear() {
        let (mut dialer, acceptor) = pair();
        let secret: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
        let (sent, seen) = (secret.clone(), acceptor.socket.try_clone().unwrap());
        let writing = std::thread::spawn(move || dialer.write_all(&sent).map(|()| dialer));
        let mut first = [0; 4096];
        while seen.peek(&mut first).unwrap() < first.len() {}
        assert!(!first.windows(16).any(|w| w == &secret[..16]));
        let (mut acceptor, mut received) = (acceptor, vec![0; secret.len()]);
        acceptor.read_exact(&mut received).unwrap();
        assert!(received == secret);
        drop(writing.join().unwrap());
        // The end came without a close message, so to the reader the connection seems to have been cut.
        let ended = acceptor.read(&mut [0]).unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
    }

    /// A socket that a signal interrupts before each write.
    struct Interrupted {
        socket: TcpStream,
        was: bool,
    }

    impl Write for Interrupted {
        fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
            self.was = !self.was;
            match self.was {
                true => Err(io::ErrorKind::Interrupted.into()),
                false => self.socket.write(buffer),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            self.socket.flush()
        }
    }

    #[test]
    fn what_a_signal_interrupts_is_sent_once() {
        let (dialer, mut acceptor) = pair();
        let (session, socket) = dialer.apart();
        let mut dialer = session.on(Interrupted { socket, was: false });
        for round in 0..3u8 {
            dialer.write_all(&[round; 100]).unwrap();
            let mut received = [9; 100];
            acceptor.read_exact(&mut received).unwrap();
            assert_eq!(received, [round; 100]);
        }
    }

    #[test]
    fn new_keys_on_the_way_need_no_answer() {
        // The library changes keys by itself only after 2^24 records, a quarter of a terabyte.
        let (mut dialer, mut acceptor) = pair();
        for round in 0..5u8 {
            dialer.write_all(&[round; 100]).unwrap();
            let mut received = [0; 100];
            acceptor.read_exact(&mut received).unwrap();
            assert_eq!(received, [round; 100]);
            dialer.session.refresh_traffic_keys().unwrap();
        }
        dialer.socket.set_nonblocking(true).unwrap();
        let silence = dialer.socket.peek(&mut [0]).unwrap_err();
        assert_eq!(
            silence.kind(),
            io::ErrorKind::WouldBlock,
            "the acceptor says nothing"
        );
    }

    #[test]
    fn a_byte_that_was_changed_on_its_way_ends_the_connection() {
        let (mut dialer, acceptor) = pair();
        dialer.write_all(&[7; 100]).unwrap();
        let mut record = [0; 122];
        let mut socket = acceptor.socket.try_clone().unwrap();
        socket.read_exact(&mut record).unwrap();
        record[60] ^= 1;
        let mut acceptor = acceptor.on(record.as_slice());
        let refused = acceptor.read(&mut [0; 100]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn who_speaks_no_tls_is_no_end_of_a_session() {
        struct NotTls;
        impl Read for NotTls {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                buffer.fill(7);
                Ok(buffer.len())
            }
        }
        impl Write for NotTls {
            fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
                Ok(buffer.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let tls = Tls::new().unwrap();
        let refused = |end: io::Result<Encrypted<NotTls>>| end.map(drop).unwrap_err().kind();
        assert_eq!(refused(tls.dial(NotTls)), io::ErrorKind::InvalidData);
        assert_eq!(refused(tls.accept(NotTls)), io::ErrorKind::InvalidData);
    }
}
