use super::*;
use crate::{backward, set_grad};
use tch::Kind;

const KINDS: [Kind; 3] = [Kind::Float, Kind::BFloat16, Kind::Half];

fn random(shape: &[i64], kind: Kind) -> Tensor {
    Tensor::randn(shape, (Kind::Float, tch::Device::Cpu)).to_kind(kind)
}

fn step(count: u64, factor: f64) -> AdamStep {
    AdamStep {
        count,
        rate: 0.1,
        beta1: 0.9,
        beta2: 0.99,
        decay: 0.1,
        epsilon: 1e-8,
        factor,
    }
}

#[test]
fn adamw_takes_the_published_step_in_all_ways() {
    for kernels in [Kernels::PROCESSOR, Kernels::LIBTORCH] {
        let w = Tensor::from_slice(&[1.0f32, -2.0]);
        let g = Tensor::from_slice(&[1.0f32, 1.0]);
        let (m, v) = (w.zeros_like(), w.zeros_like());
        let copy = w.to_kind(Kind::BFloat16);
        let of = Parameters {
            weight: &w,
            gradient: &g,
            first: &m,
            second: Some(&v),
            copy: Some(&copy),
        };
        kernels.adamw(&of, step(1, 0.5)).unwrap();
        // decay: w -= 0.1 * 0.1 * w; then w -= 0.1 * m_hat / sqrt(v_hat) with m_hat = g, v_hat = g^2 at the first step
        let got = Vec::<f32>::try_from(&w).unwrap();
        assert!(
            (got[0] - 0.89).abs() < 1e-6 && (got[1] + 2.08).abs() < 1e-6,
            "{got:?}"
        );
        assert!((m.double_value(&[0]) - 0.05).abs() < 1e-7, "of half the gradient");
        assert_eq!(copy, w.to_kind(Kind::BFloat16));
        let short = Tensor::zeros([3], (Kind::Float, tch::Device::Cpu));
        let wrong = Parameters { first: &short, ..of };
        assert!(kernels.adamw(&wrong, step(2, 1.0)).is_err());
    }
}

#[test]
fn sgd_takes_the_steps_of_pytorchs_own_in_all_ways() {
    tch::manual_seed(7);
    let (start, slope) = (random(&[5001], Kind::Float), random(&[5001], Kind::Float));
    let gradient_of = |step: i32| &slope * f64::cos(f64::from(step));
    for (momentum, decay) in [(0.9, 0.01), (0.0, 0.0)] {
        let theirs = tch::nn::VarStore::new(tch::Device::Cpu);
        let parameter = theirs.root().var_copy("w", &start);
        let sgd = tch::nn::Sgd {
            momentum,
            dampening: 0.0,
            wd: decay,
            nesterov: false,
        };
        let mut optimizer = tch::nn::OptimizerConfig::build(sgd, &theirs, 0.1).unwrap();
        for step in 0..20 {
            optimizer.backward_step(&(&parameter * gradient_of(step)).sum(Kind::Float));
        }
        for kernels in [Kernels::PROCESSOR, Kernels::LIBTORCH] {
            let (w, first) = (start.copy(), start.zeros_like());
            let copy = w.to_kind(Kind::BFloat16);
            for step in 0..20 {
                let gradient = gradient_of(step) * 4.0;
                let of = Parameters {
                    weight: &w,
                    gradient: &gradient,
                    first: &first,
                    second: None,
                    copy: Some(&copy),
                };
                let step = MomentumStep {
                    rate: 0.1,
                    momentum,
                    decay,
                    factor: 0.25,
                };
                kernels.sgd(&of, step).unwrap();
                assert!(
                    kernels.adamw(&of, self::step(1, 1.0)).is_err(),
                    "it has no second moments"
                );
            }
            let off = off(&w, &parameter.detach());
            assert!(off < 1e-6, "{kernels:?} with {momentum} and {decay}: {off}");
            assert_eq!(copy, w.to_kind(Kind::BFloat16));
        }
    }
}

