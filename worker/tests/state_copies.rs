//! Reading and writing state on a device that computes and copies with a delay. No GPU is needed, because the driver is a stand-in.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic as the tests do")]

#[expect(clippy::unwrap_used, reason = "a part of tests")]
mod common;

use common::late::{self, MANY, optimize};
use common::{Case, engine, later, plan, single};
use tch::Tensor;
use varuna_api::UpdateRule;
use varuna_plan::WorkerId;
use varuna_torch::{Copies, Device, FlatBuffer, Kernels, MemoryMeter, Streams};

/// Elements of a range that is copied in several pieces, of which the last one is shorter.
const LONG: usize = (5 << 19) + 7;

/// A GPU on which no work is done when a call returns, and kernels that are launched there.
fn gpu(copies: Copies) -> (Streams, Kernels) {
    let streams = late::streams(Device::Cuda(0), copies);
    (streams, late::kernels(streams))
}

/// Numbers that all differ.
fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|n| (n % 8191) as f32 / 8191.0).collect()
}

fn buffer(values: &[f32], streams: Streams) -> FlatBuffer {
    let buffer = FlatBuffer::zeros(values.len(), Device::CpuSeparateMemory, streams).unwrap();
    buffer.set(values).unwrap();
    buffer
}

fn gradient() -> Tensor {
    Tensor::from_slice(&numbers(LONG))
}

/// The weights after these steps on the CPU.
fn expected(steps: u64) -> Vec<f32> {
    let weights = buffer(&vec![1.0; LONG], Streams::HOST);
    let _moments = optimize(Kernels::PROCESSOR, &weights.tensor().unwrap(), &gradient(), steps);
    weights.copy(0..LONG).unwrap()
}

#[test]
fn what_is_read_comes_after_what_was_launched_and_is_whole() {
    let expected = expected(MANY);
    for copies in [Copies::Beside, Copies::InTurn] {
        let (streams, kernels) = gpu(copies);
        let (weights, gradient) = (buffer(&vec![1.0; LONG], streams), gradient());
        let _moments = optimize(kernels, &weights.tensor().unwrap(), &gradient, MANY);
        assert!(weights.copy(0..LONG).unwrap() == expected, "{copies:?}");
        let share = weights.share().unwrap();
        let piece = share.piece();
        assert!(
            2 * piece < LONG && LONG < 3 * piece,
            "three pieces, the last of them short"
        );
        for range in [0..0, 3..4, piece - 1..piece + 1, 5..2 * piece + 5, piece..LONG] {
            let mut read = vec![7.0];
            share.append(range.clone(), &mut read).unwrap();
            assert!(
                read[0] == 7.0 && read[1..] == expected[range.clone()],
                "{range:?}"
            );
        }
    }
}

#[test]
fn reader_does_not_wait_for_later_work() {
    let (streams, _) = gpu(Copies::Beside);
    let values = numbers(LONG);
    let weights = buffer(&values, streams);
    let share = weights.share().unwrap();
    // The next step takes at least three seconds: the stand-in takes 150 microseconds from one mark to the next.
    let marks: Vec<_> = (0..20_000).map(|_| streams.mark().unwrap()).collect();
    let read = std::thread::spawn(move || {
        let mut read = Vec::new();
        share.append(0..LONG, &mut read).unwrap();
        read
    });
    assert!(read.join().unwrap() == values);
    assert!(!marks.last().unwrap().is_reached().unwrap());
    assert!(
        weights.wait_for_shares(std::time::Instant::now()).is_ok(),
        "the optimizer may go on"
    );
}

#[test]
fn write_is_ordered_between_launches() {
    let (streams, kernels) = gpu(Copies::Beside);
    let weights = buffer(&vec![1.0; LONG], streams);
    let place = FlatBuffer::zeros(LONG, Device::CpuSeparateMemory, streams).unwrap();
    place.set(&numbers(LONG)).unwrap();
    let _moments = optimize(
        kernels,
        &weights.tensor().unwrap(),
        &place.tensor().unwrap(),
        MANY,
    );
    // The steps were launched and are not done. They must not use these values.
    place.set(&vec![-5.0; LONG]).unwrap();
    assert!(weights.copy(0..LONG).unwrap() == expected(MANY));
    assert!(place.copy(0..LONG).unwrap() == vec![-5.0; LONG]);
}

