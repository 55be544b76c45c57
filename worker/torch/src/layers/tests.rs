use super::*;
use crate::{backward, fill_normal, set_grad};
use tch::{Device, Kind};

const CPU: (Kind, Device) = (Kind::Float, Device::Cpu);

#[test]
fn linear_and_lookup_match_autograd() {
    tch::manual_seed(4);
    let leaf = |shape: &[i64]| Tensor::randn(shape, CPU).set_requires_grad(true);
    let rows = Tensor::from_slice(&[3i64, 0, 3, 1]).view([2, 2]);
    let run = |fused: bool, table: &Tensor, w: &Tensor, b: &Tensor| {
        let y = if fused {
            Kernels::LIBTORCH
                .linear(&lookup(table, &rows).unwrap(), w, Some(b))
                .unwrap()
        } else {
            Tensor::embedding(table, &rows, -1, false, false).linear(w, Some(b))
        };
        backward(&[&y], &[&y.detach()]).unwrap();
        y
    };
    let (table, w, b) = (leaf(&[5, 3]), leaf(&[4, 3]), leaf(&[4]));
    assert!(
        Kernels::LIBTORCH.linear(&table, &w, None).is_err() && lookup(&table, &rows).is_err(),
        "there are no gradients yet"
    );
    let plain = run(false, &table, &w, &b);
    let own: Vec<Tensor> = [&table, &w, &b]
        .map(|t| t.detach().copy().set_requires_grad(true))
        .into();
    for t in &own {
        set_grad(t, &Tensor::full_like(&t.detach(), 1.0)).unwrap();
    }
    assert_eq!(run(true, &own[0], &own[1], &own[2]), plain);
    for (ours, theirs) in own.iter().zip([&table, &w, &b]) {
        let off = (ours.grad() - theirs.grad() - 1.0).abs().max().double_value(&[]);
        assert!(off < 1e-5, "{off}");
    }
    assert!(lookup(&own[0], &Tensor::from_slice(&[9i64])).is_err());
    let x = leaf(&[2, 3]);
    let y = Kernels::LIBTORCH.linear(&x, &own[1], None).unwrap();
    backward(&[&y], &[&Tensor::ones([2, 4], CPU)]).unwrap();
    assert_eq!(x.grad(), Tensor::ones([2, 4], CPU).matmul(&own[1].detach()));
    let _guard = tch::no_grad_guard();
    assert!(
        !Kernels::LIBTORCH
            .linear(&Tensor::ones([2, 3], CPU), &own[1], None)
            .unwrap()
            .requires_grad()
    );
}

#[test]
fn sixteen_bit_parameters_add_to_gradients_of_single_precision() {
    let (from, half) = (Kind::Float, Kind::BFloat16);
    tch::manual_seed(5);
    let rows = Tensor::from_slice(&[3i64, 0, 3, 1]).view([2, 2]);
    let leaf = |shape: &[i64]| Tensor::randn(shape, CPU).to_kind(half).set_requires_grad(true);
    let (table, w, b) = (leaf(&[5, 3]), leaf(&[4, 3]), leaf(&[4]));
    for t in [&table, &w, &b] {
        // A 16-bit sum near one thousand loses the third decimal.
        set_grad(t, &Tensor::full(t.size(), 1000.001, CPU)).unwrap();
    }
    let y = Kernels::LIBTORCH
        .linear(&lookup(&table, &rows).unwrap(), &w, Some(&b))
        .unwrap();
    assert_eq!(y.kind(), half);
    backward(&[&y], &[&y.detach()]).unwrap();
    let wide = [&table, &w, &b].map(|t| t.detach().to_kind(from).set_requires_grad(true));
    let [wide_table, wide_w, wide_b] = &wide;
    let plain = Tensor::embedding(wide_table, &rows, -1, false, false).linear(wide_w, Some(wide_b));
    backward(&[&plain], &[&y.detach().to_kind(from)]).unwrap();
    for (narrow, wide) in [&table, &w, &b].iter().zip(&wide) {
        assert_eq!(narrow.grad().kind(), from);
        let added = narrow.grad() - 1000.001;
        let off = (&added - wide.grad()).abs().max().double_value(&[]);
        let size = wide.grad().abs().max().double_value(&[]);
        assert!(off < 0.01 * size, "{off} of {size}");
    }
}

