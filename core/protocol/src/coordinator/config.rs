//! The coordinator's configuration, its inputs and its effects.

use crate::comparison_record::ComparisonRecord;
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
    /// How long the first plan of a run waits for more workers once there are enough, unless the maximum number is already there.
    pub gather: Duration,
    /// How long a member may be without a stream while no step commits.
    pub grace: Duration,
    /// Longest interval between two Status messages of a worker. It also serves to detect that the coordinator itself was paused.
    pub heartbeat: Duration,
    /// A stream without messages for this long is down.
    pub silent: Duration,
    /// How long a recovery waits for all answers where the newest known state is complete without them.
    pub collect: Duration,
    /// How long a recovery waits for all answers before it gives up committed steps.
    pub restore: Duration,
    /// The same if a worker that does not answer is connected. Within this time its engine finishes what it is doing, or its process ends
    /// (see [`crate::member::MemberTiming::engine`]).
    pub unanswered: Duration,
    /// How long holders of state that are not known to have ended must be disconnected before a run without a checkpoint ends as lost. This
    /// never happens before [`Timing::grace`] and [`Timing::restore`] would allow it.
    pub lost: Duration,
    /// How long a planned change may take to connect before it is cancelled.
    pub connect_next: Duration,
    /// How long a planned change, once its members are connected, waits for the workers that gain units to catch up with the run; 16 steps
    /// if that is longer. Also how long before the known time at which a worker leaves it is planned around.
    pub following: Duration,
    /// How long a new member may be disconnected before a planned change is cancelled.
    pub cancel_grace: Duration,
    /// How long a generation may take from the write of its plan to Go, not counting its step deadline. It is also given three times the
    /// predicted time to move its state. All this is doubled after each launch in a row that took longer, up to 16 times.
    pub launch: Duration,
    /// How long a link that failed is avoided.
    pub bad_link: Duration,
    /// The shortest deadline of a step.
    pub deadline_floor: Duration,
    /// Pause before the next planned change, after Go and after a cancelled one.
    pub change_delay: Duration,
    /// A planned change that has taken place is noted in the record by the next write, or after this time if there is none. Until then a
    /// coordinator that takes over finds both plans in the record, as it would if this one died just before that write.
    pub promotion: Duration,
    /// Interval at which a plan for a possible loss is prepared while nothing else happens; zero: never.
    pub prepare_plans_every: Duration,
    /// Expected time between changes of the set of workers, before anything is known.
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
    /// The values of the simulated world, where a message takes 1-8 ms and a step about 40 ms.
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

/// With up to this many workers below the root, the tree along which norms are gathered has one level: two hops per step.
pub const TREE_FAN_OUT: u32 = 16;

/// The configuration of a coordinator.
#[derive(Clone, PartialEq, Debug)]
pub struct CoordinatorConfig {
    /// The model's units.
    pub layout: Layout,
    /// Samples in a step.
    pub global_batch_size: u64,
    /// The run ends when this many steps are committed, as its job file says. More may be ordered, see [`CoordinatorInput::LastStep`].
    pub last_step: Step,
    /// Minimum number of workers for training.
    pub min_workers: usize,
    /// How many workers were started with the run, if known. The first plan waits for no more than these.
    pub expected_workers: Option<usize>,
    /// Which steps begin with an evaluation.
    pub evaluation: Option<EvaluationSteps>,
    /// Deadlines.
    pub timing: Timing,
    /// Whether there is a store. If so, the run is done only when a complete checkpoint of the last step exists; otherwise when its members
    /// report that step.
    pub final_checkpoint: bool,
    /// Maximum age of the newest checkpoint, as long as steps are committed and the store accepts checkpoints.
    pub save_every: Option<Duration>,
    /// Members make a checkpoint at this interval, in steps. Here it is used to estimate what a loss costs, and to tell regular checkpoints
    /// from others.
    pub save_every_steps: Option<u64>,
    /// Whether checkpoints are also made more often than that, while the losses of workers that the run has seen make this worth its cost.
    pub adaptive_checkpoints: bool,
    /// How the job scales its loss.
    pub loss_scaling: LossScaling,
    /// Whether spare copies are kept of units that only one worker holds.
    pub spare_copies: SpareCopies,
    /// How long a worker keeps running after it announces that it will leave, or others announce it without a time. None if this is not
    /// known.
    pub notice: Option<Duration>,
    /// How long a worker is assumed to keep running after a notice if that is not known: until then, checkpoints follow one another where no plan
    /// can do without it.
    pub assumed_notice: Duration,
    /// The run ends if more steps in a row than this fail (see [`varuna_plan::OptimizerProgress`]); none = no limit.
    pub skip_limit: Option<u32>,
    /// The last state that was published (in the run folder's metrics) before this coordinator started.
    pub published: Option<StateId>,
    /// Names of workers that earlier coordinators of the run have seen, as far as they are known. Only texts for users have them.
    pub names: BTreeMap<WorkerId, String>,
    /// Minimum fan-out of the tree along which norms are gathered: children per member (see [`TREE_FAN_OUT`]).
    pub tree_fan_out: u32,
}

impl CoordinatorConfig {
    /// A configuration for any number of workers with the deadlines of a real run, without checkpoints and evaluation.
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
            adaptive_checkpoints: false,
            loss_scaling: LossScaling::OFF,
            spare_copies: SpareCopies::Off,
            notice: None,
            assumed_notice: Duration::from_secs(25),
            skip_limit: None,
            published: None,
            names: BTreeMap::new(),
            tree_fan_out: TREE_FAN_OUT,
        }
    }
}

