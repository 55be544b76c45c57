//! The engine on a device that computes and copies with a delay. No GPU is needed, because the driver is a stand-in.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic as the tests do")]

#[expect(clippy::unwrap_used, reason = "a part of tests")]
mod common;

use common::late::{self, MANY, optimize};
use common::{Case, Trained, assert_close, engine, later, plan, run, shape, single};
use tch::{Kind, Tensor};
use varuna_api::{Precision, UpdateRule};
use varuna_cuda::{Libraries, LoadError};
use varuna_plan::{Recompute, ScheduleKind, Shape, Step, WorkerId};
use varuna_torch::{Copies, Device, DeviceChoice, DeviceError, Kernels, Streams};
use varuna_worker::ablation::{Ablation, Ablations};
use varuna_worker::backend::{Backend, Platform};
use varuna_worker::transport::local::LocalMesh;

const STEPS: u64 = 5;

fn streams_of(device: Device) -> Streams {
    late::streams(device, Copies::Beside)
}

/// Streams of a GPU: no work is done when a call returns.
fn of_gpu() -> Streams {
    streams_of(Device::Cuda(0))
}

fn trained(streams: Streams, precision: Precision, rule: UpdateRule, shape: &Shape) -> Trained {
    let case = Case {
        device: Device::CpuSeparateMemory,
        streams,
        precision,
        rule,
        evaluate: true,
        ..Case::default()
    };
    run(&case, shape, STEPS)
}

#[test]
fn late_copy_has_the_bits_of_an_immediate_one() {
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
        // The middle stage shares no unit, so it waits for no reduction after its last gradient.
        shape(&case, &[&[1, 3, 2]], &[8], 2),
        interleaved,
        recomputed,
    ] {
        let sgd = UpdateRule::Sgd { momentum: 0.9 };
        for (precision, rule) in [
            (Precision::Fp32, case.rule),
            (Precision::Bf16, case.rule),
            (Precision::Bf16, sgd),
            (Precision::Bf16, common::MUON),
        ] {
            assert_eq!(
                trained(streams_of(Device::CpuSeparateMemory), precision, rule, &shape),
                trained(Streams::HOST, precision, rule, &shape),
                "{precision:?} {rule:?} {}",
                shape.summary()
            );
        }
    }
}

const ELEMENTS: usize = 40_000;

fn filled(value: f32) -> Tensor {
    let size = i64::try_from(ELEMENTS).unwrap();
    Tensor::full([size], f64::from(value), (Kind::Float, tch::Device::Cpu))
}

/// The elements of a tensor, once all earlier work is done.
fn fetched(streams: Streams, tensor: &Tensor) -> Vec<f32> {
    match streams.fetch(tensor).unwrap() {
        Some(fetch) => fetch.finish(later(), <[f32]>::to_vec).unwrap(),
        None => Vec::<f32>::try_from(tensor).unwrap(),
    }
}

/// The weights after some steps of the optimizer: as the host sees them at once, and as they are fetched.
fn step_on(streams: Streams, kernels: Kernels) -> [Vec<f32>; 2] {
    let (weight, gradient) = (filled(1.0), filled(0.1));
    let _moments = optimize(kernels, &weight, &gradient, MANY);
    let at_once = Vec::<f32>::try_from(&weight).unwrap();
    [at_once, fetched(streams, &weight)]
}

#[test]
fn copy_to_host_follows_earlier_launches() {
    let streams = of_gpu();
    let kernels = late::kernels(streams);
    let [at_once, fetched] = step_on(streams, kernels);
    let [expected, _] = step_on(Streams::HOST, Kernels::PROCESSOR);
    assert!(fetched == expected, "the copy waited for the kernel");
    assert!(at_once != expected, "the device is late indeed");
}

/// The weights after a step of the optimizer with a gradient that comes from the host.
fn step_with(streams: Streams, kernels: Kernels, waits: bool) -> Vec<f32> {
    let (weight, place) = (filled(1.0), filled(0.0));
    // Earlier copies delay this copy until after the launch of the kernel.
    let first = (0..20).map(|_| streams.copy_to_device(&[0.0f32; ELEMENTS], filled(0.0)));
    let _first: Vec<_> = first.map(Result::unwrap).collect();
    let coming = streams
        .copy_to_device(&[0.5f32; ELEMENTS], place.shallow_clone())
        .unwrap();
    if waits {
        drop(coming.arrive().unwrap());
    }
    let _moments = optimize(kernels, &weight, &place, 1);
    fetched(streams, &weight)
}

/// The weights after steps whose gradient is then overwritten by one from the host.
fn step_before(streams: Streams, kernels: Kernels) -> Vec<f32> {
    let (weight, place) = (filled(1.0), filled(0.1));
    let _moments = optimize(kernels, &weight, &place, MANY);
    let coming = streams
        .copy_to_device(&[-5.0f32; ELEMENTS], place.shallow_clone())
        .unwrap();
    drop(coming.arrive().unwrap());
    fetched(streams, &weight)
}

#[test]
fn copy_to_device_is_ordered_between_computations() {
    let streams = of_gpu();
    let kernels = late::kernels(streams);
    let expected = step_with(Streams::HOST, Kernels::PROCESSOR, true);
    assert!(step_with(streams, kernels, true) == expected);
    assert!(
        step_with(streams, kernels, false) != expected,
        "who does not wait computes with what was there"
    );
    let expected = step_before(Streams::HOST, Kernels::PROCESSOR);
    assert!(step_before(streams, kernels) == expected);
}