/// Losses, and the gradients of `x` and of the table by autograd, in double precision.
fn plain(x: &Tensor, w: &Tensor, targets: &Tensor, weight: f64) -> [Tensor; 3] {
    let [x, w] = [x, w].map(|t| t.detach().to_kind(Kind::Double).set_requires_grad(true));
    let loss = x.matmul(&w.transpose(0, 1)).cross_entropy_loss(
        targets,
        None::<Tensor>,
        tch::Reduction::Sum,
        -100,
        0.0,
    ) * weight;
    loss.backward();
    [loss.detach(), x.grad(), w.grad()]
}

fn relative(ours: &Tensor, reference: &Tensor) -> f64 {
    let off = (ours.to_kind(Kind::Double) - reference)
        .abs()
        .max()
        .double_value(&[]);
    off / reference.abs().max().double_value(&[])
}

#[test]
fn the_loss_of_a_head_in_chunks_is_that_of_all_logits() {
    let (n, v, d) = (37, 50, 24);
    let targets = (Tensor::arange(n, (Kind::Int64, Device::Cpu)) * 7).remainder(v);
    let drawn = |shape: &[i64], seed| {
        let tensor = Tensor::zeros(shape, CPU);
        fill_normal(&tensor, seed, 0.5).unwrap();
        tensor
    };
    for (kind, bound) in [(Kind::Float, 1e-5), (Kind::BFloat16, 1e-2), (Kind::Half, 2e-3)] {
        let x = drawn(&[1, n, d], 1).to_kind(kind);
        let w = drawn(&[v, d], 2).to_kind(kind);
        let [loss, x_gradient, w_gradient] = plain(&x.view([n, d]), &w, &targets, 0.5);
        let sum = Tensor::zeros([0i64; 0], (Kind::Double, Device::Cpu));
        let head = HeadLoss {
            targets: &targets,
            weight: 0.5,
            sum: &sum,
        };
        // All at once, and in chunks of which the last is shorter; the table alone, and with additional rows; by libtorch, and by a kernel.
        let cases = [(1000, v), (7, v), (1000, 64), (7, 64)];
        let all = [Kernels::LIBTORCH, Kernels::ALL_ON_HOST].map(|kernels| cases.map(|case| (case, kernels)));
        for ((chunk, rows), kernels) in all.into_iter().flatten() {
            let table = HeadTable {
                rows: w.constant_pad_nd([0, 0, 0, rows - v]),
                gradient: Tensor::ones([v, d], CPU),
                whole: rows == v,
                bias: None,
                cap: None,
                kernels,
            };
            assert_eq!(rows_at_once(&table) == i64::MAX, table.whole);
            let case = format!("{kind:?}, chunks of {chunk}, {rows} rows, {kernels:?}");
            let _ = sum.shallow_clone().fill_(3.0);
            let got = head.gradients(&x, &table, chunk, 8.0).unwrap();
            assert_eq!((got.size(), got.kind()), (x.size(), kind));
            assert!(relative(&(&sum - 3.0), &loss) < bound, "{case}");
            assert!(relative(&(got.view([n, d]) / 8.0), &x_gradient) < bound, "{case}");
            let added = (&table.gradient - 1.0) / 8.0;
            assert!(relative(&added, &w_gradient) < bound, "{case}");
            let before = table.gradient.copy();
            let _ = sum.shallow_clone().fill_(0.0);
            head.add(&x, &table).unwrap();
            assert!(relative(&sum, &loss) < bound, "{case}");
            assert_eq!(table.gradient, before, "without gradients");
            let _ = head.add_with_gradients(&x, &table, 1.0).unwrap();
            assert!(relative(&sum, &(&loss * 2.0)) < bound, "{case}");
        }
    }
}

