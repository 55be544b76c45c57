//! The contents of a dataset, for people: its sizes and its tokens as stored.

use crate::dataset::{Opened, open};
use crate::error::DataError;
use crate::files::Files;
use crate::index::Index;
use crate::sidecar::{Sidecar, with_suffix};
use std::path::Path;

/// A summary of a dataset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Info {
    /// Number of tokens.
    pub tokens: u64,
    /// Sequences in the index.
    pub sequences: u64,
    /// Documents in the index.
    pub documents: u64,
    /// Bytes of a token.
    pub token_bytes: usize,
    /// The builder's description, if there is one.
    pub sidecar: Option<Sidecar>,
}

/// Reads and checks a dataset's index, lengths and description.
///
/// # Errors
/// A file is missing, truncated or malformed.
pub fn info(prefix: &Path) -> Result<Info, DataError> {
    let Opened { index, sidecar, .. } = open(&Files::default(), prefix)?;
    let Index {
        tokens,
        sequences,
        documents,
        token_type,
    } = index;
    Ok(Info {
        tokens,
        sequences,
        documents,
        token_bytes: token_type.width(),
        sidecar,
    })
}

/// Reads tokens of a dataset in stored order: at most `most`, from number `first` (from 0) on; fewer if the dataset ends.
///
/// # Errors
/// A file is missing, truncated or malformed, or there is no token of that number.
pub fn tokens(prefix: &Path, first: u64, most: u32) -> Result<Vec<i64>, DataError> {
    let Opened { index, bin, .. } = open(&Files::default(), prefix)?;
    if first >= index.tokens {
        return Err(DataError::Argument {
            what: "first token",
            value: first.to_string(),
            allowed: format!("below {}", index.tokens),
        });
    }
    let width = index.token_type.width();
    let count = usize::try_from(u64::from(most).min(index.tokens - first)).unwrap_or(usize::MAX);
    let mut bytes = vec![0; count * width];
    bin.read_exact_at(&mut bytes, first * width as u64)
        .map_err(DataError::io("read", &with_suffix(prefix, "bin")))?;
    let mut tokens = vec![0; count];
    index.token_type.decode(&bytes, &mut tokens);
    Ok(tokens)
}

#[cfg(test)]
#[cfg(feature = "build")]
mod tests {
    use super::*;
    use crate::build::{Build, build};
    use crate::tokenizer::Tokenizer;

    #[test]
    fn tokens_are_read_as_they_lie_up_to_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let (text, prefix) = (folder.path().join("text.txt"), folder.path().join("data"));
        std::fs::write(&text, "In the beginning").unwrap();
        let request = Build::new(vec![text], prefix.clone(), Tokenizer::Byte);
        build(&request, &mut |_| ()).unwrap();
        assert_eq!(tokens(&prefix, 0, 2).unwrap(), [i64::from(b'I'), i64::from(b'n')]);
        assert_eq!(
            tokens(&prefix, 14, 1000).unwrap(),
            [i64::from(b'n'), i64::from(b'g'), 256]
        );
        assert_eq!(tokens(&prefix, 3, 0).unwrap(), [0; 0]);
        let why = tokens(&prefix, 17, 1).unwrap_err().to_string();
        assert!(why.contains("17") && why.contains("below 17"), "{why}");
    }
}
