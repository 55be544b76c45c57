//! Files of a published model that its checkpoints have no place for: the tokenizer, and which tokens end a text. An import stores them
//! with the checkpoints, so that a later export has them. A run stores the tokenizer of its dataset there, if there is none.

use crate::CheckpointError;
use crate::location::Location;
use crate::rate_limit::RateLimit;
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::{ObjectStore, PutMode, PutOptions};

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

/// The files that make a tokenizer, one per kind of tokenizer.
const TOKENIZERS: [&str; 4] = ["tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt"];

/// Maximum bytes of such a file. The tokenizers of the largest vocabularies have about 30 MB.
pub const PUBLISHED_FILE_BYTES_MAX: u64 = 256 << 20;

impl Location {
    /// Stores such a file, and replaces an existing one of this name.
    ///
    /// # Errors
    /// The store fails.
    pub async fn put_published(&self, name: &str, content: Vec<u8>) -> Result<(), CheckpointError> {
        let path = self.root().child(FOLDER).child(name);
        self.inner.put(&path, content.into()).await?;
        Ok(())
    }

    /// Whether a run should store the tokenizer of its dataset: neither this job nor a job with whose checkpoint it began has files of a
    /// model.
    ///
    /// # Errors
    /// The store fails, or the store of a job with whose checkpoint this one began: that job may have a tokenizer.
    pub async fn lacks_tokenizer(&self) -> Result<bool, CheckpointError> {
        let folder = self.root().child(FOLDER);
        let own: Vec<_> = self.inner.list(Some(&folder)).try_collect().await?;
        if own.is_empty() {
            return Ok(self.published_of_origin().await?.is_empty());
        }
        let is_there = |name: &str| own.iter().any(|object| object.location == folder.child(name));
        Ok(!TOKENIZERS.into_iter().any(is_there))
    }

    /// Stores the files of a dataset's tokenizer. An existing file stays: it belongs to an import, or is the same file from another worker.
    ///
    /// # Errors
    /// The store fails.
    pub async fn keep_tokenizer(
        &self,
        mut files: Vec<(String, Vec<u8>)>,
        rate_limit: &RateLimit,
    ) -> Result<(), CheckpointError> {
        // The files that make it a tokenizer come last: if they exist, all files do, and an interrupted attempt is repeated.
        files.sort_by_key(|(name, _)| TOKENIZERS.contains(&name.as_str()));
        for (name, content) in files {
            rate_limit.wait(content.len()).await;
            let path = self.root().child(FOLDER).child(name);
            let create = PutOptions::from(PutMode::Create);
            match self.inner.put_opts(&path, content.into(), create).await {
                Ok(_) | Err(object_store::Error::AlreadyExists { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// The stored files, in order of their names. Other files, and files that are too large, are left out.
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

    #[tokio::test]
    async fn tokenizer_of_the_dataset_is_kept_once() {
        let location = Location::over(Arc::new(InMemory::new())).below("job");
        assert!(location.lacks_tokenizer().await.unwrap());
        location
            .put_published("config.json", "imported".into())
            .await
            .unwrap();
        assert!(location.lacks_tokenizer().await.unwrap());
        let files = |json: &str| {
            ["tokenizer.json", "config.json", "tokenizer_config.json"]
                .map(|name| (name.to_owned(), json.as_bytes().to_vec()))
                .to_vec()
        };
        let unlimited = RateLimit::new(None);
        for content in ["first", "second"] {
            location.keep_tokenizer(files(content), &unlimited).await.unwrap();
            assert!(!location.lacks_tokenizer().await.unwrap());
        }
        let found = location.published().await.unwrap();
        let expected = [
            ("config.json", "imported"),
            ("tokenizer.json", "first"),
            ("tokenizer_config.json", "first"),
        ];
        let expected = expected.map(|(name, text)| (name.to_owned(), Bytes::from(text)));
        assert_eq!(found, expected);
    }
}
