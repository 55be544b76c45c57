//! Loads a trained model from a checkpoint, and the command-line options for that.

use super::trained::TrainedModel;
use crate::ablation::Ablations;
use crate::backend::{Backend, Platform};
use crate::model::attention_shape;
use crate::processors;
use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use tokio::runtime::Runtime;
use varuna_api::{Packing, Precision};
use varuna_checkpoint::{Listed, Location, Manifest, Shard, folder_name, unit_name};
use varuna_dataset::{Sidecar, Tokenizer, TrainingData};
use varuna_model::{Model, Transformer, Unit};
use varuna_torch::{Attention, AttentionChoice, AttentionShape, DeviceChoice};

/// What says all of a tokenizer.
const TOKENIZER: &str = "tokenizer.json";
/// What says which tokens end a text.
const CONFIGS: [&str; 2] = ["config.json", "generation_config.json"];
/// Tokens of the sample about which libtorch is asked how it computes attention, at most. Its answer is the same for longer ones, and being asked takes
/// memory for all of them: 6 GB for the 131,072 of a Llama 3.1 8B.
const ASKED_TOKENS_MAX: i64 = 4096;

/// Which model, and how it computes.
#[derive(clap::Args)]
pub(super) struct ModelArguments {
    /// Folder of the job's checkpoints: <spec.checkpoint.uri>/<metadata.name>.
    #[arg(long, value_name = "URI")]
    checkpoint: String,
    /// Step of the checkpoint [default: the newest complete one].
    #[arg(long)]
    step: Option<u64>,
    /// Device to compute on: cpu, cuda, cuda:N or auto. auto is the first GPU if there is one, otherwise the CPU.
    #[arg(long, default_value = "auto")]
    device: DeviceChoice,
    /// Number format to compute in: fp32, bf16 or fp16.
    #[arg(long, default_value = "fp32", value_parser = precision)]
    pub(super) precision: Precision,
    /// Number of threads for tensor operations [default: the machine's cores].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Option<u32>,
}

/// Whose tokens a model has learnt.
#[derive(clap::Args)]
pub(super) struct TokenizerArguments {
    /// Tokenizer: byte, gpt2, or the path of a tokenizer.json or of a folder with one [default: the tokenizer of --data; otherwise the one
    /// that is kept beside the checkpoints; otherwise the one that fits the model's vocabulary].
    #[arg(long)]
    tokenizer: Option<String>,
    /// Dataset (path without .bin or .idx) whose tokenizer is used.
    #[arg(long, value_name = "PREFIX", conflicts_with = "tokenizer")]
    data: Option<PathBuf>,
}

fn precision(name: &str) -> Result<Precision, String> {
    match name {
        "fp32" => Ok(Precision::Fp32),
        "bf16" => Ok(Precision::Bf16),
        "fp16" => Ok(Precision::Fp16),
        _ => Err("allowed are fp32, bf16 and fp16".into()),
    }
}

/// A checkpoint that was found, and the model that it is of.
pub(super) struct Chosen {
    pub(super) model: Model,
    pub(super) manifest: Manifest,
    location: Location,
    runtime: Runtime,
}

impl Chosen {
    /// Name of the checkpoint.
    pub(super) fn name(&self) -> String {
        folder_name(self.manifest.state)
    }

    /// Reads all units, one after the other.
    ///
    /// # Errors
    /// The checkpoint is damaged, or whoever takes them refuses.
    pub(super) fn read(&self, mut take: impl FnMut(Unit, Shard) -> Result<()>) -> Result<()> {
        let manifest = &self.manifest;
        let layout = manifest.layout.undivided();
        for unit in layout.all_units() {
            let loading = self.location.load_unit(manifest, (layout, unit), || {});
            let taken = take(unit, self.runtime.block_on(loading)?);
            let name = unit_name(layout, unit);
            taken.with_context(|| format!("checkpoint {}, {name}", self.name()))?;
        }
        Ok(())
    }

