//! The index of a dataset: Megatron-LM's `MMapIndexedDataset` format, little-endian throughout.
//!
//! ```text
//! magic "MMIDIDX\0\0" | version u64 = 1 | token type u8 | sequences u64 | documents + 1 u64
//! sizes i32[sequences]        tokens of each sequence
//! pointers i64[sequences]     where each starts in the .bin file, in bytes
//! documents i64[documents+1]  index of each document's first sequence, from 0 to `sequences`
//! ```
//!
//! Newer multi-modal indexes end with one mode byte per sequence, which is not needed here. The `.bin` file is the tokens
//! of all sequences one after another, which is why a reader needs to keep little of the index; where documents begin is read when it is asked for.

#[cfg(feature = "build")]
mod builder;
#[cfg(feature = "build")]
pub(crate) use builder::IndexBuilder;
mod documents;
mod sparse;
pub(crate) use documents::Documents;
pub(crate) use sparse::SparseIndex;

use crate::error::DataError;
use crate::files::DataFile;
use std::io::Read;
use std::path::Path;

const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
const VERSION: u64 = 1;
/// Bytes before the sizes.
const HEADER_LEN: u64 = 9 + 8 + 1 + 8 + 8;

/// How a token is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TokenType {
    /// 1 byte.
    U8,
    /// 2 bytes, for vocabularies below 65,500 (Megatron's own limit).
    U16,
    /// 2 bytes, signed.
    I16,
    /// 4 bytes, signed.
    I32,
    /// 8 bytes, signed.
    I64,
}

impl TokenType {
    /// The smallest type that Megatron would choose for a vocabulary.
    #[must_use]
    pub fn for_vocabulary(vocabulary: u32) -> TokenType {
        if vocabulary < 65_500 {
            TokenType::U16
        } else {
            TokenType::I32
        }
    }
    /// The code in the file. Codes 2, 6 and 7 (signed bytes, floats) are not for tokens.
    fn code(self) -> u8 {
        match self {
            TokenType::U8 => 1,
            TokenType::I16 => 3,
            TokenType::I32 => 4,
            TokenType::I64 => 5,
            TokenType::U16 => 8,
        }
    }
    fn of_code(code: u8) -> Option<TokenType> {
        [
            TokenType::U8,
            TokenType::I16,
            TokenType::I32,
            TokenType::I64,
            TokenType::U16,
        ]
        .into_iter()
        .find(|t| t.code() == code)
    }
    /// Bytes of a token.
    #[must_use]
    pub fn width(self) -> usize {
        match self {
            TokenType::U8 => 1,
            TokenType::U16 | TokenType::I16 => 2,
            TokenType::I32 => 4,
            TokenType::I64 => 8,
        }
    }
    /// Decodes `out.len()` tokens from `out.len()` x [`TokenType::width`] bytes.
    pub(crate) fn decode(self, bytes: &[u8], out: &mut [i64]) {
        let tokens = bytes.chunks_exact(self.width());
        for (to, b) in out.iter_mut().zip(tokens) {
            *to = match self {
                TokenType::U8 => i64::from(b[0]),
                TokenType::U16 => i64::from(u16::from_le_bytes([b[0], b[1]])),
                TokenType::I16 => i64::from(i16::from_le_bytes([b[0], b[1]])),
                TokenType::I32 => i64::from(i32::from_le_bytes([b[0], b[1], b[2], b[3]])),
                TokenType::I64 => i64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
            };
        }
    }
}

/// Sizes of a dataset, from its index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Index {
    pub(crate) token_type: TokenType,
    pub(crate) tokens: u64,
    pub(crate) sequences: u64,
    pub(crate) documents: u64,
}

