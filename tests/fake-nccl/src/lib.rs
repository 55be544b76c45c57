//! A stand-in for `libcuda.so.1`, `libnccl.so.2` and NVRTC on memory of the host: what the crate `varuna-cuda` calls of them, so that its code
//! and what is built on it runs without a GPU.
//!
//! It keeps the rules that a GPU would keep, and is strict where NCCL leaves things open:
//!
//! * A stream is a queue that a thread works off, late by a seeded time: what forgets to wait for an event reads too early.
//! * Operations of a communicator run one after the other in the order in which they were issued; the n-th of a rank meets the n-th of
//!   its peer. A send ends when it was received. Different counts, types or kinds are an error on both sides. A group runs at once.
//! * A kernel's launch runs its build for the host on its stream, as late as all else; its arguments are read within the call.
//! * What ranks are not connected for yet is put into its stream in the background, and only when all that it takes have come: all ranks to the first
//!   operation of a collective kind (seen on an H100 with the NCCL of PyTorch 2.11), both to the first one from a rank to another.
//! * A rank whose process dies lets its peers hang until they revoke. A revoked operation ends with anything in its memory.
//! * Two calls with one communicator at a time, which NCCL does not allow, end the process.
//!
//! Ranks meet over Unix sockets in the folder that `VARUNA_FAKE_NCCL_FOLDER` names, or in that for temporary files.
//! `VARUNA_FAKE_NCCL_SEED` seeds the lateness,
//! `VARUNA_FAKE_NCCL_LATE_US` bounds it (microseconds), `VARUNA_FAKE_NCCL_FAULT` is a fault of this process: see `faults.rs`.

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
