//! The environment of a replay: one coordinator, members on the trace's nodes, links, a store; the only faults are the trace's.
//!
//! There are two clocks: the machines' own, and the trace's. They differ by the intervals that were skipped (`skip`), which the machines
//! never see.

mod account;
mod coordinator;
mod engine;
mod extra_memory;
mod members;
mod skip;

use crate::host::{Channel, Environment, Event, Found, Host, Link, Message, Process};
use crate::replay::ideal::Ideal;
use crate::replay::ledger::Ledger;
use crate::replay::net::Network;
use crate::replay::parts::RecoveryParts;
use crate::replay::report::Report;
use crate::replay::trace::Trace;
use account::Account;
use skip::{Saved, Skipped, Steady};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use varuna_plan::state::UnitNorm;
use varuna_plan::{CostPlanner, Generation, Layout, Plan, StateId, Step, Unit, WorkerId};
use varuna_protocol::{CoordinatorEffect, Hello, MemberEffect, MemberInput, Record};

/// Interval of the ticks of coordinator and members (as in `coordinator/` and `worker/`), nanoseconds.
const TICK_NS: u64 = 20_000_000;
/// More events than any trace needs: a replay that makes no progress ends with an error.
const EVENTS_MAX: u64 = 4_000_000_000;

/// The configuration of a replay.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The planner that the coordinator asks. It also determines the best possible rate.
    pub planner: CostPlanner,
    /// The units of the job's state: ranges of segments if optimizer state is sharded. The costs do not tell.
    pub layout: Layout,
    /// Samples in a step.
    pub global_batch_size: u64,
    /// Fewest workers that may train.
    pub min_workers: usize,
    /// Measured parts of a reconfiguration.
    pub parts: RecoveryParts,
    /// How long before they leave nodes announce it, seconds; 0.0: never.
    pub notice_s: f64,
    /// Interval of checkpoints, in steps. None: state that all holders lost is made again from the seed.
    pub checkpoint_steps: Option<u64>,
    /// Whether checkpoints are made more often while workers are lost often.
    pub adaptive_checkpoints: bool,
    /// Whether the first step after a loss begins with parameters, before members have all state.
    pub parameters_first: bool,
    /// Whether steady steps are skipped. False runs every step through the protocol (slow; for tests of skipping).
    pub skip: bool,
}

/// Why a replay cannot continue.
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
        /// How the run ended.
        outcome: String,
    },
    /// A fault of the replay itself.
    #[error("the replay makes no progress {at_s} s into the trace")]
    Stuck {
        /// Seconds of the trace.
        at_s: u64,
    },
}

type Result<T = (), E = ReplayError> = std::result::Result<T, E>;

/// The only coordinator.
const COORDINATOR: usize = 0;

/// An event at a later time.
#[derive(Debug)]
enum Timer {
    Deliver(Channel, Message<Infallible>),
    /// A dial arrives at the second worker.
    Dial(Generation, WorkerId, WorkerId),
    /// The engine answers its member.
    Answer(WorkerId, MemberInput),
    /// All members of a generation end the step that they run.
    StepEnds(Generation, Step),
    /// State may have arrived, if this is still the version of the transfers.
    Transfers(u64),
}

/// The environment's data for a worker.
struct Worker {
    node: String,
    drained: bool,
    /// The running step.
    job: Option<(Generation, Step)>,
    /// All units of the last step are reduced.
    prepared: Vec<(Unit, UnitNorm)>,
}

/// The environment of a replay. Its clock counts nanoseconds.
struct Replay<'a> {
    trace: &'a Trace,
    setup: &'a Setup,
    /// The trace's next moment.
    next_moment: usize,
    nodes: BTreeMap<String, WorkerId>,
    record: Record,
    /// Checkpoints in the store.
    saved: BTreeMap<StateId, Saved>,
    /// Peers that have connected, the lesser first.
    links: BTreeSet<(Generation, WorkerId, WorkerId)>,
    transfers: Network,
    /// The step that all members compute, or have computed last.
    computed: Option<(Generation, Step)>,
    latency_ns: u64,
    /// State bytes by unit.
    unit_bytes: Vec<f64>,
    plans: BTreeMap<Generation, Arc<Plan>>,
    /// The plan that runs, or ran last.
    in_force: Option<Arc<Plan>>,
    /// The newest committed state, and the steps of the trace's world at it.
    newest: StateId,
    newest_steps: u64,
    skipped: Skipped,
    steady: Steady,
    account: Account,
}

