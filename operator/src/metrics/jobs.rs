//! Figures of each job, read at each scrape. The figures of a deleted job are removed.

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::collections::BTreeMap;
use std::sync::Arc;
use varuna_api::crd::Status;
use varuna_api::{ConditionType, JobPhase};

/// Namespace and name.
pub type JobKey = (String, String);

/// One job: what series are made of, and not its whole status, which its object and its report hold already.
#[derive(Clone, PartialEq, Debug)]
struct Figures {
    phase: Option<JobPhase>,
    steps_lost: Option<i64>,
    reconfigurations: Option<i64>,
    /// Number of the plan in force.
    generation: Option<i64>,
    is_checkpoint_stale: Option<bool>,
    /// Steps of the whole run.
    steps: u64,
    pods: BTreeMap<&'static str, usize>,
}

impl Figures {
    fn new(status: &Status, steps: u64, pods: BTreeMap<&'static str, usize>) -> Figures {
        let stale = status.condition(ConditionType::CheckpointStale);
        Figures {
            phase: status.phase,
            steps_lost: status.steps_lost,
            reconfigurations: status.reconfigurations,
            generation: status.plan.as_ref().map(|plan| plan.generation),
            is_checkpoint_stale: stale.map(|condition| condition.status == "True"),
            steps,
            pods,
        }
    }
}

/// The figures of all jobs.
#[derive(Debug, Default)]
pub struct Jobs(Mutex<BTreeMap<JobKey, Figures>>);

impl Jobs {
    /// A job was reconciled: its status, the steps of its run, its pods by state.
    pub fn reconciled(&self, key: &JobKey, status: &Status, steps: u64, pods: BTreeMap<&'static str, usize>) {
        let figures = Figures::new(status, steps, pods);
        self.0.lock().insert(key.clone(), figures);
    }

    /// Removes the figures of deleted jobs.
    pub fn retain(&self, exists: impl Fn(&str, &str) -> bool) {
        self.0
            .lock()
            .retain(|(namespace, name), _| exists(namespace, name));
    }

    fn all(&self) -> Vec<(JobKey, Figures)> {
        let jobs = self.0.lock();
        jobs.iter().map(|(k, f)| (k.clone(), f.clone())).collect()
    }
}

type Labels = Vec<(&'static str, String)>;

struct Writer<'a, 'e> {
    encoder: &'a mut DescriptorEncoder<'e>,
    jobs: &'a [(JobKey, Figures)],
}

/// Name and help of a series.
struct Series(&'static str, &'static str);

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
        Series(name, help): &Series,
        values: impl Fn(&Figures) -> Vec<(Option<(&'static str, &'static str)>, f64)>,
    ) -> std::fmt::Result {
        let mut family = self
            .encoder
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
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
        Series(name, help): &Series,
        value: impl Fn(&Figures) -> Option<i64>,
    ) -> std::fmt::Result {
        let mut family = self
            .encoder
            .encode_descriptor(name, help, None, MetricType::Counter)?;
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
        pods(&mut w)?;
        checkpoints(&mut w)
    }
}

fn progress(w: &mut Writer<'_, '_>) -> std::fmt::Result {
    w.gauge(&Series("job_steps", "Steps of the run"), |f| {
        (f.steps > 0).then(|| whole(f.steps))
    })?;
    w.gauges(&Series("job_phase", "1 for the phase that the job is in"), |f| {
        let is = |phase| f.phase == Some(phase);
        let phases = JobPhase::ALL.iter();
        phases
            .map(|p| (Some(("phase", p.as_str())), f64::from(u8::from(is(*p)))))
            .collect()
    })?;
    let lost = "Steps that had to be trained again because no worker held their state any more";
    w.counter(&Series("job_steps_lost", lost), |f| f.steps_lost)?;
    let changes = "Plans that came into force after the first";
    w.counter(&Series("job_reconfigurations", changes), |f| f.reconfigurations)?;
    let generation = Series("job_generation", "Number of the plan in force");
    w.gauge(&generation, |f| f.generation.map(whole))
}

fn pods(w: &mut Writer<'_, '_>) -> std::fmt::Result {
    w.gauges(&Series("job_pods", "Worker pods by state"), |f| {
        let by_state = f.pods.iter();
        by_state
            .map(|(state, n)| (Some(("state", *state)), whole(*n as u64)))
            .collect()
    })
}

fn checkpoints(w: &mut Writer<'_, '_>) -> std::fmt::Result {
    let stale = Series(
        "job_checkpoint_stale",
        "1 while the condition CheckpointStale is true",
    );
    w.gauge(&stale, |f| {
        f.is_checkpoint_stale.map(|is| f64::from(u8::from(is)))
    })
}
