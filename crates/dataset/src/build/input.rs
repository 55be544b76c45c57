//! A file of texts: its format, and the position of a text in it.

use crate::error::DataError;
use flate2::read::MultiGzDecoder;
use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::Path;
use std::rc::Rc;
use std::str::FromStr;
use std::sync::Arc;

/// Editors put this mark before a text; it is not part of the text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Length of the longest file signature that is checked.
const BEGINNING_BYTES: u64 = 6;
/// Signatures of files that are not text, what they are, and what to use instead.
const NO_TEXTS: &[(&[u8], &str, &str)] = &[
    (b"\x28\xb5\x2f\xfd", "Zstandard", DECOMPRESSED),
    (b"BZh", "bzip2", DECOMPRESSED),
    (b"\xfd7zXZ", "xz", DECOMPRESSED),
    (
        b"\x1f\x8b",
        "gzip",
        "a file that is compressed once and whose name ends in .gz, or one that is decompressed",
    ),
    (b"PK\x03\x04", "a zip archive", "the files that are in it"),
    (b"ARROW1", "an Arrow file", AS_TABLE),
    (
        b"PAR1",
        "a Parquet file",
        "a file whose name ends in .parquet, or --format parquet",
    ),
];
const DECOMPRESSED: &str = "a file that is decompressed, or compressed by gzip with a name that ends in .gz";
const AS_TABLE: &str = "texts, JSON lines or Parquet: write the table as one of these";
/// File name extensions of tables that cannot be read.
const TABLES: [&str; 8] = ["csv", "tsv", "arrow", "feather", "ipc", "orc", "avro", "xlsx"];

/// The format of a file of texts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// The file is one document.
    Text,
    /// Each line is a JSON object, one of whose fields is a document.
    JsonLines,
    /// Each row has a document in one of its columns.
    Parquet,
}

impl Format {
    const ALL: [Format; 3] = [Format::Text, Format::JsonLines, Format::Parquet];

    fn name(self) -> &'static str {
        match self {
            Format::Text => "text",
            Format::JsonLines => "jsonl",
            Format::Parquet => "parquet",
        }
    }

    /// The format given by a file's name; text if the name does not tell.
    fn of(path: &Path) -> Result<Format, DataError> {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .to_lowercase();
        let name = name.strip_suffix(".gz").unwrap_or(&name);
        match name.rsplit_once('.').map(|(_, extension)| extension) {
            Some("jsonl" | "ndjson" | "json") => Ok(Format::JsonLines),
            Some("parquet" | "pq") => Ok(Format::Parquet),
            // As text it would be a single document, with its commas and numbers.
            Some(table) if TABLES.contains(&table) => {
                let allowed = format!("{AS_TABLE}, or give --format text for the whole file as one document");
                Err(DataError::malformed(
                    path,
                    "format",
                    format!("a table (.{table})"),
                    allowed,
                ))
            }
            _ => Ok(Format::Text),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = DataError;
    fn from_str(name: &str) -> Result<Format, DataError> {
        let known = Format::ALL.into_iter().find(|format| format.name() == name);
        known.ok_or_else(|| DataError::Argument {
            what: "format",
            value: name.to_owned(),
            allowed: "text, jsonl or parquet".to_owned(),
        })
    }
}

/// The number of bytes of a file that were read.
pub(super) type Count = Rc<Cell<u64>>;

/// A file of texts.
#[derive(Clone, Debug)]
pub(super) struct Input {
    pub(super) path: Arc<Path>,
    pub(super) format: Format,
    /// Whether its bytes are accepted as text whatever they look like, because the user has said so.
    any_text: bool,
}

impl Input {
    /// An input. `format`: the format given by the user; if none, the file's name decides.
    pub(super) fn of(path: &Path, format: Option<Format>) -> Result<Input, DataError> {
        Ok(Input {
            path: path.into(),
            format: format.map_or_else(|| Format::of(path), Ok)?,
            any_text: format == Some(Format::Text),
        })
    }

    /// The file's content, decompressed if its name ends in `.gz`, and without a byte order mark; and the number of the file's bytes that
    /// were read.
    ///
    /// # Errors
    /// The input cannot be read, or is not text.
    pub(super) fn open(&self) -> Result<(Box<dyn Read>, Count), DataError> {
        let file = File::open(&self.path).map_err(DataError::io("open", &self.path))?;
        let count = Count::default();
        let counted = BufReader::new(Counted {
            from: file,
            count: count.clone(),
        });
        let mut content: Box<dyn Read> = match self.path.extension() {
            Some(extension) if extension.eq_ignore_ascii_case("gz") => Box::new(MultiGzDecoder::new(counted)),
            _ => Box::new(counted),
        };
        let mut beginning = Vec::new();
        content
            .by_ref()
            .take(BEGINNING_BYTES)
            .read_to_end(&mut beginning)
            .map_err(DataError::io("read", &self.path))?;
        self.check(&beginning)?;
        if beginning.starts_with(BYTE_ORDER_MARK) {
            beginning.drain(..BYTE_ORDER_MARK.len());
        }
        Ok((Box::new(Cursor::new(beginning).chain(content)), count))
    }

    /// Checks that a file that begins like this can be text.
    fn check(&self, beginning: &[u8]) -> Result<(), DataError> {
        let looks_like = NO_TEXTS.iter().find(|(start, ..)| beginning.starts_with(start));
        let Some((_, what, allowed)) = looks_like.filter(|_| !self.any_text) else {
            return Ok(());
        };
        let or = match self.format {
            Format::Text => "; or give --format text for its bytes as one document",
            Format::JsonLines | Format::Parquet => "",
        };
        let allowed = format!("{allowed}{or}");
        Err(DataError::malformed(&self.path, "format", what, allowed))
    }
}

struct Counted {
    from: File,
    count: Count,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.count.set(self.count.get() + read as u64);
        Ok(read)
    }
}

/// The position of a part of a document in its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// From this byte of the text on.
    Byte(u64),
    /// In this line, from 1 on.
    Line(u64),
    /// In this row, from 1 on.
    Row(u64),
}

impl Place {
    /// The position `at` bytes further on, as an error names it.
    pub(super) fn value(self, at: usize) -> (&'static str, String) {
        match self {
            Place::Byte(start) => ("byte", (start + at as u64).to_string()),
            Place::Line(line) => ("line", line.to_string()),
            Place::Row(row) => ("row", row.to_string()),
        }
    }
}

/// Part of a document, or all of it.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) place: Place,
    pub(super) content: Content,
    /// Whether it is the first part of its document, and whether it is the last.
    pub(super) begins: bool,
    pub(super) ends: bool,
}

/// The content of a part before it is tokenized.
#[derive(Debug)]
pub(super) enum Content {
    /// Text of the document.
    Text(Vec<u8>),
    /// A line of JSON, whose field is its text.
    Line(Vec<u8>),
}

impl Content {
    pub(super) fn len(&self) -> usize {
        match self {
            Content::Text(bytes) | Content::Line(bytes) => bytes.len(),
        }
    }
}

/// Consecutive parts of one file, which a thread tokenizes at a time.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) path: Arc<Path>,
    pub(super) parts: Vec<Part>,
    /// Bytes of the file that were read for it.
    pub(super) input_bytes: u64,
}
