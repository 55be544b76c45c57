//! `varuna checkpoint export`: converts a checkpoint into a folder that the Hugging Face libraries load. A checkpoint of a user-defined
//! model becomes a file of tensors under the model's own names.

mod partial;

use super::{choose, expect_not_given_up};
use crate::bar::Bar;
use crate::failure::Failure;
use crate::io::{print_line, to_json, warn, write};
use partial::Partial;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use varuna_api::quantity;
use varuna_checkpoint::huggingface::{Elements, Export, HuggingFaceError, INDEX, OwnExport};
use varuna_checkpoint::{Location, Manifest, folder_name};
use varuna_dataset::Tokenizer;
use varuna_model::{Family, Model, Positions, Transformer, Unit};

/// File with the description of the model.
const CONFIG: &str = "config.json";
/// File with the settings for generating text.
const GENERATION: &str = "generation_config.json";
/// The tokens that begin and end a text.
const BEGIN_AND_END: [&str; 2] = ["bos_token_id", "eos_token_id"];
/// What says all of a tokenizer.
const TOKENIZER: &str = "tokenizer.json";
/// How long the samples are that a model with rotary positions can read.
const LONGEST: &str = "max_position_embeddings";

/// Arguments of `varuna checkpoint export`.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Folder of the job's checkpoints.
    uri: String,
    /// Folder to create. It must not exist.
    folder: PathBuf,
    /// Tokenizer to add: byte, gpt2, the path of a tokenizer.json or of a folder with one, or the path (without .bin) of a dataset that was
    /// built with it [default: the tokenizer that is kept beside the checkpoints of this job or of the job from which it began; otherwise
    /// byte or gpt2 if one of them fits the model's vocabulary; otherwise none].
    #[arg(long)]
    tokenizer: Option<String>,
    /// Name of the checkpoint, as `ls` prints it [default: the newest complete one].
    #[arg(long)]
    name: Option<String>,
    /// Format of the elements: fp32 or bf16.
    #[arg(long, default_value = "fp32", value_parser = elements)]
    dtype: Elements,
    /// Maximum size of the tensors in a file, such as 5GB, 500M or 2Gi. A larger model is written as several files and
    /// model.safetensors.index.json. An exported model of your own is always one file.
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

/// Where an export is written, and how.
#[derive(Clone, Copy)]
struct Destination<'a> {
    folder: &'a Path,
    arguments: &'a Arguments,
}

/// Files beside the tensors.
struct AdditionalFiles {
    config: Value,
    generation: Value,
    others: Vec<(String, Vec<u8>)>,
}

/// The files next to the checkpoints: from the folder that an import has read, or the tokenizer of the dataset that a run has used.
#[derive(Default)]
struct Kept {
    config: Option<Value>,
    generation: Option<Value>,
    /// The tokenizer's files.
    others: Vec<(String, Vec<u8>)>,
}

pub(super) async fn export(arguments: &Arguments) -> Result<(), Failure> {
    let (location, folder) = (Location::open_existing(&arguments.uri)?, &arguments.folder);
    if folder.exists() {
        return Err(Failure::Input(format!("{} exists already", folder.display())));
    }
    let manifest = choose(&arguments.uri, &location, arguments.name.as_deref()).await?;
    expect_not_given_up(&location, manifest.state).await?;
    let model: Model = serde_json::from_value(manifest.facts.model.clone())
        .map_err(|e| Failure::Input(format!("{}: model: {e}", folder_name(manifest.state))))?;
    let additional_files = match &model {
        Model::Transformer(model) => Some(additional_files(&location, model, arguments).await?),
        Model::Exported(_) if arguments.tokenizer.is_some() => {
            let refused = "--tokenizer: this is a model of one's own, which has none; allowed with a model of the presets' families";
            return Err(Failure::Input(refused.to_owned()));
        }
        Model::Exported(_) => None,
    };
    let partial = Partial::create(folder)?;
    let to = Destination {
        folder: &partial.path,
        arguments,
    };
    match (&model, additional_files) {
        (Model::Transformer(model), Some(additional_files)) => {
            write_all(&location, &manifest, model, to, additional_files).await?;
        }
        _ => write_own(&location, &manifest, to).await?,
    }
    partial.rename(folder)?;
    print_line(&format!(
        "{}: step {} of {}",
        folder.display(),
        manifest.state.step,
        manifest.facts.job
    ));
    Ok(())
}

