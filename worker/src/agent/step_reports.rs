//! What a worker reports about its steps: timings to the coordinator, and to its log whether the spare copies that it keeps are up to date.

use crate::engine::{SegmentTiming, StepTimings, Timeline, Work};
use crate::stopwatch::Took;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use varuna_plan::{Generation, Plan, Step, WorkerId};
use varuna_wire::{SegmentTimes, StepMetrics};

/// The shortest time between two reports of timings by a worker, times the number of members of its plan. So the coordinator gets 250
/// reports a second, from any number of workers. If there are few workers, they report every step.
const METRICS_PAUSE: Duration = Duration::from_millis(4);

/// Median times of full micro-batches by segment, and the samples of a full micro-batch.
fn medians(segment_timings: &[SegmentTiming]) -> (u32, Vec<SegmentTimes>) {
    let whole = segment_timings.iter().map(|l| l.samples).max().unwrap_or(0);
    let mut by_segment: BTreeMap<u32, BTreeMap<Work, Vec<Duration>>> = BTreeMap::new();
    for timing in segment_timings.iter().filter(|l| l.samples == whole) {
        let works = by_segment.entry(timing.segment).or_default();
        works.entry(timing.work).or_default().push(timing.took);
    }
    let times = |(segment, mut works): (u32, BTreeMap<Work, Vec<Duration>>)| {
        let mut median = |work| {
            let mut times = works.remove(&work).unwrap_or_default();
            times.sort_unstable();
            times.get(times.len() / 2).map_or(0.0, |d| d.as_secs_f64() * 1e3)
        };
        SegmentTimes {
            segment,
            forward_ms: median(Work::Forward),
            backward_ms: median(Work::Backward),
            recompute_ms: median(Work::Recompute),
        }
    };
    (whole, by_segment.into_iter().map(times).collect())
}

/// Reads the most memory that this worker has taken of its device, bytes; none where the system does not say.
pub type MemoryTaken = Box<dyn Fn() -> Option<u64> + Send>;

/// A step that was run here, and is not applied yet.
struct Ran {
    generation: Generation,
    step: Step,
    timings: StepTimings,
    segment_timings: Vec<SegmentTiming>,
    timeline: Option<Timeline>,
}

pub(super) struct StepReports {
    ran: Option<Ran>,
    /// Timings of steps before that are not told.
    from: Instant,
    /// Number of members of the running plan. The next fields belong to this plan, too.
    members: u32,
    samples: u64,
    generation: Generation,
    /// The running step waits for parameters, and for members that begin it later: its times are not those of a step.
    waits_for_parameters: bool,
    /// Units whose spare copy this worker keeps.
    kept: usize,
    /// Whether all of them were up to date when this was checked last.
    in_step: bool,
    tokens_per_sample: u64,
    memory_taken: MemoryTaken,
}

impl StepReports {
    pub(super) fn new(tokens_per_sample: u64, memory_taken: MemoryTaken) -> StepReports {
        StepReports {
            ran: None,
            from: Instant::now(),
            members: 1,
            samples: 0,
            generation: Generation(0),
            waits_for_parameters: false,
            kept: 0,
            in_step: false,
            tokens_per_sample,
            memory_taken,
        }
    }

    /// A step of this plan begins.
    pub(super) fn begin(&mut self, plan: &Plan, step: Step, me: WorkerId) {
        self.waits_for_parameters = plan.sends_parameters_in(step);
        let pipeline = plan.shape.place(me);
        self.samples = pipeline.map_or(0, |(i, _)| plan.shape.pipelines[i].samples.len());
        self.members = u32::try_from(plan.members().len()).unwrap_or(u32::MAX);
        if self.generation != plan.generation {
            self.generation = plan.generation;
            self.kept = plan.kept_by(me).len();
            self.in_step = false;
        }
    }