const MUON: MuonStep = MuonStep {
    rate: 0.02,
    momentum: 0.95,
    decay: 0.1,
    factor: 0.25,
};

/// Steps of Muon by its formulas, in double precision. Returns the parameters and the momentum.
fn published_muon(start: &Tensor, gradients: &[Tensor]) -> [Tensor; 2] {
    let (mut w, mut m) = (
        start.to_kind(Kind::Double),
        start.zeros_like().to_kind(Kind::Double),
    );
    for g in gradients {
        let g = g.to_kind(Kind::Double) * MUON.factor;
        m = &m * MUON.momentum + &g * (1.0 - MUON.momentum);
        let u = &g * (1.0 - MUON.momentum) + &m * MUON.momentum;
        let mut x = &u / u.norm();
        for _ in 0..5 {
            let a = x.mm(&x.tr());
            let b = &a * -4.775 + a.mm(&a) * 2.0315;
            x = &x * 3.4445 + b.mm(&x);
        }
        let longest = start.size().into_iter().max().unwrap() as f64;
        w = w * (1.0 - MUON.rate * MUON.decay) - x * (MUON.rate * 0.2 * longest.sqrt());
    }
    [w, m]
}

#[test]
fn muon_takes_the_published_steps_in_all_ways() {
    tch::manual_seed(8);
    for (rows, columns) in [(40, 24), (24, 40), (33, 33), (1, 7), (70, 130)] {
        let start = random(&[rows, columns], Kind::Float);
        let gradients = [0; 3].map(|_| random(&[rows, columns], Kind::Float));
        let expected = published_muon(&start, &gradients);
        for kernels in [Kernels::PROCESSOR, Kernels::LIBTORCH] {
            let (w, m) = (start.reshape([-1]).copy(), start.reshape([-1]).zeros_like());
            let copy = w.to_kind(Kind::BFloat16);
            for gradient in &gradients {
                let of = Parameters {
                    weight: &w,
                    gradient: &gradient.reshape([-1]),
                    first: &m,
                    second: None,
                    copy: Some(&copy),
                };
                kernels.muon(&of, [rows, columns], MUON).unwrap();
                for wrong in [[columns + 1, rows], [0, 0], [i64::MAX, 2]] {
                    assert!(kernels.muon(&of, wrong, MUON).is_err());
                }
            }
            let found = [&w, &m].map(|t| t.view([rows, columns]));
            for (found, expected) in found.iter().zip(&expected) {
                let off = off(found, expected);
                assert!(off < 2e-5, "{kernels:?}, {rows} x {columns}: {off}");
            }
            assert_eq!(copy, w.to_kind(Kind::BFloat16));
        }
    }
}

#[test]
fn muons_update_is_near_to_orthogonal_and_of_the_size_of_adams() {
    tch::manual_seed(9);
    let (rows, columns) = (48, 96);
    let w = Tensor::zeros([rows * columns], (Kind::Float, tch::Device::Cpu));
    let m = w.zeros_like();
    // A matrix with very different singular values.
    let scales = Tensor::arange(rows, (Kind::Float, tch::Device::Cpu)).view([rows, 1]) + 1.0;
    let gradient = (random(&[rows, columns], Kind::Float) * scales * 1e-3).reshape([-1]);
    let of = Parameters {
        weight: &w,
        gradient: &gradient,
        first: &m,
        second: None,
        copy: None,
    };
    Kernels::PROCESSOR.muon(&of, [rows, columns], MUON).unwrap();
    let update = w.view([rows, columns]) / -(MUON.rate * 0.2 * (columns as f64).sqrt());
    let (_, values, _) = update.svd(true, true);
    let values = Vec::<f32>::try_from(values).unwrap();
    assert!(values.iter().all(|v| (0.6..1.3).contains(v)), "{values:?}");
    let root_mean_square = w.square().mean(Kind::Float).double_value(&[]).sqrt() / MUON.rate;
    assert!((0.1..0.3).contains(&root_mean_square), "{root_mean_square}");
}