/// Replays a trace.
///
/// # Errors
/// No plan exists for any moment of the trace, or the run ends early.
pub fn replay(trace: &Trace, setup: &Setup) -> Result<Report> {
    let most = trace.most();
    let ideal = Ideal::new(&setup.planner, setup.layout, setup.global_batch_size, most);
    if ideal.rate(most) <= 0.0 {
        return Err(ReplayError::NoPlan(most));
    }
    let mut host = Host::new(Replay::new(trace, setup, ideal));
    host.add_coordinator(coordinator::coordinator(setup));
    host.run()?;
    Ok(host.finish())
}

/// State bytes by unit. The ranges of a segment have equal sizes, except for one element.
#[expect(clippy::cast_precision_loss, reason = "bytes on a link")]
fn unit_bytes(setup: &Setup) -> Vec<f64> {
    let (costs, layout) = (&setup.planner.costs, setup.layout);
    let of_unit = setup.parts.state_bytes(costs) / f64::from(layout.ranges);
    let own = costs.segments.iter().map(|s| s.parameters);
    let all = own.chain(layout.tied.then_some(costs.tied_parameters));
    let ranges = layout.ranges as usize;
    all.flat_map(|parameters| std::iter::repeat_n(parameters as f64 * of_unit, ranges))
        .collect()
}

impl<'a> Replay<'a> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "small times"
    )]
    fn new(trace: &'a Trace, setup: &'a Setup, ideal: Ideal) -> Replay<'a> {
        let costs = &setup.planner.costs;
        let start = trace.start_ns();
        Replay {
            trace,
            setup,
            next_moment: 0,
            nodes: BTreeMap::new(),
            record: Record::default(),
            saved: BTreeMap::new(),
            links: BTreeSet::new(),
            transfers: Network::new(setup.parts.bytes_per_ns(costs.device.bytes_per_s)),
            computed: None,
            latency_ns: (costs.device.latency_ms * 1e6).max(1.0) as u64,
            unit_bytes: unit_bytes(setup),
            plans: BTreeMap::new(),
            in_force: None,
            newest: StateId::INITIAL,
            newest_steps: 0,
            skipped: Skipped { ns: start, steps: 0 },
            steady: Steady::default(),
            account: Account {
                ideal,
                ledger: Ledger::new(start, setup.global_batch_size),
                report: coordinator::empty_report(trace, setup),
                stopped_at: 0,
                possible_at: 0,
            },
        }
    }
}

