//! The figures of a committed step that follow from the job, the step time, and its workers' reports. Pure. Unknown values stay unknown: no
//! figure is estimated.

use std::time::Duration;
use varuna_api::{Job, LearningRate};
use varuna_plan::device::Hardware;
use varuna_plan::{Generation, Step};
use varuna_protocol::Report;
use varuna_protocol::coordinator::CoordinatorInput;
use varuna_run_folder::StepFigures;

/// Figures that are the same for all steps of a job.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct JobFigures {
    samples_of_step: u64,
    tokens_of_sample: u64,
    /// Floating-point operations of a step's forwards and backwards, without recomputation.
    flops_of_step: f64,
    learning_rate: LearningRate,
}

/// The facts of a committed step from which the figures follow.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct StepDone {
    /// Steps done, this one included.
    pub(crate) step: Step,
    /// Optimizer steps applied before it.
    pub(crate) applied_before: u64,
    /// Time of the step, if known.
    pub(crate) took: Option<Duration>,
    /// Number of steps up to it whose loss was not finite.
    pub(crate) nan_steps: u64,
    /// The workers that ran it.
    pub(crate) members: MemberFigures,
}

/// Totals over the members of a plan.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct MemberFigures {
    /// Peak floating-point operations per second of their GPUs by the data sheets; none if one of the GPUs is unknown.
    peak_flops_per_s: Option<f64>,
    /// The highest peak memory of a member, bytes; none if no member has reported it.
    peak_memory_bytes: Option<u64>,
}

/// The facts of one member from which figures follow.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct MemberFacts<'a> {
    /// The hardware that it computes on, if reported.
    pub(crate) hardware: Option<&'a Hardware>,
    /// Number of workers on its GPU, itself included; 0, which builds report that do not know the number, counts as 1.
    pub(crate) workers_on_gpu: u32,
    /// Peak memory of the worker, bytes, if reported.
    pub(crate) peak_memory_bytes: Option<u64>,
}

impl MemberFacts<'_> {
    /// Its share of its GPU's peak.
    fn peak_flops_per_s(&self) -> Option<f64> {
        let of_gpu = self.hardware?.data_sheet_flops_per_s()?;
        Some(of_gpu / f64::from(self.workers_on_gpu.max(1)))
    }
}

