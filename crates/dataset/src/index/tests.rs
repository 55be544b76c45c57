use super::{Documents, IndexBuilder, SparseIndex, TokenType, read};
use crate::DataError;
use crate::files::Files;
use proptest::prelude::*;
use std::path::{Path, PathBuf};

/// The bytes of an index with these sizes of sequences and entries of documents.
fn index_of(token_type: TokenType, sizes: &[i32], documents: &[i64]) -> Vec<u8> {
    let mut bytes = b"MMIDIDX\0\0".to_vec();
    bytes.extend(1_u64.to_le_bytes());
    bytes.push(token_type.code());
    bytes.extend((sizes.len() as u64).to_le_bytes());
    bytes.extend((documents.len() as u64).to_le_bytes());
    sizes.iter().for_each(|v| bytes.extend(v.to_le_bytes()));
    let mut pointer = 0_i64;
    for size in sizes {
        bytes.extend(pointer.to_le_bytes());
        pointer += i64::from(*size) * i64::try_from(token_type.width()).unwrap();
    }
    documents.iter().for_each(|v| bytes.extend(v.to_le_bytes()));
    bytes
}

/// Two documents: one with sequences of 3 and 2 tokens, as earlier builds divided them, and one with a sequence of 4.
fn bytes(token_type: TokenType) -> Vec<u8> {
    index_of(token_type, &[3, 2, 4], &[0, 2, 3])
}

fn built(token_type: TokenType, documents: &[u64]) -> Vec<u8> {
    let mut index = IndexBuilder::default();
    documents.iter().for_each(|tokens| index.push_document(*tokens));
    let mut bytes = Vec::new();
    index.write(&mut bytes, token_type).unwrap();
    bytes
}

fn try_read(bytes: &[u8], bin_len: u64) -> Result<super::Index, DataError> {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("a.idx");
    std::fs::write(&path, bytes).unwrap();
    let idx = Files::default().open(&path).unwrap();
    read(
        (&idx, &path),
        Path::new("a.bin"),
        bin_len,
        &mut SparseIndex::default(),
    )
}

#[test]
fn the_bytes_of_an_index_are_megatrons() {
    // Written by hand from the description of the format; u16 has code 8. The second document has no tokens.
    let mut want = b"MMIDIDX\0\0".to_vec();
    want.extend(1_u64.to_le_bytes());
    want.push(8);
    want.extend(2_u64.to_le_bytes());
    want.extend(4_u64.to_le_bytes());
    [5_i32, 4].iter().for_each(|v| want.extend(v.to_le_bytes()));
    [0_i64, 10].iter().for_each(|v| want.extend(v.to_le_bytes()));
    [0_i64, 1, 1, 2].iter().for_each(|v| want.extend(v.to_le_bytes()));
    assert_eq!(built(TokenType::U16, &[5, 0, 4]), want);
}

#[test]
fn very_long_document_continues_in_another_sequence() {
    let got = built(TokenType::I32, &[(1 << 31) - 1 + 5, 2]);
    assert_eq!(got, index_of(TokenType::I32, &[i32::MAX, 5, 2], &[0, 2, 3]));
}

#[test]
fn an_index_is_read_back_for_every_token_type() {
    for token_type in [
        TokenType::U8,
        TokenType::U16,
        TokenType::I16,
        TokenType::I32,
        TokenType::I64,
    ] {
        let index = try_read(&bytes(token_type), 9 * token_type.width() as u64).unwrap();
        assert_eq!(
            (index.token_type, index.tokens, index.sequences, index.documents),
            (token_type, 9, 3, 2)
        );
    }
    let mut multimodal = bytes(TokenType::I32);
    multimodal.extend([0; 3]);
    assert_eq!(try_read(&multimodal, 36).unwrap().tokens, 9);
}

#[test]
fn tokens_are_decoded_as_they_were_encoded() {
    for (token_type, tokens) in [
        (TokenType::U8, vec![0, 255]),
        (TokenType::U16, vec![0, 256, 65_499]),
        (TokenType::I16, vec![32_767]),
        (TokenType::I32, vec![70_000, i32::MAX.cast_unsigned()]),
        (TokenType::I64, vec![u32::MAX]),
    ] {
        let mut bytes = Vec::new();
        tokens.iter().for_each(|t| token_type.encode(*t, &mut bytes));
        let mut out = vec![0; tokens.len()];
        token_type.decode(&bytes, &mut out);
        assert_eq!(out, tokens.iter().map(|t| i64::from(*t)).collect::<Vec<_>>());
    }
    assert_eq!(
        (
            TokenType::for_vocabulary(50_257),
            TokenType::for_vocabulary(65_500)
        ),
        (TokenType::U16, TokenType::I32)
    );
}

