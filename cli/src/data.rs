//! `varuna data`: datasets from text, and what a dataset is.

use crate::failure::Failure;
use std::path::PathBuf;
use varuna_dataset::{Build, Tokenizer, build, info};

/// Builds and inspects datasets (Megatron `.bin` / `.idx`).
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Turn text files into a dataset; each file is a document.
    Build {
        /// Text files; .gz is unpacked on the way.
        #[arg(required = true)]
        inputs: Vec<PathBuf>,
        /// Path of the dataset without .bin / .idx.
        #[arg(long, short)]
        output: PathBuf,
        /// byte (vocabulary 257) or gpt2 (50257).
        #[arg(long, default_value = "gpt2")]
        tokenizer: String,
        /// Replace a dataset that is there already.
        #[arg(long)]
        overwrite: bool,
    },
    /// Check a dataset and say what it holds.
    Info {
        /// Path of the dataset without .bin / .idx.
        dataset: PathBuf,
    },
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let bad = |error: varuna_dataset::DataError| Failure::Input(error.to_string());
    match &arguments.command {
        Command::Build {
            inputs,
            output,
            tokenizer,
            overwrite,
        } => {
            let tokenizer: Tokenizer = tokenizer.parse().map_err(bad)?;
            let (inputs, output) = (inputs.clone(), output.clone());
            let request = Build {
                inputs,
                output,
                tokenizer,
                overwrite: *overwrite,
            };
            let summary = build(&request).map_err(bad)?;
            println!(
                "{}: {} tokens of {} ({} documents, {} bytes of text)",
                request.output.display(),
                summary.sidecar.tokens,
                summary.sidecar.tokenizer,
                summary.sidecar.documents,
                summary.text_bytes
            );
        }
        Command::Info { dataset } => {
            let info = info(dataset).map_err(bad)?;
            println!(
                "{}: {} tokens in {} sequences, {} documents, {} bytes a token",
                dataset.display(),
                info.tokens,
                info.sequences,
                info.documents,
                info.token_bytes
            );
            if let Some(s) = info.sidecar {
                println!(
                    "tokenizer {}  vocabulary {}  sha256 {}",
                    s.tokenizer, s.vocabulary, s.sha256
                );
            }
        }
    }
    Ok(())
}
