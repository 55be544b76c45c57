//! `varuna-worker evaluate`: the loss of a trained model over a dataset's held-out windows.

use super::exported_model::TrainedModule;
use super::load::{Chosen, ModelArguments};
use super::reader::{Reader, rows};
use crate::backend::Platform;
use crate::engine::{SamplePart, Samples};
use crate::samples::DatasetSamples;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use varuna_api::masking::{DEFAULT_PROBABILITY, Masking};
use varuna_api::{Data, DataSource, HeldOut, Packing, Precision};
use varuna_dataset::{SampleShape, TrainingData};
use varuna_model::{Exported, Model, Positions, Transformer};
use varuna_plan::Step;

/// Print the mean loss of a token over the held-out windows of a dataset (see `varuna evaluate`).
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Dataset (path without .bin or .idx).
    #[arg(long, value_name = "PREFIX")]
    data: PathBuf,
    /// Share of the windows that is held out, like spec.data.validationFraction. The last windows are held out.
    #[arg(long, default_value_t = 0.05, conflicts_with = "whole")]
    validation_fraction: f64,
    /// Use all windows of the dataset, like spec.data.validationPath.
    #[arg(long)]
    whole: bool,
    /// Number of windows in a batch.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: u32,
    /// Maximum number of batches, counted from the first window [default: all].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Number of tokens in a window. Not for a model with learned positions [default: the length of the model's samples].
    #[arg(long, value_name = "N")]
    sequence_length: Option<u32>,
    /// Let tokens see only tokens of their own document, like spec.data.packing.blockMask.
    #[arg(long)]
    block_mask: bool,
    /// Count positions from the beginning of each document, like spec.data.packing.resetPositions.
    #[arg(long)]
    reset_positions: bool,
    /// Leave out the loss of each document's first token, like spec.data.packing.maskLoss.
    #[arg(long)]
    mask_loss: bool,
    /// Token that replaces hidden tokens, like spec.training.masking.maskToken. A bidirectional model needs it.
    #[arg(long, value_name = "TOKEN")]
    mask_token: Option<u32>,
    /// Probability that a token is chosen for prediction, like spec.training.masking.probability.
    #[arg(long, default_value_t = DEFAULT_PROBABILITY, requires = "mask_token")]
    mask_probability: f64,
    /// Folder of an exported model of the user's own [default: the path in its job].
    #[arg(long, value_name = "FOLDER")]
    model_folder: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// The dataset, whose tokens are below `values`.
    fn dataset(&self, shape: SampleShape, values: u32) -> Result<DatasetSamples> {
        let source = DataSource {
            path: text(&self.data)?,
            weight: 1.0,
        };
        let held_out = match self.whole {
            true => HeldOut::Dataset(source.path.clone()),
            false => HeldOut::Fraction(self.validation_fraction),
        };
        let data = Data {
            train: vec![source],
            held_out,
        };
        // The seed is that of the training samples' order.
        let opened = TrainingData::open(&data, shape, 0);
        let data = opened.and_then(|data| data.check_vocabulary(values).map(|()| data));
        let data = data.with_context(|| format!("cannot use the dataset {}", self.data.display()))?;
        Ok(DatasetSamples(data))
    }

    /// How many windows are read.
    fn windows(&self, data: &DatasetSamples) -> u64 {
        let most = self.steps.unwrap_or(u64::MAX);
        data.held_out_len().min(most.saturating_mul(self.batch.into()))
    }

    /// The samples of each batch.
    fn batches(&self, data: &DatasetSamples) -> impl Iterator<Item = Range<u64>> + use<> {
        let (windows, batch) = (self.windows(data), self.batch);
        let firsts = (0..windows).step_by(batch as usize);
        firsts.map(move |first| first..windows.min(first + u64::from(batch)))
    }

    fn packing(&self) -> Packing {
        Packing {
            block_mask: self.block_mask,
            reset_positions: self.reset_positions,
            mask_loss: self.mask_loss,
        }
    }

    /// How tokens are hidden: not at all, of a model that predicts the next one.
    fn masking(&self, model: &Transformer) -> Result<Option<Masking>> {
        let probability = self.mask_probability;
        match (self.mask_token, model.features.bidirectional) {
            (None, true) => {
                bail!("--mask-token is missing: the model is bidirectional, and fills masked tokens in")
            }
            (Some(token), false) => {
                bail!("--mask-token is {token}, allowed is none: the model predicts the next token")
            }
            (Some(token), true) if token >= model.vocabulary_size => {
                bail!(
                    "--mask-token is {token}, allowed is less than the model's vocabulary, {}",
                    model.vocabulary_size
                )
            }
            (Some(_), true) if !(probability > 0.0 && probability < 1.0) => {
                bail!("--mask-probability is {probability}, allowed is more than 0, less than 1")
            }
            (Some(_), true) if self.mask_loss => {
                bail!(
                    "--mask-loss is given, allowed is only without --mask-token: no token is predicted from the one before"
                )
            }
            (token, _) => Ok(token.map(|mask_token| Masking {
                probability,
                mask_token,
            })),
        }
    }
}