async fn write_all(
    location: &Location,
    manifest: &Manifest,
    model: &Transformer,
    to: Destination<'_>,
    additional_files: AdditionalFiles,
) -> Result<(), Failure> {
    let folder = to.folder;
    write_tensors(location, manifest, model, to).await?;
    write(&folder.join(CONFIG), to_json(&additional_files.config)?)?;
    write(&folder.join(GENERATION), to_json(&additional_files.generation)?)?;
    for (name, content) in additional_files.others {
        write(&folder.join(name), content)?;
    }
    Ok(())
}

/// The tensors of a user-defined model, in one file.
async fn write_own(location: &Location, manifest: &Manifest, to: Destination<'_>) -> Result<(), Failure> {
    let mut export = OwnExport::new(to.arguments.dtype);
    let bar = Bar::of_bytes("reading", manifest.shards.iter().map(|s| s.bytes).sum());
    let layout = manifest.layout.undivided();
    for unit in layout.all_units() {
        export.add(&location.load_unit(manifest, (layout, unit), || {}).await?);
        bar.add(bytes_of(manifest, unit));
    }
    export.finish().write(to.folder).map_err(failure)
}

/// An error of the folder's disk is the user's to correct.
fn failure(error: HuggingFaceError) -> Failure {
    match error {
        HuggingFaceError::Write { .. } => Failure::Input(error.to_string()),
        other => Failure::Internal(other.to_string()),
    }
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
    to: Destination<'_>,
) -> Result<(), Failure> {
    let Destination { folder, arguments } = to;
    let mut export = Export::new(model, arguments.dtype, arguments.max_shard_size).map_err(failure)?;
    let bar = Bar::of_bytes("reading", manifest.shards.iter().map(|s| s.bytes).sum());
    let layout = manifest.layout.undivided();
    for unit in layout.all_units() {
        let shard = location.load_unit(manifest, (layout, unit), || {}).await?;
        for file in export.add(unit, &shard) {
            file.write(folder).map_err(failure)?;
        }
        bar.add(bytes_of(manifest, unit));
    }
    match export.index() {
        Some(index) => write(&folder.join(INDEX), to_json(&index)?),
        None => Ok(()),
    }
}

async fn additional_files(
    location: &Location,
    model: &Transformer,
    arguments: &Arguments,
) -> Result<AdditionalFiles, Failure> {
    let (files, unread) = location.published_or_of_origin().await?;
    if let Some(why) = unread {
        warn(&format!(
            "varuna: what is kept beside the checkpoints cannot be read, so the export goes without its tokenizer and config.json: {why}"
        ));
    }
    let (kept, named) = (Kept::of(files), arguments.tokenizer.as_deref());
    let added = match named.is_some() || kept.others.is_empty() {
        true => tokenizer(model, named)?,
        false => None,
    };
    let (mut config, mut generation) = configs(model, added.as_ref(), arguments.dtype)?;
    kept.write_length(model, &mut config);
    // Another tokenizer than the import's has its own tokens.
    if named.is_none() || added.as_ref().is_some_and(|added| kept.has(added)) {
        let end = added.as_ref().map(Tokenizer::end_of_document);
        kept.write_special_tokens(end, &mut config, &mut generation);
    }
    let others = match added {
        Some(tokenizer) => tokenizer
            .published(model.sequence_length)
            .map_err(|e| Failure::Internal(e.to_string()))?,
        None => kept.others,
    };
    if others.is_empty() {
        warn(&format!(
            "varuna: no tokenizer has {} tokens, so the export has no tokenizer files",
            model.vocabulary_size
        ));
    }
    Ok(AdditionalFiles {
        config,
        generation,
        others,
    })
}

