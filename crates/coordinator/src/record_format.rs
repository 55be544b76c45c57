//! The record as bytes: JSON, compressed with gzip (RFC 1952) if it is long. The first two bytes tell the two apart.
//!
//! An object of a cluster holds at most about 1 MiB, and a record with a planned change of thousands of workers is longer as text. A short
//! record stays text, which people can read without a tool and which every earlier release can read too.

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use std::io::{Read as _, Write as _};
use varuna_protocol::Record;

/// The first bytes of gzip. JSON never begins like this.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Texts of at least this length are compressed: records with a few hundred workers.
const COMPRESSED_FROM: usize = 1 << 16;
/// Maximum length of a record's text, bytes: two plans for 100,000 workers.
const TEXT_MAX: usize = 1 << 26;
/// Maximum ratio of a text's length to its compressed length; records reach about a tenth of it. It prevents a short input from taking
/// [`TEXT_MAX`] of memory.
const RATIO_MAX: usize = 64;

/// Why bytes are not a record, or a record cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum RecordFormatError {
    /// The text is no record.
    #[error("as text: {0}")]
    Text(#[from] serde_json::Error),
    /// Bytes that begin like gzip cannot be unpacked.
    #[error("compressed: {0}")]
    Compressed(#[from] std::io::Error),
    /// The file is longer than any record.
    #[error("compressed: {stored} bytes hold more than {allowed} bytes of text")]
    TooLong {
        /// Bytes that are stored.
        stored: usize,
        /// How much text they may hold.
        allowed: usize,
    },
}

/// Encodes a record.
///
/// # Errors
/// The record cannot be written as JSON.
pub fn encode(record: &Record) -> Result<Vec<u8>, RecordFormatError> {
    let text = serde_json::to_vec(record)?;
    if text.len() < COMPRESSED_FROM {
        return Ok(text);
    }
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&text)?;
    Ok(packed.finish()?)
}

/// Decodes a record: as [`encode`] writes it, or as text of any length.
///
/// # Errors
/// The bytes are not a record.
pub fn decode(stored: &[u8]) -> Result<Record, RecordFormatError> {
    if !stored.starts_with(&GZIP) {
        return Ok(serde_json::from_slice(stored)?);
    }
    Ok(serde_json::from_slice(&unpack(stored)?)?)
}

/// Unpacks gzip. Memory is allocated as the text is produced, and never more than is allowed.
fn unpack(stored: &[u8]) -> Result<Vec<u8>, RecordFormatError> {
    let allowed = stored.len().saturating_mul(RATIO_MAX).min(TEXT_MAX);
    let mut text = Vec::new();
    let most = u64::try_from(allowed).unwrap_or(u64::MAX);
    GzDecoder::new(stored)
        .take(most.saturating_add(1))
        .read_to_end(&mut text)?;
    if text.len() > allowed {
        return Err(RecordFormatError::TooLong {
            stored: stored.len(),
            allowed,
        });
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