/// What a worker reports about itself when its stream comes up.
#[derive(Clone, PartialEq, Debug)]
pub struct Hello {
    /// Where it listens for peers (`host:port`).
    pub address: String,
    /// Name of the worker, for users.
    pub name: String,
    /// The node it runs on.
    pub node: String,
    /// The hardware that it computes on; none before it knows.
    pub hardware: Option<Hardware>,
    /// Memory that training may use, where known, bytes.
    pub memory_bytes: Option<u64>,
    /// Host memory for the spare copies that it keeps, bytes; none if they take memory of training.
    pub copies_bytes: Option<u64>,
    /// Memory that its attention needs for scores that it materialises; none if it materialises none.
    pub scores: Option<ScoreMemory>,
    /// Measured speed, 1.0 = nominal.
    pub speed: f64,
}

/// The complete checkpoints in the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listing {
    /// States of the complete checkpoints.
    pub complete: Vec<StateId>,
    /// Checkpoints that are marked: as damaged, or as given up by a run. None of them is in `complete`.
    pub damaged: Vec<StateId>,
    /// The newest generation of anything in the store, whichever run wrote it and whether or not it is usable. No generation up to this one
    /// is used again.
    pub newest_generation: Generation,
    /// True if the store has just answered. Otherwise it did not, and this is its previous answer: there may be newer checkpoints.
    pub fresh: bool,
}

impl Listing {
    /// A listing that the store has just given.
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

    /// Leaves out what the run has given up. It resumes from none of it, and does not put it again: its mark is not one of damage.
    pub(super) fn leave_out_given_up(&mut self, trust: &ComparisonRecord) {
        let stays = |id: &StateId| !trust.is_rolled_back(*id);
        self.complete.retain(stays);
        self.damaged.retain(stays);
    }
}

/// An input of the coordinator. The driver may only pass on a worker's newest stream.
#[derive(Clone, PartialEq, Debug)]
pub enum CoordinatorInput {
    /// The clock: every few tens of milliseconds.
    Tick,
    /// The answer to ReadRecord.
    Record(Record),
    /// The answer to Write.
    Written {
        /// Whether it is persisted. False also if the outcome is not known.
        ok: bool,
        /// The record that was to be written.
        record: Record,
    },
    /// The answer to ListCheckpoints.
    Checkpoints(Listing),
    /// A worker's stream came up. It replaces an earlier one.
    StreamUp {
        /// The worker.
        from: WorkerId,
        /// What the worker says about itself.
        hello: Hello,
    },
    /// A worker's newest stream ended.
    StreamDown {
        /// The worker.
        from: WorkerId,
    },
    /// A worker sent a report.
    Report {
        /// The worker.
        from: WorkerId,
        /// Report of the worker.
        report: Report,
    },
    /// Where the time of a worker's step went. It is only used to make plans; nothing in the protocol depends on it.
    Observed {
        /// The worker.
        from: WorkerId,
        /// The observation.
        observed: Observed,
    },
    /// A worker's process has certainly ended: it never comes back, and nothing that it held is waited for. Only a source that has seen the
    /// process end, such as its parent process, may send this.
    ProcessEnded {
        /// The worker.
        worker: WorkerId,
    },
    /// Another component has seen that a worker will leave. This has the same effect as the worker's own announcement: a process may miss
    /// its own notice.
    Notice {
        /// The worker.
        worker: WorkerId,
        /// When the worker leaves, if known. It trains for as long as possible, and the workers that get its units follow it until then.
        leaves_in: Option<Duration>,
    },
    /// Time that passed without the clock showing it, as when a simulation skips equal steps. It only enters the estimate of how often
    /// workers change.
    TimeSkipped(Duration),
    /// A checkpoint of a state beyond the present one is wanted.
    Save,
    /// The most workers to use; none = no limit.
    MaxWorkers(Option<usize>),
    /// Location of each node by name, from the widest domain to the narrowest (`zone-a/block-3`). It replaces what was known before.
    Domains(BTreeMap<String, String>),
    /// Raises the run's last step; a smaller step changes nothing. A run that has ended continues if its coordinator gets this before it
    /// reads the record, and if there is a store that has the state.
    LastStep(Step),
    /// Whether a recovery may give up all committed steps if none of their state is left (see [`super::Coordinator::may_begin_anew`]).
    MayBeginAnew(bool),
    /// The user ends the run now: workers are stopped and released.
    Stop,
}

/// What the driver must do for a coordinator, in order.
#[derive(Clone, PartialEq, Debug)]
pub enum CoordinatorEffect {
    /// Send an order on the worker's newest stream, with this coordinator's term. Dropped if there is no stream.
    Send {
        /// The receiver.
        to: WorkerId,
        /// The order.
        order: Order,
    },
    /// Compare-and-swap of the record. Answer: Written, always.
    Write {
        /// The version that must be in the store.
        expect: u64,
        /// The record that replaces it.
        record: Record,
    },
    /// Read the record. Answer: Record.
    ReadRecord,
    /// List the checkpoints. Answer: Checkpoints (none if the run has no store).
    ListCheckpoints,
    /// Delete what is left of a checkpoint that was found damaged, so that its state can be put again, and list the store again. If the
    /// checkpoint is not damaged, nothing is deleted.
    DiscardCheckpoint {
        /// The state.
        id: StateId,
    },
    /// An event for the run's log and its metrics.
    Event(Event),
    /// The run has ended for this coordinator: close all streams and end.
    Finish(Outcome),
}
