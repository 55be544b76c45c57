//! `varuna-worker profile`: what a model costs on this machine, measured with the engine and the transport that train.
//!
//! One process measures compute on a whole (if need be shortened) model, then links and rings with peers that it starts
//! itself. Its only output is one profile document on standard output. It must never train anything that lasts, read data,
//! or talk to a coordinator.

mod compute;
mod memory;
mod network;

use crate::ablation::Ablations;
use crate::backend::{Backend, Platform};
use crate::model::{attention_shape, score_memory};
use anyhow::{Context, Result, bail};
use compute::{Bench, Samples};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use varuna_api::{Job, parse_job};
use varuna_model::{Model, SegmentKind};
use varuna_plan::cost::Host;
use varuna_plan::profile::{Profile, ProfileRow, SegmentProfile, Source};
use varuna_torch::{Attention, AttentionChoice, Device, DeviceChoice};

/// Blocks of a model that are measured: identical ones beyond these take the median of the measured ones.
const LAYERS: u32 = 8;

/// Measures a job's model on this machine and prints a profile.
#[derive(clap::Args, Clone)]
pub struct Arguments {
    /// The job file; its data is not read.
    #[arg(long)]
    job: PathBuf,
    /// Worker processes for links and rings, 1 to 4.
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Samples in a micro-batch, ascending.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    micro_batch_sizes: Vec<u32>,
    /// Threads for tensor operations; the job file's or 1 by default.
    #[arg(long)]
    threads: Option<u32>,
    /// What to measure: cpu, cuda or cuda:N; auto is the first GPU, where there is one.
    #[arg(long, default_value = "cpu")]
    device: DeviceChoice,
    /// Steps of each micro-batch size that count; one more warms up.
    #[arg(long, default_value_t = 4)]
    repeats: u32,
}

/// What a peer of a measurement is started with.
#[derive(clap::Args)]
pub struct PeerArguments {
    #[command(flatten)]
    all: Arguments,
    /// Its place among the workers, from 1.
    #[arg(long)]
    place: usize,
}

impl Arguments {
    fn check(&self) -> Result<()> {
        let ascending = self.micro_batch_sizes.windows(2).all(|w| w[0] < w[1]);
        if !ascending || !(1..=4096).contains(self.micro_batch_sizes.first().unwrap_or(&0)) {
            bail!(
                "--micro-batch-sizes is {:?}, allowed are whole numbers from 1 to 4096, ascending",
                self.micro_batch_sizes
            );
        }
        if self.micro_batch_sizes.iter().any(|m| *m > 4096) {
            bail!(
                "--micro-batch-sizes is {:?}, allowed is 4096 at most",
                self.micro_batch_sizes
            );
        }
        if !(1..=4).contains(&self.workers) {
            bail!("--workers is {}, allowed are 1 to 4", self.workers);
        }
        if !(1..=1000).contains(&self.repeats) {
            bail!("--repeats is {}, allowed are 1 to 1000", self.repeats);
        }
        Ok(())
    }

    fn job(&self) -> Result<Job> {
        let text = std::fs::read_to_string(&self.job)
            .with_context(|| format!("cannot read the job file {}", self.job.display()))?;
        parse_job(&text).with_context(|| self.job.display().to_string())
    }

    fn threads(&self, job: &Job) -> u32 {
        self.threads.or(job.workers.threads).unwrap_or(1).max(1)
    }

    /// Whether the processor is measured, whose cores workers share.
    fn shares_cores(&self) -> bool {
        self.device == DeviceChoice::Cpu
    }

