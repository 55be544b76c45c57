//! Which versions of the protocol a build speaks, and which one two builds speak with each other.

use std::fmt;
use std::sync::LazyLock;

/// Versions of the protocol, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Versions {
    /// The oldest.
    pub oldest: u32,
    /// The newest.
    pub newest: u32,
}

impl Versions {
    /// Those of this build. A release speaks the newest of the release before as well, so that workers and coordinators may be one
    /// release apart, whichever is newer. 6 is the first with a range.
    pub const OURS: Versions = Versions {
        oldest: 6,
        newest: crate::PROTOCOL_VERSION,
    };

    /// What a message says of its sender. `oldest` is 0 in messages of builds that spoke one version.
    pub(crate) fn of_message(oldest: u32, newest: u32) -> Versions {
        let oldest = if oldest == 0 { newest } else { oldest };
        Versions { oldest, newest }
    }

    /// The version that builds with these versions speak with each other: the newest that both know; none where there is none.
    #[must_use]
    pub fn common(self, other: Versions) -> Option<u32> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Versions { oldest, newest } = self;
        if oldest == newest {
            write!(f, "version {newest}")
        } else {
            write!(f, "versions {oldest} to {newest}")
        }
    }
}

/// What `--version` says of a program that speaks the protocol: its release, and the versions.
#[must_use]
pub fn program_version() -> &'static str {
    static TEXT: LazyLock<String> =
        LazyLock::new(|| format!("{} (protocol {})", env!("CARGO_PKG_VERSION"), Versions::OURS));
    &TEXT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speaks(oldest: u32, newest: u32) -> Versions {
        Versions { oldest, newest }
    }

    #[test]
    fn builds_one_release_apart_speak_the_older_ones_version_and_others_none() {
        let (old, new, newer) = (speaks(6, 7), speaks(7, 8), speaks(8, 9));
        assert_eq!(old.common(new), Some(7));
        assert_eq!(new.common(old), Some(7), "whichever side is newer");
        assert_eq!(new.common(new), Some(8));
        assert_eq!(old.common(newer), None);
        assert_eq!(newer.common(old), None);
        // A sender that says nonsense has nothing in common with anybody.
        assert_eq!(speaks(9, 1).common(new), None);
    }

    #[test]
    fn a_message_without_an_oldest_version_speaks_one() {
        assert_eq!(Versions::of_message(0, 5), speaks(5, 5));
        assert_eq!(Versions::of_message(4, 5), speaks(4, 5));
    }
}
