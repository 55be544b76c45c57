//! Event files for TensorBoard, which are stored with the checkpoints of runs whose run folder is lost with the process.

use crate::{CheckpointError, Location};

/// Their folder, with a subfolder for each run: TensorBoard shows folders as runs.
const FOLDER: &str = "tensorboard";

impl Location {
    /// Stores an event file of a run, and replaces an existing one of this name.
    ///
    /// # Errors
    /// The store fails.
    pub async fn put_event_file(
        &self,
        run: &str,
        name: &str,
        content: Vec<u8>,
    ) -> Result<(), CheckpointError> {
        let path = self.root().child(FOLDER).child(run).child(name);
        self.inner.put(&path, content.into()).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::ObjectStore as _;
    use object_store::memory::InMemory;
    use object_store::path::Path;
    use std::sync::Arc;

    #[tokio::test]
    async fn an_event_file_is_kept_and_is_no_checkpoint() {
        let store = Arc::new(InMemory::new());
        let location = Location::over(store.clone()).below("job");
        for content in ["old", "new"] {
            location
                .put_event_file("a run", "name", content.into())
                .await
                .unwrap();
        }
        assert_eq!(location.list().await.unwrap().len(), 0);
        let kept = store
            .get(&Path::from("job/tensorboard/a run/name"))
            .await
            .unwrap();
        assert_eq!(kept.bytes().await.unwrap(), "new");
    }
}
