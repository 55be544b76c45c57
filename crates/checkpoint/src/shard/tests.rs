use super::*;
use proptest::prelude::*;
use varuna_plan::state::Chain;
use varuna_plan::{Generation, Step};

const ID: StateId = StateId {
    run_gen: Generation(2),
    step: Step(5),
    chain: Chain(7),
};
const UNIT: &str = "segment-000";

fn shard() -> Shard {
    let tensor = |name: &str, shape: &[usize]| ShardTensor {
        name: name.into(),
        shape: shape.to_vec(),
        whole: None,
    };
    Shard {
        id: ID,
        unit: UNIT.into(),
        adam_steps: 5,
        loss_scale: Some(LossScale {
            factor: 1024.try_into().unwrap(),
            clean_steps: 17,
        }),
        failed_in_a_row: 2,
        moments: Moments::Adam,
        tensors: vec![tensor("w", &[2, 3]), tensor("b", &[3]), tensor("none", &[0, 4])],
        data: (0..27u8).map(f32::from).collect(),
    }
}

/// The shard's file with a change of its header, whose length in front is corrected.
fn changed(from: &str, to: &str) -> Vec<u8> {
    let file = shard().encode().unwrap();
    let end = usize::try_from(ShardFacts::header_end(&file).unwrap()).unwrap();
    let header = std::str::from_utf8(&file[8..end]).unwrap();
    assert!(header.contains(from), "{header}");
    let header = header.replacen(from, to, 1);
    let length = (header.len() as u64).to_le_bytes();
    [&length, header.as_bytes(), &file[end..]].concat()
}

fn refused(from: &str, to: &str) -> String {
    Shard::decode(ID, UNIT, &changed(from, to))
        .unwrap_err()
        .to_string()
}

#[test]
fn a_shard_survives_the_file() {
    let file = shard().encode().unwrap();
    assert_eq!(Shard::decode(ID, UNIT, &file).unwrap(), shard());
    assert_eq!(
        ShardFacts::read(ID, UNIT, &file).unwrap().bytes(),
        file.len() as u64
    );
}

