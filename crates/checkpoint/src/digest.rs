//! Digests of a shard's data.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// A digest of what follows a shard's header, under the name of its function. All that is written has BLAKE3, as states between workers
/// have; files of format version 2 have SHA-256.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataDigest {
    /// BLAKE3, in hex.
    Blake3(String),
    /// SHA-256, in hex.
    Sha256(String),
}

impl DataDigest {
    /// Of the data whose parts these are, in order.
    pub(crate) fn of<'a>(parts: impl Iterator<Item = &'a [u8]>) -> DataDigest {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(part);
        }
        DataDigest::Blake3(hasher.finalize().to_hex().to_string())
    }

    /// Whether it is that of these data.
    pub(crate) fn is_of(&self, data: &[u8]) -> bool {
        match self {
            DataDigest::Blake3(hex) => *hex == *blake3::hash(data).to_hex(),
            DataDigest::Sha256(hex) => *hex == hex::encode(Sha256::digest(data)),
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
        let new = DataDigest::of([&b"a"[..], b"bc"].into_iter());
        assert_eq!(new, DataDigest::Blake3(blake3.into()));
        assert!(new.is_of(b"abc") && !new.is_of(b"abd"));
        let old = DataDigest::Sha256(sha256.into());
        assert!(old.is_of(b"abc") && !old.is_of(b"abd"));
        assert!(!DataDigest::Sha256(blake3.into()).is_of(b"abc"));
        assert!(!DataDigest::Blake3(sha256.into()).is_of(b"abc"));
    }
}
