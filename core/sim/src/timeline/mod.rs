//! A schedule as a timeline: one row for each coordinator and worker, and what happened when.
//!
//! It draws what it is given, and decides nothing.

mod svg;
mod text;

use std::collections::BTreeMap;
use varuna_plan::WorkerId;

/// The process or part to which a row belongs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Row {
    /// A coordinator, in the order in which they started.
    Coordinator(usize),
    /// A worker.
    Worker(WorkerId),
}

/// The state of a process, as it is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcessState {
    /// The process has ended.
    Dead,
    /// The process is stopped (SIGSTOP).
    Paused,
    /// A worker without a plan.
    Idle,
    /// A worker that only serves its state.
    Source,
    /// A worker that connects and fetches.
    Loading,
    /// A worker that waits for Go.
    Ready,
    /// A worker that trains.
    Running,
    /// A coordinator.
    Coordinates,
}

impl ProcessState {
    const ALL: [ProcessState; 8] = [
        ProcessState::Dead,
        ProcessState::Paused,
        ProcessState::Idle,
        ProcessState::Source,
        ProcessState::Loading,
        ProcessState::Ready,
        ProcessState::Running,
        ProcessState::Coordinates,
    ];

    /// Its letter in the text, its colour in the picture, and what it is called.
    fn shown(self) -> (char, &'static str, &'static str) {
        match self {
            ProcessState::Dead => (' ', "none", "ended"),
            ProcessState::Paused => ('z', "#9e9e9e", "paused"),
            ProcessState::Idle => ('.', "#e0e0e0", "idle"),
            ProcessState::Source => ('s', "#90caf9", "serves"),
            ProcessState::Loading => ('l', "#ffcc80", "loads"),
            ProcessState::Ready => ('r', "#fff59d", "ready"),
            ProcessState::Running => ('=', "#a5d6a7", "trains"),
            ProcessState::Coordinates => ('-', "#ce93d8", "coordinates"),
        }
    }
}

/// What an entry is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The world did it.
    Fault,
    /// The protocol did it.
    Protocol,
    /// An invariant was broken.
    Violation,
}

/// An event in a row.
#[derive(Clone, PartialEq, Debug)]
struct Entry {
    at: u64,
    kind: Kind,
    row: Option<Row>,
    text: String,
}

/// What happened in a schedule.
#[derive(Default)]
pub struct Timeline {
    entries: Vec<Entry>,
    /// When the state of each row changed.
    states: BTreeMap<Row, Vec<(u64, ProcessState)>>,
    end: u64,
}

impl Timeline {
    /// Something happened at `at`, in milliseconds of the world.
    pub fn add(&mut self, at: u64, kind: Kind, row: Option<Row>, text: String) {
        self.end = self.end.max(at);
        let entry = Entry { at, kind, row, text };
        self.entries.push(entry);
    }

    /// Records the state of a process at `at`.
    pub fn record_state(&mut self, at: u64, row: Row, state: ProcessState) {
        self.end = self.end.max(at);
        let states = self.states.entry(row).or_default();
        if states.last().is_none_or(|(_, last)| *last != state) {
            states.push((at, state));
        }
    }

    /// A row's states, each with its begin and end; nothing where the process has ended.
    fn spans(&self, row: Row) -> Vec<(u64, u64, ProcessState)> {
        let states = self.states.get(&row).map_or(&[][..], Vec::as_slice);
        let ends = states.iter().skip(1).map(|(at, _)| *at).chain([self.end]);
        let spans = states.iter().zip(ends);
        let all = spans.map(|((from, state), to)| (*from, to, *state));
        all.filter(|(.., state)| *state != ProcessState::Dead).collect()
    }

    fn rows(&self) -> impl Iterator<Item = Row> {
        self.states.keys().copied()
    }
}

impl Row {
    fn name(self) -> String {
        match self {
            Row::Coordinator(c) => format!("coordinator {c}"),
            Row::Worker(w) => format!("worker {w:?}"),
        }
    }
}
