//! The faults of a schedule, by kind and number. Any of them can be left out, so that a schedule can be run with only a few of its faults.

use super::network::Ms;
use std::collections::BTreeSet;
use std::fmt;
use varuna_plan::WorkerId;

/// A kind of fault, or of another event that a job has to cope with.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// A worker dies.
    Crash,
    /// A worker is stopped (SIGSTOP) for a while.
    Pause,
    /// A link is cut for a while, in one direction or both.
    Block,
    /// A connection between workers is reset.
    Reset,
    /// A stream between a worker and its coordinator breaks.
    Break,
    /// The coordinator dies.
    CrashCoordinator,
    /// Another coordinator starts beside the one that lives.
    Failover,
    /// The coordinator is stopped (SIGSTOP) for a while.
    PauseCoordinator,
    /// A worker comes.
    Join,
    /// A worker has notice that it will go.
    Drain,
    /// The coordinator is cut off from the store.
    StoreCut,
    /// A worker is cut off, and does not notice.
    Isolate,
    /// Several workers die at once.
    LoseNode,
    /// Several workers come at once.
    Grow,
    /// A worker comes that dies in its first step, and comes back.
    CrashLoop,
    /// Somebody says that a worker will go.
    Announce,
    /// The user wants a checkpoint.
    Save,
    /// The user limits the workers.
    LimitWorkers,
    /// The user stops the run, and takes it up again.
    Stop,
    /// A worker is hit that has just committed, accepted, freed, rolled forward or fetched.
    Hit,
    /// Half of the workers die at once, and perhaps the coordinator.
    LoseZone,
    /// Many workers come, and most of them go again.
    Storm,
    /// A worker computes slowly for a while.
    Slow,
    /// A worker's connections break again and again.
    Flap,
    /// A worker's clock jumps ahead, by up to two hours.
    JumpClock,
    /// The coordinator's clock jumps ahead, by up to two hours.
    JumpCoordinatorClock,
    /// Nobody reaches the store for a while.
    StoreDown,
    /// The store takes no shards for a while.
    StoreFull,
    /// A worker dies before the notice that it will go comes.
    LateNotice,
    /// A worker's copy of a unit changes, and nobody notices.
    FlipBits,
    /// The user raises the number of steps.
    MoreSteps,
    /// A worker dies alone, long after the other faults.
    LoneLoss,
    /// A link stays cut when the faults have ended.
    LastingCut,
    /// All through: writes of the record are reported as failed, and half of them happen all the same, at once or later.
    UnclearWrites,
    /// All through: reads of the record are not answered.
    UnansweredReads,
    /// All through: the list of checkpoints is what it was a while ago.
    OldListings,
    /// All through: reports are lost on their way.
    LostReports,
    /// All through: shards of checkpoints turn out to be damaged.
    DamagedShards,
    /// All through: transfers of state take long.
    SlowTransfers,
    /// All through: reads of the record bring an older one.
    OldRecords,
    /// All through: reports come twice.
    DuplicatedReports,
    /// All through: state from a peer arrives damaged.
    DamagedTransfers,
    /// All through: the store takes long.
    SlowStore,
    /// All through: gradients are not finite, and the step is skipped.
    OverflowedSteps,
}

impl Fault {
    /// Whether it hits one worker.
    pub(super) fn is_of_one_worker(self) -> bool {
        matches!(
            self,
            Fault::Crash
                | Fault::Pause
                | Fault::Block
                | Fault::Reset
                | Fault::Break
                | Fault::Drain
                | Fault::Isolate
                | Fault::Announce
                | Fault::Slow
                | Fault::Flap
                | Fault::JumpClock
                | Fault::LateNotice
                | Fault::FlipBits
        )
    }
}

/// A fault that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InjectedFault {
    /// Number of the fault in the schedule.
    pub number: usize,
    /// Kind of the fault.
    pub fault: Fault,
    /// When, in milliseconds of the world; what lasts all through a schedule begins at 0.
    pub at: u64,
    /// The worker that it hit, if it hits a single worker.
    pub worker: Option<WorkerId>,
}

impl fmt::Display for InjectedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fault {} at {} ms: {:?}", self.number, self.at, self.fault)?;
        self.worker
            .map_or(Ok(()), |worker| write!(f, ", worker {worker:?}"))
    }
}

/// Maximum number of hits on workers that have just done something important.
pub(super) const HITS_MAX: usize = 6;

#[derive(Default)]
pub(super) struct Faults {
    pub(super) ended_at: Option<Ms>,
    /// In some schedules a worker that has just committed, accepted or received is hit, with this probability out of 200.
    pub(super) hit_rate: u64,
    pub(super) hits: usize,
    /// Whether workers that have just rolled forward or fetched are hit while others are paused; one schedule in six.
    pub(super) hits_loading: bool,
    /// Faults do not stop: they become rarer.
    pub(super) become_rarer: bool,
    /// The store takes long now and then.
    pub(super) slow_store: bool,
    /// Only joins happen: no recovery may be needed.
    pub(super) only_joins: bool,
    /// Planned changes that were cancelled when all was quiet again.
    pub(super) cancelled_since: u32,
    /// Number of switches that have succeeded since then.
    pub(super) switched_since: u32,
    /// Which faults happen: all, or those of these numbers.
    pub(super) only: Option<BTreeSet<usize>>,
    /// How many numbers are taken.
    numbers: usize,
    /// The numbers of hits begin here.
    pub(super) first_hit: usize,
    /// The number of the link that stays cut.
    pub(super) lasting_cut: usize,
    /// The numbers of bits that change.
    pub(super) flips: BTreeSet<usize>,
    /// Faults that were injected so far.
    pub(super) injected: Vec<InjectedFault>,
}

impl Faults {
    pub(super) fn with_only(only: Option<BTreeSet<usize>>) -> Self {
        Self {
            only,
            ..Self::default()
        }
    }

    /// Takes so many numbers; returns the first of them.
    pub(super) fn take_numbers(&mut self, count: usize) -> usize {
        let first = self.numbers;
        self.numbers += count;
        first
    }

    pub(super) fn happens(&self, number: usize) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(&number))
    }
}
