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
use crate::model::{Module, attention_shape, score_memory};
use crate::processors;
use anyhow::{Context, Result, bail};
use compute::{Bench, Samples};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use varuna_api::{Job, parse_job};
use varuna_model::{ExportedSegment, Model, SegmentKind, Transformer};
use varuna_plan::cost::Host;
use varuna_plan::profile::{Profile, ProfileRow, SegmentProfile, Source};
use varuna_torch::{Attention, AttentionChoice, Device, DeviceChoice};

/// Blocks of a model that are measured: identical ones beyond these take the median of the measured ones.
const LAYERS: u32 = 8;

/// Measure a job's model on this machine, and print a profile.
#[derive(clap::Args, Clone)]
pub struct Arguments {
    /// The job file. Its dataset is not read.
    #[arg(long)]
    job: PathBuf,
    /// Number of worker processes for the measurement of links and rings, 1 to 4.
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Micro-batch sizes to measure, in samples, in ascending order.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    micro_batch_sizes: Vec<u32>,
    /// Number of threads for tensor operations [default: the job file's, or 1].
    #[arg(long)]
    threads: Option<u32>,
    /// Device to measure: cpu, cuda, cuda:N or auto. auto is the first GPU if there is one, otherwise the CPU.
    #[arg(long, default_value = "cpu")]
    device: DeviceChoice,
    /// Number of measured steps for each micro-batch size. One more step is a warm-up.
    #[arg(long, default_value_t = 4)]
    repeats: u32,
}

/// What a peer of a measurement is started with.
#[derive(clap::Args)]
pub struct PeerArguments {
    #[command(flatten)]
    all: Arguments,
    /// Position among the workers, from 1.
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

    /// With the device that was opened: where `auto` found no GPU, the processor is measured as if it were asked for, by the peers too.
    fn settled(&self, opened: Device) -> Arguments {
        let device = match self.device {
            DeviceChoice::Auto if opened.is_host() => DeviceChoice::Cpu,
            named => named,
        };
        Arguments {
            device,
            ..self.clone()
        }
    }

    /// Whether the processor is measured, whose cores workers share.
    fn shares_cores(&self) -> bool {
        self.device == DeviceChoice::Cpu
    }

    fn bench(&self, job: &Job, platform: Platform) -> Result<Bench> {
        tch::set_num_threads(i32::try_from(self.threads(job)).unwrap_or(1));
        let device = (platform.device)(self.device).context("--device")?;
        let model = match &job.model {
            Model::Transformer(model) => Module::from(Transformer {
                layers: model.layers.min(LAYERS),
                ..model.clone()
            }),
            exported @ Model::Exported(_) => Module::open(exported, device)?,
        };
        let opened = Backend::open(platform, (device, 1), job.precision.into(), Ablations::NONE);
        let (backend, why) = opened.with_context(|| format!("cannot measure {device}"))?;
        if let Some(why) = why {
            tracing::warn!(%why, "libtorch's operators are measured instead of kernels of our own");
        }
        let attention = model.transformer().map(|model| {
            let shape = attention_shape(model, job.training.packing, backend.numerics);
            Attention::select(AttentionChoice::Auto, device, shape)
        });
        let attention = attention.transpose()?;
        Ok(Bench::new(model, &job.training, backend, attention)?)
    }
}

fn cores() -> u32 {
    u32::try_from(processors::available().get()).unwrap_or(u32::MAX)
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
    let arguments = &arguments.settled(bench.backend.device);
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

/// Segments of the measured model that compute the same as one of them, itself among them: they cost the same.
fn alike(model: &Module, segment: u32) -> Vec<u32> {
    let all = 0..model.layout().segments;
    match model {
        Module::Transformer(model) => all
            .filter(|other| model.kind(*other) == model.kind(segment))
            .collect(),
        Module::Exported(module) => {
            let description = module.description();
            let costs = |segment: u32| {
                let of = description.segments.get(segment as usize).cloned();
                let unnamed = of.map(|of| ExportedSegment {
                    name: String::new(),
                    // Of names, too.
                    parameters_digest: None,
                    ..of
                });
                (unnamed, description.input_elements(segment))
            };
            all.filter(|other| costs(*other) == costs(segment)).collect()
        }
    }
}

/// The measured segments that compute the same as a segment of the job's model, which may have more blocks.
fn measured(bench: &Bench, kind: SegmentKind, segment: u32) -> Vec<u32> {
    let Some(model) = bench.model.transformer() else {
        return alike(&bench.model, segment);
    };
    (0..model.layout().segments)
        .filter(|other| model.kind(*other) == kind)
        .collect()
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
    let mut estimate = varuna_api::unmeasured_costs(job);
    // Memory that is measured has them already, and who is planned with this profile is not asked.
    let attention = model.transformer().zip(bench.attention);
    let scores =
        attention.and_then(|(model, attention)| score_memory(model, attention, bench.backend.numerics));
    if let Some(scores) = scores {
        estimate.add_scores(scores);
    }
    let sketch = Profile::of_costs(&estimate, String::new(), String::new());
    let segments = (0..).zip(sketch.segments).map(|(segment, sketch)| {
        let same = &measured(bench, sketch.kind, segment);
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
        Device::Cpu | Device::CpuSeparateMemory => Ok(device.to_string()),
    }
}

fn told(arguments: &Arguments, bench: &Bench, model: &Model, threads: u32) -> String {
    let layers = [bench.model.transformer(), model.transformer()].map(|m| m.map_or(0, |m| m.layers));
    let shared = match layers {
        [measured, all] if measured < all => {
            format!("{measured} of {all} blocks measured, the others take their median")
        }
        _ => "segments that compute the same share one median".to_owned(),
    };
    let attention = bench
        .attention
        .map_or("none of ours".to_owned(), |a| a.to_string());
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
    fn auto_and_named_cpu_are_profiled_alike() {
        let auto = Arguments {
            job: PathBuf::new(),
            workers: 2,
            micro_batch_sizes: vec![1],
            threads: None,
            device: DeviceChoice::Auto,
            repeats: 1,
        };
        assert!(auto.settled(Device::Cpu).shares_cores());
        assert!(!auto.settled(Device::Cuda(0)).shares_cores());
        let named = Arguments {
            device: DeviceChoice::Cuda(0),
            ..auto
        };
        assert!(!named.settled(Device::CpuSeparateMemory).shares_cores());
    }

    #[test]
    fn the_middle_is_the_median_and_the_distance_of_quartiles() {
        assert_eq!(middle(&[3.0, 1.0, 2.0, 100.0, 4.0]), (3.0, 2.0));
        assert_eq!(middle(&[1.0, 3.0]), (2.0, 0.0));
        assert_eq!(middle(&[]), (0.0, 0.0));
    }

    #[test]
    fn halves_and_ends_are_separate_kinds() {
        let model = Transformer {
            layers: 3,
            hidden_size: 16,
            heads: 2,
            sequence_length: 8,
            vocabulary_size: 30,
            ..gpt2::SMALL
        };
        let model = Module::from(model);
        let groups = [0, 3, 2, 7].map(|segment| alike(&model, segment));
        assert_eq!(groups, [vec![0], vec![1, 3, 5], vec![2, 4, 6], vec![7]]);
    }
}
