//! The coordinator's configuration, its inputs and its effects.

use crate::message::{Order, Report};
use crate::record::Record;
use std::collections::BTreeMap;
use std::time::Duration;
use varuna_plan::device::Hardware;
use varuna_plan::{
    EvaluationSteps, Generation, Layout, LossScaling, ScoreMemory, SpareCopies, StateId, Step, WorkerId,
};

use super::event::{Event, Outcome};
use super::speeds::Observed;

/// The coordinator's deadlines and intervals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// Interval at which an order to one worker is repeated.
    pub repeat: Duration,
    /// Interval at which fences are repeated and the store is listed while inventories are collected.
    pub ask_again: Duration,
    /// Interval at which the record is read, to notice a newer coordinator.
    pub watch: Duration,
    /// How long a new coordinator waits for the members of an inherited plan to come back.
    pub settle: Duration,
    /// How long the first plan of a run waits for more workers once there are enough, unless the most that may be used are there.
    pub gather: Duration,
    /// How long a member may be without a stream while no step commits.
    pub grace: Duration,
    /// Longest interval between two Status of a worker; also tells when the coordinator itself was paused.
    pub heartbeat: Duration,
    /// A stream without messages for this long is down.
    pub silent: Duration,
    /// How long a recovery waits for all answers where the newest known state is complete without them.
    pub collect: Duration,
    /// How long a recovery waits for all answers before it gives up committed steps.
    pub restore: Duration,
    /// The same where one of those that do not answer is connected: what its engine has in hand ends within that, or its process does
    /// (see [`crate::member::MemberTiming::engine`]).
    pub unanswered: Duration,
    /// How long holders of state, not known to have ended, must be disconnected before a run without a checkpoint ends as lost;
    /// never before [`Timing::grace`] and [`Timing::restore`] would allow it.
    pub lost: Duration,
    /// How long a planned change may take to connect before it is cancelled.
    pub connect_next: Duration,
    /// How long a planned change whose members are connected waits until those who get units by it have caught up with the run; where steps are
    /// long, 16 steps. Also how long before a worker goes, where that is known, it is planned around.
    pub following: Duration,
    /// How long a new member may be disconnected before a planned change is cancelled.
    pub cancel_grace: Duration,
    /// How long a generation may take from the write of its plan to Go, its step deadline not counted. Besides it has three times what its
    /// state is predicted to take to move; and twice all this after each launch in a row that took longer, up to 16 times.
    pub launch: Duration,
    /// How long a link that failed is avoided.
    pub bad_link: Duration,
    /// The least deadline of a step.
    pub deadline_floor: Duration,
    /// Pause before the next planned change, after Go and after a cancelled one.
    pub change_delay: Duration,
    /// A planned change that has taken place is noted in the record by the next write, and after this time where none comes. Until then a
    /// coordinator that takes over finds both plans there, as where this one dies before that write.
    pub promotion: Duration,
    /// Interval at which a plan for a possible loss is prepared while nothing else happens; zero: never.
    pub prepare_plans_every: Duration,
    /// Expected time between changes of the workers, before anything is known of them.
    pub stay: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let ms = Duration::from_millis;
        Self {
            repeat: ms(200),
            ask_again: ms(200),
            watch: ms(2_000),
            settle: ms(3_000),
            gather: ms(2_000),
            grace: ms(2_000),
            heartbeat: ms(1_000),
            silent: ms(5_000),
            collect: ms(300),
            restore: ms(30_000),
            unanswered: ms(60_000),
            lost: Duration::ZERO,
            connect_next: ms(10_000),
            following: ms(60_000),
            cancel_grace: ms(500),
            launch: ms(60_000),
            bad_link: ms(120_000),
            deadline_floor: ms(4_000),
            change_delay: ms(300),
            promotion: ms(60_000),
            prepare_plans_every: ms(100),
            stay: ms(1_800_000),
        }
    }
}

