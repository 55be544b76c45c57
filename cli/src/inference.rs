//! `varuna generate` and `varuna evaluate`: uses of a trained model. The worker program does the computation.

use crate::children::{with_this_process, worker_program};
use crate::failure::Failure;
use std::ffi::OsStr;
use std::io::{ErrorKind, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Environment variables of the worker. OpenMP's threads, one for each core, would wait for each other awake: where another program uses one of
/// the cores, all others then wait for the thread that has none, and the whole takes 7 to 10 times as long.
const DEFAULTS: [(&str, &str); 2] = [("VARUNA_LOG", "warn"), ("OMP_WAIT_POLICY", "passive")];

/// Which model, and how it computes.
#[derive(clap::Args)]
struct ModelArguments {
    /// Folder of the job's checkpoints, as for `varuna checkpoint ls`: <spec.checkpoint.uri>/<metadata.name>.
    checkpoint: String,
    /// Step of the checkpoint [default: the newest complete one].
    #[arg(long)]
    step: Option<u64>,
    /// Device to compute on: cpu, cuda, cuda:N or auto. auto is the first GPU if there is one, otherwise the CPU.
    #[arg(long, default_value = "auto")]
    device: String,
    /// Number format to compute in: fp32, bf16 or fp16.
    #[arg(long, default_value = "fp32")]
    precision: String,
    /// Number of threads for tensor operations [default: the machine's cores].
    #[arg(long)]
    threads: Option<u32>,
    /// The worker program [default: varuna-worker in the folder of this program].
    #[arg(long, value_name = "FILE", env = "VARUNA_WORKER")]
    worker_binary: Option<PathBuf>,
}

/// Continue a prompt with a trained model.
///
/// It does not matter which plan trained the model. The text goes to standard output token by token. It ends where the model ends the
/// document, after --max-tokens, or at the length of the model's samples. Equal seeds give equal text.
#[derive(clap::Args)]
pub(crate) struct GenerateArguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Beginning of the text. It may be empty.
    #[arg(long, value_name = "TEXT", required_unless_present = "prompt_file")]
    prompt: Option<String>,
    /// File with the beginning of the text. - is standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    prompt_file: Option<PathBuf>,
    /// Maximum number of tokens to generate.
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_tokens: u32,
    /// Number by which logits are divided. Below 1, likely tokens become more likely. With 0, the most likely token is always taken.
    #[arg(long, default_value_t = 0.8, allow_negative_numbers = true)]
    temperature: f64,
    /// Draw only from the most likely tokens that together have this probability.
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    top_p: f64,
    /// Random seed. Equal seeds give equal tokens.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Tokenizer: byte, gpt2, or the path of a tokenizer.json or of a folder with one [default: the tokenizer of --data; otherwise the one
    /// that is kept beside the checkpoints; otherwise the one that fits the model's vocabulary].
    #[arg(long)]
    tokenizer: Option<String>,
    /// Dataset (path without .bin or .idx) whose tokenizer is used.
    #[arg(long, value_name = "PREFIX", conflicts_with = "tokenizer")]
    data: Option<PathBuf>,
    /// Read the names of control tokens in the prompt, such as <|im_start|>, as these tokens and not as text.
    #[arg(long)]
    control_tokens: bool,
    /// Print one JSON object at the end instead: the token ids of the prompt and of the text, the text, and why it ended.
    #[arg(long)]
    json: bool,
}

/// Compute the loss of a trained model over the held-out windows of a dataset.
///
/// The output is the mean loss of a token in nats, and its exponential, the perplexity. For an exported model of your own it is the mean
/// loss of a sample. With the fraction, the precision and the number of windows of the job's own evaluation, the result is the loss that
/// the run found at that step.
#[derive(clap::Args)]
pub(crate) struct EvaluateArguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Dataset (path without .bin or .idx).
    data: PathBuf,
    /// Share of the windows that is held out, like spec.data.validationFraction of the job. The last windows are held out.
    #[arg(
        long,
        value_name = "SHARE",
        default_value_t = 0.05,
        allow_negative_numbers = true,
        conflicts_with = "whole"
    )]
    validation_fraction: f64,
    /// Use all windows of the dataset, like spec.data.validationPath of the job.
    #[arg(long)]
    whole: bool,
    /// Number of windows in a batch.
    #[arg(long, value_name = "N", default_value_t = 8)]
    batch: u32,
    /// Maximum number of batches, counted from the first window [default: all].
    #[arg(long, value_name = "N")]
    steps: Option<u64>,
    /// Number of tokens in a window, at most the length of the model's samples. Not for a model with learned positions [default: the length
    /// of the model's samples].
    #[arg(long, value_name = "N")]
    sequence_length: Option<u32>,
    /// Let tokens see only tokens of their own document, like spec.data.packing.blockMask of the job.
    #[arg(long)]
    block_mask: bool,
    /// Count positions from the beginning of each document, like spec.data.packing.resetPositions of the job.
    #[arg(long)]
    reset_positions: bool,
    /// Leave out the loss of each document's first token, like spec.data.packing.maskLoss of the job.
    #[arg(long)]
    mask_loss: bool,
    /// Token that replaces hidden tokens, like spec.training.masking.maskToken of the job. A bidirectional model needs it.
    #[arg(long, value_name = "TOKEN")]
    mask_token: Option<u32>,
    /// Probability that a token is chosen for prediction, like spec.training.masking.probability of the job [default: 0.15].
    #[arg(
        long,
        value_name = "P",
        requires = "mask_token",
        allow_negative_numbers = true
    )]
    mask_probability: Option<f64>,
    /// Folder of an exported model of your own [default: the path in its job].
    #[arg(long, value_name = "FOLDER")]
    model_folder: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) fn generate(arguments: &GenerateArguments) -> Result<(), Failure> {
    let prompt = prompt(arguments)?;
    let mut worker = arguments.model.worker("generate")?;
    worker
        .args(["--max-tokens", &arguments.max_tokens.to_string()])
        .args([format!("--temperature={}", arguments.temperature)])
        .args([format!("--top-p={}", arguments.top_p)])
        .args(["--seed", &arguments.seed.to_string()]);
    optional(&mut worker, "--tokenizer", arguments.tokenizer.as_ref());
    optional(&mut worker, "--data", arguments.data.as_ref());
    worker.args(arguments.json.then_some("--json"));
    worker.args(arguments.control_tokens.then_some("--control-tokens"));
    finish("generating", worker, &prompt)
}

