//! Tables of measured steps.

use serde::Deserialize;
use varuna_plan::csv_rows;

/// One plan that was run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MeasuredRow {
    /// Line of the table, from 1.
    pub line: u64,
    /// Number of pipelines (D).
    pub data_parallel: usize,
    /// Stages of each pipeline (P).
    pub pipeline_parallel: usize,
    /// Mean step, milliseconds.
    pub step_ms: f64,
    /// Samples a second, where the table has them.
    pub samples_per_s: Option<f64>,
}

/// A table that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: line {line}: {field} is {found:?}, allowed is {allowed}")]
pub struct MeasuredError {
    /// Name of the file.
    pub file: String,
    /// Line number, from 1 on.
    pub line: u64,
    /// Name of the column.
    pub field: String,
    /// The value found.
    pub found: String,
    /// The values that are allowed.
    pub allowed: &'static str,
}

const COLUMNS: [&str; 4] = ["data_parallel", "pipeline_parallel", "step_ms", "samples_per_s"];

/// A row as written in the file.
#[derive(Deserialize)]
struct Cells {
    data_parallel: usize,
    pipeline_parallel: usize,
    step_ms: f64,
    samples_per_s: Option<f64>,
}

/// What may stand in a column.
fn allowed(column: &str) -> &'static str {
    match column {
        "data_parallel" | "pipeline_parallel" => "a whole number from 1 to 1000000",
        _ => "a number above 0",
    }
}

/// Reads a table with the columns `data_parallel`, `pipeline_parallel`, `step_ms` and, if it has it, `samples_per_s`, in any
/// order; other columns are an error.
///
/// # Errors
/// The first thing that is wrong, with file, line and column.
pub fn read_measured(file: &str, text: &str) -> Result<Vec<MeasuredRow>, MeasuredError> {
    let refuse = |line: u64, field: &str, found: &str, allowed| MeasuredError {
        file: file.to_owned(),
        line,
        field: field.to_owned(),
        found: found.to_owned(),
        allowed,
    };
    // Columns are judged before rows.
    let header = text.lines().next().unwrap_or_default();
    let header: Vec<&str> = header.split(',').map(str::trim).collect();
    if let Some(other) = header.iter().find(|c| !COLUMNS.contains(c)) {
        let allowed = "data_parallel, pipeline_parallel, step_ms or samples_per_s";
        return Err(refuse(1, "a column", other, allowed));
    }
    if let Some(name) = COLUMNS[..3].iter().find(|name| !header.contains(name)) {
        return Err(refuse(1, name, "missing", "a column of this name"));
    }
    let rows = csv_rows::read::<Cells>(text).map_err(|error| match &error.column {
        Some(column) => refuse(error.line, column, &error.found, allowed(column)),
        None => refuse(
            error.line,
            "the row",
            &error.found,
            "as many columns as the header has",
        ),
    })?;
    if rows.is_empty() {
        return Err(refuse(2, "the table", "", "at least one row"));
    }
    let read = |row: csv_rows::Row<Cells>| {
        let cells = &row.values;
        let is_count = |n: usize| (1..=1_000_000).contains(&n);
        let is_positive = |n: f64| n.is_finite() && n > 0.0;
        let wrong = [
            (is_count(cells.data_parallel), COLUMNS[0]),
            (is_count(cells.pipeline_parallel), COLUMNS[1]),
            (is_positive(cells.step_ms), COLUMNS[2]),
            (cells.samples_per_s.is_none_or(is_positive), COLUMNS[3]),
        ];
        if let Some((_, column)) = wrong.iter().find(|(fine, _)| !fine) {
            return Err(refuse(row.line, column, row.cell(column), allowed(column)));
        }
        Ok(MeasuredRow {
            line: row.line,
            data_parallel: cells.data_parallel,
            pipeline_parallel: cells.pipeline_parallel,
            step_ms: cells.step_ms,
            samples_per_s: cells.samples_per_s,
        })
    };
    rows.into_iter().map(read).collect()
}
