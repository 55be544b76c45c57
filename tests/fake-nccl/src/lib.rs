//! A replacement for `libcuda.so.1`, `libnccl.so.2` and NVRTC that uses host memory. It has the functions that the crate `varuna-cuda`
//! calls, so that this crate and the code above it run without a GPU.
//!
//! It follows the rules of a GPU, and is strict where NCCL's rules leave freedom:
//!
//! * A stream is a queue whose thread runs the work with a seeded delay. So code that does not wait for an event reads too early.
//! * Operations of a communicator run one after the other, in the order in which they were issued. The n-th operation of a rank is matched
//!   with the n-th of its peer. A send ends when it was received. If counts, types or kinds differ, both sides get an error. The operations of
//!   a group run at the same time.
//! * A kernel's launch runs its host build on its stream, with the same delay; its arguments are read within the call.
//! * An operation over ranks that are not connected yet is put into its stream in the background, and only when all ranks that it needs have
//!   called it: all ranks for the first operation of a collective kind (seen on an H100 with the NCCL of PyTorch 2.11), both ranks for the
//!   first operation from one rank to another.
//! * If the process of a rank dies, its peers hang until they revoke. The memory of a revoked operation has undefined content.
//! * Two concurrent calls with one communicator, which NCCL does not allow, end the process.
//!
//! Ranks meet over Unix sockets in the folder `VARUNA_FAKE_NCCL_FOLDER`, or in the folder for temporary files. `VARUNA_FAKE_NCCL_SEED` is
//! the seed of the delays, `VARUNA_FAKE_NCCL_LATE_US` their maximum (microseconds), and `VARUNA_FAKE_NCCL_FAULT` a fault of this process:
//! see `faults.rs`.

#![expect(
    unsafe_code,
    reason = "functions that are called as a C library's, with pointers that only their callers know"
)]

mod communicator;
mod connection;
mod driver;
mod faults;
mod group;
mod handles;
mod kernels;
mod mesh;
mod nccl;
mod numbers;
mod stream;
