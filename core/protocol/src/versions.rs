//! The versions of a protocol that a build speaks, and the one that two builds use with each other. Pure.

use std::fmt;

/// A range of protocol versions, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Versions {
    /// The oldest.
    pub oldest: u32,
    /// The newest.
    pub newest: u32,
}

impl Versions {
    /// The version that two builds use with each other: the newest that both know; none if there is none.
    #[must_use]
    pub fn common(self, other: Versions) -> Option<u32> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }

    /// Whether a build with this range speaks the version.
    #[must_use]
    pub fn contain(self, version: u32) -> bool {
        (self.oldest..=self.newest).contains(&version)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn speaks(oldest: u32, newest: u32) -> Versions {
        Versions { oldest, newest }
    }

    #[test]
    fn neighbouring_releases_use_the_older_version() {
        let (old, new, newer) = (speaks(6, 7), speaks(7, 8), speaks(8, 9));
        assert_eq!(old.common(new), Some(7));
        assert_eq!(new.common(old), Some(7), "whichever side is newer");
        assert_eq!(new.common(new), Some(8));
        assert_eq!(old.common(newer), None);
        assert_eq!(newer.common(old), None);
        // An invalid range has no version in common with any other.
        assert_eq!(speaks(9, 1).common(new), None);
    }

    #[test]
    fn a_version_is_spoken_where_it_lies_between_both_ends() {
        let spoken = [5, 6, 7, 8].map(|version| speaks(6, 7).contain(version));
        assert_eq!(spoken, [false, true, true, false]);
    }
}
