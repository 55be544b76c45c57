//! Muon (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024): a matrix's momentum is orthogonalised before it is
//! applied. As `torch.optim.Muon` with Nesterov's momentum and the scale `match_rms_adamw` (Liu et al., "Muon is scalable for LLM training", 2025).
//!
//! Every holder of a matrix computes the same update from the same gradient, so that it needs the same bits. On the processor they depend on nothing but the
//! numbers: the products are our own, all else is one rounding for each operation. On a GPU the products are libtorch's, in bfloat16 as in the
//! publication: their bits are those of that kind of GPU.

use super::optimizer::{Parameters, refuse_other_memory};
use super::{Kernels, Runner};
use crate::squares::sum_of_squares;
use crate::{TorchError, copy, vec_from_tensor};
use tch::{Kind, TchError, Tensor};
use varuna_cuda::{Kernel, ProductArguments};

/// The numbers of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MuonStep {
    /// Learning rate.
    pub rate: f64,
    /// What is kept of the mean gradient.
    pub momentum: f64,
    /// Decoupled weight decay.
    pub decay: f64,
    /// What the gradient is multiplied by first: it unscales and clips.
    pub factor: f64,
}

/// Of X, of X X' X and of X X' X X' X in each round of the Newton-Schulz iteration: few rounds bring all singular values near 1.
const COEFFICIENTS: [f64; 3] = [3.4445, -4.775, 2.0315];
const ROUNDS: usize = 5;
/// The least norm that a matrix is divided by.
const LEAST_NORM: f64 = 1e-7;
/// Root mean square of an update of `AdamW`, about.
const SCALE: f64 = 0.2;

impl Kernels {
    /// One step in place for a matrix of this shape, (rows, columns); second moments are not looked at.
    ///
    /// # Errors
    /// The tensors do not fit, or the device refuses.
    pub fn muon(self, of: &Parameters<'_>, shape: [i64; 2], step: MuonStep) -> Result<(), TorchError> {
        of.check("Muon")?;
        if shape.iter().any(|n| *n < 1)
            || shape[0].checked_mul(shape[1]) != i64::try_from(of.weight.numel()).ok()
        {
            let elements = of.weight.numel();
            return Err(TorchError(format!("Muon over {elements} elements as {shape:?}")));
        }
        if let Some(runner) = self.optimizer {
            refuse_other_memory(runner, of)?;
        }
        let _guard = tch::no_grad_guard();
        let update = momentum(of, step).map_err(refused)?.view(shape);
        let update = self.orthogonal(&update)?;
        apply(of, &update, shape, step).map_err(refused)?;
        of.copy.map_or(Ok(()), |to| copy(to, of.weight))
    }

    /// The matrix with all its singular values near 1.
    fn orthogonal(self, matrix: &Tensor) -> Result<Tensor, TorchError> {
        // The products of the smaller side are the smaller ones.
        let is_tall = matrix.size()[0] > matrix.size()[1];
        let wide = if is_tall {
            transposed(matrix)?
        } else {
            matrix.shallow_clone()
        };
        let found = match self.optimizer {
            Some(runner @ Runner::Host) => {
                let norm = sum_of_squares(&vec_from_tensor::<f32>(&wide)?).sqrt();
                let unit = wide.f_mul_scalar(1.0 / norm.max(LEAST_NORM)).map_err(refused)?;
                iterate(unit, |terms| own_product(runner, &terms))?
            }
            Some(Runner::Gpu { .. }) | None => {
                let kind = match wide.device() {
                    tch::Device::Cpu => Kind::Float,
                    _ => Kind::BFloat16,
                };
                iterate(of_norm_one(&wide, kind).map_err(refused)?, |terms| {
                    libtorchs_product(&terms).map_err(refused)
                })?
            }
        };
        let found = found.f_to_kind(Kind::Float).map_err(refused)?;
        if is_tall { transposed(&found) } else { Ok(found) }
    }
}

fn refused(error: TchError) -> TorchError {
    TorchError(error.to_string())
}

fn transposed(matrix: &Tensor) -> Result<Tensor, TorchError> {
    matrix
        .f_transpose(0, 1)
        .and_then(|t| t.f_contiguous())
        .map_err(refused)
}

fn of_norm_one(matrix: &Tensor, kind: Kind) -> Result<Tensor, TchError> {
    let narrow = matrix.f_to_kind(kind)?;
    narrow.f_div(&narrow.f_norm()?.f_clamp_min(LEAST_NORM)?)
}

