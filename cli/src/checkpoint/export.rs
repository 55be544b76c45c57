//! `varuna checkpoint export`: a checkpoint becomes a folder that the Hugging Face libraries load; one of a model of the user's own becomes a file of
//! tensors under its own names.

use super::choose;
use crate::bar::Bar;
use crate::failure::Failure;
use crate::io::{to_json, write};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use varuna_api::quantity;
use varuna_checkpoint::huggingface::{Elements, Export, INDEX, OwnExport};
use varuna_checkpoint::{Location, Manifest, folder_name};
use varuna_dataset::Tokenizer;
use varuna_model::{Family, Model, Transformer, Unit};

/// What an import keeps beside the tokenizer's files.
const CONFIGS: [&str; 2] = ["config.json", "generation_config.json"];

/// Arguments of `varuna checkpoint export`.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Folder of the job's checkpoints.
    uri: String,
    /// Folder to create; it must not exist.
    folder: PathBuf,
    /// Tokenizer to add: byte, gpt2, the path of a tokenizer.json or of a folder that has one, or that of the dataset (without .bin) that was
    /// built with it [default: that of the folder that was imported, else byte or gpt2, whichever fits the model's vocabulary, if any].
    #[arg(long)]
    tokenizer: Option<String>,
    /// Name of the checkpoint, as `ls` prints it [default: the newest complete one].
    #[arg(long)]
    name: Option<String>,
    /// Format of the elements: fp32 or bf16.
    #[arg(long, default_value = "fp32", value_parser = elements)]
    dtype: Elements,
    /// Most bytes of tensors in a file, such as 5GB, 500M or 2Gi; a larger model is written as several files and model.safetensors.index.json. A
    /// model of one's own is always one file.
    #[arg(long, value_name = "SIZE", default_value = "5GB", value_parser = size)]
    max_shard_size: u64,
}

fn elements(name: &str) -> Result<Elements, String> {
    match name {
        "fp32" => Ok(Elements::Fp32),
        "bf16" => Ok(Elements::Bf16),
        _ => Err("allowed are fp32 and bf16".into()),
    }
}

/// An amount as the rest of Varuna spells it, or with the B that the Hugging Face libraries write after it.
fn size(text: &str) -> Result<u64, String> {
    let amount = text.strip_suffix('B').unwrap_or(text);
    let amount = match amount.strip_suffix('K') {
        Some(thousands) => format!("{thousands}k"),
        None => amount.to_owned(),
    };
    quantity::bytes(&Value::String(amount))
        .ok_or_else(|| "allowed is an amount such as 5GB, 500M or 2Gi".to_owned())
}

/// Files beside the tensors.
struct Beside {
    config: Value,
    generation: Value,
    others: Vec<(String, Vec<u8>)>,
}

pub(super) async fn export(arguments: &Arguments) -> Result<(), Failure> {
    let (location, folder) = (Location::open_existing(&arguments.uri)?, &arguments.folder);
    if folder.exists() {
        return Err(Failure::Input(format!("{} exists already", folder.display())));
    }
    let manifest = choose(&location, arguments.name.as_deref()).await?;
    let model: Model = serde_json::from_value(manifest.facts.model.clone())
        .map_err(|e| Failure::Input(format!("{}: model: {e}", folder_name(manifest.state))))?;
    let beside = match &model {
        Model::Transformer(model) => Some(beside(&location, model, arguments).await?),
        Model::Exported(_) if arguments.tokenizer.is_some() => {
            let refused = "--tokenizer: this is a model of one's own, which has none; allowed with a model of the presets' families";
            return Err(Failure::Input(refused.to_owned()));
        }
        Model::Exported(_) => None,
    };
    std::fs::create_dir_all(folder)
        .map_err(|e| Failure::Input(format!("cannot create {}: {e}", folder.display())))?;
    let written = match (&model, beside) {
        (Model::Transformer(model), Some(beside)) => {
            write_all(&location, &manifest, model, arguments, beside).await
        }
        _ => write_own(&location, &manifest, arguments).await,
    };
    if written.is_err() {
        // Half an export would pass for a whole one. It may be that nothing was written.
        let _ = std::fs::remove_dir_all(folder);
    }
    written?;
    println!(
        "{}: step {} of {}",
        folder.display(),
        manifest.state.step,
        manifest.facts.job
    );
    Ok(())
}

async fn write_all(
    location: &Location,
    manifest: &Manifest,
    model: &Transformer,
    arguments: &Arguments,
    beside: Beside,
) -> Result<(), Failure> {
    let folder: &Path = &arguments.folder;
    write_tensors(location, manifest, model, arguments).await?;
    write(&folder.join("config.json"), to_json(&beside.config)?)?;
    write(
        &folder.join("generation_config.json"),
        to_json(&beside.generation)?,
    )?;
    for (name, content) in beside.others {
        write(&folder.join(name), content)?;
    }
    Ok(())
}

/// The tensors of a model of one's own, in one file.
async fn write_own(location: &Location, manifest: &Manifest, arguments: &Arguments) -> Result<(), Failure> {
    let mut export = OwnExport::new(arguments.dtype);
    let bar = Bar::of_bytes("reading", manifest.shards.iter().map(|s| s.bytes).sum());
    let layout = manifest.layout.undivided();
    for unit in layout.all_units() {
        export.add(&location.load_unit(manifest, (layout, unit), || {}).await?);
        bar.add(bytes_of(manifest, unit));
    }
    let file = export.finish().map_err(|e| Failure::Internal(e.to_string()))?;
    write(&arguments.folder.join(file.name), file.content)
}

