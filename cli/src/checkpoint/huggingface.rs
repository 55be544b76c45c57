//! Converts checkpoints to and from Hugging Face's folders.

use super::choose;
use crate::bar::Bar;
use crate::failure::Failure;
use crate::io::write;
use sha2::{Digest, Sha256};
use std::path::Path;
use varuna_checkpoint::{Facts, Location, RateLimit, Shard, Store, folder_name, huggingface};
use varuna_dataset::Tokenizer;
use varuna_model::{Family, Model};
use varuna_plan::state::Chain;
use varuna_plan::{StateId, Unit};

/// The file of a model that is in one.
const WHOLE: &str = "model.safetensors";
/// The table of a model in several files.
const INDEX: &str = "model.safetensors.index.json";

pub(super) async fn export(
    location: &Location,
    folder: &Path,
    name: Option<&str>,
    tokenizer: Option<&str>,
) -> Result<(), Failure> {
    if folder.exists() {
        return Err(Failure::Input(format!("{} exists already", folder.display())));
    }
    let manifest = choose(location, name).await?;
    let model: Model = serde_json::from_value(manifest.facts.model.clone())
        .map_err(|e| Failure::Input(format!("{}: model: {e}", folder_name(manifest.state))))?;
    let mut shards: Vec<(Unit, Shard)> = Vec::new();
    let bar = Bar::of_bytes("reading", manifest.shards.iter().map(|s| s.bytes).sum());
    for (unit, entry) in manifest.layout.all_units().zip(&manifest.shards) {
        shards.push((unit, location.load(&manifest, &entry.unit, || {}).await?));
        bar.add(entry.bytes);
    }
    drop(bar);
    let tokenizer = tokenizer_of(&model, tokenizer)?;
    let tokenizer_files = tokenizer
        .as_ref()
        .map(|t| t.published(model.sequence_length))
        .transpose();
    let tokenizer_files = tokenizer_files.map_err(|e| Failure::Internal(e.to_string()))?;
    let family = Family::of(&model.features).map_err(|e| Failure::Input(e.to_string()))?;
    let file = huggingface::export(&model, &shards).map_err(|e| Failure::Internal(e.to_string()))?;
    // Rows of the table that no token has come after the tokenizer's.
    let last = model.vocabulary_size.saturating_sub(1);
    let end = tokenizer.as_ref().map_or(last, Tokenizer::end_of_document);
    std::fs::create_dir_all(folder)
        .map_err(|e| Failure::Input(format!("cannot create {}: {e}", folder.display())))?;
    let config = serde_json::to_string_pretty(&family.config(&model, end)).unwrap_or_default();
    write(&folder.join("config.json"), config)?;
    write(&folder.join(WHOLE), &file)?;
    for (name, content) in tokenizer_files.into_iter().flatten() {
        write(&folder.join(name), content)?;
    }
    if tokenizer.is_none() {
        eprintln!(
            "varuna: no tokenizer has {} tokens, so the export has no tokenizer files",
            model.vocabulary_size
        );
    }
    println!(
        "{}: step {} of {}",
        folder.display(),
        manifest.state.step,
        manifest.facts.job
    );
    Ok(())
}

/// The tokenizer of an export: a named one must fit the model; otherwise the one that fits is used, if any.
fn tokenizer_of(model: &Model, named: Option<&str>) -> Result<Option<Tokenizer>, Failure> {
    let Some(named) = named else {
        return Ok(Tokenizer::of_vocabulary(model.vocabulary_size));
    };
    let tokenizer = Tokenizer::open(named, None).map_err(|e| Failure::Input(format!("--tokenizer: {e}")))?;
    if tokenizer.vocabulary() > model.vocabulary_size {
        let size = model.vocabulary_size;
        return Err(Failure::Input(format!(
            "--tokenizer is {named}, which has more tokens than the model: allowed are at most {size}"
        )));
    }
    Ok(Some(tokenizer))
}

pub(super) async fn import(location: &Location, folder: &Path, job: &str) -> Result<(), Failure> {
    let read = |name: &str| {
        let path = folder.join(name);
        std::fs::read(&path).map_err(|e| Failure::Input(format!("cannot read {}: {e}", path.display())))
    };
    let bad = |error: &dyn std::error::Error| Failure::Input(format!("{}: {error}", folder.display()));
    let document = |name: &str| {
        serde_json::from_slice::<serde_json::Value>(&read(name)?)
            .map_err(|e| Failure::Input(format!("{}/{name}: {e}", folder.display())))
    };
    let (_, model) = Family::read(&document("config.json")?).map_err(|e| bad(&e))?;
    // Large models come in several files, with a table.
    let names = match folder.join(WHOLE).exists() || !folder.join(INDEX).exists() {
        true => vec![WHOLE.to_owned()],
        false => huggingface::files_of_index(&document(INDEX)?).map_err(|e| bad(&e))?,
    };
    let files = names
        .iter()
        .map(|name| read(name))
        .collect::<Result<Vec<_>, _>>()?;
    // Newer than the initial state, older than every trained state.
    let mut digest = Sha256::new();
    files.iter().for_each(|file| digest.update(file));
    let digest = digest.finalize();
    let chain = digest
        .iter()
        .take(8)
        .fold(0u64, |chain, byte| chain << 8 | u64::from(*byte));
    let id = StateId {
        chain: Chain(chain.max(1)),
        ..StateId::INITIAL
    };
    let facts = Facts {
        job: job.to_owned(),
        model: serde_json::to_value(&model).unwrap_or_default(),
        training_hash: String::new(),
        seed: 0,
        global_batch_size: 1,
        data_fingerprint: String::new(),
    };
    let store = Store::new(location.clone(), model.layout(), facts);
    if !store.location().list().await?.is_empty() {
        return Err(Failure::Input(format!(
            "job {job} already has checkpoints in this location"
        )));
    }
    // 12 bytes a parameter: the value and two moments, in fp32.
    let bar = Bar::of_bytes("writing", 12 * model.parameter_count());
    let files: Vec<&[u8]> = files.iter().map(Vec::as_slice).collect();
    for (unit, shard) in huggingface::import(&model, id, &files).map_err(|e| bad(&e))? {
        let file = shard.into_file()?;
        let bytes = file.bytes();
        store.put_shard(id, unit, file, &RateLimit::default()).await?;
        bar.add(bytes);
    }
    drop(bar);
    store.complete(id).await?;
    println!(
        "{}: {} layers, {} parameters",
        folder_name(id),
        model.layers,
        model.parameter_count()
    );
    Ok(())
}
