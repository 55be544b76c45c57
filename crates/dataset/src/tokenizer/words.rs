//! Computes the tokens of a text from those of its words, for tokenizers that cut a text into words first. Most of any text consists of few
//! different words: each is tokenized once and then looked up, without the library's bookkeeping of offsets for every piece. Patterns,
//! alphabet and model are the library's own. Cases that are not known to give the same result are left to the library.

mod syntax;

use parking_lot::Mutex;
use regex_automata::meta::Regex;
use regex_automata::{Anchored, Input};
use std::borrow::Cow;
use std::collections::HashMap;
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::utils::SysRegex;
use tokenizers::{
    Model as _, NormalizedString, Normalizer as _, NormalizerWrapper, OffsetReferential, OffsetType,
    PreTokenizedString, PreTokenizer as _, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer,
};

/// GPT-2's pattern for words (Radford et al. 2019; `encoder.py` of its source), which the library does not export.
const GPT2_WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Maximum number of words that are cached per thread.
const KNOWN_MAX: usize = 1 << 16;
/// Maximum bytes of a cached word: longer ones rarely come again.
const KEPT_BYTES: usize = 64;

/// The end of the usual patterns: of the white space before a word, everything but the last character is a word of its own.
const SPACES: &str = r"|\s+(?!\S)|\s+";

/// How a text is cut into words.
enum Cut {
    /// With the library's engine, which supports look-ahead and is therefore slow.
    Library(SysRegex),
    /// With a pattern that ends with [`SPACES`], as two parts in one search: the pattern before that, and white space, whose end is then
    /// corrected.
    Spaces(Regex),
}

/// The tokens of the words seen so far.
type Known = HashMap<Box<str>, Box<[u32]>>;

/// A tokenizer for which a text's tokens are those of its words.
pub(super) struct Words {
    cut: Cut,
    /// Writes a word in the model's alphabet of bytes.
    alphabet: ByteLevel,
    composes: bool,
    /// Tokens that are found in a text before it is cut into words. A text that has one is left to the library.
    before_words: Vec<String>,
    /// The tokens that the tokenizer adds before and after a text.
    added_tokens: [Vec<u32>; 2],
    /// Known words; at most one entry for each thread that is tokenizing.
    known: Mutex<Vec<Known>>,
}

impl Words {
    /// None if texts are not cut into words first, or if it is not known how.
    pub(super) fn of(tokenizer: &Tokenizer) -> Option<Words> {
        let pattern = match tokenizer.get_pre_tokenizer()? {
            PreTokenizerWrapper::ByteLevel(bytes) if bytes.use_regex && !bytes.add_prefix_space => GPT2_WORDS,
            PreTokenizerWrapper::Sequence(parts) => match parts.as_ref() {
                [
                    PreTokenizerWrapper::Split(split),
                    PreTokenizerWrapper::ByteLevel(bytes),
                ] if !bytes.use_regex && !bytes.add_prefix_space => isolated(split)?,
                _ => return None,
            },
            _ => return None,
        };
        let composes = match tokenizer.get_normalizer() {
            None => false,
            Some(NormalizerWrapper::NFC(NFC)) => true,
            Some(_) => return None,
        };
        let added = tokenizer.get_added_vocabulary();
        let is_text = |token: &str| added.get_encode_special_tokens() && added.is_special_token(token);
        let before_words = added.get_vocab().keys().filter(|token| !is_text(token));
        let before_words: Vec<String> = before_words.cloned().collect();
        // Otherwise their normalized form would have to be known, too.
        if !before_words
            .iter()
            .all(|token| token.is_ascii() && !token.is_empty())
        {
            return None;
        }
        Some(Words {
            cut: Cut::by(pattern)?,
            alphabet: ByteLevel::new(false, false, false),
            composes,
            before_words,
            added_tokens: added_tokens(tokenizer)?,
            known: Mutex::default(),
        })
    }

    /// The tokens of a text, including those that are added around it; none if it has to be left to the library.
    pub(super) fn encode(&self, tokenizer: &Tokenizer, text: &str) -> Option<Vec<u32>> {
        let composed = self.composed(text)?;
        let has_other = |text: &str| {
            self.before_words
                .iter()
                .any(|token| text.contains(token.as_str()))
        };
        if text.is_empty() || has_other(text) || has_other(&composed) {
            return None;
        }
        let [before, behind] = &self.added_tokens;
        let mut known = self.known.lock().pop().unwrap_or_default();
        let mut ids = before.clone();
        let all = self
            .cut
            .each(&composed, |word| self.add(tokenizer, &mut known, word, &mut ids));
        self.known.lock().push(known);
        ids.extend(behind);
        all.map(|()| ids)
    }