/// Bytes of the shards of a unit of the undivided layout.
fn bytes_of(manifest: &Manifest, whole: Unit) -> u64 {
    let units = manifest.layout.ranges_of(whole);
    units
        .filter_map(|u| manifest.shards.get(u.index()))
        .map(|s| s.bytes)
        .sum()
}

/// Reads one unit at a time, and writes each file as soon as it is complete.
async fn write_tensors(
    location: &Location,
    manifest: &Manifest,
    model: &Transformer,
    arguments: &Arguments,
) -> Result<(), Failure> {
    let internal = |e: varuna_checkpoint::huggingface::HuggingFaceError| Failure::Internal(e.to_string());
    let folder: &Path = &arguments.folder;
    let mut export = Export::new(model, arguments.dtype, arguments.max_shard_size).map_err(internal)?;
    let bar = Bar::of_bytes("reading", manifest.shards.iter().map(|s| s.bytes).sum());
    let layout = manifest.layout.undivided();
    for unit in layout.all_units() {
        let shard = location.load_unit(manifest, (layout, unit), || {}).await?;
        for file in export.add(unit, &shard).map_err(internal)? {
            write(&folder.join(file.name), file.content)?;
        }
        bar.add(bytes_of(manifest, unit));
    }
    match export.index() {
        Some(index) => write(&folder.join(INDEX), to_json(&index)?),
        None => Ok(()),
    }
}

async fn beside(location: &Location, model: &Transformer, arguments: &Arguments) -> Result<Beside, Failure> {
    let family = Family::of(&model.features).map_err(|e| Failure::Input(e.to_string()))?;
    let kept = match &arguments.tokenizer {
        Some(_) => Vec::new(),
        None => location.published().await?,
    };
    let of = |end: u32| {
        let mut config = family.config(model, end);
        config["torch_dtype"] = arguments.dtype.published().into();
        let generation = json!({ "_from_model_config": true, "bos_token_id": end, "eos_token_id": end });
        (config, generation)
    };
    // Rows of the table that no token has come after the tokenizer's.
    let last = model.vocabulary_size.saturating_sub(1);
    if kept.iter().any(|(name, _)| !CONFIGS.contains(&name.as_str())) {
        let (config, generation) = of(last);
        return Ok(imported(config, generation, kept));
    }
    let tokenizer = tokenizer(model, arguments.tokenizer.as_deref())?;
    let Some(tokenizer) = tokenizer else {
        eprintln!(
            "varuna: no tokenizer has {} tokens, so the export has no tokenizer files",
            model.vocabulary_size
        );
        let (config, generation) = of(last);
        return Ok(imported(config, generation, kept));
    };
    let others = tokenizer.published(model.sequence_length);
    let others = others.map_err(|e| Failure::Internal(e.to_string()))?;
    let (config, generation) = of(tokenizer.end_of_document());
    Ok(Beside {
        config,
        generation,
        others,
    })
}

/// A named tokenizer must fit the model; otherwise the one that fits is used, if any.
fn tokenizer(model: &Transformer, named: Option<&str>) -> Result<Option<Tokenizer>, Failure> {
    let size = model.vocabulary_size;
    let open =
        |name: &str| Tokenizer::open(name, None).map_err(|e| Failure::Input(format!("--tokenizer: {e}")));
    match named.map(open).transpose()? {
        Some(named) if named.vocabulary() > size => Err(Failure::Input(format!(
            "--tokenizer is {named}, which has more tokens than the model: allowed are at most {size}"
        ))),
        Some(named) => Ok(Some(named)),
        None => Ok(Tokenizer::of_vocabulary(size)),
    }
}

/// The files that an import kept, and what its `config.json` said of the tokens that begin and end a text.
fn imported(mut config: Value, mut generation: Value, kept: Vec<(String, impl AsRef<[u8]>)>) -> Beside {
    let mut others = Vec::new();
    for (name, content) in kept {
        let document = || serde_json::from_slice::<Value>(content.as_ref()).ok();
        match name.as_str() {
            "config.json" => {
                let said = document().unwrap_or_default();
                for field in ["bos_token_id", "eos_token_id", "pad_token_id"] {
                    if let Some(token) = said.get(field) {
                        config[field] = token.clone();
                        generation[field] = token.clone();
                    }
                }
            }
            "generation_config.json" => generation = document().unwrap_or(generation),
            _ => others.push((name, content.as_ref().to_vec())),
        }
    }
    Beside {
        config,
        generation,
        others,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_both_spellings() {
        for (text, bytes) in [
            ("5GB", 5_000_000_000),
            ("5G", 5_000_000_000),
            ("500MB", 500_000_000),
            ("10KB", 10_000),
            ("2Gi", 2 << 30),
            ("2GiB", 2 << 30),
            ("4096", 4096),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "B", "0", "-1", "5 GB", "5XB"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_tokens_that_end_a_text_are_those_of_the_imported_folder() {
        let kept = vec![
            (
                "config.json".to_owned(),
                r#"{"eos_token_id": [7, 9], "pad_token_id": null, "n_layer": 3}"#,
            ),
            ("tokenizer.json".to_owned(), "{}"),
        ];
        let own = json!({ "eos_token_id": 1, "bos_token_id": 1, "n_layer": 2 });
        let beside = imported(own.clone(), own, kept);
        assert_eq!(
            beside.config,
            json!({ "eos_token_id": [7, 9], "bos_token_id": 1, "n_layer": 2, "pad_token_id": null })
        );
        assert_eq!(beside.generation["eos_token_id"], json!([7, 9]));
        assert_eq!(beside.others, [("tokenizer.json".to_owned(), b"{}".to_vec())]);
    }
}
