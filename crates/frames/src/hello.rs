//! The first bytes of a connection: a hello, its answer, and the answer's confirmation.
//!
//! Without the confirmation an acceptor could not tell a lost connection from one that its dialer gave up.

use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::io::{self, Read, Write};
use varuna_plan::{Generation, WorkerId};

/// First bytes of every connection.
const MAGIC: [u8; 4] = *b"VRNA";
/// Version of this format and of the frames after it. Workers with another version are refused.
pub const VERSION: u32 = 2;
/// The dialer sends this byte once it has been accepted.
const CONFIRMATION: u8 = 0xC5;
/// Bytes of a hello.
const HELLO_BYTES: usize = 4 + 4 + 8 + 8 + 8 + 32;

/// Why an acceptor refuses a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The generation is not known yet, or not any more. A later try may succeed.
    Generation,
    /// The proof is wrong, or the hello is for another worker.
    Secret,
    /// Another version of the format.
    Version,
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
    /// See [`Hello::prove`].
    pub proof: [u8; 32],
}

impl Hello {
    /// HMAC-SHA256 of (generation, from, to) under the generation's secret: the secret itself is never sent.
    #[must_use]
    pub fn prove(secret: &str, generation: Generation, from: WorkerId, to: WorkerId) -> [u8; 32] {
        mac(secret, generation, from, to).finalize().into_bytes().into()
    }

    /// Whether the proof matches this secret, in constant time.
    #[must_use]
    pub fn proves(&self, secret: &str) -> bool {
        mac(secret, self.generation, self.from, self.to)
            .verify_slice(&self.proof)
            .is_ok()
    }

    /// Sends the hello.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(HELLO_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        for number in [self.generation.0, self.from.0, self.to.0] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.proof);
        out.write_all(&bytes)
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
        let proof = std::array::from_fn(|i| bytes[32 + i]);
        let hello = Hello {
            generation: Generation(number(8)),
            from: WorkerId(number(16)),
            to: WorkerId(number(24)),
            proof,
        };
        Ok(Ok(hello))
    }
}

fn mac(secret: &str, generation: Generation, from: WorkerId, to: WorkerId) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes keys of any length");
    for number in [generation.0, from.0, to.0] {
        mac.update(&number.to_le_bytes());
    }
    mac
}

/// Sends the confirmation.
///
/// # Errors
/// The connection is broken.
pub fn write_confirmation(out: &mut impl Write) -> io::Result<()> {
    out.write_all(&[CONFIRMATION])
}

/// Waits for the confirmation.
///
/// # Errors
/// The connection is broken or was given up, or the byte is another one (`InvalidData`).
pub fn read_confirmation(input: &mut impl Read) -> io::Result<()> {
    let mut byte = [0u8];
    input.read_exact(&mut byte)?;
    if byte[0] == CONFIRMATION {
        Ok(())
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("byte {} is not a confirmation", byte[0]),
        ))
    }
}

/// Sends the answer to a hello.
///
/// # Errors
/// The connection is broken.
pub fn write_answer(out: &mut impl Write, answer: Result<(), Refusal>) -> io::Result<()> {
    out.write_all(&[match answer {
        Ok(()) => 0,
        Err(Refusal::Generation) => 1,
        Err(Refusal::Secret) => 2,
        Err(Refusal::Version) => 3,
    }])
}

/// Receives the answer to a hello.
///
/// # Errors
/// The connection is broken, or the byte is not an answer (`InvalidData`).
pub fn read_answer(input: &mut impl Read) -> io::Result<Result<(), Refusal>> {
    let mut byte = [0u8];
    input.read_exact(&mut byte)?;
    match byte[0] {
        0 => Ok(Ok(())),
        1 => Ok(Err(Refusal::Generation)),
        2 => Ok(Err(Refusal::Secret)),
        3 => Ok(Err(Refusal::Version)),
        other => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("byte {other} is not an answer"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_survives_the_wire_and_proves_one_generation_and_pair() {
        let proof = Hello::prove("s", Generation(3), WorkerId(1), WorkerId(2));
        assert_ne!(proof, Hello::prove("t", Generation(3), WorkerId(1), WorkerId(2)));
        assert_ne!(proof, Hello::prove("s", Generation(4), WorkerId(1), WorkerId(2)));
        let hello = Hello {
            generation: Generation(3),
            from: WorkerId(1),
            to: WorkerId(2),
            proof,
        };
        let mut wire = Vec::new();
        hello.write(&mut wire).unwrap();
        assert_eq!(Hello::read(&mut wire.as_slice()).unwrap(), Ok(hello));
        wire[4] ^= 1;
        assert_eq!(Hello::read(&mut wire.as_slice()).unwrap(), Err(Refusal::Version));
        assert!(Hello::read(&mut [7u8; 64].as_slice()).is_err());
    }
}