#[test]
fn an_index_that_is_cut_short_anywhere_is_refused() {
    let whole = bytes(TokenType::U16);
    for len in 0..whole.len() {
        let error = try_read(&whole[..len], 18).unwrap_err().to_string();
        assert!(error.contains("length in bytes"), "{len}: {error}");
    }
}

#[test]
fn every_damaged_field_is_named() {
    let change = |at: usize, new: &[u8]| {
        let mut bytes = bytes(TokenType::U16);
        bytes[at..at + new.len()].copy_from_slice(new);
        try_read(&bytes, 18).unwrap_err().to_string()
    };
    let (sizes, pointers, documents) = (34, 46, 70);
    assert!(change(0, b"X").contains("first bytes: XMIDIDX"));
    assert!(change(9, &[2]).contains("version: 2 — 1"));
    assert!(change(17, &[6]).contains("token type: 6 — 1 (u8)"));
    assert!(change(18, &u64::MAX.to_le_bytes()).contains("length in bytes"));
    assert!(change(26, &0_u64.to_le_bytes()).contains("document entries: 0"));
    assert!(change(sizes, &(-1_i32).to_le_bytes()).contains("sequence size: -1"));
    assert!(change(sizes, &4_i32.to_le_bytes()).contains("sequence pointer: 6 — 8"));
    assert!(change(pointers, &1_i64.to_le_bytes()).contains("sequence pointer: 1 — 0"));
    assert!(change(documents, &1_i64.to_le_bytes()).contains("document entry: 1"));
    assert!(change(documents + 8, &4_i64.to_le_bytes()).contains("document entry: 4 — 0 to 3"));
    assert!(change(documents + 16, &2_i64.to_le_bytes()).contains("last document entry: 2 — 3"));
}

#[test]
fn a_bin_file_of_another_length_is_refused() {
    for len in [0, 17, 19] {
        let error = try_read(&bytes(TokenType::U16), len).unwrap_err().to_string();
        assert!(
            error.contains("a.bin") && error.contains(&format!("{len} — 18")),
            "{error}"
        );
    }
}

/// Positions of this many tokens from `first` on, computed token by token. `documents` has the sizes of each document's sequences.
fn positions_by_hand(documents: &[Vec<u32>], first: usize, count: usize) -> Vec<i64> {
    let size = |document: &Vec<u32>| document.iter().sum::<u32>();
    let all: Vec<u32> = documents.iter().flat_map(|d| 0..size(d)).collect();
    let mut counted = -1;
    let mut position = |place: &u32| {
        counted = if *place == 0 { 0 } else { counted + 1 };
        counted
    };
    all[first..first + count].iter().map(&mut position).collect()
}

proptest! {
    #[test]
    fn positions_begin_anew_with_each_document(
        documents in prop::collection::vec(prop::collection::vec(0..6_u32, 0..4), 1..30),
        window in any::<(prop::sample::Index, prop::sample::Index)>(),
        stride in 1..9_u64,
    ) {
        let sizes: Vec<i32> = documents.iter().flatten().map(|s| i32::try_from(*s).unwrap()).collect();
        let mut entries = vec![0];
        for document in &documents {
            entries.push(entries[entries.len() - 1] + i64::try_from(document.len()).unwrap());
        }
        let tokens = usize::try_from(sizes.iter().sum::<i32>()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path: PathBuf = folder.path().join("a.idx");
        std::fs::write(&path, index_of(TokenType::U16, &sizes, &entries)).unwrap();
        let idx = Files::default().open(&path).unwrap();
        let mut sparse = SparseIndex::every(stride);
        let index = read((&idx, &path), Path::new("a.bin"), 2 * tokens as u64, &mut sparse).unwrap();
        let opened = Documents::new((idx, path), index, sparse);
        let first = window.0.index(tokens + 1);
        let count = window.1.index(tokens - first + 1);
        let mut positions = vec![-1; count];
        opened.positions(first as u64, &mut positions).unwrap();
        prop_assert_eq!(positions, positions_by_hand(&documents, first, count));
    }
}