#[test]
fn muon_has_the_same_bits_with_any_number_of_threads() {
    tch::manual_seed(10);
    let (rows, columns) = (200, 300);
    let start = random(&[rows * columns], Kind::Float);
    let gradient = random(&[rows * columns], Kind::Float);
    let by = |threads| {
        tch::set_num_threads(threads);
        let (w, m) = (start.copy(), start.zeros_like());
        let of = Parameters {
            weight: &w,
            gradient: &gradient,
            first: &m,
            second: None,
            copy: None,
        };
        for _ in 0..3 {
            Kernels::PROCESSOR.muon(&of, [rows, columns], MUON).unwrap();
        }
        [w, m]
    };
    let before = tch::get_num_threads();
    let all = [1, 2, 5].map(by);
    tch::set_num_threads(before);
    assert!(all[0] == all[1] && all[0] == all[2]);
}

#[test]
fn own_and_libtorchs_optimizer_agree_but_for_rounding() {
    tch::manual_seed(3);
    let start = [5001i64; 4].map(|n| random(&[n], Kind::Float));
    let moved = |kernels: Kernels| {
        let [w, m, v] = [&start[0], &start[1], &start[2].square()].map(Tensor::copy);
        for count in 1..=50 {
            let gradient = &start[3] * f64::cos(f64::from(count));
            let of = Parameters {
                weight: &w,
                gradient: &gradient,
                first: &m,
                second: Some(&v),
                copy: None,
            };
            kernels
                .adamw(&of, step(u64::try_from(count).unwrap(), 0.25))
                .unwrap();
        }
        [w, m, v]
    };
    for (own, theirs) in moved(Kernels::PROCESSOR).iter().zip(&moved(Kernels::LIBTORCH)) {
        let off = (own - theirs).norm().double_value(&[]) / theirs.norm().double_value(&[]);
        assert!(off < 1e-6, "{off}");
    }
}

/// Distance of two tensors, relative to the second one.
fn off(own: &Tensor, reference: &Tensor) -> f64 {
    let [own, reference] = [own, reference].map(|t| t.to_kind(Kind::Double));
    (own - &reference).norm().double_value(&[]) / reference.norm().double_value(&[])
}

/// A parameter with a gradient in single precision that starts with ones, to which the backward adds.
fn parameter(shape: &[i64], kind: Kind) -> (Tensor, Tensor) {
    let leaf = random(shape, kind).set_requires_grad(true);
    let gradient = Tensor::ones(shape, (Kind::Float, tch::Device::Cpu));
    // As in a unit: autograd accumulates in single precision even if it computes in a narrower format.
    set_grad(&leaf, &gradient).unwrap();
    (leaf, gradient)
}

/// The allowed distance from libtorch's result in single precision, which is the rounding of inputs and outputs.
fn bound(kind: Kind) -> f64 {
    match kind {
        Kind::Float => 2e-6,
        Kind::Half => 1e-3,
        _ => 6e-3,
    }
}

/// A copy of a leaf in double precision, which is a leaf as well.
fn reference_leaf(t: &Tensor) -> Tensor {
    t.detach().to_kind(Kind::Double).set_requires_grad(true)
}

