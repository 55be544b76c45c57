//! What the driver says of a GPU: its name, its memory, and how much of that is free.

use std::ffi::{CStr, CString, c_char, c_int};

/// The driver's library, which is where the system's loader finds it.
const DRIVER: &str = "libcuda.so.1";
/// Bytes of a name or a message, its end included.
const TEXT: usize = 256;

unsafe extern "C" {
    fn vt_gpu(
        library: *const c_char,
        number: c_int,
        name: *mut c_char,
        name_length: c_int,
        free_bytes: *mut u64,
        total_bytes: *mut u64,
        why: *mut c_char,
        why_length: c_int,
    ) -> c_int;
}

/// A GPU as its driver describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gpu {
    /// Name of the GPU.
    pub name: String,
    /// Bytes that nobody has taken; what this process' context takes is not among them.
    pub free_bytes: u64,
    /// Total memory of the GPU, in bytes.
    pub total_bytes: u64,
}

/// The driver did not describe the GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("GPU {number}: {why}")]
pub struct GpuError {
    /// Which GPU, as the process counts those that it sees.
    pub number: usize,
    /// What the loader or the driver says.
    pub why: String,
}

fn text(bytes: &[u8; TEXT]) -> String {
    let text = CStr::from_bytes_until_nul(bytes).unwrap_or_default();
    text.to_string_lossy().into_owned()
}

/// Asks the driver's library of this name about a GPU.
fn ask(library: &str, number: usize) -> Result<Gpu, GpuError> {
    let refuse = |why: String| GpuError { number, why };
    let library = CString::new(library).map_err(|e| refuse(e.to_string()))?;
    let place = c_int::try_from(number).map_err(|e| refuse(e.to_string()))?;
    let (mut name, mut why) = ([0_u8; TEXT], [0_u8; TEXT]);
    let (mut free_bytes, mut total_bytes) = (0, 0);
    let length = c_int::try_from(TEXT).unwrap_or(0);
    // SAFETY: the library's name ends with a NUL; both texts have the length that is given with them, and the shim writes no more, their
    // ends included; the numbers are live for the call.
    let code = unsafe {
        vt_gpu(
            library.as_ptr(),
            place,
            name.as_mut_ptr().cast(),
            length,
            &raw mut free_bytes,
            &raw mut total_bytes,
            why.as_mut_ptr().cast(),
            length,
        )
    };
    if code < 0 {
        return Err(refuse(text(&why)));
    }
    Ok(Gpu {
        name: text(&name),
        free_bytes,
        total_bytes,
    })
}

/// The GPU of this number among those that this process sees.
///
/// # Errors
/// There is no driver, or it has no such GPU.
pub fn gpu(number: usize) -> Result<Gpu, GpuError> {
    ask(DRIVER, number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::process::Command;

    /// A fake driver with one GPU, which requires a current context for queries of its memory.
    const FAKE: &str = r#"
        #include <stddef.h>
        #include <string.h>
        static int retained, current;
        int cuInit(unsigned flags) { return flags; }
        int cuDeviceGet(int* device, int number) { *device = 70 + number; return number ? 101 : 0; }
        int cuDeviceGetName(char* name, int length, int device) {
          strncpy(name, device == 70 ? "NVIDIA Fake 80GB" : "?", length); return 0; }
        int cuDevicePrimaryCtxRetain(void** context, int device) { retained = 1; *context = &retained; return 0; }
        int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
        int cuCtxPushCurrent_v2(void* context) { current = context == &retained; return 0; }
        int cuCtxPopCurrent_v2(void** context) { current = 0; return 0; }
        int cuMemGetInfo_v2(size_t* free, size_t* total) {
          *free = 70ul << 30; *total = 80ul << 30; return current ? 0 : 201; }
    "#;

    fn library(folder: &Path, name: &str, source: &str) -> String {
        let (c, so) = (
            folder.join(format!("{name}.c")),
            folder.join(format!("{name}.so")),
        );
        std::fs::write(&c, source).unwrap();
        let made = Command::new("cc")
            .args(["-shared", "-fPIC", "-w", "-o"])
            .args([&so, &c])
            .status()
            .unwrap();
        assert!(made.success());
        so.to_str().unwrap().to_owned()
    }

    #[test]
    fn the_driver_is_asked_for_name_and_memory_in_a_context() {
        let folder = std::env::temp_dir().join(format!("varuna-driver-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let fake = library(&folder, "fake", FAKE);
        let found = ask(&fake, 0).unwrap();
        let expected = Gpu {
            name: "NVIDIA Fake 80GB".into(),
            free_bytes: 70 << 30,
            total_bytes: 80 << 30,
        };
        assert_eq!(found, expected);
        let why = ask(&fake, 1).unwrap_err().to_string();
        assert_eq!(why, "GPU 1: cuDeviceGet: error 101 of the driver");
        let other = library(&folder, "other", "int cuInit(unsigned flags) { return 0; }");
        assert!(
            ask(&other, 0)
                .unwrap_err()
                .why
                .ends_with("lacks a function of the driver")
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn without_a_driver_the_loader_says_why() {
        let why = ask("libvaruna-no-driver.so.1", 0).unwrap_err().why;
        assert!(why.contains("libvaruna-no-driver.so.1"), "{why}");
    }
}
