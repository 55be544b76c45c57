//! `varuna checkpoint import`: a Hugging Face folder becomes the first checkpoint of a job.

use crate::bar::Bar;
use crate::failure::Failure;
use sha2::{Digest, Sha256};
use std::path::Path;
use varuna_checkpoint::huggingface::{self, INDEX, WHOLE};
use varuna_checkpoint::{
    Facts, Location, PUBLISHED_FILE_BYTES_MAX, PUBLISHED_FILES, RateLimit, Store, folder_name,
};
use varuna_model::{Family, Transformer};
use varuna_plan::StateId;
use varuna_plan::state::Chain;

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
    let id = id_of(&files);
    let store = store(location, &model, job);
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
    keep_published(store.location(), folder).await?;
    store.complete(id).await?;
    println!(
        "{}: {} layers, {} parameters",
        folder_name(id),
        model.layers,
        model.parameter_count()
    );
    Ok(())
}

/// The state that the files are: newer than the initial one, older than every trained one.
fn id_of(files: &[Vec<u8>]) -> StateId {
    let mut digest = Sha256::new();
    files.iter().for_each(|file| digest.update(file));
    let digest = digest.finalize();
    let chain = digest
        .iter()
        .take(8)
        .fold(0u64, |chain, byte| chain << 8 | u64::from(*byte));
    StateId {
        chain: Chain(chain.max(1)),
        ..StateId::INITIAL
    }
}

fn store(location: &Location, model: &Transformer, job: &str) -> Store {
    let facts = Facts {
        job: job.to_owned(),
        model: serde_json::to_value(model).unwrap_or_default(),
        training_hash: String::new(),
        seed: 0,
        global_batch_size: 1,
        data_fingerprint: String::new(),
        moments: varuna_plan::Moments::Adam,
    };
    Store::new(location.clone(), model.layout(), facts)
}

/// Keeps the files of the folder's tokenizer beside the checkpoints, for an export of what will have been trained.
async fn keep_published(location: &Location, folder: &Path) -> Result<(), Failure> {
    for name in PUBLISHED_FILES {
        let path = folder.join(name);
        let Ok(facts) = std::fs::metadata(&path) else {
            continue;
        };
        if facts.len() > PUBLISHED_FILE_BYTES_MAX {
            let (path, bytes) = (path.display(), facts.len());
            return Err(Failure::Input(format!(
                "{path} has {bytes} bytes, allowed are at most {PUBLISHED_FILE_BYTES_MAX}"
            )));
        }
        let content = std::fs::read(&path)
            .map_err(|e| Failure::Input(format!("cannot read {}: {e}", path.display())))?;
        location.put_published(name, content).await?;
    }
    Ok(())
}
