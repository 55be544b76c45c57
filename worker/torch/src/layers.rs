//! Layers whose backward adds to gradients that are there already.

use crate::kernels::{Kernels, Launcher};
use crate::{Handle, TorchError, checked, handle};
use std::ffi::c_int;
use tch::Tensor;

unsafe extern "C" {
    fn vt_lookup(table: Handle, rows: Handle, out: *mut Handle) -> c_int;
    fn vt_head_loss(
        launcher: Option<&Launcher>,
        x: Handle,
        w: Handle,
        w_gradient: Handle,
        bias: Handle,
        bias_gradient: Handle,
        targets: Handle,
        weight: f64,
        sum: Handle,
        chunk: i64,
        cap: f64,
        scale: f64,
        x_gradient: *mut Handle,
    ) -> c_int;
    fn vt_rms_norm(x: Handle, weight: Handle, epsilon: f64, out: *mut Handle) -> c_int;
}

/// Rows of a table (v, d) by number. Its backward adds to the gradient's rows that were looked up and touches no others;
/// [`set_grad`](crate::set_grad) must have set that gradient.
///
/// # Errors
/// A row is out of range, or the table has no gradient.
pub fn lookup(table: &Tensor, rows: &Tensor) -> Result<Tensor, TorchError> {
    if !table.grad().defined() {
        return Err(TorchError("a lookup in a table without a gradient".into()));
    }
    let mut out: Handle = std::ptr::null_mut();
    // SAFETY: live handles, borrowed for the call.
    checked(unsafe { vt_lookup(handle(table), handle(rows), &raw mut out) })?;
    // SAFETY: the shim returned a new heap tensor that this Tensor now owns.
    Ok(unsafe { Tensor::from_ptr(out.cast()) })
}

/// `x` (.., width) by the root of the mean of its squares, times `weight`; and `x` for the connection around what comes after it.
/// [`set_grad`](crate::set_grad) must have set the weight's gradient, in single precision, which the backward adds to.
///
/// # Errors
/// The shapes or formats do not fit, or the weight has no gradient.
pub fn rms_norm(x: &Tensor, weight: &Tensor, epsilon: f64) -> Result<(Tensor, Tensor), TorchError> {
    let mut out: [Handle; 2] = [std::ptr::null_mut(); 2];
    // SAFETY: live handles, borrowed for the call, and place for two.
    checked(unsafe { vt_rms_norm(handle(x), handle(weight), epsilon, out.as_mut_ptr()) })?;
    // SAFETY: as in `lookup`.
    let [normed, around] = out.map(|t| unsafe { Tensor::from_ptr(t.cast()) });
    Ok((normed, around))
}

/// The table of a head.
pub struct HeadTable {
    /// (v, d), in the format that is computed in; more rows may follow, which must be zeros: they only fill products up.
    pub rows: Tensor,
    /// (v, d): gradients are added to it.
    pub gradient: Tensor,
    /// Whether all logits are made at once, as a comparison.
    pub whole: bool,
    /// Added to the logits.
    pub bias: Option<HeadBias>,
    /// Logits are bent to stay below this: `c tanh(x / c)`.
    pub cap: Option<f64>,
    /// Whose code computes the loss. With a kernel of our own a target that is no row of the table is not refused: the sum is then not a number.
    pub kernels: Kernels,
}

/// What is added to a head's logits.
pub struct HeadBias {
    /// (v), in the format that is computed in.
    pub rows: Tensor,
    /// (v): gradients are added to it.
    pub gradient: Tensor,
}

/// The target of a row that takes no part in the loss, as in PyTorch's `cross_entropy`.
pub const NO_TARGET: i64 = -100;

/// The loss of a head over its vocabulary. The logits (n, v) never exist as a whole: a chunk of rows at a time, whose gradients are made
/// in the same pass.
#[derive(Clone, Copy)]
pub struct HeadLoss<'a> {
    /// Rows of the table that are right, (n) integers, or [`NO_TARGET`].
    pub targets: &'a Tensor,
    /// Weight of a row's loss in the sum.
    pub weight: f64,
    /// A scalar in double precision, to which the weighted cross-entropies (nats) are added: nothing waits for its value.
    pub sum: &'a Tensor,
}

/// Bytes of a chunk's logits in single precision, about, in the host's memory.
const CHUNK_BYTES_HOST: i64 = 64 << 20;
/// On a GPU more: each chunk reads and writes the whole gradient of the table, which would take longer there than the products.
const CHUNK_BYTES_GPU: i64 = 512 << 20;
/// A chunk has at least so many rows, however large the vocabulary: products of fewer rows are slow.
const CHUNK_ROWS_MIN: i64 = 128;