impl MemberFigures {
    pub(crate) fn of<'a>(members: impl Iterator<Item = MemberFacts<'a>>) -> MemberFigures {
        let (mut peak, mut memory, mut any) = (Some(0.0), None, false);
        for member in members {
            any = true;
            peak = peak.zip(member.peak_flops_per_s()).map(|(sum, own)| sum + own);
            memory = memory.max(member.peak_memory_bytes);
        }
        MemberFigures {
            peak_flops_per_s: peak.filter(|_| any),
            peak_memory_bytes: memory,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a step are far below 2^52")]
impl JobFigures {
    pub(crate) fn of(job: &Job) -> JobFigures {
        let samples_of_step = job.training.global_batch_size;
        let segments = job.model.spec().segments;
        let of_sample: f64 = segments.iter().map(|s| s.forward_flops + s.backward_flops).sum();
        JobFigures {
            samples_of_step,
            tokens_of_sample: u64::from(job.model.sample_length()),
            flops_of_step: of_sample * samples_of_step as f64,
            learning_rate: job.training.learning_rate.clone(),
        }
    }

    /// Tokens of a step.
    pub(crate) fn tokens_of_step(&self) -> u64 {
        self.samples_of_step * self.tokens_of_sample
    }

    /// The figures of a step.
    pub(crate) fn step(&self, done: &StepDone) -> StepFigures {
        let samples = done.step.0.saturating_mul(self.samples_of_step);
        let seconds = done.took.map(|took| took.as_secs_f64()).filter(|s| *s > 0.0);
        let flops = seconds.map(|s| self.flops_of_step / s);
        let peak = done.members.peak_flops_per_s;
        StepFigures {
            consumed_samples: Some(samples),
            consumed_tokens: Some(samples.saturating_mul(self.tokens_of_sample)),
            learning_rate: Some(self.learning_rate.at(done.applied_before)),
            nan_steps: Some(done.nan_steps),
            tokens_per_second: seconds.map(|s| self.tokens_of_step() as f64 / s),
            model_flops_per_second: flops,
            mfu: flops.zip(peak).map(|(flops, peak)| flops / peak),
            peak_memory_bytes: done.members.peak_memory_bytes,
        }
    }
}

/// Whether a worker reports a commit that was just made. A commit that was asked for, or that is in an inventory, was made some time
/// before.
pub(crate) fn is_new_commit(input: &CoordinatorInput) -> bool {
    let CoordinatorInput::Report { report, .. } = input else {
        return false;
    };
    matches!(report, Report::Committed { .. })
}

/// Determines which steps' own times are known: the time between two commits is that of a step, unless something else happened between
/// them.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct StepClock {
    /// The last reported step, its generation, when it was reported, and whether that was when it was made.
    last: Option<(Step, Generation, Duration, bool)>,
}

impl StepClock {
    /// Takes a commit that is reported at `now`, either late (`reported_late`) or when it was made. Returns the step's own time. None after a
    /// pause between generations, if this commit or the one before was reported late, or if its step began with an evaluation.
    pub(crate) fn note_commit(
        &mut self,
        (step, generation): (Step, Generation),
        now: Duration,
        reported_late: bool,
        evaluated: bool,
    ) -> Option<Duration> {
        let before = self.last.replace((step, generation, now, !reported_late));
        let (last, of, at, on_time) = before?;
        let follows = last.next() == step && of == generation;
        let known = follows && on_time && !reported_late && !evaluated;
        known.then(|| now.saturating_sub(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn gpu(name: &str) -> Hardware {
        Hardware::Gpu {
            name: name.into(),
            memory_bytes: 80 << 30,
        }
    }

    fn alone_on(gpu: &Hardware) -> MemberFacts<'_> {
        MemberFacts {
            hardware: Some(gpu),
            workers_on_gpu: 1,
            peak_memory_bytes: None,
        }
    }

    fn job() -> JobFigures {
        JobFigures::of(&crate::test_job::job(None))
    }

    fn done(step: u64, took_ms: Option<u64>) -> StepDone {
        StepDone {
            step: Step(step),
            applied_before: step - 1,
            took: took_ms.map(Duration::from_millis),
            nan_steps: 2,
            members: MemberFigures::default(),
        }
    }

    #[test]
    fn model_flops_are_six_per_parameter_and_token_plus_scores() {
        let job = crate::test_job::job(None);
        let model = job.model.transformer().unwrap();
        let (d, t) = (f64::from(model.hidden_size), f64::from(model.sequence_length));
        let (l, v) = (f64::from(model.layers), f64::from(model.vocabulary_size));
        // Products with weights: 12 d^2 for a block and v d for the head. Scores, and their sums over values: 2 t d for a block.
        let of_token = 6.0 * (l * 12.0 * d * d + v * d) + 3.0 * l * 2.0 * 2.0 * t * d;
        let step = JobFigures::of(&job);
        let expected = of_token * step.tokens_of_step() as f64;
        assert!(
            (step.flops_of_step / expected - 1.0).abs() < 0.05,
            "{} {expected}",
            step.flops_of_step
        );
    }

    #[test]
    fn rates_need_the_steps_own_time() {
        let job = job();
        let [h100, a100] = ["NVIDIA H100 PCIe", "NVIDIA A100-SXM4-80GB"].map(gpu);
        let members = [(&h100, 7), (&a100, 9)].map(|(gpu, bytes)| MemberFacts {
            peak_memory_bytes: Some(bytes),
            ..alone_on(gpu)
        });
        let members = MemberFigures::of(members.into_iter());
        let known = job.step(&StepDone {
            members,
            ..done(5, Some(500))
        });
        let tokens = job.tokens_of_step();
        assert_eq!(known.consumed_tokens, Some(5 * tokens));
        assert_eq!(known.tokens_per_second, Some(tokens as f64 * 2.0));
        assert_eq!(known.model_flops_per_second, Some(job.flops_of_step * 2.0));
        assert_eq!(known.mfu, Some(job.flops_of_step * 2.0 / (756e12 + 312e12)));
        assert_eq!((known.peak_memory_bytes, known.nan_steps), (Some(9), Some(2)));
        for unknown in [done(5, None), done(5, Some(0))] {
            let figures = job.step(&StepDone { members, ..unknown });
            assert_eq!(
                (
                    figures.tokens_per_second,
                    figures.model_flops_per_second,
                    figures.mfu
                ),
                (None, None, None)
            );
            assert_eq!(figures.learning_rate, Some(job.learning_rate.at(4)));
        }
    }

    #[test]
    fn unknown_device_of_one_member_hides_the_utilization() {
        let h100 = gpu("NVIDIA H100 80GB HBM3");
        for hardware in [None, Some(&Hardware::Processor), Some(&gpu("Some GPU"))] {
            let other = MemberFacts {
                hardware,
                ..MemberFacts::default()
            };
            let members = MemberFigures::of([alone_on(&h100), other].into_iter());
            assert_eq!(members, MemberFigures::default(), "{other:?}");
        }
        assert_eq!(MemberFigures::of(std::iter::empty()), MemberFigures::default());
    }

    #[test]
    fn the_members_of_one_gpu_have_its_peak_together() {
        let h100 = gpu("NVIDIA H100 80GB HBM3");
        let alone = MemberFigures::of(std::iter::once(alone_on(&h100)));
        assert_eq!(alone.peak_flops_per_s, Some(989e12));
        let of = |workers_on_gpu: u32, count: usize| {
            let member = MemberFacts {
                workers_on_gpu,
                ..alone_on(&h100)
            };
            MemberFigures::of(std::iter::repeat_n(member, count))
        };
        assert_eq!(of(4, 4), alone);
        assert_eq!(of(0, 1), alone, "a worker that does not say is alone");
    }

    #[test]
    fn step_time_excludes_everything_but_the_step() {
        let ms = Duration::from_millis;
        let first = Generation(1);
        let mut clock = StepClock::default();
        assert_eq!(
            clock.note_commit((Step(8), first), ms(50), false, false),
            None,
            "since when?"
        );
        assert_eq!(
            clock.note_commit((Step(9), first), ms(70), false, false),
            Some(ms(20))
        );
        assert_eq!(
            clock.note_commit((Step(10), first), ms(99), false, true),
            None,
            "an evaluation"
        );
        assert_eq!(
            clock.note_commit((Step(11), first), ms(110), false, false),
            Some(ms(11))
        );
        assert_eq!(
            clock.note_commit((Step(12), first), ms(900), true, false),
            None,
            "told late"
        );
        assert_eq!(clock.note_commit((Step(13), first), ms(900), true, false), None);
        assert_eq!(
            clock.note_commit((Step(14), first), ms(901), false, false),
            None,
            "since it was told, not done"
        );
        assert_eq!(
            clock.note_commit((Step(15), first), ms(921), false, false),
            Some(ms(20))
        );
        assert_eq!(
            clock.note_commit((Step(16), Generation(2)), ms(2000), false, false),
            None,
            "a recovery"
        );
        assert_eq!(
            clock.note_commit((Step(12), Generation(2)), ms(2020), false, false),
            None,
            "given up"
        );
    }

    proptest! {
        #[test]
        fn no_figure_is_ever_negative_or_infinite(step in 1..u64::MAX, took in 0..u64::MAX, applied in any::<u64>()) {
            let step = StepDone {
                step: Step(step),
                applied_before: applied,
                took: Some(Duration::from_nanos(took)),
                nan_steps: 0,
                members: MemberFigures { peak_flops_per_s: Some(1e12), peak_memory_bytes: None },
            };
            let figures = job().step(&step);
            let rates = [figures.tokens_per_second, figures.model_flops_per_second, figures.mfu, figures.learning_rate];
            for rate in rates.into_iter().flatten() {
                prop_assert!(rate.is_finite() && rate >= 0.0, "{figures:?}");
            }
        }
    }
}
