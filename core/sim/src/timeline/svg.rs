//! The picture as an SVG file: hover over a mark to read what happened.

use super::{Entry, Kind, Row, Timeline};
use std::fmt::Write;

const WIDTH: u64 = 1_200;
const NAMES: u64 = 110;
const LINE: u64 = 18;

impl Timeline {
    /// One row for each process, marks for what happened to it, and lines through all rows for what happened to all.
    #[must_use]
    pub fn svg(&self) -> String {
        let rows: Vec<Row> = self.rows().collect();
        let height = (rows.len() as u64 + 2) * LINE;
        let width = NAMES + WIDTH + 20;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\">\n"
        );
        for (i, row) in (0..).zip(&rows) {
            self.draw_row(&mut svg, i * LINE, *row);
        }
        for entry in &self.entries {
            let at = rows.iter().position(|row| Some(*row) == entry.row);
            self.draw_mark(&mut svg, entry, at.map(|i| i as u64 * LINE), height - 2 * LINE);
        }
        let end = self.end;
        // Writing to a String cannot fail.
        let _ = writeln!(
            svg,
            "<text x=\"{NAMES}\" y=\"{}\">0</text><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{end} ms</text>\n</svg>",
            height - LINE / 2,
            NAMES + WIDTH,
            height - LINE / 2
        );
        svg
    }

    fn x(&self, at: u64) -> u64 {
        NAMES + at * WIDTH / self.end.max(1)
    }

    fn draw_row(&self, svg: &mut String, top: u64, row: Row) {
        let _ = writeln!(svg, "<text x=\"4\" y=\"{}\">{}</text>", top + 13, row.name());
        for (from, to, state) in self.spans(row) {
            let (_, colour, name) = state.shown();
            let (x, y) = (self.x(from), top + 2);
            let width = (self.x(to) - x).max(1);
            let height = LINE - 4;
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{colour}\"><title>{name} {from}..{to} ms</title></rect>"
            );
        }
    }

    /// A short line in the row of whom it happened to, or one through all rows.
    fn draw_mark(&self, svg: &mut String, entry: &Entry, top: Option<u64>, bottom: u64) {
        let x = self.x(entry.at);
        let colour = match entry.kind {
            Kind::Fault => "#d32f2f",
            Kind::Protocol => "#455a64",
            Kind::Violation => "#d500f9",
        };
        let (from, to) = top.map_or((0, bottom), |top| (top, top + LINE));
        let text = entry.text.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(
            svg,
            "<line x1=\"{x}\" y1=\"{from}\" x2=\"{x}\" y2=\"{to}\" stroke=\"{colour}\" stroke-width=\"2\"><title>{} ms {text}</title></line>",
            entry.at
        );
    }
}