#[test]
fn rows_without_a_target_have_no_loss_and_no_gradient() {
    tch::manual_seed(10);
    let (x, w) = (Tensor::randn([6, 4], CPU), Tensor::randn([9, 4], CPU));
    for (targets, cap) in [
        ([3, NO_TARGET, 8, NO_TARGET, NO_TARGET, 0], None),
        ([3, NO_TARGET, 8, NO_TARGET, NO_TARGET, 0], Some(2.0)),
        ([NO_TARGET; 6], None),
    ] {
        let targets = Tensor::from_slice(&targets);
        let kept = targets.ne(NO_TARGET).nonzero().view([-1]);
        for kernels in [Kernels::LIBTORCH, Kernels::ALL_ON_HOST] {
            let loss_of = |x: &Tensor, targets: &Tensor| {
                let sum = Tensor::zeros([0i64; 0], (Kind::Double, Device::Cpu));
                let table = HeadTable {
                    rows: w.shallow_clone(),
                    gradient: Tensor::zeros([9, 4], CPU),
                    whole: false,
                    bias: None,
                    cap,
                    kernels,
                };
                let head = HeadLoss {
                    targets,
                    weight: 0.5,
                    sum: &sum,
                };
                let gradient = head.gradients(x, &table, 2, 1.0).unwrap();
                let with_gradients = sum.double_value(&[]);
                let _ = sum.shallow_clone().zero_();
                head.add(x, &table).unwrap();
                let off = (sum.double_value(&[]) - with_gradients).abs();
                assert!(off < 1e-6, "{off}");
                (with_gradients, gradient, table.gradient)
            };
            let all = loss_of(&x, &targets);
            let some = loss_of(&x.index_select(0, &kept), &targets.index_select(0, &kept));
            let case = format!("{targets:?}, {cap:?}, {kernels:?}");
            assert!((all.0 - some.0).abs() < 1e-6, "{case}");
            let expected = x.zeros_like().index_add(0, &kept, &some.1);
            for (a, b) in [(all.1, expected), (all.2, some.2)] {
                let off = (a - b).abs().max().double_value(&[]);
                assert!(off < 1e-6, "{off}, {case}");
            }
        }
    }
}

#[test]
fn a_loss_that_does_not_fit_is_refused() {
    let x = Tensor::zeros([2, 3], CPU);
    let sum = Tensor::zeros([0i64; 0], (Kind::Double, Device::Cpu));
    let add = |x: &Tensor, [rows, own]: [i64; 2], targets: &[i64]| {
        let targets = Tensor::from_slice(targets);
        let head = HeadLoss {
            targets: &targets,
            weight: 1.0,
            sum: &sum,
        };
        let table = HeadTable {
            rows: Tensor::zeros([rows, 3], CPU),
            gradient: Tensor::zeros([own, 3], CPU),
            whole: false,
            bias: None,
            cap: None,
            kernels: Kernels::PROCESSOR,
        };
        head.add(x, &table)
    };
    assert_eq!(add(&x, [5, 5], &[0, 4]), Ok(()));
    assert_eq!(add(&x, [8, 5], &[0, 4]), Ok(()));
    for (rows, targets) in [
        ([5, 5], &[0, 5][..]),
        ([8, 5], &[0, 5]),
        ([5, 5], &[-1, 0]),
        ([5, 5], &[0]),
        ([4, 5], &[0, 0]),
    ] {
        assert!(add(&x, rows, targets).is_err(), "{rows:?} {targets:?}");
    }
    assert!(add(&Tensor::zeros([2, 4], CPU), [5, 5], &[0, 0]).is_err());
}

#[test]
fn a_chunk_takes_about_its_bytes() {
    assert_eq!(chunk_rows(&Tensor::zeros([50_304, 1], CPU)), 333);
    assert_eq!(chunk_rows(&Tensor::zeros([1 << 22, 1], CPU)), CHUNK_ROWS_MIN);
}

