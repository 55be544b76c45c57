use super::*;
use crate::compiler::Compiler;
use crate::context::Capability;
use std::path::Path;

#[test]
fn every_kernel_is_in_the_host_table_with_its_arguments() {
    for kernel in Kernel::ALL {
        assert!(HostKernel::find(kernel.name()).is_some(), "{kernel:?}");
    }
    let optimizer = HostKernel::find(Kernel::Optimizer.name()).unwrap();
    assert_eq!(optimizer.argument_bytes, size_of::<OptimizerArguments>());
    let dropout = HostKernel::find(Kernel::Dropout.name()).unwrap();
    assert_eq!(dropout.argument_bytes, size_of::<DropoutArguments>());
    assert!(SOURCE.contains(&format!("DROPOUT_ROWS = {};", DropoutArguments::ROWS)));
    let momentum = HostKernel::find(Kernel::Momentum.name()).unwrap();
    assert_eq!(momentum.argument_bytes, size_of::<MomentumArguments>());
    let product = HostKernel::find(Kernel::Product.name()).unwrap();
    assert_eq!(product.argument_bytes, size_of::<ProductArguments>());
    assert!(SOURCE.contains(&format!("PRODUCT_ROWS = {PRODUCT_ROWS};")));
    assert!(SOURCE.contains(&format!("PRODUCT_COLUMNS = {PRODUCT_COLUMNS};")));
    assert!(SOURCE.contains(&format!("THREADS = {THREADS};")));
    assert!(SOURCE.contains(&format!("TILE = {TILE};")));
}