/// `config.json` and `generation_config.json` of a model whose texts begin and end with the tokens that this tokenizer says, as far as it says any.
fn configs(
    model: &Transformer,
    tokenizer: Option<&Tokenizer>,
    dtype: Elements,
) -> Result<(Value, Value), Failure> {
    let family = Family::of(model).map_err(|e| Failure::Input(e.to_string()))?;
    let begin = tokenizer.and_then(Tokenizer::begin_of_text);
    let end = tokenizer.map(Tokenizer::end_of_document);
    let mut config = family.config(model, end.unwrap_or_default());
    config["torch_dtype"] = dtype.published().into();
    let mut generation = json!({ "_from_model_config": true });
    for (field, token) in BEGIN_AND_END.into_iter().zip([begin, end]) {
        // Without an entry the library uses the family's usual ids (2 ends a Llama's text); null means that there is none.
        config[field] = token.into();
        if let Some(token) = token {
            generation[field] = token.into();
        }
    }
    Ok((config, generation))
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
        None => Ok(guessed(size)),
    }
}

/// A tokenizer that fits the vocabulary, if any does. Another one with the same number of tokens fits as well, so the user is told.
fn guessed(size: u32) -> Option<Tokenizer> {
    let fits = Tokenizer::of_vocabulary(size)?;
    warn(&format!(
        "varuna: the tokenizer {fits} is a guess from the model's vocabulary of {size}, since none is kept beside the checkpoints; --tokenizer names \
         another, such as that of the dataset"
    ));
    Some(fits)
}

impl Kept {
    fn of(files: Vec<(String, impl AsRef<[u8]>)>) -> Kept {
        let mut kept = Kept::default();
        for (name, content) in files {
            let content = content.as_ref();
            let document = || serde_json::from_slice(content).ok().filter(Value::is_object);
            match name.as_str() {
                CONFIG => kept.config = document(),
                GENERATION => kept.generation = document(),
                _ => kept.others.push((name, content.to_vec())),
            }
        }
        kept
    }

    /// Whether this is the tokenizer that is kept.
    fn has(&self, tokenizer: &Tokenizer) -> bool {
        let mut others = self.others.iter();
        others.any(|(name, content)| name == TOKENIZER && tokenizer.was_made_from(content))
    }

    /// A model with rotary positions has no parameters that belong to one: training on shorter samples takes nothing from what it can read.
    fn write_length(&self, model: &Transformer, config: &mut Value) {
        let kept = self.config.as_ref().and_then(|said| said[LONGEST].as_u64());
        let longer = kept.filter(|length| *length > u64::from(model.sequence_length));
        if let (Positions::Rotary(_), Some(longer)) = (model.features.positions, longer) {
            config[LONGEST] = longer.into();
        }
    }