#[test]
fn an_rms_norm_and_its_gradients_are_those_of_the_formula() {
    tch::manual_seed(8);
    let x = Tensor::randn([3, 5, 8], CPU).set_requires_grad(true);
    let weight = Tensor::rand([8], CPU).set_requires_grad(true);
    let (up, around_up) = (Tensor::randn([3, 5, 8], CPU), Tensor::randn([3, 5, 8], CPU));
    let scale = ((&x * &x).mean_dim(-1, true, Kind::Float) + 0.3).rsqrt();
    let plain = &x * scale * &weight;
    backward(&[&plain, &x], &[&up, &around_up]).unwrap();
    let (own_x, own_weight) = (
        x.detach().copy().set_requires_grad(true),
        weight.detach().copy().set_requires_grad(true),
    );
    assert!(
        rms_norm(&own_x, &own_weight, 0.3).is_err(),
        "there is no gradient yet"
    );
    set_grad(&own_weight, &Tensor::ones([8], CPU)).unwrap();
    let (normed, around) = rms_norm(&own_x, &own_weight, 0.3).unwrap();
    backward(&[&normed, &around], &[&up, &around_up]).unwrap();
    for (ours, theirs) in [
        (normed.detach(), plain.detach()),
        (own_x.grad(), x.grad()),
        (own_weight.grad() - 1.0, weight.grad()),
    ] {
        let off = (ours - theirs).abs().max().double_value(&[]);
        assert!(off < 1e-5, "{off}");
    }
    assert!(rms_norm(&Tensor::ones([2, 7], CPU), &own_weight, 0.3).is_err());
}

#[test]
fn a_heads_loss_under_a_cap_is_that_of_bent_logits() {
    tch::manual_seed(9);
    let x = (Tensor::randn([7, 4], CPU) * 3.0).set_requires_grad(true);
    let w = Tensor::randn([11, 4], CPU).set_requires_grad(true);
    let targets = Tensor::from_slice(&[0i64, 3, 10, 5, 5, 1, 7]);
    let bent = (x.matmul(&w.transpose(0, 1)) / 2.0).tanh() * 2.0;
    let plain = bent.cross_entropy_for_logits(&targets);
    plain.backward();
    for kernels in [Kernels::LIBTORCH, Kernels::ALL_ON_HOST] {
        let sum = Tensor::zeros([0i64; 0], (Kind::Double, Device::Cpu));
        let table = HeadTable {
            rows: w.detach(),
            gradient: Tensor::zeros([11, 4], CPU),
            whole: false,
            bias: None,
            cap: Some(2.0),
            kernels,
        };
        let loss = HeadLoss {
            targets: &targets,
            weight: 1.0 / 7.0,
            sum: &sum,
        };
        let gradient = loss.gradients(&x.detach(), &table, 3, 1.0).unwrap();
        assert!((sum.double_value(&[]) - plain.double_value(&[])).abs() < 1e-6);
        for (ours, theirs) in [(gradient, x.grad()), (table.gradient, w.grad())] {
            let off = (ours - theirs).abs().max().double_value(&[]);
            assert!(off < 1e-6, "{off}, {kernels:?}");
        }
    }
}

#[test]
fn a_heads_bias_is_in_its_logits_and_has_its_gradient() {
    tch::manual_seed(9);
    let x = Tensor::randn([7, 4], CPU).set_requires_grad(true);
    let w = Tensor::randn([11, 4], CPU).set_requires_grad(true);
    let b = Tensor::randn([11], CPU).set_requires_grad(true);
    let targets = Tensor::from_slice(&[0i64, 3, NO_TARGET, 5, 5, 1, 7]);
    let plain = (x.matmul(&w.transpose(0, 1)) + &b).cross_entropy_for_logits(&targets);
    plain.backward();
    // A table may have more rows than the vocabulary.
    let rows = |more: i64| w.detach().constant_pad_nd([0, 0, 0, more]);
    for (kernels, more) in [
        (Kernels::LIBTORCH, 0),
        (Kernels::LIBTORCH, 5),
        (Kernels::ALL_ON_HOST, 5),
    ] {
        let sum = Tensor::zeros([0i64; 0], (Kind::Double, Device::Cpu));
        let table = HeadTable {
            rows: rows(more),
            gradient: Tensor::zeros([11, 4], CPU),
            whole: false,
            bias: Some(HeadBias {
                rows: b.detach(),
                gradient: Tensor::ones([11], CPU),
            }),
            cap: None,
            kernels,
        };
        let loss = HeadLoss {
            targets: &targets,
            weight: 1.0 / 6.0,
            sum: &sum,
        };
        let gradient = loss.gradients(&x.detach(), &table, 3, 1.0).unwrap();
        assert!((sum.double_value(&[]) - plain.double_value(&[])).abs() < 1e-6);
        let of_bias = table.bias.as_ref().unwrap().gradient.copy() - 1.0;
        for (ours, theirs) in [
            (gradient, x.grad()),
            (table.gradient.copy(), w.grad()),
            (of_bias, b.grad()),
        ] {
            let off = (ours - theirs).abs().max().double_value(&[]);
            assert!(off < 1e-6, "{off}, {kernels:?}, {more}");
        }
        let short = HeadTable {
            bias: Some(HeadBias {
                rows: b.detach().narrow(0, 0, 10),
                gradient: Tensor::ones([11], CPU),
            }),
            ..table
        };
        let why = loss.add(&x.detach(), &short).unwrap_err();
        assert!(why.0.contains("[[10], [11]] for 11 logits"), "{why}");
    }
}

