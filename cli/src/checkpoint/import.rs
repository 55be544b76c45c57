//! `varuna checkpoint import`: a Hugging Face folder becomes the first checkpoint of a job.
//!
//! A model's state is larger than most machines' memory: files are read by ranges, and a unit is made when the one before it is in the
//! store. The manifest comes last. So an interrupted import has made no checkpoint, and can be tried again.

use crate::bar::Bar;
use crate::failure::Failure;
use crate::io::print_line;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::path::Path;
use varuna_api::{DNS_LABEL, is_label};
use varuna_checkpoint::huggingface::{self, Content, HuggingFaceError, INDEX, Import, LocalFile, WHOLE};
use varuna_checkpoint::{
    CheckpointError, Facts, Location, PUBLISHED_FILE_BYTES_MAX, PUBLISHED_FILES, RateLimit, Store,
    folder_name, unit_name,
};
use varuna_dataset::Tokenizer;
use varuna_model::{Family, Positions, Transformer};
use varuna_plan::StateId;
use varuna_plan::state::Chain;

/// What says all of a tokenizer.
const TOKENIZER: &str = "tokenizer.json";
/// What is read of a file at once for its digest.
const PIECE_BYTES: usize = 4 << 20;

pub(super) async fn import(location: &Location, folder: &Path, job: &str) -> Result<(), Failure> {
    // No job could have these checkpoints.
    if !is_label(job) {
        return Err(Failure::Input(format!("--job: {job:?} — {DNS_LABEL}")));
    }
    // All files are open at once, and an index may name more than most systems let a process have at first.
    varuna_open_files::raise();
    let config = document(folder, "config.json")?;
    let (_, model) =
        Family::read(&config).map_err(|e| Failure::Input(format!("{}: {e}", folder.display())))?;
    let import = Import::new(&model, files(folder)?).map_err(|e| unusable(folder, &e))?;
    check_tokenizer(folder)?;
    let store = store(location, &model, job);
    let listed = store.location().list().await?;
    let taken = || Failure::Input(format!("job {job} already has checkpoints in this location"));
    if listed.iter().any(|l| l.manifest || l.marked_damaged) {
        return Err(taken());
    }
    let id = id_of(import.files()).map_err(|e| Failure::Input(e.to_string()))?;
    // An earlier import of the same files is continued: equal names mean equal bits.
    if listed.iter().any(|l| l.id != id) {
        return Err(taken());
    }
    write(&store, &import, id, folder).await?;
    print_line(&format!(
        "{}: {} layers, {} parameters\n\n{}",
        folder_name(id),
        model.layers,
        model.parameter_count(),
        resume_instructions(&model, job)
    ));
    Ok(())
}

/// One of the folder's JSON files.
fn document(folder: &Path, name: &str) -> Result<Value, Failure> {
    let path = folder.join(name);
    let content = std::fs::read(&path);
    let content = content.map_err(|e| Failure::Input(format!("cannot read {}: {e}", path.display())))?;
    serde_json::from_slice(&content).map_err(|e| Failure::Input(format!("{}/{name}: {e}", folder.display())))
}

/// Refuses a tokenizer that no later command could read.
fn check_tokenizer(folder: &Path) -> Result<(), Failure> {
    let path = folder.join(TOKENIZER);
    match path.is_file() {
        true => Tokenizer::check_file(&path).map_err(|e| Failure::Input(e.to_string())),
        false => Ok(()),
    }
}

/// The files of the folder's tensors, opened.
fn files(folder: &Path) -> Result<Vec<LocalFile>, Failure> {
    // Large models come in several files, with a table.
    let names = match folder.join(WHOLE).exists() || !folder.join(INDEX).exists() {
        true => vec![WHOLE.to_owned()],
        false => huggingface::files_of_index(&document(folder, INDEX)?).map_err(|e| unusable(folder, &e))?,
    };
    let open = |name: &String| LocalFile::open(&folder.join(name));
    let files: std::io::Result<Vec<_>> = names.iter().map(open).collect();
    files.map_err(|e| Failure::Input(e.to_string()))
}

/// Why a folder cannot be imported; an error of reading names its file itself.
fn unusable(folder: &Path, error: &HuggingFaceError) -> Failure {
    Failure::Input(match error {
        HuggingFaceError::Read(error) => error.to_string(),
        HuggingFaceError::NamedFile { .. } => error.to_string(),
        other => format!("{}: {other}", folder.display()),
    })
}

/// The state that the files are: newer than the initial one, older than every trained one.
fn id_of(files: &[impl Content]) -> std::io::Result<StateId> {
    let bar = Bar::of_bytes("reading", files.iter().map(Content::length).sum());
    let mut digest = Sha256::new();
    let mut piece = vec![0; PIECE_BYTES];
    for file in files {
        let mut at = 0;
        while at < file.length() {
            let left = usize::try_from(file.length() - at).unwrap_or(usize::MAX);
            let bytes = left.min(PIECE_BYTES);
            file.read_into(at, &mut piece[..bytes])?;
            digest.update(&piece[..bytes]);
            at += bytes as u64;
            bar.add(bytes as u64);
        }
    }
    let digest = digest.finalize();
    let chain = digest
        .iter()
        .take(8)
        .fold(0u64, |chain, byte| chain << 8 | u64::from(*byte));
    Ok(StateId {
        chain: Chain(chain.max(1)),
        ..StateId::INITIAL
    })
}

