//! Compiles the shim against the libtorch that torch-sys found.

/// The kernels' texts, whose arguments the shim fills in.
const KERNELS: &str = "../cuda/kernels";

fn main() {
    println!("cargo:rerun-if-changed=philox.h");
    println!("cargo:rerun-if-changed=head_loss.h");
    println!("cargo:rerun-if-changed=fused.h");
    println!("cargo:rerun-if-changed=rms_norm.h");
    println!("cargo:rerun-if-changed=rotary.h");
    println!("cargo:rerun-if-changed={KERNELS}/arguments.h");
    let lib = std::env::var("DEP_TCH_LIBTORCH_LIB").expect("torch-sys tells where libtorch lies");
    let root = std::path::Path::new(&lib)
        .parent()
        .expect("libtorch's lib folder has a parent");
    let build = |file: &str, optimise: u32| {
        println!("cargo:rerun-if-changed={file}");
        cc::Build::new()
            .cpp(true)
            .std("c++17")
            .warnings(false)
            .pic(true)
            .opt_level(optimise)
            .include(root.join("include"))
            .include(root.join("include/torch/csrc/api/include"))
            .include(KERNELS)
            .file(file)
            .compile(&format!("varuna_torch_{}", file.trim_end_matches(".cpp")));
    };
    // Thin glue over large headers: optimising it costs a minute and gains nothing.
    build("shim.cpp", 0);
    build("driver.cpp", 0);
    // The glue calls these, so they are linked after it. Most call libtorch for whole tensors, the last loops over all elements.
    build("memory_meter.cpp", 0);
    build("head_loss.cpp", 0);
    build("fused.cpp", 0);
    build("rms_norm.cpp", 0);
    build("rotary.cpp", 0);
    build("philox.cpp", 3);
    // For the tests of this crate; binaries print their own.
    println!("cargo:rustc-link-arg=-Wl,-rpath,{lib}");
}
