//! Linear layers: products are libtorch's, the sums for a bias and GELU are kernels of our own.

use super::{Kernels, Launcher};
use crate::{Handle, TorchError, checked, handle};
use std::ffi::c_int;
use tch::Tensor;

unsafe extern "C" {
    fn vt_linear(launcher: Option<&Launcher>, x: Handle, w: Handle, b: Handle, out: *mut Handle) -> c_int;
    fn vt_bias_gelu(launcher: &Launcher, x: Handle, bias: Handle, out: *mut Handle) -> c_int;
}

impl Kernels {
    /// `x w' + b`. Its backward adds to the gradients of `w` and `b`, which [`set_grad`](crate::set_grad) must have set, that of `w` within the matrix
    /// product: nothing of the weight's size is made anew and added in a second pass.
    ///
    /// # Errors
    /// The shapes do not fit, or a parameter has no gradient.
    pub fn linear(self, x: &Tensor, w: &Tensor, b: Option<&Tensor>) -> Result<Tensor, TorchError> {
        if !w.grad().defined() || b.is_some_and(|b| !b.grad().defined()) {
            return Err(TorchError(
                "a linear layer over parameters without gradients".into(),
            ));
        }
        let mut out: Handle = std::ptr::null_mut();
        let bias = b.map_or(std::ptr::null_mut(), handle);
        // SAFETY: live handles, borrowed for the call; the shim takes a null bias for none, and the launcher is never freed.
        checked(unsafe { vt_linear(self.bias, handle(x), handle(w), bias, &raw mut out) })?;
        // SAFETY: the shim returned a new heap tensor that this Tensor now owns.
        Ok(unsafe { Tensor::from_ptr(out.cast()) })
    }

    /// `gelu(x w' + b)` in the form with the tangent, of `x` (.., inputs). The parameters have gradients as for [`Kernels::linear`].
    ///
    /// # Errors
    /// As [`Kernels::linear`].
    pub fn linear_gelu(self, x: &Tensor, w: &Tensor, b: Option<&Tensor>) -> Result<Tensor, TorchError> {
        let (Some(launcher), Some(b)) = (self.gelu, b) else {
            let y = self.linear(x, w, b)?.f_gelu("tanh");
            return y.map_err(|e| TorchError(e.to_string()));
        };
        let product = self.linear(x, w, None)?;
        let mut out: Handle = std::ptr::null_mut();
        // SAFETY: as in `linear`.
        checked(unsafe { vt_bias_gelu(launcher, handle(&product), handle(b), &raw mut out) })?;
        // SAFETY: as in `linear`.
        Ok(unsafe { Tensor::from_ptr(out.cast()) })
    }
}
