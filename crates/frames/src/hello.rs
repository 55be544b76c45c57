//! The first bytes of a connection, by which both sides prove that they know the generation's secret.
//!
//! ```text
//! dialer   -> acceptor   hello: magic, newest version u32, oldest version u32, generation u64, dialer u64, acceptor u64,
//!                        nonce (32 bytes), encrypted u8
//! acceptor -> dialer     answer: one byte; if it takes the hello, the version u32 that is spoken from here on and its own
//!                        nonce (32 bytes); if there is none, its newest and its oldest version u32
//!                        a TLS handshake, where the job encrypts; all that follows is inside
//! acceptor -> dialer     proof (32 bytes)
//! dialer   -> acceptor   proof (32 bytes)
//! ```
//!
//! A proof is an HMAC-SHA256 over the whole handshake so far and the prover's side, under a key that HKDF derives from the secret for this
//! generation. Each side draws a nonce for each connection, so a recorded handshake proves nothing later. The dialer's proof comes last and
//! is the confirmation: without it an acceptor could not distinguish a lost connection from one that its dialer gave up.
//!
//! **Versions.** Each side speaks all versions from its oldest to its newest, and the acceptor chooses the newest that both know, so that
//! workers of neighbouring releases train together. The proofs cover both ranges and the choice, so nobody in between can force an older
//! version. Hello and answer have this form in all versions from 8 on; what follows depends on the chosen version.
//!
//! The job decides whether connections are encrypted, for both sides, and nothing is negotiated: an acceptor refuses a hello that differs
//! from its own job. Inside TLS the proofs also cover the session's [`Binding`].

use crate::Binding;
use hkdf::Hkdf;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::io::{self, Read, Write};
use varuna_plan::{Generation, WorkerId};
use varuna_protocol::Versions;

/// First bytes of every connection.
const MAGIC: [u8; 4] = *b"VRNA";
/// Versions of the frames and their contents that this build speaks. A release also speaks the newest version of the release before. 8 is
/// the first version with a range.
pub const VERSIONS: Versions = Versions {
    oldest: 8,
    newest: 8 + cfg!(feature = "next-version") as u32,
};
/// Bytes of a hello.
pub const HELLO_BYTES: usize = 4 + 4 + 4 + 8 + 8 + 8 + 32 + 1;
/// Bytes of a hello up to and including the newest version, which did not change when the range was added.
const BEGINNING_BYTES: usize = 8;
/// The first version whose hello has a range.
const FIRST_WITH_RANGE: u32 = 8;
/// Purpose of a generation's key: no other key that is derived from a secret may have the same purpose.
const PURPOSE: &[u8] = b"varuna data plane: proofs of a hello";

/// 32 random bytes, used once.
pub type Nonce = [u8; 32];
/// See [`Handshake::prove`].
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
    /// There is no version that both speak.
    #[error(
        "the peer speaks {0} of the data plane, this build {VERSIONS}; use workers of one release or of neighbouring ones"
    )]
    Versions(Versions),
    /// The two workers were not given the same job.
    #[error("one side encrypts (network.encryption of the job file) and the other does not")]
    Encryption,
}

/// The first message of a connection, from the dialer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The versions that the dialer speaks.
    pub versions: Versions,
    /// The generation of the connection.
    pub generation: Generation,
    /// The dialer.
    pub from: WorkerId,
    /// The acceptor.
    pub to: WorkerId,
    /// Drawn by the dialer for this connection.
    pub nonce: Nonce,
    /// Whether everything after the answer is encrypted.
    pub encrypted: bool,
}

impl Hello {
    fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..12].copy_from_slice(&encode_versions(self.versions));
        for (at, number) in [(12, self.generation.0), (20, self.from.0), (28, self.to.0)] {
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes[36..68].copy_from_slice(&self.nonce);
        bytes[68] = u8::from(self.encrypted);
        bytes
    }

    /// Sends the hello.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&self.encode())
    }

    /// Receives a hello. Returns it with the version to speak from here on, or the reason why there is none.
    ///
    /// # Errors
    /// The connection is broken, or the bytes are not a hello (`InvalidData`).
    pub fn read(input: &mut impl Read) -> io::Result<Result<(Hello, u32), Refusal>> {
        let mut bytes = [0u8; HELLO_BYTES];
        let (beginning, rest) = bytes.split_at_mut(BEGINNING_BYTES);
        input.read_exact(beginning)?;
        if beginning[..4] != MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a Varuna worker"));
        }
        // A hello from before version ranges has a single version and is shorter: waiting for the rest would never end.
        let newest = number(&beginning[4..]);
        if newest < FIRST_WITH_RANGE {
            let oldest = newest;
            return Ok(Err(Refusal::Versions(Versions { oldest, newest })));
        }
        input.read_exact(rest)?;
        let versions = decode_versions(std::array::from_fn(|i| bytes[4 + i]));
        let Some(version) = VERSIONS.common(versions) else {
            return Ok(Err(Refusal::Versions(versions)));
        };
        if bytes[68] > 1 {
            let why = format!(
                "byte {} does not say whether a connection is encrypted; 0 or 1 does",
                bytes[68]
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let hello = Hello {
            versions,
            generation: Generation(number(12)),
            from: WorkerId(number(20)),
            to: WorkerId(number(28)),
            nonce: std::array::from_fn(|i| bytes[36 + i]),
            encrypted: bytes[68] == 1,
        };
        Ok(Ok((hello, version)))
    }
}