#[test]
fn a_loss_scale_that_no_run_has_is_refused() {
    let error = refused(r#"\"factor\":1024"#, r#"\"factor\":1000"#);
    let expected = "a loss scale of 1000: powers of two from 1 to 4294967296 are allowed";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn repeated_parameter_is_refused_without_a_copy() {
    let names = r#"\"w\",\"b\""#;
    let error = refused(names, &[names; 1000].join(","));
    assert!(
        error.contains("order has 2001 names, 3 of them different"),
        "{error}"
    );
    let error = refused(names, r#"\"w\""#);
    assert!(
        error.contains("order has 2 names") && error.contains("9 tensors"),
        "{error}"
    );
}

#[test]
fn moments_of_another_shape_than_their_parameter_are_refused() {
    let error = refused(
        r#""exp_avg/w":{"dtype":"F32","shape":[2,3]"#,
        r#""exp_avg/w":{"dtype":"F32","shape":[3,2]"#,
    );
    assert!(
        error.contains("exp_avg/w has the shape [3, 2], its parameter [2, 3]"),
        "{error}"
    );
}

#[test]
fn a_header_length_beyond_every_file_is_refused() {
    for length in [100_000_001, u64::MAX - 7, u64::MAX] {
        let error = Shard::decode(ID, UNIT, &length.to_le_bytes()).unwrap_err();
        assert!(error.to_string().contains("it is cut short"), "{error}");
    }
}

#[test]
fn offsets_beyond_every_file_are_refused_by_the_header_alone() {
    let file = changed(",108]", ",18446744073709551615]");
    let error = ShardFacts::read(ID, UNIT, &file).err().unwrap().to_string();
    assert!(error.contains("offset"), "{error}");
    assert!(Shard::decode(ID, UNIT, &file).is_err());
}

/// Reads a file in pieces of these lengths, which are used repeatedly.
fn read(file: &[u8], lengths: &[usize], keep: Keep) -> Result<Shard, CheckpointError> {
    let mut reader = ShardReader::new(ID, UNIT, file.len() as u64, keep);
    let mut rest = file;
    for length in lengths.iter().cycle().take(1000) {
        let (now, later) = rest.split_at(rest.len().min(*length));
        reader.push(now)?;
        rest = later;
    }
    reader.push(rest)?;
    reader.finish().map(|(_, shard)| shard)
}

proptest! {
    #[test]
    fn a_file_is_read_alike_in_whatever_pieces_it_comes(lengths in prop::collection::vec(0usize..50, 1..20)) {
        let file = shard().encode().unwrap();
        prop_assert_eq!(read(&file, &lengths, Keep::All).unwrap(), shard());
        let nothing = Shard { data: Vec::new(), ..shard() };
        prop_assert_eq!(read(&file, &lengths, Keep::Nothing).unwrap(), nothing);
        for (start, end) in [(0, 9), (0, 4), (2, 7), (5, 6), (6, 9)] {
            let range = shard().range(UNIT.into(), start..end).unwrap();
            prop_assert_eq!(range.data.len(), 3 * (end - start));
            prop_assert_eq!(read(&file, &lengths, Keep::Elements { start, end }).unwrap(), range);
        }
    }

    #[test]
    fn elements_beyond_a_file_are_refused(end in 10usize..) {
        let file = shard().encode().unwrap();
        let error = read(&file, &[7], Keep::Elements { start: 8, end }).unwrap_err().to_string();
        prop_assert!(error.contains("it has 9 elements, not 8.."), "{}", error);
    }

    #[test]
    fn a_bit_that_changed_is_found_whether_or_not_the_data_are_kept(at: prop::sample::Index, bit in 0u8..8) {
        let file = shard().encode().unwrap();
        let start = usize::try_from(ShardFacts::header_end(&file).unwrap()).unwrap();
        let mut bad = file.to_vec();
        bad[start + at.index(file.len() - start)] ^= 1u8 << bit;
        for keep in [Keep::All, Keep::Nothing, Keep::Elements { start: 1, end: 2 }] {
            let error = read(&bad, &[7], keep).unwrap_err().to_string();
            prop_assert!(error.contains("do not match its digest"), "{}", error);
        }
    }

    #[test]
    fn a_file_that_ends_early_is_refused(cut: prop::sample::Index) {
        let file = shard().encode().unwrap();
        let cut = &file[..cut.index(file.len())];
        let mut reader = ShardReader::new(ID, UNIT, file.len() as u64, Keep::All);
        reader.push(cut).unwrap();
        let error = reader.finish().map(|(_, shard)| shard).unwrap_err().to_string();
        prop_assert!(error.contains("cut short") || error.contains("can be read"), "{}", error);
        prop_assert!(Shard::decode(ID, UNIT, cut).is_err());
    }
}

#[test]
fn pieces_of_a_file_are_its_bytes() {
    let whole = shard().encode().unwrap();
    assert_eq!(shard().file_bytes().unwrap(), whole.len() as u64);
    let file = shard().into_file().unwrap();
    assert_eq!(file.bytes(), whole.len() as u64);
    for most in [1, 10, 1 << 20] {
        let pieces: Vec<Bytes> = file.pieces(most).collect();
        assert!(pieces.iter().all(|piece| piece.len() <= most));
        assert_eq!(pieces.concat(), whole);
    }
}

#[test]
fn values_are_found_by_tensor_and_kind() {
    let shard = shard();
    let numbers = |from: u8, to: u8| (from..to).map(f32::from).collect::<Vec<_>>();
    assert_eq!(shard.values(0, 0), numbers(0, 6));
    assert_eq!(shard.values(1, 0), numbers(6, 9));
    assert_eq!(shard.values(1, 2), numbers(24, 27));
    assert!(shard.values(2, 1).is_empty() && shard.values(3, 0).is_empty());
}

#[test]
fn data_that_are_not_as_the_shapes_say_are_not_written() {
    for (elements, expected) in [
        (26, "exp_avg_sq/b of the shape [3] goes beyond its 26 elements"),
        (28, "it has 28 elements, its shapes say 27"),
    ] {
        let wrong = Shard {
            data: vec![0.0; elements],
            ..shard()
        };
        for error in [
            wrong.encode().err(),
            wrong.file_bytes().err(),
            wrong.into_file().err(),
        ] {
            let error = error.unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}

#[test]
fn parameters_are_reordered_and_unknown_ones_refused() {
    let tensor = |name: &str, shape: &[usize]| ShardTensor {
        name: name.into(),
        shape: shape.to_vec(),
        whole: None,
    };
    let shard = Shard {
        id: StateId::INITIAL,
        unit: "segment-0".into(),
        adam_steps: 1,
        loss_scale: None,
        failed_in_a_row: 0,
        moments: Moments::Momentum,
        tensors: vec![tensor("a", &[2]), tensor("b", &[1, 3])],
        data: vec![1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0],
    };
    let turned = shard
        .clone()
        .in_order(&[tensor("b", &[1, 3]), tensor("a", &[2])])
        .unwrap();
    assert_eq!(
        turned.data,
        [3.0, 4.0, 5.0, 1.0, 2.0, 30.0, 40.0, 50.0, 10.0, 20.0]
    );
    assert_eq!(turned.values(1, 1), [10.0, 20.0]);
    assert_eq!(turned.in_order(&shard.tensors).unwrap(), shard);
    let refused = |wanted: &[ShardTensor]| shard.clone().in_order(wanted).unwrap_err();
    assert_eq!(
        refused(&[tensor("c", &[2]), tensor("b", &[1, 3])]),
        "it has no parameter c"
    );
    assert_eq!(
        refused(&[tensor("a", &[2]), tensor("b", &[3, 1])]),
        "its parameter b has the shape [1, 3], needed [3, 1]"
    );
    assert_eq!(
        refused(&[tensor("a", &[2])]),
        "it has a parameter b, which the model has not"
    );
}
