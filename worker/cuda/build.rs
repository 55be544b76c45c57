//! Compiles the kernels for the host.

fn main() {
    for file in [
        "prelude.h",
        "arguments.h",
        "optimizer.cu",
        "momentum.cu",
        "columns.cu",
        "norm.cu",
        "gelu.cu",
        "dropout.cu",
        "loss.cu",
        "squares.cu",
        "product.cu",
        "host.cpp",
    ] {
        println!("cargo:rerun-if-changed=kernels/{file}");
    }
    // Optimised in every profile: the processor's optimizer runs it over all parameters. A product and a sum stay two roundings, as
    // on a GPU; without `errno` the root is an instruction, which is IEEE's.
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .pic(true)
        .opt_level(3)
        .flag("-ffp-contract=off")
        .flag("-fno-math-errno")
        .file("kernels/host.cpp")
        .compile("varuna_kernels");
}
