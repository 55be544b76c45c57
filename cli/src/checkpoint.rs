//! `varuna checkpoint`: what lies in a folder of checkpoints, whether it is whole, and the way to and from Hugging Face.

mod bar;
mod huggingface;
mod save;

use crate::coordinator::runtime;
use crate::failure::Failure;
use bar::Bar;
use serde_json::json;
use std::path::PathBuf;
use varuna_checkpoint::{CheckpointError, Listed, Manifest, Place, folder_name};
use varuna_dataset::Tokenizer;

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
    /// Make a checkpoint of a run now, and wait until it is complete.
    Save {
        /// The run folder.
        run: PathBuf,
        /// Give up waiting after so many seconds; the checkpoint is made all the same.
        #[arg(long, default_value_t = 600)]
        timeout: u64,
    },
    /// Delete all but the newest complete ones, and the leftovers of those that were never completed.
    Prune {
        /// The job's folder.
        uri: String,
        /// How many stay.
        #[arg(long)]
        keep: usize,
    },
    /// Write a Hugging Face GPT-2 folder (model.safetensors, config.json, tokenizer.json) that `transformers` loads.
    Export {
        /// The job's folder.
        uri: String,
        /// Where to; must not exist.
        folder: PathBuf,
        /// Whose files to add: byte or gpt2; the one with the model's vocabulary where left out.
        #[arg(long)]
        tokenizer: Option<Tokenizer>,
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
            Command::Save { run, timeout } => save::save(run, *timeout).await,
            Command::Export {
                uri,
                folder,
                tokenizer,
                name,
            } => huggingface::export(&Place::open(uri)?, folder, name.as_deref(), *tokenizer).await,
            Command::Import { uri, folder, job } => {
                huggingface::import(&Place::open(uri)?, folder, job).await
            }
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
    let all = place.list().await?;
    let complete = || all.iter().filter(|l| l.manifest);
    let bar = Bar::of_bytes("reading", complete().flat_map(|l| l.files.values()).sum());
    for listed in complete() {
        let name = folder_name(listed.id);
        let problem = check(place, listed, &bar).await.err().map(|e| e.to_string());
        bad += usize::from(problem.is_some());
        bar.pause(|| match (as_json, &problem) {
            (true, _) => println!("{}", json!({"name": name, "problem": problem})),
            (false, None) => println!("{name}  sound"),
            (false, Some(why)) => println!("{name}  {why}"),
        });
    }
    if bad > 0 {
        return Err(Failure::Input(format!("{bad} checkpoints are damaged")));
    }
    Ok(())
}

async fn check(place: &Place, listed: &Listed, bar: &Bar) -> Result<(), CheckpointError> {
    let manifest = place.manifest(listed.id).await?;
    for shard in &manifest.shards {
        place.load(&manifest, &shard.unit, || {}).await?;
        bar.more(shard.bytes);
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
