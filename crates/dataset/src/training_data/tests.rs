use super::*;
use crate::build::{Build, build};
use crate::tokenizer::Tokenizer;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Number of tokens of a sample, less one.
const LENGTH: u32 = 4;

/// Datasets with these numbers of windows. Their tokens identify the source and the window.
fn datasets(folder: &Path, windows: &[u32]) -> Vec<PathBuf> {
    let dataset = |(source, windows): (usize, &u32)| {
        let name = u8::try_from(source).unwrap();
        let input = folder.join(format!("{source}.txt"));
        let window = |w: u32| {
            let [.., high, low] = w.to_be_bytes();
            [name, high, low, 0]
        };
        std::fs::write(&input, (0..*windows).flat_map(window).collect::<Vec<u8>>()).unwrap();
        let output = folder.join(format!("data{source}"));
        build(
            &Build::new(vec![input], output.clone(), Tokenizer::Byte),
            &mut |_| (),
        )
        .unwrap();
        output
    };
    windows.iter().enumerate().map(|(i, w)| dataset((i, w))).collect()
}

fn sources(prefixes: &[PathBuf], weights: &[f64]) -> Vec<DataSource> {
    let source = |(prefix, weight): (&PathBuf, &f64)| DataSource {
        path: prefix.display().to_string(),
        weight: *weight,
    };
    prefixes.iter().zip(weights).map(source).collect()
}

fn opened(
    train: &[DataSource],
    held_out: &HeldOut,
    length: u32,
    seed: u64,
) -> Result<TrainingData, DataError> {
    let data = Data {
        train: train.to_vec(),
        held_out: held_out.clone(),
    };
    TrainingData::open(&data, SampleShape::windows(length), seed)
}

/// The source and the window of a sample.
fn what(data: &TrainingData, index: u64) -> (i64, i64) {
    let mut tokens = [0; LENGTH as usize + 1];
    data.train(index, &mut tokens).unwrap();
    (tokens[0], tokens[1] << 8 | tokens[2])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn samples_depend_on_the_seed_and_never_repeat_in_a_pass(
        shape in prop::collection::vec((1u32..60, 1u32..10), 1..5), seed: u64, batch in 1u64..9,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let (windows, weights): (Vec<u32>, Vec<f64>) = shape.iter().map(|(n, w)| (*n, f64::from(*w))).unzip();
        let sources = sources(&datasets(folder.path(), &windows), &weights);
        let open = || opened(&sources, &HeldOut::Fraction(0.0), LENGTH, seed).unwrap();
        let (data, other) = (open(), open());
        let steps = 300 / batch;
        let samples: Vec<_> = (0..steps * batch).map(|index| what(&data, index)).collect();
        // Another process reads the samples of the steps, from the last step backwards.
        for step in (0..steps).rev() {
            let of_step: Vec<_> = (step * batch..(step + 1) * batch).map(|index| what(&other, index)).collect();
            let at = usize::try_from(step * batch).unwrap();
            prop_assert_eq!(&of_step[..], &samples[at..at + of_step.len()]);
        }
        for (source, windows) in windows.iter().enumerate() {
            let own: Vec<i64> = samples.iter().filter(|s| s.0 == source as i64).map(|s| s.1).collect();
            for pass in own.chunks(*windows as usize) {
                let different: BTreeSet<_> = pass.iter().collect();
                prop_assert_eq!(different.len(), pass.len(), "source {}", source);
                prop_assert!(pass.iter().all(|window| *window < i64::from(*windows)));
            }
        }
    }
}

#[test]
fn one_dataset_alone_is_what_it_was_before_there_were_blends() {
    let folder = tempfile::tempdir().unwrap();
    let prefixes = datasets(folder.path(), &[50]);
    let data = opened(&sources(&prefixes, &[0.3]), &HeldOut::Fraction(0.1), LENGTH, 7).unwrap();
    let alone = TokenDataset::open(&prefixes[0], LENGTH, 0.1, 7).unwrap();
    assert_eq!(
        (data.fingerprint(), data.held_out_len()),
        (alone.fingerprint(), alone.held_out_len())
    );
    let (mut a, mut b) = ([0; 5], [0; 5]);
    for index in 0..120 {
        data.train(index, &mut a).unwrap();
        alone.train(index, &mut b).unwrap();
        assert_eq!(a, b);
    }
}

#[test]
fn sources_of_one_size_have_orders_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let data = sources(&datasets(folder.path(), &[200, 200]), &[1.0, 1.0]);
    let data = opened(&data, &HeldOut::Fraction(0.0), LENGTH, 7).unwrap();
    let same = (0..200)
        .filter(|k| what(&data, 2 * k).1 == what(&data, 2 * k + 1).1)
        .count();
    assert!(same < 10, "{same}");
}