    fn bench(&self, job: &Job, platform: Platform) -> Result<Bench> {
        tch::set_num_threads(i32::try_from(self.threads(job)).unwrap_or(1));
        let model = Model {
            layers: job.model.layers.min(LAYERS),
            ..job.model.clone()
        };
        let device = (platform.device)(self.device).context("--device")?;
        let opened = Backend::open(platform, (device, 1), job.precision.into(), Ablations::NONE);
        let (backend, why) = opened.with_context(|| format!("cannot measure {device}"))?;
        if let Some(why) = why {
            tracing::warn!(%why, "libtorch's operators are measured instead of kernels of our own");
        }
        let shape = attention_shape(&model, job.training.packing, backend.numerics);
        let attention = Attention::settle(AttentionChoice::Auto, device, shape)?;
        Ok(Bench::new(model, &job.training, backend, attention)?)
    }
}

fn cores() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u32::try_from(cores).unwrap_or(u32::MAX)
}

/// Median, and the distance from the first to the third quartile.
fn middle(values: &[f64]) -> (f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |quarter: usize| sorted.get(sorted.len().saturating_sub(1) * quarter / 4);
    let at = |quarter| at(quarter).copied().unwrap_or(0.0);
    let half = sorted.len() / 2;
    let median = if sorted.len().is_multiple_of(2) && half > 0 {
        f64::midpoint(sorted[half - 1], sorted[half])
    } else {
        at(2)
    };
    (median, at(3) - at(1))
}

/// Measures and prints.
///
/// # Errors
/// Bad arguments or job file, libtorch refuses, a peer does not answer.
pub fn run(arguments: &Arguments, platform: Platform) -> Result<()> {
    arguments.check()?;
    let job = arguments.job()?;
    let mut bench = arguments.bench(&job, platform)?;
    let found = bench.measure(&arguments.micro_batch_sizes, arguments.repeats)?;
    // The allocator of a device counts all that it ever took; there the estimate stands.
    let memory = match bench.backend.device.is_host() {
        true => memory::measure(&bench)?,
        false => BTreeMap::new(),
    };
    tracing::info!(
        "measuring links and rings between {} processes",
        arguments.workers
    );
    let network = network::lead(arguments, &job, &mut bench)?;
    let device = device_name(bench.backend.device)?;
    let profile = assemble((arguments, device), &job, &bench, &found, &memory, network);
    let text = serde_json::to_string_pretty(&profile).context("cannot write the profile as JSON")?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").context("cannot print the profile")
}

/// Takes part in a measurement until the leader has ended.
///
/// # Errors
/// As [`run`].
pub fn peer(arguments: &PeerArguments, platform: Platform) -> Result<()> {
    arguments.all.check()?;
    let job = arguments.all.job()?;
    network::follow((&arguments.all, platform), &job, arguments.place)
}

/// Segments of the measured model by kind: segments that compute the same cost the same.
fn kinds(model: &Model) -> BTreeMap<SegmentKind, Vec<u32>> {
    let mut kinds: BTreeMap<SegmentKind, Vec<u32>> = BTreeMap::new();
    for segment in 0..model.layout().segments {
        kinds.entry(model.kind(segment)).or_default().push(segment);
    }
    kinds
}

