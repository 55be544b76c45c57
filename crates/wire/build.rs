//! Compiles the published protocol; in Rust, so that no `protoc` needs to be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["varuna/v1/coordinator.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".varuna.v1.Prepare.plan")
        .compile_fds(files)?;
    Ok(())
}
