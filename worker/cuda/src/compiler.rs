//! NVRTC: the compiler for kernels, loaded at run time. It needs no toolkit, no headers and no GPU.

use crate::context::Capability;
use crate::kernels::SOURCE;
use crate::library::{LoadError, Loaded, functions};
use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_void};
use std::path::Path;

functions! {
    /// NVRTC's functions that are called.
    Nvrtc {
        create = nvrtcCreateProgram(
            *mut *mut c_void, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
        ) -> c_int;
        destroy = nvrtcDestroyProgram(*mut *mut c_void) -> c_int;
        compile = nvrtcCompileProgram(*mut c_void, c_int, *const *const c_char) -> c_int;
        log_size = nvrtcGetProgramLogSize(*mut c_void, *mut usize) -> c_int;
        log = nvrtcGetProgramLog(*mut c_void, *mut c_char) -> c_int;
        binary_size = nvrtcGetCUBINSize(*mut c_void, *mut usize) -> c_int;
        binary = nvrtcGetCUBIN(*mut c_void, *mut c_char) -> c_int;
        assembly_size = nvrtcGetPTXSize(*mut c_void, *mut usize) -> c_int;
        assembly = nvrtcGetPTX(*mut c_void, *mut c_char) -> c_int;
    }
}

/// Names of the library: what its packages have.
const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
/// Where the wheels of PyTorch for CUDA have it, seen from the folder of libtorch.
const BESIDE_LIBTORCH: &str = "../../nvidia/cu13/lib";

/// What decides about bits: products and sums are rounded each for itself, roots and quotients as IEEE 754 says, and small numbers stay.
const EXACT: [&CStr; 5] = [
    c"--fmad=false",
    c"--prec-div=true",
    c"--prec-sqrt=true",
    c"--ftz=false",
    c"--std=c++17",
];

/// Why there are no kernels.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// There is no compiler.
    #[error(transparent)]
    Absent(#[from] LoadError),
    /// The compiler refuses the text.
    #[error("NVRTC does not compile the kernels for {architecture} (error {code}): {log}")]
    Refused {
        /// Architecture of the GPU.
        architecture: Capability,
        /// NVRTC's result.
        code: i32,
        /// The beginning of what it says.
        log: String,
    },
}

/// Kernels that are compiled for one kind of GPU.
pub struct Image {
    pub(crate) binary: Vec<u8>,
    assembly: Vec<u8>,
}

impl Image {
    /// The text that the binary was made from, in NVIDIA's assembly language for all GPUs.
    #[must_use]
    pub fn assembly(&self) -> String {
        String::from_utf8_lossy(&self.assembly).into_owned()
    }

    /// Bytes of the binary.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.binary.len()
    }
}

/// The compiler.
pub struct Compiler(Nvrtc);

/// A program of NVRTC, destroyed when dropped.
struct Program<'a> {
    nvrtc: &'a Nvrtc,
    raw: *mut c_void,
}

impl Compiler {
    /// Loads the compiler from where PyTorch's packages have it, or by its usual names.
    ///
    /// # Errors
    /// The compiler is in none of these places.
    pub fn load() -> Result<Compiler, LoadError> {
        Compiler::load_beside(folder_of("libc10.so").as_deref(), &NAMES)
    }

    /// The one beside libtorch comes first: a toolkit on the machine may be older, and not know a GPU that libtorch computes on.
    fn load_beside<S: AsRef<OsStr>>(torch: Option<&Path>, names: &[S]) -> Result<Compiler, LoadError> {
        let beside = torch.map(|folder| Compiler::load_from(&folder.join(BESIDE_LIBTORCH)));
        match beside {
            Some(Ok(compiler)) => Ok(compiler),
            Some(Err(_)) | None => Compiler::of(names),
        }
    }

    /// Loads the compiler from a folder, or from a file: a fake for tests.
    ///
    /// # Errors
    /// The compiler is not there.
    pub fn load_from(path: &Path) -> Result<Compiler, LoadError> {
        if !path.is_dir() {
            return Compiler::of(&[path]);
        }
        // NVRTC looks for this one by its name alone; whoever has loaded it has found it.
        if let Some(builtins) = file_in(path, "libnvrtc-builtins.so.") {
            drop(Loaded::open("NVRTC's own headers", "", &[builtins]));
        }
        Compiler::of(&NAMES.map(|name| path.join(name)))
    }

    fn of<S: AsRef<OsStr>>(names: &[S]) -> Result<Compiler, LoadError> {
        Ok(Compiler(Nvrtc::of(&Loaded::open(
            "NVRTC",
            "CUDA 12 or later",
            names,
        )?)?))
    }

    /// Compiles all kernels for a kind of GPU: a second or two.
    ///
    /// # Errors
    /// NVRTC refuses: it does not know that GPU, or lacks a part of its own.
    pub fn compile(&self, architecture: Capability) -> Result<Image, CompileError> {
        let refused = |code, log: String| CompileError::Refused {
            architecture,
            code,
            log: log.chars().take(2000).collect(),
        };
        let created = Program::create(&self.0, &CString::new(SOURCE).unwrap_or_default());
        let program = created.map_err(|code| refused(code, String::new()))?;
        let target = CString::new(format!("--gpu-architecture={architecture}")).unwrap_or_default();
        let compiled = program.compile(&[&[target.as_c_str()], &EXACT[..]].concat());
        compiled.map_err(|code| refused(code, program.log()))?;
        let text = |code| refused(code, program.log());
        let nvrtc = &self.0;
        Ok(Image {
            binary: program.output(nvrtc.binary_size, nvrtc.binary).map_err(text)?,
            assembly: program
                .output(nvrtc.assembly_size, nvrtc.assembly)
                .map_err(text)?,
        })
    }
}