impl Timing {
    /// The simulated world's: a message takes 1-8 ms, a step about 40.
    #[must_use]
    pub fn model() -> Self {
        let ms = Duration::from_millis;
        Self {
            repeat: ms(30),
            ask_again: ms(40),
            watch: ms(200),
            settle: ms(200),
            gather: ms(40),
            grace: ms(250),
            heartbeat: ms(100),
            silent: ms(600),
            collect: ms(150),
            restore: ms(700),
            unanswered: ms(1_400),
            lost: Duration::ZERO,
            connect_next: ms(500),
            following: ms(600),
            cancel_grace: ms(50),
            launch: ms(1_500),
            bad_link: ms(6_000),
            deadline_floor: ms(400),
            change_delay: ms(60),
            promotion: ms(400),
            prepare_plans_every: Duration::ZERO,
            stay: ms(1_800_000),
        }
    }
}

/// Up to so many workers below the root the tree along which norms are gathered has one level: two hops for a step.
pub const TREE_FAN_OUT: u32 = 16;

/// What a coordinator is configured with.
#[derive(Clone, PartialEq, Debug)]
pub struct CoordinatorConfig {
    /// The model's units.
    pub layout: Layout,
    /// Samples in a step.
    pub global_batch_size: u64,
    /// The run ends when this many steps are committed, as its job's text says. More may be ordered, see [`CoordinatorInput::LastStep`].
    pub last_step: Step,
    /// Fewest workers that may train.
    pub min_workers: usize,
    /// How many workers were started with the run, where that is known: the first plan waits no longer than for these.
    pub expected_workers: Option<usize>,
    /// Which steps begin with an evaluation.
    pub evaluation: Option<EvaluationSteps>,
    /// Deadlines.
    pub timing: Timing,
    /// There is a store: the run is done only when a complete checkpoint of the last step exists; else when its members report
    /// that step.
    pub final_checkpoint: bool,
    /// The newest checkpoint becomes no older than this (where steps are committed and the store takes them).
    pub save_every: Option<Duration>,
    /// The members make a checkpoint after so many steps each. Only what a loss costs is reckoned with it here.
    pub save_every_steps: Option<u64>,
    /// How the job scales its loss.
    pub loss_scaling: LossScaling,
    /// Whether spare copies are kept of units that one worker alone holds.
    pub spare_copies: SpareCopies,
    /// In what time a worker ends that says that it will go, or of which others say so without a time; none: it is not known.
    pub notice: Option<Duration>,
    /// More steps in a row than this that failed (see [`varuna_plan::OptimizerProgress`]) end the run; none = no limit.
    pub skip_limit: Option<u32>,
    /// The last state that was published (in the run folder's metrics) before this coordinator started.
    pub published: Option<StateId>,
    /// Members below each member, at least, in the tree along which norms are gathered (see [`TREE_FAN_OUT`]).
    pub tree_fan_out: u32,
}

impl CoordinatorConfig {
    /// A run of any number of workers, with the deadlines of real ones, without checkpoints and evaluation.
    #[must_use]
    pub fn new(layout: Layout, global_batch_size: u64, last_step: Step) -> Self {
        Self {
            layout,
            global_batch_size,
            last_step,
            min_workers: 1,
            expected_workers: None,
            evaluation: None,
            timing: Timing::default(),
            final_checkpoint: false,
            save_every: None,
            save_every_steps: None,
            loss_scaling: LossScaling::OFF,
            spare_copies: SpareCopies::Off,
            notice: None,
            skip_limit: None,
            published: None,
            tree_fan_out: TREE_FAN_OUT,
        }
    }
}

/// What a worker says of itself when its stream comes up.
#[derive(Clone, PartialEq, Debug)]
pub struct Hello {
    /// Where it listens for peers (`host:port`).
    pub address: String,
    /// For people.
    pub name: String,
    /// The node it runs on.
    pub node: String,
    /// What it computes on; none before it knows.
    pub hardware: Option<Hardware>,
    /// Memory that training may use, where known, bytes.
    pub memory_bytes: Option<u64>,
    /// What its attention takes for scores that it makes; none where it makes none.
    pub scores: Option<ScoreMemory>,
    /// Measured speed, 1.0 = nominal.
    pub speed: f64,
}

/// The complete checkpoints in the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listing {
    /// Their states.
    pub complete: Vec<StateId>,
    /// Checkpoints that somebody found damaged; none of them is complete.
    pub damaged: Vec<StateId>,
    /// The newest generation of anything in the store, whosesoever it is and whether it can be used or not: none up to it is used again.
    pub newest_generation: Generation,
    /// The store has just said so. Otherwise it did not answer, and this is what it said before: there may be newer ones.
    pub fresh: bool,
}

