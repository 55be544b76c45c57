//! Digests of a shard's data.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// A digest of the data after a shard's header, under the name of its hash function. Everything that is written has BLAKE3, as have states
/// between workers; files of format version 2 have SHA-256.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataDigest {
    /// BLAKE3, in hex.
    Blake3(String),
    /// SHA-256, in hex.
    Sha256(String),
}

impl DataDigest {
    /// The digest of data that are given in parts, in order.
    pub(crate) fn of<'a>(parts: impl Iterator<Item = &'a [u8]>) -> DataDigest {
        let mut hasher = DataHasher::new();
        parts.for_each(|part| hasher.update(part));
        hasher.finish()
    }
}

/// Computes a digest of data that come in parts.
pub(crate) enum DataHasher {
    Blake3(Box<blake3::Hasher>),
    Sha256(Sha256),
}

impl DataHasher {
    /// A hasher with the function that is used for writing.
    pub(crate) fn new() -> DataHasher {
        DataHasher::Blake3(Box::default())
    }

    /// A hasher with the function of this digest.
    pub(crate) fn like(digest: &DataDigest) -> DataHasher {
        match digest {
            DataDigest::Blake3(_) => DataHasher::new(),
            DataDigest::Sha256(_) => DataHasher::Sha256(Sha256::new()),
        }
    }

    pub(crate) fn update(&mut self, part: &[u8]) {
        match self {
            DataHasher::Blake3(hasher) => drop(hasher.update(part)),
            DataHasher::Sha256(hasher) => hasher.update(part),
        }
    }

    pub(crate) fn finish(self) -> DataDigest {
        match self {
            DataHasher::Blake3(hasher) => DataDigest::Blake3(hasher.finalize().to_hex().to_string()),
            DataHasher::Sha256(hasher) => DataDigest::Sha256(hex::encode(hasher.finalize())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_of_one_function_and_of_all_data() {
        // The functions' own test vectors for "abc".
        let blake3 = "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85";
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let new = DataDigest::Blake3(blake3.into());
        let old = DataDigest::Sha256(sha256.into());
        assert_eq!(DataDigest::of([&b"a"[..], b"bc"].into_iter()), new);
        for digest in [new, old] {
            let of = |parts: &[&[u8]]| {
                let mut hasher = DataHasher::like(&digest);
                parts.iter().for_each(|part| hasher.update(part));
                hasher.finish()
            };
            assert_eq!(of(&[b"ab", b"", b"c"]), digest);
            assert_ne!(of(&[b"ab", b"d"]), digest);
        }
    }
}
