//! The world of a replay: one coordinator, the members on the trace's nodes, links, a store; no faults but the trace's.
//!
//! Two clocks: the machines' own, and the trace's. They differ by the stretches that were left out (`skip`), which the
//! machines never see.

mod engine;
mod leader;
mod members;
mod skip;

use crate::replay::ideal::Ideal;
use crate::replay::ledger::{Activity, Cause, Ledger};
use crate::replay::net::Network;
use crate::replay::parts::RecoveryParts;
use crate::replay::report::{Point, Report};
use crate::replay::trace::Trace;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use varuna_plan::state::UnitNorm;
use varuna_plan::{CostPlanner, Generation, Plan, StateId, Step, Unit, WorkerId};
use varuna_protocol::{Coordinator, CoordinatorInput, Member, MemberInput, Outcome, Record, Time};

/// Drivers of coordinator and members tick so often (as `coordinator/` and `worker/` do), nanoseconds.
const TICK_NS: u64 = 20_000_000;
/// More events than any trace needs: a world that spins ends with an error.
const EVENTS_MAX: u64 = 4_000_000_000;

/// What is replayed.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The planner that the coordinator asks; also the measure of what was possible.
    pub planner: CostPlanner,
    /// Samples in a step.
    pub global_batch_size: u64,
    /// Fewest workers that may train.
    pub min_workers: usize,
    /// Measured parts of a reconfiguration.
    pub parts: RecoveryParts,
    /// Nodes say so long before they leave that they will, seconds; 0.0: never.
    pub notice_s: f64,
    /// A checkpoint every so many steps; none: state lost by all holders is begun anew from the seed.
    pub checkpoint_steps: Option<u64>,
    /// False runs every step through the protocol (slow, for tests of what is left out).
    pub skip: bool,
}

/// A replay that cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// No plan for any number of nodes of the trace.
    #[error(
        "no plan exists for any number of nodes of the trace (at most {0} at once): nothing can be trained"
    )]
    NoPlan(usize),
    /// The coordinator ended before the trace.
    #[error("the coordinator ended the run {at_s} s into the trace: {outcome}")]
    Ended {
        /// Seconds of the trace.
        at_s: u64,
        /// How.
        outcome: String,
    },
    /// A fault of the replay itself.
    #[error("the replay makes no progress {at_s} s into the trace")]
    Stuck {
        /// Seconds of the trace.
        at_s: u64,
    },
}

#[derive(Debug)]
enum Ev {
    TickLeader,
    Tick(WorkerId),
    Leader(CoordinatorInput),
    Member(WorkerId, MemberInput),
    /// The worker reaches the coordinator.
    Stream(WorkerId),
    /// A dial arrives at the second worker.
    Dial(Generation, WorkerId, WorkerId),
    /// All members of a generation end the step that they run.
    StepEnds(Generation, Step),
    Net(u64),
}

struct Worker {
    member: Member,
    node: String,
    alive: bool,
    drained: bool,
    open: BTreeSet<Generation>,
    dials: BTreeSet<(Generation, WorkerId)>,
    /// The step in hand.
    job: Option<(Generation, Step)>,
    /// All units of the last step are reduced.
    prepared: Vec<(Unit, UnitNorm)>,
}

/// A checkpoint, made at this state of the machines; `steps` of the trace's world were done.
struct Saved {
    steps: u64,
    /// On the trace's clock.
    available_ns: u64,
}

