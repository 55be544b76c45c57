//! `varuna data`: builds datasets from texts and describes them.

use crate::bar::Bar;
use crate::coordinator::runtime;
use crate::failure::{Failure, STOPPED};
use crate::io::{print_line, warn};
use crate::signals::Interrupts;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;
use tokio::runtime::Runtime;
use varuna_dataset::{Build, Built, DataError, Format, Split, Tokenizer, build_while, info, tokens};

/// Build and inspect datasets in Megatron's format (a .bin file and an .idx file).
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Build a dataset from text files.
    ///
    /// Documents are written in the order of the files, so the result does not depend on the number of threads. Ctrl-C, SIGTERM and a closed
    /// terminal stop the build, which removes its files. See docs/guides/data.md.
    Build(BuildArguments),
    /// Check a dataset and print its size, tokenizer and digest.
    Info {
        /// Path of the dataset, without .bin or .idx.
        dataset: PathBuf,
    },
    /// Print tokens of a dataset, as a JSON array of token ids or as text.
    Show {
        /// Path of the dataset, without .bin or .idx.
        dataset: PathBuf,
        /// Number of the first token, from 0.
        #[arg(long, default_value_t = 0)]
        first: u64,
        /// Maximum number of tokens to print.
        #[arg(long, default_value_t = 256)]
        count: u32,
        /// Print the text of the tokens. This needs the dataset's tokenizer.
        #[arg(long)]
        text: bool,
    },
}

#[derive(clap::Args)]
struct BuildArguments {
    /// Text files. The name of a file determines its format: JSON lines (.jsonl, .ndjson, .json), Parquet (.parquet, .pq), or one document
    /// (any other name). Files that end in .gz are decompressed, except Parquet files. Tables (.csv, ...), archives and other compressed
    /// files are refused.
    #[arg(required = true)]
    inputs: Vec<PathBuf>,
    /// Path of the dataset to write, without .bin or .idx. It must be on a disk; copy the files to a bucket afterwards.
    #[arg(long, short, value_name = "PREFIX")]
    output: PathBuf,
    /// Tokenizer: byte (257 tokens), gpt2 (50257 tokens), the path of a tokenizer.json or of a folder with one, or the path of another
    /// dataset.
    #[arg(long, default_value = "gpt2")]
    tokenizer: String,
    /// Text of the token that ends each document. It is needed if the tokenizer's files name no such token, or if you want another one.
    #[arg(long, value_name = "TOKEN")]
    end_of_document: Option<String>,
    /// Format of the files: text, jsonl or parquet [default: by the file name].
    #[arg(long)]
    format: Option<Format>,
    /// Field of a JSON line, or column of a Parquet file, that contains the text.
    #[arg(long, default_value = "text")]
    field: String,
    /// Divide the documents into the datasets PREFIX-train, PREFIX-validation and PREFIX-test by these shares, for example 98,1,1.
    #[arg(long, value_name = "SHARES")]
    split: Option<Split>,
    /// Number of tokenizer threads [default: the number of cores].
    #[arg(long)]
    threads: Option<usize>,
    /// Maximum number of lines in all JSON files that are skipped because they are not valid JSON. One more such line ends the build.
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip_malformed: u64,
    /// Replace an existing dataset.
    #[arg(long)]
    overwrite: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.command {
        Command::Build(arguments) => build_datasets(arguments),
        Command::Info { dataset } => print_info(dataset),
        Command::Show {
            dataset,
            first,
            count,
            text,
        } => {
            let tokens = tokens(dataset, *first, *count).map_err(bad)?;
            if *text {
                print_text(dataset, &tokens)
            } else {
                let tokens: Vec<String> = tokens.iter().map(i64::to_string).collect();
                print_line(&format!("[{}]", tokens.join(",")));
                Ok(())
            }
        }
    }
}

fn print_info(dataset: &Path) -> Result<(), Failure> {
    let info = info(dataset).map_err(bad)?;
    print_line(&format!(
        "{}: {} tokens in {} sequences, {} documents, {} bytes a token",
        dataset.display(),
        info.tokens,
        info.sequences,
        info.documents,
        info.token_bytes
    ));
    if let Some(s) = info.sidecar {
        print_line(&format!(
            "tokenizer {}  vocabulary {}  end of document {}  sha256 {}",
            s.tokenizer, s.vocabulary, s.end_of_document, s.sha256
        ));
    }
    Ok(())
}

