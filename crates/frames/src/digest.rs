//! The digest of a state: BLAKE3 over its encoded header and then its elements, as they are in memory and on the wire.
//!
//! The checksum of a frame detects changes between two sockets. The digest covers what the sender read from its state and what the receiver
//! assembled: it also detects a part that is missing, repeated or misplaced.

/// BLAKE3 of a state.
pub type StateDigest = [u8; 32];

/// Computes the digest of a state, part by part.
#[derive(Clone)]
pub struct Digester(blake3::Hasher);

impl Digester {
    /// Begins with the encoded header.
    #[must_use]
    pub fn new(header: &[u8]) -> Digester {
        let mut hasher = blake3::Hasher::new();
        hasher.update(header);
        Digester(hasher)
    }

    /// Adds the next elements.
    pub fn add(&mut self, elements: &[f32]) {
        self.0.update(bytemuck::cast_slice(elements));
    }

    /// The digest of all that was added.
    #[must_use]
    pub fn digest(&self) -> StateDigest {
        self.0.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_independent_of_how_data_is_cut() {
        let mut whole = b"head".to_vec();
        for element in [1.0f32, -2.5, 3.0] {
            whole.extend(element.to_le_bytes());
        }
        let mut digester = Digester::new(b"head");
        digester.add(&[1.0]);
        digester.add(&[-2.5, 3.0]);
        assert_eq!(digester.digest(), *blake3::hash(&whole).as_bytes());
    }
}
