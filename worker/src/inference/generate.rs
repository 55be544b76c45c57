//! `varuna-worker generate`: text that goes on from a prompt.

use super::load::{ModelArguments, TokenizerArguments};
use super::sampling::Sampling;
use super::trained::TrainedModel;
use crate::backend::Platform;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::io::{ErrorKind, Read, Write};
use varuna_api::Packing;
use varuna_dataset::{Encoder, Tokenizer};

/// Goes on from the prompt on standard input; the text goes to standard output as it is made (see `varuna generate`).
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    #[command(flatten)]
    tokenizer: TokenizerArguments,
    /// Most tokens to make; fewer where the document ends.
    #[arg(long, default_value_t = 256)]
    max_tokens: u32,
    /// Logits are divided by this; 0 takes the most likely token, always.
    #[arg(long, default_value_t = 0.8)]
    temperature: f64,
    /// Tokens are drawn among the most likely ones that together have this probability.
    #[arg(long, default_value_t = 1.0)]
    top_p: f64,
    /// Equal seeds draw equal tokens.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object at the end instead: tokens, text, and why it ended.
    #[arg(long)]
    json: bool,
}

/// Why a text ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
enum Stop {
    /// The model ended the document.
    EndOfDocument,
    /// There are as many tokens as were asked for.
    MaxTokens,
    /// The model knows no later position.
    SequenceLength,
}

/// What was made.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Made {
    /// The prompt's tokens.
    prompt: Vec<u32>,
    /// The tokens that were made, without the end of the document.
    tokens: Vec<u32>,
    /// Their text; bytes that are no UTF-8 are replaced.
    text: String,
    /// Why there are no more.
    end: Stop,
}

/// Generates and prints.
pub(crate) fn run(arguments: &Arguments, platform: Platform) -> Result<()> {
    let sampling = Sampling::new(arguments.temperature, arguments.top_p, arguments.seed)?;
    let mut prompt = Vec::new();
    std::io::stdin()
        .read_to_end(&mut prompt)
        .context("cannot read the prompt from standard input")?;
    let chosen = arguments.model.choose()?;
    let trained = arguments.model.load(&chosen, platform, Packing::default())?;
    let tokenizer = arguments.tokenizer.of(&chosen, trained.model())?;
    let encoder = tokenizer.encoder()?;
    let prompt = tokens_of(&encoder, &tokenizer, &prompt)?;
    let mut out = std::io::stdout().lock();
    let mut text = Vec::new();
    let each = |bytes: &[u8]| {
        text.extend_from_slice(bytes);
        if arguments.json {
            return Ok(());
        }
        out.write_all(bytes).and_then(|()| out.flush())
    };
    let made = generate(
        &trained,
        (&tokenizer, &encoder),
        &prompt,
        arguments.max_tokens,
        sampling,
        each,
    );
    // Somebody who has read enough is no error.
    let closed = |e: &anyhow::Error| {
        e.downcast_ref()
            .is_some_and(|e: &std::io::Error| e.kind() == ErrorKind::BrokenPipe)
    };
    let (tokens, end) = match made {
        Err(error) if closed(&error) => return Ok(()),
        other => other?,
    };
    if arguments.json {
        let text = String::from_utf8_lossy(&text).into_owned();
        let made = Made {
            prompt,
            tokens,
            text,
            end,
        };
        writeln!(out, "{}", serde_json::to_string(&made)?)?;
    } else {
        writeln!(out)?;
    }
    if end == Stop::SequenceLength {
        let length = trained.model().sequence_length;
        tracing::warn!("the text ends here: the model was trained on samples of {length} tokens");
    }
    Ok(())
}

/// The tokens of a prompt; of an empty one, what comes before a document: the end of another.
fn tokens_of(encoder: &Encoder, tokenizer: &Tokenizer, prompt: &[u8]) -> Result<Vec<u32>> {
    let tokens = encoder.encode(prompt);
    let tokens = tokens.with_context(|| format!("the prompt has no tokens of the tokenizer {tokenizer}"))?;
    Ok(match tokens.is_empty() {
        true => vec![tokenizer.end_of_document()],
        false => tokens,
    })
}

/// The tokens that come after a prompt, each told as soon as it is made.
fn generate(
    trained: &TrainedModel,
    (tokenizer, encoder): (&Tokenizer, &Encoder),
    prompt: &[u32],
    most: u32,
    sampling: Sampling,
    mut each: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> Result<(Vec<u32>, Stop)> {
    let length = trained.model().sequence_length;
    let given = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
    if given > length {
        bail!("the prompt has {given} tokens, the model's samples have {length}: that many are allowed");
    }
    let mut session = trained.session(given.saturating_add(most))?;
    let mut decoder = encoder.decoder();
    let mut made = Vec::new();
    let mut next: Vec<i64> = prompt.iter().map(|token| i64::from(*token)).collect();
    for number in 0..most {
        if session.len() == length {
            return Ok((made, Stop::SequenceLength));
        }
        let mut logits = session.feed(&next)?;
        // Rows that fill the table up are no tokens.
        logits.truncate(tokenizer.vocabulary() as usize);
        let token = sampling.draw(&logits, number.into());
        let token = token.context("the model's logits are no numbers: its parameters are not finite")?;
        let token = u32::try_from(token).unwrap_or(u32::MAX);
        if token == tokenizer.end_of_document() {
            return Ok((made, Stop::EndOfDocument));
        }
        each(&decoder.push(token))?;
        made.push(token);
        next = vec![token.into()];
    }
    Ok((made, Stop::MaxTokens))
}
