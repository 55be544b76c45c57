//! Spare copies of a plan's units, and what was decided about them, as people and programs see them.

use serde::{Deserialize, Serialize};
use varuna_plan::spare_copies::SpareCopyDecision;

/// Spare copies of a plan's units. A unit has one keeper at most.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SpareCopiesView {
    /// Units that one worker alone holds.
    pub units: usize,
    /// How many of them another worker is to keep a copy of.
    pub kept: usize,
    /// How many of them have a keeper whose last report says that all its copies are up to date: losing their holder costs no step.
    pub in_step: usize,
    /// What was decided when the plan was made. None if an earlier coordinator made it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub verdict: Option<SpareCopiesVerdict>,
}

/// Whether copies are kept under a plan, and why.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SpareCopiesVerdict {
    /// In one word, for programs.
    pub reason: SpareCopyDecision,
    /// In a sentence, for people.
    pub why: String,
}