impl HeadLoss<'_> {
    /// Adds the losses of rows `x` (n, d) under the table.
    ///
    /// # Errors
    /// The shapes do not fit, or a target is not a row of the table.
    pub fn add(&self, x: &Tensor, table: &HeadTable) -> Result<(), TorchError> {
        self.call(x, table, rows_at_once(table), 1.0, std::ptr::null_mut())
    }

    /// The same; adds `scale` times the gradient of the losses to those of the table and the bias, and returns `scale` times that of `x`, in the shape and
    /// the format of `x`.
    ///
    /// # Errors
    /// As [`HeadLoss::add`].
    pub fn add_with_gradients(
        &self,
        x: &Tensor,
        table: &HeadTable,
        scale: f64,
    ) -> Result<Tensor, TorchError> {
        self.gradients(x, table, rows_at_once(table), scale)
    }

    fn gradients(&self, x: &Tensor, table: &HeadTable, chunk: i64, scale: f64) -> Result<Tensor, TorchError> {
        let mut out: Handle = std::ptr::null_mut();
        self.call(x, table, chunk, scale, &raw mut out)?;
        // SAFETY: as in `lookup`.
        let gradient = unsafe { Tensor::from_ptr(out.cast()) };
        gradient.f_view_as(x).map_err(|e| TorchError(e.to_string()))
    }

    /// Gradients are computed where there is a place for that of `x`.
    fn call(
        &self,
        x: &Tensor,
        table: &HeadTable,
        chunk: i64,
        scale: f64,
        out: *mut Handle,
    ) -> Result<(), TorchError> {
        let [w, gradient, rows] = [&table.rows, &table.gradient, x].map(Tensor::size);
        let width = rows.last().copied().unwrap_or(0);
        let targets = self.targets.reshape([-1]);
        let count = targets.size1().unwrap_or(0);
        let fits =
            matches!((&w[..], &gradient[..]), ([all, a], [own, b]) if all >= own && [*a, *b] == [width; 2]);
        if !fits || i64::try_from(x.numel()) != Ok(count * width) {
            return Err(TorchError(format!(
                "a head's loss of {rows:?} under a table of {w:?} with a gradient of {gradient:?} and {count} targets"
            )));
        }
        let x = x.reshape([-1, width]);
        let bias = table.bias.as_ref();
        if let Some(bias) = bias.filter(|b| [&b.rows, &b.gradient].map(Tensor::size) != [[gradient[0]]; 2]) {
            let (sizes, count) = ([&bias.rows, &bias.gradient].map(Tensor::size), gradient[0]);
            return Err(TorchError(format!(
                "a head's bias and its gradient of {sizes:?} for {count} logits"
            )));
        }
        let null = std::ptr::null_mut();
        let [bias, bias_gradient] = bias.map_or([null; 2], |b| [&b.rows, &b.gradient].map(handle));
        // SAFETY: live handles, borrowed for the call (a null bias is none); `out` is null or has place for a handle.
        checked(unsafe {
            vt_head_loss(
                table.kernels.loss(),
                handle(&x),
                handle(&table.rows),
                handle(&table.gradient),
                bias,
                bias_gradient,
                handle(&targets),
                self.weight,
                handle(self.sum),
                chunk,
                table.cap.unwrap_or(0.0),
                scale,
                out,
            )
        })
    }
}

/// Rows whose logits are made at once.
fn rows_at_once(table: &HeadTable) -> i64 {
    match table.whole {
        true => i64::MAX,
        // They are there once, in the format that is computed in, under a cap too.
        false if table.kernels.loss().is_some() => {
            let bytes = i64::try_from(table.rows.kind().elt_size_in_bytes()).unwrap_or(1);
            chunk_rows(&table.rows) * 2 * 4 / bytes.max(1)
        }
        // Logits under a cap stay beside what is made of them: three of a kind instead of two.
        false if table.cap.is_some() => (chunk_rows(&table.rows) * 2 / 3).max(1),
        false => chunk_rows(&table.rows),
    }
}

/// Rows of a chunk for a table (v, d).
fn chunk_rows(table: &Tensor) -> i64 {
    let bytes = match table.device() {
        tch::Device::Cpu => CHUNK_BYTES_HOST,
        _ => CHUNK_BYTES_GPU,
    };
    let vocabulary = table.size().first().copied().unwrap_or(1);
    (bytes / 4 / vocabulary.max(1)).max(CHUNK_ROWS_MIN)
}

#[cfg(test)]
mod tests;