/// Reads and checks an index against the length of its `.bin` file. In memory is only what `sparse` keeps of it.
pub(crate) fn read(
    (idx, path): (&DataFile, &Path),
    bin_path: &Path,
    bin_len: u64,
    sparse: &mut SparseIndex,
) -> Result<Index, DataError> {
    let len = idx.len().map_err(DataError::io("read", path))?;
    let from = |offset| Reader {
        path,
        from: idx.reader(offset),
    };
    let mut reader = from(0);
    let (token_type, sequences, document_entries) = reader.header(len)?;
    // Sizes and pointers are checked against each other, so two readers are needed.
    let mut pointers = from(HEADER_LEN + sequences * 4);
    let mut expected = 0_u64;
    for sequence in 0..sequences {
        let size = i32::from_le_bytes(reader.array()?);
        let pointer = i64::from_le_bytes(pointers.array()?);
        let size = u64::try_from(size).map_err(|_| reader.bad("sequence size", size, "0 or more"))?;
        if u64::try_from(pointer) != Ok(expected) {
            let allowed = format!("{expected}: sequences lie one after another from byte 0");
            return Err(reader.bad("sequence pointer", pointer, allowed));
        }
        sparse.note_pointer(sequence, expected);
        expected += size * token_type.width() as u64;
    }
    if expected != bin_len {
        let allowed =
            format!("{expected}, as its index says; the file was cut short or belongs to another index");
        return Err(DataError::malformed(
            bin_path,
            "length in bytes",
            bin_len,
            allowed,
        ));
    }
    // `pointers` now stands at the documents.
    pointers.documents(document_entries, sequences, sparse)?;
    let tokens = expected / token_type.width() as u64;
    Ok(Index {
        token_type,
        tokens,
        sequences,
        documents: document_entries - 1,
    })
}

struct Reader<'a, R> {
    path: &'a Path,
    from: R,
}

impl<R: Read> Reader<'_, R> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DataError> {
        let mut bytes = [0; N];
        self.from
            .read_exact(&mut bytes)
            .map_err(DataError::io("read", self.path))?;
        Ok(bytes)
    }

    fn bad(&self, what: &'static str, value: impl ToString, allowed: impl Into<String>) -> DataError {
        DataError::malformed(self.path, what, value, allowed)
    }

    /// Token type, number of sequences, number of document entries. Checks the length of the file.
    fn header(&mut self, len: u64) -> Result<(TokenType, u64, u64), DataError> {
        if len < HEADER_LEN {
            return Err(self.bad(
                "length in bytes",
                len,
                format!("at least {HEADER_LEN}: the file was cut short"),
            ));
        }
        let magic: [u8; 9] = self.array()?;
        if &magic != MAGIC {
            let found = String::from_utf8_lossy(&magic).escape_debug().to_string();
            return Err(self.bad(
                "first bytes",
                found,
                "MMIDIDX\\0\\0, the mark of an indexed dataset",
            ));
        }
        let version = u64::from_le_bytes(self.array()?);
        if version != VERSION {
            return Err(self.bad("version", version, VERSION.to_string()));
        }
        let [code] = self.array()?;
        let token_type = TokenType::of_code(code)
            .ok_or_else(|| self.bad("token type", code, "1 (u8), 3 (i16), 4 (i32), 5 (i64) or 8 (u16)"))?;
        let sequences = u64::from_le_bytes(self.array()?);
        let documents = u64::from_le_bytes(self.array()?);
        // Counts come from outside: compute in 128 bits, so that no product overflows.
        let needed = u128::from(HEADER_LEN) + u128::from(sequences) * 12 + u128::from(documents) * 8;
        if documents == 0 {
            return Err(self.bad("document entries", documents, "at least 1"));
        }
        if u128::from(len) != needed && u128::from(len) != needed + u128::from(sequences) {
            let allowed = format!("{needed} for {sequences} sequences and {documents} document entries");
            return Err(self.bad("length in bytes", len, allowed));
        }
        Ok((token_type, sequences, documents))
    }

    fn documents(&mut self, entries: u64, sequences: u64, sparse: &mut SparseIndex) -> Result<(), DataError> {
        let mut last = 0;
        for i in 0..entries {
            let entry = i64::from_le_bytes(self.array()?);
            let entry = u64::try_from(entry).map_err(|_| self.bad("document entry", entry, "0 or more"))?;
            if entry < last || entry > sequences || (i == 0 && entry != 0) {
                let allowed = format!("{last} to {sequences}, the first one 0");
                return Err(self.bad("document entry", entry, allowed));
            }
            sparse.note_document(i, entry);
            last = entry;
        }
        if last != sequences {
            return Err(self.bad(
                "last document entry",
                last,
                format!("{sequences}, the number of sequences"),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
#[cfg(feature = "build")]
mod tests;
