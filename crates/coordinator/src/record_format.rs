//! The record as bytes: JSON, and where that is long, gzip of it (RFC 1952), which its first two bytes tell apart.
//!
//! An object of a cluster holds about 1 MiB at most, and a record with a planned change of thousands of workers is longer as text. A short
//! record stays text, which people read without a tool and every earlier release reads too.

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use std::io::{Read as _, Write as _};
use varuna_protocol::Record;

/// How gzip begins. JSON never does.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Texts from this length on are compressed: a few hundred workers.
const COMPRESSED_FROM: usize = 1 << 16;
/// Longest text of a record, bytes: two plans for 100,000 workers.
const TEXT_MAX: usize = 1 << 26;
/// A text is at most so many times as long as what it was compressed to; records come to about a tenth of that. It keeps a short
/// input from taking [`TEXT_MAX`] of memory.
const RATIO_MAX: usize = 64;

/// Why bytes are not a record, or a record cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum RecordFormatError {
    /// The text is no record.
    #[error("as text: {0}")]
    Text(#[from] serde_json::Error),
    /// What begins like gzip cannot be unpacked.
    #[error("compressed: {0}")]
    Compressed(#[from] std::io::Error),
    /// It is longer than records become.
    #[error("compressed: {stored} bytes hold more than {allowed} bytes of text")]
    TooLong {
        /// Bytes that are stored.
        stored: usize,
        /// How much text they may hold.
        allowed: usize,
    },
}

/// The bytes that stand for a record.
///
/// # Errors
/// It cannot be written as JSON.
pub fn encode(record: &Record) -> Result<Vec<u8>, RecordFormatError> {
    let text = serde_json::to_vec(record)?;
    if text.len() < COMPRESSED_FROM {
        return Ok(text);
    }
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&text)?;
    Ok(packed.finish()?)
}

/// The record that the bytes stand for: as [`encode`] writes it, or text of any length.
///
/// # Errors
/// They stand for none.
pub fn decode(stored: &[u8]) -> Result<Record, RecordFormatError> {
    if !stored.starts_with(&GZIP) {
        return Ok(serde_json::from_slice(stored)?);
    }
    Ok(serde_json::from_slice(&unpack(stored)?)?)
}

/// Memory is taken as the text comes out, and never for more than is allowed.
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
