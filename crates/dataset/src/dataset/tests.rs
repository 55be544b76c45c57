use super::*;
use crate::build::{Build, build};
use crate::tokenizer::Tokenizer;
use std::collections::BTreeSet;

fn dataset(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("text.txt");
    std::fs::write(&input, text).unwrap();
    let output = folder.path().join("data.v1");
    let request = Build::new(vec![input], output.clone(), Tokenizer::Byte);
    let built = build(&request, &mut |_| ()).unwrap();
    assert_eq!(built[0].text_bytes, text.len() as u64);
    assert_eq!(built[0].sidecar.tokens, text.len() as u64 + 1);
    assert!(
        matches!(build(&request, &mut |_| ()), Err(DataError::Exists(_))),
        "nothing is overwritten"
    );
    (folder, output)
}

#[test]
fn a_pass_visits_each_window_once_and_the_held_out_ones_never() {
    let text: String = (0..640u32)
        .map(|i| char::from(b'a' + u8::try_from(i / 16 % 26).unwrap()))
        .collect();
    let (_folder, prefix) = dataset(&text);
    let data = TokenDataset::open(&prefix, 16, 0.1, 3).unwrap();
    assert_eq!((data.training_len(), data.held_out_len()), (36, 4));
    let read = |i| {
        let mut tokens = [0; 17];
        data.train(i, &mut tokens).unwrap();
        tokens.to_vec()
    };
    for pass in 0..3 {
        let seen: BTreeSet<Vec<i64>> = (0..36).map(|i| read(pass * 36 + i)).collect();
        let all: BTreeSet<Vec<i64>> = (0..36usize)
            .map(|w| {
                text.as_bytes()[w * 16..w * 16 + 17]
                    .iter()
                    .map(|b| i64::from(*b))
                    .collect()
            })
            .collect();
        assert_eq!(seen, all, "pass {pass}");
    }
    let orders: Vec<Vec<Vec<i64>>> = (0..2)
        .map(|p| (0..36).map(|i| read(p * 36 + i)).collect())
        .collect();
    assert_ne!(orders[0], orders[1], "each pass has its own order");
    let mut last = [0; 17];
    data.held_out(3, &mut last).unwrap();
    assert_eq!(last[16], 256, "the last window ends with the end of the document");
    assert!(data.held_out(4, &mut last).is_err());
}

#[test]
fn a_dataset_without_a_description_is_known_by_its_content() {
    let fingerprint = |text: &str| {
        let (_folder, prefix) = dataset(text);
        std::fs::remove_file(with_suffix(&prefix, "json")).unwrap();
        let opened = || TokenDataset::open(&prefix, 16, 0.1, 3).unwrap().fingerprint();
        assert_eq!(opened(), opened());
        opened()
    };
    // A short dataset of one piece, and a long one of many.
    for words in [40, 60_000] {
        let text = "word ".repeat(words);
        let own = fingerprint(&text);
        assert_eq!(own, fingerprint(&text));
        for other in [
            "Word ".repeat(words),
            format!("{}wort ", "word ".repeat(words - 1)),
        ] {
            assert_ne!(own, fingerprint(&other), "of the same size");
        }
        assert_ne!(own, fingerprint(&"word ".repeat(words + 1)));
    }
}

#[test]
fn damaged_and_unfit_datasets_are_refused_by_name() {
    let (_folder, prefix) = dataset(&"word ".repeat(100));
    let data = TokenDataset::open(&prefix, 16, 0.0, 3).unwrap();
    assert!(data.check_vocabulary(257).is_ok());
    let wrong = data.check_vocabulary(256).unwrap_err().to_string();
    assert!(
        wrong.contains("vocabulary 257") && wrong.contains("256"),
        "{wrong}"
    );
    // Datasets of Megatron's own tools have no description, so nothing is known about the ids before they are read.
    let description = std::fs::read(with_suffix(&prefix, "json")).unwrap();
    std::fs::remove_file(with_suffix(&prefix, "json")).unwrap();
    let bare = TokenDataset::open(&prefix, 16, 0.0, 3).unwrap();
    bare.check_vocabulary(115).unwrap();
    let mut tokens = vec![0; 17];
    let unknown = bare.train(0, &mut tokens).unwrap_err().to_string();
    assert!(
        unknown.contains("token 119 at position") && unknown.contains("vocabularySize is 115"),
        "{unknown}"
    );
    let known = TokenDataset::open(&prefix, 16, 0.0, 3).unwrap();
    known.check_vocabulary(257).unwrap();
    known.train(0, &mut tokens).unwrap();
    std::fs::write(with_suffix(&prefix, "json"), description).unwrap();
    let small = TokenDataset::open(&prefix, 600, 0.0, 3)
        .err()
        .unwrap()
        .to_string();
    assert!(small.contains("501 tokens"), "{small}");
    let bin = with_suffix(&prefix, "bin");
    let whole = std::fs::read(&bin).unwrap();
    std::fs::write(&bin, &whole[..whole.len() - 2]).unwrap();
    let cut = crate::info(&prefix).unwrap_err().to_string();
    assert!(cut.contains("data.v1.bin") && cut.contains("cut short"), "{cut}");
    let missing = crate::info(Path::new("/nonexistent/x")).unwrap_err().to_string();
    assert!(missing.contains("/nonexistent/x.bin"), "{missing}");
}