pub(crate) fn evaluate(arguments: &EvaluateArguments) -> Result<(), Failure> {
    let mut worker = arguments.model.worker("evaluate")?;
    worker
        .arg("--data")
        .arg(&arguments.data)
        .args(["--batch", &arguments.batch.to_string()]);
    match arguments.whole {
        true => worker.arg("--whole"),
        false => worker.arg(format!("--validation-fraction={}", arguments.validation_fraction)),
    };
    optional(
        &mut worker,
        "--steps",
        arguments.steps.map(|steps| steps.to_string()),
    );
    let sequence_length = arguments.sequence_length.map(|length| length.to_string());
    optional(&mut worker, "--sequence-length", sequence_length);
    optional(&mut worker, "--model-folder", arguments.model_folder.as_ref());
    let mask_token = arguments.mask_token.map(|token| token.to_string());
    optional(&mut worker, "--mask-token", mask_token);
    if let Some(probability) = arguments.mask_probability {
        worker.arg(format!("--mask-probability={probability}"));
    }
    for (given, option) in [
        (arguments.block_mask, "--block-mask"),
        (arguments.reset_positions, "--reset-positions"),
        (arguments.mask_loss, "--mask-loss"),
        (arguments.json, "--json"),
    ] {
        worker.args(given.then_some(option));
    }
    finish("the evaluation", worker, &[])
}

fn prompt(arguments: &GenerateArguments) -> Result<Vec<u8>, Failure> {
    let Some(path) = &arguments.prompt_file else {
        return Ok(arguments.prompt.clone().unwrap_or_default().into_bytes());
    };
    let mut text = Vec::new();
    let read = match path.as_os_str() == OsStr::new("-") {
        true => std::io::stdin().read_to_end(&mut text).map(drop),
        false => std::fs::read(path).map(|read| text = read),
    };
    read.map_err(|e| Failure::Input(format!("cannot read {}: {e}", path.display())))?;
    Ok(text)
}

fn optional(command: &mut Command, name: &str, value: Option<impl AsRef<OsStr>>) {
    if let Some(value) = value {
        command.arg(name).arg(value);
    }
}

impl ModelArguments {
    /// The worker program that does this with the model.
    fn worker(&self, what: &str) -> Result<Command, Failure> {
        let program = worker_program(self.worker_binary.as_deref())?;
        let mut command = with_this_process(&program)?;
        command
            .arg(what)
            .args(["--checkpoint", &self.checkpoint])
            .args(["--device", &self.device])
            .args(["--precision", &self.precision]);
        optional(&mut command, "--step", self.step.map(|step| step.to_string()));
        optional(&mut command, "--threads", self.threads.map(|n| n.to_string()));
        set_defaults(&mut command, |name| std::env::var_os(name).is_some());
        Ok(command)
    }
}

/// Gives the worker the variables that the user has not set.
fn set_defaults(command: &mut Command, is_set: impl Fn(&str) -> bool) {
    for (name, value) in DEFAULTS.into_iter().filter(|(name, _)| !is_set(name)) {
        command.env(name, value);
    }
}

/// Runs the worker with this on its standard input, to its end. What it prints goes where this program prints.
fn finish(what: &str, mut worker: Command, input: &[u8]) -> Result<(), Failure> {
    let internal = |e: std::io::Error| Failure::Internal(format!("cannot start {what}: {e}"));
    let mut child = worker.stdin(Stdio::piped()).spawn().map_err(internal)?;
    let written = child
        .stdin
        .take()
        .map_or(Ok(()), |mut pipe| pipe.write_all(input));
    let status = child.wait().map_err(internal)?;
    match (status.code(), written) {
        // The worker has printed the reason. It ends with 1 after each error that it reports: a model, a dataset or an option that it cannot
        // use. A defect is a panic (101), or a signal.
        (Some(1 | 2), _) => Err(Failure::Reported),
        (Some(0), Err(e)) if e.kind() != ErrorKind::BrokenPipe => Err(internal(e)),
        (Some(0), _) => Ok(()),
        _ => Err(Failure::Internal(format!("{what} ended: {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_the_worker_wait_asleep_unless_told_otherwise() {
        let variable = |set: &[&str], name: &str| {
            let mut command = Command::new("worker");
            set_defaults(&mut command, |name| set.contains(&name));
            let mut all = command.get_envs();
            let found = all.find(|(own, _)| *own == OsStr::new(name));
            found.and_then(|(_, value)| Some(value?.to_string_lossy().into_owned()))
        };
        assert_eq!(variable(&[], "OMP_WAIT_POLICY").as_deref(), Some("passive"));
        assert_eq!(variable(&[], "VARUNA_LOG").as_deref(), Some("warn"));
        assert_eq!(variable(&["OMP_WAIT_POLICY"], "OMP_WAIT_POLICY"), None);
        assert_eq!(
            variable(&["OMP_WAIT_POLICY"], "VARUNA_LOG").as_deref(),
            Some("warn")
        );
    }
}
