//! The engine on a device that works late and copies late, which needs no GPU: the driver is a stand-in.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic as the tests do")]

#[expect(clippy::unwrap_used, reason = "a part of tests")]
mod common;

use common::{Case, Trained, later, run, shape, single};
use std::path::PathBuf;
use tch::{Kind, Tensor};
use varuna_api::Precision;
use varuna_cuda::{Compiler, Libraries};
use varuna_plan::{Recompute, ScheduleKind, Shape, WorkerId};
use varuna_torch::{AdamStep, Device, Kernels, Parameters, Streams};

const STEPS: u64 = 5;

fn stand_in() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.with_file_name("libvaruna_fake_nccl.so")
}

/// Streams that are a GPU's: nothing in them is done when a call returns.
fn late() -> Streams {
    Streams::open(&Libraries::load_from(&stand_in()).unwrap(), Device::Cuda(0), 0).unwrap()
}

fn trained(streams: Streams, precision: Precision, shape: &Shape) -> Trained {
    let case = Case {
        device: Device::Apart,
        streams,
        precision,
        evaluate: true,
        ..Case::default()
    };
    run(&case, shape, STEPS)
}

#[test]
fn what_leaves_a_device_late_has_the_bits_of_what_is_copied_at_once() {
    let case = Case::default();
    let mut interleaved = shape(&case, &[&[1, 1, 2, 2]], &[8], 2);
    interleaved.schedule.kind = ScheduleKind::Interleaved { chunks: 2 };
    for (stage, worker) in interleaved.pipelines[0].stages.iter_mut().zip([1, 2, 1, 2]) {
        stage.worker = WorkerId(worker);
    }
    let mut recomputed = shape(&case, &[&[2, 4], &[6]], &[5, 3], 2);
    recomputed.schedule.recompute = Recompute::Full;
    for shape in [
        single(&case),
        shape(&case, &[&[2, 4]], &[8], 2),
        shape(&case, &[&[1, 3, 2], &[4, 2]], &[3, 5], 2),
        interleaved,
        recomputed,
    ] {
        for precision in [Precision::Fp32, Precision::Bf16] {
            assert_eq!(
                trained(late(), precision, &shape),
                trained(Streams::HOST, precision, &shape),
                "{precision:?} {}",
                shape.summary()
            );
        }
    }
}

/// The weights after some steps of the optimizer: as the host sees them at once, and as they are fetched.
fn step_on(streams: Streams, kernels: Kernels) -> [Vec<f32>; 2] {
    let on = (Kind::Float, tch::Device::Cpu);
    let weight = Tensor::linspace(-1.0, 1.0, 40_000, on);
    let [gradient, first, second] = [0.1, 0.01, 0.02].map(|v| Tensor::full([40_000i64], v, on));
    let of = Parameters {
        weight: &weight,
        gradient: &gradient,
        first: &first,
        second: &second,
        copy: None,
    };
    let step = |count| AdamStep {
        count,
        rate: 0.1,
        beta1: 0.9,
        beta2: 0.95,
        decay: 0.1,
        epsilon: 1e-8,
        factor: 0.5,
    };
    // So many that a copy beside them, which is late by itself, would come before the last.
    (1..=10).for_each(|count| kernels.adamw(&of, step(count)).unwrap());
    let seen = || Vec::<f32>::try_from(&weight).unwrap();
    let at_once = seen();
    match streams.fetch(&weight).unwrap() {
        Some(fetch) => [at_once, fetch.finish(later(), <[f32]>::to_vec).unwrap()],
        None => [at_once, seen()],
    }
}

#[test]
fn a_copy_to_the_host_comes_after_what_was_launched_and_who_does_not_wait_reads_old_numbers() {
    let streams = late();
    let kernels = Kernels::compile(streams, &Compiler::load_from(&stand_in()).unwrap()).unwrap();
    let [at_once, fetched] = step_on(streams, kernels);
    let [expected, _] = step_on(Streams::HOST, Kernels::PROCESSOR);
    assert!(fetched == expected, "the copy waited for the kernel");
    assert!(at_once != expected, "the device is late indeed");
}

#[test]
fn a_mark_is_reached_when_the_device_comes_to_it() {
    let streams = late();
    assert!(streams.are_late() && !Streams::HOST.are_late());
    let (first, second) = (streams.mark().unwrap(), streams.mark().unwrap());
    assert!(!second.is_reached().unwrap());
    // The stand-in takes at least 150 microseconds from one to the next.
    assert!(second.since(&first).unwrap().as_micros() >= 100);
    assert!(second.is_reached().unwrap());
    let (first, second) = (Streams::HOST.mark().unwrap(), Streams::HOST.mark().unwrap());
    assert!(first.is_reached().unwrap() && second.since(&first).is_ok());
    assert!(
        second.since(&streams.mark().unwrap()).is_err(),
        "of another device"
    );
}
