//! Figures of each job, read at each scrape. The figures of a deleted job are removed.

use super::Goodput;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use varuna_api::crd::Status;
use varuna_api::{ConditionType, JobPhase};
use varuna_coordinator::View;

/// Namespace and name.
pub type JobKey = (String, String);

/// What a job's coordinator published last.
#[derive(Clone, PartialEq, Debug, Default)]
struct Run {
    step: Option<u64>,
    loss: Option<f64>,
    skipped_steps: Option<u64>,
    loss_scale: Option<u64>,
    observed_ms: Option<f64>,
    predicted_ms: Option<f64>,
    members: usize,
    spares: usize,
    failing: bool,
}

/// One job.
#[derive(Clone, PartialEq, Debug, Default)]
struct Figures {
    status: Status,
    /// Steps of the whole run.
    steps: u64,
    pods: BTreeMap<&'static str, usize>,
    run: Option<Run>,
    goodput: Goodput,
    /// Step of the newest checkpoint, and when it was first seen.
    checkpoint: Option<(u64, SystemTime)>,
}

/// All jobs.
#[derive(Debug)]
pub struct Jobs {
    since: Instant,
    jobs: Mutex<BTreeMap<JobKey, Figures>>,
}

impl Default for Jobs {
    fn default() -> Jobs {
        Jobs {
            since: Instant::now(),
            jobs: Mutex::default(),
        }
    }
}

impl Jobs {
    /// Time since this was made: the clock of what is measured here.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.since.elapsed()
    }

    /// A job was reconciled: its status, the steps of its run, its pods by state.
    pub fn reconciled(&self, key: &JobKey, status: &Status, steps: u64, pods: BTreeMap<&'static str, usize>) {
        let mut jobs = self.jobs.lock();
        let job = jobs.entry(key.clone()).or_default();
        job.status = status.clone();
        job.steps = steps;
        job.pods = pods;
    }

    /// A job's coordinator published this view.
    pub fn observe(&self, key: &JobKey, view: &View, now: Duration) {
        let Some(snapshot) = &view.snapshot else { return };
        let mut jobs = self.jobs.lock();
        let job = jobs.entry(key.clone()).or_default();
        job.goodput.observe(now, snapshot.run.mode.is_training());
        let newest = view.checkpoints.as_ref().and_then(|s| s.newest);
        if let Some(newest) = newest.filter(|n| job.checkpoint.is_none_or(|(known, _)| known != n.0)) {
            job.checkpoint = Some((newest.0, SystemTime::now()));
        }
        // Losses are reported in order and a little after the step: show a loss with its own step, not with the newest.
        let metric = view.metric.as_ref().filter(|m| m.step <= snapshot.run.step);
        let attached = snapshot.workers.iter().filter(|w| w.up).count();
        job.run = Some(Run {
            step: metric
                .map(|m| m.step.0)
                .or((snapshot.run.generation.0 > 0).then_some(snapshot.run.step.0)),
            loss: metric.map(|m| m.loss),
            skipped_steps: metric.map(|m| m.skipped_steps),
            loss_scale: metric.and_then(|m| m.loss_scale),
            observed_ms: snapshot.run.observed_ms,
            predicted_ms: snapshot.run.predicted_ms,
            members: snapshot.run.members,
            spares: attached.saturating_sub(snapshot.run.members),
            failing: view.checkpoints.as_ref().is_some_and(|s| s.failing.is_some()),
        });
    }

    /// A job went back by a number of steps, each of which took `step_ms` milliseconds.
    pub fn lost(&self, key: &JobKey, steps: u64, step_ms: f64) {
        if let Some(job) = self.jobs.lock().get_mut(key) {
            #[expect(clippy::cast_precision_loss, reason = "steps are far below 2^52")]
            let time = steps as f64 * step_ms.max(0.0) / 1e3;
            job.goodput
                .lost(Duration::try_from_secs_f64(time).unwrap_or_default());
        }
    }

    /// A job's coordinator does not run in this process any more.
    pub fn run_ended(&self, key: &JobKey) {
        if let Some(job) = self.jobs.lock().get_mut(key) {
            job.run = None;
        }
    }

    /// Removes the figures of deleted jobs.
    pub fn retain(&self, exists: impl Fn(&str, &str) -> bool) {
        self.jobs
            .lock()
            .retain(|(namespace, name), _| exists(namespace, name));
    }

    fn all(&self) -> Vec<(JobKey, Figures)> {
        let jobs = self.jobs.lock();
        jobs.iter().map(|(k, f)| (k.clone(), f.clone())).collect()
    }
}