/// The profile that the figures amount to.
fn assemble(
    (arguments, device): (&Arguments, String),
    job: &Job,
    bench: &Bench,
    found: &Samples,
    memory: &BTreeMap<u32, memory::Bytes>,
    network: network::Figures,
) -> Profile {
    let model = &job.model;
    let kinds = kinds(&bench.model);
    let mut estimate = varuna_api::unmeasured_costs(job);
    // Memory that is measured has them already, and who is planned with this profile is not asked.
    if let Some(scores) = score_memory(model, bench.attention, bench.backend.numerics) {
        estimate.add_scores(scores);
    }
    let sketch = Profile::of_costs(&estimate, String::new(), String::new());
    let segments = sketch.segments.into_iter().map(|sketch| {
        let same = kinds.get(&sketch.kind).map_or(&[][..], Vec::as_slice);
        let bytes = same
            .first()
            .and_then(|s| memory.get(s))
            .copied()
            .unwrap_or(memory::Bytes {
                saved: sketch.saved_bytes,
                working: sketch.working_bytes.unwrap_or(0),
            });
        let row = |m: &u32| -> ProfileRow {
            let all = |work| found.of(same, *m, work);
            let (forward_ms, forward_spread) = middle(&all(crate::engine::Work::Forward));
            let (backward_ms, backward_spread) = middle(&all(crate::engine::Work::Backward));
            let (recompute_ms, _) = middle(&all(crate::engine::Work::Recompute));
            ProfileRow {
                micro_batch_size: *m,
                forward_ms,
                backward_ms,
                recompute_ms: Some(recompute_ms),
                forward_spread_ms: Some(forward_spread),
                backward_spread_ms: Some(backward_spread),
            }
        };
        SegmentProfile {
            name: sketch.name,
            kind: sketch.kind,
            parameters: sketch.parameters,
            input_bytes: sketch.input_bytes,
            saved_bytes: bytes.saved,
            optimizer_ms: found.optimizer_ms(same),
            state_bytes: Some(sketch.parameters * estimate.parameter.resident),
            working_bytes: Some(bytes.working),
            chunked: sketch.chunked.map(|chunked| bench.of_device(chunked)),
            rows: arguments.micro_batch_sizes.iter().map(row).collect(),
        }
    });
    let threads = arguments.threads(job);
    Profile {
        version: varuna_plan::profile::VERSION,
        model: job.name.clone(),
        device,
        source: Source::Measured,
        runtime: varuna_plan::Runtime::Overlapped,
        element_bytes: estimate.device.element_bytes,
        parameter_bytes: Some(estimate.parameter),
        global_batch_size: None,
        tied_parameters: estimate.tied_parameters,
        segments: segments.collect(),
        links: network.links,
        rings: network.rings,
        host: arguments.shares_cores().then(|| Host {
            cores: cores(),
            threads,
            slowdown: network.slowdown,
        }),
        measured: Some(told(arguments, bench, model, threads)),
        calibration: None,
    }
}

/// The name of a device for people.
fn device_name(device: Device) -> Result<String> {
    match device {
        Device::Cuda(number) => Ok(varuna_torch::gpu(number)?.name),
        Device::Cpu | Device::Apart => Ok(device.to_string()),
    }
}

fn told(arguments: &Arguments, bench: &Bench, model: &Model, threads: u32) -> String {
    let (measured, attention) = (&bench.model, bench.attention);
    let shared = if measured.layers < model.layers {
        format!(
            "{} of {} blocks measured, the others take their median",
            measured.layers, model.layers
        )
    } else {
        "segments that compute the same share one median".to_owned()
    };
    let memory = match arguments.shares_cores() {
        true => "measured",
        false => "estimated",
    };
    format!(
        "engine steps on one stage, {threads} thread(s), random tokens; attention {attention}; memory {memory}; {} steps of each micro-batch size after one of warm-up, \
         by turns; {shared}; optimizer: with zeroing and norms; links and rings: {} processes over tcp on this machine",
        arguments.repeats, arguments.workers
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_model::gpt2;

    #[test]
    fn the_middle_is_the_median_and_the_distance_of_quartiles() {
        assert_eq!(middle(&[3.0, 1.0, 2.0, 100.0, 4.0]), (3.0, 2.0));
        assert_eq!(middle(&[1.0, 3.0]), (2.0, 0.0));
        assert_eq!(middle(&[]), (0.0, 0.0));
    }

    #[test]
    fn halves_of_blocks_are_two_kinds_and_the_ends_are_kinds_of_their_own() {
        let model = Model {
            layers: 3,
            hidden_size: 16,
            heads: 2,
            sequence_length: 8,
            vocabulary_size: 30,
            ..gpt2::SMALL
        };
        let groups: Vec<Vec<u32>> = kinds(&model).into_values().collect();
        assert_eq!(groups, [vec![0], vec![1, 3, 5], vec![2, 4, 6], vec![7]]);
    }
}
