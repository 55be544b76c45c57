//! The first bytes of a connection, by which both sides prove that they know the generation's secret.
//!
//! ```text
//! dialer   -> acceptor   hello: magic, version u32, generation u64, dialer u64, acceptor u64, nonce (32 bytes), encrypted u8
//! acceptor -> dialer     answer: one byte; if it takes the hello, its own nonce (32 bytes)
//!                        a TLS handshake, where the job encrypts; all that follows is inside
//! acceptor -> dialer     proof (32 bytes)
//! dialer   -> acceptor   proof (32 bytes)
//! ```
//!
//! A proof is an HMAC-SHA256 over all that was said and the prover's side, under a key that HKDF derives from the secret for this
//! generation. Each side draws a nonce for each connection, so that what was recorded proves nothing later. The dialer's
//! proof comes last and is the confirmation: without it an acceptor could not tell a lost connection from one that its
//! dialer gave up.
//!
//! Whether a connection is encrypted is the job's to say, to both sides, and nothing is negotiated: an acceptor refuses a hello that says
//! otherwise than its own job. Inside TLS the proofs are over the session's [`Binding`] too.

use crate::Binding;
use hkdf::Hkdf;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::io::{self, Read, Write};
use varuna_plan::{Generation, WorkerId};

/// First bytes of every connection.
const MAGIC: [u8; 4] = *b"VRNA";
/// Version of this format and of the frames after it. Workers with another version are refused.
pub const VERSION: u32 = 7;
/// Bytes of a hello.
pub const HELLO_BYTES: usize = 4 + 4 + 8 + 8 + 8 + 32 + 1;
/// What the key of a generation is for: no other key that is derived from a secret may have this purpose.
const PURPOSE: &[u8] = b"varuna data plane: proofs of a hello";

/// 32 random bytes that are used once.
pub type Nonce = [u8; 32];
/// See [`Greeting::prove`].
pub type Proof = [u8; 32];

/// Why an acceptor refuses a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// A later try may succeed.
    #[error("the generation is not known to the peer: not yet, or not any more")]
    Generation,
    /// A proof is wrong, or the hello is for another worker.
    #[error("who answers there knows another secret, or is another worker")]
    Secret,
    /// Another version of the format.
    #[error(
        "the peer speaks another version of the data plane than {VERSION}: workers of one run are of one build"
    )]
    Version,
    /// They were not given the same job.
    #[error("one side encrypts (network.encryption of the job file) and the other does not")]
    Encryption,
}

/// The first message of a connection, from the dialer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The generation of the connection.
    pub generation: Generation,
    /// The dialer.
    pub from: WorkerId,
    /// The acceptor.
    pub to: WorkerId,
    /// Drawn by the dialer for this connection.
    pub nonce: Nonce,
    /// What follows the answer is encrypted.
    pub encrypted: bool,
}

impl Hello {
    fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
        for (at, number) in [(8, self.generation.0), (16, self.from.0), (24, self.to.0)] {
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes[32..64].copy_from_slice(&self.nonce);
        bytes[64] = u8::from(self.encrypted);
        bytes
    }

    /// Sends the hello.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&self.encode())
    }

    /// Receives a hello.
    ///
    /// # Errors
    /// The connection is broken, or the bytes are not a hello (`InvalidData`).
    pub fn read(input: &mut impl Read) -> io::Result<Result<Hello, Refusal>> {
        let mut bytes = [0u8; HELLO_BYTES];
        input.read_exact(&mut bytes)?;
        if bytes[..4] != MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a Varuna worker"));
        }
        if bytes[4..8] != VERSION.to_le_bytes() {
            return Ok(Err(Refusal::Version));
        }
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let nonce = std::array::from_fn(|i| bytes[32 + i]);
        if bytes[64] > 1 {
            let why = format!(
                "byte {} does not say whether a connection is encrypted; 0 or 1 does",
                bytes[64]
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let hello = Hello {
            generation: Generation(number(8)),
            from: WorkerId(number(16)),
            to: WorkerId(number(24)),
            nonce,
            encrypted: bytes[64] == 1,
        };
        Ok(Ok(hello))
    }
}

/// The side of a connection that proves itself. One side's proof is never taken for the other's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Who opened the connection, and sends frames.
    Dialer,
    /// Who listens.
    Acceptor,
}

/// All that was said before the proofs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Greeting {
    /// The dialer's hello.
    pub hello: Hello,
    /// Drawn by the acceptor for this connection.
    pub nonce: Nonce,
    /// Of the TLS session in which the proofs are sent, if there is one.
    pub binding: Option<Binding>,
}

impl Greeting {
    /// One side's proof that it knows the generation's secret and heard the same; the secret itself is never sent.
    #[must_use]
    pub fn prove(&self, secret: &str, side: Side) -> Proof {
        self.mac(secret, side).finalize().into_bytes().into()
    }

    /// Whether this is that side's proof, in constant time.
    #[must_use]
    pub fn proves(&self, secret: &str, side: Side, proof: &Proof) -> bool {
        self.mac(secret, side).verify_slice(proof).is_ok()
    }

