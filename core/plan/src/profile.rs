//! Profiles: the measured or estimated costs of segments and links, as a document (`docs/reference/profile-format.md` has the format).
//!
//! Reading is strict: a missing, negative, non-numeric or unknown value is an error that names the file and the field.

mod error;
mod read;

pub use error::ProfileError;

use crate::cost::{
    Calibration, Chunked, Costs, Device, Host, ParameterBytes, Runtime, SegmentCost, SegmentKind,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The version that is written.
pub const VERSION: u64 = 1;

/// Where the figures come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// Measured on the device.
    Measured,
    /// Computed from operations, bytes and a device table.
    Estimated,
}

/// One segment at one micro-batch size; medians, milliseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProfileRow {
    /// Samples in a micro-batch.
    pub micro_batch_size: u32,
    /// Time of a forward.
    pub forward_ms: f64,
    /// Time of a backward, without recompute.
    pub backward_ms: f64,
    /// Time of a recomputed forward, if measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recompute_ms: Option<f64>,
    /// Interquartile range of the forward times, if measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forward_spread_ms: Option<f64>,
    /// Interquartile range of the backward times, if measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backward_spread_ms: Option<f64>,
}

/// The costs of one segment.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SegmentProfile {
    /// A name for people.
    pub name: String,
    /// What it computes. If a file does not say, the segment is a block.
    #[serde(default)]
    pub kind: SegmentKind,
    /// Its own parameters; a tied weight is in [`Profile::tied_parameters`].
    pub parameters: u64,
    /// Its input for one sample, bytes.
    pub input_bytes: u64,
    /// Bytes that autograd keeps of one sample's forward.
    pub saved_bytes: u64,
    /// Optimizer, once a step, milliseconds.
    pub optimizer_ms: f64,
    /// Weights, gradients and moments, bytes, where measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_bytes: Option<u64>,
    /// Peak bytes of a forward and backward of one sample beyond state and saved bytes, if measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_bytes: Option<u64>,
    /// The part of these that is used one chunk at a time: many samples need no more of it than one chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunked: Option<Chunked>,
    /// Rows in ascending order of the micro-batch size; at least one.
    pub rows: Vec<ProfileRow>,
}

/// The time of one message between two workers.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LinkRow {
    /// Size of the message, bytes.
    pub bytes: u64,
    /// Time of the message, milliseconds.
    pub ms: f64,
}

/// The time of one ring all-reduce among workers that do nothing else.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RingRow {
    /// Workers in the ring, at least 2.
    pub holders: u32,
    /// Size of the summed buffer, bytes.
    pub bytes: u64,
    /// Time of the all-reduce, milliseconds.
    pub ms: f64,
}

/// A model on a kind of device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Profile {
    /// [`VERSION`].
    pub version: u64,
    /// Name of the model, for information.
    pub model: String,
    /// Name of the device, for information.
    pub device: String,
    /// Whether the costs were measured or estimated.
    pub source: Source,
    /// How tensors move in the runtime that it was made for.
    pub runtime: Runtime,
    /// Bytes of an element of an activation, or of its gradient, on the wire.
    pub element_bytes: u64,
    /// Memory per parameter. If omitted, a gradient has elements of `elementBytes`, and the rest is as in single precision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameter_bytes: Option<ParameterBytes>,
    /// Samples in a step of the runs that the profile belongs to, if known.
    pub global_batch_size: Option<u64>,
    /// Parameters of the weight that first and last segment share, or 0.
    pub tied_parameters: u64,
    /// The segments in order; at least one.
    pub segments: Vec<SegmentProfile>,
    /// Messages between two workers by size, ascending; at least one. The first gives the latency, the last the bandwidth.
    pub links: Vec<LinkRow>,
    /// Rings, if measured, by holders, then by size. They give the bandwidth of gradients, which otherwise comes from `links`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rings: Vec<RingRow>,
    /// Where workers of one node share its processor cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
    /// How it was measured, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<String>,
    /// Factors that make the times agree with measured steps, once calibrated.
    pub calibration: Option<Calibration>,
}

