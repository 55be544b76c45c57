//! Reads files of texts into batches of bounded size, in the order of the documents. One thread does it: decompressing is far faster than tokenizing.

use super::input::{Batch, Content, Format, Input, Part, Place};
use super::parquet;
use crate::error::DataError;
use crate::text::Pieces;
use std::io::{BufRead, BufReader, Read};

/// Bytes of a batch, unless one document is longer: enough that handing it over costs nothing beside tokenizing it.
const BATCH_BYTES: usize = 1 << 20;
/// Bytes of a document that is held as a whole: a line, a row, or a text whose tokens are not those of its pieces. Tokenizers take some forty times that.
pub(super) const DOCUMENT_BYTES_MAX: usize = 32 << 20;

/// Why reading ended before the end.
pub(super) enum Stop {
    /// Nobody takes batches any more.
    NotWanted,
    /// Something cannot be read.
    Failed(DataError),
}

impl From<DataError> for Stop {
    fn from(error: DataError) -> Stop {
        Stop::Failed(error)
    }
}

/// How documents are read.
#[derive(Clone, Copy)]
pub(super) struct Reading<'a> {
    pub(super) field: &'a str,
    /// Texts are not cut into pieces.
    pub(super) whole_documents: bool,
}

/// Takes batches; false: it wants no more.
pub(super) type Take<'a> = dyn FnMut(Batch) -> bool + 'a;

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

/// Gathers the parts of one file.
pub(super) struct Batches<'a, 'b> {
    input: &'a Input,
    parts: Vec<Part>,
    bytes: usize,
    /// Bytes of the file that are read, and those that were handed over.
    read: u64,
    told: u64,
    take: &'a mut Take<'b>,
}

impl<'a, 'b> Batches<'a, 'b> {
    fn new(input: &'a Input, take: &'a mut Take<'b>) -> Batches<'a, 'b> {
        Batches {
            input,
            parts: Vec::new(),
            bytes: 0,
            read: 0,
            told: 0,
            take,
        }
    }

    /// Adds a part, up to which so many bytes of the file are read.
    pub(super) fn push(&mut self, part: Part, read: u64) -> Result<(), Stop> {
        self.bytes += part.content.len();
        self.parts.push(part);
        self.read = read;
        // Documents without text count too: they take memory.
        if self.bytes >= BATCH_BYTES || self.parts.len() >= BATCH_BYTES / 64 {
            self.hand_over()?;
        }
        Ok(())
    }

    fn hand_over(&mut self) -> Result<(), Stop> {
        if self.parts.is_empty() {
            return Ok(());
        }
        let batch = Batch {
            path: self.input.path.clone(),
            parts: std::mem::take(&mut self.parts),
            input_bytes: self.read - self.told,
        };
        (self.bytes, self.told) = (0, self.read);
        if (self.take)(batch) {
            Ok(())
        } else {
            Err(Stop::NotWanted)
        }
    }
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
