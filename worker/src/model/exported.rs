//! A user-defined model: its segments as TorchScript, from the folder that `varuna_export` has written (ADR 38).

mod manifest;

use super::dropout::Dropout;
use crate::read_failures::read_may_pass;
use crate::state::{UnitSpec, Units};
use manifest::Manifest;
pub use manifest::ManifestError;
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tch::{Kind, Tensor};
use varuna_api::sha256;
use varuna_model::{Exported, Layout, Parameter, ParameterKind, Unit};
use varuna_plan::state::mix;
use varuna_torch::{Call, Device, HeadLoss, ScriptModule, TorchError, backward};

const MANIFEST: &str = "manifest.json";
/// Most bytes of a manifest: a thousand segments of a thousand parameters are less.
const MANIFEST_BYTES_MAX: u64 = 256 << 20;

/// A folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ExportedError {
    /// A file does not exist or cannot be read.
    #[error("cannot read {file} of the model's folder (spec.model.exported.path): {why}")]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Error of the system.
        why: std::io::Error,
    },
    /// A file is too long to be what it should be.
    #[error("{file} has {bytes} bytes; at most {MANIFEST_BYTES_MAX} are allowed")]
    TooLong {
        /// The file.
        file: PathBuf,
        /// Number of bytes of the file.
        bytes: u64,
    },
    /// A file is another one than the job, or the manifest, names.
    #[error(
        "{file} has the SHA-256 {found}, and {named_by} names {expected}: the folder is of another export than is meant; that of a job has its model.yaml in the job file"
    )]
    OtherContent {
        /// The file.
        file: PathBuf,
        /// Digest of the file.
        found: String,
        /// The document that names another digest.
        named_by: &'static str,
        /// The digest in that document.
        expected: String,
    },
    /// The manifest describes no model that can be trained, or another one than the job.
    #[error("{file}: {why}")]
    Manifest {
        /// The manifest.
        file: PathBuf,
        /// What is wrong with it.
        why: ManifestError,
    },
    /// A file of initial values does not hold what the manifest says.
    #[error("{file}: {why}")]
    Values {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// libtorch cannot read a segment's code.
    #[error("{file}: {why}")]
    Code {
        /// The file.
        file: PathBuf,
        /// Error of libtorch.
        why: TorchError,
    },
}

impl ExportedError {
    /// Whether another try may succeed later, as where the file system of the folder is away.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, ExportedError::Unreadable { why, .. } if read_may_pass(why.kind()))
    }
}

/// The segments and the loss, ready to run.
pub struct ExportedModule {
    job: Exported,
    manifest: Manifest,
    /// Read when they are needed first: a worker needs those of its stages.
    segments: Vec<OnceLock<ScriptModule>>,
    loss: ScriptModule,
    device: Device,
}

impl ExportedModule {
    /// Opens the folder that a job names, for a device.
    ///
    /// # Errors
    /// The folder is not the one that the job means, or cannot be used.
    pub fn open(job: &Exported, device: Device) -> Result<ExportedModule, ExportedError> {
        let folder = Path::new(&job.path);
        let file = folder.join(MANIFEST);
        let bytes = read(&file, Some(MANIFEST_BYTES_MAX))?;
        expect_digest(&file, &bytes, &job.digest, "spec.model.exported.digest")?;
        let manifest = Manifest::read(&bytes, job).map_err(|why| ExportedError::Manifest { file, why })?;
        // A segment that is missing is told before training, not by the first plan that needs it.
        for segment in &manifest.segments {
            checked_file(folder, &manifest, &segment.code)?;
        }
        let (file, bytes) = checked_file(folder, &manifest, &manifest.loss.code)?;
        let loss = ScriptModule::load(&bytes, device, &[]);
        Ok(ExportedModule {
            segments: manifest.segments.iter().map(|_| OnceLock::new()).collect(),
            loss: loss.map_err(|why| ExportedError::Code { file, why })?,
            manifest,
            job: job.clone(),
            device,
        })
    }

