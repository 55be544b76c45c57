//! To and from Hugging Face's GPT-2 folders.

use super::bar::Bar;
use super::choose;
use crate::failure::Failure;
use sha2::{Digest, Sha256};
use std::path::Path;
use varuna_api::Model;
use varuna_checkpoint::{Facts, Pace, Place, Shard, Store, folder_name, huggingface};
use varuna_dataset::Tokenizer;
use varuna_plan::state::Chain;
use varuna_plan::{StateId, Unit};

pub(super) async fn export(
    place: &Place,
    folder: &Path,
    name: Option<&str>,
    tokenizer: Option<Tokenizer>,
) -> Result<(), Failure> {
    if folder.exists() {
        return Err(Failure::Input(format!("{} exists already", folder.display())));
    }
    let manifest = choose(place, name).await?;
    let model: Model = serde_json::from_value(manifest.facts.model.clone())
        .map_err(|e| Failure::Input(format!("{}: model: {e}", folder_name(manifest.state))))?;
    let mut shards: Vec<(Unit, Shard)> = Vec::new();
    let bar = Bar::of_bytes("reading", manifest.shards.iter().map(|s| s.bytes).sum());
    for (unit, entry) in manifest.layout.all_units().zip(&manifest.shards) {
        shards.push((unit, place.load(&manifest, &entry.unit, || {}).await?));
        bar.more(entry.bytes);
    }
    drop(bar);
    // One that is asked for must fit; otherwise the one that does.
    let tokenizer = match tokenizer {
        Some(asked) if asked.vocabulary() > model.vocabulary_size => {
            let size = model.vocabulary_size;
            return Err(Failure::Input(format!(
                "--tokenizer: {asked} — one with a vocabulary of at most {size}"
            )));
        }
        Some(asked) => Some(asked),
        None => Tokenizer::of_vocabulary(model.vocabulary_size),
    };
    let words = tokenizer.map(|t| t.published(model.sequence_length)).transpose();
    let words = words.map_err(|e| Failure::Internal(e.to_string()))?;
    let file = huggingface::export(&model, &shards).map_err(|e| Failure::Internal(e.to_string()))?;
    let write = |name: &str, content: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, content)
            .map_err(|e| Failure::Input(format!("cannot write {}: {e}", path.display())))
    };
    std::fs::create_dir_all(folder)
        .map_err(|e| Failure::Input(format!("cannot make {}: {e}", folder.display())))?;
    let config = serde_json::to_string_pretty(&huggingface::config(&model)).unwrap_or_default();
    write("config.json", config.as_bytes())?;
    write("model.safetensors", &file)?;
    for (name, content) in words.into_iter().flatten() {
        write(name, content.to_string().as_bytes())?;
    }
    if tokenizer.is_none() {
        eprintln!(
            "varuna: no tokenizer of ours has {} tokens: none is written",
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

pub(super) async fn import(place: &Place, folder: &Path, job: &str) -> Result<(), Failure> {
    let read = |name: &str| {
        let path = folder.join(name);
        std::fs::read(&path).map_err(|e| Failure::Input(format!("cannot read {}: {e}", path.display())))
    };
    let bad = |error: huggingface::HuggingFaceError| Failure::Input(format!("{}: {error}", folder.display()));
    let config = serde_json::from_slice(&read("config.json")?)
        .map_err(|e| Failure::Input(format!("{}/config.json: {e}", folder.display())))?;
    let model = huggingface::model(&config).map_err(bad)?;
    let file = read("model.safetensors")?;
    // Above the state that the seed gives, below everything that was ever trained.
    let digest = Sha256::digest(&file);
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
    let store = Store::new(place.clone(), model.layout(), facts);
    if !store.place().list().await?.is_empty() {
        return Err(Failure::Input(format!("job {job} has checkpoints here already")));
    }
    // 12 bytes for each parameter: the value and two moments.
    let bar = Bar::of_bytes("writing", 12 * model.parameters());
    for (unit, shard) in huggingface::import(&model, id, &file).map_err(bad)? {
        let encoded = shard.encode()?;
        let bytes = encoded.len() as u64;
        store.put_shard(id, unit, encoded, &Pace::default()).await?;
        bar.more(bytes);
    }
    drop(bar);
    store.complete(id).await?;
    println!(
        "{}: {} layers, {} parameters",
        folder_name(id),
        model.layers,
        model.parameters()
    );
    Ok(())
}
