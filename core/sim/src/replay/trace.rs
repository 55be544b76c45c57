//! Availability traces: which nodes are available, and when. Reading is strict: an error names file, line and field.

use super::ranks::Ranks;
use crate::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use varuna_plan::csv_rows;

/// Longer traces are refused: nanoseconds must not overflow.
const SECONDS_MAX: f64 = 1e9;
/// More nodes at once are refused: that would be a typing error.
const NODES_MAX: usize = 100_000;
/// More arrivals are refused, because a line of a few bytes may stand for 100,000 of them. Eight hundred arrivals an hour for two weeks are
/// fewer.
const ARRIVALS_MAX: usize = 300_000;

/// An instant at which nodes come or go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moment {
    /// Nanoseconds since the trace's zero.
    pub at_ns: u64,
    /// Nodes that leave; they leave before others join.
    pub leaves: Vec<String>,
    /// Nodes that join.
    pub joins: Vec<String>,
}

/// The available nodes over time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// In order of time, no two at the same time; at least two.
    pub moments: Vec<Moment>,
}

/// A trace that cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read the trace {file}, line {line}: {field} {why}")]
pub struct TraceError {
    /// File name, as the caller gave it.
    pub file: String,
    /// Line number, from 1 on.
    pub line: u64,
    /// Column.
    pub field: &'static str,
    /// What is wrong with it, and what is allowed.
    pub why: String,
}

impl Trace {
    /// Reads a trace in either form, which the header tells apart: `time_s,event,node` (`add` or `remove`), or `time_s,nodes` (how many
    /// nodes are available from then on). For counted nodes, the seed decides which ones leave, and in which order the nodes of an instant
    /// join: the order decides which positions of a plan they get, and so whether a loss of several nodes loses all copies of a segment.
    ///
    /// # Errors
    /// The first invalid line: not a number, out of order, a node that joins or leaves twice; or too few rows.
    pub fn read(file: &str, text: &str, seed: u64) -> Result<Trace, TraceError> {
        let mut reader = Reader {
            file,
            line: 1,
            present: BTreeSet::new(),
            arrivals: 0,
            joined: Joined::default(),
            moments: Vec::new(),
        };
        let header = text.lines().next().unwrap_or("").trim();
        let named = match header {
            "time_s,event,node" => true,
            "time_s,nodes" => false,
            other => {
                let why = format!("is {other:?}, allowed are \"time_s,event,node\" and \"time_s,nodes\"");
                return Err(reader.error("header", why));
            }
        };
        let rows = csv_rows::read::<Vec<String>>(text).map_err(|wrong| TraceError {
            file: file.to_owned(),
            line: wrong.line,
            field: "row",
            why: format!("is {:?}, it must have the columns {header}", wrong.found),
        })?;
        let mut rng = Rng(seed);
        let mut born = 0;
        for row in rows {
            reader.line = row.line;
            // Every row has as many cells as the header.
            let cells = &row.values;
            reader.moment(&cells[0])?;
            if named {
                reader.event(&cells[1], &cells[2])?;
            } else {
                reader.count(&cells[1], &mut rng, &mut born)?;
            }
        }
        reader.end_moment();
        if reader.moments.len() < 2 {
            let why = format!("holds {} instants, at least 2 are needed", reader.moments.len());
            return Err(reader.error("trace", why));
        }
        for moment in &mut reader.moments {
            for last in (1..moment.joins.len()).rev() {
                let other = rng.below(last as u64 + 1);
                moment.joins.swap(last, usize::try_from(other).unwrap_or(0));
            }
        }
        Ok(Trace {
            moments: reader.moments,
        })
    }

    /// Time at which the trace begins, nanoseconds.
    #[must_use]
    pub fn start_ns(&self) -> u64 {
        self.moments.first().map_or(0, |m| m.at_ns)
    }

    /// Time at which the trace ends, nanoseconds.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        self.moments.last().map_or(0, |m| m.at_ns)
    }

    /// Maximum number of nodes that are available at once.
    #[must_use]
    pub fn most(&self) -> usize {
        self.counts().into_iter().map(|(_, n)| n).max().unwrap_or(0)
    }

    /// The number of available nodes from each instant on.
    #[must_use]
    pub fn counts(&self) -> Vec<(u64, usize)> {
        let mut there = 0;
        let count = |m: &Moment| {
            there = there + m.joins.len() - m.leaves.len();
            (m.at_ns, there)
        };
        self.moments.iter().map(count).collect()
    }
}