/// Writes one unit after the other, then the files that are kept next to the checkpoints, then the manifest.
async fn write<C: Content>(
    store: &Store,
    import: &Import<'_, C>,
    id: StateId,
    folder: &Path,
) -> Result<(), Failure> {
    // 12 bytes a parameter: the value and two moments, in fp32.
    let bar = Bar::of_bytes("writing", 12 * import.model().parameter_count());
    for made in import.shards(id) {
        let (unit, shard) = made.map_err(|e| unusable(folder, &e))?;
        let file = shard.into_file()?;
        let bytes = file.bytes();
        let written = store.put_shard(id, unit, file, &RateLimit::default()).await;
        let name = unit_name(import.model().layout(), unit);
        written.map_err(|e| unwritten(&format!("{}/{name}.safetensors", folder_name(id)), &e))?;
        bar.add(bytes);
    }
    drop(bar);
    keep_published(store.location(), folder).await?;
    if !store.complete(id).await? {
        let name = folder_name(id);
        return Err(Failure::Input(format!(
            "{name}: somebody has deleted a shard of it meanwhile"
        )));
    }
    Ok(())
}

/// Why a file of the job's checkpoints cannot be written, such as a full disk.
fn unwritten(file: &str, error: &CheckpointError) -> Failure {
    Failure::Input(format!(
        "cannot write {file} in the job's checkpoint location: {error}"
    ))
}

/// What a job file has to say to go on from an import.
fn resume_instructions(model: &Transformer, job: &str) -> String {
    let Some(said) = huggingface::job_model(model) else {
        let features = serde_json::to_string(&model.features).unwrap_or_default();
        return format!(
            "No job can train it further, as spec.model has no field for some of its features: {features}."
        );
    };
    let length = match model.features.positions {
        Positions::Rotary(_) => " (sequenceLength may be another one)",
        Positions::Learned => "",
    };
    format!(
        "The job {job} goes on from it with this in its file{length}:\n\n{}",
        said.trim_end()
    )
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
        let written = location.put_published(name, content).await;
        written.map_err(|e| unwritten(&format!("published/{name}"), &e))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::runtime;
    use std::cell::{Cell, RefCell};
    use std::io;
    use std::path::PathBuf;
    use varuna_checkpoint::{Shard, ShardTensor};
    use varuna_model::{Unit, gpt2};

    /// A file in memory that records, for each read, the number of shards in a folder; after some reads it fails.
    struct Watched<'a> {
        content: &'a [u8],
        folder: PathBuf,
        shards: RefCell<Vec<usize>>,
        reads_left: Cell<usize>,
    }

    impl Content for Watched<'_> {
        fn length(&self) -> u64 {
            self.content.length()
        }

        fn read_into(&self, start: u64, out: &mut [u8]) -> io::Result<()> {
            let Some(left) = self.reads_left.get().checked_sub(1) else {
                return Err(io::Error::other("the disk is gone"));
            };
            self.reads_left.set(left);
            let shards = std::fs::read_dir(&self.folder).map_or(0, Iterator::count);
            self.shards.borrow_mut().push(shards);
            self.content.read_into(start, out)
        }
    }

    const ID: StateId = StateId {
        chain: Chain(5),
        ..StateId::INITIAL
    };

    fn small() -> Transformer {
        Transformer {
            layers: 2,
            hidden_size: 8,
            heads: 2,
            sequence_length: 16,
            vocabulary_size: 11,
            ..gpt2::SMALL
        }
    }

    /// A unit whose elements are zeros.
    fn zeros(model: &Transformer, unit: Unit) -> (Unit, Shard) {
        let parameters = model.parameters(unit);
        let elements: usize = parameters.iter().map(varuna_model::Parameter::elements).sum();
        let tensors = parameters.into_iter().map(|p| ShardTensor {
            name: p.name.into_owned(),
            shape: p.shape,
            whole: None,
        });
        let shard = Shard {
            id: ID,
            unit: unit_name(model.layout(), unit),
            adam_steps: 0,
            loss_scale: None,
            failed_in_a_row: 0,
            moments: varuna_plan::Moments::Adam,
            tensors: tensors.collect(),
            data: vec![0.0; 3 * elements],
        };
        (unit, shard)
    }

    #[test]
    fn import_reads_units_one_by_one_and_ends_with_the_checkpoint() {
        let scratch = tempfile::tempdir().unwrap();
        let model = small();
        let units = model.layout().all_units();
        let all: Vec<(Unit, Shard)> = units.map(|unit| zeros(&model, unit)).collect();
        let tensors = huggingface::export(&model, &all).unwrap();
        let location = Location::open(scratch.path().join("store").to_str().unwrap()).unwrap();
        let store = store(&location, &model, "j");
        let import = |reads: usize| {
            let file = Watched {
                content: &tensors,
                folder: scratch.path().join("store/j").join(folder_name(ID)),
                shards: RefCell::default(),
                reads_left: Cell::new(reads),
            };
            Import::new(&model, vec![file]).unwrap()
        };
        let runtime = runtime().unwrap();
        let list = || runtime.block_on(store.location().list()).unwrap();

        // Two reads of the header, one of the positions, and some of the first block's attention.
        let failing = import(5);
        let failed = runtime.block_on(write(&store, &failing, ID, scratch.path()));
        assert_eq!(failed.unwrap_err().to_string(), "the disk is gone");
        let left: Vec<_> = list().iter().map(|l| (l.manifest, l.files.len())).collect();
        assert_eq!(left, [(false, 1)], "the first unit's shard and no manifest");

        let whole = import(usize::MAX);
        let written = runtime.block_on(write(&store, &whole, ID, scratch.path()));
        assert!(written.is_ok(), "{written:?}");
        let mut shards = whole.files()[0].shards.borrow().clone();
        shards.dedup();
        // The shard of the first unit existed already.
        let expected: Vec<usize> = (1..all.len()).collect();
        assert_eq!(shards, expected, "shards that were there when a unit was read");
        assert!(list()[0].manifest);
    }
}