/// The output of the command.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Found {
    /// Name of the checkpoint.
    checkpoint: String,
    /// Step of the checkpoint.
    step: Step,
    /// Mean over these tokens, in nats, or over the windows; null where it is no finite number.
    loss: f64,
    /// Exponential of the loss, of a language model.
    #[serde(skip_serializing_if = "Option::is_none")]
    perplexity: Option<f64>,
    /// Windows that were read.
    windows: u64,
    /// Windows that are held out.
    held_out: u64,
    /// Tokens whose loss was taken, by a language model.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<u64>,
}

/// Evaluates and prints.
///
/// # Errors
/// The model, the data or an option cannot be used, or the loss is no finite number.
pub(crate) fn run(arguments: &Arguments, platform: Platform) -> Result<()> {
    let fraction = arguments.validation_fraction;
    if !(fraction > 0.0 && fraction <= 0.5) {
        bail!("--validation-fraction is {fraction}, allowed is more than 0, at most 0.5");
    }
    let chosen = arguments.model.choose()?;
    let evaluated = match &chosen.model {
        Model::Transformer(model) => of_tokens(arguments, &chosen, model, platform)?,
        Model::Exported(model) => of_samples(arguments, &chosen, model, platform)?,
    };
    print(arguments, &chosen, &evaluated)
}

/// Sums over what was evaluated.
struct Evaluated {
    /// Sum of all losses, in nats.
    sum: f64,
    /// Number of losses.
    losses: u64,
    windows: u64,
    held_out: u64,
    /// Whether the losses are of tokens, not of whole samples.
    of_tokens: bool,
}

/// The loss of each token.
fn of_tokens(
    arguments: &Arguments,
    chosen: &Chosen,
    model: &Transformer,
    platform: Platform,
) -> Result<Evaluated> {
    let model = &of_length(model, arguments.sequence_length)?;
    let masking = arguments.masking(model)?;
    let packing = arguments.packing();
    let trained = arguments.model.trained(chosen, model, platform, packing)?;
    let shape = SampleShape::windows(model.sequence_length);
    let data = arguments.dataset(shape, model.vocabulary_size)?;
    warn_of_another_tokenizer(chosen.other_tokenizer(&data.0));
    let reader = Reader {
        data: &data,
        width: model.sequence_length as usize + 1,
        packing,
        masking,
        vocabulary_size: model.vocabulary_size,
    };
    let sum = trained.loss_sum()?;
    let mut tokens = 0;
    for windows in arguments.batches(&data) {
        tokens += trained.add_loss(&reader.read(windows)?, reader.packing, &sum)?;
    }
    Ok(Evaluated {
        sum: sum.double_value(&[]),
        losses: tokens,
        windows: arguments.windows(&data),
        held_out: data.held_out_len(),
        of_tokens: true,
    })
}

/// Warns if the data have tokens of another tokenizer than the model has learned, or if this cannot be found out.
fn warn_of_another_tokenizer(other: Result<Option<String>>) {
    match other {
        Ok(None) => {}
        Ok(Some(why)) => tracing::warn!("the loss means little: {why}"),
        Err(error) => tracing::warn!(
            why = format!("{error:#}"),
            "it is not known whether the dataset has the tokenizer of the model"
        ),
    }
}

/// A model with samples of the given length, if any. Only without parameters for positions may it differ from the model's own.
fn of_length(model: &Transformer, length: Option<u32>) -> Result<Transformer> {
    let own = model.sequence_length;
    let length = length.unwrap_or(own);
    if model.features.positions == Positions::Learned && length != own {
        bail!("--sequence-length is {length}, allowed is {own}: the model has learned that many positions");
    }
    if !(1..=own).contains(&length) {
        bail!("--sequence-length is {length}, allowed are 1 to {own}, the tokens of the model's samples");
    }
    Ok(Transformer {
        sequence_length: length,
        ..model.clone()
    })
}

