//! `spec.data`: what is trained on, and what is held out.

use super::check::Check;
use crate::job::{Data, DataSource, HeldOut};
use crate::limits;
use crate::manifest::{DataSourceSpec, DataSpec};
use crate::packing::Packing;

const ALLOWED: &str = "the path or the URL of a dataset without .bin or .idx";

pub(super) fn data(check: &mut Check, written: Option<DataSpec>) -> Data {
    let written = check.required("spec.data", written, "a mapping with a path");
    Data {
        held_out: held_out(check, &written),
        train: train(check, written),
    }
}

/// How samples with several documents are treated. This influences a run's numbers, so it is part of the training settings.
pub(super) fn packing(written: Option<&DataSpec>) -> Packing {
    let written = written.and_then(|data| data.packing.clone()).unwrap_or_default();
    Packing {
        block_mask: written.block_mask.unwrap_or(false),
        reset_positions: written.reset_positions.unwrap_or(false),
        mask_loss: written.mask_loss.unwrap_or(false),
    }
}

fn train(check: &mut Check, written: DataSpec) -> Vec<DataSource> {
    let at = "spec.data.train";
    let Some(sources) = written.train else {
        let path = dataset(check, "spec.data.path", written.path);
        return vec![DataSource { path, weight: 1.0 }];
    };
    if let Some(path) = written.path {
        let allowed = "nothing, as spec.data.train is given: it stands for path";
        check.0.push("spec.data.path", path, allowed);
    }
    let max = limits::DATASETS_MAX;
    if !(1..=max).contains(&sources.len()) {
        let found = format!("{} datasets", sources.len());
        check.0.push(at, found, format!("1 to {max}"));
    }
    let source = |(i, written): (usize, DataSourceSpec)| {
        let weight = Some(written.weight.unwrap_or(1.0));
        DataSource {
            path: dataset(check, &format!("{at}.{i}.path"), written.path),
            weight: check.above_zero(&format!("{at}.{i}.weight"), weight, limits::WEIGHT_MAX),
        }
    };
    sources.into_iter().take(max).enumerate().map(source).collect()
}

fn held_out(check: &mut Check, written: &DataSpec) -> HeldOut {
    let at = "spec.data.validationFraction";
    let Some(path) = &written.validation_path else {
        let fraction = written.validation_fraction.unwrap_or(0.05);
        return HeldOut::Fraction(check.within(at, fraction, limits::VALIDATION_FRACTION));
    };
    if let Some(fraction) = written.validation_fraction {
        let allowed = "nothing, as spec.data.validationPath is given: that dataset is held out";
        check.0.push(at, fraction, allowed);
    }
    HeldOut::Dataset(dataset(check, "spec.data.validationPath", Some(path.clone())))
}

fn dataset(check: &mut Check, at: &str, written: Option<String>) -> String {
    let path = check.place(at, written, ALLOWED);
    if path.ends_with(".bin") || path.ends_with(".idx") {
        check.0.push(at, &path, "the path without .bin or .idx");
    }
    path
}
