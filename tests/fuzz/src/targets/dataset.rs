//! Datasets: `.idx`, `.bin` and `.json`, and texts that they are built from.

use super::{LITTLE, MORE, Seeds, join, take_part};
use crate::{Form, Target};
use std::path::{Path, PathBuf};
use varuna_dataset::{Build, TokenDataset, Tokenizer, build, info};

pub(super) const INDEX: Target = Target {
    name: "dataset-index",
    what: ".idx, .json and .bin of a dataset",
    form: Form::Parts(3),
    words: &["MMIDIDX\0\0", "\"tokens\":", "\"vocabulary\":"],
    memory: LITTLE,
    seeds: index_seeds,
    run: run_index,
};

pub(super) const TEXT: Target = Target {
    name: "dataset-text",
    what: "texts, plain and compressed, that a dataset is built from",
    form: Form::Bytes,
    words: &[
        "\n\n",
        "\u{3000}",
        "\u{FEFF}",
        "<|endoftext|>",
        "\u{1f}\u{8b}\u{8}",
    ],
    memory: MORE,
    seeds: text_seeds,
    run: run_text,
};

const TOKENS: &str =
    "In the beginning God created the heaven and the earth.\nAnd the earth was without form.\n";

/// Builds a dataset in the folder.
fn build_in(folder: &Path, file: &str, content: &[u8]) -> Result<(PathBuf, u64), String> {
    let (input, output) = (folder.join(file), folder.join("data"));
    std::fs::write(&input, content).expect("a temporary file can be written");
    let request = Build {
        inputs: vec![input],
        output: output.clone(),
        tokenizer: Tokenizer::Byte,
        overwrite: false,
    };
    let summary = build(&request).map_err(|e| e.to_string())?;
    Ok((output, summary.text_bytes))
}

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder can be made")
}

fn index_seeds() -> Seeds {
    let folder = temporary();
    let (prefix, _) = build_in(folder.path(), "text.txt", TOKENS.as_bytes()).expect("a text is a dataset");
    let file = |extension| std::fs::read(prefix.with_extension(extension)).expect("it was written");
    let (idx, json, bin) = (file("idx"), file("json"), file("bin"));
    vec![
        ("with-description", join(&[&idx, &json, &bin])),
        ("without-description", join(&[&idx, b"", &bin])),
    ]
}

fn run_index(mut input: &[u8]) -> Result<String, String> {
    let folder = temporary();
    let prefix = folder.path().join("data");
    let write = |extension: &str, content: &[u8]| {
        let path = prefix.with_extension(extension);
        std::fs::write(path, content).expect("a temporary file can be written");
    };
    write("idx", take_part(&mut input));
    let json = take_part(&mut input);
    if !json.is_empty() {
        write("json", json);
    }
    write("bin", input);
    let place = folder.path().display().to_string();
    let said = |e: varuna_dataset::DataError| e.to_string().replace(&place, "");
    let summary = info(&prefix).map_err(said)?;
    assert_eq!(summary.tokens * summary.token_bytes as u64, input.len() as u64);
    let data = TokenDataset::open(&prefix, 4, 0.1, 7).map_err(said)?;
    let mut tokens = [0; 5];
    for sample in [0, data.training_len() - 1, data.training_len(), u64::MAX] {
        data.train(sample, &mut tokens)
            .expect("every sample of the training data can be read");
    }
    for sample in 0..data.held_out_len().min(4) {
        data.held_out(sample, &mut tokens)
            .expect("every sample that is held out can be read");
    }
    assert_eq!(
        data.fingerprint(),
        TokenDataset::open(&prefix, 4, 0.1, 7)
            .map_err(said)?
            .fingerprint()
    );
    Ok(format!(
        "{} documents of {} bytes",
        summary.documents, summary.token_bytes
    ))
}

fn text_seeds() -> Seeds {
    // The header of gzip and an empty last block: no text at all.
    let empty = [
        1, 0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    let plain = [&[0], TOKENS.as_bytes()].concat();
    vec![("plain", plain), ("gzip-of-nothing", empty.to_vec())]
}

/// The first byte says whether the rest is compressed.
fn run_text(input: &[u8]) -> Result<String, String> {
    let (first, content) = input.split_first().ok_or("empty")?;
    let folder = temporary();
    let file = if first & 1 == 0 { "text.txt" } else { "text.gz" };
    let place = folder.path().display().to_string();
    let built = build_in(folder.path(), file, content);
    let (prefix, length) = built.map_err(|e| e.replace(&place, ""))?;
    let summary = info(&prefix).expect("what was built can be opened");
    // One token for each byte, and one for the end.
    assert_eq!(summary.tokens, length + 1);
    Ok(file.to_owned())
}