impl Environment for Replay<'_> {
    const UNIT_NS: u64 = 1;
    const FIRST_WORKER: u64 = 1;
    type Worker = Worker;
    type Event = Timer;
    type Data = Infallible;
    type Error = ReplayError;

    fn tick_after(host: &mut Host<Self>, process: Process) -> Option<u64> {
        match process {
            Process::Worker(w) => host.members.alive(w).map(|_| TICK_NS),
            Process::Coordinator(_) => Some(TICK_NS),
        }
    }

    fn ticked(host: &mut Host<Self>) -> Result {
        host.skip_standstill()
    }

    fn find_coordinator(host: &mut Host<Self>, worker: WorkerId) -> Found {
        match host.members.alive(worker) {
            Some(_) => Found::Coordinator(COORDINATOR),
            None => Found::Dead,
        }
    }

    fn hello(host: &Host<Self>, worker: WorkerId) -> Hello {
        let node = &host.members[worker].local.node;
        Hello {
            address: format!("{node}:1"),
            name: node.clone(),
            node: node.clone(),
            hardware: None,
            memory_bytes: None,
            copies_bytes: None,
            scores: None,
            speed: 1.0,
        }
    }

    fn send(host: &mut Host<Self>, channel: Channel, message: Message<Infallible>) {
        host.after(host.env.latency_ns, Timer::Deliver(channel, message));
    }

    fn redial(host: &mut Host<Self>, worker: WorkerId, generation: Generation, peer: WorkerId) {
        host.after(host.env.latency_ns, Timer::Dial(generation, worker, peer));
    }

    fn from_peer(host: &mut Host<Self>, link: Link, message: Message<Infallible>) -> Result {
        let (from, to, generation) = link;
        let open = host.members[to].open.contains(&generation);
        if open && (message == Message::Closed || host.linked(generation, from, to)) {
            host.receive_from_peer(link, message)?;
        }
        Ok(())
    }

    fn member_effect(host: &mut Host<Self>, worker: WorkerId, effect: MemberEffect) -> Result {
        host.carry_out_for_member(worker, effect)
    }

    fn coordinator_effect(host: &mut Host<Self>, _: usize, effect: CoordinatorEffect) -> Result {
        host.carry_out_for_coordinator(effect)
    }

    fn event(host: &mut Host<Self>, event: Timer) -> Result {
        match event {
            Timer::Deliver(channel, message) => host.deliver(channel, message),
            Timer::Dial(generation, from, to) => host.dialled(generation, from, to),
            Timer::Answer(w, input) => host.member(w, input),
            Timer::StepEnds(generation, step) => host.step_ends(generation, step),
            Timer::Transfers(version) => host.arrivals(version),
        }
    }
}

impl Host<Replay<'_>> {
    /// The present time on the trace's clock.
    fn real(&self) -> u64 {
        self.now() + self.env.skipped.ns
    }

    #[expect(clippy::cast_precision_loss, reason = "seconds of a trace")]
    fn seconds(&self) -> f64 {
        (self.real() - self.env.trace.start_ns()) as f64 / 1e9
    }

    fn whole_seconds(&self) -> u64 {
        (self.real() - self.env.trace.start_ns()) / 1_000_000_000
    }

    /// When the trace's next event is due, a moment or a notice, on the trace's clock.
    fn outside(&self) -> Option<u64> {
        let moment = self.env.trace.moments.get(self.env.next_moment).map(|m| m.at_ns);
        let notice = self.next_notice().map(|(at, ..)| at.max(self.real()));
        moment.into_iter().chain(notice).min()
    }

    fn run(&mut self) -> Result {
        self.queue
            .after(0, Event::Tick(Process::Coordinator(COORDINATOR)));
        let end = self.env.trace.end_ns();
        let mut events = 0u64;
        while self.real() < end {
            events += 1;
            if events > EVENTS_MAX {
                let at_s = self.whole_seconds();
                return Err(ReplayError::Stuck { at_s });
            }
            let outside = self.outside().unwrap_or(end);
            let inside = self.queue.next_at().map(|at| at + self.env.skipped.ns);
            if inside.is_none_or(|at| outside <= at) {
                self.queue.advance_to(outside - self.env.skipped.ns);
                if self.real() < end {
                    self.trace_event()?;
                }
            } else if let Some((_, event)) = self.queue.pop() {
                self.step(event)?;
            }
        }
        Ok(())
    }

    /// A moment of the trace, or a notice.
    fn trace_event(&mut self) -> Result {
        self.busy();
        if let Some((at, node, goes_at)) = self.next_notice()
            && at <= self.real()
        {
            return self.announce(&node, goes_at);
        }
        let trace = self.env.trace;
        let Some(moment) = trace.moments.get(self.env.next_moment) else {
            return Ok(());
        };
        self.env.next_moment += 1;
        for node in &moment.leaves {
            self.leave(node);
        }
        for node in &moment.joins {
            self.join(node);
        }
        let (now, real) = (self.now(), self.real());
        let account = &mut self.env.account;
        let top = account.ideal.rate(self.env.nodes.len());
        if !account.ledger.possible() {
            account.possible_at = now;
        }
        account.ledger.set_top(real, top);
        self.judge_plan(true);
        self.mark();
        Ok(())
    }

    fn busy(&mut self) {
        self.env.steady.busy_at = self.now();
        self.env.steady.count = 0;
    }
}

#[cfg(test)]
mod tests;