/// The loss of each sample, by a user-defined model.
fn of_samples(
    arguments: &Arguments,
    chosen: &Chosen,
    model: &Exported,
    platform: Platform,
) -> Result<Evaluated> {
    if arguments.mask_token.is_some() || arguments.sequence_length.is_some() || !arguments.packing().is_off()
    {
        bail!(
            "--mask-token, --sequence-length, --block-mask, --reset-positions and --mask-loss are not allowed with a model of one's own"
        );
    }
    if arguments.model.precision != Precision::Fp32 {
        bail!("--precision: allowed is fp32, which a model of one's own was exported in");
    }
    let backend = arguments.model.backend(platform)?;
    let mut model = model.clone();
    if let Some(folder) = &arguments.model_folder {
        model.path = text(folder)?;
    }
    let shape = SampleShape {
        length: model.sample.length,
        records: model.sample.records,
    };
    let data = arguments.dataset(shape, model.sample.values)?;
    let opened = TrainedModule::open(model, backend);
    let mut trained = opened.with_context(|| {
        let name = chosen.name();
        format!(
            "the model of checkpoint {name} (--model-folder names the folder that its job was trained with)"
        )
    })?;
    chosen.read(|unit, shard| trained.add(unit, shard))?;
    let (width, mut sum) = (shape.length as usize + 1, 0.0);
    for windows in arguments.batches(&data) {
        windows
            .clone()
            .for_each(|window| data.prefetch(SamplePart::HeldOut, window));
        let rows = rows(windows, width, |window, row| data.held_out(window, row))?;
        sum += trained.loss(&rows)?;
    }
    let windows = arguments.windows(&data);
    Ok(Evaluated {
        sum,
        losses: windows,
        windows,
        held_out: data.held_out_len(),
        of_tokens: false,
    })
}

fn print(arguments: &Arguments, chosen: &Chosen, evaluated: &Evaluated) -> Result<()> {
    let Evaluated {
        sum,
        losses,
        windows,
        held_out,
        of_tokens,
    } = *evaluated;
    let loss = mean(sum, losses)?;
    let checkpoint = chosen.name();
    let found = Found {
        step: chosen.manifest.state.step,
        loss,
        perplexity: of_tokens.then(|| loss.exp()),
        windows,
        held_out,
        tokens: of_tokens.then_some(losses),
        checkpoint,
    };
    let of = format!("{windows} of {held_out} held-out");
    let text = match (arguments.json, of_tokens) {
        (true, _) => serde_json::to_string(&found)?,
        (false, true) => format!(
            "{}: loss {loss:.4} nats a token, perplexity {:.3}, over {of} windows ({losses} tokens)",
            found.checkpoint,
            loss.exp()
        ),
        (false, false) => format!("{}: loss {loss:.4} a sample, over {of} samples", found.checkpoint),
    };
    writeln!(std::io::stdout(), "{text}").context("cannot print the result")?;
    finite(loss, &found.checkpoint)
}

/// Refuses a loss that says nothing: a script must not take it for a result.
fn finite(loss: f64, checkpoint: &str) -> Result<()> {
    if !loss.is_finite() {
        bail!(
            "the loss of {checkpoint} is {loss}, which is no finite number: its parameters are no finite numbers, or --precision is too narrow for them"
        );
    }
    Ok(())
}

/// The mean of so many losses.
fn mean(sum: f64, losses: u64) -> Result<f64> {
    if losses == 0 {
        bail!(
            "no token of the windows that were read has a target; use more --steps, or other --mask-loss or --mask-probability"
        );
    }
    #[expect(clippy::cast_precision_loss, reason = "tokens stay far below 2^53")]
    let losses = losses as f64;
    Ok(sum / losses)
}

fn text(path: &Path) -> Result<String> {
    let text = path.to_str();
    let text = text.with_context(|| format!("the path {} is no UTF-8", path.display()))?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_model::presets::preset;

    #[test]
    fn no_mean_without_a_loss() {
        assert_eq!(mean(6.0, 4).unwrap(), 1.5);
        let why = mean(0.0, 0).unwrap_err().to_string();
        assert!(why.contains("no token") && why.contains("--mask-loss"), "{why}");
    }

    #[test]
    fn loss_that_is_not_finite_is_an_error() {
        assert!(finite(800.0, "c").is_ok());
        for loss in [f64::NAN, f64::INFINITY] {
            let why = finite(loss, "step-3").unwrap_err().to_string();
            assert!(
                why.contains(&format!("step-3 is {loss}, which is no finite number")),
                "{why}"
            );
        }
    }

    #[test]
    fn windows_may_be_shorter_without_learned_positions() {
        let length = |name: &str, length| {
            let found = of_length(&preset(name).unwrap(), length);
            found
                .map(|model| model.sequence_length)
                .map_err(|e| e.to_string())
        };
        assert_eq!(length("llama-tiny", None), Ok(256));
        assert_eq!(length("llama-tiny", Some(8)), Ok(8));
        assert_eq!(length("llama-tiny", Some(256)), Ok(256));
        assert_eq!(length("gpt2-tiny", Some(256)), Ok(256));
        for (name, given, allowed) in [
            (
                "llama-tiny",
                257,
                "--sequence-length is 257, allowed are 1 to 256",
            ),
            ("qwen3-tiny", 0, "--sequence-length is 0, allowed are 1 to 256"),
            ("gpt2-tiny", 8, "--sequence-length is 8, allowed is 256"),
        ] {
            let why = length(name, Some(given)).unwrap_err();
            assert!(why.contains(allowed), "{why}");
        }
    }
}
