//! Lacks of memory, as messages tell of them. libtorch's errors come as text, through tch and through its panics.

/// What messages say, and nothing else does: libtorch's allocator for GPUs, its checks of CUDA's calls, the driver, cuBLAS, cuDNN, and libtorch's
/// allocator for the host.
const SAY_SO: [&str; 6] = [
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: ",
];
/// What stands before the number of bytes that was asked for.
const ASKED: &str = "ried to allocate ";

/// What a message tells of a lack of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfMemory {
    /// Bytes that were asked for at once, as precisely as the message says.
    pub asked_bytes: Option<u64>,
}

/// What a message tells of a lack of memory; none if it is about something else. It may be quoted by another text, as by a panic.
#[must_use]
pub fn out_of_memory(message: &str) -> Option<OutOfMemory> {
    let says_so = SAY_SO.iter().any(|part| message.contains(part));
    says_so.then(|| OutOfMemory {
        asked_bytes: asked_bytes(message),
    })
}

fn asked_bytes(message: &str) -> Option<u64> {
    let (_, rest) = message.split_once(ASKED)?;
    let mut words = rest.split_whitespace();
    let number: f64 = words.next()?.parse().ok()?;
    let unit = words.next()?;
    let bytes = match unit.trim_end_matches(|c: char| !c.is_ascii_alphabetic()) {
        "bytes" => 1.0,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    Some((number * bytes) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Kind, Tensor};

    #[test]
    fn lack_of_memory_is_recognized_with_its_amount() {
        let asked = |message: &str| out_of_memory(message).map(|told| told.asked_bytes);
        let of_gpu = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.19 GiB is free. Of the \
                      allocated memory 70.00 GiB is allocated by PyTorch";
        assert_eq!(asked(of_gpu), Some(Some(5 << 29)));
        let panic = format!("called `Result::unwrap()` on an `Err` value: Torch({of_gpu:?})");
        assert_eq!(asked(&panic), Some(Some(5 << 29)));
        assert_eq!(
            asked("CUDA out of memory. Tried to allocate 20.00 MiB."),
            Some(Some(20 << 20))
        );
        assert_eq!(
            asked("CUDA out of memory. Tried to allocate 512 bytes."),
            Some(Some(512))
        );
        for silent in [
            "CUDA error: out of memory",
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY (error 2 of the CUDA driver)",
            "CUDA out of memory. Tried to allocate many GiB.",
        ] {
            assert_eq!(asked(silent), Some(None), "{silent}");
        }
        for other in [
            "",
            "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
            "CUDA error: an illegal memory access was encountered",
        ] {
            assert_eq!(asked(other), None, "{other}");
        }
    }

    #[test]
    fn libtorch_says_so_of_the_hosts_memory() {
        // More than a process can address.
        let refused = Tensor::f_empty([1_i64 << 50], (Kind::Float, tch::Device::Cpu));
        let why = refused.err().unwrap().to_string();
        let asked_bytes = Some(1 << 52);
        assert_eq!(out_of_memory(&why), Some(OutOfMemory { asked_bytes }), "{why}");
    }
}