    /// The code of a segment, which is read from the folder where that was not done before.
    fn segment(&self, segment: u32) -> Result<&ScriptModule, ExportedError> {
        let number = segment as usize;
        let folder = Path::new(&self.job.path);
        let unknown = || ExportedError::Code {
            file: folder.join(MANIFEST),
            why: TorchError(format!("the model has no segment {segment}")),
        };
        let place = self.segments.get(number).ok_or_else(unknown)?;
        if let Some(module) = place.get() {
            return Ok(module);
        }
        let code = &self.manifest.segments.get(number).ok_or_else(unknown)?.code;
        let (file, bytes) = checked_file(folder, &self.manifest, code)?;
        let module = ScriptModule::load(&bytes, self.device, &self.manifest.slots(number));
        let module = module.map_err(|why| ExportedError::Code { file, why })?;
        Ok(place.get_or_init(|| module))
    }

    /// Reads the code of a segment, so that its forward needs no file.
    ///
    /// # Errors
    /// The code cannot be read.
    pub(super) fn read_segment(&self, segment: u32) -> Result<(), ExportedError> {
        self.segment(segment)?;
        Ok(())
    }

    /// What the job says of it.
    #[must_use]
    pub fn description(&self) -> &Exported {
        &self.job
    }

    /// What a unit consists of. Each matrix is one to an optimizer that treats matrices as such: the first dimension by all others.
    pub(super) fn unit(&self, unit: Unit) -> UnitSpec {
        let is_shared = Some(unit) == self.layout().tied_unit();
        let parameters = self.manifest.parameters((!is_shared).then_some(unit.index()));
        let matrices = parameters.iter().filter(|p| p.kind == ParameterKind::Matrix);
        let sides = matrices.map(|p| {
            let rows = p.shape.first().copied().unwrap_or(1);
            [rows, p.elements() / rows.max(1)]
        });
        UnitSpec {
            matrices: sides.collect(),
            parameters,
        }
    }

    fn layout(&self) -> Layout {
        self.job.layout()
    }

    /// The initial values of all of a unit's parameters, one after the other.
    ///
    /// # Errors
    /// The values cannot be read, or differ from what the manifest says.
    pub(super) fn initial_values(&self, unit: Unit) -> Result<Vec<f32>, ExportedError> {
        let is_shared = Some(unit) == self.layout().tied_unit();
        let segment = self.manifest.segments.get(unit.index());
        let name = match is_shared {
            true => self.manifest.shared.values.as_ref(),
            false => segment.and_then(|s| s.values.as_ref()),
        };
        let parameters = self.unit(unit).parameters;
        let Some(name) = name else {
            let file = Path::new(&self.job.path).join(MANIFEST);
            let why = format!("it names no initial values for unit {unit}");
            return match parameters.is_empty() {
                true => Ok(Vec::new()),
                false => Err(ExportedError::Values { file, why }),
            };
        };
        let (file, bytes) = checked_file(Path::new(&self.job.path), &self.manifest, name)?;
        values(&bytes, &parameters).map_err(|why| ExportedError::Values { file, why })
    }

    /// The forward of a segment.
    pub(super) fn forward(
        &self,
        segment: u32,
        units: &impl Units,
        x: &Tensor,
        dropout: &Dropout<'_>,
    ) -> Result<Tensor, TorchError> {
        let module = self.segment(segment).map_err(|e| TorchError(e.to_string()))?;
        let mut parameters: Vec<&Tensor> = units.parameters_of(Unit(segment)).all().collect();
        let tied = self.layout().tied_unit();
        if let Some(tied) = tied.filter(|_| segment == 0 || segment + 1 == self.layout().segments) {
            parameters.extend(units.parameters_of(tied).all());
        }
        let call = Call {
            training: dropout.trains(),
            seed: self.seed(segment, dropout),
        };
        // Where a plan cuts, tensors arrive in their order: so they do everywhere.
        module.forward(&parameters, &[&ordered(x)?], call)
    }

    /// Adds the losses of samples to the sum; `loss.targets` are their rows (b, n + 1).
    pub(super) fn add_loss(&self, output: &Tensor, loss: &HeadLoss<'_>) -> Result<(), TorchError> {
        let each = self
            .loss
            .forward(&[], &[&ordered(output)?, loss.targets], Call::default())?;
        add(&each, loss)
    }

