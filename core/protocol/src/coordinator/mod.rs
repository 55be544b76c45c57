//! The coordinator's side of the protocol: membership, generations, recovery, planned change.
//!
//! A [`Coordinator`] acts on the *latest* Status of each worker, never on an edge, so that a lost or repeated message does no
//! harm. It persists every plan before it tells anyone; it drops nobody for being accused: all are fenced, who answers lives.

mod active;
mod change;
mod config;
mod event;
mod hear;
mod links;
mod observed;
mod pace;
mod progress;
mod record;
mod recovery;
mod resume;
mod run_mode;
mod save;
mod speeds;
#[cfg(test)]
mod tests;
mod view;
mod warm;

pub use config::{CoordinatorConfig, CoordinatorEffect, CoordinatorInput, Hello, Timing};
pub use event::{Event, Outcome, Snapshot, WorkerView};
pub use run_mode::RunMode;
pub use speeds::Observed;

use crate::message::{Inventory, Order, Phase, Record, Status, Time};
use links::BadLinks;
use pace::Changes;
use progress::Published;
use save::Saves;
use speeds::Speeds;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use varuna_plan::{Generation, Plan, Planner, StateId, Unit, WorkerId};
use warm::Warm;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// Reads the record, to write its own term into it.
    Boot,
    /// Waits for the members of an inherited plan.
    Settling {
        until: Time,
    },
    Active,
    /// Fenced; waits for inventories.
    Collecting {
        since: Time,
    },
    /// Waits for a write.
    Persisting,
    Done {
        since: Time,
    },
    Stopping {
        since: Time,
    },
    Lost,
    Deposed,
    /// Finish was emitted.
    Ended,
}

#[derive(Default)]
struct Worker {
    hello: Option<Hello>,
    up: bool,
    heard_at: Time,
    down_since: Time,
    status: Option<Status>,
    gone: bool,
    noticed: bool,
}

/// Orders of one kind to one worker are repeated on a clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Prepare,
    Arm,
    Save,
    Go,
    Fence,
    Release,
}

/// The coordinator's state machine.
pub struct Coordinator {
    config: CoordinatorConfig,
    planner: Box<dyn Planner + Send>,
    mode: Mode,
    // the record
    record: Record,
    term: u64,
    attempt: Option<Record>,
    write_failed: bool,
    // what is known of the world
    workers: BTreeMap<WorkerId, Worker>,
    bad: BadLinks,
    max_workers: Option<usize>,
    from_seed: bool,
    best: StateId,
    published: Published,
    speeds: Speeds,
    // the generation in force
    gone: Generation,
    connected: Generation,
    armed: Generation,
    proposed: Generation,
    considered: Option<BTreeSet<WorkerId>>,
    suspected: Option<(Generation, String)>,
    warm: Warm,
    changes: Changes,
    /// Expected time to the next change of who is there, as it was known when the generation began.
    horizon: Duration,
    // recovery
    answers: BTreeMap<WorkerId, Inventory>,
    checkpoints: Option<Vec<StateId>>,
    /// The greatest generation of a checkpoint.
    stored: Generation,
    saves: Saves,
    fruitless: u32,
    /// Since when there are enough workers for the first plan.
    gathering: Option<Time>,
    complained: Option<Event>,
    // clocks
    progress_at: Time,
    since: Time,
    change_after: Time,
    asked_at: Time,
    watched_at: Time,
    ticked_at: Time,
    told: BTreeMap<(WorkerId, Kind), (Generation, Time)>,
}

impl Coordinator {
    /// A coordinator that knows nothing yet; its first Tick asks for the record.
    #[must_use]
    pub fn new(config: CoordinatorConfig, planner: Box<dyn Planner + Send>) -> Self {
        let published = Published::new(config.published);
        Coordinator {
            planner,
            mode: Mode::Boot,
            record: Record::default(),
            term: 0,
            attempt: None,
            write_failed: false,
            workers: BTreeMap::new(),
            bad: BadLinks::default(),
            max_workers: None,
            from_seed: false,
            best: StateId::INITIAL,
            published,
            speeds: Speeds::default(),
            gone: Generation(0),
            connected: Generation(0),
            armed: Generation(0),
            proposed: Generation(0),
            considered: None,
            suspected: None,
            warm: Warm::default(),
            changes: Changes::default(),
            horizon: config.timing.stay,
            answers: BTreeMap::new(),
            checkpoints: None,
            stored: Generation(0),
            saves: Saves::default(),
            fruitless: 0,
            gathering: None,
            complained: None,
            progress_at: Time(0),
            since: Time(0),
            change_after: Time(0),
            asked_at: Time(0),
            watched_at: Time(0),
            ticked_at: Time(0),
            told: BTreeMap::new(),
            config,
        }
    }