impl Listing {
    /// What the store has just said.
    #[must_use]
    pub fn fresh(complete: Vec<StateId>) -> Self {
        let generations = complete.iter().map(|id| id.run_gen);
        Self {
            newest_generation: generations.max().unwrap_or_default(),
            complete,
            damaged: Vec::new(),
            fresh: true,
        }
    }
}

/// What may happen to a coordinator. Only a worker's newest stream may be passed on.
#[derive(Clone, PartialEq, Debug)]
pub enum CoordinatorInput {
    /// The clock: every few tens of milliseconds.
    Tick,
    /// The answer to ReadRecord.
    Record(Record),
    /// The answer to Write.
    Written {
        /// It is persisted. False also where the outcome is not known.
        ok: bool,
        /// What was to be written.
        record: Record,
    },
    /// The answer to ListCheckpoints.
    Checkpoints(Listing),
    /// A worker's stream came up, in place of an earlier one.
    StreamUp {
        /// The worker.
        from: WorkerId,
        /// What it says of itself.
        hello: Hello,
    },
    /// A worker's newest stream ended.
    StreamDown {
        /// The worker.
        from: WorkerId,
    },
    /// A worker said something.
    Report {
        /// The worker.
        from: WorkerId,
        /// Its report.
        report: Report,
    },
    /// Where the time of a worker's step went. Only plans are made with it; nothing of the protocol depends on it.
    Observed {
        /// The worker.
        from: WorkerId,
        /// What it observed.
        observed: Observed,
    },
    /// A worker's process has ended for certain: it never comes back, and nothing that it held is waited for. Only from who
    /// has seen its end, such as the parent of its process.
    ProcessEnded {
        /// The worker.
        worker: WorkerId,
    },
    /// Somebody else has seen that a worker will go: as if it had said so itself. A process may miss its own notice.
    Notice {
        /// The worker.
        worker: WorkerId,
        /// In what time, where that is known: it trains for as long as can be, and who gets its units follows it until then.
        leaves_in: Option<Duration>,
    },
    /// Time that the clock does not show, as where equal steps were left out of a simulation. It enters the estimate of how often
    /// workers change, and nothing else.
    TimeSkipped(Duration),
    /// A checkpoint of a state beyond the present one is wanted.
    Save,
    /// The most workers to use; none = no limit.
    MaxWorkers(Option<usize>),
    /// Where nodes are, by their names, from the widest part to the narrowest (`zone-a/block-3`), in place of what was known before.
    Domains(BTreeMap<String, String>),
    /// The run's last step, where it is to be greater than what is known; a smaller one changes nothing. A run that has ended goes on where
    /// its coordinator is told so before it reads the record, and there is a store, which has the state.
    LastStep(Step),
    /// Whether a recovery may give up all committed steps, where nothing of them is left (see [`super::Coordinator::may_begin_anew`]).
    MayBeginAnew(bool),
    /// The user wants the run to end here: workers are stopped and released.
    Stop,
}

/// What the driver does for a coordinator, in order.
#[derive(Clone, PartialEq, Debug)]
pub enum CoordinatorEffect {
    /// On the worker's newest stream, with this coordinator's term. Dropped if there is none.
    Send {
        /// To whom.
        to: WorkerId,
        /// The order.
        order: Order,
    },
    /// Compare-and-swap of the record. Answer: Written, always.
    Write {
        /// The version that must be there.
        expect: u64,
        /// What takes its place.
        record: Record,
    },
    /// Answer: Record.
    ReadRecord,
    /// Answer: Checkpoints (none where the run has no store).
    ListCheckpoints,
    /// Delete what is left of a checkpoint that was found damaged, so that its state can be put again; then list the store anew. Where
    /// it is not damaged, nothing is deleted.
    DiscardCheckpoint {
        /// Of which state.
        id: StateId,
    },
    /// For the run's log of events and its metrics.
    Event(Event),
    /// The run has ended for this coordinator: close all streams and end.
    Finish(Outcome),
}
