//! `varuna checkpoint`: lists, checks and deletes checkpoints, and converts them to and from Hugging Face's format.

mod export;
mod import;
mod save;

use crate::bar::Bar;
use crate::coordinator::runtime;
use crate::failure::Failure;
use crate::io::{print_json, print_line};
use futures::{StreamExt, TryStreamExt};
use serde_json::json;
use std::path::PathBuf;
use varuna_checkpoint::{CheckpointError, Listed, Location, Manifest, Retention, folder_name};

/// Shards that are checked at a time, so that a processor takes the digest of one while another is read.
const SHARDS_AT_ONCE: usize = 4;

/// List, check, save, delete, export and import checkpoints.
///
/// URI is the folder of one job: <spec.checkpoint.uri>/<metadata.name>. It is a path, or it starts with file://, s3://, gs:// or az://.
/// Credentials come from the environment variables that the tools of each cloud use.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List all checkpoints with their name, state (complete, incomplete or damaged), size and number of files.
    Ls {
        /// Folder of the job's checkpoints.
        uri: String,
        /// Print one JSON object for each checkpoint.
        #[arg(long)]
        json: bool,
    },
    /// Print the manifest of a checkpoint as JSON.
    Show {
        /// Folder of the job's checkpoints.
        uri: String,
        /// Name of the checkpoint, as `ls` prints it [default: the newest complete one].
        name: Option<String>,
    },
    /// Read every complete checkpoint and check all lengths and digests.
    Verify {
        /// Folder of the job's checkpoints.
        uri: String,
        /// Print one JSON object for each checkpoint, with its name and its error or null.
        #[arg(long)]
        json: bool,
    },
    /// Save a checkpoint of a local run now, and wait until it is complete.
    Save {
        /// Folder of the run.
        run: PathBuf,
        /// Maximum time to wait, in seconds. The checkpoint is saved even if the wait ends first.
        #[arg(long, value_name = "SECONDS", default_value_t = 600)]
        timeout: u64,
    },
    /// Delete all but the newest complete checkpoints, and the files of older checkpoints that were never completed.
    Prune {
        /// Folder of the job's checkpoints.
        uri: String,
        /// Number of complete checkpoints to keep, at least 1.
        #[arg(long)]
        keep: usize,
    },
    /// Export a checkpoint of a GPT-2, Llama, Qwen 3 or BERT as a Hugging Face folder (model.safetensors, config.json, tokenizer.json).
    Export(export::Arguments),
    /// Import a Hugging Face folder of a GPT-2, Llama, Qwen 3 or BERT as the first checkpoint of a job. A run of that job starts from it.
    ///
    /// The folder's tokenizer is kept beside the checkpoints, and an export adds it again.
    Import {
        /// Checkpoint location, as in spec.checkpoint.uri.
        uri: String,
        /// Folder with config.json and model.safetensors (or several such files and model.safetensors.index.json), in F32, F16 or BF16.
        folder: PathBuf,
        /// Name of the job, as in metadata.name.
        #[arg(long)]
        job: String,
    },
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    runtime()?.block_on(async {
        match &arguments.command {
            Command::Ls { uri, json } => ls(&Location::open_existing(uri)?, *json).await,
            Command::Show { uri, name } => show(&Location::open_existing(uri)?, name.as_deref()).await,
            Command::Verify { uri, json } => verify(&Location::open_existing(uri)?, *json).await,
            Command::Prune { uri, keep } => prune(&Location::open_existing(uri)?, *keep).await,
            Command::Save { run, timeout } => save::save(run, *timeout).await,
            Command::Export(arguments) => export::export(arguments).await,
            Command::Import { uri, folder, job } => import::import(&Location::open(uri)?, folder, job).await,
        }
    })
}

impl From<CheckpointError> for Failure {
    fn from(error: CheckpointError) -> Failure {
        Failure::Input(error.to_string())
    }
}

fn state(listed: &Listed) -> &'static str {
    match (listed.manifest, listed.marked_damaged) {
        (true, false) => "complete",
        (true, true) => "damaged",
        (false, _) => "incomplete",
    }
}

async fn ls(location: &Location, as_json: bool) -> Result<(), Failure> {
    let all = location.list().await?;
    for listed in &all {
        let name = folder_name(listed.id);
        let bytes: u64 = listed.files.values().sum();
        if as_json {
            let (step, files) = (listed.id.step, listed.files.len());
            let line =
                json!({"name": name, "step": step, "state": state(listed), "bytes": bytes, "files": files});
            print_line(&line.to_string());
        } else {
            print_line(&format!(
                "{name}  {:<10}  {:>9.1} MiB  {} files",
                state(listed),
                mib(bytes),
                listed.files.len()
            ));
        }
    }
    if all.is_empty() && !as_json {
        print_line("no checkpoints");
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a display's precision")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The named checkpoint, or the newest that is complete.
async fn choose(location: &Location, name: Option<&str>) -> Result<Manifest, Failure> {
    let all = location.list().await?;
    let usable = all.iter().filter(|l| l.is_usable());
    let chosen = match name {
        None => usable.max_by_key(|l| l.id),
        Some(name) => all.iter().find(|l| folder_name(l.id) == name),
    };
    let Some(listed) = chosen else {
        let what = name.map_or("there is no complete checkpoint".into(), |n| {
            format!("there is no checkpoint {n}; `varuna checkpoint ls` lists all")
        });
        return Err(Failure::Input(what));
    };
    Ok(location.manifest(listed.id).await?)
}

async fn show(location: &Location, name: Option<&str>) -> Result<(), Failure> {
    let manifest = choose(location, name).await?;
    print_json(&manifest)
}

async fn verify(location: &Location, as_json: bool) -> Result<(), Failure> {
    let mut damaged = 0;
    let all = location.list().await?;
    let complete = || all.iter().filter(|l| l.manifest);
    let bar = Bar::of_bytes("reading", complete().flat_map(|l| l.files.values()).sum());
    for listed in complete() {
        let name = folder_name(listed.id);
        let problem = check(location, listed, &bar).await.err().map(|e| e.to_string());
        damaged += usize::from(problem.is_some());
        bar.suspend(|| match (as_json, &problem) {
            (true, _) => print_line(&json!({"name": name, "problem": problem}).to_string()),
            (false, None) => print_line(&format!("{name}  ok")),
            (false, Some(why)) => print_line(&format!("{name}  {why}")),
        });
    }
    if damaged > 0 {
        return Err(Failure::Input(format!("{damaged} checkpoints are damaged")));
    }
    Ok(())
}

async fn check(location: &Location, listed: &Listed, bar: &Bar) -> Result<(), CheckpointError> {
    let manifest = location.manifest(listed.id).await?;
    let manifest = &manifest;
    let shards = manifest.shards.iter().map(|shard| async move {
        location.verify(manifest, &shard.unit, || {}).await?;
        bar.add(shard.bytes);
        Ok(())
    });
    futures::stream::iter(shards)
        .buffer_unordered(SHARDS_AT_ONCE)
        .try_collect()
        .await
}

async fn prune(location: &Location, keep: usize) -> Result<(), Failure> {
    if keep == 0 {
        return Err(Failure::Input("--keep is 0, allowed is 1 or more".into()));
    }
    let pruned = location.prune(&Retention::newest(keep)).await?;
    print_line(&format!(
        "deleted {} checkpoints, and the files of {} that were never completed",
        pruned.checkpoints.len(),
        pruned.orphans.len()
    ));
    Ok(())
}
