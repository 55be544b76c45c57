//! The versions of the protocol that this build speaks, and those in messages.

use std::sync::LazyLock;
use varuna_protocol::Versions;

/// The versions of this build. A release also speaks the newest version of the release before, so that workers and coordinators may be one
/// release apart, whichever is newer. 6 is the first version with a range.
pub const VERSIONS: Versions = Versions {
    oldest: 6,
    newest: crate::PROTOCOL_VERSION,
};

/// The versions that a message's sender speaks. `oldest` is 0 in messages of builds that spoke a single version.
pub(crate) fn of_message(oldest: u32, newest: u32) -> Versions {
    let oldest = if oldest == 0 { newest } else { oldest };
    Versions { oldest, newest }
}

/// The output of `--version` for a program that speaks the protocol: its release, and the protocol versions.
#[must_use]
pub fn program_version() -> &'static str {
    static TEXT: LazyLock<String> =
        LazyLock::new(|| format!("{} (protocol {VERSIONS})", env!("CARGO_PKG_VERSION")));
    &TEXT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_without_an_oldest_version_speaks_one() {
        let speaks = |oldest, newest| Versions { oldest, newest };
        assert_eq!(of_message(0, 5), speaks(5, 5));
        assert_eq!(of_message(4, 5), speaks(4, 5));
    }
}