/// Adds the gradient to the momentum; returns what is to be orthogonalised. Each operation rounds once.
fn momentum(of: &Parameters<'_>, step: MuonStep) -> Result<Tensor, TchError> {
    let gradient = of.gradient.f_mul_scalar(step.factor)?;
    let change = gradient.f_sub(of.first)?.f_mul_scalar(1.0 - step.momentum)?;
    let mut first = of.first.shallow_clone();
    let _ = first.f_add_(&change)?;
    // Nesterov's: as if the same gradient came once more.
    first
        .f_sub(&gradient)?
        .f_mul_scalar(step.momentum)?
        .f_add(&gradient)
}

fn apply(of: &Parameters<'_>, update: &Tensor, shape: [i64; 2], step: MuonStep) -> Result<(), TchError> {
    #[expect(clippy::cast_precision_loss, reason = "sides of matrices stay far below 2^53")]
    let scale = SCALE * (shape[0].max(shape[1]) as f64).sqrt();
    let mut weight = of.weight.shallow_clone();
    let _ = weight.f_mul_scalar_(1.0 - step.rate * step.decay)?;
    let _ = weight.f_sub_(&update.f_reshape([-1])?.f_mul_scalar(step.rate * scale)?)?;
    Ok(())
}

/// `of_product * left right + of_other * other`.
struct Terms<'a> {
    left: &'a Tensor,
    right: &'a Tensor,
    of_product: f64,
    other: Option<&'a Tensor>,
    of_other: f64,
}

/// The Newton-Schulz iteration from a wide matrix whose norm is 1 at most.
fn iterate(
    start: Tensor,
    sum: impl Fn(Terms<'_>) -> Result<Tensor, TorchError>,
) -> Result<Tensor, TorchError> {
    let [first, third, fifth] = COEFFICIENTS;
    let mut x = start;
    for _ in 0..ROUNDS {
        let squares = sum(Terms {
            left: &x,
            right: &transposed(&x)?,
            of_product: 1.0,
            other: None,
            of_other: 0.0,
        })?;
        let polynomial = sum(Terms {
            left: &squares,
            right: &squares,
            of_product: fifth,
            other: Some(&squares),
            of_other: third,
        })?;
        x = sum(Terms {
            left: &polynomial,
            right: &x,
            of_product: 1.0,
            other: Some(&x),
            of_other: first,
        })?;
    }
    Ok(x)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the kernel computes in single precision"
)]
fn own_product(runner: &'static Runner, terms: &Terms<'_>) -> Result<Tensor, TorchError> {
    let [left, right] = [terms.left, terms.right];
    let ([rows, inner], columns) = (sides(left), sides(right)[1]);
    let sum = Tensor::f_empty([rows, columns], (Kind::Float, left.device())).map_err(refused)?;
    let other = terms.other;
    let fits = sides(right)[0] == inner && other.is_none_or(|o| sides(o) == [rows, columns]);
    let singles = [left, right].into_iter().chain(other);
    let is_plain =
        |t: &Tensor| t.is_contiguous() && t.kind() == Kind::Float && t.device() == tch::Device::Cpu;
    if !fits || !singles.into_iter().all(is_plain) {
        return Err(TorchError(format!("a product of {left:?} and {right:?}")));
    }
    let arguments = ProductArguments {
        left: left.data_ptr().cast_const().cast(),
        right: right.data_ptr().cast_const().cast(),
        other: other.map_or(std::ptr::null(), |o| o.data_ptr().cast_const().cast()),
        sum: sum.data_ptr().cast(),
        rows,
        inner,
        columns,
        of_product: terms.of_product as f32,
        of_other: terms.of_other as f32,
    };
    let blocks = arguments.blocks();
    // SAFETY: matrices in single precision, each in one piece in the host's memory, of these sizes; the sum is new, and nobody else has it.
    unsafe { runner.run(Kernel::Product, blocks, (&raw const arguments).cast()) }?;
    Ok(sum)
}

fn sides(matrix: &Tensor) -> [i64; 2] {
    let size = matrix.size();
    [0, 1].map(|side| size.get(side).copied().unwrap_or(1))
}

fn libtorchs_product(terms: &Terms<'_>) -> Result<Tensor, TchError> {
    let product = terms.left.f_mm(terms.right)?.f_mul_scalar(terms.of_product)?;
    match terms.other {
        Some(other) => product.f_add(&other.f_mul_scalar(terms.of_other)?),
        None => Ok(product),
    }
}
