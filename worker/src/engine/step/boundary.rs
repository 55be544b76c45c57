//! Boundaries between stages: activations and their gradients, as tensors here and as packets on the link.

use super::super::EngineError;
use super::Run;
use crate::backend::Backend;
use crate::transport::{ElementFormat, Packet, Tag};
use std::time::Instant;
use tch::{Kind, Tensor};
use varuna_plan::WorkerId;
use varuna_torch::{Fetch, TorchError, tensor_from_vec, vec_from_tensor};

impl Run<'_> {
    pub(super) fn send(&mut self, to: WorkerId, tag: Tag, tensor: &Tensor) -> Result<(), EngineError> {
        self.exchange.send(to, tag, tensor)
    }

    /// Waits for the boundary before a segment, with this many samples.
    pub(super) fn receive(
        &mut self,
        from: WorkerId,
        tag: Tag,
        (segment, samples): (u32, usize),
    ) -> Result<Tensor, EngineError> {
        let start = Instant::now();
        let shape = self.config.model.input_shape(segment, samples);
        let received = self.exchange.receive(from, tag, &shape);
        self.timings.wait += start.elapsed();
        received
    }
}

/// libtorch's name of a format.
pub(super) fn kind_of(format: ElementFormat) -> Kind {
    match format {
        ElementFormat::Float32 => Kind::Float,
        ElementFormat::BFloat16 => Kind::BFloat16,
        ElementFormat::Float16 => Kind::Half,
    }
}

/// The elements of a tensor in the host's memory that has this format.
pub(super) fn packet_of(tensor: &Tensor, format: ElementFormat) -> Result<Packet, EngineError> {
    Ok(match format {
        ElementFormat::Float32 => Packet::Float32(vec_from_tensor(tensor)?),
        ElementFormat::BFloat16 => Packet::BFloat16(vec_from_tensor(tensor)?),
        ElementFormat::Float16 => Packet::Float16(vec_from_tensor(tensor)?),
    })
}

/// The same of one that is on its way from a device.
pub(super) fn fetched(fetch: Fetch, format: ElementFormat, deadline: Instant) -> Result<Packet, EngineError> {
    Ok(match format {
        ElementFormat::Float32 => Packet::Float32(fetch.finish(deadline, <[f32]>::to_vec)?),
        ElementFormat::BFloat16 => Packet::BFloat16(fetch.finish(deadline, <[u16]>::to_vec)?),
        ElementFormat::Float16 => Packet::Float16(fetch.finish(deadline, <[u16]>::to_vec)?),
    })
}

/// A packet's elements on the device: where that is the host's, in the packet's own memory.
pub(super) fn brought(packet: Packet, shape: &[i64], backend: &Backend) -> Result<Tensor, EngineError> {
    if backend.device.is_host() {
        return tensor_of(packet, shape);
    }
    let on = (kind_of(packet.format()), backend.device.tensors());
    let place = Tensor::f_empty(shape, on).map_err(|e| TorchError(e.to_string()))?;
    Ok(backend.streams.copy_to_device(packet.bytes(), place)?.arrive()?)
}

/// A tensor over a packet's memory.
fn tensor_of(packet: Packet, shape: &[i64]) -> Result<Tensor, EngineError> {
    Ok(match packet {
        Packet::Float32(values) => tensor_from_vec(values, Kind::Float, shape),
        Packet::BFloat16(bits) => tensor_from_vec(bits, Kind::BFloat16, shape),
        Packet::Float16(bits) => tensor_from_vec(bits, Kind::Half, shape),
    }?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_format_can_hold_survives_the_way_in_its_bytes() {
        // Halves of small numbers are exact in all formats. A transposed tensor is not contiguous.
        let x = (Tensor::arange(12, (Kind::Float, tch::Device::Cpu)) / 2.0).view([3, 4]);
        let x = x.transpose(0, 1);
        for format in ElementFormat::ALL {
            let packet = packet_of(&x.to_kind(kind_of(format)), format).unwrap();
            assert_eq!(packet.format(), format);
            assert_eq!(packet.bytes().len(), 12 * format.bytes() as usize);
            let back = tensor_of(packet, &[4, 3]).unwrap();
            assert_eq!(back.to_kind(Kind::Float), x, "{format}");
        }
    }
}
