//! Reads text in pieces of bounded size that can be tokenized one by one.

use std::io::{self, Read};

/// Usual size of a piece, bytes: large enough that cuts are rare, small enough to hold a few in memory.
const PIECE_LEN: usize = 1 << 20;
/// A piece without a good position for a cut is cut at this size, bytes.
const PIECE_LEN_MAX: usize = 16 << 20;

/// Cuts a text after single line breaks between two characters that are not white space. GPT-2's tokenizer splits there in
/// any case, so the tokens of the pieces are the tokens of the text.
pub(crate) struct Pieces<R> {
    from: R,
    buffer: Vec<u8>,
    ended: bool,
    /// Usual and largest length of a piece; smaller in tests.
    lengths: (usize, usize),
}

impl<R: Read> Pieces<R> {
    pub(crate) fn new(from: R) -> Pieces<R> {
        Pieces::with_lengths(from, PIECE_LEN, PIECE_LEN_MAX)
    }

    fn with_lengths(from: R, usual: usize, max: usize) -> Pieces<R> {
        Pieces {
            from,
            buffer: Vec::new(),
            ended: false,
            lengths: (usual, max),
        }
    }

    /// The next piece, never empty. None: the end of the text.
    pub(crate) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let (usual, max) = self.lengths;
        let mut want = usual;
        loop {
            self.fill(want)?;
            if self.ended && self.buffer.len() <= usual {
                let last = std::mem::take(&mut self.buffer);
                return Ok((!last.is_empty()).then_some(last));
            }
            let window = &self.buffer[..self.buffer.len().min(want)];
            if let Some(cut) = good_cut(window) {
                return Ok(Some(self.take(cut)));
            }
            if self.ended && self.buffer.len() <= max {
                let cut = self.buffer.len();
                return Ok(Some(self.take(cut)));
            }
            if want >= max {
                let cut = whole_characters(window);
                return Ok(Some(self.take(cut)));
            }
            want = max;
        }
    }

    fn take(&mut self, cut: usize) -> Vec<u8> {
        let rest = self.buffer.split_off(cut);
        std::mem::replace(&mut self.buffer, rest)
    }

    /// Reads until the buffer holds more than `len` bytes or the text ends.
    fn fill(&mut self, len: usize) -> io::Result<()> {
        while !self.ended && self.buffer.len() <= len {
            let missing = (len + 1 - self.buffer.len()) as u64;
            let read = self.from.by_ref().take(missing).read_to_end(&mut self.buffer)?;
            self.ended = read == 0;
        }
        Ok(())
    }
}

/// The last good position for a cut. None: there is none.
fn good_cut(text: &[u8]) -> Option<usize> {
    // Bytes above 127 may be Unicode white space, where a cut could change tokens.
    let visible = |b: u8| b.is_ascii_graphic();
    (2..text.len())
        .rev()
        .find(|&i| text[i - 1] == b'\n' && visible(text[i - 2]) && visible(text[i]))
}

/// The length without an incomplete UTF-8 character at the end. If the end is not UTF-8 at all: the whole length.
fn whole_characters(text: &[u8]) -> usize {
    let start = (text.len().saturating_sub(4)..text.len())
        .rev()
        .find(|&i| text[i] & 0xC0 != 0x80);
    match start {
        Some(i) if i > 0 && std::str::from_utf8(&text[i..]).is_err() => i,
        _ => text.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::Pieces;
    use crate::tokenizer::Tokenizer;
    use proptest::prelude::*;

    fn pieces(text: &[u8], usual: usize, max: usize) -> Vec<Vec<u8>> {
        let mut from = Pieces::with_lengths(text, usual, max);
        std::iter::from_fn(|| from.next().unwrap()).collect()
    }

    proptest! {
        #[test]
        fn pieces_make_up_the_text_and_are_bounded(text in "[a-c \n\u{e9}\u{3000}]{0,300}", usual in 4usize..20, more in 0usize..40) {
            let got = pieces(text.as_bytes(), usual, usual + more);
            prop_assert_eq!(got.concat(), text.as_bytes());
            prop_assert!(got.iter().all(|p| !p.is_empty() && p.len() <= usual + more));
            prop_assert!(got.iter().all(|p| std::str::from_utf8(p).is_ok()));
        }
    }

    #[test]
    fn gpt2_tokens_of_the_pieces_are_those_of_the_whole_text() {
        let line =
            "In the beginning  God created\n\n\tthe heaven's 12 and\n  the earth.\nAnd so on\u{3000}\nx\n";
        let text = line.repeat(40);
        let encoder = Tokenizer::Gpt2.encoder().unwrap();
        let got = pieces(text.as_bytes(), 300, 3000);
        assert!(got.len() > 5);
        let tokens: Vec<u32> = got.iter().flat_map(|p| encoder.encode(p).unwrap()).collect();
        assert_eq!(tokens, encoder.encode(text.as_bytes()).unwrap());
    }
}
