//! `varuna-worker generate`: text that goes on from a prompt.

use super::load::{ModelArguments, Texts, TokenizerArguments};
use super::sampling::Sampling;
use super::trained::TrainedModel;
use crate::backend::Platform;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::io::{ErrorKind, Read, Write};
use varuna_api::Packing;
use varuna_dataset::{Encoder, Tokenizer};

/// Continue the prompt on standard input. The text goes to standard output token by token (see `varuna generate`).
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    #[command(flatten)]
    tokenizer: TokenizerArguments,
    /// Maximum number of tokens to generate. There are fewer if the document ends.
    #[arg(long, default_value_t = 256)]
    max_tokens: u32,
    /// Number by which logits are divided. With 0, the most likely token is always taken.
    #[arg(long, default_value_t = 0.8)]
    temperature: f64,
    /// Draw only from the most likely tokens that together have this probability.
    #[arg(long, default_value_t = 1.0)]
    top_p: f64,
    /// Random seed. Equal seeds give equal tokens.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Read the names of control tokens in the prompt, such as <|im_start|>, as these tokens and not as text.
    #[arg(long)]
    control_tokens: bool,
    /// Print one JSON object at the end instead: the token ids, the text, and why it ended.
    #[arg(long)]
    json: bool,
}

/// The reason why a text ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
enum Stop {
    /// The model ended the document, or its turn.
    EndOfDocument,
    /// There are as many tokens as were asked for.
    MaxTokens,
    /// The model knows no later position.
    SequenceLength,
}

/// The output of the command.
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
    let texts = arguments.tokenizer.of(&chosen, trained.model())?;
    let encoder = texts.tokenizer.encoder()?;
    let prompt = tokens_of(&encoder, &texts.tokenizer, &prompt, arguments.control_tokens)?;
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
        (&texts, &encoder),
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

/// The tokens of a prompt. For an empty prompt it is the token that comes before a document: the end of another one. `control`: the text of
/// a control token becomes that token.
fn tokens_of(encoder: &Encoder, tokenizer: &Tokenizer, prompt: &[u8], control: bool) -> Result<Vec<u32>> {
    let tokens = match control {
        true => encoder.encode_with_control(prompt),
        false => encoder.encode(prompt),
    };
    if let Some(token) = encoder.control_token_in(prompt).filter(|_| !control) {
        tracing::warn!(
            "the prompt has the text {token}, which is a token of control, and is taken as text; --control-tokens takes it as the token"
        );
    }
    let tokens = tokens.with_context(|| format!("the prompt has no tokens of the tokenizer {tokenizer}"))?;
    Ok(match tokens.is_empty() {
        true => vec![tokenizer.end_of_document()],
        false => tokens,
    })
}

/// The tokens that come after a prompt, the text of each told as soon as it is made.
fn generate(
    trained: &TrainedModel,
    (texts, encoder): (&Texts, &Encoder),
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
    // How the space before the first word is encoded depends on the text before it.
    let mut decoder = encoder.decoder_after(prompt);
    let mut made = Vec::new();
    let mut next: Vec<i64> = prompt.iter().map(|token| i64::from(*token)).collect();
    for number in 0..most {
        if session.len() == length {
            return Ok((made, Stop::SequenceLength));
        }
        let mut logits = session.feed(&next)?;
        // Rows that fill the table up are no tokens.
        logits.truncate(texts.tokenizer.vocabulary() as usize);
        let token = sampling.draw(&logits, number.into());
        let token = token.context("the model's logits are no numbers: its parameters are not finite")?;
        let token = u32::try_from(token).unwrap_or(u32::MAX);
        if texts.ends.contains(&token) {
            return Ok((made, Stop::EndOfDocument));
        }
        each(&decoder.push(token))?;
        made.push(token);
        next = vec![token.into()];
    }
    Ok((made, Stop::MaxTokens))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Backend;
    use varuna_api::Precision;
    use varuna_model::Transformer;
    use varuna_model::presets::preset;

    /// A model whose parameters are all 0: all tokens have the same probability.
    fn zeros() -> TrainedModel {
        let model = Transformer {
            layers: 1,
            vocabulary_size: 257,
            sequence_length: 16,
            ..preset("llama-tiny").unwrap()
        };
        let mut trained = TrainedModel::new(model.clone(), Backend::of_processor(Precision::Fp32.into()));
        for unit in model.layout().all_units() {
            let parameters = model.parameters(unit);
            let elements: usize = parameters.iter().map(varuna_model::Parameter::elements).sum();
            trained.add(unit, vec![0.0; elements]).unwrap();
        }
        trained
    }

    #[test]
    fn a_text_ends_at_any_of_the_tokens_that_end_one() {
        let (trained, tokenizer) = (zeros(), Tokenizer::Byte);
        let encoder = tokenizer.encoder().unwrap();
        let made = |ends: &[u32]| {
            let texts = Texts {
                tokenizer: tokenizer.clone(),
                ends: ends.iter().copied().collect(),
            };
            let sampling = Sampling::new(0.0, 1.0, 1).unwrap();
            let mut text = Vec::new();
            let each = |bytes: &[u8]| {
                text.extend_from_slice(bytes);
                Ok(())
            };
            let (tokens, end) = generate(&trained, (&texts, &encoder), &[1, 2], 3, sampling, each).unwrap();
            (tokens, end, text)
        };
        assert_eq!(made(&[256]), (vec![0; 3], Stop::MaxTokens, vec![0; 3]));
        for ends in [&[0, 256][..], &[256, 7, 0]] {
            assert_eq!(made(ends), (vec![], Stop::EndOfDocument, vec![]), "{ends:?}");
        }
    }

    #[test]
    fn a_prompt_has_tokens_of_control_where_that_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in Tokenizer::Byte.published(16).unwrap() {
            std::fs::write(folder.path().join(name), content).unwrap();
        }
        let tokenizer = Tokenizer::open(folder.path().to_str().unwrap(), None).unwrap();
        let encoder = tokenizer.encoder().unwrap();
        let tokens =
            |prompt: &str, control| tokens_of(&encoder, &tokenizer, prompt.as_bytes(), control).unwrap();
        assert_eq!(tokens("a<|endoftext|>b", true), [97, 256, 98]);
        let text = tokens("a<|endoftext|>b", false);
        assert_eq!((text.len(), text.contains(&256)), (15, false));
        for control in [true, false] {
            assert_eq!(tokens("", control), [256], "an empty one begins a document");
        }
    }
}