#[cfg(feature = "store")]
#[test]
fn a_sample_that_was_announced_is_read_without_the_store() {
    use crate::files::{DataFile, Rig};
    // Samples that are in one block, and in two.
    let (_folder, prefix) = dataset(&"word ".repeat(80_000));
    let content = std::fs::read(with_suffix(&prefix, "bin")).unwrap();
    for (index, is_held_out) in [(0, false), (7, false), (500, false), (0, true), (3, true)] {
        let rig = Rig::new(&content, 64 << 20);
        let mut data = TokenDataset::open(&prefix, 1000, 0.05, 3).unwrap();
        data.bin = DataFile::Object(rig.open("a").unwrap());
        let mut tokens = vec![0; 1001];
        match is_held_out {
            true => data.prefetch_held_out(index, SampleData::Tokens),
            false => data.prefetch_train(index, SampleData::Tokens),
        }
        rig.wait_for_announced();
        assert!(
            (1..content.len() as u64).contains(&rig.cached_bytes()),
            "a part of the file"
        );
        rig.delete();
        match is_held_out {
            true => data.held_out(index, &mut tokens),
            false => data.train(index, &mut tokens),
        }
        .unwrap();
    }
}

#[cfg(feature = "store")]
#[test]
fn announced_positions_are_read_without_the_store() {
    use crate::files::{DataFile, Rig};
    let texts: Vec<String> = (0..40_000).map(|i| "a".repeat(i % 5)).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let (_folder, prefix) = documents(&texts);
    let idx = with_suffix(&prefix, "idx");
    let content = std::fs::read(&idx).unwrap();
    for (index, is_held_out) in [(0, false), (7, false), (1000, false), (0, true), (30, true)] {
        // The index was checked before: nothing of it is in the cache.
        let rig = Rig::new(&content, 64 << 20);
        let shape = SampleShape::windows(50);
        let mut data = TokenDataset::open_in(&Files::default(), &prefix, shape, (0.05, 3)).unwrap();
        let Opened {
            index: sizes, sparse, ..
        } = open(&Files::default(), &prefix).unwrap();
        let file = DataFile::Object(rig.open("a").unwrap());
        let mut positions = [vec![0; 51], vec![0; 51]];
        let read = |data: &TokenDataset, positions: &mut [i64]| match is_held_out {
            true => data.held_out_positions(index, positions),
            false => data.train_positions(index, positions),
        };
        read(&data, &mut positions[0]).unwrap();
        data.documents = Documents::new((file, idx.clone()), sizes, sparse);
        match is_held_out {
            true => data.prefetch_held_out(index, SampleData::Positions),
            false => data.prefetch_train(index, SampleData::Positions),
        }
        rig.wait_for_announced();
        assert!(
            (1..300_000).contains(&rig.cached_bytes()),
            "a small part of {}",
            content.len()
        );
        rig.delete();
        read(&data, &mut positions[1]).unwrap();
        assert_eq!(positions[0], positions[1]);
    }
}

/// A dataset with these documents, each followed by the end-of-document token.
fn documents(texts: &[&str]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("text.jsonl");
    let lines = texts.iter().map(|text| format!("{{\"text\": \"{text}\"}}\n"));
    std::fs::write(&input, lines.collect::<String>()).unwrap();
    let output = folder.path().join("data");
    build(
        &Build::new(vec![input], output.clone(), Tokenizer::Byte),
        &mut |_| (),
    )
    .unwrap();
    (folder, output)
}

#[test]
fn documents_as_samples_are_independent() {
    let open = |prefix: &Path, length, fraction| {
        let shape = SampleShape {
            length,
            records: true,
        };
        TokenDataset::open_in(&Files::default(), prefix, shape, (fraction, 3))
    };
    let (_folder, prefix) = documents(&["abcd", "efgh", "ijkl", "mnop", "qrst"]);
    let data = open(&prefix, 5, 0.2).unwrap();
    assert_eq!((data.training_len(), data.held_out_len()), (4, 1));
    let mut row = [7; 6];
    let trained = (0..4).map(|i| {
        data.train(i, &mut row).unwrap();
        assert_eq!(
            row[4..],
            [256, 0],
            "the end of the document, and nothing of the next one"
        );
        u8::try_from(row[0]).unwrap()
    });
    assert_eq!(trained.collect::<BTreeSet<_>>(), BTreeSet::from(*b"aeim"));
    data.held_out(0, &mut row).unwrap();
    assert_eq!(row, [113, 114, 115, 116, 256, 0], "the last one too");
    // As windows over the text there are four, because no token follows the last one.
    assert_eq!(TokenDataset::open(&prefix, 5, 0.0, 3).unwrap().training_len(), 4);

    let refused = |texts: &[&str], length| {
        let (_folder, prefix) = documents(texts);
        open(&prefix, length, 0.0).map(|_| ()).unwrap_err().to_string()
    };
    let found = refused(&["abcd", "efgh"], 6);
    assert!(
        found.contains("document 2 begins at 10 — at 12: each document is one sample"),
        "{found}"
    );
    let found = refused(&["abc", "efghi"], 5);
    assert!(found.contains("document 1 begins at 4 — at 5"), "{found}");
}