/// The state and the copy of a unit, on which its optimizer works.
#[derive(Clone, PartialEq, Debug)]
struct State {
    weights: Vec<f32>,
    first: Vec<f32>,
    second: Vec<f32>,
    copy: Vec<u16>,
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// The same arithmetic, implemented a second time: Rust's compiler never contracts product and sum.
fn reference(state: &mut State, gradients: &[f32], a: &OptimizerArguments) {
    for (i, gradient) in gradients.iter().enumerate() {
        let g = gradient * a.factor;
        let m = state.first[i] + a.rest1 * (g - state.first[i]);
        let v = a.beta2 * state.second[i] + (a.rest2 * g) * g;
        let w = state.weights[i] * a.keep - (a.rate * m) / (v.sqrt() / a.correction2 + a.epsilon);
        (state.first[i], state.second[i], state.weights[i]) = (m, v, w);
        if a.format != 0 {
            state.copy[i] = match a.format == Narrow::BFloat16 as i32 {
                true => half::bf16::from_f32(w).to_bits(),
                false => half::f16::from_f32(w).to_bits(),
            };
        }
    }
}

/// The next number of a pseudorandom sequence (SplitMix64, Steele et al. 2014).
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Numbers of all magnitudes. An infinite moment remains infinite, so only a few positions have numbers whose squares overflow. A few
/// others have numbers whose squares are below the smallest normal number.
fn numbers(count: usize, seed: &mut u64) -> Vec<f32> {
    let number = |place: usize| {
        let drawn = draw(seed);
        let mantissa = (drawn >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
        match (place % 16, drawn % 8) {
            (_, 0) => 0.0,
            (_, 1) => -0.0,
            (0, 2) => mantissa * 1e25,
            (0, 3) => mantissa * 3e38,
            (1, _) => mantissa * 1e-20,
            (2, _) => mantissa * 1e-38,
            (_, 4) => mantissa * 1e-44,
            _ => mantissa * 0.1,
        }
    };
    (0..count).map(number).collect()
}

#[test]
fn optimizer_matches_the_reference_in_every_format() {
    // No multiple of a tile or of a vector.
    let count = 2 * TILE as usize + 1037;
    for format in [0, Narrow::BFloat16 as i32, Narrow::Float16 as i32] {
        let mut seed = 17;
        let mut own = State {
            weights: numbers(count, &mut seed),
            first: vec![0.0; count],
            second: vec![0.0; count],
            copy: vec![0; count],
        };
        let mut expected = own.clone();
        for step in 1..=1000i32 {
            let gradients = numbers(count, &mut seed);
            let (rate, correction1) = (3e-4 / f64::from(step).sqrt(), 1.0 - 0.9f64.powi(step));
            let arguments = OptimizerArguments {
                weights: own.weights.as_mut_ptr(),
                first: own.first.as_mut_ptr(),
                second: own.second.as_mut_ptr(),
                gradients: gradients.as_ptr(),
                copy: own.copy.as_mut_ptr(),
                count: count as i64,
                factor: [1.0, 0.37, 1.0 / 65536.0][step as usize % 3],
                beta2: 0.95,
                rest1: 0.1,
                rest2: 0.05,
                keep: (1.0 - rate * 0.1) as f32,
                rate: (rate / correction1) as f32,
                correction2: (1.0 - 0.95f64.powi(step)).sqrt() as f32,
                epsilon: 1e-8,
                format,
            };
            // SAFETY: the five arrays have this length, live longer than the call, and are not used by other code meanwhile.
            unsafe {
                run_on_host(
                    Kernel::Optimizer,
                    arguments.blocks(),
                    (&raw const arguments).cast(),
                    2,
                )
            };
            reference(&mut expected, &gradients, &arguments);
        }
        for (name, a, b) in [
            ("weights", &own.weights, &expected.weights),
            ("first moments", &own.first, &expected.first),
            ("second moments", &own.second, &expected.second),
        ] {
            assert!(bits(a) == bits(b), "{name}, format {format}");
        }
        assert!(own.copy == expected.copy, "format {format}");
        let share = |is: fn(f32) -> bool| own.second.iter().filter(|v| is(**v)).count() * 100 / count;
        let [infinite, small, ordinary] = [f32::is_infinite, f32::is_subnormal, f32::is_normal].map(share);
        assert!(
            infinite >= 5 && small >= 5 && ordinary >= 80,
            "{infinite} {small} {ordinary} of 100"
        );
    }
}

#[test]
fn momentum_matches_the_formula_in_every_format() {
    let count = TILE as usize + 1037;
    for format in [0, Narrow::BFloat16 as i32, Narrow::Float16 as i32] {
        let mut seed = 19;
        let mut weights = numbers(count, &mut seed);
        weights.iter_mut().for_each(|w| *w = w.clamp(-1e30, 1e30));
        let (mut first, mut copy) = (vec![0.0f32; count], vec![0u16; count]);
        let (mut expected, mut momentum) = (weights.clone(), first.clone());
        for step in 0..100usize {
            // A sum that overflows would give a NaN, whose sign is not defined.
            let gradients = numbers(count, &mut seed);
            let gradients: Vec<f32> = gradients.iter().map(|g| g.clamp(-1e30, 1e30)).collect();
            let arguments = MomentumArguments {
                weights: weights.as_mut_ptr(),
                first: first.as_mut_ptr(),
                gradients: gradients.as_ptr(),
                copy: copy.as_mut_ptr(),
                count: count as i64,
                factor: [1.0, 0.37, 1.0 / 65536.0][step % 3],
                momentum: 0.9,
                decay: 0.01,
                rate: 0.1,
                format,
            };
            let blocks = arguments.blocks();
            // SAFETY: the four arrays have this length, live longer than the call, and are not used by other code meanwhile.
            unsafe { run_on_host(Kernel::Momentum, blocks, (&raw const arguments).cast(), 2) };
            for (i, gradient) in gradients.iter().enumerate() {
                let g = gradient * arguments.factor + 0.01 * expected[i];
                momentum[i] = 0.9 * momentum[i] + g;
                expected[i] -= 0.1 * momentum[i];
            }
        }
        assert!(weights.iter().all(|w| w.is_finite()));
        assert!(bits(&first) == bits(&momentum), "momentum, format {format}");
        assert!(bits(&weights) == bits(&expected), "weights, format {format}");
        let rounded = |w: &f32| match format == Narrow::BFloat16 as i32 {
            true => half::bf16::from_f32(*w).to_bits(),
            false => half::f16::from_f32(*w).to_bits(),
        };
        assert!(format == 0 || copy == weights.iter().map(rounded).collect::<Vec<_>>());
    }
}

#[test]
fn rounding_to_sixteen_bits_is_right_for_every_upper_half() {
    // All exponents and signs. The lower half is below, at and above the middle between two neighbours.
    let lower = [
        0, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff,
    ];
    let all = (0..=u16::MAX).flat_map(|upper| lower.map(|l| f32::from_bits(u32::from(upper) << 16 | l)));
    let weights: Vec<f32> = all.filter(|x| !x.is_nan()).collect();
    for format in [Narrow::BFloat16, Narrow::Float16] {
        let (mut own, zeros) = (weights.clone(), vec![0.0f32; weights.len()]);
        let (mut first, mut second, mut copy) = (zeros.clone(), zeros.clone(), vec![0u16; weights.len()]);
        // Nothing changes: the weights are only copied.
        let arguments = OptimizerArguments {
            weights: own.as_mut_ptr(),
            first: first.as_mut_ptr(),
            second: second.as_mut_ptr(),
            gradients: zeros.as_ptr(),
            copy: copy.as_mut_ptr(),
            count: weights.len() as i64,
            factor: 1.0,
            beta2: 0.5,
            rest1: 0.5,
            rest2: 0.5,
            keep: 1.0,
            rate: 0.0,
            correction2: 1.0,
            epsilon: 1.0,
            format: format as i32,
        };
        // SAFETY: the five arrays have this length and live longer than the call.
        unsafe {
            run_on_host(
                Kernel::Optimizer,
                arguments.blocks(),
                (&raw const arguments).cast(),
                1,
            )
        };
        for (x, found) in weights.iter().zip(&copy) {
            let expected = match format {
                Narrow::BFloat16 => half::bf16::from_f32(*x).to_bits(),
                Narrow::Float16 => half::f16::from_f32(*x).to_bits(),
            };
            assert_eq!(*found, expected, "{format:?} of {x:e}");
        }
    }
}

/// Philox4x32-10, implemented a second time.
fn philox(counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let mut word = counter.map(u64::from);
    for _ in 0..10 {
        let [p0, p1] = [0xD251_1F53 * word[0], 0xCD9E_8D57 * word[2]];
        let [low, high] = [|p: u64| p & 0xffff_ffff, |p: u64| p >> 32];
        let [key0, key1] = key.map(u64::from);
        word = [
            high(p1) ^ word[1] ^ key0,
            low(p1),
            high(p0) ^ word[3] ^ key1,
            low(p0),
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    word.map(|w| w as u32)
}

#[test]
fn dropout_keeps_what_the_published_numbers_say() {
    // The known answers of Random123, which is the authors' own library.
    let published = [
        (
            [0; 4],
            [0; 2],
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
        ),
        (
            [u32::MAX; 4],
            [u32::MAX; 2],
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
        ),
        (
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        ),
    ];
    for (counter, key, expected) in published {
        assert_eq!(philox(counter, key), expected);
    }
    // No multiple of a tile, or of the four words of a counter.
    let (rows, width) = (5, 2 * TILE as usize + 1037);
    let mut seed = 23;
    let (x, mut y) = (numbers(rows * width, &mut seed), vec![7.0f32; rows * width]);
    let mut keys = [0; DropoutArguments::ROWS];
    keys.fill_with(|| draw(&mut seed));
    let (threshold, scale) = (0xe000_0000, 1.0 / 0.875);
    let arguments = DropoutArguments {
        x: x.as_ptr().cast(),
        y: y.as_mut_ptr().cast(),
        rows: rows as i64,
        width: width as i64,
        threshold,
        scale,
        format: 0,
        keys,
    };
    let blocks = (rows * width.div_ceil(TILE as usize)) as u64;
    // SAFETY: the two arrays have this length, live longer than the call, and are not used by other code meanwhile.
    unsafe { run_on_host(Kernel::Dropout, blocks, (&raw const arguments).cast(), 2) };
    let expected = (0..rows * width).map(|i| {
        let (row, place) = (i / width, i % width);
        let words = philox(
            [(place / 4) as u32, 0, 0, 0],
            [keys[row] as u32, (keys[row] >> 32) as u32],
        );
        match u64::from(words[place % 4]) < threshold {
            true => x[i] * scale,
            false => 0.0,
        }
    });
    assert!(bits(&y) == bits(&expected.collect::<Vec<_>>()));
}

/// The compiler, if the set-up has installed one; otherwise the reason. `make nightly` requires it.
fn compiler() -> Option<Compiler> {
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache");
    let of = |folder| Compiler::load_from(&cache.join(folder));
    match of("nvrtc")
        .or_else(|_| of("cuda/nvidia/cu13/lib"))
        .or_else(|_| Compiler::load())
    {
        Ok(compiler) => Some(compiler),
        Err(why) => {
            assert!(
                std::env::var_os("VARUNA_NEEDS_NVRTC").is_none(),
                "{why}; scripts/setup-nvrtc.sh fetches it"
            );
            eprintln!("SKIPPED, nothing was compiled for a GPU: {why}; scripts/setup-nvrtc.sh fetches it");
            None
        }
    }
}

/// The part of an assembly text that belongs to this kernel.
fn entry<'a>(assembly: &'a str, kernel: &CStr) -> &'a str {
    let head = format!(".entry {}(", kernel.to_str().unwrap());
    let start = assembly.find(&head).unwrap_or_else(|| panic!("no {head}"));
    let rest = &assembly[start..];
    &rest[..rest[1..].find(".entry").map_or(rest.len(), |at| at + 1)]
}

#[test]
fn kernels_compile_for_every_gpu_and_round_like_the_host() {
    let Some(compiler) = compiler() else { return };
    for (major, minor) in [(7, 5), (8, 0), (9, 0), (10, 0)] {
        let image = compiler.compile(Capability { major, minor }).unwrap();
        assert!(image.bytes() > 1000);
        let assembly = image.assembly();
        for kernel in Kernel::ALL {
            let _ = entry(&assembly, kernel.name());
        }
        let optimizer = entry(&assembly, Kernel::Optimizer.name());
        assert!(optimizer.contains("sqrt.rn.f32") && optimizer.contains("div.rn.f32"));
        let momentum = entry(&assembly, Kernel::Momentum.name());
        for not_ieee in [
            "fma.", "mad.rn", ".ftz", ".approx", ".full", "mul.f32", "add.f32", "sub.f32",
        ] {
            for kernel in [optimizer, momentum] {
                assert!(!kernel.contains(not_ieee), "sm_{major}{minor}: {not_ieee}");
            }
        }
        for vectorised in [
            Kernel::NormForward,
            Kernel::NormBackward,
            Kernel::GeluForward,
            Kernel::GeluBackward,
            Kernel::SumRows,
            Kernel::Loss,
        ] {
            let text = entry(&assembly, vectorised.name());
            assert!(
                text.contains("ld.global.v4") || text.contains("ld.global.nc.v4"),
                "{vectorised:?} moves 16 bytes at once"
            );
        }
        // Threads read the keys from the launch's arguments, without local copies.
        let dropout = entry(&assembly, Kernel::Dropout.name());
        for unwanted in ["fma.", ".ftz", ".approx", "mul.f32", "add.f32", ".local"] {
            assert!(!dropout.contains(unwanted), "sm_{major}{minor}: {unwanted}");
        }
    }
    let unknown = Capability { major: 1, minor: 0 };
    let why = compiler.compile(unknown).err().unwrap().to_string();
    assert!(
        why.starts_with("NVRTC does not compile the kernels for sm_10"),
        "{why}"
    );
}

#[test]
fn product_sums_in_order_for_any_shape_and_threads() {
    let mut seed = 5;
    let mut matrix = |count: i64| -> Vec<f32> {
        let number = |_| (draw(&mut seed) >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
        (0..count).map(number).collect()
    };
    for (rows, inner, columns) in [(1, 1, 1), (33, 7, 65), (64, 100, 64), (70, 40, 200), (5, 300, 63)] {
        let (left, right) = (matrix(rows * inner), matrix(inner * columns));
        let other = matrix(rows * columns);
        let (of_product, of_other) = (1.7, -0.3);
        let expected: Vec<f32> = (0..rows * columns)
            .map(|i| {
                let (row, column) = (i / columns, i % columns);
                let terms = (0..inner)
                    .map(|k| left[(row * inner + k) as usize] * right[(k * columns + column) as usize]);
                of_product * terms.fold(0.0, |sum, term| sum + term) + of_other * other[i as usize]
            })
            .collect();
        for threads in [1, 2, 7] {
            let mut sum = vec![0.0f32; other.len()];
            let arguments = ProductArguments {
                left: left.as_ptr(),
                right: right.as_ptr(),
                other: other.as_ptr(),
                sum: sum.as_mut_ptr(),
                rows,
                inner,
                columns,
                of_product,
                of_other,
            };
            // SAFETY: the four arrays have these sizes and live longer than the call, and no other code uses the one that is written.
            unsafe {
                run_on_host(
                    Kernel::Product,
                    arguments.blocks(),
                    (&raw const arguments).cast(),
                    threads,
                )
            };
            assert_eq!(
                bits(&sum),
                bits(&expected),
                "{rows} {inner} {columns}, {threads} threads"
            );
        }
    }
}