    fn mac(&self, secret: &str, side: Side) -> Hmac<Sha256> {
        let mut key = [0u8; 32];
        let generation = self.hello.generation.0.to_le_bytes();
        Hkdf::<Sha256>::new(None, secret.as_bytes())
            .expand_multi_info(&[PURPOSE, &generation], &mut key)
            .expect("HKDF gives keys of 32 bytes");
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("HMAC takes keys of any length");
        mac.update(match side {
            Side::Dialer => b"dialer  ",
            Side::Acceptor => b"acceptor",
        });
        mac.update(&self.hello.encode());
        mac.update(&self.nonce);
        // With and without one the messages differ in length, and in the hello's last byte.
        mac.update(self.binding.as_ref().map_or(&[], |binding| binding.as_slice()));
        mac
    }
}

/// Sends a proof.
///
/// # Errors
/// The connection is broken.
pub fn write_proof(out: &mut impl Write, proof: &Proof) -> io::Result<()> {
    out.write_all(proof)
}

/// Receives a proof.
///
/// # Errors
/// The connection is broken, or was given up.
pub fn read_proof(input: &mut impl Read) -> io::Result<Proof> {
    let mut proof = [0u8; 32];
    input.read_exact(&mut proof)?;
    Ok(proof)
}

/// Sends the answer to a hello: the acceptor's nonce, or why it takes no connection.
///
/// # Errors
/// The connection is broken.
pub fn write_answer(out: &mut impl Write, answer: Result<Nonce, Refusal>) -> io::Result<()> {
    match answer {
        Ok(nonce) => {
            let mut bytes = [0u8; 33];
            bytes[1..].copy_from_slice(&nonce);
            out.write_all(&bytes)
        }
        Err(Refusal::Generation) => out.write_all(&[1]),
        Err(Refusal::Secret) => out.write_all(&[2]),
        Err(Refusal::Version) => out.write_all(&[3]),
        Err(Refusal::Encryption) => out.write_all(&[4]),
    }
}

/// Receives the answer to a hello.
///
/// # Errors
/// The connection is broken, or the byte is not an answer (`InvalidData`).
pub fn read_answer(input: &mut impl Read) -> io::Result<Result<Nonce, Refusal>> {
    let mut byte = [0u8];
    input.read_exact(&mut byte)?;
    match byte[0] {
        0 => {
            let mut nonce = [0u8; 32];
            input.read_exact(&mut nonce)?;
            Ok(Ok(nonce))
        }
        1 => Ok(Err(Refusal::Generation)),
        2 => Ok(Err(Refusal::Secret)),
        3 => Ok(Err(Refusal::Version)),
        4 => Ok(Err(Refusal::Encryption)),
        other => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("byte {other} is not an answer"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GREETING: Greeting = Greeting {
        hello: Hello {
            generation: Generation(3),
            from: WorkerId(1),
            to: WorkerId(2),
            nonce: [7; 32],
            encrypted: true,
        },
        nonce: [9; 32],
        binding: Some([5; 32]),
    };

    #[test]
    fn a_hello_and_its_answer_survive_the_wire() {
        let hello = GREETING.hello;
        let mut wire = Vec::new();
        hello.write(&mut wire).unwrap();
        assert_eq!(Hello::read(&mut wire.as_slice()).unwrap(), Ok(hello));
        wire[64] = 2;
        assert!(Hello::read(&mut wire.as_slice()).is_err());
        wire[4] ^= 1;
        assert_eq!(Hello::read(&mut wire.as_slice()).unwrap(), Err(Refusal::Version));
        assert!(Hello::read(&mut [7u8; HELLO_BYTES].as_slice()).is_err());
        let refusals = [
            Refusal::Generation,
            Refusal::Secret,
            Refusal::Version,
            Refusal::Encryption,
        ]
        .map(Err);
        for answer in [Ok([5; 32])].into_iter().chain(refusals) {
            let mut wire = Vec::new();
            write_answer(&mut wire, answer).unwrap();
            assert_eq!(read_answer(&mut wire.as_slice()).unwrap(), answer);
        }
        assert!(read_answer(&mut [5u8].as_slice()).is_err());
    }

    #[test]
    fn a_proof_is_of_one_secret_and_side_and_of_all_that_was_said() {
        let proof = GREETING.prove("s", Side::Dialer);
        assert!(GREETING.proves("s", Side::Dialer, &proof));
        assert!(!GREETING.proves("t", Side::Dialer, &proof));
        assert!(!GREETING.proves("s", Side::Acceptor, &proof));
        let changed: [fn(&mut Greeting); 8] = [
            |g| g.hello.generation = Generation(4),
            |g| g.hello.from = WorkerId(2),
            |g| g.hello.to = WorkerId(1),
            |g| g.hello.nonce[31] ^= 1,
            |g| g.hello.encrypted = false,
            |g| g.nonce[0] ^= 1,
            |g| g.binding = Some([6; 32]),
            |g| g.binding = None,
        ];
        for (i, change) in changed.into_iter().enumerate() {
            let mut other = GREETING;
            change(&mut other);
            assert!(!other.proves("s", Side::Dialer, &proof), "change {i}");
        }
    }
}