    /// The same; returns `scale` times the gradient of the loss by the output.
    pub(super) fn add_loss_with_gradients(
        &self,
        output: &Tensor,
        loss: &HeadLoss<'_>,
        scale: f64,
    ) -> Result<Tensor, TorchError> {
        let call = Call {
            training: true,
            seed: None,
        };
        let leaf = ordered(&output.detach())?.set_requires_grad(true);
        let each = self.loss.forward(&[], &[&leaf, loss.targets], call)?;
        add(&each.detach(), loss)?;
        let of_each = each.f_full_like(loss.weight * scale);
        backward(&[&each], &[&of_each.map_err(of_tch)?])?;
        Ok(leaf.grad())
    }

    /// Random operators draw what the job's seed, the step, the samples and the segment say, so that a forward can be run again.
    fn seed(&self, segment: u32, dropout: &Dropout<'_>) -> Option<u64> {
        let draws = self.job.plan_dependent && dropout.trains();
        draws.then(|| {
            let of = [dropout.step.0, u64::from(segment)];
            let all = of.iter().chain(dropout.samples);
            all.fold(dropout.seed, |hash, value| mix(hash, *value))
        })
    }
}

fn of_tch(error: tch::TchError) -> TorchError {
    TorchError(error.to_string())
}

/// The tensor with its elements in their order in memory.
fn ordered(tensor: &Tensor) -> Result<Tensor, TorchError> {
    tensor.f_contiguous().map_err(of_tch)
}

/// Adds the losses of samples (b), each with the weight of one among the batch's, to the sum.
fn add(each: &Tensor, loss: &HeadLoss<'_>) -> Result<(), TorchError> {
    let _guard = tch::no_grad_guard();
    let own = each
        .f_sum(Kind::Double)
        .and_then(|sum| sum.f_mul_scalar(loss.weight));
    let sum = own.and_then(|own| loss.sum.shallow_clone().f_add_(&own));
    sum.map(drop).map_err(of_tch)
}

/// A file of the folder whose content is what the manifest says.
fn checked_file(folder: &Path, manifest: &Manifest, name: &str) -> Result<(PathBuf, Vec<u8>), ExportedError> {
    let file = folder.join(name);
    let bytes = read(&file, None)?;
    expect_digest(&file, &bytes, manifest.digest(name).unwrap_or_default(), MANIFEST)?;
    Ok((file, bytes))
}

fn read(file: &Path, max: Option<u64>) -> Result<Vec<u8>, ExportedError> {
    let unreadable = |why| ExportedError::Unreadable {
        file: file.to_owned(),
        why,
    };
    let bytes = std::fs::metadata(file).map_err(unreadable)?.len();
    if max.is_some_and(|max| bytes > max) {
        let file = file.to_owned();
        return Err(ExportedError::TooLong { file, bytes });
    }
    std::fs::read(file).map_err(unreadable)
}

fn expect_digest(
    file: &Path,
    bytes: &[u8],
    expected: &str,
    named_by: &'static str,
) -> Result<(), ExportedError> {
    let found = sha256(bytes);
    if found == expected {
        return Ok(());
    }
    Err(ExportedError::OtherContent {
        file: file.to_owned(),
        found,
        named_by,
        expected: expected.to_owned(),
    })
}

/// The values of parameters in a safetensors file, one after the other. The error is a sentence.
fn values(bytes: &[u8], parameters: &[Parameter]) -> Result<Vec<f32>, String> {
    let file = SafeTensors::deserialize(bytes).map_err(|e| e.to_string())?;
    let mut values = Vec::new();
    for Parameter { name, shape, .. } in parameters {
        let tensor = file.tensor(name).map_err(|e| e.to_string())?;
        if (tensor.dtype(), tensor.shape()) != (Dtype::F32, shape.as_slice()) {
            let (dtype, found) = (tensor.dtype(), tensor.shape());
            return Err(format!("{name} is {dtype:?} {found:?}, needed F32 {shape:?}"));
        }
        let elements = tensor.data().chunks_exact(size_of::<f32>());
        values.extend(elements.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
    }
    Ok(values)
}