#[test]
fn norm_and_its_backward_are_libtorchs_within_rounding() {
    tch::manual_seed(4);
    // One width consists of whole vectors, and the other does not. There are more rows than a chunk, and columns that do not fill a tile.
    for (kind, width) in KINDS.into_iter().flat_map(|kind| [(kind, 300), (kind, 328)]) {
        let rows = 150;
        let x = (random(&[3, 50, width], kind) * 2.0 + 1.0)
            .to_kind(kind)
            .set_requires_grad(true);
        let [(w, w_gradient), (b, b_gradient)] = [0, 1].map(|_| parameter(&[width], kind));
        let upstream = [0, 1].map(|_| random(&[3, 50, width], kind));
        let (normed, around) = Kernels::ALL_ON_HOST.layer_norm(&x, &w, &b, 1e-5).unwrap();
        backward(&[&normed, &around], &[&upstream[0], &upstream[1]]).unwrap();

        let [rx, rw, rb] = [&x, &w, &b].map(reference_leaf);
        let reference = rx.layer_norm([width], Some(&rw), Some(&rb), 1e-5, true);
        let sum = (&reference * &upstream[0].to_kind(Kind::Double)
            + &rx * &upstream[1].to_kind(Kind::Double))
            .sum(Kind::Double);
        sum.backward();
        let own = [&normed, &x.grad(), &(w_gradient - 1.0), &(b_gradient - 1.0)].map(Tensor::detach);
        let theirs = [&reference, &rx.grad(), &rw.grad(), &rb.grad()].map(Tensor::detach);
        for (name, (own, theirs)) in ["output", "of x", "of the weight", "of the bias"]
            .iter()
            .zip(own.iter().zip(&theirs))
        {
            let off = off(own, theirs);
            println!("norm {kind:?}, {rows} rows, {name}: {off:.1e}");
            assert!(off < bound(kind), "{kind:?} {name}: {off}");
        }
    }
}

#[test]
fn gelu_and_its_backward_are_libtorchs_within_rounding() {
    tch::manual_seed(5);
    for (kind, width) in KINDS.into_iter().flat_map(|kind| [(kind, 300), (kind, 328)]) {
        let inputs = 20;
        let x = random(&[2, 70, inputs], kind).set_requires_grad(true);
        let (b, b_gradient) = parameter(&[width], kind);
        let (w, w_gradient) = parameter(&[width, inputs], kind);
        let upstream = random(&[2, 70, width], kind);
        let y = Kernels::ALL_ON_HOST.linear_gelu(&x, &w, Some(&b)).unwrap();
        backward(&[&y], &[&upstream]).unwrap();

        let [rx, rw, rb] = [&x, &w, &b].map(reference_leaf);
        let reference = rx.linear(&rw, Some(&rb)).gelu("tanh");
        (&reference * upstream.to_kind(Kind::Double))
            .sum(Kind::Double)
            .backward();
        let own = [&y, &x.grad(), &(w_gradient - 1.0), &(b_gradient - 1.0)].map(Tensor::detach);
        let theirs = [&reference, &rx.grad(), &rw.grad(), &rb.grad()].map(Tensor::detach);
        for (name, (own, theirs)) in ["output", "of x", "of the weight", "of the bias"]
            .iter()
            .zip(own.iter().zip(&theirs))
        {
            let off = off(own, theirs);
            println!("gelu {kind:?}, {name}: {off:.1e}");
            assert!(off < bound(kind), "{kind:?} {name}: {off}");
        }
    }
}

#[test]
fn the_gradient_of_a_bias_is_the_sum_over_all_rows() {
    tch::manual_seed(11);
    for (kind, width) in KINDS.into_iter().flat_map(|kind| [(kind, 300), (kind, 328)]) {
        let x = random(&[2, 75, 20], kind);
        let [(w, _), (b, gradient)] = [&[width, 20][..], &[width]].map(|shape| parameter(shape, kind));
        let upstream = random(&[2, 75, width], kind);
        let of = |kernels: Kernels| {
            let y = kernels.linear(&x, &w, Some(&b)).unwrap();
            let _ = gradient.shallow_clone().zero_();
            backward(&[&y], &[&upstream]).unwrap();
            gradient.copy()
        };
        let (own, libtorchs) = (of(Kernels::ALL_ON_HOST), of(Kernels::LIBTORCH));
        // The order of the sum differs from libtorch's, which shows that the kernel was used. For narrow formats, sums of so few numbers
        // are exact in any order.
        assert!(kind != Kind::Float || own != libtorchs, "{width}");
        let sum = upstream
            .to_kind(Kind::Double)
            .sum_dim_intlist([0i64, 1].as_slice(), false, Kind::Double);
        let off = off(&own, &sum);
        assert!(off < 2e-6, "{kind:?} {width}: {off}");
    }
}

