//! The forward of each segment. `varuna-model` describes what is computed here, file by file. `exported` reads the segments of a
//! user-defined model from a folder. [`Module`] is either kind of model.
//!
//! Tensor names carry shapes: b = samples of a micro-batch, t = sequence, d = width, h = heads, e = width of a head, v = vocabulary.
//! This module must never know of plans, other workers or optimizers.

mod attention;
mod cache;
pub mod dropout;
mod embedding;
mod exported;
mod head;
mod linear;
mod mlp;
mod module;
mod norm;
mod scores;
mod tables;
mod transformer;

use crate::state::{UnitParameters, Units};
pub use attention::attention_shape;
pub use cache::Cache;
pub use exported::{ExportedError, ExportedModule, ManifestError};
pub use head::{add_loss, add_loss_with_gradients, logits, targets_within_documents};
pub use module::Module;
pub use scores::score_memory;
pub use tables::Tables;
pub use transformer::{forward, forward_after};
use varuna_model::{Layout, SegmentRange, Transformer, Unit};

/// The tied weight as a unit of the undivided layout, where a stage computes with it. Its gradient is finished with the stage's last backward: backwards run from the last segment to the
/// first, and a stage with both ends uses it at both.
#[must_use]
pub fn tied_weight_of(layout: Layout, stage: SegmentRange) -> Option<Unit> {
    let layout = layout.undivided();
    layout.tied_unit().filter(|tied| layout.stage_needs(stage, *tied))
}

/// Whose table (v, d) a segment uses: that of the tied weight, or its own.
fn table_unit<'a>(model: &Transformer, units: &'a impl Units, segment: u32) -> &'a UnitParameters {
    units.parameters_of(model.layout().tied_unit().unwrap_or(Unit(segment)))
}
