//! Error messages about the worker's arguments, before it connects to anything.
#![expect(clippy::unwrap_used, reason = "this is a test")]

use std::process::Command;

/// The program's exit code and its last output. No process listens at the coordinator's address.
fn ended(device: &str) -> (Option<i32>, String) {
    ended_with(&["--coordinator", "127.0.0.1:1", "--device", device])
}

fn ended_with(arguments: &[&str]) -> (Option<i32>, String) {
    let ended = Command::new(env!("CARGO_BIN_EXE_varuna-worker"))
        .args(arguments)
        .output()
        .unwrap();
    (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
}

#[test]
fn a_device_that_is_not_there_ends_the_worker_with_the_reason() {
    let (code, said) = ended("cuda:9999");
    assert!(
        code == Some(1) && said.contains("--device") && said.contains("device cuda:9999: "),
        "{said}"
    );
    assert!(
        said.contains("no CUDA here") || said.contains("the driver shows"),
        "{said}"
    );
    let (code, said) = ended("gpu");
    assert!(
        code == Some(2) && said.contains("allowed are auto, cpu, cuda and cuda:N"),
        "{said}"
    );
}

#[test]
fn the_reason_of_a_failure_is_the_last_line() {
    let ended = Command::new(env!("CARGO_BIN_EXE_varuna-worker"))
        .args(["--coordinator", "127.0.0.1:1", "--device", "cuda:9999"])
        .env("RUST_BACKTRACE", "1")
        .output()
        .unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    let last = said.lines().last().unwrap();
    assert!(
        last.starts_with("varuna-worker: --device: device cuda:9999: "),
        "{said}"
    );
}

#[test]
fn unreachable_worker_ends_before_it_attaches() {
    // An address that is reserved for documentation: if the worker tried to connect to it, it would try for ever.
    let (code, said) = ended_with(&["--coordinator", "192.0.2.1:7070", "--device", "cpu"]);
    assert_eq!(code, Some(1), "{said}");
    for part in ["192.0.2.1:7070", "--advertise HOST", "--bind HOST:PORT"] {
        assert!(said.contains(part), "{said}");
    }
}