struct World<'a> {
    trace: &'a Trace,
    setup: &'a Setup,
    ideal: Ideal,
    // clocks, nanoseconds
    now: u64,
    /// Trace's clock less the machines' clock.
    ahead: u64,
    queue: BTreeMap<(u64, u64), Ev>,
    number: u64,
    /// The trace's next moment.
    next: usize,
    leader: Coordinator,
    record: Record,
    workers: Vec<Worker>,
    nodes: BTreeMap<String, WorkerId>,
    /// Peers that have connected, the lesser first.
    links: BTreeSet<(Generation, WorkerId, WorkerId)>,
    plans: BTreeMap<Generation, Arc<Plan>>,
    /// The plan that runs, or ran last.
    in_force: Option<Arc<Plan>>,
    net: Network,
    /// State bytes by unit.
    bytes: Vec<f64>,
    latency_ns: u64,
    saved: BTreeMap<StateId, Saved>,
    /// The newest state that somebody committed.
    tip: StateId,
    /// Steps of the trace's world less the machines' steps.
    ahead_steps: i128,
    /// When something but a commit last happened, and the time from commit to commit.
    busy_at: u64,
    committed_at: u64,
    /// Since when training stands, and since when there are enough nodes to train.
    stands_at: u64,
    possible_at: u64,
    period: u64,
    steady: u32,
    ledger: Ledger,
    report: Report,
    ended: Option<Outcome>,
}

/// Replays a trace.
///
/// # Errors
/// No plan exists for any moment of the trace, or the run ends early.
pub fn replay(trace: &Trace, setup: &Setup) -> Result<Report, ReplayError> {
    let layout = setup.planner.costs.layout();
    let ideal = Ideal::new(&setup.planner, layout, setup.global_batch_size, trace.most());
    if ideal.rate(trace.most()) <= 0.0 {
        return Err(ReplayError::NoPlan(trace.most()));
    }
    let mut world = World::new(trace, setup, ideal);
    world.run()?;
    Ok(world.finish())
}

