//! The secret of a generation. Workers derive it from the run's token and identity, so that no plan, record or message carries it.

use hkdf::Hkdf;
use sha2::Sha256;
use varuna_plan::Generation;

/// Purpose of the key: no other key that is derived from a token may have the same purpose.
const PURPOSE: &[u8] = b"varuna run: secret of a generation";

/// What a run gives each of its workers, which derive the secrets of its generations from it. It must never be logged or stored.
#[derive(Clone, PartialEq, Eq)]
pub struct RunKey {
    /// The run's token; empty if it has none.
    pub token: String,
    /// The run's identity.
    pub run: String,
}

impl RunKey {
    /// The secret by which the members of a generation authenticate each other (see [`crate::Handshake::prove`]): 64 hex digits. HKDF-SHA256
    /// (RFC 5869) with the token as its key, the identity as its salt, and the purpose and the generation (8 bytes, little-endian) as its
    /// context.
    #[must_use]
    pub fn secret(&self, generation: Generation) -> String {
        let mut key = [0u8; 32];
        Hkdf::<Sha256>::new(Some(self.run.as_bytes()), self.token.as_bytes())
            .expand_multi_info(&[PURPOSE, &generation.0.to_le_bytes()], &mut key)
            .expect("HKDF gives keys of 32 bytes");
        key.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(token: &str, run: &str, generation: u64) -> String {
        let (token, run) = (token.to_owned(), run.to_owned());
        RunKey { token, run }.secret(Generation(generation))
    }

    /// Computed by Python's `hmac` and `hashlib` according to RFC 5869: workers of different builds must derive the same secret.
    #[test]
    fn the_secret_is_hkdf_of_token_run_and_generation() {
        let vectors = [
            (
                "0123456789abcdef0123456789abcdef",
                "7f1c",
                1,
                "e7796d5fd7faf99cbd7c589997aeeb48130484abd7cd9dfbe22ed78a8149ae55",
            ),
            (
                "0123456789abcdef0123456789abcdef",
                "7f1c",
                2,
                "3196390f981bbea658d49ec0392c68b6e19807148dd63834464b5c8d79c764a3",
            ),
            (
                "",
                "7f1c",
                1,
                "16b193e988e31e7396bd1ef32294e2ea03c012b8a10f8a9517a2f1c87509a089",
            ),
            (
                "token",
                "",
                u64::MAX,
                "1d0bffbb9bc20d76d6f436a1bade94d90323be683afa7b9f988a66f44e951492",
            ),
        ];
        for (token, run, generation, secret) in vectors {
            assert_eq!(self::secret(token, run, generation), secret);
        }
    }

    #[test]
    fn another_token_run_or_generation_has_another_secret() {
        let first = secret("token", "run", 1);
        assert_ne!(secret("other", "run", 1), first);
        assert_ne!(secret("token", "other", 1), first);
        assert_ne!(secret("token", "run", 2), first);
    }
}
