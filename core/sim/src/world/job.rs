//! The job that is run.

use crate::rng::Rng;
use std::time::Duration;
use varuna_plan::state::mix;
use varuna_plan::{EvaluationSteps, Layout, SpareCopies, Step};

/// Additional steps of a job in which a single worker is lost late, so that the job still runs then.
const LONE_LOSS_STEPS: u64 = 150;

/// The job that is run.
pub(super) struct Job {
    pub(super) layout: Layout,
    /// Most segments that one worker can hold.
    pub(super) worker_segments: u32,
    /// The last step in the job file.
    pub(super) last_step: Step,
    /// The greatest last step that the user has ordered; 0 = none.
    pub(super) ordered_last_step: Step,
    /// The user raises the number of steps once the job has ended.
    pub(super) goes_on_after_end: bool,
    pub(super) checkpoint_every: u64,
    /// Checkpoints are also made by the clock.
    pub(super) save_every: Option<Duration>,
    /// Checkpoints are also made more often while workers are lost often.
    pub(super) adaptive_checkpoints: bool,
    /// Workers know how to follow.
    pub(super) following: bool,
    /// Workers can run a plan's first step with parameters that others send them.
    pub(super) parameters_first: bool,
    /// Whether copies are kept of units that only one worker holds, if workers can follow.
    pub(super) spare_copies: SpareCopies,
    /// Steps between comparisons of the holders' states.
    pub(super) compare_every: Option<u64>,
    /// There is a store, and the job needs a checkpoint of its last step.
    pub(super) final_checkpoint: bool,
    pub(super) evaluation: Option<EvaluationSteps>,
    /// Whether the run may begin again from the seed, if everything else is lost.
    pub(super) may_begin_anew: bool,
    /// Faults do not stop, but become rarer (where there are any).
    pub(super) faults_become_rarer: bool,
    /// Plans are made by the planner that is shipped, and also ahead of losses.
    pub(super) shipped_planner: bool,
    /// Percentage of a unit's gradients that are not finite.
    pub(super) overflow_percent: u64,
    /// The job is long enough for a worker to die alone, long after all faults.
    pub(super) lone_loss: bool,
    /// Coordinators read the record seldom by themselves: the platform tells them that another has taken over, as in a cluster.
    pub(super) seldom_reads: bool,
}

impl Job {
    pub(super) fn draw(rng: &mut Rng, seed: u64) -> Self {
        let segments = small(rng.range(2, 4));
        let worker_segments = small(rng.range(u64::from(segments.div_ceil(2)), u64::from(segments)));
        let faults_become_rarer = Rng(mix(seed, 79)).chance(6);
        let following = Rng(mix(seed, 88)).chance(60);
        let spare_copies = match Rng(mix(seed, 89)).chance(50) {
            true => SpareCopies::One,
            false => SpareCopies::Off,
        };
        let kept = following && spare_copies == SpareCopies::One;
        let lone_loss = !faults_become_rarer && Rng(mix(seed, 90)).chance(if kept { 25 } else { 4 });
        let mut comparing = Rng(mix(seed, 83));
        let mut sharded = Rng(mix(seed, 91));
        let ranges = if sharded.chance(35) {
            small(sharded.range(2, 7))
        } else {
            1
        };
        // Long enough to meet some of the continuing faults.
        let times = if faults_become_rarer {
            Rng(mix(seed, 80)).range(1, 8)
        } else {
            1
        };
        Self {
            faults_become_rarer,
            layout: Layout::new(segments, rng.chance(50)).in_ranges(ranges),
            worker_segments,
            // One run in ten is long enough to see how it continues after the faults.
            last_step: Step(
                times * rng.range(4, 16) * if rng.chance(10) { 10 } else { 1 }
                    + if lone_loss { LONE_LOSS_STEPS } else { 0 },
            ),
            checkpoint_every: rng.range(1, 6),
            // Without a store, everything is lost with the last holder of a unit, so while faults continue a long run need not end.
            final_checkpoint: rng.chance(75) || faults_become_rarer,
            evaluation: rng.chance(25).then(|| EvaluationSteps {
                interval_steps: rng.range(2, 6),
                batches: small(rng.range(1, 4)),
            }),
            ordered_last_step: Step(0),
            goes_on_after_end: Rng(mix(seed, 86)).chance(5),
            may_begin_anew: rng.chance(50),
            shipped_planner: Rng(mix(seed, 81)).chance(8),
            overflow_percent: 0,
            following,
            parameters_first: Rng(mix(seed, 94)).chance(60),
            spare_copies,
            lone_loss,
            seldom_reads: Rng(mix(seed, 92)).chance(15),
            compare_every: comparing.chance(10).then(|| comparing.range(1, 4)),
            save_every: Rng(mix(seed, 77)).chance(50).then(|| Duration::from_millis(150)),
            adaptive_checkpoints: Rng(mix(seed, 93)).chance(30),
        }
    }

    pub(super) fn min_workers(&self) -> usize {
        self.layout.segments.div_ceil(self.worker_segments) as usize
    }
}

fn small(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
