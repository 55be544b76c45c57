//! `varuna data`: builds datasets from text and describes them.

use crate::failure::Failure;
use std::path::PathBuf;
use varuna_dataset::{Build, Tokenizer, build, info};

/// Build and inspect datasets in Megatron's format (a `.bin` and an `.idx` file).
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Build a dataset from text files. Each file is one document.
    Build {
        /// Text files. Files that end in .gz are decompressed.
        #[arg(required = true)]
        inputs: Vec<PathBuf>,
        /// Path of the dataset to write, without .bin or .idx.
        #[arg(long, short, value_name = "PREFIX")]
        output: PathBuf,
        /// Tokenizer: byte (257 tokens) or gpt2 (50257 tokens).
        #[arg(long, default_value = "gpt2")]
        tokenizer: String,
        /// Replace an existing dataset.
        #[arg(long)]
        overwrite: bool,
    },
    /// Check a dataset and print its size, tokenizer and digest.
    Info {
        /// Path of the dataset, without .bin or .idx.
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
