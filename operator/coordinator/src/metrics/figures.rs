//! Figures of the run, read at each scrape.

use super::Goodput;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use varuna_coordinator::View;
use varuna_protocol::coordinator::SpareCopiesView;

/// What the coordinator published last.
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
    spare_copies: Option<SpareCopiesView>,
    failing: bool,
    goodput: Goodput,
    /// Step of the newest checkpoint, and when it was first seen.
    checkpoint: Option<(u64, SystemTime)>,
}

/// The figures of one run.
#[derive(Debug)]
pub struct Figures {
    namespace: String,
    job: String,
    run: Mutex<Run>,
}

impl Figures {
    pub(super) fn new(namespace: &str, job: &str) -> Figures {
        Figures {
            namespace: namespace.to_owned(),
            job: job.to_owned(),
            run: Mutex::default(),
        }
    }

    /// The coordinator published this view, at this time since its start.
    pub fn observe(&self, view: &View, now: Duration) {
        let Some(snapshot) = &view.snapshot else { return };
        let mut run = self.run.lock();
        run.goodput.observe(now, snapshot.run.mode.is_training());
        let newest = view.checkpoints.as_ref().and_then(|s| s.newest);
        if let Some(newest) = newest.filter(|n| run.checkpoint.is_none_or(|(known, _)| known != n.0)) {
            run.checkpoint = Some((newest.0, SystemTime::now()));
        }
        // Losses are reported in order and a little after the step: show a loss with its own step, not with the newest.
        let metric = view.metric.as_ref().filter(|m| m.step <= snapshot.run.step);
        let attached = snapshot.workers.iter().filter(|w| w.up).count();
        let known_step = (snapshot.run.generation.0 > 0).then_some(snapshot.run.step.0);
        run.step = metric.map(|m| m.step.0).or(known_step);
        run.loss = metric.map(|m| m.loss);
        run.skipped_steps = metric.map(|m| m.skipped_steps);
        run.loss_scale = metric.and_then(|m| m.loss_scale);
        run.observed_ms = snapshot.run.observed_ms;
        run.predicted_ms = snapshot.run.predicted_ms;
        run.members = snapshot.run.members;
        run.spares = attached.saturating_sub(snapshot.run.members);
        run.spare_copies = snapshot.run.spare_copies;
        run.failing = view.checkpoints.as_ref().is_some_and(|s| s.failing.is_some());
    }

    /// The run went back by a number of steps, each of which took `step_ms` milliseconds.
    pub fn lost(&self, steps: u64, step_ms: f64) {
        #[expect(clippy::cast_precision_loss, reason = "steps are far below 2^52")]
        let time = steps as f64 * step_ms.max(0.0) / 1e3;
        let time = Duration::try_from_secs_f64(time).unwrap_or_default();
        self.run.lock().goodput.lost(time);
    }
}

struct Writer<'a, 'e> {
    encoder: &'a mut DescriptorEncoder<'e>,
    figures: &'a Figures,
}

impl Writer<'_, '_> {
    /// A gauge, where it has a value.
    fn gauge(&mut self, name: &str, help: &str, unit: Option<&Unit>, value: Option<f64>) -> std::fmt::Result {
        let values = value.map(|v| (None, v));
        self.gauges(name, help, unit, values)
    }

    /// Gauges that are distinguished by a label.
    fn gauges(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        values: impl IntoIterator<Item = (Option<(&'static str, &'static str)>, f64)>,
    ) -> std::fmt::Result {
        let mut family = self
            .encoder
            .encode_descriptor(name, help, unit, MetricType::Gauge)?;
        for (label, value) in values {
            let mut labels = vec![
                ("namespace", self.figures.namespace.as_str()),
                ("job_name", self.figures.job.as_str()),
            ];
            labels.extend(label);
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn whole(n: u64) -> f64 {
    n as f64
}

/// Reads the figures at a scrape.
#[derive(Debug)]
pub(super) struct Scrape(pub(super) Arc<Figures>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let run = self.0.run.lock().clone();
        let mut w = Writer {
            encoder: &mut encoder,
            figures: &self.0,
        };
        progress(&mut w, &run)?;
        workers(&mut w, &run)?;
        spare_copies(&mut w, &run)?;
        checkpoints(&mut w, &run)
    }
}

fn progress(w: &mut Writer<'_, '_>, run: &Run) -> std::fmt::Result {
    w.gauge("job_step", "Steps committed", None, run.step.map(whole))?;
    w.gauge(
        "job_loss",
        "Training loss of the last step, in nats per token",
        None,
        run.loss,
    )?;
    let skipped = "Steps that the optimizer skipped because a gradient or the loss was not finite";
    w.gauge("job_skipped_steps", skipped, None, run.skipped_steps.map(whole))?;
    let scale = "What the loss is multiplied by, where the job scales it";
    w.gauge("job_loss_scale", scale, None, run.loss_scale.map(whole))?;
    let goodput = "Share of the time since the first step here in which steps were trained that stayed";
    let ratio = Unit::Other("ratio".into());
    w.gauge("job_goodput", goodput, Some(&ratio), run.goodput.ratio())?;
    let kinds = [("observed", run.observed_ms), ("predicted", run.predicted_ms)];
    let some = kinds.into_iter().filter_map(|(kind, ms)| Some((kind, ms?)));
    let times = some.map(|(kind, ms)| (Some(("kind", kind)), ms / 1e3));
    w.gauges("job_step_duration", "Time of a step", Some(&Unit::Seconds), times)
}

fn workers(w: &mut Writer<'_, '_>, run: &Run) -> std::fmt::Result {
    let by_state = [("member", run.members), ("spare", run.spares)];
    let by_state = by_state.map(|(state, n)| (Some(("state", state)), whole(n as u64)));
    let help = "Workers that are attached: in the plan, or spare";
    w.gauges("job_workers", help, None, by_state)
}

fn spare_copies(w: &mut Writer<'_, '_>, run: &Run) -> std::fmt::Result {
    let by_state = run.spare_copies.into_iter().flat_map(|view| {
        [
            ("in_step", view.in_step),
            ("behind", view.kept.saturating_sub(view.in_step)),
            ("none", view.units.saturating_sub(view.kept)),
        ]
    });
    let by_state = by_state.map(|(state, n)| (Some(("state", state)), whole(n as u64)));
    let help = "Units that one worker alone holds, by what is to be said of the keeper of their spare copy";
    w.gauges("job_spare_copy_keepers", help, None, by_state)
}

fn checkpoints(w: &mut Writer<'_, '_>, run: &Run) -> std::fmt::Result {
    let step = run.checkpoint.map(|(step, _)| whole(step));
    w.gauge("job_checkpoint_step", "Step of the newest checkpoint", None, step)?;
    let seen = |at: SystemTime| Some(at.duration_since(UNIX_EPOCH).ok()?.as_secs_f64());
    w.gauge(
        "job_checkpoint_timestamp",
        "When the newest checkpoint was first seen, since 1970",
        Some(&Unit::Seconds),
        run.checkpoint.and_then(|(_, at)| seen(at)),
    )?;
    let age = |at: SystemTime| Some(at.elapsed().ok()?.as_secs_f64());
    w.gauge(
        "job_checkpoint_age",
        "Time since the newest checkpoint was first seen",
        Some(&Unit::Seconds),
        run.checkpoint.and_then(|(_, at)| age(at)),
    )?;
    w.gauge(
        "job_checkpoint_store_failing",
        "1 while the store does not answer",
        None,
        Some(f64::from(u8::from(run.failing))),
    )
}
