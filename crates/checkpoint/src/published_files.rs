//! Files of a published model that its checkpoints have no place for: the tokenizer, and which tokens end a text. An import keeps them beside
//! the checkpoints, so that a later export has them.

use crate::CheckpointError;
use crate::location::Location;
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::ObjectStore;

/// The folder beside the checkpoints.
const FOLDER: &str = "published";

/// Names of the files that are kept, as the `transformers` library writes them.
pub const PUBLISHED_FILES: [&str; 11] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
];

/// More bytes than any of them has. The tokenizers of the largest vocabularies have about 30 MB.
pub const PUBLISHED_FILE_BYTES_MAX: u64 = 256 << 20;

impl Location {
    /// Keeps such a file; replaces one of this name.
    ///
    /// # Errors
    /// The store fails.
    pub async fn put_published(&self, name: &str, content: Vec<u8>) -> Result<(), CheckpointError> {
        let path = self.root().child(FOLDER).child(name);
        self.inner.put(&path, content.into()).await?;
        Ok(())
    }

    /// The files that are kept, in order of their names; others are left out, and those that are too large for what they should be.
    ///
    /// # Errors
    /// The store fails.
    pub async fn published(&self) -> Result<Vec<(String, Bytes)>, CheckpointError> {
        let folder = self.root().child(FOLDER);
        let objects: Vec<_> = self.inner.list(Some(&folder)).try_collect().await?;
        let mut files = Vec::new();
        for object in objects {
            let name = object.location.filename().unwrap_or_default().to_owned();
            let is_ours = object.location == folder.child(name.as_str());
            if is_ours && PUBLISHED_FILES.contains(&name.as_str()) && object.size <= PUBLISHED_FILE_BYTES_MAX
            {
                let content = self.inner.get(&object.location).await?.bytes().await?;
                files.push((name, content));
            }
        }
        files.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::memory::InMemory;
    use std::sync::Arc;

    #[tokio::test]
    async fn what_is_kept_is_found_and_is_no_checkpoint() {
        let location = Location::over(Arc::new(InMemory::new())).below("job");
        assert_eq!(location.published().await.unwrap(), []);
        for (name, text) in [
            ("tokenizer.json", "old"),
            ("tokenizer.json", "{}"),
            ("config.json", "[]"),
            ("x", ""),
        ] {
            location.put_published(name, text.into()).await.unwrap();
        }
        let found = location.published().await.unwrap();
        let expected = [("config.json", "[]"), ("tokenizer.json", "{}")];
        let expected = expected.map(|(name, text)| (name.to_owned(), Bytes::from(text)));
        assert_eq!(found, expected);
        assert!(location.list().await.unwrap().is_empty());
    }
}