    fn composed<'a>(&self, text: &'a str) -> Option<Cow<'a, str>> {
        if !self.composes || text.is_ascii() {
            return Some(Cow::Borrowed(text));
        }
        let mut normalized = NormalizedString::from(text);
        NFC.normalize(&mut normalized).ok()?;
        Some(Cow::Owned(normalized.get().to_owned()))
    }

    fn add(&self, tokenizer: &Tokenizer, known: &mut Known, word: &str, to: &mut Vec<u32>) -> Option<()> {
        if word.is_empty() {
            return Some(());
        }
        if let Some(ids) = known.get(word) {
            to.extend(&**ids);
            return Some(());
        }
        let start = to.len();
        let mut piece = PreTokenizedString::from(word);
        self.alphabet.pre_tokenize(&mut piece).ok()?;
        for (written, ..) in piece.get_splits(OffsetReferential::Original, OffsetType::None) {
            let tokens = tokenizer.get_model().tokenize(written).ok()?;
            to.extend(tokens.iter().map(|token| token.id));
        }
        if word.len() <= KEPT_BYTES && known.len() < KNOWN_MAX {
            known.insert(word.into(), to[start..].into());
        }
        Some(())
    }
}

impl Cut {
    /// Compiles a pattern; none if the library refuses it.
    fn by(pattern: &str) -> Option<Cut> {
        let others = pattern
            .strip_suffix(SPACES)
            .filter(|others| syntax::is_common(others));
        let of_two = others.and_then(|others| Regex::new_many(&[others, r"\s+"]).ok());
        match of_two {
            Some(regex) => Some(Cut::Spaces(regex)),
            None => SysRegex::new(pattern).ok().map(Cut::Library),
        }
    }

    /// Passes all matches, and the text between them, to `word`, in order. None if `word` returns none, or if a match is empty.
    fn each(&self, text: &str, mut word: impl FnMut(&str) -> Option<()>) -> Option<()> {
        let mut end = 0;
        let mut add = |start: usize, next: usize| {
            word(&text[end..start])?;
            end = next;
            word(&text[start..next])
        };
        match self {
            Cut::Library(regex) => regex
                .find_iter(text)
                .try_for_each(|(start, next)| add(start, next))?,
            Cut::Spaces(regex) => {
                let mut at = 0;
                while let Some((start, next)) = next_of_two(regex, text, at) {
                    if next == start {
                        return None;
                    }
                    add(start, next)?;
                    at = next;
                }
            }
        }
        word(&text[end..])
    }
}

/// The next match of [`Cut::Spaces`] from this byte on.
fn next_of_two(regex: &Regex, text: &str, at: usize) -> Option<(usize, usize)> {
    let from = Input::new(text).range(at..);
    // It nearly always begins here, which needs no search for its start.
    let here = regex.search(&from.clone().anchored(Anchored::Yes));
    let found = here.or_else(|| regex.search(&from))?;
    let (start, end) = (found.start(), found.end());
    let is_before_word = found.pattern().as_usize() == 1 && end < text.len();
    let last = text[start..end].char_indices().next_back();
    match last.filter(|(length, _)| is_before_word && *length > 0) {
        Some((length, _)) => Some((start, start + length)),
        None => Some((start, end)),
    }
}

/// The pattern of a split that keeps every match, and all text between matches, as words.
fn isolated(split: &Split) -> Option<&str> {
    match &split.pattern {
        SplitPattern::Regex(pattern)
            if split.behavior == SplitDelimiterBehavior::Isolated && !split.invert =>
        {
            Some(pattern)
        }
        _ => None,
    }
}

/// The tokens that are added before and after any text, determined from two texts.
fn added_tokens(tokenizer: &Tokenizer) -> Option<[Vec<u32>; 2]> {
    let ids = |text: &str, whole| {
        let encoded = tokenizer.encode_fast(text, whole).ok()?;
        Some(encoded.get_ids().to_vec())
    };
    let (whole, bare) = (ids("a", true)?, ids("a", false)?);
    if bare.is_empty() {
        return None;
    }
    let at = whole.windows(bare.len()).position(|part| part == bare)?;
    let added_tokens = [whole[..at].to_vec(), whole[at + bare.len()..].to_vec()];
    let other = [&added_tokens[0][..], &ids("b c", false)?, &added_tokens[1]].concat();
    (ids("b c", true)? == other).then_some(added_tokens)
}

#[cfg(test)]
mod tests;