#[test]
fn pinned_memory_is_not_reused_before_the_copy() {
    let streams = of_gpu();
    let brought = |value: f32| {
        let place = Tensor::zeros([1000i64], (Kind::Float, tch::Device::Cpu));
        streams.copy_to_device(&[value; 1000], place).unwrap()
    };
    // As many copies at the same time as in a step, all with the same length.
    let brought: Vec<_> = (1..=20u8).map(|n| brought(n.into())).collect();
    let arrived = brought.into_iter().map(|b| b.arrive().unwrap());
    let arrived: Vec<Tensor> = arrived.collect();
    // The device has reached a mark after all of them.
    let (start, end) = (streams.mark().unwrap(), streams.mark().unwrap());
    end.since(&start).unwrap();
    for (n, tensor) in (1u8..).zip(arrived) {
        assert_eq!(Vec::<f32>::try_from(&tensor).unwrap(), [f32::from(n); 1000]);
    }
    let place = Tensor::zeros([3i64], (Kind::Float, tch::Device::Cpu));
    let why = streams
        .copy_to_device(&[1.0f32; 2], place)
        .err()
        .unwrap()
        .to_string();
    assert_eq!(why, "libtorch: 8 bytes for a tensor of 12");
}

/// The maximum number of tasks that were queued before a slow device, in a step of sixteen tasks.
fn tasks_ahead(without: Ablations) -> usize {
    let case = Case {
        streams: streams_of(Device::CpuSeparateMemory),
        without,
        ..Case::default()
    };
    // Eight micro-batches are sixteen tasks.
    let plan = plan(&case, &shape(&case, &[&[6]], &[8], 1));
    let me = WorkerId(1);
    let mut engine = engine(&case, me);
    plan.units(me)
        .into_iter()
        .for_each(|u| engine.initialise(u).unwrap());
    // The device first has other work, for at least 0.9 s, which is longer than the host needs to queue all tasks.
    for _ in 0..6000 {
        case.streams.mark().unwrap();
    }
    let link = LocalMesh::new(&[me]).link(me);
    let report = engine.run_step(&plan, Step(0), &link, later()).unwrap();
    report.tasks_ahead
}

#[test]
fn host_is_two_tasks_ahead_of_a_late_device() {
    assert_eq!(tasks_ahead(Ablations::NONE), 2);
    assert_eq!(tasks_ahead(Ablations::NONE.and(Ablation::Ahead)), 0);
}

fn device(_: DeviceChoice) -> Result<Device, DeviceError> {
    Ok(Device::CpuSeparateMemory)
}

fn libraries() -> Result<Libraries, LoadError> {
    Libraries::load_from(&late::stand_in())
}

#[test]
fn whatever_is_left_out_the_same_is_trained() {
    let opened = |without| {
        let platform = Platform { device, libraries };
        let precision = Precision::Bf16;
        let backend = Backend::open(
            platform,
            (Device::CpuSeparateMemory, 1),
            precision.into(),
            without,
        );
        let Backend { kernels, streams, .. } = backend.unwrap().0;
        Case {
            device: Device::CpuSeparateMemory,
            precision,
            kernels,
            streams,
            without,
            ..Case::default()
        }
    };
    let trained = |case: &Case| run(case, &shape(case, &[&[2, 4], &[3, 3]], &[5, 3], 2), STEPS);
    let whole = opened(Ablations::NONE);
    let expected = trained(&whole);
    for ablation in Ablation::ALL {
        let case = opened(Ablations::NONE.and(ablation));
        let name = ablation.name();
        let is_same_bits = !matches!(
            ablation,
            Ablation::Kernels | Ablation::Optimizer | Ablation::Padding
        );
        match is_same_bits {
            true => assert_eq!(trained(&case), expected, "{name}"),
            false => assert_close(&trained(&case), &expected, 1e-2, name),
        }
        let told = |case: &Case| format!("{:?} {:?}", case.kernels, case.streams);
        // On the CPU, norm and GELU are always libtorch's.
        let of_kernels = matches!(
            ablation,
            Ablation::Kernels | Ablation::Optimizer | Ablation::Dropout
        );
        let has_another = of_kernels || matches!(ablation, Ablation::Streams | Ablation::Pinned);
        assert_eq!(
            told(&case) != told(&whole),
            has_another,
            "{name}: {}",
            told(&case)
        );
        let pins = case.streams.fetch(&filled(0.0)).unwrap().is_some();
        assert_eq!(pins, ablation != Ablation::Pinned, "{name}");
    }
}

#[test]
fn a_mark_is_reached_when_the_device_comes_to_it() {
    let streams = of_gpu();
    assert!(streams.are_late() && !Streams::HOST.are_late());
    let (first, second) = (streams.mark().unwrap(), streams.mark().unwrap());
    assert!(!second.is_reached().unwrap());
    // The stand-in takes at least 150 microseconds from one mark to the next.
    assert!(second.since(&first).unwrap().as_micros() >= 100);
    assert!(second.is_reached().unwrap());
    let (first, second) = (Streams::HOST.mark().unwrap(), Streams::HOST.mark().unwrap());
    assert!(first.is_reached().unwrap() && second.since(&first).is_ok());
    assert!(
        second.since(&streams.mark().unwrap()).is_err(),
        "of another device"
    );
}