impl<'a> World<'a> {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "small times"
    )]
    fn new(trace: &'a Trace, setup: &'a Setup, ideal: Ideal) -> World<'a> {
        let costs = &setup.planner.costs;
        let state = setup.parts.state_bytes_per_parameter;
        let own = costs.segments.iter().map(|s| s.parameters);
        let all = own.chain(costs.layout().tied.then_some(costs.tied_parameters));
        let start = trace.start_ns();
        World {
            trace,
            setup,
            ideal,
            now: 0,
            ahead: start,
            queue: BTreeMap::new(),
            number: 0,
            next: 0,
            leader: leader::coordinator(setup),
            record: Record::default(),
            workers: Vec::new(),
            nodes: BTreeMap::new(),
            links: BTreeSet::new(),
            plans: BTreeMap::new(),
            in_force: None,
            net: Network::new(setup.parts.bytes_per_ns(costs.device.bytes_per_s)),
            bytes: all.map(|p| p as f64 * state).collect(),
            latency_ns: (costs.device.latency_ms * 1e6).max(1.0) as u64,
            saved: BTreeMap::new(),
            tip: StateId::INITIAL,
            ahead_steps: 0,
            busy_at: 0,
            committed_at: 0,
            stands_at: 0,
            possible_at: 0,
            period: 0,
            steady: 0,
            ledger: Ledger::new(start, setup.global_batch_size),
            report: leader::empty_report(trace, setup),
            ended: None,
        }
    }

    fn time(&self) -> Time {
        Time(self.now)
    }

    /// On the trace's clock.
    fn real(&self) -> u64 {
        self.now + self.ahead
    }

    #[expect(clippy::cast_precision_loss, reason = "seconds of a trace")]
    fn seconds(&self) -> f64 {
        (self.real() - self.trace.start_ns()) as f64 / 1e9
    }

    fn after(&mut self, delay: u64, event: Ev) {
        self.number += 1;
        self.queue.insert((self.now + delay, self.number), event);
    }

    /// When the trace next does something: a moment, or a notice. On the trace's clock.
    fn outside(&self) -> Option<u64> {
        let moment = self.trace.moments.get(self.next).map(|m| m.at_ns);
        let notice = self.next_notice().map(|(at, _)| at.max(self.real()));
        moment.into_iter().chain(notice).min()
    }

    fn run(&mut self) -> Result<(), ReplayError> {
        self.after(0, Ev::TickLeader);
        let end = self.trace.end_ns();
        let mut events = 0u64;
        while self.real() < end {
            events += 1;
            let at_s = (self.real() - self.trace.start_ns()) / 1_000_000_000;
            if events > EVENTS_MAX {
                return Err(ReplayError::Stuck { at_s });
            }
            if let Some(outcome) = self.ended.take() {
                let outcome = format!("{outcome:?}");
                return Err(ReplayError::Ended { at_s, outcome });
            }
            let outside = self.outside().unwrap_or(end);
            let inside = self.queue.first_key_value().map(|((at, _), _)| at + self.ahead);
            if inside.is_none_or(|at| outside <= at) {
                self.now = self.now.max(outside - self.ahead);
                if self.real() < end {
                    self.trace_event();
                }
                continue;
            }
            if let Some(((at, _), event)) = self.queue.pop_first() {
                self.now = at;
                self.step(event);
            }
        }
        Ok(())
    }

    fn step(&mut self, event: Ev) {
        match event {
            Ev::TickLeader => {
                self.after(TICK_NS, Ev::TickLeader);
                self.lead(CoordinatorInput::Tick);
                self.skip_standstill();
            }
            Ev::Tick(w) => {
                if self.worker(w).is_some() {
                    self.after(TICK_NS, Ev::Tick(w));
                    self.redial(w);
                    self.member(w, MemberInput::Tick);
                }
            }
            Ev::Leader(input) => self.lead(input),
            Ev::Member(w, input) => self.deliver(w, input),
            Ev::Stream(w) => self.stream(w),
            Ev::Dial(generation, from, to) => self.dialled(generation, from, to),
            Ev::StepEnds(generation, step) => self.step_ends(generation, step),
            Ev::Net(version) => self.arrivals(version),
        }
    }

    /// A moment of the trace, or a notice.
    fn trace_event(&mut self) {
        self.busy();
        if let Some((at, node)) = self.next_notice()
            && at <= self.real()
        {
            self.drain(&node);
            return;
        }
        let Some(moment) = self.trace.moments.get(self.next) else {
            return;
        };
        self.next += 1;
        for node in &moment.leaves {
            self.leave(node);
        }
        for node in &moment.joins {
            self.join(node);
        }
        let top = self.ideal.rate(self.nodes.len());
        if !self.ledger.possible() {
            self.possible_at = self.now;
        }
        let real = self.real();
        self.ledger.set_top(real, top);
        self.judge_plan(true);
        self.mark();
    }

    fn busy(&mut self) {
        self.busy_at = self.now;
        self.steady = 0;
    }

    /// Why a running plan is slower than the best: `moved` = other workers are there, and it has not been replaced.
    fn judge_plan(&mut self, moved: bool) {
        let avoided = |id: &WorkerId| {
            let drained = self.workers.get(members::index(*id)).is_some_and(|w| w.drained);
            drained && self.in_force.as_ref().is_some_and(|p| !p.has(*id))
        };
        self.ledger.slower = if self.nodes.values().any(avoided) {
            Cause::Notice
        } else if moved {
            Cause::OldPlan
        } else {
            Cause::Choice
        };
    }

    /// Something else goes on.
    fn turn(&mut self, activity: Activity) {
        if matches!(self.ledger.activity, Activity::Running { .. }) {
            self.stands_at = self.now;
        }
        let real = self.real();
        self.ledger.turn(real, activity);
        self.mark();
    }

    /// A point of the picture.
    fn mark(&mut self) {
        let (used, rate) = match self.ledger.activity {
            Activity::Running { rate } => {
                let members = self.in_force.as_ref().map_or(0, |p| p.members().len());
                (members, rate)
            }
            Activity::Standing(_) => (0, 0.0),
        };
        let point = Point {
            at_s: self.seconds(),
            there: self.nodes.len(),
            used,
            samples_per_s: rate * 1e9,
            best_samples_per_s: self.ideal.rate(self.nodes.len()) * 1e9,
        };
        self.report.timeline.push(point);
    }
}

#[cfg(test)]
pub(crate) mod tests;