/// A line ends where a document does.
fn print_text(dataset: &Path, tokens: &[i64]) -> Result<(), Failure> {
    let tokenizer = Tokenizer::open(&dataset.to_string_lossy(), None).map_err(bad)?;
    let encoder = tokenizer.encoder().map_err(bad)?;
    let mut decoder = encoder.decoder();
    let mut text = Vec::new();
    // An id of a damaged file that is no token has no text.
    for token in tokens.iter().filter_map(|token| u32::try_from(*token).ok()) {
        text.extend(decoder.push(token));
        if token == tokenizer.end_of_document() {
            text.push(b'\n');
        }
    }
    print_line(String::from_utf8_lossy(&text).trim_end_matches('\n'));
    Ok(())
}

fn bad(error: DataError) -> Failure {
    Failure::Input(error.to_string())
}

fn build_datasets(arguments: &BuildArguments) -> Result<(), Failure> {
    let cores = || available_parallelism().map_or(1, usize::from);
    let request = Build {
        inputs: arguments.inputs.clone(),
        format: arguments.format,
        field: arguments.field.clone(),
        output: arguments.output.clone(),
        tokenizer: Tokenizer::open(&arguments.tokenizer, arguments.end_of_document.as_deref())
            .map_err(bad)?,
        split: arguments.split,
        threads: arguments.threads.unwrap_or_else(cores),
        skip_malformed: arguments.skip_malformed,
        overwrite: arguments.overwrite,
    };
    // What cannot be read is named when its turn comes.
    let sizes = request.inputs.iter().filter_map(|path| path.metadata().ok());
    let bar = Bar::of_bytes("tokenizing", sizes.map(|file| file.len()).sum());
    let stop = StopFlag::listen()?;
    let built = build_while(&request, &mut |bytes| {
        bar.add(bytes);
        stop.state()
    });
    drop(bar);
    let built = built.map_err(|error| match error {
        DataError::Stopped => Failure::Stopped,
        other => bad(other),
    })?;
    print_built(&built);
    Ok(())
}

/// Whether a signal has asked a build to end. It then removes its files, which may be as large as the dataset.
struct StopFlag {
    asked: Arc<AtomicBool>,
    /// Waits for signals.
    _runtime: Runtime,
}

impl StopFlag {
    fn listen() -> Result<StopFlag, Failure> {
        let runtime = runtime()?;
        let asked = Arc::new(AtomicBool::new(false));
        let mut interrupts = {
            let _within = runtime.enter();
            Interrupts::listen()?
        };
        let told = Arc::clone(&asked);
        runtime.spawn(async move {
            interrupts.next().await;
            told.store(true, Ordering::Relaxed);
            interrupts.at_once().await;
            // It may wait for an input that never comes. The next build replaces what is left.
            std::process::exit(i32::from(STOPPED));
        });
        Ok(StopFlag {
            asked,
            _runtime: runtime,
        })
    }

    fn state(&self) -> ControlFlow<()> {
        match self.asked.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

fn print_built(built: &[Built]) {
    for dataset in built {
        print_line(&format!(
            "{}: {} tokens of {} ({} documents, {} bytes of text)",
            dataset.path.display(),
            dataset.sidecar.tokens,
            dataset.sidecar.tokenizer,
            dataset.sidecar.documents,
            dataset.text_bytes
        ));
        // Few different texts may all have digests of one set. A build in which no set has a token is refused.
        if dataset.sidecar.tokens == 0 {
            warn(&format!(
                "varuna: {} has no tokens: no document fell to it, and no job can read it",
                dataset.path.display()
            ));
        }
    }
    // It is the same for all datasets of a split.
    let skipped = built.first().map(|dataset| &dataset.skipped);
    if let Some(skipped) = skipped.filter(|skipped| skipped.lines > 0) {
        warn(&format!(
            "varuna: lines that are no JSON were left out: {}; the first of them: {}",
            skipped.lines,
            skipped.first.as_deref().unwrap_or("unknown")
        ));
    }
}