    /// What an import or a run has kept, for this job or for one that it began with.
    fn kept(&self) -> Result<Kept> {
        let (files, unread) = self.runtime.block_on(self.location.published_or_of_origin())?;
        if let Some(why) = unread {
            tracing::warn!(%why, "what is kept beside the checkpoints for this job cannot be read, so its tokenizer and its ends of texts are not used");
        }
        let files = files.into_iter().map(|(name, content)| (name, content.to_vec()));
        Ok(Kept(files.collect()))
    }

    /// Says if a dataset has tokens of another tokenizer than the one that is kept beside the checkpoints. None if it has the same, or if one of
    /// the two is not known.
    ///
    /// # Errors
    /// What is kept cannot be read.
    pub(super) fn other_tokenizer(&self, data: &TrainingData) -> Result<Option<String>> {
        let kept = self.kept()?;
        for description in data.descriptions() {
            if !kept.made(description)? {
                let name = &description.tokenizer;
                return Ok(Some(format!(
                    "the dataset was built with the tokenizer {name}, and not with the tokenizer.json that is kept beside the checkpoints, so its tokens \
                     are other texts to the model"
                )));
            }
        }
        Ok(None)
    }
}

/// The files beside the checkpoints that an import or a run has kept, by name.
struct Kept(Vec<(String, Vec<u8>)>);

impl Kept {
    fn file(&self, name: &str) -> Option<&[u8]> {
        let found = self.0.iter().find(|(own, _)| own == name)?;
        Some(&found.1)
    }

    /// The model's tokenizer, if it has one.
    fn tokenizer(&self) -> Result<Option<Tokenizer>> {
        let read = tokenizer_of(&self.0);
        read.context("the tokenizer that is kept beside the checkpoints; --tokenizer and --data name another")
    }

    /// Whether a dataset with this description has the tokens of the tokenizer that is kept, as far as is known.
    fn made(&self, dataset: &Sidecar) -> Result<bool> {
        let json = self.file(TOKENIZER);
        if let Some(is_own) = json.and_then(|json| dataset.is_of_tokenizer(json)) {
            return Ok(is_own);
        }
        // Only now: to be opened it must name the token that ends a document, which that of a BERT does not.
        let kept = self.tokenizer()?;
        Ok(kept.map(|kept| kept.made(dataset)).transpose()?.unwrap_or(true))
    }

    /// The tokens that end a text of its model: all that its configurations name. Models of chats have one for a text, and one for a turn.
    fn ends(&self) -> BTreeSet<u32> {
        let configs = CONFIGS.into_iter().filter_map(|name| self.file(name));
        configs.flat_map(ends_of).collect()
    }
}

/// `eos_token_id` of a configuration: a number, or a list of them.
fn ends_of(config: &[u8]) -> Vec<u32> {
    let config: Value = serde_json::from_slice(config).unwrap_or_default();
    let said = &config["eos_token_id"];
    let ids = said.as_array().map_or(std::slice::from_ref(said), Vec::as_slice);
    let ids = ids.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok());
    ids.collect()
}

/// The tokenizer that is among these files, if any. It is read from a folder, since it may be of several files.
fn tokenizer_of(files: &[(String, Vec<u8>)]) -> Result<Option<Tokenizer>> {
    if !files.iter().any(|(name, _)| name == TOKENIZER) {
        return Ok(None);
    }
    let name = format!("varuna-tokenizer-{:016x}", rand::random::<u64>());
    let folder = std::env::temp_dir().join(name);
    // Nobody else may put files into it.
    let made = DirBuilder::new().mode(0o700).create(&folder);
    made.with_context(|| format!("cannot create {}", folder.display()))?;
    let read = tokenizer_in(&folder, files);
    if let Err(error) = std::fs::remove_dir_all(&folder) {
        tracing::warn!(%error, folder = %folder.display(), "a temporary folder stays");
    }
    read.map(Some)
}