/// The newest version comes first, at the position of the version in hellos without a range.
fn encode_versions(versions: Versions) -> [u8; 8] {
    let (newest, oldest) = (versions.newest.to_le_bytes(), versions.oldest.to_le_bytes());
    std::array::from_fn(|i| if i < 4 { newest[i] } else { oldest[i - 4] })
}

fn decode_versions(bytes: [u8; 8]) -> Versions {
    Versions {
        oldest: number(&bytes[4..]),
        newest: number(&bytes),
    }
}

/// The number in the first four bytes, which must be there.
fn number(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[i]))
}

/// The side of a connection that proves itself. A proof of one side is not valid for the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Who opened the connection, and sends frames.
    Dialer,
    /// The side that accepts the connection.
    Acceptor,
}

/// Everything that was exchanged before the proofs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handshake {
    /// The dialer's hello.
    pub hello: Hello,
    /// The version that the acceptor has chosen.
    pub version: u32,
    /// Drawn by the acceptor for this connection.
    pub nonce: Nonce,
    /// The binding of the TLS session in which the proofs are sent, if there is one.
    pub binding: Option<Binding>,
}

impl Handshake {
    /// One side's proof that it knows the generation's secret and saw the same handshake. The secret itself is never sent.
    #[must_use]
    pub fn prove(&self, secret: &str, side: Side) -> Proof {
        self.mac(secret, side).finalize().into_bytes().into()
    }

    /// Whether this is the proof of that side; compares in constant time.
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
        mac.update(&self.version.to_le_bytes());
        mac.update(&self.nonce);
        // With and without a binding the messages differ in length, and in the hello's last byte.
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

/// The answer of an acceptor that accepts a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The version that is spoken from here on.
    pub version: u32,
    /// Drawn by the acceptor for this connection.
    pub nonce: Nonce,
}

/// Sends the answer to a hello, or the reason for refusing it.
///
/// # Errors
/// The connection is broken.
pub fn write_answer(out: &mut impl Write, answer: Result<Answer, Refusal>) -> io::Result<()> {
    match answer {
        Ok(Answer { version, nonce }) => {
            let mut bytes = [0u8; 37];
            bytes[1..5].copy_from_slice(&version.to_le_bytes());
            bytes[5..].copy_from_slice(&nonce);
            out.write_all(&bytes)
        }
        Err(Refusal::Generation) => out.write_all(&[1]),
        Err(Refusal::Secret) => out.write_all(&[2]),
        Err(Refusal::Versions(_)) => {
            let mut bytes = [3u8; 9];
            bytes[1..].copy_from_slice(&encode_versions(VERSIONS));
            out.write_all(&bytes)
        }
        Err(Refusal::Encryption) => out.write_all(&[4]),
    }
}

/// Receives the answer to a hello.
///
/// # Errors
/// The connection is broken, or the bytes are not a valid answer (`InvalidData`): an unknown one, or a version that this build does not
/// speak.
pub fn read_answer(input: &mut impl Read) -> io::Result<Result<Answer, Refusal>> {
    let invalid = |why: String| Err(io::Error::new(io::ErrorKind::InvalidData, why));
    let mut byte = [0u8];
    input.read_exact(&mut byte)?;
    match byte[0] {
        0 => {
            let mut bytes = [0u8; 36];
            input.read_exact(&mut bytes)?;
            let version = number(&bytes);
            if !VERSIONS.contain(version) {
                return invalid(format!(
                    "the peer takes version {version} of the data plane; this build speaks {VERSIONS}"
                ));
            }
            let nonce = std::array::from_fn(|i| bytes[4 + i]);
            Ok(Ok(Answer { version, nonce }))
        }
        1 => Ok(Err(Refusal::Generation)),
        2 => Ok(Err(Refusal::Secret)),
        3 => {
            let mut bytes = [0u8; 8];
            input.read_exact(&mut bytes)?;
            Ok(Err(Refusal::Versions(decode_versions(bytes))))
        }
        4 => Ok(Err(Refusal::Encryption)),
        other => invalid(format!("byte {other} is not an answer")),
    }
}

#[cfg(test)]
mod tests;