impl Profile {
    /// Reads a profile. `links` is the name and the text of a table `bytes,us` that replaces the file's links.
    ///
    /// # Errors
    /// The first problem found, with `file` and the field.
    pub fn read(file: &str, text: &str, links: Option<(&str, &str)>) -> Result<Profile, ProfileError> {
        let mut value = error::parse(file, text)?;
        let check = error::Checker { file };
        let links = links
            .map(|(file, text)| read::link_table(file, text))
            .transpose()?;
        if let Value::Object(fields) = &mut value {
            // For people.
            fields.remove("units");
            if let Some(links) = links {
                let rows = links.iter().map(|l| json!({"bytes": l.bytes, "ms": l.ms}));
                fields.insert("links".into(), rows.collect());
            }
        }
        let profile: Profile = error::deserialize(file, &value)?;
        read::validate(&profile, &check)?;
        Ok(profile)
    }

    /// The profile that corresponds to an estimate.
    #[must_use]
    pub fn of_costs(costs: &Costs, model: String, device: String) -> Profile {
        let segment = |(i, s): (usize, &SegmentCost)| SegmentProfile {
            name: match s.kind {
                SegmentKind::Embedding => "embedding".into(),
                SegmentKind::Head => "head".into(),
                SegmentKind::Attention => format!("attention {}", i.div_ceil(2)),
                SegmentKind::Mlp => format!("mlp {}", i / 2),
                SegmentKind::Block => format!("block {i}"),
            },
            kind: s.kind,
            parameters: s.parameters,
            input_bytes: s.input_bytes,
            saved_bytes: s.saved_bytes,
            optimizer_ms: s.optimizer_ms,
            state_bytes: None,
            working_bytes: Some(s.working(1)),
            chunked: (s.chunked != Chunked::default()).then_some(s.chunked),
            rows: [1u32, 4]
                .map(|m| ProfileRow {
                    micro_batch_size: m,
                    forward_ms: s.forward_fixed_ms + s.forward_ms * f64::from(m),
                    backward_ms: s.backward_fixed_ms + s.backward_ms * f64::from(m),
                    recompute_ms: None,
                    forward_spread_ms: None,
                    backward_spread_ms: None,
                })
                .to_vec(),
        };
        let link = |bytes: u32| LinkRow {
            bytes: u64::from(bytes),
            ms: costs.device.latency_ms + f64::from(bytes) / costs.device.bytes_per_s * 1e3,
        };
        Profile {
            version: VERSION,
            model,
            device,
            source: Source::Estimated,
            runtime: costs.runtime,
            element_bytes: costs.device.element_bytes,
            parameter_bytes: Some(costs.parameter),
            global_batch_size: None,
            tied_parameters: costs.tied_parameters,
            segments: costs.segments.iter().enumerate().map(segment).collect(),
            links: vec![link(1), link(1 << 30)],
            rings: Vec::new(),
            host: costs.host.clone(),
            measured: None,
            calibration: costs.calibrated.then_some(costs.calibration),
        }
    }

    /// The costs that the planner needs: for each segment a straight line through its rows (least squares; a negative fixed part counts as
    /// 0), and for links latency and bandwidth.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "message sizes")]
    pub fn costs(&self) -> Costs {
        let segment = |s: &SegmentProfile| {
            let chunked = s.chunked.unwrap_or_default();
            let (forward_fixed_ms, forward_ms) = line(&s.rows, |r| r.forward_ms);
            let (backward_fixed_ms, backward_ms) = line(&s.rows, |r| r.backward_ms);
            SegmentCost {
                kind: s.kind,
                forward_ms,
                backward_ms,
                forward_fixed_ms,
                backward_fixed_ms,
                parameters: s.parameters,
                saved_bytes: s.saved_bytes,
                working_bytes: s.working_bytes.unwrap_or(0).saturating_sub(chunked.of(1)),
                // The measured value is the larger of both.
                forward_bytes: s.working_bytes.unwrap_or(0).saturating_sub(chunked.of(1)),
                chunked,
                input_bytes: s.input_bytes,
                optimizer_ms: s.optimizer_ms,
            }
        };
        let ends = self.links.first().zip(self.links.last());
        let (latency_ms, ms_per_byte) = ends.map_or((0.0, 0.0), |(small, large)| {
            let latency = if self.links.len() > 1 { small.ms } else { 0.0 };
            (latency, large.ms / large.bytes.max(1) as f64)
        });
        Costs {
            segments: self.segments.iter().map(segment).collect(),
            tied_parameters: self.tied_parameters,
            parameter: self.parameter_bytes.unwrap_or(ParameterBytes {
                gradient: self.element_bytes,
                ..ParameterBytes::FP32
            }),
            device: Device {
                // Only an estimate uses these two and `logits_bytes_max`.
                flops_per_s: 0.0,
                overhead_ms: 0.0,
                latency_ms,
                bytes_per_s: 1e3 / ms_per_byte.max(1e-12),
                element_bytes: self.element_bytes,
                logits_bytes_max: Device::GPU_LOGITS,
            },
            calibrated: self.calibration.is_some(),
            runtime: self.runtime,
            calibration: self.calibration.unwrap_or_default(),
            packing_bytes: 0,
            mask_bytes: 0,
            ring_bytes_per_s: self.ring_bytes_per_s(latency_ms),
            host: self.host.clone(),
        }
    }