    /// Allows a recovery to give up all committed steps and begin anew from the seed, where nothing else is left. Without it such
    /// a run ends with [`Outcome::StateLost`]: hours of training are not thrown away behind the user's back.
    #[must_use]
    pub fn may_begin_anew(mut self) -> Self {
        self.from_seed = true;
        self
    }

    /// The record as last read or written.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }
    /// This coordinator's term; 0 before it has read the record.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.term
    }
    /// It has emitted Finish and takes no further input.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.mode == Mode::Ended
    }

    /// Takes one input; what must follow is appended to `effects`.
    pub fn handle(&mut self, now: Time, input: CoordinatorInput, effects: &mut Vec<CoordinatorEffect>) {
        if self.mode == Mode::Ended {
            return;
        }
        match input {
            CoordinatorInput::Tick => self.tick(now, effects),
            CoordinatorInput::Record(record) => return self.read(now, record, effects),
            CoordinatorInput::Written { ok, record } => return self.written(now, ok, record, effects),
            CoordinatorInput::Checkpoints(list) => {
                self.stored = list.iter().map(|c| c.run_gen).fold(self.stored, Generation::max);
                let open = matches!(self.mode, Mode::Active | Mode::Collecting { .. });
                if open
                    && !bug!(IgnoreFinalCheckpoint)
                    && list.iter().any(|c| c.step >= self.config.last_step)
                {
                    return self.persist(
                        Record {
                            done: true,
                            ..self.record.clone()
                        },
                        effects,
                    );
                }
                self.saved(now, &list);
                self.checkpoints = Some(list);
            }
            CoordinatorInput::StreamUp { from, hello } => return self.stream_up(now, from, hello, effects),
            CoordinatorInput::StreamDown { from } => self.stream_down(now, from, effects),
            CoordinatorInput::Report { from, report } => self.heard(now, from, report, effects),
            CoordinatorInput::Observed { from, observed } => return self.observe(from, &observed),
            CoordinatorInput::Gone { worker } => {
                self.stream_down(now, worker, effects);
                self.speeds.forget(worker);
                self.workers.entry(worker).or_default().gone = true;
            }
            CoordinatorInput::Notice { worker } => self.notice(worker, effects),
            CoordinatorInput::Passed(aside) => return self.changes.pass(aside),
            CoordinatorInput::Save => self.want_save(),
            CoordinatorInput::MaxWorkers(most) => self.max_workers = most,
            CoordinatorInput::Stop => {
                if !matches!(self.mode, Mode::Done { .. } | Mode::Lost | Mode::Deposed) {
                    self.mode = Mode::Stopping { since: now };
                }
            }
        }
        self.act(now, effects);
    }

    fn act(&mut self, now: Time, effects: &mut Vec<CoordinatorEffect>) {
        match self.mode {
            Mode::Boot if now >= self.asked_at => {
                self.asked_at = now.after(self.config.timing.ask_again);
                effects.push(CoordinatorEffect::ReadRecord);
            }
            Mode::Settling { until } => self.settle(now, until, effects),
            Mode::Active => self.active(now, effects),
            Mode::Collecting { since } => self.collect(now, since, effects),
            Mode::Done { since } => self.dismiss(now, since, Outcome::Done, effects),
            Mode::Stopping { since } => self.dismiss(now, since, Outcome::Stopped, effects),
            _ => {}
        }
    }

    fn tick(&mut self, now: Time, effects: &mut Vec<CoordinatorEffect>) {
        self.listen(now, effects);
        let watch = !matches!(self.mode, Mode::Boot | Mode::Deposed);
        if watch && now >= self.watched_at {
            self.watched_at = now.after(self.config.timing.watch);
            effects.push(CoordinatorEffect::ReadRecord); // a newer term deposes
        }
    }

    fn name(&self, id: WorkerId) -> String {
        let hello = self.workers.get(&id).and_then(|w| w.hello.as_ref());
        hello.map_or_else(|| id.to_string(), |h| h.name.clone())
    }

    fn all_up(&self) -> Vec<WorkerId> {
        self.workers
            .iter()
            .filter(|(_, w)| w.up && w.hello.is_some())
            .map(|(id, _)| *id)
            .collect()
    }

    /// The latest Status of a worker whose stream is up.
    fn status(&self, id: WorkerId) -> Option<Status> {
        let worker = self.workers.get(&id).filter(|w| w.up && w.hello.is_some())?;
        let draining = |s: Status| s.draining || worker.noticed;
        worker.status.map(|s| Status {
            draining: draining(s),
            ..s
        })
    }

    /// Orders are idempotent and repeated, but on a clock: an answer never causes an order at once.
    fn order(&mut self, now: Time, to: WorkerId, order: Order, effects: &mut Vec<CoordinatorEffect>) {
        let (kind, generation) = match &order {
            Order::Prepare(plan) => (Kind::Prepare, plan.generation),
            Order::Arm { generation } => (Kind::Arm, *generation),
            Order::Save { .. } => (Kind::Save, Generation(0)),
            Order::Go { generation } => (Kind::Go, *generation),
            Order::Fence { upto } => (Kind::Fence, *upto),
            Order::Release => (Kind::Release, Generation(0)),
        };
        let repeat = self.config.timing.repeat;
        let told = self.told.get(&(to, kind));
        if told.is_some_and(|(g, at)| *g == generation && now < at.after(repeat)) {
            return;
        }
        self.told.insert((to, kind), (generation, now));
        effects.push(CoordinatorEffect::Send { to, order });
    }

    /// The members of the plans in the record.
    fn known_to_all(&self, plan: Option<&Arc<Plan>>) -> bool {
        plan.is_none_or(|p| p.members().iter().all(|w| self.status(*w).is_some()))
    }

    fn settle(&mut self, now: Time, until: Time, effects: &mut Vec<CoordinatorEffect>) {
        let back =
            self.known_to_all(self.record.plan.as_ref()) && self.known_to_all(self.record.next.as_ref());
        if bug!(NoSettling) || now >= until || back {
            self.mode = Mode::Active;
            self.since = now;
            self.progress_at = now;
            self.change_after = now.after(self.config.timing.change_delay);
            self.active(now, effects);
        }
    }

    /// Sends everyone home: who still trains is fenced first.
    fn dismiss(&mut self, now: Time, since: Time, outcome: Outcome, effects: &mut Vec<CoordinatorEffect>) {
        let upto = self.record.highest;
        let all = self.all_up();
        for to in &all {
            let Some(status) = self.status(*to) else { continue };
            let finished = status.at.step >= self.config.last_step && outcome == Outcome::Done;
            let busy = matches!(status.phase, Phase::Loading | Phase::Ready | Phase::Running);
            let order = if busy && !finished {
                Order::Fence { upto }
            } else {
                Order::Release
            };
            self.order(now, *to, order, effects);
        }
        if all.is_empty() || now > since.after(self.config.timing.silent) {
            self.finish(outcome, effects);
        }
    }

    fn finish(&mut self, outcome: Outcome, effects: &mut Vec<CoordinatorEffect>) {
        self.mode = Mode::Ended;
        effects.push(CoordinatorEffect::Finish(outcome));
    }

    /// Says something once, until something else is to be said.
    fn complain(&mut self, event: Event, effects: &mut Vec<CoordinatorEffect>) {
        if self.complained.as_ref() != Some(&event) {
            self.complained = Some(event.clone());
            effects.push(CoordinatorEffect::Event(event));
        }
    }

    fn lost(&mut self, units: Vec<Unit>, effects: &mut Vec<CoordinatorEffect>) {
        self.mode = Mode::Lost;
        effects.push(CoordinatorEffect::Event(Event::Lost { units: units.clone() }));
        for to in self.all_up() {
            effects.push(CoordinatorEffect::Send {
                to,
                order: Order::Release,
            });
        }
        self.finish(Outcome::StateLost { units }, effects);
    }
}
