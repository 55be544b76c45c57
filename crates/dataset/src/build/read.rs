//! Reads files of texts into batches of bounded size, in the order of the documents. One thread does it: decompressing is far faster than tokenizing.

use super::batches::{Batches, DOCUMENT_BYTES_MAX, Stop, Take};
use super::input::{Content, Format, Input, Part, Place};
use super::parquet;
use crate::error::DataError;
use crate::text::Pieces;
use std::io::{BufRead, BufReader, Read};

/// How documents are read.
#[derive(Clone, Copy)]
pub(super) struct Reading<'a> {
    pub(super) field: &'a str,
    /// Texts are not cut into pieces.
    pub(super) whole_documents: bool,
}

/// Reads the files one after another.
pub(super) fn read(inputs: &[Input], reading: Reading, take: &mut Take) -> Result<(), Stop> {
    for input in inputs {
        let mut batches = Batches::new(input, take);
        match input.format {
            Format::Text if reading.whole_documents => whole_text(input, &mut batches)?,
            Format::Text => text(input, &mut batches)?,
            Format::JsonLines => json_lines(input, &mut batches)?,
            Format::Parquet => parquet::read(input, reading.field, &mut batches)?,
        }
        batches.hand_over()?;
    }
    Ok(())
}

fn text(input: &Input, batches: &mut Batches) -> Result<(), Stop> {
    let (content, count) = input.open()?;
    let mut pieces = Pieces::new(content);
    let mut next = || pieces.next().map_err(DataError::io("read", &input.path));
    let (mut piece, mut begins, mut at) = (next()?.unwrap_or_default(), true, 0);
    loop {
        let following = next()?;
        let length = piece.len() as u64;
        let part = Part {
            place: Place::Byte(at),
            content: Content::Text(piece),
            begins,
            ends: following.is_none(),
        };
        batches.push(part, count.get())?;
        let Some(following) = following else {
            return Ok(());
        };
        (piece, begins, at) = (following, false, at + length);
    }
}

fn whole_text(input: &Input, batches: &mut Batches) -> Result<(), Stop> {
    let (content, count) = input.open()?;
    let mut text = Vec::new();
    content
        .take(DOCUMENT_BYTES_MAX as u64 + 1)
        .read_to_end(&mut text)
        .map_err(DataError::io("read", &input.path))?;
    if text.len() > DOCUMENT_BYTES_MAX {
        let allowed = format!(
            "at most {DOCUMENT_BYTES_MAX} for a document with this tokenizer: divide the text into documents, such as lines of JSON"
        );
        let found = format!("more than {DOCUMENT_BYTES_MAX}");
        return Err(DataError::malformed(&input.path, "bytes of text", found, allowed).into());
    }
    let content = Content::Text(text);
    let part = Part {
        place: Place::Byte(0),
        content,
        begins: true,
        ends: true,
    };
    batches.push(part, count.get())
}

fn json_lines(input: &Input, batches: &mut Batches) -> Result<(), Stop> {
    let (content, count) = input.open()?;
    let mut content = BufReader::new(content);
    for number in 1.. {
        let mut line = Vec::new();
        content
            .by_ref()
            .take(DOCUMENT_BYTES_MAX as u64 + 1)
            .read_until(b'\n', &mut line)
            .map_err(DataError::io("read", &input.path))?;
        if line.is_empty() {
            break;
        }
        if line.len() > DOCUMENT_BYTES_MAX {
            let found = format!("{number}, of more than {DOCUMENT_BYTES_MAX} bytes");
            let allowed = format!("lines of at most {DOCUMENT_BYTES_MAX} bytes");
            return Err(DataError::malformed(&input.path, "line", found, allowed).into());
        }
        // A last line may be empty, and people leave empty lines.
        if line.trim_ascii().is_empty() {
            continue;
        }
        let part = Part {
            place: Place::Line(number),
            content: Content::Line(line),
            begins: true,
            ends: true,
        };
        batches.push(part, count.get())?;
    }
    Ok(())
}
