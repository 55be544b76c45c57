//! Kernels from their source text to their launch, with the stand-ins for NVRTC and the driver: arguments, blocks, and the order of
//! streams.

#![expect(unsafe_code, reason = "arguments of a kernel are pointers")]
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic as the tests do")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use varuna_cuda::{
    Compiler, Context, CudaError, DeviceBuffer, DeviceMemory, Kernel, Libraries, Module, OptimizerArguments,
    Pinned, Stream, run_on_host,
};

/// Number of parameters: several blocks, of which the last one is not full.
const COUNT: usize = 5 * 2048 + 77;

fn stand_in() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.with_file_name("libvaruna_fake_nccl.so")
}

fn context() -> Arc<Context> {
    Context::open(&Libraries::load_from(&stand_in()).unwrap(), 0).unwrap()
}

fn module(context: &Arc<Context>) -> Module {
    let compiler = Compiler::load_from(&stand_in()).unwrap();
    let image = compiler.compile(context.capability().unwrap()).unwrap();
    Module::load(context, &image).unwrap()
}

/// Each launch of the stand-in is delayed by 150 to 300 microseconds. So even if a busy machine delays a thread by a few milliseconds, the
/// launches are still running.
const LAUNCHES: u32 = 200;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Weights, first and second moments, gradients.
fn start() -> [Vec<f32>; 4] {
    let of = |scale: f32| (0..COUNT).map(|i| (i % 97) as f32 * scale - 0.3).collect();
    [
        of(0.01),
        of(0.001),
        of(0.02).iter().map(|v: &f32| v * v).collect(),
        of(0.005),
    ]
}

fn arguments([weights, first, second, gradients]: [*mut f32; 4]) -> OptimizerArguments {
    OptimizerArguments {
        weights,
        first,
        second,
        gradients,
        copy: std::ptr::null_mut(),
        count: COUNT as i64,
        factor: 0.5,
        beta2: 0.95,
        rest1: 0.1,
        rest2: 0.05,
        keep: 0.999,
        rate: 0.01,
        correction2: 0.4,
        epsilon: 1e-8,
        format: 0,
    }
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

/// A device buffer with these values, which are copied in a stream.
fn on_device(context: &Arc<Context>, values: &[f32], stream: &Stream) -> Arc<DeviceBuffer> {
    let device = Arc::new(DeviceBuffer::new(context, 4 * COUNT).unwrap());
    let mut pinned = Pinned::new(context, 4 * COUNT).unwrap();
    pinned.as_mut_slice().copy_from_slice(&bytes_of(values));
    let copying = pinned.copy_to(Arc::clone(&device), stream).unwrap();
    copying.finish(soon()).unwrap();
    device
}

/// The weights in host memory after `steps` launches and a copy in another stream, which waits for the launches or not.
fn weights_after(steps: u32, waits: bool) -> Vec<u8> {
    let context = context();
    let (module, compute, copies) = (
        module(&context),
        Stream::new(&context).unwrap(),
        Stream::new(&context).unwrap(),
    );
    let buffers = start().map(|values| on_device(&context, &values, &copies));
    for _ in 0..steps {
        let arguments = arguments([0, 1, 2, 3].map(|i: usize| buffers[i].pointer().cast()));
        // SAFETY: the four buffers have this length and live until the copy below has ended.
        let launched = unsafe {
            module.launch(
                Kernel::Optimizer,
                u32::try_from(arguments.blocks()).unwrap(),
                (&raw const arguments).cast(),
                &compute,
            )
        };
        launched.unwrap();
    }
    let computed = compute.record().unwrap();
    if waits {
        copies.wait(&computed).unwrap();
    }
    let pinned = Pinned::new(&context, 4 * COUNT).unwrap();
    let copying = pinned.copy_from(Arc::clone(&buffers[0]), &copies).unwrap();
    let (pinned, _) = copying.finish(soon()).unwrap();
    computed.wait("the kernels", soon()).unwrap();
    pinned.as_slice().to_vec()
}

#[test]
fn launched_optimizer_matches_the_host_in_stream_order() {
    let mut own = start();
    for _ in 0..LAUNCHES {
        let [w, m, v, g] = &mut own;
        let arguments = arguments([w, m, v, g].map(|values| values.as_mut_ptr()));
        // SAFETY: the four arrays have this length and live longer than the call.
        unsafe {
            run_on_host(
                Kernel::Optimizer,
                arguments.blocks(),
                (&raw const arguments).cast(),
                1,
            )
        };
    }
    assert!(weights_after(LAUNCHES, true) == bytes_of(&own[0]));
    assert!(own[0] != start()[0]);
}

#[test]
fn event_times_are_the_devices() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let buffers = start().map(|values| on_device(&context, &values, &stream));
    let module = module(&context);
    let arguments = arguments([0, 1, 2, 3].map(|i: usize| buffers[i].pointer().cast()));
    let first = stream.record_timed().unwrap();
    for _ in 0..LAUNCHES {
        let blocks = u32::try_from(arguments.blocks()).unwrap();
        // SAFETY: the four buffers have this length and live until the last event below is complete.
        unsafe { module.launch(Kernel::Optimizer, blocks, (&raw const arguments).cast(), &stream) }.unwrap();
    }
    let last = stream.record_timed().unwrap();
    assert!(last.since(&first).is_err(), "the device has not come to it");
    last.wait("the kernels", soon()).unwrap();
    assert!(last.since(&first).unwrap() >= Duration::from_micros(150) * LAUNCHES);
}

#[test]
fn a_copy_that_does_not_wait_for_the_kernels_has_other_numbers() {
    assert!(weights_after(LAUNCHES, false) != weights_after(LAUNCHES, true));
}

#[test]
fn empty_launch_does_nothing_and_null_is_refused() {
    let context = context();
    let (module, stream) = (module(&context), Stream::new(&context).unwrap());
    // SAFETY: no block reads the arguments.
    let nothing = unsafe { module.launch(Kernel::AddColumns, 0, std::ptr::null(), &stream) };
    assert_eq!(nothing, Ok(()));
    // SAFETY: the stand-in checks the pointer before it reads.
    let refused = unsafe { module.launch(Kernel::Optimizer, 1, std::ptr::null(), &stream) };
    let of_launch = matches!(
        refused,
        Err(CudaError::Call {
            call: "cuLaunchKernel",
            ..
        })
    );
    assert!(of_launch, "{refused:?}");
}
