//! Freed memory stays in the heap, whatever its size, until it is returned.
//!
//! This is a program of its own, because the heap's settings must be made before any other thread allocates, as in the worker.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test without a harness"
)]

/// More than 2 GiB, which the C library returned to the system at once.
const MANY: usize = 5 << 29;
/// Bytes that are written to, so that the machine has to have them.
const WRITTEN: usize = 64 << 20;

fn main() {
    varuna_torch::keep_freed_memory();
    if !cfg!(all(target_os = "linux", target_env = "gnu")) {
        return eprintln!("SKIPPED: the C library is not glibc");
    }
    // Nothing is written to this memory, so the machine does not need it, unless the system counts memory that was only requested.
    let mut memory: Vec<u8> = Vec::new();
    if memory.try_reserve_exact(MANY).is_err() {
        return eprintln!("SKIPPED: this machine does not give {MANY} bytes");
    }
    std::hint::black_box(memory.as_mut_ptr());
    let before = bytes("VmData:");
    drop(memory);
    let after = bytes("VmData:");
    assert!(
        after + MANY / 2 > before,
        "{before} bytes before and {after} after"
    );
    let written = std::hint::black_box(vec![1_u8; WRITTEN]);
    // Memory in the middle of the heap.
    let behind = std::hint::black_box(vec![1_u8; 1 << 20]);
    drop(written);
    let before = bytes("RssAnon:");
    varuna_torch::return_freed_memory();
    let after = bytes("RssAnon:");
    assert!(
        after + WRITTEN / 2 < before,
        "{before} bytes before they are returned, and {after} after that"
    );
    assert!(behind.iter().all(|byte| *byte == 1));
}

/// Bytes of a kind of memory that the process has: its data segment, which includes the heap, or what is resident.
fn bytes(kind: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(kind)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}