    /// A step was run here.
    pub(super) fn ran(
        &mut self,
        (generation, step): (Generation, Step),
        timings: StepTimings,
        segment_timings: Vec<SegmentTiming>,
        timeline: Option<Timeline>,
    ) {
        self.ran = (!self.waits_for_parameters).then_some(Ran {
            generation,
            step,
            timings,
            segment_timings,
            timeline,
        });
    }

    /// The timings of the step that was just applied, if it is time to report them, or if this is the step that was measured.
    pub(super) fn applied(&mut self, apply: Took) -> Option<StepMetrics> {
        let Ran {
            generation,
            step,
            timings: t,
            segment_timings,
            timeline,
        } = self.ran.take()?;
        if Instant::now() < self.from && timeline.is_none() {
            return None;
        }
        self.from = Instant::now() + METRICS_PAUSE * self.members;
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        let (micro_batch_size, segments) = medians(&segment_timings);
        Some(StepMetrics {
            generation,
            step,
            step_ms: ms(t.total + apply.time),
            forward_ms: ms(t.forward),
            backward_ms: ms(t.backward),
            recompute_ms: ms(t.recompute),
            wait_ms: ms(t.wait),
            reduce_ms: ms(t.reduce),
            apply_ms: ms(apply.time),
            apply_cpu_ms: Some(ms(apply.processor)),
            tokens: self.samples * self.tokens_per_sample,
            segments,
            micro_batch_size,
            peak_memory_bytes: (self.memory_taken)(),
            measured: timeline.map(|timeline| timeline.with_optimizer(apply.time)),
        })
    }

    /// How many of the units whose spare copies are kept here are up to date.
    pub(super) fn spare_copies(&mut self, in_step: usize) {
        let all = self.kept > 0 && in_step == self.kept;
        if all != self.in_step {
            let (generation, kept) = (self.generation, self.kept);
            match all {
                true => {
                    tracing::info!(%generation, kept, "spare copies are in step: the loss of their holder costs no step")
                }
                false => {
                    tracing::warn!(%generation, kept, in_step, "spare copies are out of step, and copied anew")
                }
            }
        }
        self.in_step = all;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::first_step;

    fn ran(step_reports: &mut StepReports, timeline: Option<Timeline>) -> Option<StepMetrics> {
        step_reports.ran(
            (Generation(1), Step(1)),
            StepTimings::default(),
            Vec::new(),
            timeline,
        );
        step_reports.applied(Took {
            time: Duration::from_millis(3),
            processor: Duration::from_millis(2),
        })
    }

    #[test]
    fn the_times_of_a_step_that_waits_for_parameters_are_not_told() {
        let mut step_reports = StepReports::new(1, Box::new(|| None));
        let plan = first_step::tests::plan();
        step_reports.begin(&plan, Step(5), first_step::tests::ME);
        assert_eq!(ran(&mut step_reports, None), None);
        step_reports.begin(&plan, Step(6), first_step::tests::ME);
        assert!(ran(&mut step_reports, None).is_some());
    }

    #[test]
    fn the_measured_step_is_told_however_soon_after_another_one() {
        let mut step_reports = StepReports::new(1, Box::new(|| None));
        // With so many members, each worker reports at most once an hour.
        step_reports.members = 1_000_000;
        let told = ran(&mut step_reports, None).unwrap();
        assert!(told.measured.is_none());
        assert_eq!((told.apply_ms, told.apply_cpu_ms), (3.0, Some(2.0)));
        assert_eq!(ran(&mut step_reports, None), None);
        let timeline = Timeline {
            began: Instant::now(),
            began_us: 17,
            tasks: Vec::new(),
            reduced: Duration::from_micros(5),
        };
        let told = ran(&mut step_reports, Some(timeline))
            .and_then(|told| told.measured)
            .unwrap();
        assert_eq!((told.began_us, told.reduced_us), (17, 5));
        assert!(told.optimizer_from_us <= told.optimizer_to_us);
        assert_eq!(ran(&mut step_reports, None), None);
    }
}