struct Reader<'a> {
    file: &'a str,
    line: u64,
    present: BTreeSet<String>,
    arrivals: usize,
    /// The nodes that joined at the last moment.
    joined: Joined,
    moments: Vec<Moment>,
}

/// The nodes that joined at one moment, in order. A node that joined and left at the same moment is removed without searching the list.
#[derive(Default)]
struct Joined {
    nodes: Vec<Option<String>>,
    at: BTreeMap<String, usize>,
}

impl Reader<'_> {
    fn error(&self, field: &'static str, why: String) -> TraceError {
        TraceError {
            file: self.file.to_owned(),
            line: self.line,
            field,
            why,
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked range"
    )]
    fn moment(&mut self, cell: &str) -> Result<(), TraceError> {
        let seconds = cell
            .parse::<f64>()
            .ok()
            .filter(|s| (0.0..=SECONDS_MAX).contains(s));
        let Some(seconds) = seconds else {
            let why = format!("is {cell:?}, allowed are seconds from 0 to {SECONDS_MAX:e}");
            return Err(self.error("time_s", why));
        };
        let at_ns = (seconds * 1e9).round() as u64;
        let last = self.moments.last().map(|m| m.at_ns);
        match last {
            Some(last) if at_ns < last => {
                let why = format!("is {cell}, before the row above: events must be in order of time");
                Err(self.error("time_s", why))
            }
            Some(last) if at_ns == last => Ok(()),
            _ => {
                self.end_moment();
                self.moments.push(Moment {
                    at_ns,
                    leaves: Vec::new(),
                    joins: Vec::new(),
                });
                Ok(())
            }
        }
    }

    /// No more nodes join at the last moment.
    fn end_moment(&mut self) {
        let joined = std::mem::take(&mut self.joined);
        if let Some(moment) = self.moments.last_mut() {
            moment.joins = joined.nodes.into_iter().flatten().collect();
        }
    }

    fn join(&mut self, field: &'static str, node: String) -> Result<(), TraceError> {
        self.arrivals += 1;
        if self.arrivals > ARRIVALS_MAX {
            return Err(self.error(field, format!("is one more than {ARRIVALS_MAX} arrivals in all")));
        }
        self.present.insert(node.clone());
        self.joined.at.insert(node.clone(), self.joined.nodes.len());
        self.joined.nodes.push(Some(node));
        Ok(())
    }

    fn leave(&mut self, node: &str) {
        self.present.remove(node);
        // A node that joins and leaves at the same instant was never available.
        if let Some(at) = self.joined.at.remove(node) {
            self.joined.nodes[at] = None;
        } else if let Some(moment) = self.moments.last_mut() {
            moment.leaves.push(node.to_owned());
        }
    }

    fn event(&mut self, event: &str, node: &str) -> Result<(), TraceError> {
        if node.is_empty() {
            return Err(self.error("node", "is empty, a name is needed".into()));
        }
        match (event, self.present.contains(node)) {
            ("add", true) => Err(self.error("node", format!("is {node:?}, which is already there"))),
            ("remove", false) => {
                let why = format!("is {node:?}, which is not there: a node leaves once after it came");
                Err(self.error("node", why))
            }
            ("add", false) if self.present.len() >= NODES_MAX => {
                Err(self.error("node", format!("is one more than {NODES_MAX} nodes")))
            }
            ("add", false) => self.join("node", node.to_owned()),
            ("remove", true) => {
                self.leave(node);
                Ok(())
            }
            (other, _) => Err(self.error("event", format!("is {other:?}, allowed are add and remove"))),
        }
    }

    fn count(&mut self, cell: &str, rng: &mut Rng, born: &mut u64) -> Result<(), TraceError> {
        let Some(nodes) = cell.parse::<usize>().ok().filter(|n| *n <= NODES_MAX) else {
            let why = format!("is {cell:?}, allowed are whole numbers from 0 to {NODES_MAX}");
            return Err(self.error("nodes", why));
        };
        if self.present.len() > nodes {
            let all: Vec<String> = self.present.iter().cloned().collect();
            let mut left = Ranks::of(all.len());
            while self.present.len() > nodes {
                let rank = usize::try_from(rng.below(self.present.len() as u64)).unwrap_or(0);
                self.leave(&all[left.take(rank)]);
            }
        }
        while self.present.len() < nodes {
            *born += 1;
            self.join("nodes", format!("node{born}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(text: &str) -> String {
        Trace::read("t.csv", text, 1).unwrap_err().to_string()
    }

    #[test]
    fn events_at_one_time_are_one_moment() {
        let text = "time_s,event,node\n0.0,add,a\n0,add,b\n1.5,remove,a\n1.5,add,c\n";
        let trace = Trace::read("t.csv", text, 1).unwrap();
        assert_eq!(trace.counts(), [(0, 2), (1_500_000_000, 2)]);
        assert_eq!(trace.moments[1].leaves, ["a"]);
        assert_eq!(trace.most(), 2);
    }

    #[test]
    fn counted_nodes_go_by_the_seed() {
        let text = "time_s,nodes\n0,4\n10,1\n20,3\n";
        let read = |seed| Trace::read("t.csv", text, seed).unwrap();
        assert_eq!(read(1), read(1));
        let counts: Vec<usize> = read(1).counts().into_iter().map(|(_, n)| n).collect();
        assert_eq!(counts, [4, 1, 3]);
        assert!((2..20).any(|seed| read(seed) != read(1)));
    }

    #[test]
    fn as_many_nodes_as_are_allowed_come_and_go_at_once_in_no_time() {
        let counted = "time_s,nodes\n0,100000\n0,0\n0,100000\n1,0\n2,5\n";
        let trace = Trace::read("t.csv", counted, 1).unwrap();
        let counts: Vec<usize> = trace.counts().into_iter().map(|(_, n)| n).collect();
        assert_eq!(counts, [100_000, 0, 5]);
        let (mut named, mut leaving) = (String::from("time_s,event,node\n"), String::new());
        for node in 0..50_000 {
            named += &format!("0,add,n{node}\n");
            leaving += &format!("0,remove,n{node}\n");
        }
        let trace = Trace::read("t.csv", &(named + &leaving + "0,add,n1\n1,add,x\n"), 1).unwrap();
        assert_eq!(trace.moments[0].joins, ["n1"]);
        assert!(trace.moments[0].leaves.is_empty());
    }

    #[test]
    fn more_arrivals_than_any_trace_has_are_refused() {
        let rows = |n: u32| -> String {
            let row = |i| format!("{i},{}\n", if i % 2 == 0 { 100_000 } else { 0 });
            std::iter::once("time_s,nodes\n".to_owned())
                .chain((0..n).map(row))
                .collect()
        };
        assert!(Trace::read("t.csv", &rows(6), 1).is_ok());
        let long = why(&rows(8));
        assert_eq!(
            long,
            "cannot read the trace t.csv, line 8: nodes is one more than 300000 arrivals in all"
        );
    }

    #[test]
    fn bad_traces_are_refused_with_file_line_and_field() {
        for (text, expected) in [
            ("", "t.csv, line 1: header is \"\""),
            (
                "time_s,nodes\n",
                "line 1: trace holds 0 instants, at least 2 are needed",
            ),
            ("time_s,nodes\n0,1\n", "line 2: trace holds 1 instants"),
            (
                "time_s,nodes\nNaN,1\n",
                "line 2: time_s is \"NaN\", allowed are seconds",
            ),
            ("time_s,nodes\n-1,1\n", "line 2: time_s is \"-1\""),
            (
                "time_s,nodes\n0,1\n5,2\n4,1\n",
                "line 4: time_s is 4, before the row above",
            ),
            (
                "time_s,nodes\n0,-3\n",
                "line 2: nodes is \"-3\", allowed are whole numbers",
            ),
            (
                "time_s,nodes\n0,1,2\n",
                "line 2: row is \"0,1,2\", it must have the columns time_s,nodes",
            ),
            (
                "time_s,event,node\n0,add,a\n1,remove,a\n2,remove,a\n",
                "line 4: node is \"a\", which is not there",
            ),
            (
                "time_s,event,node\n0,add,a\n1,add,a\n",
                "line 3: node is \"a\", which is already there",
            ),
            (
                "time_s,event,node\n0,stop,a\n",
                "line 2: event is \"stop\", allowed are add and remove",
            ),
            ("time_s,event,node\n0,add,\n", "line 2: node is empty"),
        ] {
            let found = why(text);
            assert!(found.contains(expected), "{found} lacks {expected}");
        }
    }
}
