//! Doubts about shards. A reader that finds a shard damaged may itself be at fault, by bad memory or a bad disk cache, so it asks for a second
//! reading and marks nothing. The checkpoint stays usable until the owner of the location has read the shard too: it marks the checkpoint or
//! deletes the doubt.

use crate::CheckpointError;
use crate::location::Location;
use crate::name::doubt_file;
use object_store::ObjectStore;
use serde::{Deserialize, Serialize};
use varuna_plan::StateId;

/// What a reader has found wrong with a shard: `doubted-<unit>.json` beside it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Doubt {
    /// The reason, as text for people.
    pub why: String,
    /// The reader and its machine, for people.
    pub by: String,
}

impl Location {
    /// Notes that `by` finds a shard damaged, unless that is noted already. Returns the shard's unit. None if another reading would change
    /// nothing: the shard is missing or of another length, or the error is about no shard of a complete checkpoint in this folder.
    ///
    /// # Errors
    /// The store fails.
    pub async fn doubt(
        &self,
        id: StateId,
        found: &CheckpointError,
        by: &str,
    ) -> Result<Option<String>, CheckpointError> {
        let CheckpointError::Damaged { file, .. } = found else {
            return Ok(None);
        };
        let manifest = match self.manifest(id).await {
            Ok(manifest) => manifest,
            // The checkpoint is another job's, with which this one begins.
            Err(CheckpointError::Store(object_store::Error::NotFound { .. })) => return Ok(None),
            Err(error) if error.is_final() => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some(entry) = manifest.shards.iter().find(|shard| shard.file == *file) else {
            return Ok(None);
        };
        match self.check_length(id, entry).await {
            Ok(()) => {}
            Err(error) if error.is_final() => return Ok(None),
            Err(error) => return Err(error),
        }
        let doubt = Doubt {
            why: found.to_string(),
            by: by.to_owned(),
        };
        // Plain data always serialises.
        let text = serde_json::to_vec(&doubt).unwrap_or_default();
        self.create(id, &doubt_file(&entry.unit), text).await?;
        Ok(Some(entry.unit.clone()))
    }

    /// The doubt about a unit's shard; none if there is none, or none any more.
    ///
    /// # Errors
    /// The store fails.
    pub async fn doubt_about(&self, id: StateId, unit: &str) -> Result<Option<Doubt>, CheckpointError> {
        match self.inner.get(&self.path(id, &doubt_file(unit))).await {
            Ok(doubt) => {
                let text = doubt.bytes().await?;
                Ok(Some(serde_json::from_slice(&text).unwrap_or_default()))
            }
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes the doubt about a unit's shard: a second reader has found it sound. Only for the owner of the location.
    ///
    /// # Errors
    /// The store fails.
    pub async fn dismiss_doubt(&self, id: StateId, unit: &str) -> Result<(), CheckpointError> {
        self.delete(self.path(id, &doubt_file(unit))).await
    }
}
