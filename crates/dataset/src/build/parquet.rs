//! Reads the texts of one column of a Parquet file, a bounded number of rows at a time, without Arrow.

use super::batches::{Batches, DOCUMENT_BYTES_MAX, Stop};
use super::input::{Content, Input, Part, Place};

use crate::error::DataError;
use ::parquet::basic::Type;
use ::parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use ::parquet::data_type::{ByteArray, ByteArrayType};
use ::parquet::errors::ParquetError;
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::schema::types::SchemaDescriptor;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Number of rows that are decoded at a time: few, since each may have a document of the maximum size, or a larger one before it is
/// refused.
const ROWS: usize = 16;

/// Reads a file's texts. The library panics on some malformed files; after that only the error is used.
pub(super) fn read(input: &Input, field: &str, batches: &mut Batches) -> Result<(), Stop> {
    let read = catch_unwind(AssertUnwindSafe(|| read_rows(input, field, batches)));
    read.unwrap_or_else(|_| {
        let why = "its reader has failed, as is said above";
        Err(DataError::malformed(&input.path, "Parquet", why, "what its format allows").into())
    })
}

fn read_rows(input: &Input, field: &str, batches: &mut Batches) -> Result<(), Stop> {
    let path = &*input.path;
    let file = File::open(path).map_err(DataError::io("open", path))?;
    let bytes = file.metadata().map_err(DataError::io("read", path))?.len();
    let bad = |error: ParquetError| DataError::malformed(path, "Parquet", error, "what its format allows");
    let reader = SerializedFileReader::new(file).map_err(bad)?;
    let metadata = reader.metadata();
    let schema = metadata.file_metadata().schema_descr();
    let column = column(path, schema, field)?;
    let level = schema.column(column).max_def_level();
    let rows = metadata.file_metadata().num_rows().max(1).unsigned_abs();
    let mut row = 0;
    for group in 0..reader.num_row_groups() {
        let group = reader.get_row_group(group).map_err(bad)?;
        let ColumnReader::ByteArrayColumnReader(mut texts) = group.get_column_reader(column).map_err(bad)?
        else {
            return Err(bad(ParquetError::General(
                "a column of another type than the schema's".into(),
            ))
            .into());
        };
        while let Some(texts) = next_rows(&mut texts, level).map_err(bad)? {
            for text in texts {
                row += 1;
                let found = match text {
                    Some(text) if text.len() > DOCUMENT_BYTES_MAX => {
                        format!("{row}, whose {field} has {} bytes", text.len())
                    }
                    Some(text) => {
                        let part = Part {
                            place: Place::Row(row),
                            content: Content::Text(text.data().to_vec()),
                            begins: true,
                            ends: true,
                        };
                        let share = u128::from(bytes) * u128::from(row.min(rows)) / u128::from(rows);
                        batches.push(part, u64::try_from(share).unwrap_or(bytes))?;
                        continue;
                    }
                    None => format!("{row}, whose {field} is null"),
                };
                let allowed = format!("rows with a text of at most {DOCUMENT_BYTES_MAX} bytes");
                return Err(DataError::malformed(path, "row", found, allowed).into());
            }
        }
    }
    Ok(())
}

/// The number of the column of this name, which must hold one text for each row.
fn column(path: &Path, schema: &SchemaDescriptor, field: &str) -> Result<usize, DataError> {
    let names = || {
        let names: Vec<String> = schema.columns().iter().map(|c| c.path().string()).collect();
        names.join(", ")
    };
    let found = schema.columns().iter().position(|c| c.path().string() == field);
    let Some(found) = found else {
        return Err(DataError::malformed(
            path,
            "column",
            format!("no {field}"),
            format!("one of {}; --field names it", names()),
        ));
    };
    let column = schema.column(found);
    if column.max_rep_level() > 0 || column.physical_type() != Type::BYTE_ARRAY {
        let kind = match column.max_rep_level() {
            0 => column.physical_type().to_string(),
            _ => "a list".to_owned(),
        };
        let value = format!("{field}, which is {kind}");
        return Err(DataError::malformed(
            path,
            "column",
            value,
            "a column of texts (BYTE_ARRAY)",
        ));
    }
    Ok(found)
}

/// The texts of the next rows, not copied yet; none for a null. `level`: the definition level of a row that has a text. None: the column
/// has no more rows.
fn next_rows(
    column: &mut ColumnReaderImpl<ByteArrayType>,
    level: i16,
) -> Result<Option<Vec<Option<ByteArray>>>, ParquetError> {
    let (mut levels, mut values) = (Vec::new(), Vec::new());
    let (records, _, _) = column.read_records(ROWS, Some(&mut levels), None, &mut values)?;
    if records == 0 {
        return Ok(None);
    }
    let mut texts = values.into_iter();
    // A column without nulls has no levels.
    if level == 0 {
        return Ok(Some(texts.map(Some).collect()));
    }
    let of_row = |found: i16| if found == level { texts.next() } else { None };
    Ok(Some(levels.into_iter().map(of_row).collect()))
}