fn tokenizer_in(folder: &Path, files: &[(String, Vec<u8>)]) -> Result<Tokenizer> {
    for (name, content) in files {
        let path = folder.join(name);
        let written = std::fs::write(&path, content);
        written.with_context(|| format!("cannot write {}", path.display()))?;
    }
    let name = folder.to_str();
    let name = name.with_context(|| format!("the path {} is no UTF-8", folder.display()))?;
    let opened = Tokenizer::open(name, None);
    // Nobody else knows the temporary folder, which is gone when this is read.
    opened.map_err(|error| anyhow!("{}", error.to_string().replace(name, "published")))
}

/// The parameters of a unit, without the moments, which lie behind them.
pub(super) fn parameters(mut shard: Shard) -> Vec<f32> {
    shard.data.truncate(shard.parameters());
    shard.data.shrink_to_fit();
    shard.data
}

impl ModelArguments {
    /// Finds the checkpoint.
    ///
    /// # Errors
    /// There is no such checkpoint, or it is damaged.
    pub(super) fn choose(&self) -> Result<Chosen> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .context("cannot start")?;
        let location = Location::open_existing(&self.checkpoint)?;
        let manifest = runtime.block_on(chosen(&location, self.step));
        let manifest = manifest.with_context(|| format!("--checkpoint {}", self.checkpoint))?;
        let name = folder_name(manifest.state);
        let model: Model = serde_json::from_value(manifest.facts.model.clone())
            .with_context(|| format!("the model of checkpoint {name}"))?;
        if model.layout() != manifest.layout.undivided() {
            bail!("checkpoint {name} has other units than its model");
        }
        Ok(Chosen {
            model,
            manifest,
            location,
            runtime,
        })
    }

    /// Reads a checkpoint of a transformer and puts its parameters where they are computed with, for samples whose documents are taken so.
    ///
    /// # Errors
    /// The checkpoint is damaged or of a user-defined model, or the device has no memory for the model.
    pub(super) fn load(&self, chosen: &Chosen, platform: Platform, packing: Packing) -> Result<TrainedModel> {
        let Model::Transformer(model) = &chosen.model else {
            bail!(
                "checkpoint {} is of a model of one's own: `varuna evaluate` takes its loss, and its own program runs what `varuna checkpoint export` \
                 writes",
                chosen.name()
            );
        };
        self.trained(chosen, model, platform, packing)
    }

    /// The same of a model that is the checkpoint's, but for the length of its samples.
    pub(super) fn trained(
        &self,
        chosen: &Chosen,
        model: &Transformer,
        platform: Platform,
        packing: Packing,
    ) -> Result<TrainedModel> {
        let backend = self.backend(platform)?;
        let shape = asked(attention_shape(model, packing, backend.numerics));
        Attention::select(AttentionChoice::Auto, backend.device, shape)?;
        let mut trained = TrainedModel::new(model.clone(), backend);
        chosen.read(|unit, shard| Ok(trained.add(unit, parameters(shard))?))?;
        tracing::info!(checkpoint = chosen.name(), device = %backend.device, "the model is loaded");
        Ok(trained)
    }

    /// The backend for these arguments.
    pub(super) fn backend(&self, platform: Platform) -> Result<Backend> {
        let cores = || processors::available().get();
        let threads = self.threads.map_or_else(cores, |threads| threads as usize);
        tch::set_num_threads(i32::try_from(threads).unwrap_or(1));
        let device = (platform.device)(self.device).context("--device")?;
        let opened = Backend::open(platform, (device, 1), self.precision.into(), Ablations::NONE);
        let (backend, why) = opened.with_context(|| format!("cannot compute on {device}"))?;
        if let Some(why) = why {
            tracing::warn!(%why, "libtorch's operators are used instead of kernels of our own");
        }
        Ok(backend)
    }
}