#[test]
fn a_gradient_that_comes_by_one_way_alone_is_the_whole_gradient() {
    tch::manual_seed(6);
    let kind = Kind::Float;
    let x = random(&[4, 8], kind).set_requires_grad(true);
    let [(w, _), (b, _)] = [0, 1].map(|_| parameter(&[8], kind));
    let upstream = random(&[4, 8], kind);
    let (_, around) = Kernels::ALL_ON_HOST.layer_norm(&x, &w, &b, 1e-5).unwrap();
    backward(&[&around], &[&upstream]).unwrap();
    assert_eq!(x.grad(), upstream);
    let again = x.detach().set_requires_grad(true);
    let (normed, _) = Kernels::ALL_ON_HOST.layer_norm(&again, &w, &b, 1e-5).unwrap();
    backward(&[&normed], &[&upstream]).unwrap();
    let theirs = x.detach().set_requires_grad(true);
    let reference = theirs.layer_norm([8], Some(&w.detach()), Some(&b.detach()), 1e-5, true);
    backward(&[&reference], &[&upstream]).unwrap();
    assert!(off(&again.grad(), &theirs.grad()) < 1e-6);
}

#[test]
fn what_does_not_fit_is_an_error_of_libtorch() {
    let x = random(&[4, 8], Kind::Float);
    let (w, _) = parameter(&[8], Kind::Float);
    let (short, _) = parameter(&[7], Kind::Float);
    let why = Kernels::ALL_ON_HOST.layer_norm(&x, &w, &short, 1e-5).unwrap_err();
    assert!(why.0.contains("a parameter of [7]"), "{why}");
    let bare = random(&[8], Kind::Float);
    let why = Kernels::ALL_ON_HOST.layer_norm(&x, &w, &bare, 1e-5).unwrap_err();
    assert!(why.0.contains("without a gradient"), "{why}");
}

#[test]
fn cpu_uses_own_optimizer_and_dropout_and_libtorch_layers() {
    let (kernels, why) = Kernels::open(Device::Cpu, Streams::HOST, KernelChoice::Auto);
    assert!(why.is_none());
    assert_eq!(
        format!("{kernels:?}"),
        "optimizer own, dropout own, norm libtorch's, gelu libtorch's, loss libtorch's, bias libtorch's, squares libtorch's"
    );
}

#[test]
fn each_part_can_be_left_to_libtorch_alone() {
    let told = |part| format!("{:?}", Kernels::ALL_ON_HOST.without(part));
    for (part, name) in [
        (KernelPart::Optimizer, "optimizer"),
        (KernelPart::Dropout, "dropout"),
        (KernelPart::Norm, "norm"),
        (KernelPart::Gelu, "gelu"),
        (KernelPart::Loss, "loss"),
        (KernelPart::Bias, "bias"),
        (KernelPart::Squares, "squares"),
    ] {
        let all = format!("{:?}", Kernels::ALL_ON_HOST);
        let expected = all.replace(&format!("{name} own"), &format!("{name} libtorch's"));
        assert_eq!(told(part), expected);
        assert_ne!(told(part), all);
    }
    let (x, width) = (random(&[150, 300], Kind::Float), 300);
    let [(w, _), (b, _)] = [0, 1].map(|_| parameter(&[width], Kind::Float));
    let norm = |kernels: Kernels| kernels.layer_norm(&x, &w, &b, 1e-5).unwrap().0;
    let libtorchs = norm(Kernels::LIBTORCH);
    assert_eq!(norm(Kernels::ALL_ON_HOST.without(KernelPart::Norm)), libtorchs);
    assert_ne!(norm(Kernels::ALL_ON_HOST.without(KernelPart::Gelu)), libtorchs);
}
