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
use varuna_plan::StateId;

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
    /// List all checkpoints with their name, state (complete, incomplete, damaged or given-up), size and number of files.
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
    /// Read every complete checkpoint and check all lengths and digests. One that its run has given up is named and not read.
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
            Command::Show { uri, name } => show(uri, name.as_deref()).await,
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

async fn state(location: &Location, listed: &Listed) -> Result<&'static str, CheckpointError> {
    if !listed.manifest {
        return Ok("incomplete");
    }
    if !listed.marked_damaged {
        return Ok("complete");
    }
    let given_up = given_up(location, listed.id).await?;
    Ok(given_up.map_or("damaged", |_| "given-up"))
}

/// A sentence about a checkpoint that its run has given up. Its files are as they were saved, so their digests tell nothing.
async fn given_up(location: &Location, id: StateId) -> Result<Option<String>, CheckpointError> {
    let refusal = location.refusal(id).await?.filter(|refusal| refusal.given_up);
    Ok(refusal.map(|refusal| format!("given up by its run: {}", refusal.why)))
}

async fn ls(location: &Location, as_json: bool) -> Result<(), Failure> {
    let all = location.list().await?;
    for listed in &all {
        let name = folder_name(listed.id);
        let bytes: u64 = listed.files.values().sum();
        let state = state(location, listed).await?;
        if as_json {
            let (step, files) = (listed.id.step, listed.files.len());
            let line = json!({"name": name, "step": step, "state": state, "bytes": bytes, "files": files});
            print_line(&line.to_string());
        } else {
            print_line(&format!(
                "{name}  {state:<10}  {:>9.1} MiB  {} files",
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

/// The named checkpoint, or the newest that is complete, of the location with this URI.
async fn choose(uri: &str, location: &Location, name: Option<&str>) -> Result<Manifest, Failure> {
    let all = location.list().await?;
    let usable = all.iter().filter(|l| l.is_usable());
    let chosen = match name {
        None => usable.max_by_key(|l| l.id),
        Some(name) => all.iter().find(|l| folder_name(l.id) == name),
    };
    let Some(listed) = chosen else {
        let what = match name {
            None => format!("there is no complete checkpoint in {uri}"),
            Some(name) => {
                format!("there is no checkpoint {name} in {uri}; `varuna checkpoint ls` lists all")
            }
        };
        return Err(Failure::Input(what));
    };
    Ok(location.manifest(listed.id).await?)
}

/// Refuses a checkpoint that its run has given up, also where somebody names it.
async fn expect_not_given_up(location: &Location, id: StateId) -> Result<(), Failure> {
    match given_up(location, id).await? {
        Some(why) => Err(Failure::Input(format!(
            "{}: {why}; allowed is one that `varuna checkpoint ls` shows as complete",
            folder_name(id)
        ))),
        None => Ok(()),
    }
}

async fn show(uri: &str, name: Option<&str>) -> Result<(), Failure> {
    let manifest = choose(uri, &Location::open_existing(uri)?, name).await?;
    print_json(&manifest)
}

async fn verify(location: &Location, as_json: bool) -> Result<(), Failure> {
    let mut damaged = 0;
    let all = location.list().await?;
    let complete = || all.iter().filter(|l| l.manifest);
    let bar = Bar::of_bytes("reading", complete().flat_map(|l| l.files.values()).sum());
    for listed in complete() {
        let name = folder_name(listed.id);
        let refused = match listed.marked_damaged {
            true => given_up(location, listed.id).await?,
            false => None,
        };
        let problem = match refused {
            Some(why) => {
                bar.add(listed.files.values().sum());
                Some(why)
            }
            None => check(location, listed, &bar).await.err().map(|e| e.to_string()),
        };
        damaged += usize::from(problem.is_some());
        bar.suspend(|| match (as_json, &problem) {
            (true, _) => print_line(&json!({"name": name, "problem": problem}).to_string()),
            (false, None) => print_line(&format!("{name}  ok")),
            (false, Some(why)) => print_line(&format!("{name}  {why}")),
        });
    }
    if damaged > 0 {
        return Err(Failure::Input(format!(
            "{damaged} checkpoints are damaged or given up"
        )));
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

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_plan::state::Chain;
    use varuna_plan::{Generation, Step};

    fn id(step: u64) -> StateId {
        StateId {
            run_gen: Generation(1),
            step: Step(step),
            chain: Chain(step),
        }
    }

    #[test]
    fn a_given_up_checkpoint_is_listed_as_such_and_not_chosen() {
        let temp = tempfile::tempdir().unwrap();
        for step in [1, 2, 3] {
            let folder = temp.path().join(folder_name(id(step)));
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("manifest.json"), "{}").unwrap();
        }
        let location = Location::open(temp.path().to_str().unwrap()).unwrap();
        let (states, found, verified) = runtime().unwrap().block_on(async {
            location.mark_damaged(id(1), "for the test").await.unwrap();
            let mut all = location.list().await.unwrap();
            location.mark_given_up(&mut all[2], "for the test").await.unwrap();
            let mut states = Vec::new();
            for listed in &all {
                states.push(state(&location, listed).await.unwrap());
            }
            let found = expect_not_given_up(&location, id(3)).await;
            assert!(expect_not_given_up(&location, id(2)).await.is_ok());
            (states, found, given_up(&location, id(1)).await.unwrap())
        });
        assert_eq!(states, ["damaged", "complete", "given-up"]);
        let why = found.unwrap_err().to_string();
        assert!(why.contains("given up by its run: for the test"), "{why}");
        assert_eq!(verified, None, "its files are read");
    }
}