#[test]
fn launched_step_uses_state_still_in_transfer() {
    let (streams, kernels) = gpu(Copies::Beside);
    let stepped = |streams: Streams, kernels| {
        let weights = buffer(&numbers(1000), streams);
        let place = FlatBuffer::zeros(1000, Device::CpuSeparateMemory, streams).unwrap();
        // Earlier copies delay this copy until after the launch of the kernel.
        let other = || Tensor::zeros([1000i64], (tch::Kind::Float, tch::Device::Cpu));
        let first = (0..20).map(|_| streams.copy_to_device(&[0.0f32; 1000], other()).unwrap());
        let _first: Vec<_> = first.collect();
        place.set(&[0.5; 1000]).unwrap();
        let _moments = optimize(kernels, &weights.tensor().unwrap(), &place.tensor().unwrap(), 1);
        weights.copy(0..1000).unwrap()
    };
    assert!(stepped(streams, kernels) == stepped(Streams::HOST, Kernels::PROCESSOR));
}

#[test]
fn device_state_is_read_and_replaced_exactly() {
    for rule in [
        Case::default().rule,
        UpdateRule::Sgd { momentum: 0.9 },
        common::MUON,
    ] {
        read_and_replace(rule);
    }
}

fn read_and_replace(rule: UpdateRule) {
    let on = |device, streams| {
        let case = Case {
            rule,
            device,
            streams,
            ..Case::default()
        };
        let units = plan(&case, &single(&case)).units(WorkerId(1));
        (engine(&case, WorkerId(1)), units)
    };
    let (mut host, units) = on(Device::Cpu, Streams::HOST);
    let (mut device, _) = on(
        Device::CpuSeparateMemory,
        late::streams(Device::CpuSeparateMemory, Copies::Beside),
    );
    for unit in units {
        host.initialise(unit).unwrap();
        let mut state = host.export(unit).unwrap();
        // The moments are zeros.
        let all = state.data.len();
        state
            .data
            .iter_mut()
            .zip(numbers(all))
            .for_each(|(own, more)| *own += more);
        device.import(unit, &state).unwrap();
        host.import(unit, &state).unwrap();
        let (there, here) = (device.snapshot(unit).unwrap(), host.snapshot(unit).unwrap());
        assert_eq!(there.digest().unwrap(), here.digest().unwrap(), "unit {unit}");
        let parameters = all / (1 + rule.moments().of_parameter());
        let middle = (parameters - 1, parameters + 1);
        assert_eq!(
            there.range(middle.0, middle.1).unwrap(),
            state.data[middle.0..middle.1]
        );
        let read = std::thread::spawn(move || there.copy().unwrap());
        assert_eq!(read.join().unwrap(), state, "unit {unit}");
    }
}

#[test]
fn long_range_uses_two_pinned_pieces() {
    let (streams, _) = gpu(Copies::Beside);
    let values = numbers(4 * LONG);
    let weights = buffer(&values, streams);
    assert!(weights.copy(0..values.len()).unwrap() == values);
    let piece = weights.share().unwrap().piece() * size_of::<f32>();
    // The pinned memory of a copy to the device is returned with the next such copy.
    weights.wait_for_shares(later()).unwrap();
    weights.set(&values[..1]).unwrap();
    let pinned = streams.pinned_bytes();
    assert!(
        (piece..=4 * piece).contains(&pinned),
        "{pinned} bytes, pieces of {piece}"
    );
}

#[test]
fn unused_pinned_memory_is_released() {
    let (streams, _) = gpu(Copies::Beside);
    let fetched = |elements: i64| {
        let tensor = Tensor::ones([elements], (tch::Kind::Float, tch::Device::Cpu));
        let fetch = streams.fetch(&tensor).unwrap().unwrap();
        fetch.finish(later(), |all: &[f32]| all.len()).unwrap()
    };
    assert_eq!(fetched(1000) + fetched(10), 1010);
    assert_eq!(streams.pinned_bytes(), 4040);
    streams.release_unused();
    assert_eq!(streams.pinned_bytes(), 4040, "both were asked for since");
    fetched(10);
    streams.release_unused();
    assert_eq!(
        streams.pinned_bytes(),
        40,
        "another plan has no use for the other"
    );
}

#[test]
fn copied_tensor_is_released_without_another_copy() {
    let (streams, _) = gpu(Copies::Beside);
    let before = streams.mark().unwrap();
    let meter = MemoryMeter::begin(Device::CpuSeparateMemory).unwrap();
    let place = Tensor::zeros([1000i64], (tch::Kind::Float, tch::Device::Cpu));
    let coming = streams.copy_to_device(&[1.0f32; 1000], place).unwrap();
    drop(coming.arrive().unwrap());
    // The copy is complete when the device has reached a later mark.
    streams.mark().unwrap().since(&before).unwrap();
    assert_eq!(meter.taken().now, 4000, "the copy has it");
    streams.release_unused();
    assert_eq!(meter.taken().now, 0);
}