/// The shape about which libtorch is asked for samples of this one.
fn asked(shape: AttentionShape) -> AttentionShape {
    AttentionShape {
        sequence: shape.sequence.min(ASKED_TOKENS_MAX),
        ..shape
    }
}

/// The texts of a model.
pub(super) struct Texts {
    /// Whose tokens they are of.
    pub(super) tokenizer: Tokenizer,
    /// The tokens of which any ends one.
    pub(super) ends: BTreeSet<u32>,
}

impl TokenizerArguments {
    fn is_named(&self) -> bool {
        self.tokenizer.is_some() || self.data.is_some()
    }

    /// The texts of a checkpoint's model.
    ///
    /// # Errors
    /// The tokenizer that is named, or kept beside the checkpoints, cannot be read or has more tokens than the model; or none is known to fit.
    pub(super) fn of(&self, chosen: &Chosen, model: &Transformer) -> Result<Texts> {
        let size = model.vocabulary_size;
        let kept = match chosen.kept() {
            Ok(kept) => kept,
            // It would only say what ends a text besides.
            Err(error) if self.is_named() => {
                tracing::warn!(
                    why = format!("{error:#}"),
                    "what is kept beside the checkpoints cannot be read: a text ends with the token of the tokenizer that is named alone"
                );
                Kept(Vec::new())
            }
            Err(error) => return Err(error),
        };
        let of_data = |prefix: &PathBuf| {
            let name = prefix.to_str();
            let name = name.with_context(|| format!("--data {}: its path is no UTF-8", prefix.display()))?;
            Tokenizer::open(name, None).with_context(|| format!("--data {name}"))
        };
        let (of, found) = match (&self.data, &self.tokenizer) {
            (Some(prefix), _) => ("the tokenizer of --data", Some(of_data(prefix)?)),
            (None, Some(name)) => (
                "--tokenizer",
                Some(Tokenizer::open(name, None).context("--tokenizer")?),
            ),
            (None, None) => (
                "the tokenizer that is kept beside the checkpoints",
                kept.tokenizer()?,
            ),
        };
        let tokenizer = match found {
            Some(tokenizer) => tokenizer,
            None => guessed(size)?,
        };
        if tokenizer.vocabulary() > size {
            bail!("{of} is {tokenizer}, which has more tokens than the model: allowed are at most {size}");
        }
        let mut ends = BTreeSet::from([tokenizer.end_of_document()]);
        // To another tokenizer than the import's its numbers mean other tokens.
        if kept
            .file(TOKENIZER)
            .is_none_or(|json| tokenizer.was_made_from(json))
        {
            ends.extend(kept.ends());
        }
        Ok(Texts { tokenizer, ends })
    }
}

/// A tokenizer that fits the vocabulary. Another one of as many tokens fits as well, with which the model's tokens are other texts.
fn guessed(size: u32) -> Result<Tokenizer> {
    let fits = Tokenizer::of_vocabulary(size).with_context(|| {
        format!("no tokenizer is known that fits a vocabulary of {size}: name one with --tokenizer or --data")
    })?;
    tracing::warn!(
        "the tokenizer {fits} is a guess from the model's vocabulary of {size}, since none is kept beside the checkpoints; --tokenizer names another, \
         --data the dataset that has it"
    );
    Ok(fits)
}

/// The checkpoint of a step, or the newest that is complete.
async fn chosen(location: &Location, step: Option<u64>) -> Result<Manifest> {
    let all = location.list().await?;
    let wanted = |l: &&Listed| l.is_usable() && step.is_none_or(|step| l.id.step.0 == step);
    let Some(newest) = all.iter().filter(wanted).max_by_key(|l| l.id) else {
        let what = step.map_or("there is no complete checkpoint".to_owned(), |step| {
            format!("--step is {step}, of which there is no complete checkpoint")
        });
        bail!("{what}; `varuna checkpoint ls` lists all");
    };
    Ok(location.manifest(newest.id).await?)
}

#[cfg(test)]
mod tests;
