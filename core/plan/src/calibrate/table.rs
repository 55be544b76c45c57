//! Tables of measured steps.

/// One plan that was run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MeasuredRow {
    /// Line of the table, from 1.
    pub line: usize,
    /// D.
    pub data_parallel: usize,
    /// P.
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
    /// Which file.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// Which column.
    pub field: String,
    /// What stands there.
    pub found: String,
    /// What may stand there.
    pub allowed: &'static str,
}

/// Reads a table with the columns `data_parallel`, `pipeline_parallel`, `step_ms` and, if it has it, `samples_per_s`, in any
/// order; other columns are an error.
///
/// # Errors
/// The first thing that is wrong, with file, line and column.
pub fn read_measured(file: &str, text: &str) -> Result<Vec<MeasuredRow>, MeasuredError> {
    let refuse = |line: usize, field: &str, found: &str, allowed| MeasuredError {
        file: file.to_owned(),
        line,
        field: field.to_owned(),
        found: found.to_owned(),
        allowed,
    };
    const COLUMNS: [&str; 4] = ["data_parallel", "pipeline_parallel", "step_ms", "samples_per_s"];
    let header: Vec<&str> = text
        .lines()
        .next()
        .unwrap_or("")
        .split(',')
        .map(str::trim)
        .collect();
    if let Some(other) = header.iter().find(|c| !COLUMNS.contains(c)) {
        let allowed = "data_parallel, pipeline_parallel, step_ms or samples_per_s";
        return Err(refuse(1, "a column", other, allowed));
    }
    let of = |name: &str| header.iter().position(|c| *c == name);
    for name in &COLUMNS[..3] {
        if of(name).is_none() {
            return Err(refuse(1, name, "missing", "a column of this name"));
        }
    }
    let mut rows = Vec::new();
    for (i, line) in text
        .lines()
        .enumerate()
        .skip(1)
        .filter(|(_, line)| !line.trim().is_empty())
    {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        if cells.len() != header.len() {
            return Err(refuse(
                i + 1,
                "the row",
                line,
                "as many columns as the header has",
            ));
        }
        let cell = |name: &str| of(name).map_or("", |at| cells[at]);
        let count = |name: &str| {
            let number = cell(name)
                .parse::<usize>()
                .ok()
                .filter(|n| (1..=1_000_000).contains(n));
            number.ok_or_else(|| refuse(i + 1, name, cell(name), "a whole number from 1 to 1000000"))
        };
        let positive = |name: &str| {
            let number = cell(name)
                .parse::<f64>()
                .ok()
                .filter(|n| n.is_finite() && *n > 0.0);
            number.ok_or_else(|| refuse(i + 1, name, cell(name), "a number above 0"))
        };
        rows.push(MeasuredRow {
            line: i + 1,
            data_parallel: count("data_parallel")?,
            pipeline_parallel: count("pipeline_parallel")?,
            step_ms: positive("step_ms")?,
            samples_per_s: of("samples_per_s")
                .map(|_| positive("samples_per_s"))
                .transpose()?,
        });
    }
    if rows.is_empty() {
        return Err(refuse(2, "the table", "", "at least one row"));
    }
    Ok(rows)
}
