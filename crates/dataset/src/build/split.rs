//! Divides documents into three datasets: to train, to validate, and to test.

use crate::error::DataError;
use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;

/// Shares of three datasets. A digest of its text decides where a document goes. So the same text always goes to the same dataset, whatever
/// files it comes in, and no copy of a training document is used for validation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Split([u32; 3]);

impl Split {
    /// Suffixes of the datasets' paths.
    pub const NAMES: [&str; 3] = ["train", "validation", "test"];
    /// The greatest share.
    const SHARE_MAX: u32 = 1_000_000;

    /// Whether the set has a share.
    pub(super) fn has(self, set: usize) -> bool {
        self.0[set] > 0
    }

    /// The dataset of the document that begins with this text.
    pub(super) fn set_of(self, text: &[u8]) -> usize {
        let digest = Sha256::digest(text);
        let point = digest
            .iter()
            .take(8)
            .fold(0u64, |n, byte| n << 8 | u64::from(*byte));
        let total: u64 = self.0.iter().map(|share| u64::from(*share)).sum();
        // Scale the point to one of `total` equal parts.
        let part = (u128::from(point) * u128::from(total)) >> 64;
        let mut end = 0;
        let within = |share: &u32| {
            end += u128::from(*share);
            part < end
        };
        self.0.iter().position(within).unwrap_or(0)
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [train, validation, test] = self.0;
        write!(f, "{train},{validation},{test}")
    }
}

impl FromStr for Split {
    type Err = DataError;
    fn from_str(text: &str) -> Result<Split, DataError> {
        let shares: Option<Vec<u32>> = text.split(',').map(|share| share.trim().parse().ok()).collect();
        let shares = shares.and_then(|shares| <[u32; 3]>::try_from(shares).ok());
        let fits = |shares: &[u32; 3]| shares[0] > 0 && shares.iter().all(|s| *s <= Split::SHARE_MAX);
        shares.filter(fits).map(Split).ok_or_else(|| DataError::Argument {
            what: "split",
            value: text.to_owned(),
            allowed: format!(
                "three whole numbers up to {}, such as 98,1,1: the shares of train, validation and test, of which train has some",
                Split::SHARE_MAX
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Split;

    #[test]
    fn split_shares_are_approximate_and_stable() {
        let split: Split = "90,7,3".parse().unwrap();
        let mut counts = [0u32; 3];
        for n in 0..20_000 {
            let text = format!("document {n}");
            counts[split.set_of(text.as_bytes())] += 1;
        }
        for (count, share) in counts.into_iter().zip([0.90, 0.07, 0.03]) {
            // At most six standard deviations.
            let (got, sigma) = (f64::from(count), f64::sqrt(20_000.0 * share * (1.0 - share)));
            assert!((got - 20_000.0 * share).abs() < 6.0 * sigma, "{counts:?}");
        }
        let without: Split = "1,0,0".parse().unwrap();
        assert!((0..1000).all(|n: u32| without.set_of(&n.to_le_bytes()) == 0));
    }

    #[test]
    fn what_is_no_split_is_refused_by_name() {
        for text in [
            "",
            "98",
            "98,1",
            "98,1,1,0",
            "0,1,1",
            "98,-1,1",
            "98,1,x",
            "98,1,1000001",
        ] {
            let error = text.parse::<Split>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("split: {text} — three whole numbers")),
                "{error}"
            );
        }
        assert_eq!("98, 1,1".parse::<Split>().unwrap().to_string(), "98,1,1");
    }
}