    /// The bandwidth at which rings send, from the median of the rows. A ring takes `2 (D - 1)` latencies and sends `2 (D - 1) / D` times
    /// the bytes. If more workers than cores took part, they took turns, which slows the host and not the ring, so that factor is divided
    /// out.
    #[expect(clippy::cast_precision_loss, reason = "message sizes")]
    fn ring_bytes_per_s(&self, latency_ms: f64) -> Option<f64> {
        let largest = self.rings.iter().map(|r| r.bytes).max()?;
        let of = |r: &RingRow| {
            let rounds = 2.0 * f64::from(r.holders - 1);
            let sent = rounds / f64::from(r.holders) * r.bytes as f64;
            let turns = self.host.as_ref().map_or(1.0, |h| h.turns(r.holders));
            let ms = r.ms / turns - rounds * latency_ms;
            (ms > 0.0).then_some(sent / ms * 1e3)
        };
        // Small messages tell more about latency than about bandwidth.
        let mut found: Vec<f64> = self
            .rings
            .iter()
            .filter(|r| r.bytes >= largest / 8)
            .filter_map(of)
            .collect();
        found.sort_by(f64::total_cmp);
        found.get(found.len() / 2).copied()
    }

    /// Whether a profile that this project measured has these parameters in its segments.
    ///
    /// # Errors
    /// The first difference, as a sentence that names the field.
    pub fn check_parameters(&self, parameters: &[u64], tied: u64) -> Result<(), String> {
        // Published tables count a few vectors differently, and estimates belong to no job.
        if self.measured.is_none() {
            return Ok(());
        }
        if self.tied_parameters != tied {
            return Err(format!(
                "tiedParameters is {}, the job's model has {tied}",
                self.tied_parameters
            ));
        }
        for (i, (segment, wanted)) in self.segments.iter().zip(parameters).enumerate() {
            if segment.parameters != *wanted {
                return Err(format!(
                    "segments[{i}].parameters is {}, the job's model has {wanted} there",
                    segment.parameters
                ));
            }
        }
        Ok(())
    }
}

/// The straight line through the rows: (time at 0 samples, time per sample).
#[expect(clippy::cast_precision_loss, reason = "a handful of rows")]
fn line(rows: &[ProfileRow], of: fn(&ProfileRow) -> f64) -> (f64, f64) {
    let n = rows.len().max(1) as f64;
    let mean = |value: &dyn Fn(&ProfileRow) -> f64| rows.iter().map(value).sum::<f64>() / n;
    let (x, y) = (mean(&|r| f64::from(r.micro_batch_size)), mean(&of));
    let spread = mean(&|r| (f64::from(r.micro_batch_size) - x).powi(2));
    let slope = if spread > 0.0 {
        mean(&|r| (f64::from(r.micro_batch_size) - x) * (of(r) - y)) / spread
    } else {
        y / x.max(1.0)
    };
    let fixed = y - slope * x;
    // The time may not grow with the samples at all: the norm before the head comes close to that.
    if fixed > 0.0 && slope >= 0.0 {
        (fixed, slope)
    } else {
        // Through the origin: the rows do not show the cost of small sizes.
        (0.0, y / x.max(1.0))
    }
}

#[cfg(test)]
mod tests;
