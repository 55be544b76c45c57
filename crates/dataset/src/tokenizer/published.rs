//! A tokenizer as files for the Hugging Face libraries.
//!
//! Both tokenizers work on bytes; the files spell each byte as one printable character (Radford et al. 2019, `bytes_to_unicode`).

use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// The token that ends a document.
pub(super) const END: &str = "<|endoftext|>";

/// `tokenizer.json` for tokens given as their bytes, in order of their ids; the end of a document is the id after the last.
pub(super) fn tokenizer_json(tokens: &[Vec<u8>]) -> Value {
    let letters = letters();
    let spell = |bytes: &[u8]| bytes.iter().map(|b| letters[usize::from(*b)]).collect::<String>();
    let vocabulary: Map<String, Value> = tokens
        .iter()
        .zip(0u32..)
        .map(|(token, id)| (spell(token), id.into()))
        .chain([(END.to_owned(), tokens.len().into())])
        .collect();
    let merges: Vec<Value> = merges(tokens)
        .into_iter()
        .map(|(left, right)| json!([spell(left), spell(right)]))
        .collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [{
            "id": tokens.len(), "content": END, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        }],
        "normalizer": null,
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "post_processor": null,
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": merges,
        },
    })
}

/// `tokenizer_config.json`. `begin`, `end`: the tokens that begin and end a document, of which the first need not be known; `longest`: the model's
/// sequence length.
pub(super) fn tokenizer_config(begin: Option<&str>, end: &str, longest: u32) -> Value {
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": begin,
        "eos_token": end,
        "unk_token": end,
        "model_max_length": longest,
        "clean_up_tokenization_spaces": false,
    })
}

/// A printable character for each byte: itself where it is one, else one from 256 on, in order.
fn letters() -> [char; 256] {
    let mut letters = ['\0'; 256];
    let mut next = 256u32;
    for (byte, letter) in (0u8..=255).zip(letters.iter_mut()) {
        *letter = match byte {
            b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
            _ => {
                next += 1;
                char::from_u32(next - 1).unwrap_or('\u{FFFD}')
            }
        };
    }
    letters
}

/// For each token of several bytes the two tokens it is merged from: what is left of it when only merges of smaller ids are
/// done. In order of the ids, which is the order of the merges.
fn merges(tokens: &[Vec<u8>]) -> Vec<(&[u8], &[u8])> {
    let ids: HashMap<&[u8], usize> = tokens
        .iter()
        .enumerate()
        .map(|(id, t)| (t.as_slice(), id))
        .collect();
    let mut merges = Vec::new();
    for (id, token) in tokens.iter().enumerate().filter(|(_, t)| t.len() > 1) {
        let mut cuts: Vec<usize> = (0..=token.len()).collect();
        while cuts.len() > 3 {
            let merged = |at: usize| ids.get(&token[cuts[at]..cuts[at + 2]]).filter(|m| **m < id);
            let best = (0..cuts.len() - 2)
                .filter_map(|at| Some((*merged(at)?, at)))
                .min();
            let Some((_, at)) = best else { break };
            cuts.remove(at + 1);
        }
        if let [start, middle, end] = cuts[..] {
            merges.push((&token[start..middle], &token[middle..end]));
        }
    }
    merges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_are_found_again_in_their_order() {
        let texts = ["a", "b", "c", "ab", "abc", "cab"];
        let tokens: Vec<Vec<u8>> = texts.iter().map(|w| w.as_bytes().to_vec()).collect();
        let found: Vec<(&[u8], &[u8])> = vec![(b"a", b"b"), (b"ab", b"c"), (b"c", b"ab")];
        assert_eq!(merges(&tokens), found);
    }

    #[test]
    fn every_byte_has_a_character_of_its_own_and_the_published_ones() {
        let letters = letters();
        let different: std::collections::BTreeSet<char> = letters.iter().copied().collect();
        assert_eq!(different.len(), 256);
        assert_eq!(
            (
                letters[usize::from(b' ')],
                letters[usize::from(b'\n')],
                letters[0]
            ),
            ('Ġ', 'Ċ', 'Ā')
        );
    }
}