    /// The tokens that begin, end and fill up a text. `end`: that of the tokenizer that is added to the export; it is used if the import
    /// says nothing.
    fn write_special_tokens(&self, end: Option<u32>, config: &mut Value, generation: &mut Value) {
        if let Some(said) = &self.config {
            for field in BEGIN_AND_END.into_iter().chain(["pad_token_id"]) {
                match said.get(field) {
                    Some(token) => {
                        config[field] = token.clone();
                        generation[field] = token.clone();
                    }
                    // As the import had it.
                    None if end.is_none() => {
                        if let Some(fields) = config.as_object_mut() {
                            fields.remove(field);
                        }
                    }
                    None => {}
                }
            }
        }
        if let Some(said) = &self.generation {
            *generation = said.clone();
        }
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

    fn kept(config: &Value) -> Kept {
        Kept::of(vec![
            ("config.json".to_owned(), config.to_string()),
            ("tokenizer.json".to_owned(), "{}".to_owned()),
        ])
    }

    #[test]
    fn the_tokens_that_end_a_text_are_those_of_the_imported_folder() {
        let kept = kept(&json!({ "eos_token_id": [7, 9], "pad_token_id": null, "n_layer": 3 }));
        assert_eq!(kept.others, [("tokenizer.json".to_owned(), b"{}".to_vec())]);
        let own = json!({ "eos_token_id": 1, "bos_token_id": 1, "n_layer": 2 });
        for (end, expected) in [
            (
                Some(1),
                json!({ "eos_token_id": [7, 9], "bos_token_id": 1, "n_layer": 2, "pad_token_id": null }),
            ),
            // Values that are not known are missing, as in the imported folder.
            (
                None,
                json!({ "eos_token_id": [7, 9], "n_layer": 2, "pad_token_id": null }),
            ),
        ] {
            let (mut config, mut generation) = (own.clone(), json!({}));
            kept.write_special_tokens(end, &mut config, &mut generation);
            assert_eq!(config, expected);
            assert_eq!(
                generation,
                json!({ "eos_token_id": [7, 9], "pad_token_id": null })
            );
        }
    }

    #[test]
    fn no_token_is_made_up_that_ends_a_text() {
        let (config, generation) = configs(&varuna_model::llama3::SMALL, None, Elements::Fp32).unwrap();
        assert_eq!(config.get("eos_token_id"), Some(&Value::Null));
        assert_eq!(config.get("bos_token_id"), Some(&Value::Null));
        assert_eq!(generation, json!({ "_from_model_config": true }));
    }

    /// The tokenizer of bytes as a folder with this `tokenizer_config.json`.
    fn bytes_with(config: &Value) -> (Tokenizer, Vec<u8>) {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &[u8]| std::fs::write(folder.path().join(name), content).unwrap();
        for (name, content) in Tokenizer::Byte.published(16).unwrap() {
            write(&name, &content);
        }
        write("tokenizer_config.json", config.to_string().as_bytes());
        let tokenizer = Tokenizer::open(folder.path().to_str().unwrap(), None).unwrap();
        let json = std::fs::read(folder.path().join(TOKENIZER)).unwrap();
        (tokenizer, json)
    }

    #[test]
    fn text_begins_with_the_begin_token_of_the_tokenizer() {
        for (said, begin) in [(json!({}), None), (json!({ "bos_token": "a" }), Some(97))] {
            let (tokenizer, _) = bytes_with(&said);
            let model = &varuna_model::llama3::SMALL;
            let (config, generation) = configs(model, Some(&tokenizer), Elements::Fp32).unwrap();
            assert_eq!(config["bos_token_id"], json!(begin), "{said}");
            assert_eq!(config["eos_token_id"], json!(256), "{said}");
            assert_eq!(generation.get("bos_token_id"), begin.map(Value::from).as_ref());
            assert_eq!(generation["eos_token_id"], json!(256));
        }
        let (config, _) =
            configs(&varuna_model::gpt2::SMALL, Some(&Tokenizer::Gpt2), Elements::Fp32).unwrap();
        assert_eq!(config["bos_token_id"], json!(50_256));
    }

    #[test]
    fn imported_tokenizer_is_recognized_by_any_path() {
        let (tokenizer, json) = bytes_with(&json!({}));
        let kept = Kept::of(vec![
            ("config.json".to_owned(), b"{}".to_vec()),
            (TOKENIZER.to_owned(), json),
        ]);
        assert!(kept.has(&tokenizer));
        assert!(!kept.has(&Tokenizer::Byte));
        assert!(!Kept::default().has(&tokenizer));
    }

    #[test]
    fn positions_that_have_parameters_stay_as_many_as_they_are() {
        for (model, longest) in [
            (varuna_model::llama3::SMALL, 131_072),
            (varuna_model::bert::BASE, 512),
        ] {
            let (mut config, _) = configs(&model, None, Elements::Fp32).unwrap();
            kept(&json!({ "max_position_embeddings": 131_072 })).write_length(&model, &mut config);
            assert_eq!(config["max_position_embeddings"], longest);
            kept(&json!({ "max_position_embeddings": 16 })).write_length(&model, &mut config);
            assert_eq!(config["max_position_embeddings"], longest);
        }
    }
}
