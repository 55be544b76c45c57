//! The engine with kernels of our own. No GPU is needed: the host runs them, either at once, or with a delay through a stand-in for the
//! driver.

#[expect(clippy::unwrap_used, reason = "a part of tests")]
mod common;

use common::{Case, Trained, assert_close, late, run, shape, single};
use varuna_api::Precision;
use varuna_plan::{Recompute, Shape};
use varuna_torch::{Copies, Device, Kernels};

const STEPS: u64 = 6;

fn trained(
    kernels: Kernels,
    device: Device,
    precision: Precision,
    shape: impl Fn(&Case) -> Shape,
) -> Trained {
    let case = Case {
        kernels,
        device,
        precision,
        evaluate: true,
        ..Case::default()
    };
    run(&case, &shape(&case), STEPS)
}

#[test]
fn own_kernels_and_libtorchs_train_alike() {
    for (precision, bound) in [
        (Precision::Fp32, 1e-5),
        (Precision::Bf16, 1e-2),
        (Precision::Fp16, 1e-2),
    ] {
        let of = |kernels| trained(kernels, Device::Cpu, precision, single);
        let (own, theirs) = (of(Kernels::ALL_ON_HOST), of(Kernels::LIBTORCH));
        let own_optimizer = of(Kernels::PROCESSOR);
        let bits = |a: &Trained, b: &Trained| a.parameters == b.parameters;
        assert!(!bits(&own, &own_optimizer), "{precision:?}: our layers were used");
        assert!(
            !bits(&own_optimizer, &theirs),
            "{precision:?}: our optimizer was used"
        );
        assert_close(&own, &theirs, bound, &format!("{precision:?}"));
    }
}

#[test]
fn launched_kernels_have_the_bits_of_the_hosts() {
    let kernels = late::kernels(late::streams(Device::CpuSeparateMemory, Copies::Beside));
    for precision in [Precision::Fp32, Precision::Bf16] {
        let launched = trained(kernels, Device::CpuSeparateMemory, precision, single);
        let on_host = trained(Kernels::ALL_ON_HOST, Device::CpuSeparateMemory, precision, single);
        assert_eq!(launched, on_host, "{precision:?}");
    }
}

#[test]
fn own_kernels_have_the_same_bits_in_a_recomputed_forward() {
    for recompute in [Recompute::Selective, Recompute::Full] {
        let of = |recompute| {
            trained(Kernels::ALL_ON_HOST, Device::Cpu, Precision::Bf16, |case| {
                let mut shape = shape(case, &[&[2, 4]], &[8], 2);
                shape.schedule.recompute = recompute;
                shape
            })
        };
        assert_eq!(of(recompute), of(Recompute::None), "{recompute:?}");
    }
}
