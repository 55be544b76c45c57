//! A trained model from a checkpoint, and the options of who wants one.

use super::trained::TrainedModel;
use crate::ablation::Ablations;
use crate::backend::{Backend, Platform};
use crate::model::attention_shape;
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use tokio::runtime::Runtime;
use varuna_api::{Packing, Precision};
use varuna_checkpoint::{Listed, Location, Manifest, Shard, folder_name, unit_name};
use varuna_dataset::Tokenizer;
use varuna_model::{Model, Transformer, Unit};
use varuna_torch::{Attention, AttentionChoice, DeviceChoice};

/// Which model, and how it computes.
#[derive(clap::Args)]
pub(super) struct ModelArguments {
    /// Folder of the job's checkpoints: <spec.checkpoint.uri>/<metadata.name>.
    #[arg(long, value_name = "URI")]
    checkpoint: String,
    /// Step of the checkpoint [default: the newest complete one].
    #[arg(long)]
    step: Option<u64>,
    /// What to compute on: cpu, cuda or cuda:N; auto is the first GPU, where there is one.
    #[arg(long, default_value = "auto")]
    device: DeviceChoice,
    /// In which numbers to compute: fp32, bf16 or fp16.
    #[arg(long, default_value = "fp32", value_parser = precision)]
    pub(super) precision: Precision,
    /// Threads for tensor operations [default: the machine's cores].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Option<u32>,
}

/// Whose tokens a model has learnt.
#[derive(clap::Args)]
pub(super) struct TokenizerArguments {
    /// The tokenizer: byte, gpt2, or the path of a tokenizer.json or of a folder that has one [default: that of --data, else the one that fits the
    /// model's vocabulary].
    #[arg(long)]
    tokenizer: Option<String>,
    /// A dataset (path without .bin / .idx) whose tokenizer is used.
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
    /// Its name.
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
        let manifest = runtime.block_on(chosen(&location, self.step))?;
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

    /// Reads the checkpoint of a transformer and puts its parameters where they are computed with, for samples whose documents are taken so.
    ///
    /// # Errors
    /// There is no such checkpoint, it is damaged or of a model of one's own, or the device has no memory for the model.
    pub(super) fn load(&self, platform: Platform, packing: Packing) -> Result<TrainedModel> {
        let chosen = self.choose()?;
        let Model::Transformer(model) = &chosen.model else {
            bail!(
                "checkpoint {} is of a model of one's own: `varuna evaluate` takes its loss, and its own program runs what `varuna checkpoint export` \
                 writes",
                chosen.name()
            );
        };
        self.trained(&chosen, model, platform, packing)
    }

    /// The same of a checkpoint that was found.
    pub(super) fn trained(
        &self,
        chosen: &Chosen,
        model: &Transformer,
        platform: Platform,
        packing: Packing,
    ) -> Result<TrainedModel> {
        let backend = self.backend(platform)?;
        let shape = attention_shape(model, packing, backend.numerics);
        Attention::settle(AttentionChoice::Auto, backend.device, shape)?;
        let mut trained = TrainedModel::new(model.clone(), backend);
        chosen.read(|unit, shard| Ok(trained.add(unit, parameters(shard))?))?;
        tracing::info!(checkpoint = chosen.name(), device = %backend.device, "the model is loaded");
        Ok(trained)
    }

    /// How it computes.
    pub(super) fn backend(&self, platform: Platform) -> Result<Backend> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = self.threads.map_or(cores, |threads| threads as usize);
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

impl TokenizerArguments {
    /// The tokenizer of a model.
    ///
    /// # Errors
    /// The one that is named has more tokens than the model, or none is known to fit.
    pub(super) fn of(&self, model: &Transformer) -> Result<Tokenizer> {
        let size = model.vocabulary_size;
        let of_data = |prefix: &PathBuf| {
            let name = prefix.to_str();
            let name = name.with_context(|| format!("--data {}: its path is no UTF-8", prefix.display()))?;
            Tokenizer::open(name, None).with_context(|| format!("--data {name}"))
        };
        let named = match (&self.data, &self.tokenizer) {
            (Some(prefix), _) => Some(of_data(prefix)?),
            (None, Some(name)) => Some(Tokenizer::open(name, None).context("--tokenizer")?),
            (None, None) => None,
        };
        match named.or_else(|| Tokenizer::of_vocabulary(size)) {
            Some(tokenizer) if tokenizer.vocabulary() <= size => Ok(tokenizer),
            Some(tokenizer) => {
                bail!(
                    "--tokenizer is {tokenizer}, which has more tokens than the model: allowed are at most {size}"
                )
            }
            None => bail!(
                "no tokenizer is known that fits a vocabulary of {size}: name one with --tokenizer or --data"
            ),
        }
    }
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