type Size = unsafe extern "C" fn(*mut c_void, *mut usize) -> c_int;
type Bytes = unsafe extern "C" fn(*mut c_void, *mut c_char) -> c_int;

fn checked(code: c_int) -> Result<(), i32> {
    if code == 0 { Ok(()) } else { Err(code) }
}

#[expect(unsafe_code, reason = "calls of NVRTC's functions with places of their types")]
impl<'a> Program<'a> {
    fn create(nvrtc: &'a Nvrtc, source: &CStr) -> Result<Program<'a>, i32> {
        let mut raw = std::ptr::null_mut();
        let none = std::ptr::null();
        // SAFETY: a place for a handle, texts that end with a zero, and no headers.
        let created = unsafe {
            (nvrtc.create)(
                &raw mut raw,
                source.as_ptr(),
                c"varuna.cu".as_ptr(),
                0,
                none,
                none,
            )
        };
        checked(created).map(|()| Program { nvrtc, raw })
    }

    fn compile(&self, options: &[&CStr]) -> Result<(), i32> {
        let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        let count = c_int::try_from(pointers.len()).unwrap_or(0);
        // SAFETY: the program lives; as many texts as said.
        checked(unsafe { (self.nvrtc.compile)(self.raw, count, pointers.as_ptr()) })
    }

    fn output(&self, size: Size, write: Bytes) -> Result<Vec<u8>, i32> {
        let mut bytes = 0;
        // SAFETY: the program lives; a place for a number.
        checked(unsafe { size(self.raw, &raw mut bytes) })?;
        let mut out = vec![0u8; bytes];
        // SAFETY: the program lives; as many bytes as it said.
        checked(unsafe { write(self.raw, out.as_mut_ptr().cast()) })?;
        Ok(out)
    }

    fn log(&self) -> String {
        let bytes = self
            .output(self.nvrtc.log_size, self.nvrtc.log)
            .unwrap_or_default();
        String::from_utf8_lossy(&bytes)
            .trim_end_matches(['\0', '\n'])
            .to_owned()
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        #[expect(unsafe_code, reason = "gives back what `create` made")]
        // SAFETY: made by `create`, destroyed once.
        let _ = unsafe { (self.nvrtc.destroy)(&raw mut self.raw) };
    }
}

/// The folder that a library of this process was loaded from.
fn folder_of(library: &str) -> Option<std::path::PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]))
        .find(|path| path.ends_with(&format!("/{library}")))?;
    Path::new(path).parent().map(Path::to_path_buf)
}

/// A file of a folder whose name begins so.
fn file_in(folder: &Path, prefix: &str) -> Option<OsString> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    let mut names = entries.filter(|e| e.file_name().to_string_lossy().starts_with(prefix));
    names.next().map(|e| e.path().into_os_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const HOPPER: Capability = Capability { major: 9, minor: 0 };

    /// A fake compiler that refuses everything with this result.
    fn refusing(file: &Path, code: i32) {
        let text = file.with_extension("c");
        let functions = [
            "nvrtcCreateProgram",
            "nvrtcDestroyProgram",
            "nvrtcCompileProgram",
            "nvrtcGetProgramLogSize",
            "nvrtcGetProgramLog",
            "nvrtcGetCUBINSize",
            "nvrtcGetCUBIN",
            "nvrtcGetPTXSize",
            "nvrtcGetPTX",
        ];
        let source = functions.map(|name| format!("int {name}() {{ return {code}; }}\n"));
        std::fs::write(&text, source.concat()).unwrap();
        let made = Command::new("cc")
            .args(["-shared", "-fPIC", "-w", "-o"])
            .arg(file)
            .arg(&text)
            .status()
            .unwrap();
        assert!(made.success());
    }

    #[test]
    fn compiler_beside_libtorch_is_preferred() {
        let folder = std::env::temp_dir().join(format!("varuna-nvrtc-{}", std::process::id()));
        let (torch, beside) = (folder.join("torch/lib"), folder.join("nvidia/cu13/lib"));
        for made in [&torch, &beside] {
            std::fs::create_dir_all(made).unwrap();
        }
        let of_machine = folder.join("libnvrtc.so.12");
        refusing(&of_machine, 12);
        let told = |torch: Option<&Path>| {
            let compiler = Compiler::load_beside(torch, &[&of_machine]).unwrap();
            match compiler.compile(HOPPER) {
                Err(CompileError::Refused { code, .. }) => code,
                Err(CompileError::Absent(why)) => panic!("{why}"),
                Ok(_) => panic!("it compiles nothing"),
            }
        };
        assert_eq!(told(None), 12);
        assert_eq!(told(Some(&torch)), 12, "there is none beside it");
        refusing(&beside.join("libnvrtc.so.13"), 13);
        assert_eq!(told(Some(&torch)), 13);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
