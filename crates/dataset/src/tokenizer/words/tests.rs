//! Compares the tokens of words with those of the library.

use super::{Cut, Words};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::LazyLock;
use tokenizers::Tokenizer;

/// The pattern of Llama 3's words, from its `tokenizer.json`.
const LLAMA3_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The pattern of GPT-4's words, as minbpe has it: its possessive quantifiers never backtrack.
const GPT4_WORDS: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";

/// GPT-2's tokenizer as a `tokenizer.json`, with a change.
fn gpt2_with(change: impl FnOnce(&mut Value)) -> Tokenizer {
    static GPT2: LazyLock<Value> = LazyLock::new(|| {
        let files = crate::Tokenizer::Gpt2.published(1024).unwrap();
        let (_, json) = files.iter().find(|(name, _)| name == "tokenizer.json").unwrap();
        serde_json::from_slice(json).unwrap()
    });
    let mut json = GPT2.clone();
    change(&mut json);
    let mut tokenizer = Tokenizer::from_bytes(json.to_string()).unwrap();
    tokenizer.set_encode_special_tokens(true);
    tokenizer
}

fn split_then_bytes(pattern: &str) -> Value {
    let split =
        json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
    let bytes =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    json!({ "type": "Sequence", "pretokenizers": [split, bytes] })
}

fn added(id: u32, content: &str, special: bool) -> Value {
    json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": special })
}

/// Tokenizers of the kinds that are tokenized by words: GPT-2's; one with Llama 3's words that adds a token before a text and one after it;
/// one with Qwen's normalizer and with tokens that texts may spell; one whose pattern does not match most of a text; and one with GPT-4's
/// words.
fn by_words() -> &'static [(&'static str, Tokenizer, Words)] {
    static ALL: LazyLock<Vec<(&str, Tokenizer, Words)>> = LazyLock::new(|| {
        let llama = gpt2_with(|json| {
            json["pre_tokenizer"] = split_then_bytes(LLAMA3_WORDS);
            let special = |id: &str| json!({ "SpecialToken": { "id": id, "type_id": 0 } });
            let text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
            json["added_tokens"] = json!([added(50256, "<|endoftext|>", true), added(50257, "<s>", true)]);
            json["post_processor"] = json!({
                "type": "TemplateProcessing", "single": [special("<s>"), text, special("<|endoftext|>")], "pair": [text, text],
                "special_tokens": {
                    "<s>": { "id": "<s>", "ids": [50257], "tokens": ["<s>"] },
                    "<|endoftext|>": { "id": "<|endoftext|>", "ids": [50256], "tokens": ["<|endoftext|>"] },
                },
            });
        });
        let qwen = gpt2_with(|json| {
            json["normalizer"] = json!({ "type": "NFC" });
            json["pre_tokenizer"] = split_then_bytes(LLAMA3_WORDS);
            json["added_tokens"] = json!([
                added(50256, "<|endoftext|>", true),
                added(50257, "<think>", false),
                added(50258, "<K>", false)
            ]);
        });
        let vowels = gpt2_with(|json| json["pre_tokenizer"] = split_then_bytes("[aeiou]+"));
        let all = [
            ("gpt2", gpt2_with(|_| {})),
            ("llama", llama),
            ("qwen", qwen),
            ("vowels", vowels),
            (
                "gpt4",
                gpt2_with(|json| json["pre_tokenizer"] = split_then_bytes(GPT4_WORDS)),
            ),
        ];
        let with_words = |(name, tokenizer)| {
            let words = Words::of(&tokenizer).unwrap();
            (name, tokenizer, words)
        };
        all.into_iter().map(with_words).collect()
    });
    &ALL
}

fn library(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode_fast(text, true).unwrap().get_ids().to_vec()
}

/// The parts of the texts: words, spaces of all kinds, characters that are composed, and control tokens.
const PIECES: &[&str] = &[
    "the",
    "The",
    " in",
    "beginning",
    "'s",
    "'LL",
    "don't",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "\u{a0}",
    "\u{3000}",
    "12",
    "34567",
    ".",
    "...",
    "?!",
    "e\u{301}",
    "\u{e9}",
    "\u{212a}",
    "\u{37e}",
    "\u{1f600}",
    "\u{4e2d}\u{6587}",
    "\u{0}",
    "<think>",
    "<thi",
    "<|endoftext|>",
    "<s>",
    "_",
    "-",
];

fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![8 => prop::sample::select(PIECES).prop_map(str::to_owned), 1 => any::<char>().prop_map(String::from)];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    // Each case has some thousand pieces, and both sides are slow in a debug build.
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_text_has_the_tokens_that_the_library_gives_it(texts in prop::collection::vec(text(), 1..4)) {
        for (name, tokenizer, words) in by_words() {
            // The second time most words are in the table.
            for text in texts.iter().chain(&texts) {
                if let Some(ids) = words.encode(tokenizer, text) {
                    prop_assert_eq!(ids, library(tokenizer, text), "{} {:?}", name, text);
                }
            }
        }
    }
}

#[test]
fn texts_are_tokenized_by_words_unless_special_tokens_occur() {
    for (name, tokenizer, _) in by_words() {
        let words = Words::of(tokenizer).unwrap();
        let is_quick = matches!(words.cut, Cut::Spaces(_));
        assert_eq!(is_quick, !matches!(*name, "vowels" | "gpt4"), "{name}");
        // The fast engine treats a possessive quantifier like a greedy one: it would add all signs to the word after them.
        let signs = "wait...?!the end, (\"\u{201c}yes";
        assert_eq!(
            words.encode(tokenizer, signs),
            Some(library(tokenizer, signs)),
            "{name}"
        );
        let text = "In the beginning, e\u{301} <|endoftext|> <thi nk>\n";
        assert_eq!(
            words.encode(tokenizer, text),
            Some(library(tokenizer, text)),
            "{name}"
        );
        // The normalizer changes the second one into `<K>`.
        for token in ["a <think>", "a <\u{212a}>"] {
            let ids = words.encode(tokenizer, token);
            assert_eq!(ids.is_none(), *name == "qwen", "{name} {token}");
        }
        let long = "word ".repeat(1000) + &"x".repeat(1000);
        assert_eq!(
            words.encode(tokenizer, &long),
            Some(library(tokenizer, &long)),
            "{name}"
        );
        assert_eq!(words.known.lock().len(), 1, "{name}: one thread has come");
    }
}

#[test]
fn tokenizers_that_work_otherwise_are_left_to_the_library() {
    let other = |key: &str, value: Value| gpt2_with(|json| json[key] = value);
    let bytes = |regex, space| json!({ "type": "ByteLevel", "add_prefix_space": space, "trim_offsets": true, "use_regex": regex });
    let removes =
        json!({ "type": "Split", "pattern": { "Regex": " " }, "behavior": "Removed", "invert": false });
    let removes = json!({ "type": "Sequence", "pretokenizers": [removes, bytes(false, false)] });
    for (what, tokenizer) in [
        (
            "a space before the text",
            other("pre_tokenizer", bytes(true, true)),
        ),
        ("no words", other("pre_tokenizer", bytes(false, false))),
        ("none at all", other("pre_tokenizer", Value::Null)),
        ("matches removed", other("pre_tokenizer", removes)),
        ("lower case", other("normalizer", json!({ "type": "Lowercase" }))),
        (
            "another alphabet",
            other("added_tokens", json!([added(50257, "\u{e9}", false)])),
        ),
    ] {
        assert!(Words::of(&tokenizer).is_none(), "{what}");
    }
}
