//! Compiles the shim against the libtorch that torch-sys found.

/// The kernels' texts, whose arguments the shim fills in.
const KERNELS: &str = "../cuda/kernels";

/// The glue's parts, all included by `glue.cpp`, and their headers.
const PARTS: [&str; 17] = [
    "dropout.cpp",
    "dropout.h",
    "fused.cpp",
    "fused.h",
    "glue.cpp",
    "head_loss.cpp",
    "head_loss.h",
    "launcher.h",
    "memory_meter.cpp",
    "product.h",
    "rms_norm.cpp",
    "rms_norm.h",
    "rotary.cpp",
    "rotary.h",
    "script.cpp",
    "script.h",
    "shim.cpp",
];

fn main() {
    for part in PARTS {
        println!("cargo:rerun-if-changed={part}");
    }
    println!("cargo:rerun-if-changed=driver.cpp");
    println!("cargo:rerun-if-changed={KERNELS}/arguments.h");
    let lib = std::env::var("DEP_TCH_LIBTORCH_LIB").expect("torch-sys tells where libtorch lies");
    let root = std::path::Path::new(&lib)
        .parent()
        .expect("libtorch's lib folder has a parent");
    // Thin glue over large headers: optimising it costs a minute and gains nothing.
    let build = |file: &str, name: &str| {
        cc::Build::new()
            .cpp(true)
            .std("c++17")
            .warnings(false)
            .pic(true)
            .opt_level(0)
            .include(root.join("include"))
            .include(root.join("include/torch/csrc/api/include"))
            .include(KERNELS)
            .file(file)
            .compile(name);
    };
    build("glue.cpp", "varuna_torch_shim");
    // It needs none of libtorch's headers.
    build("driver.cpp", "varuna_torch_driver");
    // For the tests of this crate; binaries print their own.
    println!("cargo:rustc-link-arg=-Wl,-rpath,{lib}");
}
