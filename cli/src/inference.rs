//! `varuna generate` and `varuna evaluate`: uses of a trained model. The worker program does the computation.

use crate::children::{with_this_process, worker_program};
use crate::failure::Failure;
use std::ffi::OsStr;
use std::io::{ErrorKind, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Which model, and how it computes.
#[derive(clap::Args)]
struct ModelArguments {
    /// Folder of the job's checkpoints, as for `varuna checkpoint ls`: <spec.checkpoint.uri>/<metadata.name>.
    checkpoint: String,
    /// Step of the checkpoint [default: the newest complete one].
    #[arg(long)]
    step: Option<u64>,
    /// What to compute on: cpu, cuda or cuda:N; auto is the first GPU, where there is one.
    #[arg(long, default_value = "auto")]
    device: String,
    /// In which numbers to compute: fp32, bf16 or fp16.
    #[arg(long, default_value = "fp32")]
    precision: String,
    /// Threads for tensor operations [default: the machine's cores].
    #[arg(long)]
    threads: Option<u32>,
    /// The worker program [default: varuna-worker in the folder of this program].
    #[arg(long, value_name = "FILE", env = "VARUNA_WORKER")]
    worker_binary: Option<PathBuf>,
}

/// Go on from a prompt with a trained model, whatever plan trained it.
///
/// The text goes to standard output token by token, and ends where the model ends the document, after --max-tokens, or where a sample of the training
/// would end. Equal seeds give equal text.
#[derive(clap::Args)]
pub(crate) struct GenerateArguments {
    #[command(flatten)]
    model: ModelArguments,
    /// What the text begins with; may be empty.
    #[arg(long, value_name = "TEXT", required_unless_present = "prompt_file")]
    prompt: Option<String>,
    /// File with what the text begins with; - is standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    prompt_file: Option<PathBuf>,
    /// Most tokens to make.
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_tokens: u32,
    /// Logits are divided by this: below 1 likely tokens become likelier. 0 takes the most likely token, always.
    #[arg(long, default_value_t = 0.8, allow_negative_numbers = true)]
    temperature: f64,
    /// Draw among the most likely tokens that together have this probability.
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    top_p: f64,
    /// Equal seeds draw equal tokens.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The tokenizer: byte, gpt2, or the path of a tokenizer.json or of a folder that has one [default: that of --data, else the one that is kept
    /// beside the checkpoints (an imported model's, or the dataset's), else the one that fits the model's vocabulary].
    #[arg(long)]
    tokenizer: Option<String>,
    /// Dataset (path without .bin / .idx) whose tokenizer is used.
    #[arg(long, value_name = "PREFIX", conflicts_with = "tokenizer")]
    data: Option<PathBuf>,
    /// Tokens of control that the prompt spells, as <|im_start|>, are these tokens, not text.
    #[arg(long)]
    control_tokens: bool,
    /// Print one JSON object at the end instead: prompt and tokens as numbers, the text, and why it ended.
    #[arg(long)]
    json: bool,
}

/// The loss of a trained model over a dataset's held-out windows.
///
/// Printed are the mean loss of a token, in nats, and its exponential, the perplexity; of a model of one's own the mean loss of a sample. With the fraction, the precision and as many windows as the job's own evaluation
/// this is the loss that the run itself found at that step.
#[derive(clap::Args)]
pub(crate) struct EvaluateArguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Dataset (path without .bin / .idx).
    data: PathBuf,
    /// Share of the windows, the last ones, that are held out, as spec.data.validationFraction of the job.
    #[arg(
        long,
        value_name = "SHARE",
        default_value_t = 0.05,
        allow_negative_numbers = true,
        conflicts_with = "whole"
    )]
    validation_fraction: f64,
    /// Take all windows: the dataset is held out as a whole, as spec.data.validationPath of the job.
    #[arg(long)]
    whole: bool,
    /// Windows in a batch.
    #[arg(long, value_name = "N", default_value_t = 8)]
    batch: u32,
    /// Most batches, from the first window on [default: all].
    #[arg(long, value_name = "N")]
    steps: Option<u64>,
    /// Tokens of a window, at most as many as the model's samples have, of a model whose positions are not learned [default: as many].
    #[arg(long, value_name = "N")]
    sequence_length: Option<u32>,
    /// Tokens see those of their own document alone, as spec.data.packing.blockMask of the job.
    #[arg(long)]
    block_mask: bool,
    /// Positions are counted from the beginning of each document, as spec.data.packing.resetPositions of the job.
    #[arg(long)]
    reset_positions: bool,
    /// Leave out the loss of each document's first token, as spec.data.packing.maskLoss of the job.
    #[arg(long)]
    mask_loss: bool,
    /// Hide tokens as spec.training.masking of the job: this one stands for them. For a bidirectional model, which needs it.
    #[arg(long, value_name = "TOKEN")]
    mask_token: Option<u32>,
    /// Probability with which a token is hidden, as spec.training.masking.probability of the job [default: 0.15].
    #[arg(
        long,
        value_name = "P",
        requires = "mask_token",
        allow_negative_numbers = true
    )]
    mask_probability: Option<f64>,
    /// Where the folder of a model of one's own lies [default: where its job says].
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
        if std::env::var_os("VARUNA_LOG").is_none() {
            command.env("VARUNA_LOG", "warn");
        }
        Ok(command)
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
        // The worker has printed the reason.
        (Some(1 | 2), _) => Err(Failure::Input(format!("{what} failed; see above"))),
        (Some(0), Err(e)) if e.kind() != ErrorKind::BrokenPipe => Err(internal(e)),
        (Some(0), _) => Ok(()),
        _ => Err(Failure::Internal(format!("{what} ended: {status}"))),
    }
}