#[test]
fn held_out_samples_are_a_blend_or_another_dataset() {
    let folder = tempfile::tempdir().unwrap();
    let prefixes = datasets(folder.path(), &[40, 80, 6]);
    let two = sources(&prefixes[..2], &[1.0, 3.0]);
    let blend = opened(&two, &HeldOut::Fraction(0.1), LENGTH, 7).unwrap();
    // 4 and 8 windows are held out. One sample in four is from the first source, so the end of the second source ends the held-out samples.
    let mut tokens = [0; 5];
    let held_out: Vec<(i64, i64)> = (0..blend.held_out_len())
        .map(|index| {
            blend.held_out(index, &mut tokens).unwrap();
            (tokens[0], tokens[2])
        })
        .collect();
    let of = |source: i64| {
        held_out
            .iter()
            .filter(|s| s.0 == source)
            .map(|s| s.1)
            .collect::<Vec<_>>()
    };
    assert_eq!(of(1), (72..80).collect::<Vec<_>>());
    assert!((2..=3).contains(&of(0).len()) && of(0)[0] == 36, "{held_out:?}");
    assert!(blend.held_out(blend.held_out_len(), &mut tokens).is_err());

    let own = HeldOut::Dataset(prefixes[2].display().to_string());
    let with_own = opened(&two, &own, LENGTH, 7).unwrap();
    assert_eq!(with_own.held_out_len(), 6);
    with_own.held_out(5, &mut tokens).unwrap();
    assert_eq!((tokens[0], tokens[2]), (2, 5));
    // In this case nothing is held out from the sources, and both are part of the data's fingerprint.
    assert!((0..320).any(|index| what(&with_own, index) == (0, 39)));
    let prints: BTreeSet<String> = [
        opened(&two, &HeldOut::Fraction(0.1), LENGTH, 7),
        opened(&two, &own, LENGTH, 7),
        opened(&sources(&prefixes[..2], &[1.0, 2.0]), &own, LENGTH, 7),
        opened(&two[..1], &own, LENGTH, 7),
        opened(&two[..1], &HeldOut::Fraction(0.0), LENGTH, 7),
    ]
    .map(|data| data.unwrap().fingerprint())
    .into();
    assert_eq!(prints.len(), 5);
}

#[test]
fn positions_of_a_sample_are_those_of_its_own_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let documents = |name: &str, sizes: &[usize]| {
        let file = |(i, size): (usize, &usize)| {
            let path = folder.path().join(format!("{name}{i}.txt"));
            std::fs::write(&path, "x".repeat(*size)).unwrap();
            path
        };
        let files = sizes.iter().enumerate().map(file).collect();
        let output = folder.path().join(name);
        build(&Build::new(files, output.clone(), Tokenizer::Byte), &mut |_| ()).unwrap();
        output
    };
    let prefixes = [
        documents("a", &[3, 1, 12, 2, 2, 7, 9]),
        documents("b", &[30, 5, 1, 1, 4]),
        documents("c", &[6, 2, 8]),
    ];
    let two = sources(&prefixes[..2], &[1.0, 2.0]);
    let own = HeldOut::Dataset(prefixes[2].display().to_string());
    for held_out in [HeldOut::Fraction(0.2), own] {
        let data = opened(&two, &held_out, LENGTH, 7).unwrap();
        let check = |tokens: &[i64], positions: &[i64]| {
            let mut expected = 0;
            for (i, position) in positions.iter().enumerate() {
                // The end-of-document token of the byte tokenizer.
                expected = if i == 0 || tokens[i - 1] == 256 {
                    0
                } else {
                    expected + 1
                };
                assert_eq!(*position, expected, "{tokens:?}");
            }
        };
        let (mut tokens, mut positions) = ([0; 5], [0; 5]);
        for index in 0..60 {
            data.train(index, &mut tokens).unwrap();
            data.train_positions(index, &mut positions).unwrap();
            check(&tokens, &positions);
        }
        for index in 0..data.held_out_len() {
            data.held_out(index, &mut tokens).unwrap();
            data.held_out_positions(index, &mut positions).unwrap();
            check(&tokens, &positions);
        }
        assert!(
            data.held_out_positions(data.held_out_len(), &mut positions)
                .is_err()
        );
        assert!(data.train_positions(0, &mut positions[..4]).is_err());
    }
}

#[test]
fn what_is_no_blend_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let prefixes = datasets(folder.path(), &[5, 1]);
    let open = |weights: &[f64], length| {
        let data = opened(&sources(&prefixes, weights), &HeldOut::Fraction(0.0), length, 7);
        data.err().unwrap().to_string()
    };
    assert!(open(&[], 4).contains("datasets to train on: 0 — 1 to 256"));
    for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = open(&[1.0, weight], 4);
        assert!(
            error.contains("weight: ") && error.contains("a number above 0"),
            "{error}"
        );
    }
    assert!(
        open(&[1.0, 1.0], 8).contains("data1.bin"),
        "the source that is too short is named"
    );
}
