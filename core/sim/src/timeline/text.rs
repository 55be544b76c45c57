//! The picture as text: a line for each process, then a line for each thing that happened.

use super::{Kind, ProcessState, Row, Timeline};
use std::fmt::Write;

/// Columns of the picture.
const COLUMNS: u64 = 100;
const NAME: usize = 16;

impl Timeline {
    /// One row for each process and one for faults, and what happened in the order of time.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let column_ms = self.column_ms();
        let legend = ProcessState::ALL.map(ProcessState::shown);
        let legend = legend.iter().filter(|(letter, ..)| *letter != ' ');
        let legend: Vec<String> = legend
            .map(|(letter, _, name)| format!("{letter} {name}"))
            .collect();
        let legend = legend.join(", ");
        // Writing to a String cannot fail.
        let _ = writeln!(text, "a column is {column_ms} ms; {legend}, x ends, ! a fault");
        for row in self.rows() {
            self.write_row(&mut text, &row.name(), &self.letters(row));
        }
        self.write_row(&mut text, "faults", &self.marks());
        for entry in &self.entries {
            let mark = match entry.kind {
                Kind::Fault => "!",
                Kind::Protocol => " ",
                Kind::Violation => "BROKEN",
            };
            let whom = entry
                .row
                .map_or_else(String::new, |row| format!("{}: ", row.name()));
            let _ = writeln!(text, "{:7} ms {mark} {whom}{}", entry.at, entry.text);
        }
        text
    }

    fn column_ms(&self) -> u64 {
        (self.end + 1).div_ceil(COLUMNS).max(1)
    }

    fn write_row(&self, text: &mut String, name: &str, letters: &[char]) {
        let letters: String = letters.iter().collect();
        let _ = writeln!(text, "{name:NAME$}|{letters}|");
    }

    fn column(&self, at: u64) -> usize {
        usize::try_from(at / self.column_ms()).unwrap_or(usize::MAX)
    }

    fn letters(&self, row: Row) -> Vec<char> {
        let mut letters = vec![' '; self.column(self.end) + 1];
        let spans = self.spans(row);
        for (from, to, state) in &spans {
            letters[self.column(*from)..=self.column(*to)].fill(state.shown().0);
        }
        if let Some((_, to, _)) = spans.last().filter(|(_, to, _)| *to < self.end) {
            letters[self.column(*to)] = 'x';
        }
        letters
    }

    fn marks(&self) -> Vec<char> {
        let mut marks = vec![' '; self.column(self.end) + 1];
        for fault in self.entries.iter().filter(|e| e.kind == Kind::Fault) {
            marks[self.column(fault.at)] = '!';
        }
        marks
    }
}
