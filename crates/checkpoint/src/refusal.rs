//! The mark of a checkpoint from which nobody may resume: `refused.json` in its folder.

use serde::{Deserialize, Serialize};

/// Why nobody may resume from a checkpoint. A mark that says nothing counts as that of a damaged one.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Refusal {
    /// The reason, as text for people.
    pub why: String,
    /// Its run has given it up: it is what was saved, and may follow from wrong bits. Omitted where a reader found it damaged. Earlier
    /// releases do not know this, and take it for damaged.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub given_up: bool,
}
