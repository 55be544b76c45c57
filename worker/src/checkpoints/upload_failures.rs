//! Whether this worker's uploads fail, as it tells its coordinator. The worker itself acts on no failure but by trying again.

/// Uploads that must have failed since a state was saved whole before it is said. One failure may be chance, and the next try succeeds.
const SAID_FROM: u32 = 2;

/// The failures since the last state of which all of this worker's units were saved.
#[derive(Debug, Default)]
pub(super) struct UploadFailures {
    count: u32,
    last: String,
}

impl UploadFailures {
    /// The upload of a unit has failed.
    pub(super) fn failed(&mut self, error: &dyn std::error::Error) {
        self.count = self.count.saturating_add(1);
        self.last = error.to_string();
    }

    /// All of this worker's units of a state are saved. A single unit proves nothing: a full disk may still have room for a small one.
    pub(super) fn state_saved(&mut self) {
        *self = UploadFailures::default();
    }

    /// The last error, if uploads fail.
    pub(super) fn why(&self) -> Option<String> {
        (self.count >= SAID_FROM).then(|| self.last.clone())
    }
}
