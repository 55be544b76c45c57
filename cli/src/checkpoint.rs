//! `varuna checkpoint`: what lies in a folder of checkpoints, whether it is whole, and the way to and from Hugging Face.

use crate::coordinator::runtime;
use crate::failure::Failure;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use varuna_api::Model;
use varuna_checkpoint::{
    CheckpointError, Facts, Listed, Manifest, Place, Shard, Store, folder_name, huggingface,
};
use varuna_plan::state::Chain;
use varuna_plan::{StateId, Unit};

/// Looks after checkpoints. URI is the folder of one job's: <spec.checkpoint.uri>/<job>, a path or s3://, gs://, az://.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List what is there.
    Ls {
        /// The job's folder.
        uri: String,
        /// For tools.
        #[arg(long)]
        json: bool,
    },
    /// Print a checkpoint's manifest.
    Show {
        /// The job's folder.
        uri: String,
        /// The checkpoint's name as `ls` prints it; the newest where left out.
        name: Option<String>,
    },
    /// Read everything and check every length and digest.
    Verify {
        /// The job's folder.
        uri: String,
        /// For tools.
        #[arg(long)]
        json: bool,
    },
    /// Delete all but the newest complete ones, and the leftovers of those that were never completed.
    Prune {
        /// The job's folder.
        uri: String,
        /// How many stay.
        #[arg(long)]
        keep: usize,
    },
    /// Write a Hugging Face GPT-2 folder (model.safetensors, config.json).
    Export {
        /// The job's folder.
        uri: String,
        /// Where to; must not exist.
        folder: PathBuf,
        /// The checkpoint's name as `ls` prints it; the newest where left out.
        #[arg(long)]
        name: Option<String>,
    },
    /// Make the first checkpoint of a job from a Hugging Face GPT-2 folder: a run of that job starts from it.
    Import {
        /// The place of checkpoints, as in spec.checkpoint.uri.
        uri: String,
        /// The folder with model.safetensors and config.json.
        folder: PathBuf,
        /// The job's name, as in metadata.name.
        #[arg(long)]
        job: String,
    },
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    runtime()?.block_on(async {
        match &arguments.command {
            Command::Ls { uri, json } => ls(&Place::open(uri)?, *json).await,
            Command::Show { uri, name } => show(&Place::open(uri)?, name.as_deref()).await,
            Command::Verify { uri, json } => verify(&Place::open(uri)?, *json).await,
            Command::Prune { uri, keep } => prune(&Place::open(uri)?, *keep).await,
            Command::Export { uri, folder, name } => {
                export(&Place::open(uri)?, folder, name.as_deref()).await
            }
            Command::Import { uri, folder, job } => import(&Place::open(uri)?, folder, job).await,
        }
    })
}

impl From<CheckpointError> for Failure {
    fn from(error: CheckpointError) -> Failure {
        Failure::Input(error.to_string())
    }
}

fn state(listed: &Listed) -> &'static str {
    match (listed.manifest, listed.refused) {
        (true, false) => "complete",
        (true, true) => "damaged",
        (false, _) => "incomplete",
    }
}

async fn ls(place: &Place, as_json: bool) -> Result<(), Failure> {
    let all = place.list().await?;
    for listed in &all {
        let name = folder_name(listed.id);
        let bytes: u64 = listed.files.values().sum();
        if as_json {
            let (step, files) = (listed.id.step, listed.files.len());
            println!(
                "{}",
                json!({"name": name, "step": step, "state": state(listed), "bytes": bytes, "files": files})
            );
        } else {
            println!(
                "{name}  {:<10}  {:>9.1} MiB  {} files",
                state(listed),
                mib(bytes),
                listed.files.len()
            );
        }
    }
    if all.is_empty() && !as_json {
        println!("no checkpoints");
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a display's precision")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The named checkpoint, or the newest that is complete.
async fn choose(place: &Place, name: Option<&str>) -> Result<Manifest, Failure> {
    let all = place.list().await?;
    let usable = all.iter().filter(|l| l.is_usable());
    let chosen = match name {
        None => usable.max_by_key(|l| l.id),
        Some(name) => all.iter().find(|l| folder_name(l.id) == name),
    };
    let Some(listed) = chosen else {
        let what = name.map_or("no complete checkpoint is here".into(), |n| {
            format!("{n} — `ls` prints what is here")
        });
        return Err(Failure::Input(what));
    };
    Ok(place.manifest(listed.id).await?)
}

async fn show(place: &Place, name: Option<&str>) -> Result<(), Failure> {
    let manifest = choose(place, name).await?;
    let text = serde_json::to_string_pretty(&manifest).map_err(|e| Failure::Internal(e.to_string()))?;
    println!("{text}");
    Ok(())
}

async fn verify(place: &Place, as_json: bool) -> Result<(), Failure> {
    let mut bad = 0;
    for listed in place.list().await?.iter().filter(|l| l.manifest) {
        let name = folder_name(listed.id);
        let problem = check(place, listed.id).await.err().map(|e| e.to_string());
        bad += usize::from(problem.is_some());
        match (as_json, &problem) {
            (true, _) => println!("{}", json!({"name": name, "problem": problem})),
            (false, None) => println!("{name}  sound"),
            (false, Some(why)) => println!("{name}  {why}"),
        }
    }
    if bad > 0 {
        return Err(Failure::Input(format!("{bad} checkpoints are damaged")));
    }
    Ok(())
}

async fn check(place: &Place, id: StateId) -> Result<(), CheckpointError> {
    let manifest = place.manifest(id).await?;
    for shard in &manifest.shards {
        place.load(&manifest, &shard.unit, || {}).await?;
    }
    Ok(())
}

async fn prune(place: &Place, keep: usize) -> Result<(), Failure> {
    if keep == 0 {
        return Err(Failure::Input("--keep: 0 — at least 1".into()));
    }
    let pruned = place.prune(keep, &[]).await?;
    println!(
        "deleted {} checkpoints and the leftovers of {} that were never completed",
        pruned.checkpoints.len(),
        pruned.orphans.len()
    );
    Ok(())
}

async fn export(place: &Place, folder: &Path, name: Option<&str>) -> Result<(), Failure> {
    if folder.exists() {
        return Err(Failure::Input(format!("{} exists already", folder.display())));
    }
    let manifest = choose(place, name).await?;
    let model: Model = serde_json::from_value(manifest.facts.model.clone())
        .map_err(|e| Failure::Input(format!("{}: model: {e}", folder_name(manifest.state))))?;
    let mut shards: Vec<(Unit, Shard)> = Vec::new();
    for (unit, entry) in manifest.layout.all_units().zip(&manifest.shards) {
        shards.push((unit, place.load(&manifest, &entry.unit, || {}).await?));
    }
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
    println!(
        "{}: step {} of {}",
        folder.display(),
        manifest.state.step,
        manifest.facts.job
    );
    Ok(())
}

async fn import(place: &Place, folder: &Path, job: &str) -> Result<(), Failure> {
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
    for (unit, shard) in huggingface::import(&model, id, &file).map_err(bad)? {
        store.put_shard(id, unit, shard.encode()?).await?;
    }
    store.complete(id).await?;
    println!(
        "{}: {} layers, {} parameters",
        folder_name(id),
        model.layers,
        model.parameters()
    );
    Ok(())
}