type Labels = Vec<(&'static str, String)>;

struct Writer<'a, 'e> {
    encoder: &'a mut DescriptorEncoder<'e>,
    jobs: &'a [(JobKey, Figures)],
}

/// Name, help and unit of a series.
struct Series(&'static str, &'static str, Option<Unit>);

impl Writer<'_, '_> {
    fn labels(key: &JobKey) -> Labels {
        vec![("namespace", key.0.clone()), ("job_name", key.1.clone())]
    }

    /// One gauge for each job that has it.
    fn gauge(&mut self, series: &Series, value: impl Fn(&Figures) -> Option<f64>) -> std::fmt::Result {
        self.gauges(series, |f| value(f).map(|v| (None, v)).into_iter().collect())
    }

    /// Gauges of each job, distinguished by a label.
    fn gauges(
        &mut self,
        Series(name, help, unit): &Series,
        values: impl Fn(&Figures) -> Vec<(Option<(&'static str, &'static str)>, f64)>,
    ) -> std::fmt::Result {
        let mut family = self
            .encoder
            .encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for (key, figures) in self.jobs {
            for (label, value) in values(figures) {
                let mut labels = Self::labels(key);
                labels.extend(label.map(|(name, value)| (name, value.to_owned())));
                ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn counter(
        &mut self,
        Series(name, help, unit): &Series,
        value: impl Fn(&Figures) -> Option<i64>,
    ) -> std::fmt::Result {
        let mut family = self
            .encoder
            .encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
        for (key, figures) in self.jobs {
            let value = value(figures).and_then(|v| u64::try_from(v).ok()).unwrap_or(0);
            ConstCounter::new(value).encode(family.encode_family(&Self::labels(key))?)?;
        }
        Ok(())
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "counts of steps and pods are far below 2^52"
)]
fn whole(n: impl TryInto<i64>) -> f64 {
    n.try_into().map_or(f64::NAN, |n: i64| n as f64)
}

/// Reads the figures at a scrape.
#[derive(Debug)]
pub(super) struct Scrape(pub(super) Arc<Jobs>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let jobs = self.0.all();
        let mut w = Writer {
            encoder: &mut encoder,
            jobs: &jobs,
        };
        progress(&mut w)?;
        workers(&mut w)?;
        checkpoints(&mut w)
    }
}

fn progress(w: &mut Writer<'_, '_>) -> std::fmt::Result {
    let step = |f: &Figures| match f.run.as_ref().and_then(|r| r.step) {
        Some(step) => Some(whole(step)),
        None => f.status.step.map(whole),
    };
    w.gauge(&Series("job_step", "Steps committed", None), step)?;
    w.gauge(&Series("job_steps", "Steps of the run", None), |f| {
        (f.steps > 0).then(|| whole(f.steps))
    })?;
    let loss = Series(
        "job_loss",
        "Training loss of the last step, in nats per token",
        None,
    );
    // Not the status's loss where a newer step is known: a leader that has taken over learns the step first, and the loss with
    // the next one.
    w.gauge(&loss, |f| match &f.run {
        Some(run) if run.step.is_some() => run.loss,
        _ => f.status.loss.as_ref()?.parse().ok(),
    })?;
    let run = |f: &Figures, figure: fn(&Run) -> Option<u64>| f.run.as_ref().and_then(figure).map(whole);
    let skipped = "Steps that the optimizer skipped because a gradient or the loss was not finite";
    w.gauge(&Series("job_skipped_steps", skipped, None), |f| {
        run(f, |r| r.skipped_steps)
    })?;
    let scale = "What the loss is multiplied by, where the job scales it";
    w.gauge(&Series("job_loss_scale", scale, None), |f| {
        run(f, |r| r.loss_scale)
    })?;
    let goodput = "Share of the time since the first step here in which steps were trained that stayed";
    w.gauge(
        &Series("job_goodput", goodput, Some(Unit::Other("ratio".into()))),
        |f| f.goodput.ratio(),
    )?;
    let step_time = Series("job_step_duration", "Time of a step", Some(Unit::Seconds));
    w.gauges(&step_time, |f| {
        let run = f.run.clone().unwrap_or_default();
        let kinds = [("observed", run.observed_ms), ("predicted", run.predicted_ms)];
        let some = kinds.into_iter().filter_map(|(kind, ms)| Some((kind, ms?)));
        some.map(|(kind, ms)| (Some(("kind", kind)), ms / 1e3)).collect()
    })?;
    w.gauges(
        &Series("job_phase", "1 for the phase that the job is in", None),
        |f| {
            let is = |phase| f.status.phase == Some(phase);
            let phases = JobPhase::ALL.iter();
            phases
                .map(|p| (Some(("phase", p.as_str())), f64::from(u8::from(is(*p)))))
                .collect()
        },
    )?;
    let lost = "Steps that had to be trained again because no worker held their state any more";
    w.counter(&Series("job_steps_lost", lost, None), |f| f.status.steps_lost)?;
    let changes = "Plans that came into force after the first";
    w.counter(&Series("job_reconfigurations", changes, None), |f| {
        f.status.reconfigurations
    })
}

fn workers(w: &mut Writer<'_, '_>) -> std::fmt::Result {
    let generation = Series("job_generation", "Number of the plan in force", None);
    w.gauge(&generation, |f| {
        f.status.plan.as_ref().map(|p| whole(p.generation))
    })?;
    let workers = Series(
        "job_workers",
        "Workers that are attached: in the plan, or spare",
        None,
    );
    w.gauges(&workers, |f| {
        let run = f.run.clone().unwrap_or_default();
        let by_state = [("member", run.members), ("spare", run.spares)];
        by_state
            .map(|(state, n)| (Some(("state", state)), whole(n as u64)))
            .to_vec()
    })?;
    w.gauges(&Series("job_pods", "Worker pods by state", None), |f| {
        let by_state = f.pods.iter();
        by_state
            .map(|(state, n)| (Some(("state", *state)), whole(*n as u64)))
            .collect()
    })
}

fn checkpoints(w: &mut Writer<'_, '_>) -> std::fmt::Result {
    let newest = Series("job_checkpoint_step", "Step of the newest checkpoint", None);
    w.gauge(&newest, |f| f.checkpoint.map(|(step, _)| whole(step)))?;
    let seen = "When the newest checkpoint was first seen, since 1970";
    let seen = Series("job_checkpoint_timestamp", seen, Some(Unit::Seconds));
    w.gauge(&seen, |f| {
        let (_, at) = f.checkpoint?;
        Some(at.duration_since(UNIX_EPOCH).ok()?.as_secs_f64())
    })?;
    let age = Series(
        "job_checkpoint_age",
        "Time since the newest checkpoint was first seen",
        Some(Unit::Seconds),
    );
    w.gauge(&age, |f| Some(f.checkpoint?.1.elapsed().ok()?.as_secs_f64()))?;
    let stale = Series(
        "job_checkpoint_stale",
        "1 while the condition CheckpointStale is true",
        None,
    );
    w.gauge(&stale, |f| {
        let found = f.status.condition(ConditionType::CheckpointStale)?;
        Some(f64::from(u8::from(found.status == "True")))
    })?;
    let failing = Series(
        "job_checkpoint_store_failing",
        "1 while the store does not answer",
        None,
    );
    w.gauge(&failing, |f| {
        f.run.as_ref().map(|r| f64::from(u8::from(r.failing)))
    })
}
