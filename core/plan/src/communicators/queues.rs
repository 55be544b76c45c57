//! A model of a collective library's communicators, for the tests: each rank's operations wait in a queue, in the order in which its worker
//! issued them, and only the heads of the queues meet.
//!
//! The outcome does not depend on timing: each queue has one writer and one reader, and nobody checks whether a queue is empty to do
//! something else. So a single run shows whether any run could deadlock.

use super::Message;
use crate::ids::Unit;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A communicator between two workers.
pub(super) type Communicator = usize;

/// One task of a worker, with its operations on communicators.
#[derive(Clone, Debug, Default)]
pub(super) struct Work {
    /// Posted when the task is issued, before it is computed.
    pub(super) receives: Vec<(Communicator, Message)>,
    /// What the computation waits for.
    pub(super) needs: Vec<(Communicator, Message)>,
    /// Issued with the task; each can go when the task is computed.
    pub(super) sends: Vec<(Communicator, Message)>,
    /// Units whose gradients are final after the task, in this order.
    pub(super) finishes: Vec<Unit>,
}

/// Why the workers do not finish a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Failure {
    /// This worker, and perhaps others, waits for ever.
    Stuck(usize),
    /// A receive meets another message than the one that it is for.
    Mismatch {
        communicator: Communicator,
        sent: Message,
        received: Message,
    },
}

#[derive(Clone, Copy)]
enum Operation {
    /// Goes once this task of its worker is computed.
    Send(Message, usize),
    Receive(Message),
}

#[derive(Default)]
struct Worker {
    issued: usize,
    computed: usize,
    received: BTreeSet<(Communicator, Message)>,
    finished: BTreeSet<Unit>,
    /// Reductions that have not ended, in the order in which they begin: one at a time, the worst case for a device.
    reductions: VecDeque<Unit>,
    /// Maximum number of messages that were posted and not yet used.
    most_posted: usize,
}

/// All workers of a plan within one step.
pub(super) struct Step<'a> {
    work: &'a [Vec<Work>],
    /// Number of tasks that a worker may issue before the first of them is computed; at least 1.
    run_ahead: usize,
    /// For each unit, the workers that reduce it.
    holders: BTreeMap<Unit, Vec<usize>>,
    workers: Vec<Worker>,
    queues: BTreeMap<(Communicator, usize), VecDeque<Operation>>,
}

impl<'a> Step<'a> {
    /// `reductions[w]`: the units of worker w that it reduces with others, in the order in which it begins them.
    pub(super) fn new(work: &'a [Vec<Work>], reductions: &[Vec<Unit>], run_ahead: usize) -> Step<'a> {
        let mut holders: BTreeMap<Unit, Vec<usize>> = BTreeMap::new();
        let mut workers = Vec::new();
        for (w, units) in reductions.iter().enumerate() {
            units.iter().for_each(|u| holders.entry(*u).or_default().push(w));
            workers.push(Worker {
                reductions: units.iter().copied().collect(),
                ..Worker::default()
            });
        }
        Step {
            work,
            run_ahead,
            holders,
            workers,
            queues: BTreeMap::new(),
        }
    }

    /// Runs until everything is done. Returns the maximum number of messages that any worker had posted ahead of its needs.
    pub(super) fn run(mut self) -> Result<usize, Failure> {
        loop {
            let mut moved = false;
            for w in 0..self.workers.len() {
                moved |= self.issue(w) | self.compute(w) | self.reduce(w);
            }
            let communicators: BTreeSet<Communicator> = self.queues.keys().map(|(c, _)| *c).collect();
            for communicator in communicators {
                moved |= self.match_heads(communicator)?;
            }
            if !moved {
                break;
            }
        }
        let stands = |(w, worker): (usize, &Worker)| {
            let sends = self.queues.iter().filter(|((_, of), _)| *of == w);
            let pending = sends.map(|(_, q)| q.len()).sum::<usize>() > 0;
            (worker.computed < self.work[w].len() || pending || !worker.reductions.is_empty()).then_some(w)
        };
        match self.workers.iter().enumerate().find_map(stands) {
            Some(w) => Err(Failure::Stuck(w)),
            None => Ok(self.workers.iter().map(|w| w.most_posted).max().unwrap_or(0)),
        }
    }

    fn issue(&mut self, w: usize) -> bool {
        let worker = &mut self.workers[w];
        let Some(task) = self.work[w].get(worker.issued) else {
            return false;
        };
        if worker.issued >= worker.computed + self.run_ahead {
            return false;
        }
        for (communicator, message) in &task.receives {
            let queue = self.queues.entry((*communicator, w)).or_default();
            queue.push_back(Operation::Receive(*message));
        }
        for (communicator, message) in &task.sends {
            let queue = self.queues.entry((*communicator, w)).or_default();
            queue.push_back(Operation::Send(*message, worker.issued));
        }
        worker.issued += 1;
        let so_far = &self.work[w][..worker.issued];
        let posted: usize = so_far.iter().map(|t| t.receives.len()).sum();
        let used: usize = so_far.iter().map(|t| t.needs.len()).sum();
        worker.most_posted = worker.most_posted.max(posted.saturating_sub(used));
        true
    }

    fn compute(&mut self, w: usize) -> bool {
        let worker = &mut self.workers[w];
        if worker.computed == worker.issued {
            return false;
        }
        let task = &self.work[w][worker.computed];
        if !task.needs.iter().all(|need| worker.received.contains(need)) {
            return false;
        }
        worker.finished.extend(&task.finishes);
        worker.computed += 1;
        true
    }

    /// Ends the worker's first reduction if all its holders have come to it.
    fn reduce(&mut self, w: usize) -> bool {
        let Some(unit) = self.workers[w].reductions.front().copied() else {
            return false;
        };
        let holders = &self.holders[&unit];
        let has_come = |h: &usize| {
            let worker = &self.workers[*h];
            worker.reductions.front() == Some(&unit) && worker.finished.contains(&unit)
        };
        if !holders.iter().all(has_come) {
            return false;
        }
        for h in holders {
            self.workers[*h].reductions.pop_front();
        }
        true
    }

    /// Lets the heads of a communicator's two queues meet.
    fn match_heads(&mut self, communicator: Communicator) -> Result<bool, Failure> {
        let heads: Vec<(usize, Operation)> = self
            .queues
            .range((communicator, 0)..=(communicator, usize::MAX))
            .filter_map(|((_, w), queue)| Some((*w, *queue.front()?)))
            .collect();
        let (from, sent, task, to, received) = match heads.as_slice() {
            [
                (a, Operation::Send(sent, task)),
                (b, Operation::Receive(received)),
            ]
            | [
                (b, Operation::Receive(received)),
                (a, Operation::Send(sent, task)),
            ] => (*a, *sent, *task, *b, *received),
            _ => return Ok(false),
        };
        if self.workers[from].computed <= task {
            return Ok(false);
        }
        if sent != received {
            return Err(Failure::Mismatch {
                communicator,
                sent,
                received,
            });
        }
        for w in [from, to] {
            if let Some(queue) = self.queues.get_mut(&(communicator, w)) {
                queue.pop_front();
            }
        }
        self.workers[to].received.insert((communicator, received));
        Ok(true)
    }
}
