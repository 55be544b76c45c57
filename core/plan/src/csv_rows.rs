//! Rows of small comma-separated tables, with errors that name line and column.

use csv::{DeserializeErrorKind, ErrorKind, ReaderBuilder, StringRecord, Trim};
use serde::de::DeserializeOwned;
use std::rc::Rc;

/// A row that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowError {
    /// Counts from 1; the header is line 1.
    pub line: u64,
    /// The column; none if the row has another number of columns than the header.
    pub column: Option<String>,
    /// The text of the cell.
    pub found: String,
}

/// A row of a table.
pub struct Row<T> {
    /// Counts from 1; the header is line 1.
    pub line: u64,
    /// The cells as a value.
    pub values: T,
    headers: Rc<StringRecord>,
    cells: StringRecord,
}

impl<T> Row<T> {
    /// The text of a column.
    #[must_use]
    pub fn cell(&self, column: &str) -> &str {
        let at = self.headers.iter().position(|header| header == column);
        at.and_then(|at| self.cells.get(at)).unwrap_or_default()
    }
}

/// All rows. Empty lines are left out.
///
/// # Errors
/// The first row that is no `T`.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<Vec<Row<T>>, RowError> {
    let mut reader = ReaderBuilder::new().trim(Trim::All).from_reader(text.as_bytes());
    let headers = Rc::new(reader.headers().cloned().unwrap_or_default());
    let mut lines = Lines::of(text);
    let mut rows = Vec::new();
    let mut cells = StringRecord::new();
    loop {
        match reader.read_record(&mut cells) {
            Ok(false) => break,
            Ok(true) => {}
            Err(error) => {
                return Err(RowError {
                    line: error.position().map_or(2, |at| lines.at(at.byte())),
                    column: None,
                    found: cells.iter().collect::<Vec<_>>().join(","),
                });
            }
        }
        let line = cells.position().map_or(2, |at| lines.at(at.byte()));
        let values = cells.deserialize(Some(&headers)).map_err(|error| {
            let at = match error.kind() {
                ErrorKind::Deserialize { err, .. }
                    if *err.kind() != DeserializeErrorKind::UnexpectedEndOfRow =>
                {
                    err.field()
                }
                _ => None,
            };
            let at = at.and_then(|at| usize::try_from(at).ok());
            RowError {
                line,
                column: at.and_then(|at| headers.get(at)).map(str::to_owned),
                found: at.and_then(|at| cells.get(at)).unwrap_or_default().to_owned(),
            }
        })?;
        rows.push(Row {
            line,
            values,
            headers: Rc::clone(&headers),
            cells: cells.clone(),
        });
    }
    Ok(rows)
}

/// Line numbers by offset, counted incrementally: counting from the beginning for each row would take time proportional to the square of
/// the table's length.
struct Lines<'a> {
    text: &'a str,
    /// Line ends before this offset are counted.
    counted: usize,
    ends: u64,
}

impl<'a> Lines<'a> {
    fn of(text: &'a str) -> Self {
        let (counted, ends) = (0, 0);
        Lines { text, counted, ends }
    }

    /// The line number of the row at or after this offset. Offsets must not decrease. The reader attributes a line's end, and empty lines,
    /// to the following row.
    fn at(&mut self, byte: u64) -> u64 {
        let bytes = self.text.as_bytes();
        let start = usize::try_from(byte).unwrap_or(usize::MAX).min(bytes.len());
        let skipped = bytes[start..]
            .iter()
            .take_while(|b| matches!(b, b'\r' | b'\n'))
            .count();
        let until = (start + skipped).max(self.counted);
        let ends = bytes[self.counted..until].iter().filter(|b| **b == b'\n').count();
        (self.counted, self.ends) = (until, self.ends + ends as u64);
        1 + self.ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_the_file_whatever_ends_them() {
        for text in ["a,b\n1,2\n\n3,4\n", "a,b\r\n1,2\r\n\r\n3,4\r\n"] {
            let rows = read::<(u64, u64)>(text).unwrap();
            let lines: Vec<_> = rows
                .iter()
                .map(|row| (row.line, row.values, row.cell("b")))
                .collect();
            assert_eq!(lines, [(2, (1, 2), "2"), (4, (3, 4), "4")]);
        }
        let wrong = read::<(u64, u64)>("a,b\r\n1,2\r\n3,x\r\n").err().unwrap();
        let found = (wrong.line, wrong.column.as_deref(), wrong.found.as_str());
        assert_eq!(found, (3, Some("b"), "x"));
        let short = read::<(u64, u64)>("a,b\n1\n").err().unwrap();
        assert_eq!((short.line, short.column), (2, None));
    }
}
