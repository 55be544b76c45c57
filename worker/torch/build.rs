//! Compiles the shim against the libtorch that torch-sys found.

/// The kernels' texts, whose arguments the shim fills in.
const KERNELS: &str = "../cuda/kernels";

fn main() {
    println!("cargo:rerun-if-changed=dropout.h");
    println!("cargo:rerun-if-changed=head_loss.h");
    println!("cargo:rerun-if-changed=fused.h");
    println!("cargo:rerun-if-changed=launcher.h");
    println!("cargo:rerun-if-changed=product.h");
    println!("cargo:rerun-if-changed=rms_norm.h");
    println!("cargo:rerun-if-changed=rotary.h");
    println!("cargo:rerun-if-changed=script.h");
    println!("cargo:rerun-if-changed={KERNELS}/arguments.h");
    let lib = std::env::var("DEP_TCH_LIBTORCH_LIB").expect("torch-sys tells where libtorch lies");
    let root = std::path::Path::new(&lib)
        .parent()
        .expect("libtorch's lib folder has a parent");
    // Thin glue over large headers: optimising it costs a minute and gains nothing.
    let build = |file: &str| {
        println!("cargo:rerun-if-changed={file}");
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
            .compile(&format!("varuna_torch_{}", file.trim_end_matches(".cpp")));
    };
    build("shim.cpp");
    build("driver.cpp");
    // The glue calls these, so they are linked after it. They call libtorch for whole tensors, or launch kernels.
    build("memory_meter.cpp");
    build("head_loss.cpp");
    build("fused.cpp");
    build("rms_norm.cpp");
    build("rotary.cpp");
    build("dropout.cpp");
    build("script.cpp");
    // For the tests of this crate; binaries print their own.
    println!("cargo:rustc-link-arg=-Wl,-rpath,{lib}");
}
