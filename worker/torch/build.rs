//! Compiles the shim against the libtorch that torch-sys found.

fn main() {
    println!("cargo:rerun-if-changed=shim.cpp");
    let lib = std::env::var("DEP_TCH_LIBTORCH_LIB").expect("torch-sys tells where libtorch lies");
    let root = std::path::Path::new(&lib)
        .parent()
        .expect("libtorch's lib folder has a parent");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .warnings(false)
        .pic(true)
        // Thin glue over large headers: optimising it costs a minute and gains nothing.
        .opt_level(0)
        .include(root.join("include"))
        .include(root.join("include/torch/csrc/api/include"))
        .file("shim.cpp")
        .compile("varuna_torch_shim");
    // For the tests of this crate; binaries print their own.
    println!("cargo:rustc-link-arg=-Wl,-rpath,{lib}");
}
