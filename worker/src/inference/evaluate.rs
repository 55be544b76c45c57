//! `varuna-worker evaluate`: the loss of a trained model over a dataset's held-out windows.

use super::load::ModelArguments;
use crate::backend::Platform;
use crate::engine::{SampleError, Samples};
use crate::samples::DatasetSamples;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use tch::Tensor;
use varuna_api::{Data, DataSource, HeldOut, Packing};
use varuna_checkpoint::folder_name;
use varuna_dataset::TrainingData;
use varuna_plan::Step;

/// Prints the mean loss of a token over the held-out windows of a dataset (see `varuna evaluate`).
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Dataset (path without .bin / .idx).
    #[arg(long, value_name = "PREFIX")]
    data: PathBuf,
    /// Share of the windows, the last ones, that are held out, as in spec.data.validationFraction.
    #[arg(long, default_value_t = 0.05, conflicts_with = "whole")]
    validation_fraction: f64,
    /// Take all windows: the dataset is held out as a whole, as in spec.data.validationPath.
    #[arg(long)]
    whole: bool,
    /// Windows in a batch.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: u32,
    /// Most batches, from the first window on [default: all].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Tokens see those of their own document alone, as in spec.data.packing.blockMask.
    #[arg(long)]
    block_mask: bool,
    /// Positions are counted from the beginning of each document, as in spec.data.packing.resetPositions.
    #[arg(long)]
    reset_positions: bool,
    /// Leave out the loss of each document's first token, as in spec.data.packing.maskLoss.
    #[arg(long)]
    mask_loss: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl Arguments {
    fn packing(&self) -> Packing {
        Packing {
            block_mask: self.block_mask,
            reset_positions: self.reset_positions,
            mask_loss: self.mask_loss,
        }
    }
}

/// What was found.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Found {
    /// Name of the checkpoint.
    checkpoint: String,
    /// Its step.
    step: Step,
    /// Mean over these tokens, in nats; null where it is no finite number.
    loss: f64,
    /// Its exponential.
    perplexity: f64,
    /// Windows that were read.
    windows: u64,
    /// Windows that are held out.
    held_out: u64,
    /// Tokens whose loss was taken.
    tokens: u64,
}

/// Evaluates and prints.
pub(crate) fn run(arguments: &Arguments, platform: Platform) -> Result<()> {
    let fraction = arguments.validation_fraction;
    if !(fraction > 0.0 && fraction <= 0.5) {
        bail!("--validation-fraction is {fraction}, allowed is more than 0, at most 0.5");
    }
    let (manifest, trained) = arguments.model.load(platform, arguments.packing())?;
    let model = trained.model();
    let path = arguments.data.display();
    let named = arguments.data.to_str();
    let source = DataSource {
        path: named
            .with_context(|| format!("the path {path} is no UTF-8"))?
            .to_owned(),
        weight: 1.0,
    };
    let held_out = match arguments.whole {
        true => HeldOut::Dataset(source.path.clone()),
        false => HeldOut::Fraction(fraction),
    };
    let data = Data {
        train: vec![source],
        held_out,
    };
    // The seed is that of the training samples' order.
    let opened = TrainingData::open(&data, model.sequence_length, 0);
    let data = opened.and_then(|data| data.check_vocabulary(model.vocabulary_size).map(|()| data));
    let data = DatasetSamples(data.with_context(|| format!("cannot use the dataset {path}"))?);
    let (batch, held_out) = (u64::from(arguments.batch), data.held_out_len());
    let windows = held_out.min(arguments.steps.unwrap_or(u64::MAX).saturating_mul(batch));
    let (packing, length) = (arguments.packing(), u64::from(model.sequence_length));
    let sum = trained.loss_sum()?;
    let mut tokens = 0;
    for first in (0..windows).step_by(arguments.batch as usize) {
        let windows = first..windows.min(first + batch);
        windows.clone().for_each(|window| data.will_hold_out(window));
        let rows = Windows::read(&data, windows, length, packing)?;
        tokens += trained.add_loss(&rows.tokens, rows.positions.as_ref(), packing, &sum)?;
    }
    #[expect(
        clippy::cast_precision_loss,
        reason = "tokens of a dataset stay far below 2^53"
    )]
    let loss = sum.double_value(&[]) / tokens.max(1) as f64;
    let found = Found {
        checkpoint: folder_name(manifest.state),
        step: manifest.state.step,
        loss,
        perplexity: loss.exp(),
        windows,
        held_out,
        tokens,
    };
    let text = match arguments.json {
        true => serde_json::to_string(&found)?,
        false => format!(
            "{}: loss {loss:.4} nats a token, perplexity {:.3}, over {windows} of {held_out} held-out windows ({tokens} tokens)",
            found.checkpoint, found.perplexity
        ),
    };
    writeln!(std::io::stdout(), "{text}").context("cannot print the result")
}

/// Windows as rows (b, t + 1).
struct Windows {
    tokens: Tensor,
    /// Of the tokens within their documents; none where nobody asks.
    positions: Option<Tensor>,
}

impl Windows {
    fn read(data: &DatasetSamples, windows: Range<u64>, length: u64, packing: Packing) -> Result<Windows> {
        let width = usize::try_from(length)? + 1;
        let positions = match packing.is_off() {
            true => None,
            false => {
                let read = |window, row: &mut [i64]| data.held_out_positions(window, row);
                Some(rows(windows.clone(), width, read)?)
            }
        };
        Ok(Windows {
            tokens: rows(windows, width, |window, row| data.held_out(window, row))?,
            positions,
        })
    }
}

/// (b, width): what is read of each window.
fn rows(
    windows: Range<u64>,
    width: usize,
    read: impl Fn(u64, &mut [i64]) -> Result<(), SampleError>,
) -> Result<Tensor> {
    let count = usize::try_from(windows.end - windows.start)?;
    let mut numbers = vec![0; count * width];
    for (window, row) in windows.zip(numbers.chunks_exact_mut(width)) {
        read(window, row)?;
    }
    Ok(Tensor::from_slice(&numbers).view([-1, i64::try_from(width)?]))
}
