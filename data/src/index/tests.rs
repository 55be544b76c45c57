use super::*;

fn sample() -> Vec<u8> {
    let mut index = IndexBuilder::default();
    index.push_sequence(3);
    index.end_document();
    index.push_sequence(2);
    index.push_sequence(0);
    index.end_document();
    let mut bytes = Vec::new();
    index.write(&mut bytes, TokenType::U16).unwrap();
    bytes
}

fn read_back(bytes: &[u8], bin_len: u64) -> Result<Index, DataError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.idx");
    std::fs::write(&path, bytes).unwrap();
    read(&path, Path::new("x.bin"), bin_len)
}

#[test]
fn the_bytes_are_megatrons() {
    let mut expected = b"MMIDIDX\0\0".to_vec();
    expected.extend(1u64.to_le_bytes());
    expected.push(8);
    expected.extend(3u64.to_le_bytes());
    expected.extend(3u64.to_le_bytes());
    expected.extend([3i32, 2, 0].iter().flat_map(|n| n.to_le_bytes()));
    expected.extend([0i64, 6, 10].iter().flat_map(|n| n.to_le_bytes()));
    expected.extend([0i64, 1, 3].iter().flat_map(|n| n.to_le_bytes()));
    assert_eq!(sample(), expected);
    let index = read_back(&expected, 10).unwrap();
    assert_eq!(index, Index { token_type: TokenType::U16, tokens: 5, sequences: 3, documents: 2 });
}

#[test]
fn every_truncation_is_refused() {
    let whole = sample();
    for length in 0..whole.len() {
        assert!(read_back(&whole[..length], 10).is_err(), "cut to {length} bytes");
    }
    assert!(read_back(&whole, 8).is_err(), "a .bin file that is cut short");
}

#[test]
fn a_damaged_header_size_or_pointer_is_refused() {
    for at in [0, 9, 17, 18, 26, 34, 46, 54, 70] {
        let mut bytes = sample();
        bytes[at] ^= 0x11;
        assert!(read_back(&bytes, 10).is_err(), "byte {at}");
    }
}
