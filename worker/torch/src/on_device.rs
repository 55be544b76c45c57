//! A tensor's memory, as operations between devices take it.

use crate::TorchError;
use std::ffi::c_void;
use tch::{Kind, Tensor};
use varuna_cuda::DeviceMemory;

/// A tensor whose memory an operation of another device reads or writes. Until the operation has let go of it, it is on the caller that
/// no tensor operation changes it, and none reads what is being written.
pub struct OnDevice {
    tensor: Tensor,
    bytes: usize,
}

impl OnDevice {
    /// Wraps a tensor's memory, which must be contiguous; the tensor stays usable.
    ///
    /// # Errors
    /// The tensor is not contiguous, or has elements of an unknown size.
    pub fn over(tensor: &Tensor) -> Result<OnDevice, TorchError> {
        if !tensor.is_contiguous() {
            let shape = tensor.size();
            return Err(TorchError(format!(
                "a tensor of shape {shape:?} that lies in pieces"
            )));
        }
        let element = match tensor.kind() {
            Kind::Float => 4,
            Kind::BFloat16 | Kind::Half => 2,
            Kind::Int64 => 8,
            other => {
                return Err(TorchError(format!(
                    "a tensor of {other:?}; Float, BFloat16, Half and Int64 are copied between devices"
                )));
            }
        };
        Ok(OnDevice {
            tensor: tensor.detach(),
            bytes: tensor.numel() * element,
        })
    }

    /// The tensor.
    pub fn into_tensor(self) -> Tensor {
        self.tensor
    }

    /// The tensor.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }
}

// SAFETY: the detached tensor shares the storage and keeps it alive; libtorch moves a storage only when it is resized, which nothing in
// this project does. The tensor lies in one piece, so the elements are `bytes` bytes from its first on.
unsafe impl DeviceMemory for OnDevice {
    fn pointer(&self) -> *mut c_void {
        self.tensor.data_ptr()
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_memory_is_in_the_tensor() {
        let tensor = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0]).view([2, 2]);
        let memory = OnDevice::over(&tensor).unwrap();
        assert_eq!(memory.bytes(), 16);
        // SAFETY: the memory of four floats, which no other code uses.
        unsafe { memory.pointer().cast::<f32>().write(7.0) };
        assert_eq!(tensor.double_value(&[0, 0]), 7.0);
        drop(tensor);
        assert_eq!(memory.into_tensor().double_value(&[1, 1]), 4.0);
        let pieces = Tensor::ones([2, 3], (Kind::Float, tch::Device::Cpu)).transpose(0, 1);
        let why = OnDevice::over(&pieces).err().unwrap().to_string();
        assert!(
            why.contains("a tensor of shape [3, 2] that lies in pieces"),
            "{why}"
        );
    }
}