#[test]
fn target_outside_the_vocabulary_gives_nan() {
    let table = HeadTable {
        rows: Tensor::ones([5, 3], CPU),
        gradient: Tensor::zeros([5, 3], CPU),
        whole: false,
        bias: None,
        cap: None,
        kernels: Kernels::ALL_ON_HOST,
    };
    for (target, is_one) in [(-1i64, false), (0, true), (4, true), (5, false)] {
        let sum = Tensor::zeros([0i64; 0], (Kind::Double, Device::Cpu));
        let targets = Tensor::from_slice(&[0, target]);
        let loss = HeadLoss {
            targets: &targets,
            weight: 1.0,
            sum: &sum,
        };
        loss.add(&Tensor::ones([2, 3], CPU), &table).unwrap();
        assert_eq!(sum.double_value(&[]).is_finite(), is_one, "{target}");
    }
}

/// The loss of one token whose logits are the product of the rows with ones.
fn loss_of(rows: &Tensor, target: i64, kernels: Kernels) -> f64 {
    let table = HeadTable {
        rows: rows.shallow_clone(),
        gradient: Tensor::zeros_like(rows),
        whole: false,
        bias: None,
        cap: None,
        kernels,
    };
    let sum = Tensor::zeros([0i64; 0], (Kind::Double, Device::Cpu));
    let loss = HeadLoss {
        targets: &Tensor::from_slice(&[target]),
        weight: 1.0,
        sum: &sum,
    };
    loss.add(&Tensor::ones([1, rows.size()[1]], CPU), &table).unwrap();
    sum.double_value(&[])
}

#[test]
fn a_logit_that_is_no_number_is_in_the_loss_wherever_it_lies() {
    // One width consists of whole vectors. With the other one, each thread of the kernel reads one column at a time.
    for v in [600i64, 601] {
        for (column, odd) in [
            (3i64, f64::NAN),
            (300, f64::NAN),
            (599, f64::NAN),
            (3, f64::INFINITY),
        ] {
            let rows = Tensor::ones([v, 2], CPU);
            let _ = rows.get(column).fill_(odd);
            for kernels in [Kernels::LIBTORCH, Kernels::ALL_ON_HOST] {
                let found = loss_of(&rows, 7, kernels);
                assert!(
                    !found.is_finite(),
                    "{found} with {odd} in {column} of {v}, {kernels:?}"
                );
            }
        }
    }
}

#[test]
fn logits_of_minus_infinity_take_no_part_in_the_loss() {
    for v in [600i64, 601] {
        // Whole vectors are minus infinity, and with them all values that some threads of the kernel read.
        let rows = Tensor::ones([v, 1], CPU);
        for first in [0, 256, 512] {
            let _ = rows.narrow(0, first, 8).fill_(f64::NEG_INFINITY);
        }
        for kernels in [Kernels::LIBTORCH, Kernels::ALL_ON_HOST] {
            // All other logits are equal.
            let expected = ((v - 24) as f64).ln();
            let off = (loss_of(&rows, 9, kernels) - expected).abs();
            assert!(off < 1e-5, "{off}, {v}, {kernels:?}");
        }
    }
}
